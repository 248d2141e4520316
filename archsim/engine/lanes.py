"""Lanes: kernels run in order on each lane, as CUDA streams and statically scheduled machines do.

A task starts when its lane is free and its dependencies are done: a max-plus recurrence over arrays, no event queue.
A lane's idle time belongs to what its next task waited for. Layers of one kind repeat: after a few of them every
lane advances by the same amount a layer, so the rest is arithmetic.
"""

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from archsim.arrays import Array
from archsim.engine.cost import ZERO, Cost
from archsim.engine.timed import APART, GAPS, Lane, Schedule, Timed, Work

__all__ = ["APART", "FILL", "GAPS", "Event", "Lane", "Schedule", "Timed", "Work", "narrow_first", "run", "timeline"]

FILL = 3  # layers of a run that are played one by one before it is extrapolated


def run(
    blocks: Mapping[str, Sequence[Timed]], sequence: Sequence[tuple[str, int]], host: Array, launch: Mapping[str, Array]
) -> Schedule:
    """Plays a sequence of blocks after `host` seconds on the host lane.

    `launch` gives, per block, the host time to launch its kernels one by one (empty when steps are captured graphs);
    the host runs ahead of the device, and a block starts when its launches are in.
    """
    clock = _Clock(host)
    for block, count in sequence:
        if _is_chain(blocks[block]) and not any(task.pinned for task in blocks[block]):
            clock.chain(block, blocks[block], count, launch.get(block))
        else:
            clock.play(block, blocks[block], count, launch.get(block))
    return clock.schedule()


@dataclass(frozen=True)
class Event:
    """A task on the time line: seconds from the start of the step."""

    name: str
    lane: str
    block: str
    layer: int
    start: float
    seconds: float


def timeline(
    blocks: Mapping[str, Sequence[Timed]], sequence: Sequence[tuple[str, int]], host: Array, launch: Mapping[str, Array]
) -> list[Event]:
    """Every task of every layer with its start, at one point: all arrays hold one number."""
    clock = _Recorder(host)
    for block, count in sequence:
        for _ in range(count):
            clock.block = block
            clock.play(block, blocks[block], 1, launch.get(block))
            clock.layer += 1
    return clock.events


def narrow_first(tasks: Sequence[Timed]) -> list[Timed]:
    """The tasks in order, wide ones last."""
    return sorted(tasks, key=lambda task: task.wide)


def _is_chain(tasks: Sequence[Timed]) -> bool:
    return all(task.after == ((index - 1,) if index else ()) for index, task in enumerate(tasks))


@dataclass(frozen=True, eq=False)
class _Kept:
    """The state of a clock at one moment."""

    end: Array
    ends: Mapping[int, Array]
    free: Mapping[str, Array]
    done: Mapping[tuple[str, int], Work]
    gaps: Mapping[str, Mapping[str, Array]]
    layers: Mapping[str, int]


@dataclass(frozen=True, eq=False)
class _Past:
    """A task that ran: its lane, when it could have started at the earliest and when it ended, and what it waited for.

    What came `before` is known where a task waits for one other.
    """

    lane: str
    ready: Array
    end: Array
    before: "_Past | None"


