"""Figures of one step and of one memory plan, as plain plotly dictionaries.

Plotly reads a subset of HTML in every text, so that names go through `text` first.
"""

from collections.abc import Sequence
from html import escape
from typing import Any

from archsim.engine.cost import ALL_PARTS
from archsim.engine.lanes import GAPS
from archsim.report.memory import MEANINGS, NAMES
from archsim.report.point import Point, single
from archsim.report.steps import KernelTime, StepTime
from archsim.report.words import number, percent
from archsim.units import show

Figure = dict[str, Any]

INK, MUTED, GRID = "#1c2430", "#5b6672", "#e4e7eb"
# Okabe and Ito's colours, which colour-blind people tell apart: one hue a resource, lighter where it is lost
PARTS = {
    "compute": "#0072B2",
    "quantization": "#3A93C8",
    "occupancy": "#6FB2DA",
    "imbalance": "#A3CFE8",
    "clock": "#CDE4F2",
    "memory": "#D98200",
    "bandwidth": "#F5C469",
    "on_chip": "#A5548A",
    "overlap": "#DDB3CE",
    "fixed": "#5F6670",
    "link": "#007F5C",
    "link_latency": "#93D9C4",
}
IDLE = {
    "link": "#93D9C4",
    "compute": "#A3CFE8",
    "host": "#9AA3AD",
    "dependency": "#DDB3CE",
    "bubble": "#C9CED4",
    "no_work": "#E4E7EB",
    "to_ffn": "#56B4E9",
    "ffn": "#E0A6C9",
    "ffn_in": "#93D9C4",
    "ffn_out": "#5FBF9F",
    "from_ffn": "#2E86B5",
    "queue": "#E8A48C",
    "other_layers": "#D5D9DE",
}
LANES = ("host", "from_ffn", "ffn_out", "ffn_in", "ffn", "to_ffn", "link", "compute")  # from below
LIMITS = {
    "compute": ("#0072B2", "circle"),
    "memory": ("#D98200", "square"),
    "on-chip feed": ("#A5548A", "diamond"),
    "fixed time": ("#5F6670", "x"),
    "link bandwidth": ("#007F5C", "triangle-up"),
    "link latency": ("#33B08D", "triangle-down"),
}
MEMORY = {
    "weights": "#0072B2",
    "kv": "#D98200",
    "state": "#F5C469",
    "activations": "#A5548A",
    "buffers": "#33B08D",
    "reserve": "#9AA3AD",
}
MOST_BARS = 16  # kernels with a bar of their own
FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif"


def text(value: str) -> str:
    """Text as plotly shows it literally."""
    return escape(value, quote=False)


def axis(title: str, **more: Any) -> Figure:
    """An axis in the common style."""
    base: Figure = {
        "title": {"text": title, "standoff": 8, "font": {"size": 13, "color": MUTED}},
        "tickfont": {"size": 12},
        "automargin": True,
    }
    return base | {"gridcolor": GRID, "zerolinecolor": GRID, "linecolor": GRID, "ticks": ""} | more


def layout(height: int, **more: Any) -> Figure:
    """A layout in the common style."""
    base: Figure = {
        "height": height,
        "font": {"family": FONT, "size": 13, "color": INK},
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "margin": {"l": 8, "r": 12, "t": 12, "b": 8},
        "hoverlabel": {
            "align": "left",
            "bgcolor": "#ffffff",
            "bordercolor": GRID,
            "font": {"family": FONT, "size": 13, "color": INK},
        },
        "showlegend": False,
    }
    return base | more


def figure(traces: Sequence[Figure], shape: Figure) -> Figure:
    """A figure."""
    return {"data": list(traces), "layout": shape}


# Where the time goes


def _unit(seconds: float) -> tuple[str, float]:
    return next(((unit, scale) for unit, scale in (("s", 1.0), ("ms", 1e3)) if seconds * scale >= 1.0), ("us", 1e6))


def operators(step: StepTime) -> Figure:
    """Time of each kernel over all its runs, stacked by part, longest first; the rest joined in one bar."""
    bars = _bars(step)
    unit, scale = _unit(max(sum(parts.values()) for _, parts, _ in bars))
    used = [part for part in ALL_PARTS if any(part in parts for _, parts, _ in bars)]
    names = [text(name) for name, _, _ in reversed(bars)]
    shape = layout(
        90 + 22 * len(bars),
        barmode="stack",
        bargap=0.28,
        xaxis=axis(f"time in one step, all runs ({unit})", rangemode="tozero"),
        yaxis=axis("", categoryorder="array", categoryarray=names, showgrid=False),
    )
    return figure([_operator_trace(part, bars, scale, step.span) for part in used], shape)


