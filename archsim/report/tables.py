"""Tables of an answer as plain text cells, the same for the terminal and for HTML."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from archsim.arrays import Array
from archsim.economics.terms import Terms
from archsim.engine.cost import ALL_PARTS
from archsim.engine.lanes import GAPS
from archsim.explore.band import band
from archsim.explore.evaluate import chip_rate
from archsim.explore.result import Result
from archsim.mapping.plan import MemoryPlan
from archsim.report.choice import choice_sentences
from archsim.report.formulas import quantity
from archsim.report.memory import MEANINGS, NAMES
from archsim.report.point import Point, columns, degrees_at, single
from archsim.report.steps import KernelTime, StepTime
from archsim.report.words import counted, dollars, number, percent, place, shown, split_label, targets, token_rate
from archsim.sources import Source
from archsim.units import show

LANES = ("compute", "link", "to_ffn", "ffn", "ffn_in", "ffn_out", "from_ffn", "host")  # the order of columns
FEW_LANES = 3
ROWS = 12  # of a sweep, the best one besides
SMALL = 0.0005  # share of a step below which a row of it is left out


@dataclass(frozen=True)
class Table:
    """A table: the first `texts` columns hold words, the others numbers; `marked` rows stand out."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    caption: str = ""
    texts: int = 1
    marked: frozenset[int] = frozenset()
    words: frozenset[int] = frozenset()

    def is_text(self, column: int) -> bool:
        """Whether a column holds words."""
        return column < self.texts or column in self.words


# Points of a sweep


def sweep_table(result: Result, best: int | None) -> Table:
    """A dozen points of a sweep, the best one marked."""
    steady = result.mode == "steady"
    cost = "cost_per_token" if steady else "output_cost"
    names = ["interactivity", "tpot", "ttft", "throughput", "throughput_per_chip", cost, "memory_utilization"]
    heads = ["tok/s/user", "TPOT", "TTFT", "output tok/s", "a chip", "$/Mtok" if steady else "$/Mtok out", "memory"]
    axes = ["clients" if steady and name == "batch" else name for name in result.axes]
    table = columns(result)
    chosen = _chosen(result, best)
    rows = [_sweep_row(result, table, names, index) for index in chosen]
    marked = frozenset({chosen.index(best)} if best is not None and len(chosen) > 1 else ())
    title = f"{'Numbers of clients' if steady else 'Points'}: {len(chosen)} of {result.feasible.size}, the best marked"
    slo = targets(result.scenario.slo, 1.0, 1.0)
    heads += ["plan", *(["SLO"] if slo else [])]
    return Table(
        title,
        (*axes, *heads),
        tuple(rows),
        texts=0,
        marked=marked,
        words=frozenset(range(len(axes) + 7, len(axes) + 9)),
    )


def _sweep_row(result: Result, table: Mapping[str, Array], names: list[str], index: int) -> tuple[str, ...]:
    cells = [number(float(table[name][index])) for name in result.axes]
    for name in names:
        value = float(table[name][index])
        cells.append(token_rate(value).removesuffix(" tok/s") if "tok" in shown(name, value) else shown(name, value))
    reason = result.reason_at(index)
    plan = split_label(degrees_at(table, index))
    cells.append("does not fit" if reason == "memory" else f"illegal: {reason}" if reason else plan)
    found = targets(result.scenario.slo, float(table["tpot"][index]), float(table["ttft"][index]))
    if found:
        missed = [target.name for target in found if not target.kept]
        cells.append("" if reason else f"misses {', '.join(missed)}" if missed else "kept")
    return tuple(cells)


def _chosen(result: Result, best: int | None) -> list[int]:
    """Flat indices of about a dozen points, evenly over the logarithm of each axis, and of the best."""
    if not result.axes:
        return [0]
    each = max(2, round(ROWS ** (1 / len(result.axes))))
    picked = [_spread(values, each) for values in result.axes.values()]
    grid = np.meshgrid(*picked, indexing="ij")
    flat = np.ravel_multi_index(tuple(item.ravel() for item in grid), result.shape)
    return sorted({*(int(index) for index in flat), *(() if best is None else (best,))})


def _spread(values: Array, count: int) -> "np.typing.NDArray[np.intp]":
    """Positions of `count` values, about evenly over their logarithm."""
    if values.size <= count:
        return np.arange(values.size)
    low, high = max(float(values.min()), 1e-12), max(float(values.max()), 1e-12)
    wanted = np.geomspace(low, high, count)
    return np.unique(np.abs(values[None] - wanted[:, None]).argmin(axis=1))


# One point


