"""The roofline of one or two steps: a marker for every kernel, under the roofs of memory and matrix units."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from archsim.report.figures import INK, LIMITS, MUTED, Figure, axis, figure, kernel_note, layout, text
from archsim.report.point import single
from archsim.report.steps import KernelTime, StepTime
from archsim.report.words import number
from archsim.units import show

WIDTH, HEIGHT = 700.0, 400.0  # pixels of the plot for which labels are laid out
LABELS = 10
SIDE = 0.84  # where the panel of kernels without FLOPs begins


@dataclass(frozen=True)
class _Frame:
    """The ranges of both axes, as logarithms."""

    x0: float
    x1: float
    y0: float
    y1: float

    def place(self, x: float, y: float) -> tuple[float, float]:
        """Pixels from the lower left."""
        across, up = (math.log10(x) - self.x0) / (self.x1 - self.x0), (math.log10(y) - self.y0) / (self.y1 - self.y0)
        return across * WIDTH, up * HEIGHT


def roofline(steps: Sequence[StepTime]) -> Figure:
    """Achieved FLOP/s over arithmetic intensity; beside it, bytes/s of the kernels that have no FLOPs."""
    points = [(step, item) for step in steps for item in step.by_name if item.flops and item.bytes]
    chip = steps[0].chip
    bandwidth = single(chip.memory.bandwidth)
    used = dict.fromkeys(item.kernel.compute for _, item in points)
    peaks = {fmt: single(chip.matrix[fmt]) for fmt in used}
    frame = _frame(points, peaks, bandwidth)
    labels = _labels(points, frame, bandwidth)
    traces = _roofs(frame, peaks, bandwidth) + _markers(steps, points, labels) + _side(steps)
    shape = layout(
        520,
        xaxis=axis("arithmetic intensity (FLOP per byte of memory traffic)", type="log", range=[frame.x0, frame.x1], domain=[0, SIDE - 0.1], exponentformat="power"),
        yaxis=axis("achieved FLOP/s of one chip", type="log", range=[frame.y0, frame.y1], exponentformat="SI", dtick=1),
        xaxis2=axis("no FLOPs", type="category", domain=[SIDE, 1], anchor="y2", range=[-0.6, 1.6], categoryorder="array", categoryarray=["memory", "links"]),
        yaxis2=axis("share of peak bandwidth (%)", type="log", range=[-1.3, 2.1], anchor="x2", tickvals=[0.1, 1, 10, 100]),
        annotations=_notes(frame, peaks, bandwidth),
        showlegend=True,
        legend={"orientation": "h", "y": 1.02, "yanchor": "bottom", "x": 0, "itemsizing": "constant"},
    )
    return figure(traces, shape)


def _frame(points: list[tuple[StepTime, KernelTime]], peaks: dict[str, float], bandwidth: float) -> _Frame:
    top, ridge = max(peaks.values()), max(peaks.values()) / bandwidth
    xs = [item.intensity for _, item in points] + [ridge]
    ys = [item.flops / item.seconds for _, item in points]
    return _Frame(math.log10(min(xs) / 2), math.log10(max(xs) * 4), math.log10(min(ys) / 4), math.log10(top * 3))


def _roofs(frame: _Frame, peaks: dict[str, float], bandwidth: float) -> list[Figure]:
    """The memory roof, a roof for each format, and a mark where they meet."""
    ridges = {fmt: peak / bandwidth for fmt, peak in peaks.items()}
    start = 10**frame.x0
    line = {"color": INK, "width": 1.5}
    traces: list[Figure] = [_line([start, max(ridges.values())], [start * bandwidth, max(peaks.values())], line)]
    for fmt, peak in peaks.items():
        traces.append(_line([ridges[fmt], 10**frame.x1], [peak, peak], line))
    notes = [f"ridge point of {fmt}: {number(ridges[fmt])} FLOP/B" for fmt in peaks]
    marks = {"type": "scatter", "mode": "markers", "x": list(ridges.values()), "y": list(peaks.values()), "customdata": notes}
    marks |= {"hovertemplate": "%{customdata}<extra></extra>", "name": "ridge point", "showlegend": True}
    marks |= {"marker": {"symbol": "diamond-open", "size": 11, "color": INK, "line": {"width": 2}}}
    return [*traces, marks]


def _line(x: list[float], y: list[float], line: Figure) -> Figure:
    return {"type": "scatter", "mode": "lines", "x": x, "y": y, "line": line, "hoverinfo": "skip", "showlegend": False}


def _notes(frame: _Frame, peaks: dict[str, float], bandwidth: float) -> list[Figure]:
    """Names of the roofs: peaks at their right end, the bandwidth along its slope."""
    base = {"showarrow": False, "font": {"size": 12, "color": MUTED}}
    notes = [
        base | {"x": frame.x1, "y": math.log10(peak), "xanchor": "right", "yanchor": "bottom", "text": f"{fmt} peak {show(peak, 'rate')}"}
        for fmt, peak in peaks.items()
    ]
    x = frame.x0 + 0.03 * (frame.x1 - frame.x0)
    y = min(max(x + math.log10(bandwidth), frame.y0), frame.y1)
    label = f"memory {show(bandwidth, 'bandwidth')}"
    return [*notes, base | {"x": x, "y": y + 0.04 * (frame.y1 - frame.y0), "xanchor": "left", "yanchor": "bottom", "text": label}]


def _markers(steps: Sequence[StepTime], points: list[tuple[StepTime, KernelTime]], labels: set[int]) -> list[Figure]:
    traces = []
    seen: set[str] = set()
    for step in steps:
        for limit, (color, symbol) in LIMITS.items():
            mine = [index for index, (owner, item) in enumerate(points) if owner is step and item.limit == limit]
            if not mine:
                continue
            items = [points[index][1] for index in mine]
            trace = _scatter([item.intensity for item in items], [item.flops / item.seconds for item in items], step, items)
            trace |= {"mode": "markers+text", "text": [text(points[index][1].name) if index in labels else "" for index in mine]}
            trace |= {"textposition": "top center", "textfont": {"size": 12, "color": INK}}
            trace |= _style(steps, step, items, color, symbol, limit, seen)
            traces.append(trace)
    return traces


def _style(steps: Sequence[StepTime], step: StepTime, items: list[KernelTime], color: str, symbol: str, limit: str, seen: set[str]) -> Figure:
    """Filled markers for the first step, open ones for the second; the area says how much of the step a kernel takes."""
    first = step is steps[0]
    sizes = [7 + 26 * math.sqrt(item.total / step.span) for item in items]
    name = f"limited by {limit}" if len(steps) == 1 else f"{'decode' if first else 'prefill'}: {limit}"
    line = {"width": 1, "color": "#ffffff"} if first else {"width": 2, "color": color}
    marker = {"color": color, "symbol": symbol if first else f"{symbol}-open", "size": sizes, "line": line, "opacity": 0.92}
    shown = name not in seen
    seen.add(name)
    return {"name": name, "legendgroup": name, "showlegend": shown, "marker": marker}


def _scatter(x: Sequence[object], y: Sequence[object], step: StepTime, items: list[KernelTime]) -> Figure:
    notes = [kernel_note(step, item) for item in items]
    return {"type": "scatter", "x": list(x), "y": list(y), "customdata": notes, "hovertemplate": "%{customdata}<extra></extra>"}


def _side(steps: Sequence[StepTime]) -> list[Figure]:
    """Kernels that only move bytes: what share of the peak of memory or links they reach."""
    traces = []
    for step in steps:
        for limit, (color, symbol) in LIMITS.items():
            items = [item for item in step.by_name if not item.flops and item.limit == limit and item.efficiency > 0]
            if not items:
                continue
            where = ["links" if item.link_bytes else "memory" for item in items]
            trace = _scatter(where, [max(100 * item.efficiency, 0.06) for item in items], step, items)
            trace |= {"mode": "markers", "xaxis": "x2", "yaxis": "y2"} | _style(steps, step, items, color, symbol, limit, set())
            name = str(trace["name"])
            only = not any(item.flops and item.limit == limit for item in step.by_name)
            traces.append(trace | {"showlegend": only, "legendgroup": name})
    roof = {"type": "scatter", "mode": "lines", "x": ["memory", "links"], "y": [100, 100], "xaxis": "x2", "yaxis": "y2"}
    return [*traces, roof | {"line": {"color": INK, "width": 1.5}, "hoverinfo": "skip", "showlegend": False}]


def _labels(points: list[tuple[StepTime, KernelTime]], frame: _Frame, bandwidth: float) -> set[int]:
    """Indices of the kernels whose names find room without touching another label or a larger marker; longest first."""
    order = sorted(range(len(points)), key=lambda index: -points[index][1].total / points[index][0].span)
    x, y = frame.place(10 ** (frame.x0 + 0.03 * (frame.x1 - frame.x0)), 10**frame.y0)
    taken: list[tuple[float, float, float, float]] = []
    marks = []
    for index in order:
        step, item = points[index]
        x, y = frame.place(item.intensity, item.flops / item.seconds)
        radius = 4 + 13 * math.sqrt(item.total / step.span)
        marks.append((index, x, y, radius))
    found: set[int] = set()
    for index, x, y, radius in marks:
        half = 3.6 * len(points[index][1].name)
        box = (x - half, y + radius, x + half, y + radius + 17)
        inside = box[0] > 0 and box[2] < WIDTH and box[3] < HEIGHT
        clear = all(other == index or not _touch(box, (a - r, b - r, a + r, b + r)) for other, a, b, r in marks)
        if inside and clear and not any(_touch(box, other) for other in taken) and len(found) < LABELS:
            found.add(index)
            taken.append(box)
    return found


def _touch(a: tuple[float, float, float, float], b: tuple[float, float, float, float]) -> bool:
    return a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]


