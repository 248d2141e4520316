"""The answer of `archsim sensitivity`: sentences, tables, a page and data."""

import json
from collections.abc import Mapping, Sequence

import numpy as np

from archsim import __version__
from archsim.arrays import Array
from archsim.explore.resources import Resource
from archsim.explore.sensitivity import Elasticity, Gain, Sensitivity, Sides, Worth, ends_of
from archsim.explore.sobol import MODEL, Indices
from archsim.explore.vary import Axis
from archsim.report import charts
from archsim.report.charts import Bar
from archsim.report.document import clean
from archsim.report.exploring import Chapter, page
from archsim.report.figures import text
from archsim.report.scales import headed, label_of, told, unit_of
from archsim.report.tables import Table
from archsim.report.words import counted, percent, split_label, split_of, system_label

ROWS = 20  # of a table of elasticities
STRONGEST = 15  # bars of a tornado
NOWHERE = ("SRAM of a core", "shared cache")  # what kernels gain by them is in their measured constants
SMALL = 5e-5  # relative changes below count as none


def batch_of(found: Sensitivity, batch: float) -> str:
    """Sequences or clients in words."""
    return counted(batch, "client" if found.mode == "steady" else "sequence")


def lead(found: Sensitivity) -> list[str]:
    """What is asked, and what decides, in sentences."""
    best, batch = found.best, found.best.batch
    plan = split_of(best.split)
    size = "" if batch is None else f", {batch_of(found, float(batch.ravel()[0]))}"
    value = told(found.value, unit_of(found.output))
    missed = "" if found.kept else ", which misses the SLO"
    first = f"{system_label(best)}: {label_of(found.output)} {value} at its best plan ({plan}{size}){missed}."
    gains = [worth for worth in ranked(found) if worth.chosen.capital > 0 and abs(change(found, worth.chosen)) > SMALL]
    if not gains:
        return [first, f"{_share(found.more)} more of any one resource changes it by less than 0.005 %."]
    told_worths = ", ".join(
        f"{_more(worth.resource, found.more)} {_money(worth.chosen.capital)}" for worth in gains[:3]
    )
    return [first, f"Worth most for each chip, at an unchanged cost per token: {told_worths}."]


def _share(value: float) -> str:
    return f"{100 * value:.6g} %"


def _more(resource: Resource, more: float) -> str:
    return f"{percent(more)} {'less' if resource.less else 'more'} {resource.name}"


def ranked(found: Sensitivity) -> list[Worth]:
    """Resources by what more of them is worth with the plan chosen anew, or at the given plan where that is unknown."""

    def key(worth: Worth) -> float:
        known = [gain.capital for gain in (worth.chosen, worth.fixed) if np.isfinite(gain.capital)]
        return known[0] if known else -np.inf

    return sorted(found.worths, key=key, reverse=True)


def change(found: Sensitivity, gain: Gain) -> float:
    """Relative change of the metric."""
    return gain.value / found.value - 1.0


def _signed_percent(value: float) -> str:
    if not np.isfinite(value):
        return "n/a"
    return "0" if abs(value) < SMALL else f"{100 * value:+.2f} %"


def _money(value: float, unit: str = "") -> str:
    if not np.isfinite(value):
        return "n/a"
    if abs(value) < (5e-5 if unit else 0.5):
        return "0"
    words = f"{abs(value):.4f}" if unit else f"{abs(value):,.0f}"
    return f"{'-' if value < 0 else ''}${words}{unit}"