def proposal_table(point: Point, most: int = 12) -> Table:
    """The chosen plan and the alternatives at the same point."""
    cost = "output_cost" if point.mode == "step" else "cost_per_token"
    rows = []
    for proposal in point.proposals[:most]:
        values = proposal.metrics
        note = (
            "does not fit" if proposal.reason == "memory" else f"illegal: {proposal.reason}" if proposal.reason else ""
        )
        found = targets(point.result.scenario.slo, values["tpot"], values["ttft"])
        missed = [target.name for target in found if not target.kept]
        note = note or (f"misses {', '.join(missed)}" if missed else "")
        if proposal.chosen:
            word = "given" if point.result.scenario.mapper is None else "nearest" if proposal.reason else "chosen"
            note = f"{word}, {note}" if note else word
        metrics = [
            "n/a" if proposal.reason else shown(name, values[name])
            for name in ("tpot", "ttft", "throughput_per_chip", cost)
        ]
        metrics.append(shown("memory_utilization", values["memory_utilization"]))
        rows.append((split_label(proposal.degrees), *metrics, note))
    left = len(point.proposals) - len(rows)
    more = [f"{counted(left, 'more proposal')} of the mapper rank lower."] if left > 0 else []
    caption = " ".join([*more, *choice_sentences(point)])
    heads = ("plan", "TPOT", "TTFT", "output a chip", "$/Mtok out" if point.mode == "step" else "$/Mtok", "memory", "")
    return Table("The plan and its alternatives", heads, tuple(rows), caption, 1, frozenset({0}), frozenset({6}))


def time_table(step: StepTime) -> Table:
    """The stall report: parts and gaps of every lane, which sum to the span of the step."""
    lanes = sorted(
        step.lanes,
        key=lambda lane: LANES.index(lane.name) if lane.name in LANES else 9,
    )
    rows = []
    for name, meaning in ALL_PARTS.items():
        rows.append(_causes(name, meaning, [lane.parts.get(name, 0.0) for lane in lanes], step.span))
    for name, meaning in GAPS.items():
        label = f"idle: {name.replace('_', ' ')}"
        rows.append(_causes(label, meaning, [lane.gaps.get(name, 0.0) for lane in lanes], step.span))
    kept = [row for row in rows if row is not None]
    sums = tuple(show(sum(lane.parts.values()) + sum(lane.gaps.values()), "time") for lane in lanes)
    kept.append(("span", *sums, "parts and gaps of every lane sum to it"))
    last = len(lanes) + 1
    heads = ("cause", *(f"{lane.name} lane" for lane in lanes), "what it is")
    title = f"Where the time goes: {step.full_title[0].lower()}{step.full_title[1:]}"
    return Table(title, heads, tuple(kept), marked=frozenset({len(kept) - 1}), words=frozenset({last}))


def _causes(name: str, meaning: str, values: list[float], span: float) -> tuple[str, ...] | None:
    if max(values) < SMALL * span:
        return None
    many = len(values) > FEW_LANES  # a share of each would not fit beside them
    cells = [
        ""
        if value <= 1e-6 * span
        else show(value, "time")
        if many
        else f"{show(value, 'time')}  {percent(value / span):>5}"
        for value in values
    ]
    return (name, *cells, meaning)


def kernel_table(step: StepTime, most: int = 10) -> Table:
    """The kernels that take most of a step."""
    items = step.by_name
    rows = tuple(kernel_row(step, item) for item in items[:most])
    rest = items[most:]
    caption = ""
    if rest:
        share = percent(sum(item.total for item in rest) / step.span)
        caption = f"{len(rest)} more kernels take {share}; `archsim explain` shows every one with its formula."
    heads = (
        "kernel",
        "limited by",
        "runs",
        "each",
        "in all",
        "share",
        "of peak FLOP/s",
        "of peak bytes/s",
        "of its roof",
    )
    return Table(f"Longest kernels: {step.title[0].lower()}{step.title[1:]}", heads, rows, caption, texts=2)


def kernel_row(step: StepTime, item: KernelTime) -> tuple[str, ...]:
    """A kernel with its time and how near it comes to the peaks."""
    flops = percent(item.flops / item.seconds / step.peak(item)) if item.flops else ""
    bandwidth = single(step.chip_of(item).memory.bandwidth)
    moved = percent(item.bytes / item.seconds / bandwidth) if item.bytes else ""
    times = (show(item.seconds, "time"), show(item.total, "time"), percent(item.total / step.span))
    return (item.label, item.limit, number(item.runs), *times, flops, moved, percent(item.efficiency))


def memory_table(point: Point) -> Table:
    """What one chip of the main pool holds, against its capacity."""
    title = "Memory of one chip"
    partner = point.scenario.partner
    if partner is not None:
        title = f"Memory of one chip of pool {point.scenario.system.main_name}"
    return _memory(title, point.alone.answer.memory, point.scenario.chip.memory.technology)