def _bars(step: StepTime) -> list[tuple[str, dict[str, float], str]]:
    """(name, seconds of each part, limit) of the longest kernels, and of the rest together."""
    items = step.by_name
    most = len(items) if len(items) <= MOST_BARS + 1 else MOST_BARS
    bars = [(item.label, _all_runs(item), item.limit) for item in items[:most]]
    sums: dict[str, float] = {}
    for item in items[most:]:
        for part, value in _all_runs(item).items():
            sums[part] = sums.get(part, 0.0) + value
    return [*bars, (f"{len(items) - most} others", sums, "several things")] if sums else bars


def _all_runs(item: KernelTime) -> dict[str, float]:
    return {part: value * item.runs for part, value in item.parts.items()}


def _operator_trace(part: str, bars: list[tuple[str, dict[str, float], str]], scale: float, span: float) -> Figure:
    shown = [(name, parts.get(part, 0.0), sum(parts.values()), limit) for name, parts, limit in bars]
    notes = [
        f"<b>{text(name)}</b>: {show(whole, 'time')}, {percent(whole / span)} of the step, limited by {limit}<br>"
        f"{part}: {show(value, 'time')}, {percent(value / whole)} of it<br>{text(ALL_PARTS[part])}"
        for name, value, whole, limit in shown
    ]
    return {
        "type": "bar",
        "orientation": "h",
        "name": part,
        "y": [text(name) for name, _, _, _ in shown],
        "x": [value * scale for _, value, _, _ in shown],
        "customdata": notes,
        "hovertemplate": "%{customdata}<extra></extra>",
        "marker": {"color": PARTS[part], "line": {"width": 0}},
    }


def lanes(step: StepTime) -> Figure:
    """What every lane did over the span: parts of its kernels solid, gaps by cause hatched."""
    unit, scale = _unit(step.span)
    order = sorted(
        step.lanes,
        key=lambda lane: LANES.index(lane.name) if lane.name in LANES else -1,
    )
    traces = []
    for part, meaning in ALL_PARTS.items():
        marker = {"color": PARTS[part], "line": {"width": 0}}
        traces.append(
            _lane_trace(
                part, meaning, [(lane.name, lane.parts.get(part, 0.0)) for lane in order], step.span, scale, marker
            )
        )
    for gap, meaning in GAPS.items():
        hatch = {"shape": "/", "fgcolor": IDLE[gap], "bgcolor": "#ffffff", "size": 7, "solidity": 0.45}
        marker = {"color": "#ffffff", "pattern": hatch, "line": {"width": 1, "color": IDLE[gap]}}
        label = f"idle, {meaning}"
        traces.append(
            _lane_trace(gap, label, [(lane.name, lane.gaps.get(gap, 0.0)) for lane in order], step.span, scale, marker)
        )
    horizontal = axis(f"one step ({unit})", range=[0, step.span * scale * 1.002])
    shape = layout(86 + 46 * len(order), barmode="stack", bargap=0.3, xaxis=horizontal, yaxis=axis("", showgrid=False))
    return figure([trace for trace in traces if any(trace["x"])], shape)


def _lane_trace(
    name: str, meaning: str, values: list[tuple[str, float]], span: float, scale: float, marker: Figure
) -> Figure:
    notes = [
        f"<b>{text(lane)} lane</b><br>{text(meaning)}<br>{show(value, 'time')}, {percent(value / span)} of the step"
        for lane, value in values
    ]
    return {
        "type": "bar",
        "orientation": "h",
        "name": name,
        "y": [text(lane) for lane, _ in values],
        "x": [value * scale for _, value in values],
        "customdata": notes,
        "hovertemplate": "%{customdata}<extra></extra>",
        "marker": marker,
    }


