"""The largest rate that a service sustains, and the ratio of two pools that sustains most."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from archsim.arrays import array
from archsim.explore.scenario import Scenario, with_fields
from archsim.explore.service import Asked, Service, planned, played, requests_of, server_for, targets_of
from archsim.explore.workers import spread
from archsim.serving.goodput import Largest, Spread, largest_rate
from archsim.serving.measures import Measures
from archsim.serving.simulate import Server
from archsim.workload.requests import Requests


@dataclass(frozen=True, eq=False)
class AtRate:
    """Plays a plan's requests at a rate: those of its traffic with a seed, or `fixed` ones sped up."""

    plan: Scenario
    server: Server
    asked: Asked
    fixed: Requests | None

    def __call__(self, rate: float, seed: int) -> Measures:
        """Measures at a rate (requests a second)."""
        if self.fixed is not None:
            return played(self.plan, self.server, self.fixed.at_rate(rate), self.asked).measures
        found = requests_of(self.plan, self.asked, rate, self.asked.seed + seed)
        return played(self.plan, self.server, found, self.asked).measures


def best_rate(service: Service, seeds: int = 3, workers: int = 1) -> Largest:
    """The largest rate at which the scenario's SLO holds, for the same traffic with other seeds.

    A trace is the same for every seed, so it is played once. The answer is the same for any number of `workers`.
    """
    if service.requests.clients:
        return Largest(0.0, 0.0, (), "a closed loop has no rate of its own")
    asked, plan, found = service.asked, service.scenario, service.requests
    fixed = found if recorded(plan, asked) else None
    count = asked if fixed is not None else replace(asked, count=len(found), seconds=None)
    return _largest(AtRate(plan, service.server, count, fixed), found.rate, seeds, workers)


def recorded(plan: Scenario, asked: Asked) -> bool:
    """Whether requests are those of a trace, the same for every seed."""
    return asked.trace is not None or (asked.traffic is None and plan.trace is not None)


def _largest(run: AtRate, start: float, seeds: int, workers: int = 1) -> Largest:
    over: Spread = lambda work, tasks: spread(work, tasks, workers)  # noqa: E731
    return largest_rate(run, targets_of(run.plan), start or 1.0, seeds if run.fixed is None else 1, over)


@dataclass(frozen=True)
class Ratio:
    """One division of the chips: replicas that prefill and that decode, their chips, and the rate that they sustain."""

    prefill: int
    decode: int
    prefill_chips: int
    decode_chips: int
    largest: Largest

    @property
    def per_chip(self) -> float:
        """Requests a second and chip at the largest rate that keeps the SLO."""
        return self.largest.rate / (self.prefill_chips + self.decode_chips)


def best_ratio(
    scenario: Scenario,
    asked: Asked | None = None,
    ratios: Sequence[tuple[int, int]] | None = None,
    requests: Requests | None = None,
    seeds: int = 1,
    workers: int = 1,
) -> list[Ratio]:
    """Every division of the chips between a pool that prefills and one that decodes, the best goodput first.

    `ratios` are (replicas that prefill, replicas that decode); by default all that need no more chips than the scenario
    has in both pools and leave no replica's worth of them idle, which needs equal chips. Replicas keep the shape of the
    scenario's plan. Raises ValueError where there are no such pools, and Refused where no plan fits.
    """
    asked = asked or Asked()
    found = requests_of(scenario, asked) if requests is None else requests
    plan = planned(scenario, found)
    server = server_for(plan, found, asked)
    if server.prefill is None:
        raise ValueError("a ratio is of two pools; `mapper: prefill-decode` has them")
    fixed = found if requests is not None or recorded(plan, asked) else None
    count = asked if fixed is not None else replace(asked, count=len(found), seconds=None)
    run = AtRate(plan, server, count, fixed)
    tasks = [(run, found.rate, pair, seeds) for pair in ratios or divisions(plan)]
    return sorted(spread(_at, tasks, workers), key=lambda ratio: -ratio.per_chip)


def shapes(plan: Scenario) -> tuple[int, int]:
    """Chips of a replica that prefills, and of one that decodes."""
    split, other = plan.split, plan.split.partner
    if other is None:
        raise ValueError("there is no second pool")
    return int((other.ranks * other.pipeline).max()), int((split.ranks * split.pipeline).max())


def divisions(plan: Scenario) -> list[tuple[int, int]]:
    """Replicas of both pools that use up the chips of both, which are equal. Raises ValueError where they are not."""
    if plan.partner is None or plan.partner.chip.name != plan.chip.name:
        raise ValueError("pools of different chips do not share them; give `ratios`")
    first, second = shapes(plan)
    total = int(plan.all_chips.max())
    found = [(count, (total - count * first) // second) for count in range(1, total // first + 1)]
    return [(count, rest) for count, rest in found if rest > 0 and total - count * first - rest * second < first]


def _at(task: tuple[AtRate, float, tuple[int, int], int]) -> Ratio:
    """The largest rate of one division."""
    run, start, (first, second), seeds = task
    ahead = run.server.prefill
    if ahead is None:
        raise ValueError("there is no second pool")
    ahead = replace(ahead, server=replace(ahead.server, replicas=first))
    made = replace(run.server, replicas=second, prefill=ahead)
    largest = _largest(replace(run, plan=divided(run.plan, first, second), server=made), start, seeds)
    sizes = shapes(run.plan)
    return Ratio(first, second, first * sizes[0], second * sizes[1], largest)


def divided(plan: Scenario, first: int, second: int) -> Scenario:
    """The plan with so many replicas that prefill and that decode, and the chips for them."""
    sizes, partner = shapes(plan), plan.partner
    if partner is None:
        raise ValueError("there is no second pool")
    fields = {"chips": second * sizes[1], f"pools.{partner.name}.count": first * sizes[0]}
    data = {"data": array(second), "partner.data": array(first)}
    split = plan.split.mapped(lambda name, value: data.get(name, value))
    return replace(with_fields(plan, {name: array(value) for name, value in fields.items()}), split=split)
