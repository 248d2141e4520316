"""One point of a result, priced alone: what tables, figures and explanations look at."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from archsim.arrays import Array, array
from archsim.explore.diagnosis import Diagnosis, diagnose
from archsim.explore.evaluate import legal
from archsim.explore.result import METRICS, Result, objective, scalar_scenario
from archsim.explore.run import run
from archsim.explore.scenario import Scenario
from archsim.mapping.split import REASONS, Split


@dataclass(frozen=True, eq=False)
class Proposal:
    """A proposed plan at one point: its degrees by name, whether it is usable or why not, and its metrics."""

    degrees: dict[str, float]
    reason: str
    chosen: bool
    metrics: dict[str, float]


@dataclass(frozen=True, eq=False, repr=False)
class Point:
    """A point (flat index) of a result, and the same point priced alone, with arrays of one element."""

    result: Result
    index: int
    alone: Result

    def __repr__(self) -> str:
        """Short: the arrays of a result would fill pages."""
        return f"Point({self.scenario.name!r}, {self.mode!r}, index={self.index})"

    @property
    def mode(self) -> str:
        """`step` or `steady`."""
        return self.result.mode

    @property
    def scenario(self) -> Scenario:
        """The scenario of the point alone, with its split given."""
        return self.alone.scenario

    @property
    def feasible(self) -> bool:
        """Whether the chosen plan is legal and fits."""
        return bool(self.result.feasible.ravel()[self.index])

    def metric(self, name: str) -> float:
        """A metric of METRICS at the point, also where it is infeasible."""
        return single(METRICS[name][2](self.alone.answer))

    @cached_property
    def diagnosis(self) -> Diagnosis | None:
        """Why the point is infeasible; None where it is not."""
        return diagnose(self.result, self.index)

    @cached_property
    def proposals(self) -> list[Proposal]:
        """Every proposal at this point: the chosen one first, then by the objective, unusable ones last."""
        name, sign = objective(self.result.scenario, self.mode)
        found = _proposals(self.result, self.index, self.alone.scenario.split)
        return sorted(found, key=lambda p: (not p.chosen, bool(p.reason), sign * p.metrics[name]))

    @property
    def undecided(self) -> Scenario:
        """The scenario of the point with every proposed split, along one axis."""
        if any(name.startswith("split.") for name in self.result.axes):
            return self.alone.scenario
        return replace(self.alone.scenario, split=_flat(self.result.scenario.split, self.result.proposals))


def single(value: Array) -> float:
    """The number in an array of one element. Raises ValueError for any other array."""
    if value.size != 1:
        raise ValueError(f"expected one number, got an array of shape {value.shape}")
    return float(value.ravel()[0])


def point_at(result: Result, index: int) -> Point:
    """One point of a result, priced alone."""
    scenario = scalar_scenario(result, index)
    if scenario.batch is None:
        raise ValueError("the point has no batch")
    return Point(result, index, run(scenario, result.mode, {"batch": scenario.batch.ravel()}))


def main_point(result: Result) -> Point:
    """The point a report is about: the best one, or where none is feasible the one that misses by least."""
    best = result.best()
    if best is None:
        memory = result.answer.memory
        best = int(np.argmin(result.pick(memory.fullest)))
    return point_at(result, best)


def columns(result: Result) -> dict[str, Array]:
    """Axes, metrics and degrees (as `split.tensor`, ...) of every point of a result as flat columns."""
    grid = np.meshgrid(*(values.ravel() for values in result.axes.values()), indexing="ij") if result.axes else []
    found = {name: np.asarray(values).ravel() for name, values in zip(result.axes, grid, strict=True)}
    found |= {name: result.metric(name).ravel() for name in METRICS}
    split = result.scenario.split
    return found | {f"split.{name}": result.pick(value).ravel() for name, value in split.named().items()}


def degrees_at(table: Mapping[str, Array], index: int) -> dict[str, float]:
    """The degrees of one row of `columns`."""
    degrees = (name for name in table if name.startswith("split."))
    return {name.removeprefix("split."): float(table[name][index]) for name in degrees}


def _flat(split: Split, count: int) -> Split:
    """Every proposal along one axis."""
    return split.mapped(lambda _, value: array(np.broadcast_to(value.ravel(), (count,))))


def _proposals(result: Result, index: int, chosen: Split) -> list[Proposal]:
    """What was proposed at one point (flat index): every degree, metric and verdict read off the whole answer."""

    def along(values: Array) -> list[float]:
        full = np.broadcast_to(values, np.broadcast_shapes(values.shape, result.raw_shape))
        return [float(row.flat[index]) for row in full]

    answer, split = result.answer, result.scenario.split
    metrics = {name: along(METRICS[name][2](answer)) for name in METRICS}
    broken, fits = along(legal(result.scenario)), along(answer.fits)
    degrees = {name: along(value) for name, value in split.named().items()}
    wanted = {name: single(value) for name, value in chosen.named().items()}
    found = []
    for row in range(len(fits)):
        own = {name: values[row] for name, values in degrees.items()}
        reason = REASONS[int(broken[row])] or ("" if fits[row] > 0 else REASONS[1])
        found.append(Proposal(own, reason, own == wanted, {name: values[row] for name, values in metrics.items()}))
    return found
