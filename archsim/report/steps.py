"""A priced step in plain numbers: kernels, lanes, and how much of the chip's peaks is used."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

import numpy as np

from archsim.arrays import Array
from archsim.chip.model import Chip
from archsim.engine.cost import ALL_PARTS, Cost
from archsim.engine.lanes import GAPS
from archsim.engine.step import PricedStep
from archsim.explore.evaluate import SteadyAnswer
from archsim.mapping.plan import Kernel
from archsim.report.point import Point, single

Pick = Callable[[Array], float]

DECODE, PREFILL, MIXED = "Decode step", "Prefill", "Mixed step"
ROUNDING = 1e-9  # shares of a time below this are rounding, not parts

LIMITS: dict[str, tuple[str, ...]] = {
    "compute": ("quantization", "occupancy", "imbalance", "clock"),
    "memory": ("bandwidth",),
    "on-chip feed": ("on_chip",),
    "fixed time": ("fixed",),
    "link bandwidth": ("link",),
    "link latency": ("link_latency",),
}


@dataclass(frozen=True, eq=False)
class KernelTime:
    """A kernel of one rank: seconds, parts, FLOPs and bytes of one run, and how often a step runs it."""

    blocks: tuple[str, ...]
    runs: int
    kernel: Kernel
    seconds: float
    parts: dict[str, float]
    flops: float
    bytes: float
    link_bytes: float
    alone: bool = True

    @property
    def name(self) -> str:
        """The kernel's name."""
        return self.kernel.name

    @property
    def label(self) -> str:
        """Its name, with its pool, and its blocks where kernels of one name differ: "attention (windowed_moe)"."""
        words = [*([] if self.alone else self.blocks), *([f"on {self.kernel.pool}"] if self.kernel.pool else [])]
        return f"{self.name} ({', '.join(words)})" if words else self.name

    @property
    def total(self) -> float:
        """Seconds of all runs."""
        return self.seconds * self.runs

    @property
    def intensity(self) -> float:
        """FLOPs a byte; 0 where there are none."""
        return self.flops / self.bytes if self.flops and self.bytes else 0.0

    @property
    def efficiency(self) -> float:
        """The time at the peak rates (the roofline, or the wire) over the time it takes."""
        ideal = sum(self.parts.get(name, 0.0) for name in ("compute", "memory", "link"))
        return ideal / self.seconds if self.seconds else 0.0

    @property
    def limit(self) -> str:
        """What most of its time goes to: compute, memory, on-chip feed, fixed time, link bandwidth or link latency."""
        times = {limit: sum(self.parts.get(name, 0.0) for name in names) for limit, names in LIMITS.items()}
        roof = "memory" if self.parts.get("memory", 0.0) > 0 else "compute"
        times[roof] += self.parts.get("compute", 0.0) + self.parts.get("memory", 0.0)
        return max(times, key=lambda name: times[name]) if self.seconds else "nothing"


@dataclass(frozen=True, eq=False)
class LaneTime:
    """A lane's account of the span (s): parts of its kernels, and gaps by cause."""

    name: str
    parts: dict[str, float]
    gaps: dict[str, float]


