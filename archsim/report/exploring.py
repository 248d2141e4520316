"""Pages of explorations: a table of points, what an answer hangs on, where designs change places."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from archsim import __version__
from archsim.explore.pareto import Objective, front
from archsim.report import charts
from archsim.report.charts import Points
from archsim.report.figures import Figure
from archsim.report.heatmap import heat, heat_of
from archsim.report.lines import MOST_LINES, parallel
from archsim.report.page import Figures, environment
from archsim.report.scales import headed, label_of, scale_of, titled, unit_of
from archsim.report.tables import Table
from archsim.report.words import counted, split_label

ROWS = 30  # of a table of a front
TOLD = ("tpot", "ttft", "ttft_p90", "tpot_p90", "goodput", "throughput_per_chip", "plan", "meets_slo")
DEFAULT = (Objective("throughput_per_chip", -1.0), Objective("interactivity", -1.0))


@dataclass(frozen=True)
class Chapter:
    """A chapter of a page: figures with their captions, then tables."""

    title: str
    text: str = ""
    plots: tuple[tuple[Figure, str], ...] = ()
    tables: tuple[Table, ...] = ()


def page(kicker: str, title: str, question: str, lead: Sequence[str], chapters: Sequence[Chapter], command: str) -> str:
    """One self-contained HTML page; `command` is how to make it again."""
    from markupsafe import Markup
    from plotly.offline import get_plotlyjs

    figures = Figures()
    placed = [
        {
            "title": chapter.title,
            "text": chapter.text,
            "plots": [(figures.add(figure), caption) for figure, caption in chapter.plots],
            "tables": chapter.tables,
        }
        for chapter in chapters
    ]
    return environment().get_template("exploring.html").render(
        kicker=kicker,
        title=title,
        question=question,
        lead=lead,
        chapters=placed,
        command=command,
        version=__version__,
        figures=figures.as_json(),
        plotly=Markup(get_plotlyjs()),
    )  # fmt: skip


def to_html(
    columns: Mapping[str, "npt.NDArray[np.generic]"],
    axes: Sequence[str],
    objective: Objective,
    command: str,
    title: str = "Sweep",
    units: Mapping[str, str] | None = None,
    remark: str = "",
) -> str:
    """A sweep as one page: columns of one length, among them `feasible`, and the names of those that are axes.

    `objective` is the metric that heat maps show the best of; `units` are SI units of columns (metrics know theirs);
    `remark` is a sentence about the rows.
    """
    points = points_of(with_plans(columns, axes), axes, units or {})
    fits = np.asarray(columns["feasible"], dtype=np.bool_)
    return page(
        "sweep",
        title,
        f"{points.size:,} points",
        [_counted(points, fits), *_best_lines(points, objective, fits), *([remark] if remark else [])],
        [
            *maps(points, objective),
            *_along(points, objective),
            *_fronts(points, fits),
            *_lines(points, objective, fits),
            *_table(points, objective, fits),
        ],
        command,
    )


def points_of(
    columns: Mapping[str, "npt.NDArray[np.generic]"], axes: Sequence[str], units: Mapping[str, str]
) -> Points:
    """Columns as figures take them; numbers of infeasible rows are left out."""
    known = {name: unit_of(name) for name in columns} | dict(units)
    moving = [name for name in axes if len(np.unique(columns[name])) > 1]
    return Points(columns, moving, known)


def with_plans(
    columns: Mapping[str, "npt.NDArray[np.generic]"], axes: Sequence[str]
) -> "dict[str, npt.NDArray[np.generic]]":
    """Columns with the degrees of splits, as far as they are no axes, as one column of words, `plan`."""
    splits = [name for name in columns if name.startswith("split.")]
    others = {name: column for name, column in columns.items() if name not in splits or name in axes}
    if not splits:
        return others
    degrees = [name.removeprefix("split.") for name in splits]
    rows = zip(*(columns[name].tolist() for name in splits), strict=True)
    # a structure with one pool lacks the degrees of those with two, and a row where nothing fits has none
    named = ({name: value for name, value in zip(degrees, row, strict=True) if value == value} for row in rows)
    return others | {"plan": np.array([split_label(item) for item in named])}


def _counted(points: Points, fits: "npt.NDArray[np.bool_]") -> str:
    """How many points fit, and why the others do not."""
    missing = points.size - int(fits.sum())
    if not missing:
        return "The point is feasible." if points.size == 1 else f"All {points.size:,} points are feasible."
    text = f"{points.size - missing:,} of {points.size:,} points are feasible"
    if "reason" not in points.columns:
        return f"{text}."
    reasons, counts = np.unique(points.columns["reason"][~fits].astype(str), return_counts=True)
    order = np.argsort(-counts)[:3]
    return f"{text}; the others are not: " + ", ".join(f"{reasons[i]} ({counts[i]:,})" for i in order) + "."


def best_of(points: Points, objective: Objective, usable: "npt.NDArray[np.bool_]") -> int | None:
    """The best usable point by an objective; within the SLO where any point is."""
    if objective.name not in points.columns:
        return None
    values = points.numbers(objective.name) * objective.sign
    kept = usable & np.asarray(points.columns.get("meets_slo", usable), dtype=np.bool_)
    among = np.where(kept if kept.any() else usable, values, np.inf)
    among = np.where(np.isnan(among), np.inf, among)
    return int(np.argmin(among)) if np.isfinite(among).any() else None


def _best_lines(points: Points, objective: Objective, fits: "npt.NDArray[np.bool_]") -> list[str]:
    best = best_of(points, objective, fits)
    if best is None:
        return []
    where = ", ".join(f"{label_of(name)} {points.told(name, best)}" for name in points.axes)
    kept = np.asarray(points.columns.get("meets_slo", fits), dtype=np.bool_)
    within = " within the SLO" if kept.any() and not kept[fits].all() else ""
    return [f"The best {label_of(objective.name)}{within} is {points.told(objective.name, best)}, at {where}."]


def maps(points: Points, objective: Objective) -> list[Chapter]:
    """A heat map over the first two axes with several values each."""
    wide = [name for name in points.axes if len(np.unique(points.columns[name])) > 2]
    if len(wide) < 2 or objective.name not in points.columns:
        return []
    sizes = sorted(wide, key=lambda name: -len(np.unique(points.columns[name])))[:2]
    x, y = (name for name in wide if name in sizes)
    found = heat_of(points, x, y, objective.name, objective.sign)
    drawn = heat(found, objective.name, points.units.get(objective.name, ""))
    others = [label_of(name) for name in points.axes if name not in (x, y)]
    rest = f", at the best of {', '.join(others)}" if others else ""
    caption = f"{headed(label_of(objective.name))} over {label_of(x)} and {label_of(y)}{rest}. Grey: does not fit."
    return [Chapter("Map", "", ((drawn, caption),))]


def _along(points: Points, objective: Objective) -> list[Chapter]:
    """The objective along the axis, where there is one, of numbers."""
    if len(points.axes) != 1 or points.columns[points.axes[0]].dtype.kind in "USO":
        return []
    if objective.name not in points.columns:
        return []
    name = points.axes[0]
    x, y = points.numbers(name), points.numbers(objective.name)
    across, up = scale_of(x, points.units.get(name, "")), scale_of(y, points.units.get(objective.name, ""))
    curve = charts.Curve(label_of(objective.name), y * up.factor, [points.note(i, ()) for i in range(points.size)])
    drawn = charts.curves(x * across.factor, [curve], (titled(name, across), titled(objective.name, up)))
    caption = f"{headed(label_of(objective.name))} along {label_of(name)}. Hover over a point for its configuration."
    return [Chapter("Along the axis", "", ((drawn, caption),))]


def _table(points: Points, objective: Objective, fits: "npt.NDArray[np.bool_]") -> list[Chapter]:
    """The best points in a table, unless the table of a front has them."""
    if objective.name not in points.columns or not fits.any():
        return []
    if all(item.name in points.columns for item in DEFAULT):
        return []
    values = np.where(fits, points.numbers(objective.name) * objective.sign, np.inf)
    order = np.argsort(values, kind="stable")[: min(ROWS, int(fits.sum()))]
    names = [name for name in dict.fromkeys((*points.axes, objective.name, *TOLD)) if name in points.columns]
    rows = tuple(tuple(points.told(name, int(index)) for name in names) for index in order)
    words = frozenset(place for place, name in enumerate(names) if points.columns[name].dtype.kind in "USOb")
    title = f"The best {len(rows)} points" if len(rows) < int(fits.sum()) else "The points, the best first"
    return [Chapter("Points", "", (), (Table(title, tuple(map(label_of, names)), rows, texts=0, words=words),))]


def _fronts(points: Points, fits: "npt.NDArray[np.bool_]") -> list[Chapter]:
    if any(objective.name not in points.columns for objective in DEFAULT):
        return []
    usable = {item.name: np.where(fits, points.numbers(item.name), np.nan) for item in DEFAULT}
    return [front_chapter(points, DEFAULT, front(usable, DEFAULT), None)]


def front_chapter(
    points: Points,
    wanted: Sequence[Objective],
    on: "npt.NDArray[np.bool_]",
    best: int | None,
    more: Sequence[str] = (),
    ring: str = "the best by the objective",
) -> Chapter:
    """The front of the first two objectives, and of each further one against the first; `more` columns in its table."""
    first, *others = wanted
    pairs = [(other, first) for other in others] or [(first, first)]
    group = _group(points, on)
    plots = tuple(
        (charts.pareto(points, x.name, y.name, on, best, group, ring), _front_caption(x, y, len(wanted)))
        for x, y in pairs
    )
    return Chapter("Front", "", plots, (front_table(points, wanted, on, best, more=more),))


def _front_caption(x: Objective, y: Objective, count: int) -> str:
    better = " and ".join(f"{'less' if item.sign > 0 else 'more'} {label_of(item.name)}" for item in (y, x))
    more = "" if count <= 2 else f" The front is that of all {count} objectives, of which two are drawn."
    return f"Better is {better}. Hover over a point for its configuration; grey points are beaten by others.{more}"


def _group(points: Points, on: "npt.NDArray[np.bool_]") -> str | None:
    """What the points of a front are coloured by: scenarios, else an axis of words, else plans."""
    words = [name for name in points.axes if points.columns[name].dtype.kind in "USO"]
    for name in (*words, *(["plan"] if "plan" in points.columns else [])):
        if len(np.unique(points.columns[name][on].astype(str))) > 1:
            return name
    return None


def front_table(
    points: Points,
    wanted: Sequence[Objective],
    on: "npt.NDArray[np.bool_]",
    best: int | None,
    most: int = ROWS,
    more: Sequence[str] = (),
) -> Table:
    """The points of a front in order of the first objective, at most so many, evenly taken; the best marked."""
    indices = np.flatnonzero(on)
    order = indices[np.argsort(points.numbers(wanted[0].name)[indices] * wanted[0].sign, kind="stable")]
    kept = {*charts.evenly(order, most).tolist(), *([] if best is None else [best])}
    chosen = [int(index) for index in order if int(index) in kept]
    names = [item.name for item in wanted]
    axes = [name for name in points.axes if name not in names]
    extra = [name for name in ("plan", *more) if name in points.columns and name not in axes]
    shown = (*axes, *names, *extra)
    rows = tuple(tuple(points.told(name, index) for name in shown) for index in chosen)
    words = frozenset(place for place, name in enumerate(shown) if points.columns[name].dtype.kind in "USOb")
    marked = frozenset([] if best is None else [chosen.index(best)])
    part = f", {len(chosen)} shown" if len(chosen) < order.size else ""
    title = f"{counted(order.size, 'point')} on the front{part}"
    return Table(title, tuple(map(label_of, shown)), rows, texts=0, marked=marked, words=words)


def _lines(points: Points, objective: Objective, fits: "npt.NDArray[np.bool_]") -> list[Chapter]:
    """Parallel coordinates of the axes and the main metrics."""
    names = [name for name in (objective.name, "interactivity", "throughput_per_chip") if name in points.columns]
    return parallel_chapter(points, list(dict.fromkeys([*points.axes, *names])), objective.name, fits)


def parallel_chapter(
    points: Points, names: Sequence[str], color: str, usable: "npt.NDArray[np.bool_]"
) -> list[Chapter]:
    """Parallel coordinates of several columns; none for fewer than three, or without points."""
    defined = usable & np.isfinite(points.numbers(color)) if color in points.columns else usable & False
    indices = np.flatnonzero(defined)
    if len(names) < 3 or indices.size < 2:
        return []
    drawn = parallel(points, names, color, indices)
    shown = min(indices.size, MOST_LINES)
    part = "" if shown == indices.size else f"; {shown:,} of {indices.size:,} points are drawn"
    caption = f"One line a point, from dark to light by {label_of(color)}{part}. Hover over a line for its values."
    return [Chapter("All axes together", "", ((drawn, caption),))]
