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
from archsim.workload.agents import Agents, sessions
from archsim.workload.lengths import Lengths, mean
from archsim.workload.lengths import draw as draw_lengths
from archsim.workload.requests import Requests
from archsim.workload.sessions import in_lanes

BLOCK = 16  # tokens of a block of generated prompts that share a prefix

Process = Literal["poisson", "gamma", "constant", "closed"]


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
    input: Count | Lengths = Field(description="prompt tokens; of sessions their mean, for the steady answer")
    output: Count | Lengths = Field(description="generated tokens")
    cached: Natural = Field(0, description="prompt tokens found in the prefix cache, of the steady answer")
    arrivals: Process = "poisson"
    rate: Positive | None = Field(None, description="requests a second; of sessions their starts")
    burstiness: Positive = Field(1.0, description="shape of gamma arrivals: 1 is Poisson, less comes in bursts")
    profile: tuple[tuple[NonNegative, NonNegative], ...] = Field((), description="(second, rate) over time")
    clients: Count | None = Field(
        None, description="of a closed loop: each sends when it has its answer, or has one session after another"
    )
    think: Seconds = Field(0.0, description="between a client's answer and its next request")
    shared: Shared | None = None
    sessions: Agents | None = Field(None, description="requests are steps of sessions; `shared` stands before each")
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
        if self.sessions and self.shared and self.shared.groups > 1:
            raise FaultAt("all sessions share one prompt: groups is 1", "shared")
        return self

    @property
    def mean_input(self) -> float:
        """Mean prompt tokens, a shared prefix included."""
        return mean(self.input) + (self.shared.tokens if self.shared else 0)

    @property
    def mean_output(self) -> float:
        """Mean generated tokens."""
        return mean(self.output)


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
    if traffic.sessions is not None:
        return _of_agents(traffic, rate, count, seconds, seed)
    closed = traffic.clients if traffic.arrivals == "closed" else None
    wanted = rate or traffic.rate
    if not closed and wanted is None and not traffic.profile:
        raise ValueError("the traffic has no rate; give `rate` (requests a second) in the file, or --rate")
    number = count if count is not None else traffic.requests
    if seconds is not None and count is None and not closed:
        number = _enough(traffic, wanted, seconds)
    times = np.zeros(number) if closed else _arrivals(traffic, wanted, number, arrivals)
    inputs, outputs = (draw_lengths(length, lengths, number) for length in (traffic.input, traffic.output))
    name = traffic.name or "traffic"
    drawn = Requests(times, inputs, outputs, clients=closed or 0, think=traffic.think, name=name)
    if traffic.shared:
        drawn = _with_prefix(drawn, traffic.shared, prefixes)
    return drawn if seconds is None or closed else drawn.before(seconds)


def _of_agents(
    traffic: TrafficFile, rate: float | None, count: int | None, seconds: float | None, seed: int
) -> Requests:
    """Steps of sessions, which start at a rate or when those before them have ended."""
    model, shared = traffic.sessions, traffic.shared.tokens if traffic.shared else 0
    if model is None:
        raise ValueError("the traffic has no sessions")
    closed = rate is None and traffic.arrivals == "closed"
    wanted = rate or traffic.rate
    if not closed and wanted is None and not traffic.profile:
        raise ValueError("the traffic has no rate; give `rate` (sessions a second) in the file, or --rate")
    many = None if seconds is None or count is not None or closed else _enough(traffic, wanted, seconds)
    number = traffic.requests if count is None else count
    found = sessions(model, traffic.output, shared, number, many, seed)
    found = replace(found, name=traffic.name or "agents")
    if closed:
        return in_lanes(found, traffic.clients or 1)
    starts = _arrivals(traffic, wanted, found.sessions, np.random.default_rng([seed, 1]))
    kept = found.starting(starts)
    return kept if seconds is None else kept.first(int((starts[kept.session] < seconds).sum()))


def _enough(traffic: TrafficFile, rate: float | None, seconds: float) -> int:
    """Requests that surely suffice for so many seconds."""
    mean = rate if rate is not None else max(value for _, value in traffic.profile)
    return int(mean * seconds * 1.2 + 10 * np.sqrt(mean * seconds / min(traffic.burstiness, 1.0)) + 20)


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
