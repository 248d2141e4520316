"""Replicas: every legal way to run one model on a few chips of a kind, priced at every batch.

Replicas share nothing, so a pool of chips is so many times one of these. What a search needs of the engine is priced
here, once; what is bounded away is never priced at all.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from archsim.arrays import Array, array
from archsim.engine.step import PricedStep
from archsim.explore.evaluate import SteadyAnswer, at_the_chip, deployment_of, priced
from archsim.explore.pools import count_of
from archsim.explore.scenario import Scenario
from archsim.mapping.memory import memory_plan
from archsim.mapping.place import Deployment
from archsim.mapping.split import Split, kv_copies, legality
from archsim.mapping.split import split as split_of
from archsim.mapping.system import divisors
from archsim.serving.steady import HELD, sustaining
from archsim.workload.model import Model, Moe
from archsim.workload.step import decode

Integers = np.typing.NDArray[np.intp]

FINE = 16  # sequences of a rank up to which every number is looked at
COARSE = 40  # numbers beyond that, spread evenly over their logarithm up to what the memory holds
POINTS = 4096  # priced together: what the caches of a core hold


def shapes(model: Model, most: int) -> Split:
    """Every legal split of a replica of at most `most` chips, along axis 0: TP, attention DP, EP, PP and context ranks.

    Data-parallel attention without experts to share is nothing but replicas, and so not among them.
    """
    routed = any(isinstance(block.ffn, Moe) for block in model.blocks.values())
    rows = list(_rows(model, most, routed))
    columns = dict(
        zip(
            ("tensor", "attention_data", "pipeline", "expert", "context"),
            np.array(rows, dtype=np.float64).T,
            strict=True,
        )
    )
    found = split_of(**columns)
    return picked(found, np.flatnonzero(legality(model, found, found.chips) == 0))


def _rows(model: Model, most: int, routed: bool) -> Iterator[tuple[int, ...]]:
    for tensor in range(1, most + 1):
        if legality(model, split_of(tensor=tensor), array(tensor)).max() in (2.0, 3.0, 10.0):
            continue
        copies = divisors(kv_copies(model, tensor))
        for groups in range(1, most // tensor + 1 if routed else 2):
            ranks = tensor * groups
            experts = divisors(ranks) if routed else [1]
            for stages in range(1, min(most // ranks, model.layers) + 1):
                yield from ((tensor, groups, stages, e, c) for e in experts for c in copies)


def picked(split: Split, index: Integers, *tail: int) -> Split:
    """Some of the splits along axis 0, with further axes of length 1."""
    rows = split.chips.shape[0]

    def pick(_: str, value: Array) -> Array:
        return value[index].reshape(-1, *tail) if value.shape[0] == rows and rows > 1 else value

    return split.mapped(pick)


@dataclass(frozen=True, eq=False)
class Replicas:
    """Replicas of a scenario's model on its kind of chip that are legal and fit, with the batches each has memory for.

    `split` lies along one axis, and so does `every` legal split, also those that do not fit. `room` has the most
    sequences of each, `shape` and `batch` are those of every point.
    """

    scenario: Scenario
    every: Split
    split: Split
    room: Array
    shape: Integers
    batch: Array

    @property
    def chips(self) -> Array:
        """Chips of each split."""
        return np.broadcast_to(self.split.chips, self.room.shape)

    def __len__(self) -> int:
        """Points."""
        return self.batch.size

    def deployment(self, index: Integers, *tail: int) -> Deployment:
        """What the splits of some points deploy, along axis 0."""
        return replace(deployment_of(self.scenario), split=picked(self.split, self.shape[index], *tail))

    def decode_step(self, index: Integers) -> PricedStep:
        """A decode step at some points."""
        s = self.scenario
        prompt, output = lengths(s)
        return priced(s, self.deployment(index), decode(self.batch[index], prompt + output / 2.0, s.model.clips))

    @cached_property
    def plain(self) -> Array:
        """Seconds of a decode step at every point: no token comes faster, with or without prefill."""
        parts = [
            np.broadcast_to(self.decode_step(index).turnaround, index.shape) for index in blocks(np.arange(len(self)))
        ]
        return np.concatenate(parts) if parts else np.zeros(0)

    def loop(self, index: Integers) -> SteadyAnswer:
        """The closed loops that keep the batches of some points in decode, with prefill among it; shape (points, 1)."""
        prompt, output = lengths(self.scenario)
        d = self.deployment(index, 1)
        with at_the_chip(self.scenario):
            loop = sustaining(d, self.batch[index][:, None], prompt, output, self.scenario.cached)
        chips = array(self.chips[self.shape[index]])[:, None]
        system = count_of(self.scenario.system, self.scenario.system.main_name, chips)
        alone = replace(self.scenario, split=d.split, system=system, mapper=None, batch=loop.running)
        return SteadyAnswer(alone, d, loop.running, prompt, output, loop)


def blocks(index: Integers, size: int = POINTS) -> Iterator[Integers]:
    """An index in parts that are priced together."""
    return (index[start : start + size] for start in range(0, index.size, size))


def lengths(scenario: Scenario) -> tuple[Array, Array]:
    """Prompt and output tokens. Raises ValueError where the scenario has no traffic."""
    if scenario.input is None or scenario.output is None:
        raise ValueError("a search over deployments needs `traffic`: how long prompts and answers are")
    return scenario.input, scenario.output


def replicas(scenario: Scenario, most: int) -> Replicas:
    """Every replica of at most `most` chips. Raises ValueError for two pools, or without traffic."""
    if scenario.partner is not None:
        raise ValueError("a search over deployments is about one kind of chip: give one pool")
    prompt, output = lengths(scenario)
    found = shapes(scenario.model, most)
    if not scenario.runtime.shares_context(scenario.model):
        found = picked(found, np.flatnonzero(np.broadcast_to(found.context, found.chips.shape) == 1))
    d = replace(deployment_of(scenario), split=found)
    memory = memory_plan(d, array(1.0), prompt + HELD * output)
    room = np.floor(np.maximum(memory.free_for_kv, 0.0) / memory.per_sequence) * found.groups
    room = np.minimum(np.broadcast_to(room, found.chips.shape), 1e6)
    fits = np.flatnonzero(room >= 1)
    shape, batch = _batches(picked(found, fits), room[fits])
    return Replicas(scenario, found, picked(found, fits), room[fits], shape, batch)


def _batches(split: Split, room: Array) -> tuple[Integers, Array]:
    """Points: for every split the same number of sequences on all its ranks and stages, and the most that it holds."""
    ranks = np.broadcast_to(split.attention_data * split.pipeline, room.shape)
    most = float((room / ranks).max()) if room.size else 1.0
    each = np.arange(1.0, FINE + 1)
    if most > FINE:
        each = np.unique(np.concatenate([each, np.round(np.geomspace(FINE, most, COARSE))]))
    grid = np.concatenate([each * ranks[:, None], room[:, None]], axis=1)
    kept = (grid <= room[:, None]) & np.concatenate(
        [np.ones((room.size, each.size), bool), ~(room[:, None] == each * ranks[:, None]).any(1, keepdims=True)], axis=1
    )
    rows, columns = np.nonzero(kept)
    return rows, grid[rows, columns]
