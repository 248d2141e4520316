"""KV memory below that of the chips: CPU memory, SSD, a remote store. Evicted blocks sink, and are loaded back.

A block that leaves a memory is written to the next one, over a link with a queue. A request's leading blocks that the
chips do not hold are looked for below and loaded where that is sooner than computing them. Writes count from the last
moment at which something happened to a request, so that what goes on within a stretch of equal iterations needs no time
of its own.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf

from archsim.serving.eviction import Gone, Order
from archsim.serving.pool import Prefixes
from archsim.serving.surface import Surface

SLACK = 1.0 + 1e-9  # a queue that is full to the last bit is full however its times were summed up


@dataclass(frozen=True)
class Level:
    """A tier: blocks that it holds, and seconds to move one either way.

    `lanes` links carry different sequences at once. `backlog`: seconds of writes that may wait; more are not kept.
    `shared` by all replicas, or one for each. `size` are the bytes of a block there, `price` USD per 1e9 B.
    """

    name: str
    capacity: float = inf
    read: float = 0.0
    write: float = 0.0
    latency: float = 0.0
    lanes: int = 1
    backlog: float = 1.0
    shared: bool = False
    ttl: float = inf
    size: float = 0.0
    price: float = 0.0


class Tier:
    """A tier in time: what it holds, its two queues, and what it did."""

    def __init__(self, level: Level) -> None:
        self.level, self.order = level, Order(level.ttl)
        self._coming: dict[int, float] = {}  # blocks that are not yet written, or were not lately, and when they are
        self._reading = self._writing = 0.0  # when the queues are empty
        self.hits = self.loaded = self.written = self.refused = 0  # blocks
        self.saved = 0.0  # seconds of prefill that its hits were instead of
        self.waits: list[float] = []  # seconds of each load

    def __len__(self) -> int:
        """Blocks that it holds."""
        return len(self.order)

    def has(self, name: int, time: float) -> bool:
        """Whether a block is here, written and not too old."""
        order, coming = self.order, self._coming
        if name not in order.resting and name not in order.leaving:
            return False
        return coming.get(name, time) <= time and not (order.timed and order.old(name, time))

    def loading(self, blocks: int, time: float) -> float:
        """When so many blocks would be loaded."""
        return max(time, self._reading) + self.level.latency + blocks * self.level.read

    def load(self, names: Sequence[int], time: float) -> float:
        """Loads blocks, which stay here too; when they are there."""
        done = self.loading(len(names), time)
        self._reading = max(time, self._reading) + len(names) * self.level.read / self.level.lanes
        self.order.again(reversed(names), time)
        self.loaded += len(names)
        self.waits.append(done - time)
        return done

    def take(self, coming: Sequence[Gone]) -> Sequence[Gone]:
        """Blocks come from above; what they drive out, or they themselves where there is no room at all."""
        level, order, written = self.level, self.order, self._coming
        if level.capacity < 1:
            return coming
        writing, each, most = self._writing, level.write / level.lanes, level.backlog * SLACK
        took, time, before = level.latency + level.write, 0.0, len(order)
        if written and coming and writing + took <= coming[0][2]:
            written.clear()
        leaving, resting = order.leaving, order.resting
        for name, leaves, time in coming:
            if name in resting or name in leaving:
                order.remove(name, time)
                (leaving if leaves else resting)[name] = time
            elif writing - time > most:
                self.refused += 1
            else:
                if writing < time:
                    writing = time
                written[name] = writing + took
                writing += each
                (leaving if leaves else resting)[name] = time
        self._writing = writing
        self.written += len(order) - before
        return order.pop(len(order) - int(level.capacity), time, time) if len(order) > level.capacity else ()

    def expired(self, time: float) -> list[Gone]:
        """Takes out what is too old."""
        return self.order.expired(time)


class Recompute:
    """Seconds to prefill a stretch of a prompt alone, in chunks of so many tokens; linear within a chunk."""

    def __init__(self, surface: Surface, chunk: int) -> None:
        self._seconds = surface.mixed if surface.prompts is None else surface.prompts.seconds
        self._sums = [0.0] * len(surface.clips)
        self._chunk = chunk
        self._ends = [0.0]

    def __call__(self, start: int, end: int) -> float:
        """Seconds for the tokens from `start` to `end`, after those before."""
        return self._until(end) - self._until(start)

    def _until(self, tokens: int) -> float:
        ends, chunk = self._ends, self._chunk
        whole, rest = divmod(tokens, chunk)
        while len(ends) <= whole + 1:
            ends.append(ends[-1] + self._seconds(0, self._sums, [(chunk, chunk * (len(ends) - 1))]))
        return ends[whole] + (ends[whole + 1] - ends[whole]) * rest / chunk


@dataclass(frozen=True)
class Load:
    """Blocks of a chain on their way: from `start` on, in runs (end, tier); `done` when all are there (s)."""

    start: int
    runs: tuple[tuple[int, Tier], ...]
    done: float

    @property
    def end(self) -> int:
        """The first block that is not loaded."""
        return self.runs[-1][0]


class Tiered(Prefixes):
    """A prefix cache with tiers below it. `gone` counts blocks that left the last one."""

    def __init__(
        self,
        block: int,
        unit: int,
        below: Sequence[Tier],
        recompute: Callable[[int, int], float],
        order: Order | None = None,
    ) -> None:
        super().__init__(block, unit, order)
        self.below, self.recompute = below, recompute
        self.gone = 0
        self._timed = [(level, tier) for level, tier in enumerate(below, 1) if tier.level.ttl < inf]
        self._dropped: list[Gone] = []

    def dropped(self, gone: list[Gone]) -> None:
        """Blocks leave the chips; they sink when a request changes something next."""
        self._dropped += gone

    def settle(self) -> int:
        """Lets all sink that has left a memory since the last time."""
        given = super().settle()
        if self._dropped:
            self._sink(0, self._dropped)
            self._dropped = []
        for level, tier in self._timed:
            self._sink(level, tier.expired(self.clock()))
        return given

    def _sink(self, level: int, gone: Sequence[Gone]) -> None:
        """Blocks come to a tier, and what they drive out to those below."""
        for tier in self.below[level:]:
            if not gone:
                return
            gone = tier.take(gone)
        self.gone += len(gone)

    def fetch(self, chain: Sequence[int], tokens: int, held: int) -> Load | None:
        """Starts to load what a prompt of `tokens` finds below, up to where that is soonest; None: nothing.

        The leading `held` blocks are in the chips' memory; they count as used.
        """
        now = self.clock()
        runs = self._runs(chain, held, min((tokens - 1) // self.block, len(chain)), now)
        if not runs:
            return None
        best, least = 0, self.recompute(held * self.block, tokens)
        blocks: dict[Tier, int] = {}
        start, done = held, now
        for place, (end, tier) in enumerate(runs, 1):
            blocks[tier] = blocks.get(tier, 0) + end - start
            start, done = end, max(done, tier.loading(blocks[tier], now))
            seconds = done - now + self.recompute(end * self.block, tokens)
            if seconds < least:
                best, least = place, seconds
        if not best:
            return None
        self.touch(chain[:held])
        return self._load(chain, held, runs[:best], now)

    def _runs(self, chain: Sequence[int], held: int, most: int, now: float) -> list[tuple[int, Tier]]:
        """Where the blocks after those held are: the end of each run in one tier, the fastest that has it.

        Later tokens take longer to compute and no longer to load, so that the best cut is at the end of a run.
        """
        runs: list[tuple[int, Tier]] = []
        for place in range(held, most):
            name = chain[place]
            for tier in self.below:
                if tier.has(name, now):
                    break
            else:
                return runs
            if runs and runs[-1][1] is tier:
                runs.pop()
            runs.append((place + 1, tier))
        return runs

    def _load(self, chain: Sequence[int], held: int, runs: Sequence[tuple[int, Tier]], now: float) -> Load:
        names: dict[Tier, list[int]] = {}
        start = held
        for end, tier in runs:
            names.setdefault(tier, []).extend(chain[start:end])
            start = end
        done = max([tier.load(wanted, now) for tier, wanted in names.items()])
        return Load(held, tuple(runs), done)

    def credit(self, load: Load, held: int, counts: bool) -> int:
        """Blocks that a load saves a request of which the chips hold so many when it starts.

        0 where they have lost the beginning that the load goes on from. `counts`: as hits of the tiers.
        """
        if held < load.start:
            return 0
        start = held
        for end, tier in load.runs:
            if end > start:
                if counts:
                    tier.hits += end - start
                    tier.saved += self.recompute(start * self.block, end * self.block)
                start = end
        return start - held


def below(levels: Sequence[Level], replicas: int) -> list[list[Tier]]:
    """The tiers of every replica; shared ones are the same for all."""
    common = {place: Tier(level) for place, level in enumerate(levels) if level.shared}
    return [
        [common[place] if place in common else Tier(level) for place, level in enumerate(levels)]
        for _ in range(replicas)
    ]
