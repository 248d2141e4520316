"""The front of a sweep over every proposed plan, not only the chosen ones, and more points where an SLO is just kept.

The front of many points is that of the fronts of their parts, so that a part's other points can be forgotten.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from archsim.arrays import Array
from archsim.explore.axes import fields_of
from archsim.explore.evaluate import legal, most_clients
from archsim.explore.pareto import Objective, front
from archsim.explore.result import METRICS, PRICED, Result
from archsim.explore.rows import Column, scenario_of
from archsim.explore.run import clients, run, within_slo
from archsim.explore.scenario import Scenario, with_fields
from archsim.explore.sweep import Sweep
from archsim.mapping.split import REASONS

MOST = 100_000  # plans x points priced at once
DOTS = 20_000  # points whose chosen plan is kept beside the front
LINES = 200_000  # points up to which neighbours are compared for the SLO
ROUNDS = 8  # of halving the distance to where an SLO is just kept
MOST_NEW = 20_000  # points added so
NEAR = 1e-3  # of a value, within which its neighbour is near enough
SHOWN = ("interactivity", "throughput_per_chip", "cost_per_token", "tpot", "ttft")


@dataclass(frozen=True, eq=False)
class Front:
    """Points of the front and others, as columns of one length.

    `on` marks the front; all others are what the objective of the scenario chooses somewhere. `looked` counts the
    plans priced over all points, `points` these, `refined` those of them that were `added` about an SLO.
    """

    columns: Mapping[str, Column]
    on: npt.NDArray[np.bool_]
    axes: Sequence[str]
    units: Mapping[str, str]
    looked: int
    points: int
    feasible: int
    refined: int
    reasons: Mapping[str, int]
    promised: bool


@dataclass(frozen=True, eq=False)
class _Place:
    """A structure of a sweep: its scenario, and which axes are numbers that arrays carry."""

    scenario: Scenario
    names: Sequence[str]


@dataclass
class _Gathered:
    """What is kept of the parts as they come in; every `stride`-th point stays beside the front."""

    mode: str
    wanted: Sequence[Objective]
    stride: int
    best: list[dict[str, Column]] = field(default_factory=list)
    dots: list[dict[str, Column]] = field(default_factory=list)
    kept: list[dict[str, Column]] = field(default_factory=list)
    looked: int = 0
    points: int = 0
    feasible: int = 0
    reasons: dict[str, int] = field(default_factory=dict)

    def price(self, place: _Place, number: int, rows: Mapping[str, Column], added: bool = False) -> None:
        """Prices points of a structure with every plan, a part at a time; those of the sweep, or `added` ones."""
        fields = {name: np.asarray(rows[name], dtype=np.float64) for name in place.names if name in rows}
        count = len(next(iter(rows.values())))
        batches = None
        if self.mode == "steady" and "batch" not in rows:
            batches = _clients(place.scenario, fields)
        each = 1 if batches is None else batches.size
        step = max(MOST // (place.scenario.split.chips.size * each), 1)
        for start in range(0, count, step):
            cut = {name: np.repeat(column[start : start + step], each) for name, column in rows.items()}
            part = {name: np.repeat(values[start : start + step], each) for name, values in fields.items()}
            if batches is not None:
                cut["batch"] = part["batch"] = np.tile(batches, min(step, count - start))
            elif "batch" in rows:
                part["batch"] = np.asarray(cut["batch"], dtype=np.float64)
            self._take(run(place.scenario, self.mode, part, zipped=True), cut, number, added)

    def _take(self, result: Result, rows: Mapping[str, Column], number: int, added: bool) -> None:
        """Keeps the front of a part, and some of its other points."""
        shape, count = result.raw_shape, result.feasible.size
        scenario, answer = result.scenario, result.answer

        def flat(values: Column) -> Column:
            return np.broadcast_to(values, shape).reshape(shape[0], count)

        usable = flat(np.asarray((legal(scenario) == 0) & (answer.fits > 0)))
        kept: Column = flat(within_slo(scenario, answer)) & usable
        known = METRICS | PRICED
        values = {name: np.where(usable, flat(known[name][2](answer)), np.nan) for name in metrics_for(self.wanted)}
        values |= {f"split.{name}": flat(value) for name, value in scenario.split.named().items()}
        values |= {"meets_slo": np.asarray(kept), "feasible": usable}

        def at(plan: Column, point: Column) -> dict[str, Column]:
            columns = {name: column[point] for name, column in rows.items()}
            columns |= {name: column[plan, point] for name, column in values.items()}
            return columns | {"added": np.full(len(point), added)}

        on = front({item.name: values[item.name].ravel() for item in self.wanted}, self.wanted)
        self.best.append(at(*np.unravel_index(np.flatnonzero(on), (shape[0], count))))
        some = np.flatnonzero(result.feasible.ravel())[:: self.stride]
        self.dots.append(at(result.choice.ravel()[some], some))
        if self.points <= LINES:
            self.kept.append({**rows, "kept": np.asarray(kept.any(axis=0)), "piece": np.full(count, number)})
        self._count(result, usable.size)

    def _count(self, result: Result, looked: int) -> None:
        self.looked += looked
        self.points += result.feasible.size
        self.feasible += int(result.feasible.sum())
        for reason, many in zip(*np.unique(result.reason[~result.feasible], return_counts=True), strict=True):
            name = REASONS[int(reason)]
            self.reasons[name] = self.reasons.get(name, 0) + int(many)


def metrics_for(wanted: Sequence[Objective]) -> list[str]:
    """The objectives and what is shown beside them."""
    return list(dict.fromkeys([*(item.name for item in wanted), *SHOWN]))


def front_of(sweep: Sweep, wanted: Sequence[Objective], refine: bool = True) -> Front:
    """The front of a sweep of steps or steady answers over all proposed plans.

    With `refine`, values of number axes are added between neighbours of which only one keeps the SLO, until they are
    a thousandth apart, or whole numbers adjoin. Raises ValueError for a sweep that serves requests, CatalogError for
    a structure that cannot be built.
    """
    if sweep.mode == "serve":
        raise ValueError("a front is of steps or steady answers; --serve gives percentiles of requests")
    found = _Gathered(sweep.mode, wanted, max(sweep.rows // DOTS, 1))
    places: list[_Place] = []
    for number in range(sweep.chunks):
        chunk = sweep.chunk(number)
        columns, start = sweep.places(chunk), 0
        for piece in sweep.task(chunk).pieces:
            rows = {name: column[start : start + piece.rows] for name, column in columns.items()}
            start += piece.rows
            scenario, _ = scenario_of(piece.origin, piece.changes)
            places.append(_Place(scenario, [name for group in piece.groups for name in group]))
            found.price(places[-1], len(places) - 1, rows or {"": np.zeros(1)})
    promised = any(_promised(place.scenario) for place in places)
    refined = _refine(found, places) if refine and promised and found.points <= LINES else 0
    return _front(found, sweep, refined, promised)


def _promised(scenario: Scenario) -> bool:
    return any(value is not None for name, value in scenario.slo if name != "share")


def _clients(scenario: Scenario, fields: Mapping[str, Array]) -> Array:
    """Numbers of clients to try at every point."""
    columns = {name: values.reshape(-1, 1) for name, values in fields.items()}
    return clients(most_clients(with_fields(scenario, columns)))


def _joined(parts: Sequence[Mapping[str, Column]]) -> dict[str, Column]:
    """Columns of parts one after another; one that a part lacks is NaN there."""
    names = dict.fromkeys(name for part in parts for name in part)
    sizes = [len(next(iter(part.values()))) for part in parts]
    columns = {
        name: [part.get(name, np.full(size, np.nan)) for part, size in zip(parts, sizes, strict=True)] for name in names
    }
    return {name: np.concatenate(values) for name, values in columns.items()}


# More points where an SLO is just kept


def _refine(found: _Gathered, places: Sequence[_Place]) -> int:
    """Prices points between neighbours of which only one keeps the SLO; says how many they were."""
    before = found.points
    for _ in range(ROUNDS):
        rows, now = _joined(found.kept), found.points
        found.kept = [rows]
        for name, whole in _number_axes(rows, places):
            points = _between(rows, name, whole)
            for number in np.unique(points["piece"]).tolist():
                own = points["piece"] == number
                at = {key: column[own] for key, column in points.items() if key not in ("piece", "kept")}
                found.price(places[number], number, at, True)
        if found.points == now or found.points - before > MOST_NEW:
            break
    return found.points - before


def _number_axes(rows: Mapping[str, Column], places: Sequence[_Place]) -> list[tuple[str, bool]]:
    """Axes of numbers with several values, and whether they are whole."""
    known = fields_of(places[0].scenario)
    names = dict.fromkeys([name for place in places for name in place.names if name in rows] + ["batch"])
    return [
        (name, name in known and known[name].whole)
        for name in names
        if name in rows and rows[name].dtype == np.float64 and np.unique(rows[name]).size > 1
    ]


def _between(rows: Mapping[str, Column], name: str, whole: bool) -> dict[str, Column]:
    """Points in the middle of neighbours along an axis, all else equal, of which only one keeps the SLO."""
    others = [column for key, column in rows.items() if key not in (name, "kept")]
    codes = np.stack([np.unique(column, return_inverse=True)[1].ravel() for column in others])
    line = np.unique(codes, axis=1, return_inverse=True)[1].ravel()
    order = np.lexsort((rows[name], line))
    low, high = order[:-1], order[1:]
    kept, values = rows["kept"], rows[name]
    wide = values[high] - values[low] > (1.0 if whole else NEAR * np.abs(values[high]))
    low, high = (side[(line[low] == line[high]) & (kept[low] != kept[high]) & wide] for side in (low, high))
    middle = (values[low] + values[high]) / 2.0
    return {key: column[low] for key, column in rows.items()} | {name: np.round(middle) if whole else middle}


def _front(found: _Gathered, sweep: Sweep, refined: int, promised: bool) -> Front:
    """The front of the fronts of all parts, and the other points."""
    best, dots = _joined(found.best), _joined(found.dots)
    on = front(best, found.wanted)
    both = {item.name: np.concatenate([best[item.name][on], dots[item.name]]) for item in found.wanted}
    beaten = ~front(both, found.wanted)[int(on.sum()) :]
    best = {name: column[on] for name, column in best.items()}
    dots = {name: column[beaten] for name, column in dots.items()}
    columns = _joined([best, dots])
    mask = np.arange(len(columns["feasible"])) < int(on.sum())
    axes = [name for name in (*sweep.axes, "batch") if name in columns]
    units = {name: sweep.units.get(name, "") for name in axes}
    columns |= {name: columns[name].astype(np.bool_) for name in ("meets_slo", "feasible", "added")}
    axes = list(dict.fromkeys(axes))
    counts = found.looked, found.points, found.feasible, refined
    return Front(columns, mask, axes, units, *counts, found.reasons, promised)