@dataclass(frozen=True, eq=False)
class StepTime:
    """One step of one rank in plain numbers; `detail` says more than `title` of what it does.

    `span` is the time of one micro-batch through all pipeline stages, `turnaround` that from one token of a sequence to
    its next, in which a chip serves as many micro-batches as there are stages; with one stage both are the same.
    `stage` is the time of the slowest stage, `latency` the span with the `hop`s between stages.
    """

    title: str
    detail: str
    span: float
    stages: int
    hop: float
    stage: float
    latency: float
    turnaround: float
    host: float
    kernels: tuple[KernelTime, ...]
    periods: dict[str, tuple[float, int]]
    lanes: tuple[LaneTime, ...]
    chip: Chip
    other: tuple[str, Chip] | None = None

    def chip_of(self, item: KernelTime) -> Chip:
        """The chip that a kernel runs on."""
        return self.chip if self.other is None or not item.kernel.pool else self.other[1]

    def pool(self, name: str) -> "StepTime":
        """The step as one pool sees it: `""` is the main one."""
        kernels = tuple(item for item in self.kernels if item.kernel.pool == name and item.kernel.kind != "transfer")
        chip = self.other[1] if name and self.other is not None else self.chip
        return replace(self, kernels=kernels, chip=chip, other=None)

    @cached_property
    def by_name(self) -> list[KernelTime]:
        """Kernels that cost something, those of one name and cost in several blocks joined, longest first."""
        groups: dict[tuple[str, float, float, float], list[KernelTime]] = {}
        for item in self.kernels:
            if item.seconds > 0:
                groups.setdefault((item.name, item.seconds, item.flops, item.bytes), []).append(item)
        counts = Counter(name for name, *_ in groups)
        joined = [_joined(group, counts[name] == 1) for (name, *_), group in groups.items()]
        return sorted(joined, key=lambda item: -item.total)

    @property
    def full_title(self) -> str:
        """Title and detail: "Mixed step (decode with the prompts of 4.7 requests)"."""
        return f"{self.title} ({self.detail})" if self.detail else self.title

    @property
    def compute_share(self) -> float:
        """FLOPs over what the matrix units could do meanwhile, each at the peak of its format (MFU)."""
        own = (item for item in self.kernels if not item.kernel.pool or self.other is None)
        return sum(item.flops * item.runs / self.peak(item) for item in own) / self.turnaround

    @property
    def memory_share(self) -> float:
        """Bytes over what the memory of the main pool could move meanwhile (MBU)."""
        moved = sum(item.bytes * item.runs for item in self.kernels if not item.kernel.pool or self.other is None)
        return moved / single(self.chip.memory.bandwidth) / self.turnaround

    @property
    def link_share(self) -> float:
        """The least time of the bytes on the wire over that of the step."""
        own = (item for item in self.kernels if not item.kernel.pool or self.other is None)
        return sum(item.parts.get("link", 0.0) * item.runs for item in own) / self.turnaround

    def peak(self, item: KernelTime) -> float:
        """Peak FLOP/s of the format that a kernel computes in."""
        return single(self.chip_of(item).matrix[item.kernel.compute]) if item.flops else float("inf")

    def causes(self) -> dict[str, float]:
        """The span as the compute lane sees it, with its waiting for transfers split by what the links did."""
        lanes = {lane.name: lane for lane in self.lanes}
        main = lanes.get("compute", self.lanes[-1])
        found = {**main.parts, **{f"gap:{name}": gap for name, gap in main.gaps.items()}}
        waiting = found.get("gap:link", 0.0)
        links = lanes["link"].parts if "link" in lanes else {}
        busy = sum(links.values())
        if waiting and busy:
            del found["gap:link"]
            for name, part in links.items():
                found[name] = found.get(name, 0.0) + part / busy * waiting
        return found


CAUSES: dict[str, tuple[str, ...]] = {
    "memory": ("memory", "bandwidth"),
    "compute": ("compute",),
    "losses of the matrix units": ("quantization", "occupancy", "imbalance", "clock"),
    "feeding the cores": ("on_chip",),
    "imperfect overlap": ("overlap",),
    "fixed time of kernels": ("fixed",),
    "links": ("link", "link_latency", "gap:link"),
    "the host": ("gap:host",),
    "the way to the other pool and back": ("gap:to_ffn", "gap:from_ffn"),
    "the other pool": ("gap:ffn", "gap:ffn_in", "gap:ffn_out"),
    "the queue at the other pool": ("gap:queue",),
    "other waiting": ("gap:compute", "gap:dependency", "gap:bubble", "gap:no_work"),
}


def summary(step: StepTime) -> list[tuple[str, float]]:
    """Shares of the span by cause, largest first."""
    causes = step.causes()
    shares = {name: sum(causes.get(part, 0.0) for part in parts) / step.span for name, parts in CAUSES.items()}
    return sorted(((name, share) for name, share in shares.items() if share > 0), key=lambda item: -item[1])


def _joined(group: list[KernelTime], alone: bool) -> KernelTime:
    first = group[0]
    blocks = tuple(dict.fromkeys(block for item in group for block in item.blocks))
    runs = sum(item.runs for item in group)
    costs = first.seconds, first.parts, first.flops, first.bytes, first.link_bytes
    return KernelTime(blocks, runs, first.kernel, *costs, alone)


