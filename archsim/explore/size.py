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
    the demand and the SLO in closed form as far as the search went. `foreseen` of them were put off, since the
    percentile of TPOT lay above its mean by more, in every one played, than they have room for: of these, each replica
    is played once, in the most copies that would still win, but for `left` when `tries` are over. `nearest` are the
    least TPOT and TTFT seen (s).
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
    foreseen: int
    left: int
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
    games = _Games(demand, percentile, progress)
    answer, least, foreseen = None, 0.0, 0
    limit = tpot_limit(scenarios[0].slo)
    for proposal in search.proposals():
        if proposal.tpot * least > limit:
            foreseen += 1
            games.later(proposal)
            continue
        trial = games.play(proposal)
        if trial.passes:
            answer = games.better(games.fewer(trial))
            break
        if trial.tpot > limit:
            games.later(proposal)
            ratio = trial.tpot / proposal.tpot
            least = min(least or ratio, ratio)
        else:
            search.again(proposal.times(proposal.copies + 1))
        if len(games.trials) >= demand.tries:
            break
    counts = search.splits, search.fitting, search.points, search.proposed, foreseen, games.left
    return Sized(demand, scenarios[0], percentile, answer, tuple(games.trials), *counts, search.nearest)


class _Games:
    """Proposals that were played."""

    def __init__(self, demand: Demand, percentile: float, progress: Callable[[str], None] | None) -> None:
        """Nothing is played yet."""
        self.demand, self.percentile, self.progress = demand, percentile, progress
        self.trials: list[Trial] = []
        self.rivals: list[Proposal] = []
        self.left = 0  # replicas that were put off and not played, since so many proposals had been

    def later(self, proposal: Proposal) -> None:
        """Keeps a replica that may do in another number; of one, the proposal with the least TPOT."""
        others = [one for one in self.rivals if not _same(one, proposal)]
        known = [one for one in self.rivals if _same(one, proposal)]
        self.rivals = [*others, min((*known, proposal), key=lambda one: one.tpot)]

    def failed(self, proposal: Proposal) -> int:
        """The most copies of a replica that failed; 0 where none was played."""
        trials = [one for one in self.trials if not one.passes and _same(one.proposal, proposal)]
        return max((one.proposal.copies for one in trials), default=0)

    def better(self, answer: Trial) -> Trial:
        """The answer, or a better one among the replicas that were put off: each in the most copies that would win."""
        name = self.demand.objective
        for rival in sorted(self.rivals, key=lambda one: one.tpot):
            each = rival.value(name) / rival.copies
            copies = ceil(answer.proposal.value(name) / each * (1.0 - 1e-9)) - 1
            if copies > self.failed(rival) and not _same(rival, answer.proposal):
                if len(self.trials) >= self.demand.tries:
                    self.left += 1
                    continue
                trial = self.play(rival.times(copies))
                answer = self.fewer(trial) if trial.passes else answer
        return answer

    def play(self, proposal: Proposal) -> Trial:
        """Plays one more."""
        if self.progress is not None:
            self.progress(f"playing {proposal.chips} chips")
        self.trials.append(played(proposal, self.demand, self.percentile))
        return self.trials[-1]

    def fewer(self, passing: Trial) -> Trial:
        """The fewest copies of a replica that pass: the closed form may ask for more than it takes.

        Downwards in steps that double, and then by halving; what failed before is not played again.
        """
        best, low, step = passing, self.failed(passing.proposal), 1
        while best.proposal.copies - low > 1:
            high = best.proposal.copies
            copies = (low + high) // 2 if low else max(high - step, 1)
            trial = self.play(best.proposal.times(copies))
            if trial.passes:
                best, step = trial, step * 2
            else:
                low = copies
        return best


def _same(one: Proposal, other: Proposal) -> bool:
    """Whether two proposals are copies of one replica."""
    theirs = other.split.named()
    same = all((value == theirs[name]).all() for name, value in one.split.named().items())
    return one.scenario is other.scenario and same


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