def worth_table(found: Sensitivity) -> Table:
    """What more of each resource does, and what it is worth for one chip; those without effect in the caption."""
    shown = [worth for worth in ranked(found) if _counts(found, worth)]
    rows = tuple(_worth_row(found, worth) for worth in shown)
    silent = [worth.resource.name for worth in found.worths if worth not in shown]
    of = label_of(found.output)
    heads = ("", "same plan", "new plan", "worth, same plan", "worth, new plan", "as rent", "new plan")
    caption = (
        f"{_share(found.more)} more of one resource of every chip, or less where less is better: the change of {of} "
        "at the plan that is best now, and with the best plan chosen anew; dollars of all-in price of one chip that "
        "leave the cost per token as it was, and the same as rent."
    )
    if any(not worth.fixed.kept for worth in shown) and _promises(found):
        caption += " *: that plan misses the SLO."
    unknown = [name for name in silent if name.rpartition(": ")[2] in NOWHERE]
    silent = [name for name in silent if name not in unknown]
    if silent:
        caption += f" No effect here: {', '.join(silent)}."
    if unknown:
        caption += f" In no formula of the model: {', '.join(unknown)}."
    return Table(f"What {_share(found.more)} more is worth", heads, rows, caption, 1, words=frozenset({6}))


def _promises(found: Sensitivity) -> bool:
    """Whether there is an SLO that the scenario keeps as it is."""
    return found.kept and any(value is not None for name, value in found.scenario.slo if name != "share")


def _counts(found: Sensitivity, worth: Worth) -> bool:
    gains = (worth.fixed, worth.chosen)
    return any(
        not np.isfinite(change(found, gain)) or abs(change(found, gain)) > SMALL or abs(gain.capital) > 0.5
        for gain in gains
    )


def _worth_row(found: Sensitivity, worth: Worth) -> tuple[str, ...]:
    missed = "" if worth.fixed.kept or not _promises(found) else "*"
    degrees = split_label(dict(worth.degrees)) if worth.replanned else "same"
    base = found.best.batch
    moved = base is not None and float(base.ravel()[0]) != worth.batch
    plan = f"{degrees}, {batch_of(found, worth.batch)}" if moved else degrees
    return (
        f"{worth.resource.name}, less" if worth.resource.less else worth.resource.name,
        _signed_percent(change(found, worth.fixed)) + missed,
        _signed_percent(change(found, worth.chosen)),
        _money(worth.fixed.capital),
        _money(worth.chosen.capital),
        _money(worth.chosen.rent, "/h"),
        plan,
    )


def elasticity_table(found: Sensitivity) -> Table:
    """Elasticities of the strongest fields, both sides of each, at the same plan and with the plan chosen anew."""
    moving = found.moving
    rows = tuple(_elasticity_row(row) for row in moving[:ROWS])
    step = _share(found.step)
    heads = ("", "now", "same plan", f"-{step}", f"+{step}", "new plan", f"-{step}", f"+{step}")
    caption = (
        f"% that {label_of(found.output)} changes by for each % of the field: across, and on either side, which differ "
        "where a tile, a plan or a whole number of clients changes. n/a: nothing fits there, or the SLO breaks."
    )
    if len(moving) > ROWS:
        caption += f" {len(moving) - ROWS} weaker ones are left out."
    if found.still:
        caption += f" {counted(len(found.still), 'field')} without effect: {', '.join(map(label_of, found.still))}."
    return Table("Elasticities", heads, rows, caption)


def _elasticity_row(row: Elasticity) -> tuple[str, ...]:
    field = row.field
    cells = [value for side in (row.fixed, row.chosen) for value in (side.central, side.below, side.above)]
    unit = field.unit if field.unit else ""
    return (label_of(field.name), told(field.now, unit), *(_slope(value) for value in cells))


def _slope(value: float) -> str:
    if not np.isfinite(value):
        return "n/a"
    return "0" if abs(value) < 5e-4 else f"{value:+.3f}"


def indices_table(found: Indices, output: str) -> Table:
    """Sobol indices with the ends of their sampling, the largest total first."""
    order = sorted(found.rows, key=lambda row: -row.total)
    rows = tuple(
        (
            label_of(row.name),
            percent(max(row.first, 0.0)),
            _ends(row.first_ends),
            percent(row.total),
            _ends(row.total_ends),
        )
        for row in order
    )
    caption = (
        f"Share of the variance of {label_of(output)} that goes when a number alone is known (alone), and that stays "
        f"when all others are known (with others); 95 % of sampling errors are within the ends. "
        f"{found.evaluations:,} answers: mean {told(found.mean, unit_of(output))}, 10th to 90th percentile "
        f"{told(found.low, unit_of(output))} to {told(found.high, unit_of(output))}."
    )
    heads = ("", "alone", "95 %", "with others", "95 %")
    return Table("What decides it", heads, rows, caption)


