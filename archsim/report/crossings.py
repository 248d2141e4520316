"""The answer of `archsim breakeven`: sentences, a table, a page and data."""

import json

import numpy as np

from archsim import __version__
from archsim.arrays import Array
from archsim.explore.breakeven import (
    FIRST,
    NEITHER,
    ONLY_FIRST,
    ONLY_SECOND,
    SECOND,
    STANDINGS,
    TIE,
    Breakeven,
    Crossing,
    settled,
)
from archsim.report import charts
from archsim.report.charts import Curve
from archsim.report.document import clean
from archsim.report.exploring import Chapter, page
from archsim.report.figures import text
from archsim.report.scales import headed, label_of, scale_of, titled, told, unit_of
from archsim.report.tables import Table
from archsim.report.words import number

LISTED = 10  # crossings that the table and the figures show
MOST = 4  # crossings that are told in a sentence each
NEAR = 1.1  # ratios within this much of one another are told, where designs change places often
SHORT = 16  # characters of a name that heads a column of numbers


def names_of(found: Breakeven) -> tuple[str, str]:
    """The names of both designs, told apart."""
    first, second = found.first.name, found.second.name
    return (first, second) if first != second else (f"{first} (first)", f"{second} (second)")


def standing(found: Breakeven, index: int) -> str:
    """How the designs stand, with their names."""
    first, second = names_of(found)
    words = STANDINGS[index]
    return (
        words.replace("the first", first)
        .replace("the second", second)
        .replace("first is", f"{first} is")
        .replace("second is", f"{second} is")
    )


def crossing_sentence(found: Breakeven, crossing: Crossing) -> str:
    """A crossing in a sentence."""
    name, unit = label_of(found.field.name), found.field.unit
    at = told(crossing.value, unit) if not found.field.whole else f"{number(crossing.low)} to {number(crossing.high)}"
    below, above = standing(found, crossing.below), standing(found, crossing.above)
    how = ""
    if crossing.jumps and not {crossing.below, crossing.above} & {ONLY_FIRST, ONLY_SECOND, len(STANDINGS) - 1}:
        how = " (by a jump: they do not meet)"
    return f"At {name} {at}{how}: below, {below}; above, {above}."


def breakeven_lead(found: Breakeven) -> list[str]:
    """Where the designs change places, or why they never do."""
    name, unit, values = label_of(found.field.name), found.field.unit, found.values
    span = f"{name} from {told(values[0], unit)} to {told(values[-1], unit)}"
    first, second = names_of(found)
    of = {"both": "both", "first": first, "second": second}[found.varied]
    head = f"{headed(label_of(found.output))} of {first} against {second}, over {span} of {of}."
    if not found.crossings:
        words = settled(found)
        told_why = words.replace("the first", first).replace("the second", second)
        told_why = told_why.replace("first is", f"{first} is").replace("second is", f"{second} is")
        return [head, f"They never change places: {told_why}.", *_unfit(found)]
    if len(found.crossings) > MOST:
        return [head, _often(found), *_unfit(found)]
    return [head, *(crossing_sentence(found, crossing) for crossing in found.crossings), *_unfit(found)]


def _often(found: Breakeven) -> str:
    """Many crossings in a sentence; the table has them all."""
    first, last = found.crossings[0], found.crossings[-1]
    ends = " and ".join(told(crossing.value, found.field.unit) for crossing in (first, last))
    jumps = sum(crossing.jumps for crossing in found.crossings)
    text = (
        f"They change places {len(found.crossings)} times between {label_of(found.field.name)} {ends}, {jumps} of them "
        f"by a jump: below all, {standing(found, first.below)}; above all, {standing(found, last.above)}."
    )
    ratio = found.ratio[np.isfinite(found.ratio)]
    if ratio.size and ratio.max() < NEAR * ratio.min():
        text += f" They are never further apart than {100 * max(ratio.max() - 1, 1 / ratio.min() - 1):.2g} %."
    return text


def _unfit(found: Breakeven) -> list[str]:
    """Why a design does not fit, where it does not."""
    lines = []
    for name, reasons in zip(names_of(found), found.reasons, strict=True):
        for reason in dict.fromkeys(filter(None, reasons)):
            at = found.values[[text == reason for text in reasons]]
            span = f"{told(at.min(), found.field.unit)} to {told(at.max(), found.field.unit)}"
            why = "misses its SLO" if reason == "SLO" else f"does not fit ({reason})"
            lines.append(f"{name} {why} at {label_of(found.field.name)} {span}.")
    return lines


