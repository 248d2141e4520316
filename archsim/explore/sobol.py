"""Sobol indices: which of several uncertain numbers decides an answer, all of them moving at once.

The first-order index of a number is the share of the variance that goes when it alone is known; the total index the
share that stays when all others are known. Their difference is what it does together with others. Saltelli's estimate
on a scrambled Sobol sequence (`scipy.stats.sobol_indices`), with bootstrapped ends.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec

import numpy as np

from archsim.arrays import Array
from archsim.explore.band import SHARE, Band, band
from archsim.explore.scenario import Scenario
from archsim.explore.sensitivity import Nothing, best_batch, ends_of
from archsim.explore.variants import answers, fixed
from archsim.explore.vary import Axis

SAMPLES = 256  # a power of two; the model is asked samples x (inputs + 2) times
RESAMPLES = 200
MODEL = "error of the model"


@dataclass(frozen=True)
class Spread:
    """An uncertain number: between two ends evenly, evenly over its logarithm, or as the error of the model is."""

    name: str
    low: float
    high: float
    kind: str = "even"

    def at(self, share: Array) -> Array:
        """The value below which a share of it lies."""
        if self.kind == "log":
            return np.asarray(self.low * (self.high / self.low) ** share)
        if self.kind == "whole":
            return np.clip(np.floor(self.low + share * (self.high - self.low + 1.0)), self.low, self.high)
        if self.kind == "error":
            return _error(share, self.low, self.high)
        return np.asarray(self.low + share * (self.high - self.low))


@dataclass(frozen=True)
class Index:
    """Shares of the variance that a number causes alone and with others, and the ends of 95 % of their sampling."""

    name: str
    first: float
    first_ends: tuple[float, float]
    total: float
    total_ends: tuple[float, float]


@dataclass(frozen=True, eq=False)
class Indices:
    """Indices of every number, the mean of the metric, its 10th and 90th percentile, and how often it was asked."""

    rows: tuple[Index, ...]
    mean: float
    low: float
    high: float
    evaluations: int


def ready() -> None:
    """Raises ValueError where the library that estimates indices is not installed."""
    if find_spec("scipy") is None:
        raise ValueError("Sobol indices need scipy, which is not installed: pip install 'archsim[explore]'")


def _error(share: Array, low: float, high: float) -> Array:
    """A factor about 1 whose logarithm is normal on either side, with the middle `SHARE` between two ends."""
    from scipy.stats import norm

    z = norm.ppf(share) / norm.ppf(0.5 + SHARE / 2.0)
    return np.asarray(np.exp(z * np.where(z < 0, -np.log(low), np.log(high))))


def indices(
    function: Callable[[Mapping[str, Array]], Array], spreads: Sequence[Spread], samples: int = SAMPLES, seed: int = 0
) -> Indices:
    """Sobol indices of a function of arrays by name, all of one length, over independent numbers.

    `samples` must be a power of two. Raises ValueError where the function is constant or not finite somewhere.
    """
    from scipy.stats import sobol_indices

    if samples < 2 or samples & (samples - 1):
        raise ValueError(f"the number of samples must be a power of two such as {SAMPLES}, got {samples}")
    unit = _samples(len(spreads), samples, seed)
    values = function({item.name: item.at(row) for item, row in zip(spreads, unit, strict=True)})
    missing = int((~np.isfinite(values)).sum())
    if missing:
        raise ValueError(f"{missing} of {values.size} samples have no answer; narrow the ranges to what fits")
    one, other, mixed = values[:samples], values[samples : 2 * samples], values[2 * samples :].reshape(-1, samples)
    if not one.std() > 1e-12 * abs(one.mean()):
        raise ValueError("nothing that varies changes it: it is the same at every sample")
    padded = mixed if len(mixed) > 1 else np.stack([mixed[0], one])  # scipy fails on a single input
    asked = {"f_A": one[None], "f_B": other[None], "f_AB": padded[:, None]}
    found = sobol_indices(func=asked, n=samples)
    first, total = _ends(one, other, mixed, seed)
    rows = tuple(
        Index(
            item.name,
            float(found.first_order.ravel()[i]),
            (float(first[0, i]), float(first[1, i])),
            float(found.total_order.ravel()[i]),
            (float(total[0, i]), float(total[1, i])),
        )
        for i, item in enumerate(spreads)
    )
    low, high = np.percentile(one, [10.0, 90.0])
    return Indices(rows, float(one.mean()), float(low), float(high), values.size)


def _samples(inputs: int, samples: int, seed: int) -> Array:
    """Points of the unit cube, shape (inputs, samples x (inputs + 2)).

    First A, then B, both halves of one scrambled Sobol sequence, then A with one row of B after another.
    """
    from scipy.stats import qmc

    both = qmc.Sobol(2 * inputs, scramble=True, rng=np.random.default_rng(seed)).random(samples).T
    a, b = both[:inputs], both[inputs:]
    mixed = [np.concatenate([a[:row], b[row : row + 1], a[row + 1 :]]) for row in range(inputs)]
    # a share of exactly 0 has no quantile
    return np.asarray(np.clip(np.concatenate([a, b, *mixed], axis=1), 1e-12, 1.0 - 1e-12))


def _ends(one: Array, other: Array, mixed: Array, seed: int) -> tuple[Array, Array]:
    """Ends of 95 % of the first-order and total indices, shape (2, inputs) each.

    By drawing the samples again, with the estimates of Saltelli (2010) and Jansen that scipy takes; its own bootstrap
    cannot be given a seed.
    """
    inputs = len(mixed)
    draws = np.random.default_rng(seed + 1).integers(0, one.size, (RESAMPLES, one.size))
    first, total = np.empty((RESAMPLES, inputs)), np.empty((RESAMPLES, inputs))
    for row, draw in enumerate(draws):
        a, b, ab = one[draw], other[draw], mixed[:, draw]
        middle = np.mean([a, b])
        variance = np.var([a, b])
        first[row] = ((b - middle) * (ab - a)).mean(axis=1) / variance
        total[row] = 0.5 * ((a - ab) ** 2).mean(axis=1) / variance
    ends = [2.5, 97.5]
    return np.percentile(first, ends, axis=0), np.percentile(total, ends, axis=0)


def spreads_of(scenario: Scenario, mode: str, output: str, axes: Sequence[Axis]) -> list[Spread]:
    """The ranges of axes, and the error of the model where the runtime's file has bands for the metric."""
    found = [_spread(axis) for axis in axes]
    known: Band | None = band(scenario, output, mode)
    return found if known is None else [*found, Spread(MODEL, known.low, known.high, "error")]