@dataclass(eq=False)
class _Clock:
    """The moving state of a schedule: when lanes are free, what they did, and when the last block ended."""

    host: Array
    end: Array = field(init=False)
    free: dict[str, Array] = field(default_factory=dict)
    done: dict[tuple[str, int], Work] = field(default_factory=dict)
    gaps: dict[str, dict[str, Array]] = field(default_factory=dict)
    period: dict[str, Array] = field(default_factory=dict)
    launches: dict[int, Cost] = field(default_factory=dict)
    ends: dict[int, Array] = field(default_factory=dict)
    pending: dict[str, dict[str, Array]] = field(default_factory=dict)
    past: dict[int, _Past] = field(default_factory=dict)  # the last task of each micro-batch
    layers: dict[str, int] = field(default_factory=dict)  # that have a pinned lane of this name

    def __post_init__(self) -> None:
        self.end = self.host
        self.free["host"] = self.host
        self._do("host", Cost(self.host, {"fixed": self.host}))

    def chain(self, block: str, tasks: Sequence[Timed], count: int, launch: Array | None) -> None:
        """A block whose tasks wait for one another in a row: its period is their sum, and gaps are the other lanes'.

        Launched one by one, layer k starts when its launches are in, at the earliest k launches after the host was
        free.
        """
        sums: dict[str, Array] = {}
        for task in narrow_first(tasks):
            sums[task.lane] = sums.get(task.lane, ZERO) + task.cost.seconds * count
        length = sum(sums.values(), ZERO)
        wait = ZERO if launch is None else self._wait(launch, count, length)
        for lane in [lane for lane in {**self.free, **sums} if lane != "host"]:
            if lane in sums:
                self._open(lane, self.end)
                self._flush(lane)
            if self.free.get(lane, self.end) is not self.end:
                self._gap(lane, "dependency", self.end - self.free[lane])
            self._beside(lane, tasks, sums, wait)
        for task in tasks:
            self._do(task.lane, task.cost, count, task.wide)
        self.period[block] = length / count if launch is None else np.maximum(length / count, launch)
        self.end = self.end + length if wait is ZERO else self.end + length + wait
        self.ends.clear()
        self.past.clear()
        for lane in self.free:
            if lane != "host":
                self.free[lane] = self.end

    def _wait(self, launch: Array, count: int, length: Array) -> Array:
        """Time that a row of layers waits for its launches in all."""
        host, each = self.free["host"], length / count
        latest = np.maximum(host + launch + length, host + launch * count + each)
        self.free["host"] = host + launch * count
        self._do("host", Cost(launch, {"fixed": launch}), count)
        return np.maximum(latest - length - self.end, 0.0)

    def _beside(self, lane: str, tasks: Sequence[Timed], sums: Mapping[str, Array], wait: Array) -> None:
        """What a lane waits for while others work; after its last task that is only known once it works again."""
        after: dict[str, Array] = {}
        if lane in sums:
            last = max(index for index, task in enumerate(tasks) if task.lane == lane)
            for task in tasks[last + 1 :]:
                after[task.lane] = after.get(task.lane, ZERO) + task.cost.seconds
        for other, seconds in sums.items():
            if other != lane:
                now = ZERO if lane not in sums else seconds - after[other] if other in after else seconds
                self._gap(lane, other, now)
                self._later(lane, other, after.get(other, ZERO) if lane in sums else seconds)
        if wait is not ZERO:
            (self._gap if lane in sums else self._later)(lane, "host", wait)

    def _later(self, lane: str, cause: str, seconds: Array) -> None:
        causes = self.pending.setdefault(lane, {})
        causes[cause] = causes[cause] + seconds if cause in causes else seconds

    def _flush(self, lane: str) -> None:
        """A lane works again: what came since its last task was waiting."""
        for cause, seconds in self.pending.pop(lane, {}).items():
            self._gap(lane, cause, seconds)

    def play(self, block: str, tasks: Sequence[Timed], count: int, launch: Array | None) -> None:
        """A block in general: its first layers one by one, the rest by the step of each lane."""
        before = self._state()
        for _ in range(min(count, FILL)):
            before = self._state()
            self._layer(tasks, launch)
        self.period[block] = self.end - before.end
        if count > FILL:
            self._repeat(before, count - FILL)

    def _layer(self, tasks: Sequence[Timed], launch: Array | None) -> None:
        if launch is not None:
            self.free["host"] = self.free["host"] + launch
            self._do("host", self._launch(launch))
        done: list[_Past] = []
        own: dict[str, Array] = {}  # when lanes pinned to this layer are free
        last: dict[int, _Past] = {}
        for task in tasks:
            waits = [(self.ends.get(task.batch, self.end), "dependency")]
            if launch is not None:
                waits.append((self.free["host"], "host"))
            waits += [(done[index].end, tasks[index].lane) for index in task.after]
            ready = functools.reduce(np.maximum, (time for time, _ in waits))
            before = self.past.get(task.batch) if not task.after else done[task.after[0]]
            before = before if len(task.after) < 2 else None
            if task.wait is not None:
                before = _Past("queue", ready, ready + task.wait, before)
                ready = before.end
            start = self._pinned(task, ready, own) if task.pinned else self._start(task, ready, waits, before)
            self._do(task.lane, task.cost, 1.0, task.wide)
            self._note(task, start)
            end = start + task.cost.seconds
            free = own if task.pinned else self.free
            if task.skips:
                works = task.cost.seconds > 0.0
                free[task.lane] = np.where(works, end, free.get(task.lane, ready))
                end = np.where(works, end, ready)
            else:
                free[task.lane] = end
            done.append(_Past(task.lane, ready, end, before))
            last[task.batch] = done[-1]
        for lane in own:
            self.layers[lane] = self.layers.get(lane, 0) + 1
        self.ends.update({batch: item.end for batch, item in last.items()})
        self.past.update({batch: item for batch, past in last.items() if (item := _recent(past)) is not None})
        self.end = functools.reduce(np.maximum, (item.end for item in last.values()), self.end)

    def _pinned(self, task: Timed, ready: Array, own: Mapping[str, Array]) -> Array:
        """When a task starts on a lane of this layer alone, which nothing before this layer has used."""
        return np.maximum(ready, own[task.lane]) if task.lane in own else ready

    def _start(self, task: Timed, ready: Array, waits: Sequence[tuple[Array, str]], before: _Past | None) -> Array:
        """When a task starts, and what its lane waited for."""
        if task.lane not in self.free:
            self._open(task.lane, self.host)
            waits, before = [(time, "host" if cause == "host" else "bubble") for time, cause in waits], None
        self._flush(task.lane)
        free = self.free[task.lane]
        start = np.maximum(ready, free)
        if task.skips:
            start = np.where(task.cost.seconds > 0.0, start, free)
        if before is not None and before.lane in APART and task.lane not in APART:
            self._trace(task.lane, before, free, start)
        else:
            self._gaps(task.lane, waits, start - free)
        return start

    def _trace(self, lane: str, before: _Past | None, free: Array, start: Array) -> None:
        """Shares a gap among the lanes that its micro-batch went through meanwhile, last one first."""
        until = start
        while before is not None and before.lane != lane:
            since = np.clip(before.ready, free, until)
            self._gap(lane, before.lane, until - since)
            until, before = since, before.before
        self._gap(lane, "dependency", until - np.minimum(free, until))

    def _note(self, task: Timed, start: Array) -> None:
        """For a recorder: a task begins."""

    def _launch(self, seconds: Array) -> Cost:
        """The cost of launching a block, one and the same for all its layers."""
        return self.launches.setdefault(id(seconds), Cost(seconds, {"fixed": seconds}))

    def _state(self) -> "_Kept":
        """A copy to compare with later; costs and arrays never change."""
        gaps = {lane: dict(causes) for lane, causes in self.gaps.items()}
        return _Kept(self.end, dict(self.ends), dict(self.free), dict(self.done), gaps, dict(self.layers))

    def _repeat(self, before: "_Kept", times: int) -> None:
        """Repeats the last layer: every lane moves on by what it moved in that layer."""
        self.end = self.end + (self.end - before.end) * times
        self.past.clear()
        for lane, layers in self.layers.items():
            self.layers[lane] = layers + (layers - before.layers.get(lane, 0)) * times
        for batch, now in self.ends.items():
            self.ends[batch] = now + (now - before.ends.get(batch, before.end)) * times
        for lane, now in self.free.items():
            self.free[lane] = now + (now - before.free.get(lane, ZERO)) * times
            for cause, gap in list(self.gaps.get(lane, {}).items()):
                self.gaps[lane][cause] = gap + (gap - before.gaps.get(lane, {}).get(cause, ZERO)) * times
        for key, work in self.done.items():
            last = work.times - (before.done[key].times if key in before.done else 0.0)
            self.done[key] = replace(work, times=work.times + last * times)

    def _do(self, lane: str, cost: Cost, times: float = 1.0, wide: bool = False) -> None:
        """Adds work to a lane; a cost that comes again is counted, not added."""
        known = self.done.get((lane, id(cost)))
        self.done[lane, id(cost)] = Work(cost, times + (known.times if known else 0.0), wide)

    def _open(self, lane: str, start: Array) -> None:
        """A lane that starts now has been idle since the beginning."""
        if lane in self.free:
            return
        self.free[lane] = start
        self._gap(lane, "host", self.host)
        if start is not self.host:
            self._gap(lane, "bubble", start - self.host)

    def _gaps(self, lane: str, waits: Sequence[tuple[Array, str]], gap: Array) -> None:
        """A gap belongs to the lane of the dependency that came last, at every point; among equals to the first
        named."""
        latest = functools.reduce(np.maximum, (time for time, _ in waits))
        open_gap = gap
        for time, cause in waits:
            share = np.where(time == latest, open_gap, 0.0)
            self._gap(lane, cause if cause != lane else "dependency", share)
            open_gap = open_gap - share

    def _gap(self, lane: str, cause: str, seconds: Array) -> None:
        if seconds is ZERO:
            return
        causes = self.gaps.setdefault(lane, {})
        causes[cause] = causes[cause] + seconds if cause in causes else seconds

    def schedule(self) -> Schedule:
        """The account of every lane up to the end of the last block."""
        span = self.end
        for free in self.free.values():
            span = span if free is span else np.maximum(span, free)
        lanes = {}
        for lane, free in self.free.items():
            if free is not span:
                self._gap(lane, "no_work", span - free)
            for seconds in self.pending.pop(lane, {}).values():
                self._gap(lane, "no_work", seconds)
            work = [item for (name, _), item in self.done.items() if name == lane]
            lanes[lane] = Lane(work, self.gaps.get(lane, {}))
        lanes |= {lane: self._mean(lane, layers, span) for lane, layers in self.layers.items()}
        return Schedule(span, self.period, lanes)

    def _mean(self, lane: str, layers: int, span: Array) -> Lane:
        """The account of a lane that each of so many layers has for itself: the mean of all."""
        work = [replace(item, times=item.times / layers) for (name, _), item in self.done.items() if name == lane]
        found = Lane(work, {})
        return Lane(work, {"other_layers": span - found.cost.seconds})


def _recent(past: _Past | None) -> _Past | None:
    """A task and what led to it, back to the last one of its own pool."""
    if past is None:
        return None
    return replace(past, before=_recent(past.before) if past.lane in APART else None)


@dataclass(eq=False)
class _Recorder(_Clock):
    """A clock that keeps every task it plays."""

    events: list[Event] = field(default_factory=list)
    block: str = ""
    layer: int = 0

    def _note(self, task: Timed, start: Array) -> None:
        begin, length = float(start.ravel()[0]), float(task.cost.seconds.ravel()[0])
        if length > 0.0:
            self.events.append(Event(task.name, task.lane, self.block, self.layer, begin, length))