def legend(steps: Sequence[StepTime]) -> list[tuple[str, str, str, bool]]:
    """(name, colour, meaning, hatched) of every part and gap that occurs in the steps."""
    parts = {part for step in steps for item in step.by_name for part in item.parts} | {
        part for step in steps for lane in step.lanes for part in lane.parts
    }
    gaps = {gap for step in steps for lane in step.lanes for gap in lane.gaps}
    found = [(part, PARTS[part], meaning, False) for part, meaning in ALL_PARTS.items() if part in parts]
    return found + [
        (f"idle: {gap.replace('_', ' ')}", IDLE[gap], meaning, True) for gap, meaning in GAPS.items() if gap in gaps
    ]


# Memory


def memory(point: Point) -> Figure:
    """What one chip holds as one bar, against its capacity."""
    plan = point.alone.answer.memory
    capacity, needed = single(plan.capacity), single(plan.needed)
    sizes = {name: single(value) for name, value in plan.parts.items()}
    traces = [
        _memory_trace(name, sizes[name], capacity, MEANINGS.get(name, ""), {"color": MEMORY.get(name, MUTED)})
        for name in dict.fromkeys((*MEMORY, *sizes))
        if sizes.get(name)
    ]
    if needed < capacity:
        marker = {"color": "#ffffff", "line": {"width": 1, "color": "#C9CED4"}}
        meaning = "room for more sequences or longer contexts"
        traces.append(_memory_trace("free", capacity - needed, capacity, meaning, marker))
    shape = layout(
        215,
        barmode="stack",
        bargap=0.1,
        xaxis=axis("memory of one chip (GB)", range=[0, max(capacity, needed) / 1e9 * 1.02]),
        yaxis=axis("", showticklabels=False, showgrid=False),
        margin={"l": 8, "r": 12, "t": 40, "b": 8},
        showlegend=True,
        legend={"orientation": "h", "y": -0.75, "x": 0, "traceorder": "normal"},
    )
    return figure(traces, shape | _capacity(capacity))


def _capacity(capacity: float) -> Figure:
    """A line and a name where the memory ends."""
    ends = {"x0": capacity / 1e9, "x1": capacity / 1e9, "y0": -0.02, "y1": 1.08, "yref": "paper"}
    line = {"type": "line", "line": {"color": INK, "width": 2}} | ends
    note = {"x": capacity / 1e9, "y": 1.1, "yref": "paper", "yanchor": "bottom", "xanchor": "right", "showarrow": False}
    return {"shapes": [line], "annotations": [note | {"text": f"capacity {show(capacity, 'bytes')}"}]}


def _memory_trace(name: str, size: float, capacity: float, meaning: str, marker: Figure) -> Figure:
    label = text(NAMES.get(name, name))
    note = f"<b>{label}</b>: {show(size, 'bytes')}, {percent(size / capacity)} of the capacity<br>{text(meaning)}"
    return {
        "type": "bar",
        "orientation": "h",
        "name": f"{label} {show(size, 'bytes')}",
        "y": [""],
        "x": [size / 1e9],
        "customdata": [note],
        "hovertemplate": "%{customdata}<extra></extra>",
        "marker": {"line": {"width": 0}} | marker,
    }


def kernel_note(step: StepTime, item: KernelTime) -> str:
    """What hovering over a kernel shows."""
    work = [show(item.flops, "rate").removesuffix("/s")] if item.flops else []
    work += [show(item.bytes, "bytes")] if item.bytes else []
    work += [f"{show(item.link_bytes, 'bytes')} sent"] if item.link_bytes else []
    runs = f" x {item.runs} runs" if item.runs > 1 else ""
    times = f"{show(item.seconds, 'time')}{runs} = {show(item.total, 'time')}"
    lines = [
        f"<b>{text(item.label)}</b> ({text(step.title.lower())})",
        f"{', '.join(work)} a run",
        f"{times}, {percent(item.total / step.span)} of the step",
    ]
    if item.flops:
        rate = item.flops / item.seconds
        peak = f"{percent(rate / step.peak(item))} of the {item.kernel.compute} peak"
        lines.append(f"{number(item.intensity)} FLOP/B, {show(rate, 'rate')}: {peak}")
    if item.bytes:
        moved = item.bytes / item.seconds
        share = percent(moved / single(step.chip.memory.bandwidth))
        lines.append(f"{show(moved, 'bandwidth')}: {share} of the memory bandwidth")
    return "<br>".join([*lines, f"limited by {item.limit}"])
