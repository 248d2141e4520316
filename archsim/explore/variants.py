"""Many variants of a scenario at once: each with some numbers changed, and the best plan found for it anew.

Sensitivities and crossings ask how the *best* answer moves with a number. A step answer chooses among the proposed
splits and the batches that the scenario lists; a steady answer among splits and every number of clients.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from archsim.arrays import Array
from archsim.explore.evaluate import most_clients
from archsim.explore.result import Result, objective, scalar_scenario
from archsim.explore.run import run
from archsim.explore.scenario import Scenario, with_fields

MOST = 40_000  # proposals x points priced at once: a thousand arrays of so many numbers, of two pools, fit in memory
COARSE = 24  # numbers of clients of the first look, evenly over their logarithm
ABOUT = 13  # and more of them about the best of the first variant, within a quarter
FINE = 9  # on each side of the best two, in each look between their neighbours
MISSED = 1e9  # added to what is best by where the SLO is missed


@dataclass(frozen=True, eq=False)
class Answers:
    """What each of V variants answers at its best plan: metrics by name, NaN where nothing fits.

    `kept` says where the SLO holds (everywhere where there is none), `batch` the sequences or clients, `plan` the
    degrees of the split, `reason` why nothing fits, empty where something does. `anew`: there was a choice.
    """

    metrics: Mapping[str, Array]
    kept: npt.NDArray[np.bool_]
    batch: Array
    plan: Mapping[str, Array]
    reason: tuple[str, ...]
    anew: bool = True

    @property
    def feasible(self) -> npt.NDArray[np.bool_]:
        """Where a plan fits."""
        return np.array([not text for text in self.reason], dtype=np.bool_)

    def usable(self, name: str) -> Array:
        """A metric, NaN where nothing fits or the SLO is missed."""
        return np.where(self.kept & self.feasible, self.metrics[name], np.nan)


def answers(scenario: Scenario, mode: str, fields: Mapping[str, Array], metrics: Sequence[str] = ()) -> Answers:
    """The best answer of every variant: `fields` are numbers of the scenario, each with V values or one.

    Among the scenario's `batch` for a step, and among all numbers of clients for a steady answer unless `fields` has
    `batch`. Raises KeyError for an unknown field or metric, ValueError where the scenario lacks what the mode needs.
    """
    count = max((value.size for value in fields.values()), default=1)
    known = {name: np.broadcast_to(value.ravel(), (count,)) for name, value in fields.items()}
    if mode == "steady" and "batch" in known:
        return _priced(scenario, mode, known, metrics, count)
    if mode == "steady":
        return _searched(scenario, known, metrics, count)
    context = known.get("context", scenario.context)
    if context is None or ("batch" not in known and scenario.batch is None):
        raise ValueError("the step answer needs `batch` and `context`")
    if "context" not in known and context.size > 1:
        raise ValueError(f"the scenario lists {context.size} contexts; ask about one of them")
    if "batch" in known or scenario.batch is None:
        return _priced(scenario, mode, known, metrics, count)
    return _priced(scenario, mode, known | {"batch": np.tile(scenario.batch.ravel(), count)}, metrics, count)


def fixed(scenario: Scenario, mode: str) -> Scenario | None:
    """The scenario with its best plan and batch given; None where nothing fits."""
    best = answers(scenario, mode, {})
    if not best.feasible.all():
        return None
    return scalar_scenario(run(scenario, mode, {"batch": best.batch}), 0)


def _searched(scenario: Scenario, known: Mapping[str, Array], metrics: Sequence[str], count: int) -> Answers:
    """Steady answers at the best number of clients: a coarse look, then closer ones about the best of each variant."""
    columns = {name: value.reshape(-1, 1) for name, value in known.items()}  # beside the proposals, which are rows
    most = float(max(most_clients(with_fields(scenario, columns)), 1))
    grid = np.unique(np.round(np.geomspace(1.0, most, COARSE)))
    if count > 1:  # variants are mostly alike
        first = _searched(scenario, {name: value[:1] for name, value in known.items()}, (), 1).batch[0]
        about = np.round(first * np.geomspace(0.75, 4.0 / 3.0, ABOUT)).clip(1.0, most)
        grid = np.unique(np.concatenate([grid, about]))
    batches = np.broadcast_to(grid, (count, grid.size))
    while True:
        scores = _scores(scenario, {**known, "batch": batches.ravel()}, count)
        best = _least(scores, scores.argmin(axis=1))
        other = _least(scores, _second(scores, batches, best))
        ends = [_neighbours(batches, index) for index in (best, other)]
        if max(float((high - low).max()) for low, _, high in ends) <= 2.0:
            found = np.take_along_axis(batches, best[:, None], axis=1)
            return _priced(scenario, "steady", {**known, "batch": found.ravel()}, metrics, count)
        batches = np.sort(np.concatenate([_between(*end) for end in ends], axis=1), axis=1)


Index = npt.NDArray[np.intp]


def _least(scores: Array, index: Index) -> Index:
    """The index itself; of rows that have nothing usable, the first."""
    return np.where(np.isfinite(np.take_along_axis(scores, index[:, None], axis=1)[:, 0]), index, 0).astype(np.intp)


def _second(scores: Array, batches: Array, best: Index) -> Index:
    """The best of each row among points that are no worse than both neighbours, other than the best of all.

    A cost over clients has steps, where a rank gets one more or a tile is full: what is best between two coarse points
    may lie behind a step from the best coarse point.
    """
    padded = np.pad(scores, ((0, 0), (1, 1)), constant_values=np.inf)
    least = (scores <= padded[:, :-2]) & (scores <= padded[:, 2:])
    own = batches == np.take_along_axis(batches, best[:, None], axis=1)
    others = np.where(least & ~own, scores, np.inf)
    found = others.argmin(axis=1)
    return np.where(np.isfinite(others.min(axis=1)), found, best).astype(np.intp)


def _neighbours(batches: Array, index: Index) -> tuple[Array, Array, Array]:
    """The next lower number, the number itself and the next higher one, of sorted rows; itself at an end."""
    own = np.take_along_axis(batches, index[:, None], axis=1)
    rows, last = np.arange(len(index)), batches.shape[1] - 1
    low = batches[rows, np.maximum((batches < own).sum(axis=1) - 1, 0)]
    high = batches[rows, np.minimum((batches <= own).sum(axis=1), last)]
    return np.minimum(low, own[:, 0]), own[:, 0], high


def _between(low: Array, best: Array, high: Array) -> Array:
    """Whole numbers from low to high, evenly on both sides of the best; the rows of all variants have one length."""
    shares = np.linspace(0.0, 1.0, FINE)
    sides = low + shares[:, None] * (best - low), best + shares[:, None] * (high - best)
    return np.asarray(np.round(np.concatenate(sides)).T, dtype=np.float64)


def _scores(scenario: Scenario, known: Mapping[str, Array], count: int) -> Array:
    """What each variant is best by at each of its numbers of clients, less is better: shape (V, numbers).

    Far worse where the SLO is missed, infinite where nothing fits.
    """
    each = known["batch"].size // count
    rows = max(1, MOST // (each * scenario.split.chips.size))
    parts = []
    for start in range(0, count, rows):
        result = run(scenario, "steady", _cut(known, start, rows, each), zipped=True)
        goal, sign = objective(scenario, "steady")
        values = np.where(result.meets_slo, 0.0, MISSED) + sign * result.metric(goal)
        parts.append(np.where(result.feasible, values, np.inf).reshape(-1, each))
    return np.concatenate(parts)


def _cut(known: Mapping[str, Array], start: int, rows: int, each: int) -> dict[str, Array]:
    """Fields of some variants, flat: each value for each of its batches."""
    part = {name: np.repeat(value[start : start + rows], each) for name, value in known.items() if name != "batch"}
    return part | ({"batch": known["batch"][start * each : (start + rows) * each]} if "batch" in known else {})


def _priced(scenario: Scenario, mode: str, known: Mapping[str, Array], metrics: Sequence[str], count: int) -> Answers:
    """The best of each variant among its batches: `known` has V values of each field and V rows of batches, flat."""
    each = known["batch"].size // count if "batch" in known else 1
    rows = max(1, MOST // (each * scenario.split.chips.size))
    parts = []
    for start in range(0, count, rows):
        parts.append(_part(run(scenario, mode, _cut(known, start, rows, each), zipped=True), each, metrics))
    return _joined(parts) if len(parts) > 1 else parts[0]


def _part(result: Result, each: int, metrics: Sequence[str]) -> Answers:
    """The best of each `each` points in turn: by the objective, within the SLO where any point is."""
    goal, sign = objective(result.scenario, result.mode)
    values = np.where(result.feasible, sign * result.metric(goal), np.inf).reshape(-1, each)
    kept = np.where(result.meets_slo.reshape(-1, each), values, np.inf)
    best = np.where(np.isfinite(kept).any(axis=1), kept.argmin(axis=1), values.argmin(axis=1))
    index = np.arange(len(best)) * each + best

    def at(item: Array) -> Array:
        return np.asarray(np.broadcast_to(item, result.shape).ravel()[index])

    feasible = result.feasible.ravel()[index]
    return Answers(
        {name: at(result.metric(name)) for name in metrics},
        result.meets_slo.ravel()[index],
        at(result.pick(result.answer.batch)),
        {name: at(result.pick(value)) for name, value in result.scenario.split.named().items()},
        tuple("" if fits else result.reason_at(int(i)) for fits, i in zip(feasible, index, strict=True)),
        result.scenario.mapper is not None or each > 1,
    )


def _joined(parts: Sequence[Answers]) -> Answers:
    """Answers one after another."""
    first = parts[0]
    return Answers(
        {name: np.concatenate([part.metrics[name] for part in parts]) for name in first.metrics},
        np.concatenate([part.kept for part in parts]),
        np.concatenate([part.batch for part in parts]),
        {name: np.concatenate([part.plan[name] for part in parts]) for name in first.plan},
        tuple(reason for part in parts for reason in part.reason),
        first.anew,
    )
