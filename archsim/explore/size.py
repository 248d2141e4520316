"""The fewest, the cheapest or the least hungry chips for a rate of requests, or for sessions, and an SLO.

The closed form proposes: every legal split of a replica at every batch, as many copies as the demand needs, in order of
the objective. Serving decides: a proposal is an answer once its requests, played one by one, keep the SLO at its
percentile.
"""

import heapq
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from math import ceil, inf, isfinite

import numpy as np

from archsim.arrays import Array
from archsim.catalog import Document, validate
from archsim.chip.schema import load_chip
from archsim.economics.money import rate as chip_rate
from archsim.economics.money import wall_power
from archsim.economics.terms import HOUR
from archsim.explore.bill import dollars_per_second, facility_power
from archsim.explore.deployments import tpot_limit
from archsim.explore.played import Demand, Proposal, Trial, played
from archsim.explore.pools import NATIVE
from archsim.explore.replicas import Replicas, blocks, lengths, picked, replicas
from archsim.explore.scenario import Scenario, ScenarioFile, build

LARGEST = 64  # chips of a replica at the most, unless the scenario has more
TOGETHER = 1024  # points whose mixed steps are priced together


@dataclass(frozen=True, eq=False)
class Sized:
    """The answer, what was played on the way to it, and what was looked at.

    `splits` are legal, `fitting` have memory, `points` are those at every batch of all kinds of chips, `proposals` keep
    the demand and the SLO in closed form as far as the search went. `nearest` are the least TPOT and TTFT seen (s).
    """

    demand: Demand
    scenario: Scenario
    percentile: float
    answer: Trial | None
    trials: tuple[Trial, ...]
    splits: int
    fitting: int
    points: int
    proposals: int
    nearest: tuple[float, float]

    @property
    def reason(self) -> str:
        """Why there is no answer; empty where there is one."""
        if self.answer is not None:
            return ""
        slo = self.scenario.slo
        if not self.fitting:
            return f"none of the {self.splits:,} legal splits of a replica has memory for the weights and one request"
        if self.nearest[0] > tpot_limit(slo):
            return (
                f"no split is fast enough: the least time of a token is {self.nearest[0] * 1e3:.3g} ms, "
                f"{tpot_limit(slo) * 1e3:.3g} ms are asked"
            )
        if slo.ttft is not None and self.nearest[1] > slo.ttft:
            return f"no split is fast enough: the least TTFT is {self.nearest[1]:.3g} s, {slo.ttft:.3g} s are asked"
        if self.trials:
            return f"{len(self.trials)} proposals were played and none kept the SLO: of the last, {self.trials[-1].why}"
        return "no split keeps TTFT and TPOT at once, at any batch"

    @property
    def helps(self) -> tuple[str, ...]:
        """What would help where there is no answer."""
        slo = self.scenario.slo
        if self.answer is not None:
            return ()
        if not self.fitting:
            return ("larger replicas (--largest)", "chips with more memory (--chips)", "narrower weights (`precision`)")
        if self.nearest[0] > tpot_limit(slo):
            return (f"at most {1.0 / self.nearest[0]:.3g} tok/s a user", "chips with more bandwidth (--chips)")
        if slo.ttft is not None and self.nearest[1] > slo.ttft:
            return (f"a TTFT of {self.nearest[1]:.3g} s or more", "chips with a higher peak (--chips)")
        return ("a looser SLO or a lower percentile", "more proposals (--tries)", "larger replicas (--largest)")


def size(scenarios: Sequence[Scenario], demand: Demand, progress: Callable[[str], None] | None = None) -> Sized:
    """Sizes a demand on the chips of one scenario, or on those of several that differ in their chip only.

    Raises ValueError for a demand that is none, for two pools, without traffic, and for a cost without a price.
    """
    demand.check()
    search = _Search(scenarios, demand)
    percentile = demand.percentile if demand.percentile is not None else 100.0 * scenarios[0].slo.share
    trials: list[Trial] = []
    answer = None
    for proposal in search.proposals():
        if progress is not None:
            progress(f"playing {proposal.chips} chips")
        trials.append(played(proposal, demand, percentile))
        if trials[-1].passes:
            answer = _fewer(trials, demand, percentile)
            break
        search.again(proposal.times(proposal.copies + 1))
        if len(trials) >= demand.tries:
            break
    counts = search.splits, search.fitting, search.points, search.proposed
    return Sized(demand, scenarios[0], percentile, answer, tuple(trials), *counts, search.nearest)


def _fewer(trials: list[Trial], demand: Demand, percentile: float) -> Trial:
    """The last trial, or one with fewer copies that passes too: the closed form may ask for more than it takes."""
    best = trials[-1]
    while best.proposal.copies > 1:
        trials.append(played(best.proposal.times(best.proposal.copies - 1), demand, percentile))
        if not trials[-1].passes:
            break
        best = trials[-1]
    return best


