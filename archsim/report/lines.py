"""Parallel coordinates: a line for each point through its values of several columns.

Drawn as plain lines: plotly's own kind needs WebGL, which many machines do not have, and says nothing on hover.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from textwrap import wrap

import numpy as np
import numpy.typing as npt

from archsim.arrays import Array
from archsim.report.charts import Points, evenly, nice_ticks
from archsim.report.figures import INK, MUTED, Figure, figure, layout, text
from archsim.report.scales import label_of, logarithmic, titled

MOST_LINES = 500
WIDE = 18  # characters of a line of a title
LONGEST = 22  # characters of a word on an axis
VIRIDIS = (
    "#440154", "#482878", "#3e4a89", "#31688e", "#26828e", "#1f9e89", "#35b779", "#6dcd59", "#b4de2c", "#fde725",
)  # fmt: skip


@dataclass(frozen=True, eq=False)
class Upright:
    """One axis: its title, where each point is on it (0 to 1), and its ticks."""

    title: str
    heights: Array
    ticks: Sequence[tuple[float, str]]


def parallel(points: Points, names: Sequence[str], color: str, indices: "npt.NDArray[np.intp]") -> Figure:
    """A line for each point, evenly taken, coloured by one of the columns from dark (least) to light (most)."""
    chosen = evenly(indices, MOST_LINES)
    axes = [_upright(points, name, chosen) for name in names]
    shade = points.numbers(color)[chosen]
    bins = _bins(np.log10(shade) if logarithmic(shade) else shade)
    heights = np.stack([axis.heights for axis in axes], axis=1)
    traces = [
        _lines(points, chosen, heights, np.flatnonzero(bins == number), number, color) for number in range(len(VIRIDIS))
    ]
    last = len(names) - 1
    wordy = max((len(words) for _, words in axes[0].ticks), default=0)
    shape = layout(
        440,
        xaxis={"range": [-0.02, last + 0.02], "visible": False, "fixedrange": True},
        yaxis={"range": [-0.03, 1.03], "visible": False, "fixedrange": True},
        margin={"l": max(30 + 7 * wordy, 80), "r": 80, "t": 84, "b": 16},
        hovermode="closest",
    )
    return figure([trace for trace in traces if trace["x"]], shape | _frame(axes))


def _bins(values: Array) -> "npt.NDArray[np.intp]":
    """Which colour each value has: even steps from the least to the most."""
    low, high = float(values.min()), float(values.max())
    share = (values - low) / (high - low) if high > low else np.zeros(values.size)
    return np.minimum((share * len(VIRIDIS)).astype(np.intp), len(VIRIDIS) - 1)


def _lines(
    points: Points,
    chosen: "npt.NDArray[np.intp]",
    heights: Array,
    own: "npt.NDArray[np.intp]",
    number: int,
    color: str,
) -> Figure:
    """The lines of one colour, with a gap after each."""
    width = heights.shape[1]
    across = [*range(width), None]
    return {
        "type": "scatter",
        "mode": "lines",
        "x": across * own.size,
        "y": [value for row in own for value in (*heights[row].round(4).tolist(), None)],
        "customdata": [note for row in own for note in [points.note(int(chosen[row]), (color,))] * (width + 1)],
        "hovertemplate": "%{customdata}<extra></extra>",
        "line": {"color": VIRIDIS[number], "width": 1.1},
        "opacity": 0.6,
        "connectgaps": False,
    }


def _frame(axes: Sequence[Upright]) -> Figure:
    """Uprights, their titles and their ticks."""
    lines, notes = [], []
    for place, axis in enumerate(axes):
        ends = {"x0": place, "x1": place, "y0": 0, "y1": 1}
        lines.append({"type": "line", "line": {"color": INK, "width": 1}, **ends})
        base = {"x": place, "showarrow": False, "yanchor": "middle"}
        title = {
            "y": 1.0,
            "yanchor": "bottom",
            "yshift": 18,
            "text": _wrapped(axis.title),
            "font": {"size": 12, "color": INK},
        }
        notes.append(base | title | {"xanchor": "center"})
        for height, words in axis.ticks:
            look = {"font": {"size": 11, "color": MUTED}, "bgcolor": "rgba(255,255,255,0.75)", "xanchor": "right"}
            notes.append(base | look | {"y": height, "xshift": -5, "text": text(words)})
    return {
        "shapes": lines,
        "annotations": notes,
        "paper_bgcolor": "#ffffff",
        "plot_bgcolor": "#ffffff",
        "dragmode": False,
    }


def _upright(points: Points, name: str, chosen: "npt.NDArray[np.intp]") -> Upright:
    column = points.columns[name][chosen]
    if column.dtype.kind in "USO":
        words, index = np.unique([str(item) for item in column], return_inverse=True)
        last = max(len(words) - 1, 1)
        ticks = [(place / last, _short(str(word))) for place, word in enumerate(words)]
        return Upright(label_of(name), index.ravel() / last, ticks)
    scale = points.scale(name)
    values = np.asarray(column, dtype=np.float64) * scale.factor
    low, high = float(values.min()), float(values.max())
    if logarithmic(values):
        at = nice_ticks(low, high)
        heights, places = (np.log(item / low) / np.log(high / low) for item in (values, at))
    else:
        at = _even_ticks(low, high)
        heights, places = ((item - low) / ((high - low) or 1.0) for item in (values, at))
    return Upright(titled(name, scale), heights, [(float(p), f"{t:,.6g}") for p, t in zip(places, at, strict=True)])


def _even_ticks(low: float, high: float) -> Array:
    """Round numbers between two others."""
    if not high > low:
        return np.array([low])
    step = 10.0 ** np.floor(np.log10((high - low) / 2.0))
    step *= next(factor for factor in (1.0, 2.0, 5.0, 10.0) if (high - low) / (step * factor) <= 6.0)
    return np.asarray(np.arange(np.ceil(low / step - 1e-9), np.floor(high / step + 1e-9) + 1.0) * step)


def _wrapped(title: str) -> str:
    """A title in short lines, so that neighbours do not run into each other."""
    return "<br>".join(text(line) for line in wrap(title, WIDE))


def _short(words: str) -> str:
    return words if len(words) <= LONGEST else f"{words[: LONGEST - 1]}…"
