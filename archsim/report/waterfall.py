"""Waterfalls: signed bars for the terminal, and the plotly figure for a page."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from archsim.report.figures import INK, MUTED, Figure, axis, figure, layout, text

if TYPE_CHECKING:
    from archsim.report.compare import Waterfall

WIDTH = 16  # characters of the longest bar on either side
LESS, MORE, ENDS = "#007f5c", "#d98200", "#5f6670"
SHORT = 34  # characters of a scenario's name on an axis


def signed(value: Callable[[float], str], amount: float) -> str:
    """An amount with its sign: "+1.20 ms", "-$0.031"."""
    return f"{'+' if amount >= 0 else '-'}{value(abs(amount))}"


def signed_bars(changes: Sequence[float]) -> list[str]:
    """A bar to the right of a common axis for each gain, and to the left for each loss."""
    most = max((abs(change) for change in changes), default=0.0) or 1.0
    lengths = [round(WIDTH * abs(change) / most) for change in changes]
    return [
        f"{'█' * length if change < 0 else '':>{WIDTH}}│{'█' * length if change >= 0 else '':<{WIDTH}}"
        for change, length in zip(changes, lengths, strict=True)
    ]


def waterfall_figure(found: "Waterfall") -> Figure:
    """From the first answer's value to the other's, a step for each part."""
    scale, unit = _scale(found)
    names = [_end(found.first), *(bar.name for bar in found.bars), _end(found.other)]
    values = [found.start, *(bar.change for bar in found.bars), found.end]
    kinds = ["absolute", *("relative" for _ in found.bars), "total"]
    labels = [found.value(found.start), *(signed(found.value, b.change) for b in found.bars), found.value(found.end)]
    meanings = ["", *(bar.meaning for bar in found.bars), ""]
    notes = [
        f"<b>{text(name)}</b> {label}<br>{text(meaning)}"
        for name, label, meaning in zip(names, labels, meanings, strict=True)
    ]
    trace: Figure = {
        "type": "waterfall",
        "x": [text(name) for name in names],
        "y": [value * scale for value in values],
        "measure": kinds,
        "text": labels,
        "textposition": "outside",
        "textfont": {"size": 12, "color": INK},
        "cliponaxis": False,
        "customdata": notes,
        "hovertemplate": "%{customdata}<extra></extra>",
        "connector": {"line": {"color": MUTED, "width": 1, "dash": "dot"}},
        "increasing": {"marker": {"color": MORE}},
        "decreasing": {"marker": {"color": LESS}},
        "totals": {"marker": {"color": ENDS}},
    }
    word = "time of a token" if found.kind == "time" else "cost of a million tokens"
    vertical = axis(f"{word} ({unit})", rangemode="tozero")
    shape = layout(400, xaxis=axis("", showgrid=False, type="category"), yaxis=vertical)
    return figure([trace], shape | {"margin": {"l": 8, "r": 12, "t": 30, "b": 8}})


def _end(name: str) -> str:
    return name if len(name) <= SHORT else f"{name[: SHORT - 1]}…"


def _scale(found: "Waterfall") -> tuple[float, str]:
    """What values are multiplied by, and the unit they then have."""
    if found.kind == "cost":
        return 1.0, "USD"
    most = max(found.start, found.end)
    return next(((scale, unit) for unit, scale in (("s", 1.0), ("ms", 1e3)) if most * scale >= 1.0), (1e6, "us"))
