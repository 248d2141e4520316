"""A proposal for a demand, and what becomes of it when its requests are played one by one."""

from dataclasses import dataclass, replace
from functools import cached_property
from math import ceil, isfinite

import numpy as np

from archsim.arrays import Array, array
from archsim.explore.deployments import tpot_limit
from archsim.explore.pools import count_of
from archsim.explore.replicas import lengths
from archsim.explore.scenario import Scenario
from archsim.explore.service import Asked, Service, serve
from archsim.mapping.mapper import load_mapper
from archsim.mapping.split import Split

OBJECTIVES = ("chips", "cost", "power")
TRIES = 12  # proposals played before the search gives up
REQUESTS = 1000  # played at the least
LONGEST = 40_000  # played at the most
WARM = 0.25  # share of the requests that is not counted, since the chips start empty
ROUNDS = 6.0  # times that the system's content is exchanged while it is played
MAPPERS = ("tensor-parallel", "context-parallel", "pipeline", "expert-parallel", "auto", "layer-pipeline")


@dataclass(frozen=True)
class Demand:
    """What is asked: requests a second, or sessions that each wait for their answer; at an objective of OBJECTIVES.

    `percentile` of TTFT and of TPOT must keep the SLO (default: the share the scenario names). `largest` are the chips
    of a replica at the most.
    """

    rate: float | None = None
    sessions: int | None = None
    objective: str = "chips"
    percentile: float | None = None
    largest: int | None = None
    tries: int = TRIES
    requests: int | None = None
    seed: int = 0

    def check(self) -> None:
        """Raises ValueError for a demand that is none."""
        if (self.rate is None) == (self.sessions is None):
            raise ValueError("give a rate of requests or a number of sessions, one of them")
        if self.objective not in OBJECTIVES:
            raise ValueError(f"no objective {self.objective!r}; there are {', '.join(OBJECTIVES)}")

    @property
    def amount(self) -> float:
        """Requests a second, or sessions."""
        return float(self.sessions if self.rate is None else self.rate)  # type: ignore[arg-type]


@dataclass(frozen=True, eq=False)
class Proposal:
    """So many copies of a replica, as the closed form sees them at the largest batch they need.

    `batch` is sequences in decode of one replica, times are in seconds, `hourly` and `watts` are of all chips.
    """

    scenario: Scenario
    split: Split
    copies: int
    replica: int
    batch: float
    tpot: float
    ttft: float
    hourly: float
    watts: float

    @property
    def chips(self) -> int:
        """Chips of all replicas."""
        return self.copies * self.replica

    def value(self, objective: str) -> float:
        """What is to be as little as possible."""
        return {"chips": float(self.chips), "cost": self.hourly, "power": self.watts}[objective]

    def times(self, copies: int) -> "Proposal":
        """The same replica in another number."""
        scale = copies / self.copies
        return replace(self, copies=copies, hourly=self.hourly * scale, watts=self.watts * scale)

    @cached_property
    def system(self) -> Scenario:
        """The scenario that it describes."""
        system = count_of(self.scenario.system, self.scenario.system.main_name, array(float(self.chips)))
        split = replace(self.split, data=array(float(self.copies)))
        return replace(self.scenario, split=split, system=system, mapper=None, batch=None, context=None)

    @property
    def mapper(self) -> str:
        """The mapper that proposes this split for so many chips; empty where it has to be given."""
        wanted = {name: float(value.max()) for name, value in self.system.split.named().items()}
        for name in MAPPERS:
            if name == "expert-parallel" and wanted["expert"] == 1.0:
                continue
            try:
                found = load_mapper(name).propose(self.scenario.model, self.system.system.main).named()
            except ValueError:
                continue
            columns = [np.broadcast_to(found[key], found["tensor"].shape) == value for key, value in wanted.items()]
            if np.logical_and.reduce(columns).any():
                return name
        return ""


@dataclass(frozen=True, eq=False)
class Trial:
    """A proposal that was played: TTFT and TPOT (s) at the percentile, and why it is no answer (empty: it is one)."""

    proposal: Proposal
    service: Service
    ttft: float
    tpot: float
    why: str

    @property
    def passes(self) -> bool:
        """Whether it keeps the SLO."""
        return not self.why


def played(proposal: Proposal, demand: Demand, percentile: float) -> Trial:
    """A proposal with its requests played one by one. The first WARM of them, or the first of each
    session, are not counted: the chips start empty, and all sessions at once.
    """
    scenario = proposal.system
    service = serve(scenario, _asked(proposal, demand))
    m = service.measures
    order = np.argsort(service.played.arrived, kind="stable")
    first = max(round(WARM * order.size), min(demand.sessions or 0, order.size // 2))
    kept = order[first:]
    ttft, tpot = (_percentile(values[kept], percentile) for values in (m.ttft, m.tpot))
    slo, name = scenario.slo, f"p{percentile:g}"
    why = ""
    if not service.played.finished.all():
        why = f"{int((~service.played.finished).sum())} requests did not finish"
    elif demand.rate is not None and _grows(service):
        why = "requests come in faster than they are served"
    elif slo.ttft is not None and ttft > slo.ttft:
        why = f"{name} TTFT is {ttft:.3g} s, {slo.ttft:.3g} s are asked"
    elif tpot > tpot_limit(slo):
        why = f"{name} TPOT is {tpot * 1e3:.3g} ms, {tpot_limit(slo) * 1e3:.3g} ms are asked"
    return Trial(proposal, service, ttft, tpot, why)


def _percentile(values: Array, percentile: float) -> float:
    known = values[np.isfinite(values)]
    return float(np.percentile(known, percentile)) if known.size else 0.0


def _asked(proposal: Proposal, demand: Demand) -> Asked:
    """The requests to play: so many that the system's content is exchanged several times, whatever is proposed."""
    scenario = proposal.system
    if scenario.traffic is None:
        raise ValueError("nothing to play: give `traffic` in the scenario")
    if demand.sessions is not None:
        closed = scenario.traffic.model_copy(update={"arrivals": "closed", "clients": demand.sessions, "profile": ()})
        return Asked(traffic=closed, count=demand.requests or _number(demand.sessions), seed=demand.seed)
    _, output = lengths(scenario)
    slo, limit = scenario.slo, tpot_limit(scenario.slo)
    tpot, ttft = limit if isfinite(limit) else proposal.tpot, slo.ttft if slo.ttft is not None else proposal.ttft
    number = demand.requests or _number(demand.amount * (ttft + float(output.max()) * tpot))
    return Asked(traffic=scenario.traffic, rate=demand.rate, count=number, seed=demand.seed)


def _number(content: float) -> int:
    return int(min(max(REQUESTS, ceil(ROUNDS * content)), LONGEST))


def _grows(service: Service) -> bool:
    """Whether more requests are under way when the last one comes than halfway, by more than chance."""
    arrived, end = service.played.arrived, service.played.end
    last = float(arrived.max())
    half, full = (int(((arrived <= time) & (end > time)).sum()) for time in (last / 2.0, last))
    return bool(full > 1.5 * half + 5.0 * half**0.5 + 10.0)
