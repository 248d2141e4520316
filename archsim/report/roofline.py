"""The roofline of one or two steps: a marker for every kernel, under the roofs of memory and matrix units."""

import math
from collections.abc import Callable, Sequence
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
    peaks = {fmt: single(chip.matrix[fmt]) for fmt in dict.fromkeys(item.kernel.compute for _, item in points)}
    frame = _frame(points, peaks, bandwidth)
    labels = _labels(points, frame, peaks, bandwidth)
    seen: set[str] = set()
    traces = _roofs(frame, peaks, bandwidth) + _markers(steps, points, labels, seen) + _side(steps, seen)
    legend = {"orientation": "h", "y": 1.02, "yanchor": "bottom", "x": 0, "itemsizing": "constant"}
    shape = layout(520, annotations=_notes(frame, peaks, bandwidth), showlegend=True, legend=legend)
    return figure(traces, shape | _axes(frame))


def _axes(frame: _Frame) -> Figure:
    """Both axes of the roofline, and those of the panel beside it."""
    main = {"range": [frame.x0, frame.x1], "domain": [0, SIDE - 0.1]} | _decades(frame.x0, frame.x1, number)
    side = {"categoryorder": "array", "categoryarray": ["memory", "links"], "range": [-0.6, 1.6], "domain": [SIDE, 1]}
    share = {"type": "log", "range": [-1.3, 2.1], "tickvals": [0.1, 1, 10, 100]}
    return {
        "xaxis": axis("arithmetic intensity (FLOP per byte of memory traffic)", **main),
        "yaxis": axis(
            "achieved FLOP/s of one chip", range=[frame.y0, frame.y1], **_decades(frame.y0, frame.y1, _flops)
        ),
        "xaxis2": axis("no FLOPs", type="category", anchor="y2", **side),
        "yaxis2": axis("share of peak bandwidth (%)", anchor="x2", **share),
    }


def _decades(low: float, high: float, name: Callable[[float], str]) -> Figure:
    """Ticks of a logarithmic axis: one a decade, in words."""
    values = [10.0**power for power in range(math.ceil(low), math.floor(high) + 1)]
    return {"type": "log", "tickvals": values, "ticktext": [name(value) for value in values]}


def _flops(value: float) -> str:
    return show(value, "rate", 1).replace(" ", "\u00a0")


def _frame(points: list[tuple[StepTime, KernelTime]], peaks: dict[str, float], bandwidth: float) -> _Frame:
    top, ridge = max(peaks.values()), max(peaks.values()) / bandwidth
    xs = [item.intensity for _, item in points] + [ridge]
    ys = [item.flops / item.seconds for _, item in points]
    return _Frame(math.log10(min(xs) / 2), math.log10(max(xs) * 14), math.log10(min(ys) / 4), math.log10(top * 3))


def _roofs(frame: _Frame, peaks: dict[str, float], bandwidth: float) -> list[Figure]:
    """The memory roof, a roof for each format, and a mark where they meet."""
    ridges = {fmt: peak / bandwidth for fmt, peak in peaks.items()}
    start = 10**frame.x0
    line = {"color": INK, "width": 1.5}
    traces: list[Figure] = [_line([start, max(ridges.values())], [start * bandwidth, max(peaks.values())], line)]
    for fmt, peak in peaks.items():
        traces.append(_line([ridges[fmt], 10**frame.x1], [peak, peak], line))
    notes = [f"ridge point of {fmt}: {number(ridges[fmt])} FLOP/B" for fmt in peaks]
    marks: Figure = {
        "type": "scatter",
        "mode": "markers",
        "x": list(ridges.values()),
        "y": list(peaks.values()),
        "customdata": notes,
    }
    marks |= {"hovertemplate": "%{customdata}<extra></extra>", "name": "ridge point", "showlegend": True}
    marks |= {"marker": {"symbol": "diamond-open", "size": 11, "color": INK, "line": {"width": 2}}}
    return [*traces, marks]


def _line(x: list[float], y: list[float], line: Figure) -> Figure:
    return {"type": "scatter", "mode": "lines", "x": x, "y": y, "line": line, "hoverinfo": "skip", "showlegend": False}


def _notes(frame: _Frame, peaks: dict[str, float], bandwidth: float) -> list[Figure]:
    """Names of the roofs where no kernel can be: peaks at their right end, the bandwidth above its slope."""
    base = {"showarrow": False, "font": {"size": 12, "color": MUTED}}
    notes = [
        base
        | {
            "x": frame.x1,
            "y": math.log10(peak),
            "xanchor": "right",
            "yanchor": "bottom",
            "text": f"{fmt} peak {show(peak, 'rate')}",
        }
        for fmt, peak in peaks.items()
    ]
    low = max(frame.x0, frame.y0 - math.log10(bandwidth))
    x = low + 0.72 * (math.log10(min(peaks.values()) / bandwidth) - low)
    label = f"memory {show(bandwidth, 'bandwidth')}"
    return [
        *notes,
        base
        | {
            "x": x,
            "y": x + math.log10(bandwidth),
            "xanchor": "right",
            "yanchor": "bottom",
            "xshift": -6,
            "text": label,
        },
    ]


