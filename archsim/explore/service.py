"""Serving a scenario: its plan, its requests, what was played, and what that costs."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import inf

import numpy as np

from archsim.arrays import Array, array
from archsim.economics.money import rate as hourly_rate
from archsim.economics.money import wall_power
from archsim.economics.terms import HOUR
from archsim.explore.drafts import speculation_of
from archsim.explore.evaluate import deployment_of
from archsim.explore.result import Result, scalar_scenario
from archsim.explore.run import run
from archsim.explore.scenario import Scenario
from archsim.explore.sessions import Sessions, sessions_of
from archsim.serving.goodput import Largest, largest_rate
from archsim.serving.measures import Measures, Targets
from archsim.serving.server import decode_joules, decode_seconds, server_of
from archsim.serving.simulate import Played, Server, simulate
from archsim.workload.requests import Requests
from archsim.workload.sessions import in_lanes, started
from archsim.workload.traces import load_trace
from archsim.workload.traffic import TrafficFile, draw


@dataclass(frozen=True)
class Asked:
    """What a user asks of a simulation beyond the scenario; None: as the scenario says."""

    traffic: TrafficFile | None = None
    trace: str | None = None
    rate: float | None = None
    seconds: float | None = None
    count: int | None = None
    plain: bool = False
    seed: int = 0
    skip_bad: bool = False
    events: float = inf
    clients: int | None = None
    scale_input: float = 1.0
    scale_output: float = 1.0


class Refused(ValueError):
    """A scenario that cannot serve anything; `result` says why."""

    def __init__(self, result: Result) -> None:
        super().__init__("no plan of the scenario fits")
        self.result = result


def requests_of(scenario: Scenario, asked: Asked, rate: float | None = None, seed: int | None = None) -> Requests:
    """The requests that are asked for. Raises ValueError where neither traffic nor a trace is given."""
    trace = asked.trace or (scenario.trace if asked.traffic is None else None)
    wanted = rate if rate is not None else asked.rate
    seed = asked.seed if seed is None else seed
    if wanted is not None and asked.clients is not None:
        raise ValueError("requests come at a rate or from clients: give --rate or --clients")
    traffic = asked.traffic or scenario.traffic
    if trace is not None:
        found = _placed(load_trace(trace, asked.skip_bad, asked.count), asked, wanted, seed)
    elif traffic is None:
        raise ValueError("nothing to serve: give `traffic` or `trace` in the scenario, or --traffic or --trace")
    elif asked.clients is not None:
        closed = traffic.model_copy(update={"arrivals": "closed", "clients": asked.clients})
        found = draw(closed, None, asked.count, asked.seconds, seed)
    else:
        found = draw(traffic, wanted, asked.count, asked.seconds, seed)
    return found.scaled(asked.scale_input, asked.scale_output)


def _placed(found: Requests, asked: Asked, rate: float | None, seed: int) -> Requests:
    """A trace at a rate, or from so many clients; sessions without recorded starts need either."""
    if asked.clients is not None:
        return in_lanes(found, asked.clients)
    unknown = found.after is not None and not found.rate and found.sessions > 1
    if unknown and rate is None:
        raise ValueError("the trace does not say when its sessions start: give --rate (sessions a second) or --clients")
    if rate is not None:
        found = started(found, rate, seed) if unknown else found.at_rate(rate)
    return found if asked.seconds is None or found.after is not None else found.before(asked.seconds)


def planned(scenario: Scenario, requests: Requests) -> Scenario:
    """The scenario with one split: that given, or the best for the mean request. Raises Refused where none fits."""
    sizes = (requests.input, requests.output)
    means = [array(max(round(float(size.mean())), 1) if len(size) else 1) for size in sizes]
    with_means = replace(scenario, input=means[0], output=means[1], cached=array(0.0))
    result = run(with_means, "steady")
    best = result.best()
    if best is None:
        raise Refused(result)
    return replace(scenario, split=scalar_scenario(result, best).split, mapper=None)


@dataclass(frozen=True, eq=False)
class Service:
    """A scenario that served requests: measures, dollars and joules. What is undefined is NaN."""

    scenario: Scenario
    server: Server
    requests: Requests
    played: Played
    targets: Targets
    asked: Asked = field(default_factory=Asked)

    @cached_property
    def measures(self) -> Measures:
        """Latencies, rates and occupancy."""
        return Measures(self.played)

    @cached_property
    def sessions(self) -> Sessions | None:
        """Sessions as wholes; None where requests are of none."""
        return sessions_of(self.played)

    @property
    def chips(self) -> float:
        """Chips of all replicas."""
        return float(self.scenario.split.chips.max())

    @cached_property
    def joules(self) -> float:
        """Energy on the boards of all chips, over the span."""
        energy, log = self.server.surface.energy, self.measures.log
        if energy is None:
            return float("nan")
        decode = decode_joules(self.server, log)
        idle = energy.idle * (self.measures.span * len(self.played.logs) - float(log["seconds"].sum()))
        each = float((decode + energy.prefill(log["prefilled"])).sum()) + idle
        return each * self.chips / len(self.played.logs)

    @cached_property
    def power(self) -> float:
        """Mean board power of a chip (W)."""
        return self.joules / self.measures.span / self.chips if self.measures.span > 0 else float("nan")

    @property
    def energy_per_token(self) -> float:
        """Facility energy (J) of an output token."""
        rate = self.measures.output_rate
        if not rate > 0:
            return float("nan")
        return float(wall_power(array(self.power), self.scenario.terms).max()) * self.chips / rate

    @cached_property
    def dollars(self) -> float:
        """USD of the span."""
        watts = array(self.power if np.isfinite(self.power) else 0.0)
        hourly = float(hourly_rate(self.scenario.chip, self.scenario.terms, watts).hourly.max())
        return hourly * self.chips * self.measures.span / HOUR

    @cached_property
    def prefill_share(self) -> float:
        """Share of the busy time that prefill adds to decode."""
        log = self.measures.log
        total = float(log["seconds"].sum())
        if not total:
            return float("nan")
        filled = log["prefilled"] > 0
        added = log["seconds"][filled] - decode_seconds(self.server, log)[filled]
        return float(np.maximum(added, 0.0).sum()) / total

    @cached_property
    def cached_share(self) -> float:
        """Share of the busy time in which prompts attend to cached tokens."""
        prompts, total = self.server.surface.prompts, float(self.measures.log["seconds"].sum())
        hits = np.flatnonzero(self.played.cached)
        if prompts is None or not total:
            return 0.0
        fresh = self.requests.input - self.played.cached.astype(np.int64)
        spent = 0.0
        for tokens, before in zip(fresh[hits].tolist(), self.played.cached[hits].tolist(), strict=True):
            spent += max(prompts.grid(tokens, 1.0, before) - prompts.grid(tokens, 1.0, 0.0), 0.0)
        return min(spent / total, self.prefill_share)

    def costs(self) -> dict[str, float]:
        """USD per million tokens: of all, of output, of fresh and of cached input; NaN where there are none."""
        done = self.played.finished
        cached = float(self.played.cached[done].sum())
        fresh = float(self.requests.input[done].sum()) - cached
        output = float(self.requests.output[done].sum())
        share, old = self.prefill_share, self.cached_share
        parts = {
            "cost_per_token": (1.0, fresh + cached + output),
            "output_cost": (1.0 - share, output),
            "input_cost": (share - old, fresh),
            "cached_input_cost": (old, cached),
        }
        return {
            name: self.dollars * part / count * 1e6 if count else float("nan") for name, (part, count) in parts.items()
        }


def serve(
    scenario: Scenario,
    asked: Asked | None = None,
    requests: Requests | None = None,
    progress: Callable[[float], None] | None = None,
) -> Service:
    """Plays requests, those asked for or given ones, on the scenario's chips.

    Raises Refused where no plan fits, ValueError where nothing is asked, CatalogError for mistakes in files.
    """
    asked = asked or Asked()
    found = requests_of(scenario, asked) if requests is None else requests
    plan = planned(scenario, found)
    d, speculation = deployment_of(plan), speculation_of(plan, deployment_of(plan))
    marks = [scenario.mark("serving", *where) for where in (("scheduler",), ("kv", "eviction", "predictor"))]
    server = server_of(d, scenario.serving, found, marks[0], asked.seed, speculation, marks[1])
    return _served(plan, server, found, asked, progress)


def _served(
    plan: Scenario, server: Server, found: Requests, asked: Asked, progress: Callable[[float], None] | None = None
) -> Service:
    waiting = found.clients or found.after is not None  # what comes depends on what has ended
    limit = asked.seconds if asked.seconds is not None and waiting else inf
    played = simulate(found, server, plain=asked.plain, seconds=limit, events=asked.events, progress=progress)
    return Service(plan, server, found, played, targets_of(plan), asked)


def targets_of(scenario: Scenario) -> Targets:
    """The SLO of a scenario."""
    slo = scenario.slo
    tpot = [value for value in (slo.tpot, 1.0 / slo.interactivity if slo.interactivity else None) if value is not None]
    return Targets(slo.ttft, min(tpot) if tpot else None, slo.share)


def best_rate(service: Service, seeds: int = 3) -> Largest:
    """The largest rate at which the scenario's SLO holds, for the same traffic with other seeds.

    A trace is the same for every seed, so it is played once.
    """
    if service.requests.clients:
        return Largest(0.0, 0.0, (), "a closed loop has no rate of its own")
    asked, plan = service.asked, service.scenario
    fixed = asked.trace is not None or (asked.traffic is None and plan.trace is not None)
    count = replace(asked, count=len(service.requests), seconds=None)

    def play(rate: float, seed: int) -> Measures:
        if fixed:
            return _served(plan, service.server, service.requests.at_rate(rate), asked).measures
        return _served(plan, service.server, requests_of(plan, count, rate, asked.seed + seed), count).measures

    start = service.requests.rate or 1.0
    return largest_rate(play, service.targets, start, 1 if fixed else seeds)


def times(service: Service) -> dict[str, Array]:
    """Columns of the table of requests."""
    m, r = service.measures, service.requests
    return {
        "arrival": service.played.arrived,
        "input": r.input.astype(np.float64),
        "output": r.output.astype(np.float64),
        "cached": service.played.cached,
        "queue": m.queue,
        "ttft": m.ttft,
        "tpot": m.tpot,
        "e2e": m.e2e,
        "end": service.played.end,
    }
