"""The cost of one placed step: every kernel priced, and its lanes run."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from archsim.arrays import Array, array
from archsim.chip.model import Chip, Unsuited
from archsim.engine import gpu, lpu, near_memory, transfer
from archsim.engine.apart import apart
from archsim.engine.cost import Cost, total
from archsim.engine.lanes import APART, Schedule, Timed, run
from archsim.engine.timed import together
from archsim.mapping.pipeline import largest
from archsim.mapping.plan import Kernel, Plan, Task

KINDS = {"gpu": gpu.price, "near-memory": near_memory.price, "lpu": lpu.price}
# What kernels of a block do to one another, where they are not priced alone: (kernels with costs, chip, stack) -> same
TOGETHER = {"near-memory": near_memory.overlapped, "lpu": lpu.scheduled}
WIDE = ("generation_attention", "mla_generation", "indexer")  # the kernels that know both batch and context


@dataclass(frozen=True, eq=False)
class PricedStep:
    """A plan with the cost of each kernel, the schedule of its lanes, and the time of a hop between stages (s)."""

    plan: Plan
    costs: Mapping[str, tuple[tuple[Kernel, Cost], ...]]
    schedule: Schedule
    hop: Array
    rolling: Array | None = None

    @property
    def span(self) -> Array:
        """Seconds from the host's first move to the end of the last kernel, of one micro-batch."""
        return self.schedule.span

    @cached_property
    def _staged(self) -> bool:
        """Whether any plan has more than one pipeline stage."""
        return bool((self.plan.split.pipeline > 1).any())

    @cached_property
    def stage(self) -> Array:
        """Seconds that the slowest pipeline stage spends on one micro-batch; the span where there is one stage.

        The stages of an LPU, whose compiler cuts anywhere, are equally long.
        """
        if self.plan.flight is not None:
            return self.span / self.plan.split.pipeline
        if not self._staged:
            return self.span
        slowest = largest(self.plan.sequence, self.schedule.period, self.plan.split.pipeline)
        return np.where(self.plan.split.pipeline > 1, slowest, self.span)

    @cached_property
    def latency(self) -> Array:
        """Seconds of one micro-batch through all stages, hops between them included."""
        if not self._staged:
            return self.span
        return self.span + (self.plan.split.pipeline - 1.0) * self.hop

    @cached_property
    def turnaround(self) -> Array:
        """Seconds between two tokens of a sequence: through all stages, or until every micro-batch was served.

        Micro-batches of two pools roll from one step into the next, each when its own tokens are sampled.
        """
        if self.rolling is not None:
            return self.rolling
        if not self._staged:
            return self.span
        return np.maximum(self.latency, self.flight * self.stage)

    @property
    def flight(self) -> Array:
        """Micro-batches on their way through the stages."""
        return self.plan.split.pipeline if self.plan.flight is None else self.plan.flight

    @property
    def busy(self) -> Array:
        """Share of the stages that a micro-batch is in."""
        return self.flight / self.plan.split.pipeline

    def kernels(self) -> list[tuple[str, Kernel, Cost, int]]:
        """(block, kernel, cost of one, layers) in order of execution."""
        counts = self.plan.merged()
        return [(block, kernel, cost, count) for block, count in counts for kernel, cost in self.costs[block]]

    def total(self) -> Cost:
        """The cost of all kernels and transfers together; of two pools, of the main one."""
        lanes = [lane for name, lane in self.schedule.lanes.items() if name != "host" and name not in APART]
        return together(item for lane in lanes for item in lane.work)

    def away(self) -> Cost:
        """The cost of everything that a chip of the other pool does for all replicas of the main one."""
        lanes = self.schedule.lanes
        own = total(lanes[name].cost for name in ("ffn", "ffn_in", "ffn_out") if name in lanes)
        pinned = self.plan.away is not None and self.plan.away.pinned
        return own.scaled(self.plan.split.data) if pinned else own