@lru_cache(maxsize=4)  # a report asks many times for the steps of its two points
def steps_of(point: Point) -> tuple[StepTime, ...]:
    """The steps a point is made of: decode, then the prefill chunk (step) or the mixed step (steady)."""
    answer, chip = point.alone.answer, point.scenario.chip
    if isinstance(answer, SteadyAnswer):
        loop = answer.loop
        partner = point.scenario.partner
        if partner is not None and partner.job == "prefill":
            alone = step_time(PREFILL, f"on pool {partner.name}", loop.mixed, partner.chip)
            return step_time(DECODE, "", answer.decode, chip), alone
        joined = single(loop.joined)
        detail = f"decode with the prompts of {joined:.1f} requests" if joined >= 1.05 else "decode with one prompt"
        mixed = step_time(MIXED, detail, loop.mixed, chip, lambda value: single(loop.at_joined(np.atleast_1d(value))))
        return step_time(DECODE, "", answer.decode, chip), mixed
    chunks = single(answer.chunks)
    detail = "" if chunks == 1 else f"one of {chunks:.0f} chunks"
    first = answer.prefilling.chip
    return step_time(DECODE, "", answer.decode, chip), step_time(PREFILL, detail, answer.prefill, first)


def traced(point: Point) -> dict[str, PricedStep]:
    """The steps of a point that have a time line of their own, by name; mixed steps are interpolated and have none."""
    answer = point.alone.answer
    if isinstance(answer, SteadyAnswer):
        return {f"{DECODE} of the steady state": answer.decode}
    return {DECODE: answer.decode, PREFILL: answer.prefill}


def step_time(title: str, detail: str, priced: PricedStep, chip: Chip, pick: Pick = single) -> StepTime:
    """A priced step in plain numbers; `pick` takes one number out of an array. Lanes without work are left out."""
    kernels = tuple(_kernel(block, kernel, cost, runs, pick) for block, kernel, cost, runs in _in_order(priced))
    periods = {block: (pick(priced.schedule.period[block]), count) for block, count in priced.plan.merged()}
    span = pick(priced.span)
    least = ROUNDING * span
    lanes = tuple(
        LaneTime(name, _picked(ALL_PARTS, lane.parts, pick, least), _picked(GAPS, lane.gaps, pick, least))
        for name, lane in priced.schedule.lanes.items()
    )
    lanes = tuple(lane for lane in lanes if lane.parts) or lanes
    return StepTime(
        title,
        detail,
        span,
        round(single(priced.plan.split.pipeline)),
        pick(np.atleast_1d(priced.hop)),
        pick(np.atleast_1d(priced.stage)),
        pick(np.atleast_1d(priced.latency)),
        pick(np.atleast_1d(priced.turnaround)),
        pick(np.atleast_1d(priced.plan.host)),
        kernels,
        periods,
        lanes,
        chip,
        None if priced.plan.away is None else (priced.plan.away.pool, priced.plan.away.chip),
    )


def _kernel(block: str, kernel: Kernel, cost: Cost, runs: int, pick: Pick) -> KernelTime:
    dims = {name: np.atleast_1d(pick(np.atleast_1d(value))) for name, value in kernel.dims.items()}
    seconds = pick(cost.seconds)
    parts = _picked(ALL_PARTS, cost.parts, pick, ROUNDING * seconds)
    done = pick(cost.flops), pick(cost.bytes), pick(cost.link_bytes)
    return KernelTime((block,), runs, replace(kernel, dims=dims), seconds, parts, *done)


def _in_order(priced: PricedStep) -> list[tuple[str, Kernel, Cost, int]]:
    counts = priced.plan.merged()
    return [(block, kernel, cost, count) for block, count in counts for kernel, cost in priced.costs[block]]


def _picked(known: Iterable[str], values: Mapping[str, Array], pick: Pick, least: float) -> dict[str, float]:
    """Values above the least one, in the order of what is known."""
    found = {name: pick(values[name]) for name in known if name in values}
    return {name: value for name, value in found.items() if abs(value) > least}
