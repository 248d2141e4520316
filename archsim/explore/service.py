"""Serving a scenario: its plan, its requests, what was played, and what that costs."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import inf

import numpy as np

from archsim.arrays import Array, array
from archsim.explore.drafts import speculation_of
from archsim.explore.evaluate import deployment_of
from archsim.explore.parts import Part
from archsim.explore.result import Result, scalar_scenario
from archsim.explore.run import run
from archsim.explore.scenario import Scenario
from archsim.explore.second import job_of, second_deployment
from archsim.explore.sessions import Sessions, sessions_of
from archsim.serving.measures import Measures, Targets
from archsim.serving.server import apart, server_of
from archsim.serving.simulate import Played, Server, simulate
from archsim.workload.requests import Requests
from archsim.workload.sessions import in_lanes, started
from archsim.workload.traces import load_trace
from archsim.workload.traffic import TrafficFile, draw

PREFILLS = 64  # prompts at the most that a replica of a pool that only prefills has begun


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

    @cached_property
    def parts(self) -> tuple[Part, ...]:
        """The pools: the one that decodes first."""
        s, span, surface = self.scenario, self.measures.span, self.server.surface
        name, chips = s.system.main_name, float(s.split.chips.max())
        partner, first = s.partner, self.server.prefill
        if partner is None or job_of(s) == "draft":
            return (Part(name, self.server, self.played, s.chip, s.terms, chips, span, surface.energy),)
        others = float(partner.count.max())
        if first is None:
            own = Part(name, self.server, self.played, s.chip, s.terms, chips, span, surface.energy)
            away = surface.away
            return own, Part(partner.name, self.server, self.played, partner.chip, s.partner_terms, others, span, away)
        ahead, own_played = self.played.pools_apart()
        energy = first.server.surface.energy
        return (
            Part(name, self.server, own_played, s.chip, s.terms, chips, span, surface.energy),
            Part(partner.name, first.server, ahead, partner.chip, s.partner_terms, others, span, energy, only=True),
        )

    @property
    def chips(self) -> float:
        """Chips of all pools and replicas."""
        return sum(part.chips for part in self.parts)

    @cached_property
    def joules(self) -> float:
        """Energy on the boards of all chips, over the span."""
        return sum(part.joules for part in self.parts)

    @cached_property
    def power(self) -> float:
        """Mean board power of a chip (W)."""
        return self.joules / self.measures.span / self.chips if self.measures.span > 0 else float("nan")

    @property
    def energy_per_token(self) -> float:
        """Facility energy (J) of an output token."""
        rate = self.measures.output_rate
        return sum(part.facility_power for part in self.parts) / rate if rate > 0 else float("nan")

    @cached_property
    def dollars(self) -> float:
        """USD of the span."""
        return sum(part.dollars for part in self.parts)

    @cached_property
    def prefill_share(self) -> float:
        """Share of what the service costs that prefill adds to decode."""
        if len(self.parts) == 1 or not self.dollars:
            return self.parts[0].prefill_share
        spent = sum(part.dollars * part.prefill_share for part in self.parts if part.dollars)
        return spent / self.dollars

    @cached_property
    def cached_share(self) -> float:
        """Share of what the service costs in which prompts attend to cached tokens."""
        hits = np.flatnonzero(self.played.cached)
        cached = self.played.cached[hits]
        fresh = self.requests.input[hits] - cached
        part = self.parts[-1]  # the one that prefills
        weight = part.dollars / self.dollars if part.only and self.dollars else 1.0
        return part.cached_share(fresh, cached) * weight

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
    server = server_for(plan, found, asked)
    return played(plan, server, found, asked, progress)


def server_for(plan: Scenario, found: Requests, asked: Asked) -> Server:
    """What serves a plan: one pool, or one that decodes and one that prefills."""
    policy, d = plan.serving, deployment_of(plan)
    marks = [plan.mark("serving", *where) for where in (("scheduler",), ("kv", "eviction", "predictor"))]
    own = server_of(d, policy, found, marks[0], asked.seed, speculation_of(plan, d), marks[1], plan.skews)
    if job_of(plan) != "prefill" or plan.partner is None:
        return own
    given = policy.disaggregation
    first = policy.model_copy(
        update={
            "scheduler": given.scheduler or policy.scheduler,
            "max_tokens": given.max_tokens or policy.max_tokens,
            "max_batch": min(policy.max_batch, PREFILLS),
        }
    )
    other = second_deployment(plan)
    mark = plan.mark("serving", "disaggregation", "scheduler")
    ahead = server_of(other, first, found, mark, asked.seed, None, marks[1], plan.skews)
    return apart(own, d, ahead, other, plan.partner.back, given)


def played(
    plan: Scenario, server: Server, found: Requests, asked: Asked, progress: Callable[[float], None] | None = None
) -> Service:
    """A plan's server with requests played on it."""
    waiting = found.clients or found.after is not None  # what comes depends on what has ended
    limit = asked.seconds if asked.seconds is not None and waiting else inf
    done = simulate(found, server, plain=asked.plain, seconds=limit, events=asked.events, progress=progress)
    return Service(plan, server, found, done, targets_of(plan), asked)


def targets_of(scenario: Scenario) -> Targets:
    """The SLO of a scenario."""
    slo = scenario.slo
    tpot = [value for value in (slo.tpot, 1.0 / slo.interactivity if slo.interactivity else None) if value is not None]
    return Targets(slo.ttft, min(tpot) if tpot else None, slo.share)


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