def _ends(ends: tuple[float, float]) -> str:
    return f"{max(100 * ends[0], 0.0):.0f} to {100 * ends[1]:.0f} %"


def range_rows(found: Sensitivity, axes: Sequence[Axis], ends: Array) -> list[Bar]:
    """Bars of a tornado over given ranges."""
    bars = []
    for axis, (low, high) in zip(axes, ends, strict=True):
        least, most = ends_of(axis)
        span = f"{told(least, axis.unit)} to {told(most, axis.unit)}"
        note = _note(f"{label_of(axis.name)}, {span}", found, float(low), float(high))
        bars.append(Bar(f"{label_of(axis.name)}, {span}", float(low), float(high), note))
    return bars


def step_rows(found: Sensitivity) -> list[Bar]:
    """Bars of a tornado over all fields, each a step to either side."""
    bars = []
    for row in found.moving:
        sides: Sides = row.chosen
        name = label_of(row.field.name)
        now = told(row.field.now, row.field.unit)
        note = _note(f"{name}, now {now}, {_share(found.step)} less or more", found, sides.low, sides.high)
        bars.append(Bar(name, sides.low, sides.high, note))
    return bars


def _note(words: str, found: Sensitivity, low: float, high: float) -> str:
    unit = unit_of(found.output)
    return f"<b>{text(words)}</b><br>{told(low, unit)} with less, {told(high, unit)} with more"


def ordered(bars: Sequence[Bar], base: float) -> list[Bar]:
    """The longest first, at most so many as a figure has room for."""

    def reach(bar: Bar) -> float:
        return max((abs(value - base) for value in (bar.low, bar.high) if np.isfinite(value)), default=0.0)

    return sorted((bar for bar in bars if reach(bar) > 1e-9 * abs(base)), key=reach, reverse=True)[:STRONGEST]


def tornado_table(found: Sensitivity, bars: Sequence[Bar]) -> Table:
    """A tornado in numbers."""
    unit = unit_of(found.output)
    rows = tuple((bar.name, told(bar.low, unit, True), told(bar.high, unit, True)) for bar in bars)
    caption = "One range at a time, all else as it is; the plan is chosen anew."
    return Table(
        f"{headed(label_of(found.output))} over each range",
        ("", "at the low end", "at the high end"),
        rows,
        caption,
    )


def tables(found: Sensitivity, ranges: Sequence[Bar] = (), sobol: Indices | None = None) -> list[Table]:
    """All tables of the answer."""
    own = [worth_table(found), elasticity_table(found)]
    own += [tornado_table(found, ranges)] if ranges else []
    return own if sobol is None else [*own, indices_table(sobol, found.output)]


def sensitivity_page(found: Sensitivity, command: str, ranges: Sequence[Bar] = (), sobol: Indices | None = None) -> str:
    """The answer as one page."""
    unit = unit_of(found.output)
    chapters = [Chapter("What more is worth", "", _worth_plots(found), (worth_table(found),))]
    if ranges:
        drawn = charts.tornado(ordered(ranges, found.value), found.value, found.output, unit)
        caption = "One range at a time, all else as it is; the plan is chosen anew."
        chapters.append(Chapter("Ranges", "", ((drawn, caption),), (tornado_table(found, ranges),)))
    if sobol is not None:
        chapters.append(_sobol_chapter(found, sobol))
    bars = ordered(step_rows(found), found.value)
    if bars:
        caption = f"Every field {_share(found.step)} less and more, all else as it is; the plan is chosen anew."
        drawn = charts.tornado(bars, found.value, found.output, unit)
        chapters.append(Chapter("What it hangs on", "", ((drawn, caption),), (elasticity_table(found),)))
    title = f"What {label_of(found.output)} hangs on"
    return page("sensitivity", title, found.scenario.name, lead(found), chapters, command)


