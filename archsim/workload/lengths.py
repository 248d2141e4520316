"""Distributions of lengths and times: fixed, lognormal, uniform, empirical, or by their quantiles."""

from itertools import pairwise
from typing import Literal

import numpy as np
from pydantic import Field, model_validator

from archsim.arrays import Array
from archsim.catalog import StrictModel
from archsim.fields import Count, FaultAt, NonNegative, Positive
from archsim.workload.requests import Integers

Points = tuple[tuple[NonNegative, Positive], ...]

Distribution = Literal["fixed", "lognormal", "uniform", "empirical", "quantiles"]
NEEDS: dict[str, tuple[str, ...]] = {
    "fixed": ("mean",),
    "lognormal": ("mean",),
    "uniform": ("low", "high"),
    "empirical": ("values",),
    "quantiles": ("points",),
}


class Lengths(StrictModel):
    """How many tokens requests have."""

    distribution: Distribution = "lognormal"
    mean: Positive | None = Field(None, description="tokens; of fixed and lognormal lengths")
    spread: NonNegative = Field(1.0, description="standard deviation over the mean, of lognormal lengths")
    low: Count | None = Field(None, description="of uniform lengths")
    high: Count | None = Field(None, description="of uniform lengths")
    values: tuple[Count, ...] = Field((), description="lengths that requests have, of empirical ones")
    weights: tuple[Positive, ...] = Field((), description="how often each value comes; default: equally")
    points: Points = Field((), description="(share, tokens): so many requests have at most so many; of quantiles")
    most: Count = Field(1_000_000, description="longer ones are cut to this")

    @model_validator(mode="after")
    def _whole(self) -> "Lengths":
        missing = [name for name in NEEDS[self.distribution] if not getattr(self, name)]
        if missing:
            raise FaultAt(f"{self.distribution} lengths need `{missing[0]}`", "distribution")
        if self.low and self.high and self.low > self.high:
            raise FaultAt(f"low {self.low} is above high {self.high}", "low")
        if self.weights and len(self.weights) != len(self.values):
            raise FaultAt(f"{len(self.weights)} weights for {len(self.values)} values", "weights")
        if self.points:
            check_points(self.points)
        return self

    @property
    def average(self) -> float:
        """Mean tokens, before lengths are cut."""
        if self.distribution == "uniform":
            return ((self.low or 1) + (self.high or 1)) / 2.0
        if self.distribution == "empirical":
            weights = self.weights or tuple(1.0 for _ in self.values)
            return float(np.average(self.values, weights=weights))
        if self.distribution == "quantiles":
            return mean_of(self.points)
        return float(self.mean or 1.0)

    def draw(self, rng: np.random.Generator, count: int) -> Integers:
        """So many lengths, whole and from 1 to `most`."""
        drawn: Array
        if self.distribution == "fixed":
            drawn = np.full(count, self.average)
        elif self.distribution == "uniform":
            drawn = rng.integers(self.low or 1, (self.high or 1) + 1, count).astype(np.float64)
        elif self.distribution == "empirical":
            shares = np.array(self.weights or [1.0] * len(self.values))
            drawn = rng.choice(np.array(self.values, dtype=np.float64), count, p=shares / shares.sum())
        elif self.distribution == "quantiles":
            drawn = at_shares(self.points, rng.random(count))
        else:
            sigma = np.sqrt(np.log1p(self.spread**2))
            drawn = self.average * np.exp(sigma * rng.standard_normal(count) - sigma**2 / 2.0)
        return np.clip(np.round(drawn), 1, self.most).astype(np.int64)


class Times(StrictModel):
    """Times by their quantiles: of what is drawn so great a share is at most so long."""

    points: Points = Field(description="(share, s), from share 0 to 1")

    @model_validator(mode="after")
    def _whole(self) -> "Times":
        check_points(self.points)
        return self

    @property
    def average(self) -> float:
        """Mean (s)."""
        return mean_of(self.points)

    def draw(self, rng: np.random.Generator, count: int) -> Array:
        """So many times (s)."""
        return at_shares(self.points, rng.random(count))


def check_points(points: Points) -> None:
    """Refuses quantiles that do not go from share 0 to 1 and upwards."""
    rising = all(b[0] > a[0] and b[1] >= a[1] for a, b in pairwise(points))
    if len(points) < 2 or points[0][0] != 0 or points[-1][0] != 1 or not rising:
        raise FaultAt("quantiles go from share 0 to 1, with values that do not fall", "points")


def at_shares(points: Points, shares: Array) -> Array:
    """Values at shares: the logarithm runs in straight lines between the points."""
    known, values = (np.array(column) for column in zip(*points, strict=True))
    return np.asarray(np.exp(np.interp(shares, known, np.log(values))))


def mean_of(points: Points) -> float:
    """Mean of what `at_shares` draws: (b - a) / ln(b / a) of each part."""
    parts = ((q - p, a, b) for (p, a), (q, b) in pairwise(points))
    return float(sum(share * (a if a == b else (b - a) / np.log(b / a)) for share, a, b in parts))


def draw(length: int | Lengths, rng: np.random.Generator, count: int) -> Integers:
    """So many lengths."""
    return np.full(count, length, dtype=np.int64) if isinstance(length, int) else length.draw(rng, count)


def mean(length: int | Lengths) -> float:
    """The mean length."""
    return float(length) if isinstance(length, int) else length.average