def run_step(plan: Plan, chip: Chip, stack: str) -> PricedStep:
    """Prices every kernel of a plan and runs its lanes.

    Raises Unsuited when the chip's generation lacks constants, and for a kind of machine without an engine.
    """
    if chip.kind not in KINDS:
        raise Unsuited(f"no engine for chips of kind {chip.kind!r}")
    machines = {"": (chip, stack)}
    if plan.away is not None:
        machines[plan.away.pool] = plan.away.chip, plan.away.stack
    priced: dict[int, Cost] = {}
    for tasks in plan.blocks.values():
        for task in tasks:
            if id(task.kernel) not in priced:
                priced[id(task.kernel)] = _price(task.kernel, *machines[task.kernel.pool])
    costs = {
        block: tuple((task.kernel, priced[id(task.kernel)]) for task in tasks) for block, tasks in plan.blocks.items()
    }
    for pool, machine in machines.items():
        if machine[0].kind in TOGETHER:
            costs = {block: _together(plan.blocks[block], own, pool, *machine) for block, own in costs.items()}
    lanes = lanes_of(plan, costs)
    schedule = run(*lanes)
    rolls = plan.away is not None and bool((plan.away.batches > 1).any())
    return PricedStep(plan, costs, schedule, _hop(plan, chip), _rolling(plan, *lanes[:2]) if rolls else None)


def _rolling(plan: Plan, blocks: Mapping[str, Sequence[Timed]], sequence: Sequence[tuple[str, int]]) -> Array:
    """What a second step adds to the first, where the host serves each micro-batch when its tokens are there."""
    batches = array(1.0) if plan.away is None else plan.away.batches
    each = np.asarray(plan.host / batches)
    host = Cost(each, {"fixed": each})
    ready = [
        Timed("host", "sampler", host.scaled(np.where(batch < batches, 1.0, 0.0)), (), batch=batch, skips=True)
        for batch in range(int(batches.max()))
    ]
    step = (("sampler", 1), *sequence)
    once, twice = (run({**blocks, "sampler": ready}, step * steps, array(0.0), {}).span for steps in (1, 2))
    return twice - once


Priced = tuple[tuple[Kernel, Cost], ...]


def _price(kernel: Kernel, chip: Chip, stack: str) -> Cost:
    return transfer.price(kernel) if kernel.kind == "transfer" else KINDS[chip.kind](kernel, chip, stack)


def _together(tasks: Sequence[Task], priced: Priced, pool: str, chip: Chip, stack: str) -> Priced:
    """The kernels of a block with what those of one pool do to one another, in each micro-batch."""
    found = list(priced)
    for batch in sorted({task.batch for task in tasks}):
        places = [
            place
            for place, task in enumerate(tasks)
            if task.batch == batch and task.kernel.pool == pool and task.kernel.kind != "transfer"
        ]
        changed = TOGETHER[chip.kind]([priced[place] for place in places], chip, stack)
        for place, pair in zip(places, changed, strict=True):
            found[place] = pair
    return tuple(found)


Lanes = tuple[dict[str, list[Timed]], tuple[tuple[str, int], ...], Array, dict[str, Array]]


def lanes_of(plan: Plan, costs: Mapping[str, tuple[tuple[Kernel, Cost], ...]]) -> Lanes:
    """What `lanes.run` and `lanes.timeline` take: timed tasks, sequence, host time, launches."""
    timed = {
        block: [
            Timed(task.kernel.name, task.lane, cost, task.after, task.kernel.kind in WIDE, task.batch)
            for task, (_, cost) in zip(plan.blocks[block], costs[block], strict=True)
        ]
        for block in plan.blocks
    }
    if plan.away is not None:
        timed = {block: apart(tasks, plan.away, plan.split.data) for block, tasks in timed.items()}
    launch: dict[str, Array] = {}
    if plan.launch:
        launch = {block: plan.launch * _launches(tasks) for block, tasks in plan.blocks.items()}
    return timed, plan.sequence, np.asarray(plan.host), launch


def _launches(tasks: Sequence[Task]) -> Array:
    """Kernels of a block; a collective of one rank is none."""
    return sum((np.where(task.kernel.dims.get("ranks", array(2.0)) > 1, 1.0, 0.0) for task in tasks), array(0.0))


def _hop(plan: Plan, chip: Chip) -> Array:
    """The residual stream of a micro-batch from one stage to the next, inside a link domain or across nodes.

    Stages of an LPU are neighbours wherever they are.
    """
    near, far = chip.links.get("scale_up"), chip.links.get("scale_out")
    link = near or far
    if link is None:
        return array(0.0)
    out = far or link
    inside = plan.split.ranks * plan.split.pipeline <= (np.inf if chip.kind == "lpu" else link.domain)
    size = plan.boundary / plan.split.tensor
    near_time, far_time = (one.latency + size / one.bandwidth for one in (link, out))
    return np.where(plan.split.pipeline > 1, np.where(inside, near_time, far_time), 0.0)
