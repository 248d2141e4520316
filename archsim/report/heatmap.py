"""Heat maps: the best value of a column over two axes of a table of points."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from archsim.arrays import Array
from archsim.report.charts import Points, nice_ticks
from archsim.report.figures import Figure, axis, figure, layout, text
from archsim.report.scales import label_of, logarithmic, scale_of, titled, told

MOST_WORDS, WIDEST = 150, 14  # cells, in all and in a row, up to which numbers are written in them


@dataclass(frozen=True, eq=False)
class Heat:
    """Values over two axes: `rows` by `columns`, with a note for each cell; NaN where nothing fits."""

    x: str
    y: str
    columns: Sequence[str]
    rows: Sequence[str]
    values: Array
    notes: Sequence[Sequence[str]]


def heat_of(points: Points, x: str, y: str, z: str, sign: float) -> Heat:
    """The best value of a column (least where `sign` is 1) over two axes, whatever the others are."""
    places = [np.unique(points.columns[name], return_inverse=True) for name in (x, y)]
    (xs, column), (ys, row) = ((values, index.ravel()) for values, index in places)
    values = points.numbers(z) * sign
    order = np.lexsort((np.where(np.isfinite(values), values, np.inf), column, row))
    cells = row[order] * len(xs) + column[order]
    first = order[np.unique(cells, return_index=True)[1]]
    grid = np.full((len(ys), len(xs)), np.nan)
    notes = [["nothing is known" for _ in xs] for _ in ys]
    for index in first:
        grid[row[index], column[index]] = points.numbers(z)[index]
        fits = np.isfinite(grid[row[index], column[index]])
        notes[row[index]][column[index]] = points.note(int(index), (z,)) if fits else _unfit(points, int(index), x, y)
    named = [[told(value, points.units.get(name, "")) for value in found] for name, found in ((x, xs), (y, ys))]
    return Heat(x, y, named[0], named[1], grid, notes)


def _unfit(points: Points, index: int, x: str, y: str) -> str:
    where = ", ".join(f"{label_of(name)} {points.told(name, index)}" for name in (x, y))
    reason = str(points.columns["reason"][index]) if "reason" in points.columns else ""
    return f"{text(where)}<br>does not fit{f': {text(reason)}' if reason else ''}"


def heat(found: Heat, name: str, unit: str, about: float | None = None, height: int = 0) -> Figure:
    """A heat map of a column; `about` a value, blue below and orange above it, or from dark to light."""
    scale = scale_of(found.values, unit)
    values = found.values * scale.factor
    log = about is not None or logarithmic(values, 8.0)
    shown = np.log10(np.where(values > 0, values, np.nan)) if log else values
    trace: Figure = {
        "type": "heatmap",
        "x": list(found.columns),
        "y": list(found.rows),
        "z": shown.tolist(),
        "customdata": [list(row) for row in found.notes],
        "hovertemplate": "%{customdata}<extra></extra>",
        "hoverongaps": True,
        "xgap": 1,
        "ygap": 1,
    }
    colours = _colours(shown, None if about is None else float(np.log10(about * scale.factor)))
    trace |= colours | {"colorbar": _bar(colours, titled(name, scale), log)} | _words(values)
    shape = layout(
        height or 140 + min(max(26 * len(found.rows), 180), 460),
        xaxis=axis(label_of(found.x), type="category", showgrid=False),
        yaxis=axis(label_of(found.y), type="category", showgrid=False),
    )
    return figure([trace], shape | {"plot_bgcolor": "#E9ECEF"})


def _words(values: Array) -> Figure:
    """Numbers in the cells of a map that has room for them."""
    if values.size > MOST_WORDS or values.shape[1] > WIDEST:
        return {}
    words = [[f"{value:,.3g}" if np.isfinite(value) else "" for value in row] for row in values]
    return {"text": words, "texttemplate": "%{text}", "textfont": {"size": 12}}


def _colours(values: Array, middle: float | None) -> Figure:
    known = values[np.isfinite(values)]
    low, high = (float(known.min()), float(known.max())) if known.size else (0.0, 1.0)
    if middle is None:
        return {"colorscale": "Viridis", "zmin": low, "zmax": high if high > low else low + 1.0}
    reach = max(high - middle, middle - low, 1e-6)
    scale = [[0.0, "#0072B2"], [0.5, "#F7F7F7"], [1.0, "#D98200"]]
    return {"colorscale": scale, "zmin": middle - reach, "zmax": middle + reach}


def _bar(colours: Figure, title: str, log: bool) -> Figure:
    base: Figure = {"title": {"text": title, "side": "right"}, "thickness": 14, "outlinewidth": 0}
    if not log:
        return base
    ticks = nice_ticks(10.0 ** colours["zmin"], 10.0 ** colours["zmax"])
    return base | {"tickvals": np.log10(ticks).tolist(), "ticktext": [f"{tick:,.3g}" for tick in ticks]}
