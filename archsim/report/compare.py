"""Answers side by side, and why each differs from the first: part by part of its time and of its cost.

The parts of a time per token sum to it, so their differences sum to the difference. A cost is a product (price of a
chip-hour x chips x time of a token), and each factor's share of a difference is the logarithm of its ratio: the only
split of a product that sums exactly and does not depend on an order.
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from archsim import __version__
from archsim.economics.terms import HOUR
from archsim.engine.cost import ALL_PARTS
from archsim.engine.lanes import GAPS
from archsim.explore.bill import dollars_per_second
from archsim.explore.evaluate import StepAnswer, chip_rate
from archsim.explore.result import METRICS, Result, check_defined
from archsim.report.document import UNITS, clean
from archsim.report.page import Figures, environment
from archsim.report.point import Point, main_point, single
from archsim.report.steps import DECODE, ROUNDING, StepTime, step_time
from archsim.report.tables import Table
from archsim.report.terminal import console, print_table, refusal_lines
from archsim.report.waterfall import signed, signed_bars, waterfall_figure
from archsim.report.words import number, question_label, shown, split_of, system_label
from archsim.units import show

METRIC_ROWS = {
    "tpot": "TPOT",
    "ttft": "TTFT",
    "interactivity": "interactivity",
    "throughput": "output of the system",
    "throughput_per_chip": "output of a chip",
    "cost_per_token": "cost per million tokens",
    "power": "board power of a chip",
    "memory_needed": "memory of a chip",
    "memory_utilization": "memory in use",
}
REST = {
    "pipeline": "tokens wait for the other micro-batches on the pipeline, and for hops between its stages",
    "prefill": "prefill of other requests falls between two tokens",
    "small": "all parts that differ by less than a thousandth of the time",
}
FACTORS = {
    "chip-hour": "what one chip costs an hour",
    "chips": "how many chips there are",
    "TPOT": "time between two tokens of a sequence",
    "sequences": "sequences that share a step",
    "time of a token": "seconds of the whole system for one token, in or out",
}
SMALL = 1e-3  # share of a time below which the parts of a difference are joined
SHORT = 16  # characters of a name that heads a column of numbers


@dataclass(frozen=True, eq=False)
class Compared:
    """One scenario of a comparison: its name, its best point, parts of its time per token, factors of its cost."""

    name: str
    point: Point

    @property
    def feasible(self) -> bool:
        """Whether anything fits."""
        return self.point.feasible

    @cached_property
    def parts(self) -> dict[str, float]:
        """Seconds of a token by part and gap of the compute lane, and what the step does not hold; they sum to TPOT."""
        answer = self.point.alone.answer
        step: StepTime = step_time(DECODE, "", answer.decode, self.point.scenario.chip)
        tokens = single(answer.tokens_per_step) if isinstance(answer, StepAnswer) else 1.0
        found = {name: seconds / tokens for name, seconds in step.causes().items()}
        found["pipeline"] = (step.turnaround - sum(found.values()) * tokens) / tokens
        found["prefill"] = self.point.metric("tpot") - sum(found.values())
        return found

    @cached_property
    def factors(self) -> dict[str, float]:
        """What the cost per million tokens is a product of (USD, chips, s); `sequences` divide."""
        answer = self.point.alone.answer
        chips = single(self.point.scenario.all_chips)
        hourly = single(chip_rate(answer).hourly)
        if self.point.scenario.partner is not None:
            hourly = single(dollars_per_second(answer)) * HOUR / chips
        found = {"chip-hour": hourly, "chips": chips}
        if isinstance(answer, StepAnswer):
            return found | {"TPOT": single(answer.tpot), "sequences": single(answer.batch)}
        return found | {"time of a token": self.cost / 1e6 / single(dollars_per_second(answer))}

    @property
    def cost(self) -> float:
        """USD per million tokens: of output for a step, in and out together for the steady state."""
        return self.point.metric("cost_per_token")


@dataclass(frozen=True)
class Difference:
    """One bar of a waterfall: what it is, its value in either answer where it has one, and what it adds."""

    name: str
    meaning: str
    before: float
    after: float
    change: float


@dataclass(frozen=True)
class Waterfall:
    """From the value of the first answer to that of another; the changes sum to the difference."""

    title: str
    kind: str
    first: str
    other: str
    start: float
    end: float
    bars: tuple[Difference, ...]

    def value(self, amount: float) -> str:
        """An amount with its unit."""
        return show(amount, "time") if self.kind == "time" else f"${number(amount)}"


def compared(results: Sequence[Result], labels: Sequence[str]) -> list[Compared]:
    """The best points of results, by the names of their scenarios, or by `labels` where two have one name.

    Raises ValueError where a step answer would be compared with a steady one.
    """
    if len({result.mode for result in results}) > 1:
        modes = ", ".join(f"{label}: {result.mode}" for label, result in zip(labels, results, strict=True))
        raise ValueError(f"a step and a steady state are no like answers ({modes}); choose one with --mode")
    names = [result.scenario.name for result in results]
    unique = len(set(names)) == len(names)
    chosen = names if unique else [f"{index}: {label}" for index, label in enumerate(labels, 1)]
    return [Compared(name, main_point(result)) for name, result in zip(chosen, results, strict=True)]


def pairs(found: Sequence[Compared]) -> list[tuple[Waterfall, Waterfall]]:
    """The waterfalls of time and of cost from the first answer to each other one; none where either is infeasible."""
    first = found[0]
    others = [item for item in found[1:] if item.feasible and first.feasible]
    return [(time_waterfall(first, item), cost_waterfall(first, item)) for item in others]


def time_waterfall(first: Compared, other: Compared) -> Waterfall:
    """The parts of TPOT, largest change first; small changes are joined."""
    before, after = first.parts, other.parts
    start, end = first.point.metric("tpot"), other.point.metric("tpot")
    names = dict.fromkeys((*before, *after))
    changes = {name: after.get(name, 0.0) - before.get(name, 0.0) for name in names}
    large = [name for name in names if abs(changes[name]) >= SMALL * max(start, end)]
    large.sort(key=lambda name: -abs(changes[name]))
    bars = [Difference(_label(n), _meaning(n), before.get(n, 0.0), after.get(n, 0.0), changes[n]) for n in large]
    small = [name for name in names if name not in large]
    rest = sum(changes[name] for name in small)
    if abs(rest) > ROUNDING * end:
        low, high = (sum(parts.get(name, 0.0) for name in small) for parts in (before, after))
        bars.append(Difference("the rest", REST["small"], low, high, rest))
    title = f"Why the TPOT of {other.name} differs from that of {first.name}"
    return Waterfall(title, "time", first.name, other.name, start, end, tuple(bars))


def _label(name: str) -> str:
    kind, _, gap = name.rpartition(":")
    return f"idle: {gap.replace('_', ' ')}" if kind else name


def _meaning(name: str) -> str:
    return {**ALL_PARTS, **{f"gap:{gap}": meaning for gap, meaning in GAPS.items()}, **REST}[name]


def cost_waterfall(first: Compared, other: Compared) -> Waterfall:
    """The factors of the cost per million tokens: the rate (a chip-hour, chips) and the time (TPOT, sequences)."""
    start, end = first.cost, other.cost
    scale = start if math.isclose(start, end, rel_tol=1e-12) else (end - start) / math.log(end / start)
    bars = []
    for name, before in first.factors.items():
        after = other.factors[name]
        sign = -1.0 if name == "sequences" else 1.0
        bars.append(Difference(name, FACTORS[name], before, after, sign * scale * math.log(after / before)))
    title = f"Why the cost of {other.name} differs from that of {first.name}"
    return Waterfall(title, "cost", first.name, other.name, start, end, tuple(bars))


# What people see


def sentence_of(time: Waterfall, cost: Waterfall) -> str:
    """The difference in a sentence: how much faster or slower, how much cheaper or dearer, and by what most."""
    speed, price = time.start / time.end, cost.start / cost.end
    faster = f"{number(max(speed, 1 / speed))} times as {'fast' if speed >= 1 else 'slow'}"
    cheaper = f"costs {number(1 / price)} times as much a token"
    text = f"{time.other} is {faster} as {time.first} ({time.value(time.end)} a token, not {time.value(time.start)})"
    helped = [bar for bar in time.bars if (bar.change < 0) == (time.end < time.start)]
    most = max(helped, key=lambda bar: abs(bar.change), default=None)
    by = "" if most is None else f", mostly by {most.name} ({signed(time.value, most.change)})"
    return f"{text}{by}, and {cheaper}."


def side_by_side(found: Sequence[Compared]) -> Table:
    """One column a scenario: what it is, how fast, at what cost."""
    rows = [
        ("what", *(system_label(item.point.scenario) for item in found)),
        ("asked", *(question_label(item.point) for item in found)),
        ("plan", *(split_of(item.point.scenario.split) if item.feasible else "none fits" for item in found)),
    ]
    tokens = "output tokens" if found[0].point.mode == "step" else "tokens, in and out"
    for name, label in METRIC_ROWS.items():
        unit = "/user" if name == "interactivity" else ""
        values = [shown(name, item.point.metric(name)) + unit if item.feasible else "n/a" for item in found]
        rows.append((f"cost per million {tokens}" if name == "cost_per_token" else label, *values))
    heads = ("", *(item.name for item in found))
    return Table("Side by side", heads, tuple(rows), texts=len(found) + 1)


def difference_table(waterfall: Waterfall, drawn: bool = True) -> Table:
    """A waterfall as rows, with signed bars where they are `drawn`."""
    bars = [(bar,) for bar in signed_bars([bar.change for bar in waterfall.bars])] if drawn else [()]
    rows = []
    for bar, cells in zip(waterfall.bars, bars if drawn else bars * len(waterfall.bars), strict=True):
        own = (_own(waterfall, bar, bar.before), _own(waterfall, bar, bar.after), signed(waterfall.value, bar.change))
        rows.append((bar.name, *own, *cells, bar.meaning))
    ends = waterfall.value(waterfall.start), waterfall.value(waterfall.end)
    rows.append(("in all", *ends, signed(waterfall.value, waterfall.end - waterfall.start), *[""] * (1 + drawn)))
    names = [
        name if len(name) <= SHORT else given
        for name, given in zip((waterfall.first, waterfall.other), ("the first", "this one"), strict=True)
    ]
    heads = ("part" if waterfall.kind == "time" else "factor", *names, "difference")
    marked = frozenset({len(rows) - 1})
    return Table(waterfall.title, (*heads, *[""] * (1 + drawn)), tuple(rows), "", 1, marked, frozenset({4, 5}))


def _own(waterfall: Waterfall, bar: Difference, value: float) -> str:
    """The value of a part or factor in one answer, in its own unit."""
    if waterfall.kind == "time" or bar.name in ("TPOT", "time of a token"):
        return show(value, "time")
    return f"${number(value)}/h" if bar.name == "chip-hour" else number(value)


def print_comparison(found: Sequence[Compared]) -> None:
    """A comparison in the terminal."""
    out = console()
    for item in found:
        if not item.feasible:
            out.print("\n".join(refusal_lines(item.point)), style=None)
    waterfalls = pairs(found)
    for time, cost in waterfalls:
        out.print(sentence_of(time, cost))
    print_table(out, side_by_side(found))
    for pair in waterfalls:
        for waterfall in pair:
            print_table(out, difference_table(waterfall))


def to_html(found: Sequence[Compared], command: str) -> str:
    """A comparison as one self-contained HTML page. `command` is how to make it again."""
    from markupsafe import Markup
    from plotly.offline import get_plotlyjs

    figures = Figures()
    compared = sections(found, figures)
    return (
        environment()
        .get_template("compare.html")
        .render(
            title=compared["title"],
            compared=compared,
            command=command,
            version=__version__,
            figures=figures.as_json(),
            plotly=Markup(get_plotlyjs()),
        )
    )


def sections(found: Sequence[Compared], figures: Figures) -> dict[str, Any]:
    """What the template of a comparison shows; its figures are added to those of the page."""
    chapters = []
    for time, cost in pairs(found):
        both = [(waterfall, figures.add(waterfall_figure(waterfall))) for waterfall in (time, cost)]
        chapters.append(
            {
                "name": f"{time.other} against {time.first}",
                "sentence": sentence_of(time, cost),
                "parts": [(item.title, figure, difference_table(item, False)) for item, figure in both],
            }
        )
    return {
        "title": " and ".join(item.name for item in found) if len(found) == 2 else f"{len(found)} scenarios",
        "table": side_by_side(found),
        "refusals": [refusal_lines(item.point) for item in found if not item.feasible],
        "chapters": chapters,
    }


def to_json(found: Sequence[Compared]) -> str:
    """A comparison as JSON: metrics and parts of every answer, and the waterfalls from the first to each other one."""
    data = {
        "version": __version__,
        "mode": found[0].point.mode,
        "answers": [_answer(item) for item in found],
        "differences": [_document(waterfall) for pair in pairs(found) for waterfall in pair],
    }
    return json.dumps(clean(data), sort_keys=True, indent=1, allow_nan=False) + "\n"


def _answer(item: Compared) -> Mapping[str, object]:
    base: dict[str, object] = {"name": item.name, "file": item.point.scenario.file, "feasible": item.feasible}
    if not item.feasible:
        return base | {"reason": item.point.result.reason_at(item.point.index)}
    point = item.point
    metrics = {name: {"unit": UNITS[METRICS[name][0]], "value": point.metric(name)} for name in METRIC_ROWS}
    for name in METRIC_ROWS:
        check_defined(point.alone, name, point.alone.metric(name))
    plan = split_of(item.point.scenario.split)
    return base | {"plan": plan, "metrics": metrics, "tpot_parts": item.parts, "cost_factors": item.factors}


def _document(waterfall: Waterfall) -> Mapping[str, object]:
    bars = [{"name": b.name, "before": b.before, "after": b.after, "change": b.change} for b in waterfall.bars]
    unit = "s" if waterfall.kind == "time" else "USD/Mtok"
    of = "tpot" if waterfall.kind == "time" else "cost_per_token"
    ends = {"from": waterfall.first, "to": waterfall.other, "start": waterfall.start, "end": waterfall.end}
    return {"of": of, "unit": unit, "bars": bars} | ends
