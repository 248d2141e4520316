"""The answer of `archsim pareto`: sentences, a table, a page and data."""

import csv
import io
import json
from collections.abc import Sequence

import numpy as np

from archsim import __version__
from archsim.explore.fronts import DOTS, SHOWN, Front
from archsim.explore.pareto import Objective
from archsim.report.charts import Points
from archsim.report.document import clean
from archsim.report.exploring import front_chapter, front_table, maps, page, parallel_chapter, points_of, with_plans
from archsim.report.scales import label_of
from archsim.report.tables import Table
from archsim.report.words import counted


def points_of_front(found: Front) -> Points:
    """The points as figures take them, with their plans in words."""
    return points_of(with_plans(found.columns, found.axes), found.axes, found.units)


def lead(found: Front, wanted: Sequence[Objective]) -> list[str]:
    """How many points are on the front, of how many."""
    goals = ", ".join(f"{'least' if item.sign > 0 else 'most'} {label_of(item.name)}" for item in wanted)
    reasons = ", ".join(
        f"{name} ({count:,})" for name, count in sorted(found.reasons.items(), key=lambda item: -item[1])
    )
    missing = found.points - found.feasible
    fits = f"; {missing:,} do not fit: {reasons}" if missing else ""
    more = f", {found.refined:,} of them added where the SLO is just kept" if found.refined else ""
    priced = f"{found.points:,} points{more}; {found.looked:,} plans priced{fits}."
    if not found.feasible:
        return [f"No point fits, so there is no front. {priced}"]
    many = int(found.on.sum())
    kept = int((found.on & found.columns["meets_slo"]).sum())
    slo = f", of which {kept:,} {'keeps' if kept == 1 else 'keep'} the SLO" if found.promised else ""
    return [f"{counted(many, 'point')} on the front of {goals}{slo}.", priced[0].upper() + priced[1:]]


def table(found: Front, points: Points, wanted: Sequence[Objective]) -> Table:
    """The points of the front."""
    return front_table(points, wanted, found.on, best(found, wanted), 20, _promise(found))


def _promise(found: Front) -> list[str]:
    return ["meets_slo"] if found.promised else []


def best(found: Front, wanted: Sequence[Objective]) -> int | None:
    """The point of the front that is best in the first objective and keeps the SLO."""
    kept = found.on & found.columns["meets_slo"]
    if not found.promised or not kept.any():
        return None
    return int(np.argmin(np.where(kept, wanted[0].sign * found.columns[wanted[0].name], np.inf)))


def to_html(found: Front, points: Points, wanted: Sequence[Objective], title: str, command: str) -> str:
    """The answer as one page."""
    chosen, usable = best(found, wanted), np.asarray(found.columns["feasible"], dtype=np.bool_)
    names = list(dict.fromkeys([*points.axes, *(item.name for item in wanted)]))
    chapters = [
        front_chapter(points, wanted, found.on, chosen, _promise(found), _ring(wanted)),
        *(maps(_swept(found, points), wanted[0]) if found.points - found.refined <= DOTS else ()),
        *parallel_chapter(points, names, wanted[0].name, usable),
    ]
    return page("pareto", f"Front: {title}", "What no other point beats", lead(found, wanted), chapters, command)


def _ring(wanted: Sequence[Objective]) -> str:
    goal = wanted[0]
    return f"{'least' if goal.sign > 0 else 'most'} {label_of(goal.name)} within the SLO"


def _swept(found: Front, points: Points) -> Points:
    """The points of the sweep itself, without those added about an SLO."""
    own = ~found.columns["added"]
    return points_of({name: column[own] for name, column in points.columns.items()}, found.axes, found.units)


def _columns(points: Points, found: Front, wanted: Sequence[Objective]) -> list[str]:
    names = [*found.axes, *(item.name for item in wanted), *SHOWN, "plan", "meets_slo"]
    return [name for name in dict.fromkeys(names) if name in points.columns]


def _order(found: Front, wanted: Sequence[Objective]) -> list[int]:
    """Points of the front, the best in the first objective first."""
    on = np.flatnonzero(found.on)
    return [int(i) for i in on[np.argsort(found.columns[wanted[0].name][on] * wanted[0].sign, kind="stable")]]


def to_csv(points: Points, found: Front, wanted: Sequence[Objective]) -> str:
    """The front as CSV, units in brackets, in SI."""
    names, text = _columns(points, found, wanted), io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([f"{name} [{points.units[name]}]" if points.units.get(name) else name for name in names])
    for index in _order(found, wanted):
        cells = [points.columns[name][index] for name in names]
        writer.writerow(map(_cell, cells))
    return text.getvalue()


def _cell(value: object) -> object:
    """A value as CSV has it: empty where it is undefined."""
    if isinstance(value, bool | np.bool_):
        return "true" if value else "false"
    if isinstance(value, float):
        return "" if value != value else repr(float(value)).removesuffix(".0")
    return value


def to_json(points: Points, found: Front, wanted: Sequence[Objective]) -> str:
    """The front as data, in SI."""
    names = _columns(points, found, wanted)
    data = {
        "version": __version__,
        "objectives": [{"name": item.name, "direction": item.direction} for item in wanted],
        "units": {name: points.units[name] for name in names if points.units.get(name)},
        "points": found.points,
        "refined": found.refined,
        "plans": found.looked,
        "feasible": found.feasible,
        "front": [{name: points.columns[name][i].item() for name in names} for i in _order(found, wanted)],
    }
    return json.dumps(clean(data), sort_keys=True, indent=1, allow_nan=False) + "\n"
