"""Running a scenario: axes, evaluation, and the choice among what the mapper proposes."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from archsim.arrays import Array, array, axes
from archsim.explore.evaluate import Answer, evaluate_steady, evaluate_step, legal, most_clients
from archsim.explore.pools import count_of
from archsim.explore.result import METRICS, Result, objective
from archsim.explore.scenario import Scenario, with_fields
from archsim.explore.search import narrowed
from archsim.mapping.split import REASONS, Split
from archsim.mapping.system import System

Flags = npt.NDArray[np.bool_]
MEMORY = REASONS.index("memory")

FINE = 64  # clients up to which every number is priced
COARSE = 96  # numbers of clients beyond that, spread evenly over their logarithm


def run(
    scenario: Scenario, mode: str = "step", fields: Mapping[str, object] | None = None, zipped: bool = False
) -> Result:
    """The answer of a scenario with some fields replaced by arrays.

    `mode` is `step` (one decode step at `batch` and `context`, prefill apart) or `steady` (the closed loop of
    `traffic`,
    at every number of clients up to the memory limit unless `batch` is among `fields`). Each array gets its own
    axis, or
    all share one when `zipped`. Raises KeyError for an unknown field and ValueError when the scenario lacks what the
    mode
    needs.
    """
    values = dict(fields or {})
    for name in ("batch", "context") if mode == "step" else ():
        given = getattr(scenario, name)
        if name not in values and given is not None:
            values[name] = given
    if mode == "steady" and "batch" not in values:
        values["batch"] = clients(most_clients(scenario))
    if scenario.space is not None:
        scenario = _searched(scenario, mode, values)
    swept = axes(values, zipped)
    names = {name: value.ravel() for name, value in swept.items() if value.size > 1}
    if zipped and names:
        names = {"point": np.arange(next(iter(names.values())).size, dtype=np.float64)}
    return answered(scenario, mode, swept, names)


def answered(scenario: Scenario, mode: str, swept: Mapping[str, Array], names: Mapping[str, Array]) -> Result:
    """The answer on axes that are laid out: `names` has the values of each, `swept` the fields that lie along them."""
    scenario = placed(scenario, mode, swept, names)
    answer = evaluate_steady(scenario) if mode == "steady" else evaluate_step(scenario)
    return choose(scenario, names, answer)


def placed(scenario: Scenario, mode: str, swept: Mapping[str, Array], names: Mapping[str, Array]) -> Scenario:
    """The scenario with swept fields on axes behind that of proposals; of the steady answer a last one has length 1."""
    tail = 1 if mode == "steady" else 0
    rank = max(len(names), 1)
    scenario = with_fields(scenario, {name: _shaped(value, rank, tail) for name, value in swept.items()})
    scenario = replace(scenario, split=_split(scenario.split, rank + tail, swept, tail))
    return replace(scenario, system=_counts(scenario.system, rank + tail, swept))


def _searched(scenario: Scenario, mode: str, values: Mapping[str, object]) -> Scenario:
    """The best of more pairs of pools than can all be priced, at the one point that is asked."""
    given = {name: array(value) for name, value in values.items()}
    if mode != "step" or any(value.size > 1 for value in given.values()):
        pairs = scenario.space.pairs if scenario.space is not None else 0
        raise ValueError(f"{pairs:,} pairs of pools are searched for one step at one point; give fewer counts of chips")
    return replace(narrowed(with_fields(scenario, given)), batch=scenario.batch, context=scenario.context)


def clients(most: int) -> Array:
    """Numbers of clients to price: every small one, then evenly over the logarithm up to the most."""
    fine = np.arange(1, min(most, FINE) + 1)
    if most <= FINE:
        return array(fine if most else [1.0])
    return array(np.unique(np.concatenate([fine, np.round(np.geomspace(FINE, most, COARSE))])))


def _shaped(value: Array, rank: int, tail: int) -> Array:
    return value if value.size == 1 else value.reshape(*(1,) * (rank - value.ndim), *value.shape, *(1,) * tail)


def _split(split: Split, rank: int, swept: Mapping[str, Array], tail: int) -> Split:
    """Proposals along a new first axis; swept degrees keep their own."""
    return split.mapped(
        lambda name, value: value[None] if f"split.{name}" in swept else value.reshape(-1, *(1,) * rank)
    )


def _counts(system: System, rank: int, swept: Mapping[str, Array]) -> System:
    """Numbers of chips that proposals choose from, along the axis of proposals."""
    for name, pool in system.pools.items():
        given = f"pools.{name}.count" in swept or ("chips" in swept and name == system.main_name)
        if pool.count.size > 1 and not given:
            system = count_of(system, name, pool.count.reshape(-1, *(1,) * rank))
    return system


def choose(scenario: Scenario, names: Mapping[str, Array], answer: Answer) -> Result:
    """The proposal to take at every point: legal, fitting, within the SLO if any is, and best by the objective."""
    broken, fits = legal(scenario), answer.fits
    swept = (1, *(values.size for values in names.values()), *((1,) if answer.mode == "steady" else ()))
    shape = np.broadcast_shapes(broken.shape, fits.shape, answer.tpot.shape, swept)
    usable, slo = (broken == 0) & (fits > 0), within_slo(scenario, answer)
    choice = np.zeros((1, *shape[1:]), np.int64)
    if shape[0] > 1:
        choice = np.argmin(_ranking(scenario, answer, usable, slo, shape), axis=0)[None]
    points = tuple(values.size for values in names.values()) or (1,)

    def chosen(values: Any) -> Any:
        full = np.broadcast_to(values, (values.shape[0], *shape[1:]))
        return (full[0] if full.shape[0] == 1 else np.take_along_axis(full, choice, 0)).reshape(points)

    feasible, rule = chosen(usable), chosen(broken)
    reason = np.where(feasible, 0, np.where(rule > 0, rule, MEMORY)).astype(np.int64)
    return Result(scenario, names, answer, choice.reshape(points), feasible, reason, chosen(slo) & feasible)


def within_slo(scenario: Scenario, answer: Answer) -> Flags:
    """Where a proposal keeps the SLO."""
    slo = scenario.slo
    kept: Flags = np.ones((1,), np.bool_)
    if slo.tpot is not None:
        kept = kept & (answer.tpot <= slo.tpot)
    if slo.interactivity is not None:
        kept = kept & (answer.tpot * slo.interactivity <= 1.0)
    if slo.ttft is not None:
        kept = kept & (answer.ttft <= slo.ttft)
    return kept


def _ranking(scenario: Scenario, answer: Answer, usable: Flags, slo: Flags, shape: tuple[int, ...]) -> Array:
    """Lower is better: the objective, but proposals outside the SLO rank behind all within, and unusable ones last.

    Among unusable proposals the one that needs least memory ranks first, so that the reason given is the nearest miss.
    """
    name, sign = objective(scenario, answer.mode)
    value = np.broadcast_to(METRICS[name][2](answer), shape) * sign
    value = value / (np.nanmax(np.abs(value)) + 1.0) + np.where(slo, 0.0, 4.0)
    missed = answer.memory.fullest + answer.memory.missing  # of those that miss by one pool, one whose other pool fits
    return np.where(usable, value, 16.0 + missed)
