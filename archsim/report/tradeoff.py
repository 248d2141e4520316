"""The trade-off over batch or clients: throughput a chip, and cost a token, against interactivity."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from archsim.arrays import Array
from archsim.explore.result import Result
from archsim.explore.run import run
from archsim.report.figures import INK, MUTED, Figure, axis, figure, layout, text
from archsim.report.point import Point, columns, degrees_at
from archsim.report.words import number, shown, slo_label, split_label, token_rate

LADDER = tuple(sorted({int(base * 2**power) for power in range(15) for base in (1, 1.5) if base * 2**power >= 1}))
ENOUGH = 4  # points of a sweep that make a curve
COLORS = ("#0072B2", "#D98200", "#007F5C", "#A5548A", "#5F6670", "#6FB2DA", "#F5C469", "#93D9C4")
SYMBOLS = ("circle", "square", "diamond", "triangle-up", "triangle-down", "pentagon", "hexagon", "star-diamond")


@dataclass(frozen=True, eq=False)
class Curve:
    """Feasible points along one axis, in its order; `promised` is whether there is an SLO that `kept` speaks of."""

    along: str
    promised: bool
    values: Array
    metrics: dict[str, Array]
    plans: list[str]
    kept: "np.typing.NDArray[np.bool_]"
    best: int | None


NAMES = ("interactivity", "throughput_per_chip", "throughput", "tpot", "ttft", "cost_per_token", "output_cost")


def curve(point: Point) -> Curve | None:
    """The trade-off through a point; None where fewer than two points are feasible.

    A sweep of `batch` is used as it is, at the point's values of the other axes; without one, the scenario is run
    again over batches up to what fits.
    """
    result = point.result
    along = "batch" if "batch" in result.axes else ""
    if along and result.axes[along].size >= ENOUGH:
        return _curve(result, along, _line_through(result, along, point.index), point.index)
    swept = run(point.undecided, point.mode, {"batch": sorted({*LADDER, int(point.alone.answer.batch.ravel()[0])})})
    at = int(np.argmin(np.abs(swept.axes["batch"] - point.alone.answer.batch.ravel()[0])))
    return _curve(swept, "batch", np.arange(swept.feasible.size), at)


def _line_through(result: Result, along: str, index: int) -> "np.typing.NDArray[np.int64]":
    """Flat indices of all points that differ from one only along an axis."""
    where = list(np.unravel_index(index, result.shape))
    position = list(result.axes).index(along)
    found = []
    for step in range(result.shape[position]):
        where[position] = np.int64(step)
        found.append(int(np.ravel_multi_index(tuple(int(item) for item in where), result.shape)))
    return np.array(found, dtype=np.int64)


def _curve(result: Result, along: str, indices: "np.typing.NDArray[np.int64]", best: int) -> Curve | None:
    table = columns(result)
    usable = indices[result.feasible.ravel()[indices]]
    if usable.size < 2:
        return None
    plans = [split_label(degrees_at(table, int(index))) for index in usable]
    metrics = {name: table[name][usable] for name in NAMES}
    at = np.flatnonzero(usable == best)
    word = "clients" if result.mode == "steady" else "batch"
    kept = result.meets_slo.ravel()[usable]
    promised = bool(slo_label(result.scenario.slo))
    return Curve(word, promised, table[along][usable], metrics, plans, kept, int(at[0]) if at.size else None)


def throughput(found: Curve, point: Point) -> Figure:
    """Output tokens a second of one chip against those of one user."""
    return _figure(found, point, "throughput_per_chip", "output of one chip (tok/s)", "linear")


def cost(found: Curve, point: Point) -> Figure:
    """Dollars per million tokens against the tokens a second of one user."""
    name = "output_cost" if point.mode == "step" else "cost_per_token"
    what = "output tokens" if point.mode == "step" else "tokens, in and out"
    return _figure(found, point, name, f"cost per million {what} (USD)", "log")


def _figure(found: Curve, point: Point, name: str, title: str, kind: str) -> Figure:
    x, y = found.metrics["interactivity"], found.metrics[name]
    line = {"type": "scatter", "mode": "lines", "x": x.tolist(), "y": y.tolist(), "hoverinfo": "skip"}
    traces: list[Figure] = [line | {"line": {"color": "#C9CED4", "width": 1.5}, "showlegend": False}]
    labels = _labels(found, x, y, kind == "log")
    plans = list(dict.fromkeys(found.plans))
    for order, plan in enumerate(plans):
        mine = [index for index, own in enumerate(found.plans) if own == plan]
        rising = ["top left" if kind == "log" and x[index] > 0.12 * x.max() else "top right" for index in mine]
        side = {"textposition": rising}
        traces.append(_plan_trace(found, plan, order, mine, x, y, labels) | side)
    if found.best is not None:
        traces.append(_best_trace(found, found.best, x, y))
    vertical = axis(title, type=kind) | ({"rangemode": "tozero", "tickformat": ","} if kind == "linear" else _prices(y))
    shape = layout(430, xaxis=axis("interactivity (tok/s/user)", rangemode="tozero"), yaxis=vertical, showlegend=True)
    shape |= {"legend": {"orientation": "h", "y": 1.07, "yanchor": "bottom", "x": 0}, **_slo(point, float(x.max()))}
    return figure(traces, shape)


def _prices(y: Array) -> Figure:
    """Ticks of a logarithmic axis of money: 1, 2, 5 a decade, or 1 where that would be too many."""
    low, high = math.floor(math.log10(float(y.min()))), math.ceil(math.log10(float(y.max())))
    steps = (1, 2, 5) if high - low <= 3 else (1,)
    values = [base * 10.0**power for power in range(low, high + 1) for base in steps]
    return {"tickvals": values, "ticktext": [f"${value:,.12g}" for value in values]}


def _plan_trace(found: Curve, plan: str, order: int, mine: list[int], x: Array, y: Array, labels: set[int]) -> Figure:
    symbol, color = SYMBOLS[order % len(SYMBOLS)], COLORS[order % len(COLORS)]
    return {
        "type": "scatter",
        "mode": "markers+text",
        "name": text(plan),
        "x": [float(x[index]) for index in mine],
        "y": [float(y[index]) for index in mine],
        "text": [number(float(found.values[index])) if index in labels else "" for index in mine],
        "textfont": {"size": 11, "color": MUTED},
        "customdata": [_note(found, index) for index in mine],
        "hovertemplate": "%{customdata}<extra></extra>",
        "marker": {
            "color": color,
            "size": 8 if x.size < 60 else 6,
            "symbol": [symbol if found.kept[index] else f"{symbol}-open" for index in mine],
        },
    }


def _best_trace(found: Curve, best: int, x: Array, y: Array) -> Figure:
    marker = {"symbol": "circle-open", "size": 18, "color": INK, "line": {"width": 2}}
    trace = {"type": "scatter", "mode": "markers", "x": [float(x[best])], "y": [float(y[best])], "hoverinfo": "skip"}
    return trace | {"name": f"this report: {_what(found, best)}", "marker": marker}


def _what(found: Curve, index: int) -> str:
    """A point by its number: "75 clients", "batch 64"."""
    value = number(float(found.values[index]))
    return f"{value} clients" if found.along == "clients" else f"batch {value}"


def _note(found: Curve, index: int) -> str:
    """What hovering over a point shows."""
    told = {name: shown(name, float(column[index])) for name, column in found.metrics.items()}
    price = f"{told['output_cost']} per million output tokens"
    if found.along == "clients":
        price = f"{told['cost_per_token']} per million tokens, in and out; {price}"
    slo = ["keeps the SLO" if found.kept[index] else "misses the SLO"] if found.promised else []
    lines = [
        f"<b>{_what(found, index)}</b>, {text(found.plans[index])}",
        f"{told['interactivity']}/user, TPOT {told['tpot']}, TTFT {told['ttft']}",
        f"{told['throughput']} in all, {told['throughput_per_chip']} a chip",
    ]
    return "<br>".join([*lines, price, *slo])


FAR = 1.4  # times the fastest point: beyond, the SLO's own mark would squeeze the curve


def _slo(point: Point, most: float) -> Figure:
    """Shades the interactivity that the SLO asks for, or says that it lies outside."""
    slo = point.result.scenario.slo
    wanted = [value for value in (slo.interactivity, None if slo.tpot is None else 1.0 / slo.tpot) if value is not None]
    if not wanted:
        return {}
    least = max(wanted)
    label = f"SLO: {token_rate(least)}/user or more"
    base = {"y": 1, "yref": "paper", "xanchor": "right", "yanchor": "bottom", "showarrow": False}
    if least > FAR * most:
        note = {"x": 1, "xref": "paper", "font": {"size": 12, "color": "#A33F00"}, "text": f"{label}, far to the right"}
        return {"annotations": [base | note]}
    end = max(most, least) * 1.06
    area = {"type": "rect", "x0": least, "x1": end, "y0": 0, "y1": 1, "yref": "paper", "layer": "below"}
    area |= {"fillcolor": "#007F5C", "opacity": 0.07, "line": {"width": 0}}
    return {
        "shapes": [area],
        "annotations": [base | {"x": end, "font": {"size": 12, "color": "#00664A"}, "text": label}],
    }


def _labels(found: Curve, x: Array, y: Array, log: bool) -> set[int]:
    """Points whose batch is written beside them: those with room, from both ends inwards."""
    across = x / max(float(x.max()), 1e-30) * 430
    heights = np.log10(y) if log else y
    span = float(heights.max() - heights.min()) or 1.0
    up = (heights - float(heights.min())) / span * 300
    chosen: list[int] = []
    order: Sequence[int] = [0, x.size - 1, *range(1, x.size - 1)]
    for index in order:
        if all(math.hypot(across[index] - across[other], 1.6 * (up[index] - up[other])) > 58 for other in chosen):
            chosen.append(index)
    return set(chosen)
