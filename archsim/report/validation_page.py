"""How far off the models are, as one HTML page: predicted against measured, residuals by size. Works offline."""

from collections.abc import Sequence

import numpy as np

from archsim import __version__
from archsim.arrays import Array
from archsim.report.figures import Figure, axis, figure, layout, text
from archsim.report.page import Figures, environment
from archsim.report.validation import error_table, gate_table, left_table, worst_table
from archsim.validation.tables import Points, Section

COLOURS = ("#0072B2", "#D98200", "#007F5C", "#A5548A", "#5F6670", "#33B08D", "#F5C469", "#3A93C8")
WORST = 3.0  # ratios drawn at the most


def to_html(sections: Sequence[Section], command: str) -> str:
    """A validation as one self-contained HTML page. `command` is how to make it again."""
    from markupsafe import Markup
    from plotly.offline import get_plotlyjs

    figures = Figures()
    chapters = [_chapter(section, figures) for section in sections if section.rows]
    page = environment().get_template("validation.html")
    return page.render(
        chapters=chapters,
        command=command,
        version=__version__,
        figures=figures.as_json(),
        plotly=Markup(get_plotlyjs()),
    )


def _chapter(section: Section, figures: Figures) -> dict[str, object]:
    families: dict[str, list[Points]] = {}
    for points in section.points:
        families.setdefault(points.family, []).append(points)
    plots = [(family, figures.add(against(group)), figures.add(residuals(group))) for family, group in families.items()]
    tables = [
        table
        for table in (gate_table(section.gates), worst_table(section.rows), left_table(section.left))
        if table.rows
    ]
    return {
        "title": section.title,
        "text": section.text,
        "tables": [table for table in tables if table.rows],
        "errors": error_table(section.rows),
        "plots": plots,
        "notes": section.notes,
    }


def against(group: Sequence[Points]) -> Figure:
    """Predicted against measured time, both logarithmic, with the line on which they agree."""
    ends = [min(float(p.measured.min()) for p in group) * 1e6, max(float(p.measured.max()) for p in group) * 1e6]
    line = {"type": "scatter", "mode": "lines", "x": ends, "y": ends, "line": {"color": "#9AA3AD", "width": 1}}
    traces = [line | {"hoverinfo": "skip", "showlegend": False}]
    traces += [_trace(points, points.predicted * 1e6, index) for index, points in enumerate(group)]
    shape = layout(
        420,
        xaxis=axis("measured (us)", type="log"),
        yaxis=axis("predicted (us)", type="log"),
        showlegend=len(group) <= len(COLOURS),
    )
    return figure(traces, shape)


def residuals(group: Sequence[Points]) -> Figure:
    """Predicted over measured against measured time; ratios beyond WORST are drawn there."""
    traces = []
    for index, points in enumerate(group):
        ratio = np.clip(points.predicted / points.measured, 1.0 / WORST, WORST)
        traces.append(_trace(points, ratio, index))
    shape = layout(
        300,
        xaxis=axis("measured (us)", type="log"),
        yaxis=axis("predicted / measured", type="log", tickvals=[1 / 3, 0.5, 0.8, 1, 1.25, 2, 3]),
    )
    shape["yaxis"]["ticktext"] = ["1/3", "1/2", "0.8", "1", "1.25", "2", "3"]
    return figure(traces, shape)


def _trace(points: Points, y: Array, index: int) -> Figure:
    return {
        "type": "scatter",
        "mode": "markers",
        "name": text(points.label),
        "x": (points.measured * 1e6).tolist(),
        "y": y.tolist(),
        "text": [text(f"{points.label}: {shape}") for shape in points.shapes],
        "hovertemplate": "%{text}<br>%{x:.4g}, %{y:.4g}<extra></extra>",
        "marker": {"size": 4, "opacity": 0.55, "color": COLOURS[index % len(COLOURS)]},
    }