def partner_memory_table(point: Point) -> Table | None:
    """What one chip of the other pool holds; None where there is none, or its plan is not known."""
    partner, plan = point.scenario.partner, point.alone.answer.memory.partner
    if partner is None or plan is None:
        return None
    return _memory(f"Memory of one chip of pool {partner.name}", plan, partner.chip.memory.technology)


def _memory(title: str, plan: MemoryPlan, technology: str) -> Table:
    capacity = single(plan.capacity)
    parts = sorted(((name, single(value)) for name, value in plan.parts.items()), key=lambda item: -item[1])
    rows = [
        (NAMES.get(name, name), show(size, "bytes"), percent(size / capacity), MEANINGS.get(name, ""))
        for name, size in parts
        if size
    ]
    needed = single(plan.needed)
    free = capacity - needed
    rows.append(("free" if free >= 0 else "missing", show(abs(free), "bytes"), percent(abs(free) / capacity), ""))
    rows.append(("capacity", show(capacity, "bytes"), "", technology))
    heads = ("what", "size", "of capacity", "")
    return Table(title, heads, tuple(rows), marked=frozenset({len(rows) - 1}), words=frozenset({3}))


def economics_table(point: Point) -> Table:
    """Every term of the cost: the value, where it comes from, and what it means."""
    terms, chip = point.scenario.terms, point.scenario.chip
    by = chip_rate(point.alone.answer).by
    used = {"by", "rent", "utilization"} if by == "rent" else set(Terms.model_fields) - {"rent"}
    rows = []
    for name, field in Terms.model_fields.items():
        value, origin = getattr(terms, name), "scenario" if name in terms.model_fields_set else "default"
        own = {"rent": chip.price.rent, "capital": chip.capital}.get(name)
        if value is None and own is not None:
            value, origin = single(own), f"chip, as of {chip.price.as_of}"
        if name == "by" and value is None:
            value, origin = by, "default: rent where the chip has one" if by == "rent" else "default"
        role = "" if name in used else "energy a token only" if name in ("pue", "overhead") else "not used"
        meaning = (field.description or "how a chip is paid for").partition(";")[0]
        rows.append((name, "none" if value is None else _term(name, value), origin, meaning, role))
    heads = ("term", "value", "from", "meaning", "")
    return Table("What the cost assumes", heads, tuple(rows), words=frozenset({1, 2, 3, 4}))


def _term(name: str, value: object) -> str:
    if not isinstance(value, int | float):
        return str(value)
    if name in ("interest", "operation", "utilization"):
        return percent(value)
    units = {"rent": "USD/h", "capital": "USD", "years": "years", "electricity": "USD/kWh", "overhead": "W"}
    return dollars(value) if name == "capital" else quantity(value, units.get(name, ""))


# Assumptions


def source_rows(sources: Iterable[Source]) -> list[tuple[str, str, str, str]]:
    """(fields, kind, reference, file) of sources."""
    return [(", ".join(source.of), source.kind, source.ref, place(source.file)) for source in sources]


def ends(point: Point, name: str) -> str:
    """The ends of a metric's band, `16.9 to 19.8 ms`; empty where it has none."""
    found = band(point.scenario, name, point.mode)
    if found is None:
        return ""
    low, high = (shown(name, end) for end in found.of(point.metric(name)))
    unit = low.rpartition(" ")[2]
    return f"{low.removesuffix(unit).rstrip() if ' ' in low and high.endswith(f' {unit}') else low} to {high}"


def banded(point: Point, name: str, unit: str = "") -> str:
    """A metric with the ends of its band: `18.3 ms (16.9 to 19.8 ms)`."""
    text, within = shown(name, point.metric(name)) + unit, ends(point, name)
    return f"{text} ({within})" if within else text


def answer_rows(point: Point) -> list[tuple[str, str]]:
    """The main figures of a point with their names."""
    metric = point.metric
    steady = point.mode == "steady"
    names = ["tpot", "interactivity", "ttft", "throughput", "throughput_per_chip"]
    names += ["cost_per_token", "output_cost"] if steady else ["output_cost", "input_cost"]
    labels = {
        "tpot": "TPOT",
        "interactivity": "interactivity",
        "ttft": "TTFT" if steady else "TTFT, lone request",
        "throughput": "output of the system",
        "throughput_per_chip": "output of a chip",
        "cost_per_token": "cost per million tokens, in and out",
        "output_cost": "cost per million output tokens",
        "input_cost": "cost per million prompt tokens",
    }
    rows = [(labels[name], banded(point, name, "/user" if name == "interactivity" else "")) for name in names]
    rows.append(("energy per output token", banded(point, "energy_per_token")))
    rows.append(("board power of a chip", banded(point, "power")))
    rows.append(
        ("memory of a chip", f"{show(metric('memory_needed'), 'bytes')}, {percent(metric('memory_utilization'))}")
    )
    return rows
