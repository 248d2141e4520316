"""Figures of explorations as plain plotly dictionaries: fronts, tornados, bars and crossings."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from archsim.arrays import Array
from archsim.report.figures import INK, MUTED, Figure, axis, figure, layout, text
from archsim.report.scales import Scale, label_of, logarithmic, scale_of, titled, told
from archsim.report.tradeoff import COLORS, SYMBOLS

Column = npt.NDArray[Any]
MOST_DOTS = 4000  # points off the front that are drawn, evenly taken
TICKS = ((1.0,), (1.0, 2.0, 5.0), (1.0, 1.5, 2.0, 3.0, 5.0, 7.0), (*(n / 10 for n in range(10, 20)), *range(2, 10)))
MOST_NAMED = 8  # groups with a colour of their own
LESS, MORE = "#0072B2", "#D98200"


@dataclass(frozen=True, eq=False)
class Points:
    """A table of points: columns of one length, names of those that are axes, units of columns by name."""

    columns: Mapping[str, Column]
    axes: Sequence[str]
    units: Mapping[str, str] = field(default_factory=dict)

    @property
    def size(self) -> int:
        """Points."""
        return len(next(iter(self.columns.values())))

    def numbers(self, name: str) -> Array:
        """A column of numbers."""
        return np.asarray(self.columns[name], dtype=np.float64)

    def scale(self, name: str) -> Scale:
        """The unit in which a column is drawn."""
        return scale_of(self.columns[name], self.units.get(name, ""))

    def told(self, name: str, index: int) -> str:
        """A value of a column with its unit."""
        return told(self.columns[name][index], self.units.get(name, ""))

    def note(self, index: int, names: Sequence[str]) -> str:
        """What hovering over a point shows: some columns, then its axes and its plan."""
        lines = [f"<b>{text(label_of(name))} {text(self.told(name, index))}</b>" for name in names]
        lines += [f"{text(label_of(name))}: {text(self.told(name, index))}" for name in self.axes]
        if "plan" in self.columns and "plan" not in self.axes:
            lines.append(text(str(self.columns["plan"][index])))
        return "<br>".join(lines)


def evenly(indices: "npt.NDArray[np.intp]", most: int) -> "npt.NDArray[np.intp]":
    """At most so many of some indices, evenly taken."""
    if indices.size <= most:
        return indices
    return np.asarray(indices[np.linspace(0, indices.size - 1, most).round().astype(np.intp)], dtype=np.intp)


# Fronts


def pareto(
    points: Points, x: str, y: str, on: "npt.NDArray[np.bool_]", best: int | None, by: str | None, ring: str
) -> Figure:
    """One column against another: the front joined and in colour, all other points grey, the best ringed.

    `by` is a column whose values have colours of their own on the front.
    """
    xs, ys = points.numbers(x), points.numbers(y)
    scales = points.scale(x), points.scale(y)
    drawn = np.isfinite(xs) & np.isfinite(ys)
    traces = [_dots(points, evenly(np.flatnonzero(drawn & ~on), MOST_DOTS), x, y)]
    front = np.flatnonzero(drawn & on)
    front = front[np.argsort(xs[front], kind="stable")]
    traces.append(_line(xs[front] * scales[0].factor, ys[front] * scales[1].factor))
    groups = _groups(points, by, front)
    for order, (name, mine) in enumerate(groups.items()):
        traces.append(_marked(points, mine, x, y) | _style(order) | {"name": text(name), "showlegend": True})
    if best is not None and drawn[best]:
        traces.append(_ring(points, best, x, y) | {"name": text(ring)})
    axes = [_axis(points.numbers(name)[drawn], titled(name, scale)) for name, scale in zip((x, y), scales, strict=True)]
    shape = layout(480, xaxis=axes[0], yaxis=axes[1], showlegend=True, hovermode="closest")
    return figure(traces, shape | {"legend": {"orientation": "h", "y": 1.02, "yanchor": "bottom", "x": 0}})


def _axis(values: Array, title: str) -> Figure:
    return (
        axis(title, type="log", dtick="D2" if _decades(values) < 2.6 else 1, tickformat=",~g")
        if logarithmic(values)
        else axis(title, tickformat=",~g")
    )


def _decades(values: Array) -> float:
    known = values[np.isfinite(values) & (values > 0)]
    return float(np.log10(known.max() / known.min())) if known.size else 0.0


def _groups(points: Points, by: str | None, indices: "npt.NDArray[np.intp]") -> dict[str, "npt.NDArray[np.intp]"]:
    """Points by the value of a column, the most frequent first; the rest together."""
    if by is None:
        return {"on the front": indices}
    values = np.array([str(points.columns[by][index]) for index in indices])
    names, counts = np.unique(values, return_counts=True)
    order = names[np.argsort(-counts, kind="stable")]
    own = order if order.size <= MOST_NAMED else order[: MOST_NAMED - 1]
    found = {str(name): indices[values == name] for name in own}
    if own.size < order.size:
        found[f"{order.size - own.size} others"] = indices[~np.isin(values, own)]
    return found


def _style(order: int) -> Figure:
    mark = {"color": COLORS[order % len(COLORS)], "symbol": SYMBOLS[order % len(SYMBOLS)], "size": 9}
    return {"marker": mark | {"line": {"width": 1, "color": "#ffffff"}}}


def _marked(points: Points, indices: "npt.NDArray[np.intp]", x: str, y: str) -> Figure:
    scales = points.scale(x), points.scale(y)
    return {
        "type": "scatter",
        "mode": "markers",
        "x": (points.numbers(x)[indices] * scales[0].factor).tolist(),
        "y": (points.numbers(y)[indices] * scales[1].factor).tolist(),
        "customdata": [points.note(int(index), (y, x)) for index in indices],
        "hovertemplate": "%{customdata}<extra></extra>",
    }


def _dots(points: Points, indices: "npt.NDArray[np.intp]", x: str, y: str) -> Figure:
    dots = {"marker": {"color": "#B4BCC5", "size": 5, "opacity": 0.55}, "name": "not on the front"}
    return _marked(points, indices, x, y) | dots


def _line(x: Array, y: Array) -> Figure:
    line = {"color": MUTED, "width": 1.2, "shape": "linear"}
    base = {"type": "scatter", "mode": "lines", "x": x.tolist(), "y": y.tolist(), "line": line}
    return base | {"hoverinfo": "skip", "showlegend": False}


def _ring(points: Points, best: int, x: str, y: str) -> Figure:
    marker = {"symbol": "circle-open", "size": 19, "color": INK, "line": {"width": 2}}
    at = np.array([best], dtype=np.intp)
    return _marked(points, at, x, y) | {"marker": marker, "hoverinfo": "skip"}


# Tornados and indices


@dataclass(frozen=True)
class Bar:
    """One bar of a tornado: a metric with less and with more of something, and what is said about it."""

    name: str
    low: float
    high: float
    note: str


def tornado(bars: Sequence[Bar], base: float, name: str, unit: str) -> Figure:
    """Bars from a base value to both ends, the longest on top."""
    ends = np.array([[bar.low, bar.high] for bar in bars])
    scale = scale_of(np.array([base]), unit)
    order = list(range(len(bars)))[::-1]
    traces = []
    for column, (words, color) in enumerate((("with less of it", LESS), ("with more of it", MORE))):
        values = ends[order, column]
        traces.append(
            {
                "type": "bar",
                "orientation": "h",
                "name": words,
                "y": [text(bars[index].name) for index in order],
                "base": base * scale.factor,
                "x": np.where(np.isfinite(values), (values - base) * scale.factor, 0.0).tolist(),
                "customdata": [bars[index].note for index in order],
                "hovertemplate": "%{customdata}<extra></extra>",
                "marker": {"color": color, "line": {"width": 0}},
            }
        )
    shape = layout(
        100 + 27 * len(bars),
        barmode="overlay",
        bargap=0.3,
        xaxis=axis(titled(name, scale), tickformat=",~g"),
        yaxis=axis("", showgrid=False),
        showlegend=True,
        legend={"orientation": "h", "y": 1.02, "yanchor": "bottom", "x": 0},
    )
    line = {"type": "line", "x0": base * scale.factor, "x1": base * scale.factor, "y0": 0, "y1": 1, "yref": "paper"}
    return figure(traces, shape | {"shapes": [line | {"line": {"color": INK, "width": 1.5}}]})


def bars(
    names: Sequence[str],
    values: Mapping[str, Sequence[float]],
    title: str,
    notes: Sequence[str],
    ends: Mapping[str, Sequence[tuple[float, float]]] | None = None,
) -> Figure:
    """Horizontal bars beside each other, several for each name, the first name on top; `ends` as shares of 1."""
    order = list(range(len(names)))[::-1]
    traces = [
        {
            "type": "bar",
            "orientation": "h",
            "name": text(series),
            "y": [text(names[index]) for index in order],
            "x": [float(numbers[index]) for index in order],
            "customdata": [notes[index] for index in order],
            "hovertemplate": "%{customdata}<extra></extra>",
            "marker": {"color": COLORS[place], "line": {"width": 0}},
            **({} if ends is None else {"error_x": _whiskers(numbers, ends[series], order)}),
        }
        for place, (series, numbers) in enumerate(reversed(list(values.items())))
    ]
    shape = layout(100 + (16 + 14 * len(values)) * len(names), bargap=0.25, xaxis=axis(title, tickformat=",~g"))
    shape |= {"yaxis": axis("", showgrid=False), "showlegend": len(values) > 1, "barmode": "group"}
    return figure(
        traces,
        shape | {"legend": {"orientation": "h", "y": 1.02, "yanchor": "bottom", "x": 0, "traceorder": "reversed"}},
    )


def _whiskers(values: Sequence[float], ends: Sequence[tuple[float, float]], order: Sequence[int]) -> Figure:
    """Error bars between ends, for values in %."""
    up = [max(100.0 * ends[index][1] - values[index], 0.0) for index in order]
    down = [max(values[index] - 100.0 * max(ends[index][0], 0.0), 0.0) for index in order]
    shape = {"type": "data", "symmetric": False, "thickness": 1.2, "width": 3, "color": INK}
    return shape | {"array": up, "arrayminus": down}


# Curves


@dataclass(frozen=True, eq=False)
class Curve:
    """A named line over the values of a field; NaN leaves a gap."""

    name: str
    values: Array
    notes: Sequence[str]


def curves(
    x: Array, found: Sequence[Curve], titles: tuple[str, str], marks: Sequence[tuple[float, str]] = ()
) -> Figure:
    """Lines over a field, with vertical marks where something happens."""
    traces = [
        {
            "type": "scatter",
            "mode": "lines+markers" if x.size < 100 else "lines",
            "name": text(curve.name),
            "x": x.tolist(),
            "y": [None if not np.isfinite(value) else float(value) for value in curve.values],
            "connectgaps": False,
            "customdata": list(curve.notes),
            "hovertemplate": "%{customdata}<extra></extra>",
            "line": {"color": COLORS[order % len(COLORS)], "width": 2.2},
            "marker": {"size": 5},
        }
        for order, curve in enumerate(found)
    ]
    across = _axis(x, titles[0]) if _spaced_evenly_in_log(x) else axis(titles[0], tickformat=",~g")
    every = np.concatenate([curve.values for curve in found])
    shape = layout(
        450, xaxis=across, yaxis=_axis(every, titles[1]), showlegend=True, margin={"l": 8, "r": 12, "t": 30, "b": 8}
    )
    shape |= {"legend": {"orientation": "h", "y": 1.08, "yanchor": "bottom", "x": 0}}
    log = shape["xaxis"].get("type") == "log"
    return figure(traces, shape | _marks(marks, log))


def _spaced_evenly_in_log(x: Array) -> bool:
    """Whether values are spread over their logarithm rather than evenly."""
    known = np.unique(x)
    if known.size < 3 or known[0] <= 0:
        return False
    middle = float(np.median(known))
    half_log, half = float(np.sqrt(known[0] * known[-1])), float((known[0] + known[-1]) / 2.0)
    return bool(known[-1] > 8 * known[0] and abs(np.log(middle / half_log)) < abs(np.log(middle / half)))


def _marks(marks: Sequence[tuple[float, str]], log: bool) -> Figure:
    """Dashed vertical lines with words above them."""
    lines, notes = [], []
    for order, (place, words) in enumerate(marks):
        line = {"type": "line", "x0": place, "x1": place, "y0": 0, "y1": 1, "yref": "paper"}
        lines.append(line | {"line": {"color": MUTED, "width": 1.3, "dash": "dash"}})
        if not words:
            continue
        base = {"x": float(np.log10(place)) if log else place, "y": 1.0, "yref": "paper", "showarrow": False}
        side = {
            "yanchor": "bottom",
            "text": text(words),
            "font": {"size": 12, "color": MUTED},
            "yshift": 14 * (order % 2),
        }
        notes.append(base | side)
    return {"shapes": lines, "annotations": notes}


# Ticks


def nice_ticks(low: float, high: float) -> Array:
    """Round numbers of every decade between two positive ones, as few as make three; the ends where none do."""
    powers = np.arange(np.floor(np.log10(low)), np.ceil(np.log10(high)) + 1.0)
    for steps in TICKS:
        ticks = (10.0 ** powers[:, None] * np.array(steps)).ravel()
        ticks = ticks[(ticks >= low * 0.999) & (ticks <= high * 1.001)]
        if ticks.size >= 3:
            return np.asarray(ticks)
    return np.array([low, high])