def _markers(
    steps: Sequence[StepTime], points: list[tuple[StepTime, KernelTime]], labels: dict[int, str], seen: set[str]
) -> list[Figure]:
    traces = []
    for step in steps:
        for limit, (color, symbol) in LIMITS.items():
            mine = [index for index, (owner, item) in enumerate(points) if owner is step and item.limit == limit]
            if not mine:
                continue
            items = [points[index][1] for index in mine]
            trace = _scatter(
                [item.intensity for item in items], [item.flops / item.seconds for item in items], step, items
            )
            trace |= {
                "mode": "markers+text",
                "text": [text(points[index][1].name) if index in labels else "" for index in mine],
            }
            trace |= {
                "textposition": [labels.get(index, "top center") for index in mine],
                "textfont": {"size": 12, "color": INK},
            }
            trace |= _style(steps, step, items, color, symbol, limit, seen)
            traces.append(trace)
    return traces


def _style(
    steps: Sequence[StepTime],
    step: StepTime,
    items: list[KernelTime],
    color: str,
    symbol: str,
    limit: str,
    seen: set[str],
) -> Figure:
    """Filled markers for the first step, open ones for the second; the area is the share of the step."""
    first = step is steps[0]
    sizes = [7 + 26 * math.sqrt(item.total / step.span) for item in items]
    name = f"limited by {limit}"
    line = {"width": 1, "color": "#ffffff"} if first else {"width": 2, "color": color}
    marker = {
        "color": color,
        "symbol": symbol if first else f"{symbol}-open",
        "size": sizes,
        "line": line,
        "opacity": 0.92,
    }
    shown = name not in seen
    seen.add(name)
    return {"name": name, "legendgroup": name, "showlegend": shown, "marker": marker}


def _scatter(x: Sequence[object], y: Sequence[object], step: StepTime, items: list[KernelTime]) -> Figure:
    notes = [kernel_note(step, item) for item in items]
    return {
        "type": "scatter",
        "x": list(x),
        "y": list(y),
        "customdata": notes,
        "hovertemplate": "%{customdata}<extra></extra>",
    }


def _side(steps: Sequence[StepTime], seen: set[str]) -> list[Figure]:
    """Kernels that only move bytes: what share of the peak of memory or links they reach."""
    traces = []
    for step in steps:
        for limit, (color, symbol) in LIMITS.items():
            items = [item for item in step.by_name if not item.flops and item.limit == limit and item.efficiency > 0]
            if not items:
                continue
            where = ["links" if item.link_bytes else "memory" for item in items]
            trace = _scatter(where, [max(100 * item.efficiency, 0.06) for item in items], step, items)
            trace |= {"mode": "markers", "xaxis": "x2", "yaxis": "y2"} | _style(
                steps, step, items, color, symbol, limit, seen
            )
            traces.append(trace)
    roof = {"type": "scatter", "mode": "lines", "x": ["memory", "links"], "y": [100, 100], "xaxis": "x2", "yaxis": "y2"}
    return [*traces, roof | {"line": {"color": INK, "width": 1.5}, "hoverinfo": "skip", "showlegend": False}]


Box = tuple[float, float, float, float]  # left, bottom, right, top in pixels


def _note_box(note: Figure, frame: _Frame) -> Box:
    """The pixels of a note that stands to the left of and above its place."""
    x, y = frame.place(10 ** note["x"], 10 ** note["y"])
    return x - 6.6 * len(note["text"]) - 6, y, x, y + 18


def _labels(
    points: list[tuple[StepTime, KernelTime]], frame: _Frame, peaks: dict[str, float], bandwidth: float
) -> dict[int, str]:
    """Kernels whose names find room, and where beside their marks; those that take most of a step come first."""
    taken = [_note_box(note, frame) for note in _notes(frame, peaks, bandwidth)]
    for peak in peaks.values():
        x, y = frame.place(peak / bandwidth, peak)
        taken += [(x - 8, y - 8, x + 8, y + 8), (x, y - 1, WIDTH, y + 1)]
    marks = {}
    for index, (step, item) in enumerate(points):
        x, y = frame.place(item.intensity, item.flops / item.seconds)
        marks[index] = x, y, 4 + 13 * math.sqrt(item.total / step.span)
    found: dict[int, str] = {}
    for index in sorted(marks, key=lambda index: -marks[index][2]):
        others = [(x - r, y - r, x + r, y + r) for other, (x, y, r) in marks.items() if other != index]
        for position, box in _places(points[index][1].name, *marks[index]).items():
            if len(found) < LABELS and _free(box, others + taken) and _under_roof(box, frame, bandwidth):
                found[index] = position
                taken.append(box)
                break
    return found


def _places(name: str, x: float, y: float, r: float) -> dict[str, Box]:
    """Where a name may stand beside a mark of radius r."""
    half = 3.6 * len(name)
    return {
        "top center": (x - half, y + r, x + half, y + r + 17),
        "middle right": (x + r, y - 8, x + r + 2 * half + 4, y + 8),
        "bottom center": (x - half, y - r - 17, x + half, y - r),
    }


def _free(box: Box, others: list[Box]) -> bool:
    inside = box[0] > 0 and box[1] > 0 and box[2] < WIDTH and box[3] < HEIGHT
    return inside and not any(box[0] < b[2] and b[0] < box[2] and box[1] < b[3] and b[1] < box[3] for b in others)


def _under_roof(box: Box, frame: _Frame, bandwidth: float) -> bool:
    """Whether the slope of the memory roof passes above a box."""
    left = 10 ** (frame.x0 + box[0] / WIDTH * (frame.x1 - frame.x0))
    return frame.place(left, left * bandwidth)[1] >= box[3]