class _Search:
    """Proposals in order of the objective. A decode step without prefill bounds what a replica can carry, so that most
    points are never priced with it."""

    def __init__(self, scenarios: Sequence[Scenario], demand: Demand) -> None:
        """Prices a decode step at every point of every kind of chip."""
        self.demand = demand
        self.kinds = [replicas(one, demand.largest or max(LARGEST, int(one.chips.max()))) for one in scenarios]
        self.splits = sum(kind.every.chips.size for kind in self.kinds)
        self.fitting = sum(kind.room.size for kind in self.kinds)
        self.points = sum(len(kind) for kind in self.kinds)
        self.proposed = 0
        self.nearest = min((float(kind.plain.min(initial=inf)) for kind in self.kinds), default=inf), inf
        self.heap: list[tuple[float, float, int, Proposal]] = []
        self.ticket = count()

    def again(self, proposal: Proposal) -> None:
        """Takes a proposal back into the queue."""
        value = proposal.value(self.demand.objective)
        heapq.heappush(self.heap, (value, proposal.tpot, next(self.ticket), proposal))

    def proposals(self) -> Iterator[Proposal]:
        """Every proposal once, the best first: none is given before all that could be better are priced."""
        kinds = np.concatenate([np.full(len(kind), at) for at, kind in enumerate(self.kinds)])
        points = np.concatenate([np.arange(len(kind)) for kind in self.kinds])
        bounds = np.concatenate([_bounds(kind, self.demand) for kind in self.kinds])
        order = np.argsort(bounds, kind="stable")
        order = order[np.isfinite(bounds[order])]
        given: set[tuple[int, bytes, int]] = set()
        for part in blocks(order, TOGETHER):
            yield from self._below(float(bounds[part[0]]), given)
            for at, kind in enumerate(self.kinds):
                own = points[part[kinds[part] == at]]
                if own.size:
                    self._price(kind, own)
        yield from self._below(inf, given)

    def _below(self, bound: float, given: set[tuple[int, bytes, int]]) -> Iterator[Proposal]:
        while self.heap and self.heap[0][0] < bound:
            proposal = heapq.heappop(self.heap)[3]
            degrees = np.array([float(value.max()) for value in proposal.split.named().values()]).tobytes()
            key = id(proposal.scenario), degrees, proposal.copies
            if key not in given:
                given.add(key)
                yield proposal

    def _price(self, kind: Replicas, index: "np.typing.NDArray[np.intp]") -> None:
        """Prices points with prefill, and queues those that keep the SLO."""
        answer, slo = kind.loop(index), kind.scenario.slo
        tpot, ttft = answer.tpot[:, 0], answer.ttft[:, 0]
        fits = answer.loop.running[:, 0] <= kind.room[kind.shape[index]]
        quick = np.flatnonzero(fits & (tpot <= tpot_limit(slo)) & np.isfinite(ttft))
        self.nearest = self.nearest[0], min(self.nearest[1], float(ttft[quick].min(initial=inf)))
        carried = _carried(self.demand, kind.scenario, answer.loop.requests_per_second[:, 0], tpot, ttft)
        hourly = np.broadcast_to(dollars_per_second(answer) * HOUR, answer.tpot.shape)[:, 0]
        watts = np.broadcast_to(facility_power(answer), answer.tpot.shape)[:, 0]
        for row in quick[ttft[quick] <= (slo.ttft or inf)]:
            point = int(index[row])
            copies = ceil(self.demand.amount / carried[row] * (1.0 - 1e-9))
            shape = np.array([kind.shape[point]])
            self.proposed += 1
            self.again(
                Proposal(
                    kind.scenario,
                    picked(kind.split, shape),
                    copies,
                    int(kind.chips[shape[0]]),
                    float(kind.batch[point]),
                    float(tpot[row]),
                    float(ttft[row]),
                    float(hourly[row]) * copies,
                    float(watts[row]) * copies,
                )
            )


def _carried(demand: Demand, scenario: Scenario, rate: Array, tpot: Array, ttft: Array) -> Array:
    """Requests a second of one replica, or sessions, those that think included (Little's law)."""
    if demand.rate is not None:
        return rate
    _, output = lengths(scenario)
    think = 0.0 if scenario.traffic is None else scenario.traffic.think
    return rate * (ttft + output * tpot + think)


def _bounds(kind: Replicas, demand: Demand) -> Array:
    """The least that the objective can be at each point: as many copies as decode alone would need, chips idling.

    Infinite where decode alone is too slow for the SLO.
    """
    scenario = kind.scenario
    _, output = lengths(scenario)
    limit = scenario.slo.ttft if scenario.slo.ttft is not None else inf
    rate = kind.batch / (kind.plain * output)
    most = _carried(demand, scenario, rate, kind.plain, np.full_like(rate, limit))
    copies = np.maximum(np.ceil(demand.amount / most * (1.0 - 1e-9)), 1.0)
    idle = scenario.chip.power.idle
    unit = 1.0
    if demand.objective == "cost":
        unit = float(chip_rate(scenario.chip, scenario.terms, idle).hourly.max())
        if not isfinite(unit):
            raise ValueError(f"no price of {scenario.chip.name} is known; give `economics: {{rent: 3 USD/h}}`")
    elif demand.objective == "power":
        unit = float(wall_power(idle, scenario.terms).max())
    value = copies * kind.chips[kind.shape] * unit
    return np.where(kind.plain <= tpot_limit(scenario.slo), value, inf)


# Other chips


def on_chip(scenario: Scenario, name: str) -> Scenario:
    """The scenario on another kind of chip. Raises CatalogError for a chip that does not exist or does not suit it."""
    chip = load_chip(name)
    if scenario.marks is None or scenario.partner is not None:
        raise ValueError("other chips are tried for a scenario with one pool, from its file")
    data = {key: value for key, value in scenario.marks.data.items() if key not in ("split", "mapper")}
    if scenario.runtime.stack not in chip.generation.kernels:
        data["runtime"] = NATIVE if chip.kind == "lpu" else "native"
    pool = {"chip": name, "count": 1}
    document = Document(scenario.marks.path, data | {"pools": {scenario.system.main_name: pool}}, scenario.marks.marks)
    return build(validate(ScenarioFile, document), document)