def _worth_plots(found: Sensitivity) -> tuple[tuple[dict[str, object], str], ...]:
    shown = [worth for worth in ranked(found) if _counts(found, worth) and np.isfinite(worth.chosen.capital)]
    if not shown:
        return ()
    values = {
        "plan chosen anew": [worth.chosen.capital for worth in shown],
        "same plan": [worth.fixed.capital if np.isfinite(worth.fixed.capital) else 0.0 for worth in shown],
    }
    notes = [
        f"<b>{text(_more(worth.resource, found.more))}</b><br>same plan {_money(worth.fixed.capital)}, plan anew "
        f"{_money(worth.chosen.capital)} or {_money(worth.chosen.rent, '/h')}"
        for worth in shown
    ]
    names = [f"{w.resource.name}{', less' if w.resource.less else ''}" for w in shown]
    drawn = charts.bars(names, values, "worth for one chip (USD of all-in price)", notes)
    return ((drawn, "What may be paid on top for each chip that has it, at an unchanged cost per token."),)


def _sobol_chapter(found: Sensitivity, sobol: Indices) -> Chapter:
    order = sorted(sobol.rows, key=lambda row: -row.total)
    values = {"alone": [100 * max(row.first, 0.0) for row in order], "with others": [100 * row.total for row in order]}
    notes = [
        f"<b>{text(label_of(row.name))}</b><br>alone {percent(max(row.first, 0.0))} ({_ends(row.first_ends)})<br>"
        f"with others {percent(row.total)} ({_ends(row.total_ends)})"
        for row in order
    ]
    ends = {
        "alone": [row.first_ends for row in order],
        "with others": [row.total_ends for row in order],
    }
    drawn = charts.bars([label_of(row.name) for row in order], values, "share of the variance (%)", notes, ends)
    model = " The error of the model has the band of measured runs." if any(r.name == MODEL for r in order) else ""
    caption = f"All ranges at once, each number independent and even in its range.{model}"
    return Chapter("What decides it", "", ((drawn, caption),), (indices_table(sobol, found.output),))


def sensitivity_json(found: Sensitivity, ranges: Sequence[Bar] = (), sobol: Indices | None = None) -> str:
    """The answer as data, in SI."""
    data: dict[str, object] = {
        "version": __version__,
        "scenario": found.scenario.name,
        "mode": found.mode,
        "output": found.output,
        "unit": unit_of(found.output),
        "value": found.value,
        "step": found.step,
        "elasticities": [_row_data(row) for row in found.rows],
        "more": found.more,
        "worth": [_worth_data(worth) for worth in found.worths],
    }
    if ranges:
        data["ranges"] = [{"name": bar.name, "low": bar.low, "high": bar.high} for bar in ranges]
    if sobol is not None:
        data["sobol"] = {
            "evaluations": sobol.evaluations, "mean": sobol.mean, "p10": sobol.low, "p90": sobol.high,
            "indices": [vars(row) for row in sobol.rows],
        }  # fmt: skip
    return json.dumps(clean(data), sort_keys=True, indent=1, allow_nan=False) + "\n"


def _row_data(row: Elasticity) -> Mapping[str, object]:
    field = {"field": row.field.name, "now": row.field.now, "unit": row.field.unit}
    return field | {"same_plan": vars(row.fixed), "plan_anew": vars(row.chosen)}


def _worth_data(worth: Worth) -> Mapping[str, object]:
    own = {"resource": worth.resource.name, "fields": worth.resource.fields, "factor": worth.factor}
    plan = {"plan": dict(worth.degrees), "replanned": worth.replanned, "batch": worth.batch}
    return own | plan | {"same_plan": vars(worth.fixed), "plan_anew": vars(worth.chosen)}
