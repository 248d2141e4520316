"""Every legal deployment of one model on so many chips of a kind, and the best of them: exhaustive and exact.

Aggregated: replicas of every split, prefill among decode. Disaggregated: one pool prefills, the other decodes, at every
ratio, each in replicas of every split of its own. Every batch. The pools meet in one number only, the rate of requests,
so each is priced once and all pairs are ranked by arithmetic; a mixed step is priced only where decode alone, which
bounds it, would still make the list.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from time import perf_counter

import numpy as np

from archsim.arrays import Array, array
from archsim.explore.evaluate import at_the_chip, deployment_of
from archsim.explore.replicas import Integers, Replicas, blocks, lengths, picked, replicas
from archsim.explore.scenario import Scenario, SloFile
from archsim.explore.second import handover
from archsim.mapping.memory import memory_plan
from archsim.mapping.split import Split
from archsim.mapping.system import Partner, Pool, System, Wire
from archsim.serving.disaggregated import Prefilling, prefilling
from archsim.serving.steady import expert_layers

BUSY = 0.95  # of the time a pool prefills at the most, where no TTFT bounds its queue
TOP = 10  # deployments in the list
TOGETHER = 1024  # points whose mixed steps are priced together


@dataclass(frozen=True, eq=False)
class Found:
    """A deployment at its best batch: seconds, output tokens/s of all chips, sequences in decode, clients in all.

    A disaggregated one has the split of the pool that prefills as `split.partner`, and so many `prefill_chips`.
    """

    split: Split
    chips: int
    prefill_chips: int
    batch: float
    clients: float
    tpot: float
    ttft: float
    throughput: float

    @property
    def disaggregated(self) -> bool:
        """Whether a pool of its own prefills."""
        return self.prefill_chips > 0

    @property
    def per_chip(self) -> float:
        """Output tokens a second of one chip."""
        return self.throughput / self.chips


@dataclass(frozen=True, eq=False)
class Deployments:
    """The best deployments, best first, and what was looked at for them.

    `aggregated` and `disaggregated` count deployments that are legal and fit, `points` those at every batch; `priced`
    are decode steps, `mixed` steps with prefill, `prefills` prefill steps that the engine priced. `fastest` are the
    least TPOT and the least TTFT of any (s), for when the list is empty.
    """

    scenario: Scenario
    chips: int
    found: tuple[Found, ...]
    aggregated: int
    disaggregated: int
    points: int
    priced: int
    mixed: int
    prefills: int
    fastest: tuple[float, float]
    seconds: float

    def best(self, disaggregated: bool) -> Found | None:
        """The best of one kind; None where none keeps the SLO."""
        return next((one for one in self.found if one.disaggregated == disaggregated), None)


def deployments(scenario: Scenario, chips: int | None = None, top: int = TOP) -> Deployments:
    """Searches every deployment on so many chips (default: those of the scenario) for the most tokens a second a chip.

    The `top` of both kinds that keep the SLO are in the list. Raises ValueError for two pools, or without traffic.
    """
    start = perf_counter()
    count = chips if chips is not None else int(scenario.chips.max())
    every = replicas(scenario, count)
    together = _Aggregated(every, count, top)
    apart = _Disaggregated(every, count, top)
    rows = sorted((*together.found(), *apart.found()), key=lambda one: (-one.throughput, one.tpot, one.ttft))
    fastest = float(every.plain.min(initial=np.inf)), apart.first_token
    return Deployments(
        scenario,
        count,
        tuple(rows),
        together.deployments,
        apart.deployments,
        together.points + apart.points,
        len(every),
        together.priced,
        apart.service.size,
        fastest,
        perf_counter() - start,
    )


def tpot_limit(slo: SloFile) -> float:
    """Seconds between tokens that an SLO allows; infinite where it says nothing."""
    given = [slo.tpot, 1.0 / slo.interactivity if slo.interactivity else None]
    return min((value for value in given if value is not None), default=np.inf)


class _Aggregated:
    """Prefill among decode: the best batch of each split, in the order in which decode alone bounds them."""

    def __init__(self, every: Replicas, chips: int, top: int) -> None:
        """Finds the points of replicas that fill the chips."""
        self.every, self.chips, self.top = every, chips, top
        fills = chips % every.chips == 0
        self.deployments = int(fills.sum())
        self.index = np.flatnonzero(fills[every.shape])
        self.points = self.index.size
        self.priced = 0

    def found(self) -> list[Found]:
        """The best of the list, one a split. Decode alone takes no longer than with prefill: its rate is a bound."""
        every = self.every
        tpot = tpot_limit(every.scenario.slo)
        index = self.index[every.plain[self.index] <= tpot]
        bound = self._copies(index) * every.batch[index] / every.plain[index]
        order = np.argsort(-bound, kind="stable")
        best: dict[int, _Point] = {}
        for part in blocks(order, TOGETHER):
            least = sorted((one.rate for one in best.values()), reverse=True)[: self.top]
            if len(least) == self.top and bound[part[0]] < least[-1]:
                break
            for one in self._priced(index[part], tpot):
                if one.shape not in best or (one.rate, -one.tpot) > (best[one.shape].rate, -best[one.shape].tpot):
                    best[one.shape] = one
        return [self._row(one) for one in sorted(best.values(), key=lambda one: -one.rate)[: self.top]]

    def _copies(self, index: Integers) -> Array:
        """Replicas at some points."""
        return self.chips / self.every.chips[self.every.shape[index]]

    def _priced(self, index: Integers, tpot: float) -> Iterator["_Point"]:
        """The points that keep the SLO and fit."""
        every, answer = self.every, self.every.loop(index)
        self.priced += index.size * answer.loop.mixed.span.shape[-1]
        rate = answer.output_rate[:, 0] * self._copies(index)
        running, seconds, first = (value[:, 0] for value in (answer.loop.running, answer.tpot, answer.ttft))
        kept = (seconds <= tpot) & (first <= (every.scenario.slo.ttft or np.inf)) & np.isfinite(first)
        for row in np.flatnonzero(kept & (running <= every.room[every.shape[index]])):
            point = int(index[row])
            numbers = (float(value[row]) for value in (rate, running, seconds, first))
            yield _Point(point, int(every.shape[point]), *numbers)

    def _row(self, one: "_Point") -> Found:
        copies = float(self._copies(np.array([one.index]))[0])
        split = replace(picked(self.every.split, np.array([one.shape])), data=array(copies))
        batch, clients = float(self.every.batch[one.index]) * copies, one.clients * copies
        return Found(split, self.chips, 0, batch, clients, one.tpot, one.ttft, one.rate)


@dataclass(frozen=True)
class _Point:
    """A point of a replica with prefill among decode: output tokens/s of all, clients of one, seconds."""

    index: int
    shape: int
    rate: float
    clients: float
    tpot: float
    ttft: float


class _Disaggregated:
    """One pool prefills, another decodes: each split of either priced once, all pairs ranked by the rate they share."""

    def __init__(self, every: Replicas, chips: int, top: int) -> None:
        """Prices prefill alone on every replica that has memory for it."""
        self.every, self.chips, self.top = every, chips, top
        scenario = every.scenario
        prompt, self.output = lengths(scenario)
        d = replace(deployment_of(scenario), split=every.every)
        fits = np.broadcast_to(memory_plan(d, d.split.groups, prompt).fits, d.split.chips.shape)
        self.splits = picked(every.every, np.flatnonzero(fits & (d.split.chips < chips)))
        self.sizes = np.broadcast_to(self.splits.chips, self.splits.chips.shape)
        d = replace(d, split=self.splits)
        with at_the_chip(scenario):
            self.first: Prefilling = prefilling(d, prompt, scenario.cached)
        self.tensors = np.unique(every.split.tensor)
        host = d.runtime.host.arrival + d.runtime.host.expert_layer * expert_layers(d)
        exposed = handover(_paired(scenario, self.splits, self.tensors), prompt, self.first.alone[:, None])
        self.service = np.broadcast_to(self.first.alone[:, None] + exposed + host, (self.sizes.size, self.tensors.size))
        self.deployments = self.points = 0

    @property
    def first_token(self) -> float:
        """The least TTFT (s) of any prefill pool, without a queue."""
        return float(self.service.min(initial=np.inf))

    @cached_property
    def load(self) -> Array:
        """The share of its time that a pool may prefill: TTFT is the service and the wait of an M/D/1 queue."""
        limit, each = self.every.scenario.slo.ttft, self.first.each[:, None]
        if limit is None:
            return np.full_like(self.service, BUSY)
        wait = np.maximum(limit - self.service, 0.0)
        return np.minimum(2.0 * wait / (each + 2.0 * wait), BUSY)

    def found(self) -> list[Found]:
        """The best of the list, one a decode split and ratio."""
        rows: list[tuple[float, float, int, int, int]] = []
        starts = np.searchsorted(self.every.shape, np.arange(self.every.room.size + 1))
        for prefill in range(1, self.chips):
            here = np.flatnonzero(prefill % self.sizes == 0)
            there = np.flatnonzero((self.chips - prefill) % self.every.chips == 0)
            self.deployments += here.size * there.size
            self.points += here.size * int((starts[there + 1] - starts[there]).sum())
            if here.size and there.size:
                rows += self._ratio(prefill, here, there, starts)
                rows = sorted(rows)[: self.top]
        return [self._row(*row[2:]) for row in rows]

    def _ratio(
        self, prefill: int, here: Integers, there: Integers, starts: Integers
    ) -> Iterator[tuple[float, float, int, int, int]]:
        """(minus the rate, TTFT, prefill chips, prefill split, point of decode) of each decode split at one ratio."""
        most = (self.first.most[here] * (prefill / self.sizes[here]))[:, None] * self.load[here]
        limit = tpot_limit(self.every.scenario.slo)
        tensor = np.searchsorted(self.tensors, self.every.split.tensor)
        for shape in there:
            points = np.arange(starts[shape], starts[shape + 1])
            points = points[self.every.plain[points] <= limit]
            rates = self._rates(points, (self.chips - prefill) / self.every.chips[shape])
            order = np.argsort(rates, kind="stable")
            column = int(tensor[shape])
            place = np.searchsorted(rates[order], most[:, column], side="right") - 1
            if points.size and place.max() >= 0:
                point = points[order[place.max()]]
                rate = rates[order[place.max()]]
                chosen = np.flatnonzero(place == place.max())
                waits = self._ttft(here[chosen], column, prefill, rate)
                least = int(np.argmin(waits))
                yield -float(rate), float(waits[least]), prefill, int(here[chosen[least]]), int(point)

    def _rates(self, points: Integers, copies: float) -> Array:
        """Requests a second of so many copies of decode replicas."""
        return np.asarray(self.every.batch[points] / self.every.plain[points] / self.output * copies)

    def _ttft(self, index: Integers, tensor: int, prefill: int, rate: float) -> Array:
        """Seconds to the first token at a rate of requests."""
        load = rate / (self.first.most[index] * prefill / self.sizes[index])
        return np.asarray(self.service[index, tensor] + load * self.first.each[index] / (2.0 * (1.0 - load)))

    def _row(self, prefill: int, first: int, point: int) -> Found:
        shape = int(self.every.shape[point])
        copies = (self.chips - prefill) / float(self.every.chips[shape])
        tensor = int(
            np.searchsorted(self.tensors, np.broadcast_to(self.every.split.tensor, self.every.room.shape)[shape])
        )
        rate, tpot = float(self._rates(np.array([point]), copies)[0]), float(self.every.plain[point])
        ttft = float(self._ttft(np.array([first]), tensor, prefill, rate)[0])
        other = replace(picked(self.splits, np.array([first])), data=array(prefill / self.sizes[first]))
        split = replace(picked(self.every.split, np.array([shape])), data=array(copies), partner=other)
        tokens = float(self.output.max())
        clients = rate * (ttft + tokens * tpot)
        batch = float(self.every.batch[point]) * copies
        return Found(split, self.chips, prefill, batch, clients, tpot, ttft, rate * tokens)


def _paired(scenario: Scenario, prefill: Split, tensors: Array) -> Scenario:
    """The scenario as two pools of its chip, joined by scale_out links: prefill splits x tensor ranks that decode."""
    chip = scenario.chip
    link = chip.links.get("scale_out") or next(iter(chip.links.values()))
    wire = Wire(link.name, link.latency, link.bandwidth, link.bandwidth)
    one = array(1.0)
    partner = Partner("prefill", "prefill", frozenset({"prefill"}), chip, scenario.runtime, one, False, wire, wire)
    other = picked(prefill, np.arange(prefill.chips.size), 1)
    decode = Split(tensors[None, :], one, one, one, partner=other)
    pools = {"decode": Pool(chip, one), "prefill": Pool(chip, one)}
    return replace(scenario, system=System(pools, partner), split=decode)