def _spread(axis: Axis) -> Spread:
    low, high = ends_of(axis)
    numbers = axis.numbers
    if not low < high or numbers is None:
        raise ValueError(f"{axis.name} needs a range, not one value")
    steps = np.diff(np.log(numbers)) if low > 0 else np.zeros(0)
    even = np.ptp(np.diff(numbers)) < 1e-9 * high
    if axis.name.endswith(("batch", "context", "chips", "count", "cores")):
        return Spread(axis.name, low, high, "whole")
    return Spread(axis.name, low, high, "log" if steps.size > 1 and np.ptp(steps) < 1e-9 and not even else "even")


def sobol(
    scenario: Scenario,
    mode: str,
    output: str,
    axes: Sequence[Axis],
    samples: int = SAMPLES,
    seed: int = 0,
    replan: bool = True,
) -> Indices:
    """Sobol indices of a metric over ranges of a scenario's numbers and over the error of the model.

    With `replan` the plan is chosen anew at every sample, otherwise it stays that of the scenario as it is. Raises
    Nothing where no plan fits.
    """
    asked = scenario if replan else fixed(scenario, mode)
    if asked is None:
        raise Nothing("no plan fits, so there is nothing to vary")

    def function(values: Mapping[str, Array]) -> Array:
        fields = {name: value for name, value in values.items() if name != MODEL}
        if not replan and "batch" not in fields:
            fields["batch"] = best_batch(asked)
        found = answers(asked, mode, fields, (output,))
        return np.asarray(np.where(found.feasible, found.metrics[output], np.nan) * values.get(MODEL, 1.0))

    spreads = spreads_of(scenario, mode, output, axes)
    if not spreads:
        raise ValueError("there is nothing uncertain: give ranges with --vary, or a runtime with error bands")
    return indices(function, spreads, samples, seed)