def breakeven_table(found: Breakeven, most: int = 13) -> Table:
    """Both designs along the range, evenly, and on either side of every crossing."""
    size = found.values.size
    spread = np.geomspace if found.values[0] > 0 and found.values[-1] > 50 * found.values[0] else np.linspace
    even = np.searchsorted(found.values, spread(found.values[0], found.values[-1], most)).clip(0, size - 1)
    told_all = len(found.crossings) <= LISTED
    near = [
        int(np.searchsorted(found.values, value))
        for c in (found.crossings if told_all else ())
        for value in (c.low, c.high)
    ]
    chosen = sorted({*even.tolist(), *near})
    first, second = names_of(found)
    short = (first, second) if max(len(first), len(second)) <= SHORT else ("first", "second")
    rows = tuple(_table_row(found, index, index in near, short) for index in chosen)
    marked = frozenset(index for index, row in enumerate(chosen) if row in near)
    heads = (label_of(found.field.name), *short, "ratio", "better")
    title = f"{headed(label_of(found.output))} along {label_of(found.field.name)}"
    caption = "Marked rows lie on either side of a crossing." if near else ""
    caption = caption if told_all else "All crossings are in the JSON (--json OUT)."
    if short[0] != first:
        caption = f"First: {first}. Second: {second}. {caption}"
    return Table(title, heads, rows, caption.strip(), 0, marked, frozenset({4}))


def _table_row(found: Breakeven, index: int, exact: bool, names: tuple[str, str]) -> tuple[str, ...]:
    value, unit, of = float(found.values[index]), found.field.unit, unit_of(found.output)
    words = {FIRST: names[0], SECOND: names[1], TIE: "a tie", ONLY_FIRST: f"only {names[0]}"}
    words |= {ONLY_SECOND: f"only {names[1]}", NEITHER: "none"}
    ratio = float(found.ratio[index])
    return (
        _exact(value, unit) if exact else told(value, unit),
        *(told(outputs[index], of, True) for outputs in found.outputs),
        f"{ratio:.4f}" if np.isfinite(ratio) else "n/a",
        words[int(found.standings[index])],
    )


def _exact(value: float, unit: str) -> str:
    scale = scale_of(np.array([value]), unit)
    return f"{value * scale.factor:,.8g} {scale.unit}".strip()


def breakeven_page(found: Breakeven, command: str) -> str:
    """The answer as one page."""
    scale = scale_of(found.values, found.field.unit)
    of = scale_of(np.concatenate(found.outputs), unit_of(found.output))
    x = found.values * scale.factor
    lines = [
        Curve(name, values * of.factor, [_point(found, name, values, i) for i in range(x.size)])
        for name, values in zip(names_of(found), found.outputs, strict=True)
    ]
    few = len(found.crossings) <= MOST  # words of more would lie on one another
    marked = found.crossings if len(found.crossings) <= LISTED else ()
    marks = [(c.value * scale.factor, told(c.value, found.field.unit) if few else "") for c in marked]
    titles = titled(found.field.name, scale), titled(found.output, of)
    caption = "Each design at its best plan. A line ends where its design does not fit, or misses its SLO."
    plots: list[tuple[dict[str, object], str]] = [(charts.curves(x, lines, titles, marks), caption)]
    first, second = names_of(found)
    notes = [
        f"{told(v, found.field.unit)}: ratio {number(float(r))}" for v, r in zip(found.values, found.ratio, strict=True)
    ]
    if np.isfinite(found.ratio).any():
        ratio = charts.curves(x, [Curve("ratio", found.ratio, notes)], (titles[0], "ratio"), [*marks])
        plots.append(
            (ratio, f"{headed(label_of(found.output))} of {second} over that of {first}; they change places at 1.")
        )
    chapter = Chapter("Along the range", "", tuple(plots), (breakeven_table(found),))
    title = f"{headed(label_of(found.output))} along {label_of(found.field.name)}"
    return page("breakeven", title, f"{first} or {second}", breakeven_lead(found)[1:], [chapter], command)


def _point(found: Breakeven, name: str, values: Array, index: int) -> str:
    at = f"{label_of(found.field.name)} {told(found.values[index], found.field.unit)}"
    return f"<b>{text(name)}</b><br>{text(at)}<br>{told(values[index], unit_of(found.output))}"


def breakeven_json(found: Breakeven) -> str:
    """The answer as data, in SI."""
    crossings = [
        {
            "low": c.low, "high": c.high, "value": c.value, "below": STANDINGS[c.below], "above": STANDINGS[c.above],
            "first": c.first, "second": c.second, "jumps": c.jumps,
        }
        for c in found.crossings
    ]  # fmt: skip
    data = {
        "version": __version__,
        "first": found.first.name,
        "second": found.second.name,
        "mode": found.mode,
        "field": found.field.name,
        "field_unit": found.field.unit,
        "varied_in": found.varied,
        "output": found.output,
        "unit": unit_of(found.output),
        "crossings": crossings,
        "never": settled(found) or None,
        "values": found.values,
        "first_output": found.outputs[0],
        "second_output": found.outputs[1],
        "standings": [STANDINGS[index] for index in found.standings.tolist()],
    }
    return json.dumps(clean(data), sort_keys=True, indent=1, allow_nan=False) + "\n"
