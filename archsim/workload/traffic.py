"""Traffic: how requests come and how long they are, as a file says it, and the requests drawn from it.

Same seed, same requests: arrivals, lengths and prefixes have random streams of their own, so that two runs at
different rates see the same requests in the same order (common random numbers).
"""

from dataclasses import replace
from itertools import pairwise
from typing import Literal

import numpy as np
from pydantic import Field, model_validator

from archsim.arrays import Array
from archsim.catalog import Mark, StrictModel, fetch, validate
from archsim.fields import Count, FaultAt, Natural, NonNegative, Positive, Seconds
from archsim.sources import SourceEntry, check_sources
from archsim.workload.requests import Integers, Requests

BLOCK = 16  # tokens of a block of generated prompts that share a prefix

Distribution = Literal["fixed", "lognormal", "uniform", "empirical"]
Process = Literal["poisson", "gamma", "constant", "closed"]
NEEDS: dict[str, tuple[str, ...]] = {
    "fixed": ("mean",),
    "lognormal": ("mean",),
    "uniform": ("low", "high"),
    "empirical": ("values",),
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
        return self

    @property
    def average(self) -> float:
        """Mean tokens, before lengths are cut."""
        if self.distribution == "uniform":
            return ((self.low or 1) + (self.high or 1)) / 2.0
        if self.distribution == "empirical":
            weights = self.weights or tuple(1.0 for _ in self.values)
            return float(np.average(self.values, weights=weights))
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
        else:
            sigma = np.sqrt(np.log1p(self.spread**2))
            drawn = self.average * np.exp(sigma * rng.standard_normal(count) - sigma**2 / 2.0)
        return np.clip(np.round(drawn), 1, self.most).astype(np.int64)


class Shared(StrictModel):
    """Prefixes that many requests share, such as system prompts."""

    tokens: Count = Field(description="of a shared prefix; prompts are that much longer than `input` says")
    groups: Count = Field(1, description="how many different ones")


class TrafficFile(StrictModel):
    """Requests: their lengths, how they come, and what their prompts share.

    `rate` is in requests a second. `profile` gives (second, rate) pairs: the rate runs in straight lines between them
    and starts again after the last.
    """

    name: str | None = None
    input: Count | Lengths = Field(description="prompt tokens")
    output: Count | Lengths = Field(description="generated tokens")
    cached: Natural = Field(0, description="prompt tokens found in the prefix cache, of the steady answer")
    arrivals: Process = "poisson"
    rate: Positive | None = Field(None, description="requests a second")
    burstiness: Positive = Field(1.0, description="shape of gamma arrivals: 1 is Poisson, less comes in bursts")
    profile: tuple[tuple[NonNegative, NonNegative], ...] = Field((), description="(second, rate) over time")
    clients: Count | None = Field(None, description="of a closed loop: each sends when it has its answer")
    think: Seconds = Field(0.0, description="between a client's answer and its next request")
    shared: Shared | None = None
    requests: Count = Field(2000, description="how many are simulated unless the command says otherwise")
    sources: tuple[SourceEntry, ...] = ()

    @model_validator(mode="after")
    def _consistent(self) -> "TrafficFile":
        if self.arrivals == "closed" and self.clients is None:
            raise FaultAt("a closed loop needs `clients`", "arrivals")
        if self.profile:
            times = [time for time, _ in self.profile]
            if len(times) < 2 or times[0] != 0 or any(b <= a for a, b in pairwise(times)):
                raise FaultAt("a profile starts at second 0 and goes on in time", "profile")
            if not any(rate > 0 for _, rate in self.profile):
                raise FaultAt("a profile has a rate above 0 somewhere", "profile")
        return self

    @property
    def mean_input(self) -> float:
        """Mean prompt tokens, a shared prefix included."""
        return _mean(self.input) + (self.shared.tokens if self.shared else 0)

    @property
    def mean_output(self) -> float:
        """Mean generated tokens."""
        return _mean(self.output)


def _mean(length: int | Lengths) -> float:
    return float(length) if isinstance(length, int) else length.average


def load_traffic(name: str, mark: Mark | None = None) -> TrafficFile:
    """The traffic of a name or path. Raises CatalogError with every fault of its file."""
    document = fetch("workloads/traffic", name, mark)
    file = validate(TrafficFile, document)
    if file.sources:
        check_sources(document, file.sources, skip=("name", "arrivals", "requests"))
    return file


def draw(
    traffic: TrafficFile,
    rate: float | None = None,
    count: int | None = None,
    seconds: float | None = None,
    seed: int = 0,
) -> Requests:
    """Requests of a traffic: `count` of them, or all that come in `seconds`. `rate` replaces that of the file.

    Raises ValueError where no rate is known.
    """
    lengths, arrivals, prefixes = (np.random.default_rng([seed, stream]) for stream in range(3))
    closed = traffic.clients if traffic.arrivals == "closed" else None
    wanted = rate or traffic.rate
    if not closed and wanted is None and not traffic.profile:
        raise ValueError("the traffic has no rate; give `rate` (requests a second) in the file, or --rate")
    number = count if count is not None else traffic.requests
    if seconds is not None and count is None and not closed:
        number = _enough(traffic, wanted, seconds)
    times = np.zeros(number) if closed else _arrivals(traffic, wanted, number, arrivals)
    inputs, outputs = (_lengths(length, lengths, number) for length in (traffic.input, traffic.output))
    name = traffic.name or "traffic"
    drawn = Requests(times, inputs, outputs, clients=closed or 0, think=traffic.think, name=name)
    if traffic.shared:
        drawn = _with_prefix(drawn, traffic.shared, prefixes)
    return drawn if seconds is None or closed else drawn.before(seconds)


def _enough(traffic: TrafficFile, rate: float | None, seconds: float) -> int:
    """Requests that surely suffice for so many seconds."""
    mean = rate if rate is not None else max(value for _, value in traffic.profile)
    return int(mean * seconds * 1.2 + 10 * np.sqrt(mean * seconds / min(traffic.burstiness, 1.0)) + 20)


def _lengths(length: int | Lengths, rng: np.random.Generator, count: int) -> Integers:
    return np.full(count, length, dtype=np.int64) if isinstance(length, int) else length.draw(rng, count)


def _arrivals(traffic: TrafficFile, rate: float | None, count: int, rng: np.random.Generator) -> Array:
    """Arrival times: gaps of mean 1, summed, and set on the clock by the rate."""
    if traffic.arrivals == "constant":
        units = np.arange(1.0, count + 1)
    else:
        shape = traffic.burstiness if traffic.arrivals == "gamma" else 1.0
        units = np.cumsum(rng.gamma(shape, 1.0 / shape, count))
    if not traffic.profile:
        return units / (rate or 1.0)
    return _on_profile(traffic.profile, units, rate)


def _on_profile(profile: tuple[tuple[float, float], ...], units: Array, rate: float | None) -> Array:
    """When the summed rate reaches each of `units`; a `rate` scales the profile to that mean."""
    times = np.array([time for time, _ in profile])
    rates = np.array([value for _, value in profile])
    period = times[-1]
    if rate is not None:
        rates = rates * rate * period / _trapezes(rates, times).sum()
    fine = np.linspace(0.0, period, 4097)
    summed = np.concatenate([[0.0], np.cumsum(_trapezes(np.interp(fine, times, rates), fine))])
    rounds = np.floor(units / summed[-1])
    return np.asarray(rounds * period + np.interp(units - rounds * summed[-1], summed, fine))


def _trapezes(values: Array, places: Array) -> Array:
    return (values[1:] + values[:-1]) / 2.0 * np.diff(places)


def _with_prefix(drawn: Requests, shared: Shared, rng: np.random.Generator) -> Requests:
    """Every prompt behind one of the shared prefixes; its own whole blocks have ids of their own."""
    group = rng.integers(0, shared.groups, len(drawn))
    inputs = drawn.input + shared.tokens
    common = shared.tokens // BLOCK
    blocks = inputs // BLOCK
    starts = shared.groups * common + np.concatenate([[0], np.cumsum(blocks - common)[:-1]])
    chains = [
        [*range(g * common, (g + 1) * common), *range(start, start + own)]
        for g, start, own in zip(group.tolist(), starts.tolist(), (blocks - common).tolist(), strict=True)
    ]
    return replace(drawn, input=inputs, chains=chains, block=BLOCK)
