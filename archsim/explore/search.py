"""Search over pairs of pools that are too many to price them all: best-first branch and bound, one pool at a time.

A step is never shorter than the work of the lanes of either pool, and that depends on the split of this pool alone. So
every split of one pool is priced beside one of the other; the larger of two such works bounds every pair from below,
and a pair's cost is bounded by that time and the rates of its chips. Pairs are priced by the engine in the order of
their bounds until no bound is left below the best: the answer is that of a search over all pairs.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from archsim.arrays import Array, array
from archsim.economics.money import rate
from archsim.economics.terms import HOUR
from archsim.explore.evaluate import StepAnswer, evaluate_step, legal
from archsim.explore.pools import count_of
from archsim.explore.result import METRICS, objective
from archsim.explore.scenario import Scenario
from archsim.mapping.roles import Indices, Space
from archsim.mapping.split import legality, partner_legality
from archsim.workload.operators import ROLES

CHUNK = 512  # pairs that are priced at a time
MOST = 300_000  # pairs left by the first bounds, some minutes of pricing
KEPT = 32  # of the best pairs, that are run again
ROOM = 1 << 21  # bounds that are looked at together
OUTSIDE = 1e12  # added to what misses the SLO
BOUNDED = ("tpot", "interactivity", "throughput", "cost_per_token")


@dataclass(frozen=True, eq=False)
class _Bounds:
    """Least seconds of a step by split of one pool (rows) and micro-batches (columns), infinite where it cannot run.

    `dollars` are the least USD a second of a pool by its splits, times a million over the batch; None where time is all
    that counts. `slowest` are seconds beyond which the SLO is missed.
    """

    main: Array
    partner: Array
    dollars: tuple[Array, Array] | None
    slowest: float

    @property
    def shape(self) -> tuple[int, int, int]:
        """Splits of the main pool, of the other, and numbers of micro-batches."""
        return self.main.shape[0], *self.partner.shape

    def rows(self) -> Iterator[tuple[int, Array]]:
        """The first of some splits of the main pool, and the bounds of all their pairs."""
        step = max(ROOM // self.partner.size, 1)
        for start in range(0, len(self.main), step):
            least = np.maximum(self.main[start : start + step, None, :], self.partner)
            key = least
            if self.dollars is not None:
                here, there = self.dollars
                key = (here[start : start + step, None, None] + there[:, None]) * least
            yield start, key + np.where(least > self.slowest, OUTSIDE, 0.0)

    def below(self, most: float) -> tuple[Indices, Array]:
        """Places of pairs whose bound is not above a limit, and their bounds, the lowest first."""
        places, keys = [np.empty(0, np.int64)], [np.empty(0)]
        for start, key in self.rows():
            kept = np.flatnonzero(np.isfinite(key) & (key <= most))
            places.append(kept + start * self.partner.size)
            keys.append(key.ravel()[kept])
        found, bounds = np.concatenate(places), np.concatenate(keys)
        order = np.argsort(bounds, kind="stable")
        return found[order], bounds[order]

    def promising(self) -> Indices:
        """Places of the pair with the lowest bound of each split of the main pool, the best of them."""
        lows, places = [np.empty(0)], [np.empty(0, np.int64)]
        for start, key in self.rows():
            flat = key.reshape(len(key), -1)
            at = np.argmin(flat, axis=1)
            lows.append(np.take_along_axis(flat, at[:, None], 1)[:, 0])
            places.append(at + (start + np.arange(len(key))) * self.partner.size)
        low = np.concatenate(lows)
        order = np.argsort(low, kind="stable")[:CHUNK]
        return np.concatenate(places)[order[np.isfinite(low[order])]]


def narrowed(scenario: Scenario) -> Scenario:
    """The scenario with the best of the pairs it proposes, at one point; it says how many were priced.

    Raises ValueError where an objective without a bound is asked of so many pairs, or bounds leave too many.
    """
    space = scenario.space
    if space is None:
        return scenario
    name, _ = objective(scenario, "step")
    if name not in BOUNDED:
        raise ValueError(f"{space.pairs:,} pairs of pools are searched by {', '.join(BOUNDED)} only; give fewer counts")
    bounds = _bounds(scenario, space, name)
    found = bounds.promising()
    found = found if found.size else np.zeros(1, np.int64)  # nothing fits: the refusal needs a pair to speak of
    keys = _keys(_paired(scenario, space, found, bounds.shape), name)
    places, lows = bounds.below(float(keys.min()))
    if places.size > MOST:
        raise ValueError(f"{places.size:,} pairs of pools are left by the bounds of {name}; give fewer counts of chips")
    for start in range(0, places.size, CHUNK):
        if lows[start] > keys.min():
            break
        some = np.setdiff1d(places[start : start + CHUNK], found)
        if some.size:
            found = np.concatenate([found, some])
            keys = np.concatenate([keys, _keys(_paired(scenario, space, some, bounds.shape), name)])
    kept = found[np.argsort(keys, kind="stable")[:KEPT]]
    text = f"branch and bound priced {found.size:,} of {space.pairs:,} pairs of splits"
    return replace(_paired(scenario, space, kept, bounds.shape), searched=text)


def _paired(scenario: Scenario, space: Space, places: Indices, shape: tuple[int, int, int]) -> Scenario:
    """The scenario with the pairs at some places (main, partner, micro-batches) as its proposals."""
    first, second, batches = np.unravel_index(places, shape)
    proposals = space.proposals(first, second, batches)
    system = count_of(scenario.system, scenario.system.main_name, proposals.chips)
    if scenario.partner is not None:
        system = count_of(system, scenario.partner.name, proposals.partner_chips)
    return replace(scenario, split=proposals.split, system=system, space=None)


def _bounds(scenario: Scenario, space: Space, name: str) -> _Bounds:
    """What bounds every pair from below."""
    main, partner = _halves(scenario, space)
    other, batch, slo = scenario.partner, scenario.batch, scenario.slo
    dollars = None
    if name == "cost_per_token" and other is not None and batch is not None:
        here = rate(scenario.chip, scenario.terms, array(0.0)).hourly * space.main_chips
        there = rate(other.chip, scenario.partner_terms, array(0.0)).hourly * space.partner_chips
        dollars = here / HOUR / batch * 1e6, there / HOUR / batch * 1e6
    limits = [slo.tpot, None if slo.interactivity is None else 1.0 / slo.interactivity]
    return _Bounds(main, partner, dollars, min([limit for limit in limits if limit is not None], default=np.inf))


def _halves(scenario: Scenario, space: Space) -> tuple[Array, Array]:
    """The work of each pool by its splits and micro-batches, priced beside one split of the other."""
    mains, partners, batches = len(space.mains), len(space.partners), len(space.batches)
    rows, columns = np.indices((mains, batches)).reshape(2, -1)
    one = _evaluated(scenario, space, rows, 0 * rows + partners - 1, columns)
    rows_, columns_ = np.indices((partners, batches)).reshape(2, -1)
    two = _evaluated(scenario, space, 0 * rows_ + mains - 1, rows_, columns_)
    own = _work(one, ("compute", "link"), rows.size)
    fits = one.memory.needed <= one.memory.capacity
    shared = legality(one.scenario.model, one.scenario.split, one.scenario.chips, _own_roles(scenario)) == 0
    first = np.where(np.broadcast_to(fits & shared, own.shape), own, np.inf).reshape(mains, batches)
    partner, other = two.scenario.partner, two.memory.partner
    if partner is None or other is None or two.scenario.split.partner is None:
        raise ValueError("a search over pairs needs two pools that share a model")
    theirs = _work(two, () if partner.pinned else ("ffn",), rows_.size)
    fine = other.fits & (partner_legality(scenario.model, two.scenario.split.partner, partner, partner.count) == 0)
    second = np.where(np.broadcast_to(fine, theirs.shape), theirs, np.inf).reshape(partners, batches)
    return first, second


def _own_roles(scenario: Scenario) -> frozenset[str]:
    return frozenset(ROLES) - (scenario.partner.roles if scenario.partner is not None else frozenset())


def _evaluated(scenario: Scenario, space: Space, first: Indices, second: Indices, batches: Indices) -> StepAnswer:
    shape = len(space.mains), len(space.partners), len(space.batches)
    places = np.ravel_multi_index((first, second, batches), shape)
    return evaluate_step(_paired(scenario, space, places, shape))


def _work(answer: StepAnswer, lanes: tuple[str, ...], count: int) -> Array:
    """Seconds that the busiest of some lanes works for one token; of chips pinned to layers nothing is known alone."""
    least = np.zeros(count)
    known = answer.decode.schedule.lanes
    for name in lanes:
        if name in known:
            least = np.maximum(least, known[name].cost.seconds)
    return np.asarray(least / answer.tokens_per_step)


def _keys(scenario: Scenario, name: str) -> Array:
    """What pairs are compared by, the lowest first; infinite where one cannot run."""
    answer = evaluate_step(scenario)
    usable = (legal(scenario) == 0) & (answer.fits > 0)
    value = METRICS["cost_per_token"][2](answer) if name == "cost_per_token" else answer.tpot
    slo, missed = scenario.slo, np.zeros(1, np.bool_)
    if slo.tpot is not None:
        missed = missed | (answer.tpot > slo.tpot)
    if slo.interactivity is not None:
        missed = missed | (answer.tpot * slo.interactivity > 1.0)
    if slo.ttft is not None:
        missed = missed | (answer.ttft > slo.ttft)
    return np.where(usable, value + np.where(missed, OUTSIDE, 0.0), np.inf).ravel()
