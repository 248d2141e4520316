"""Lanes of two pools: which micro-batches there are at each point, which lanes are pinned, and waits in line."""

from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np

from archsim.arrays import Array, array
from archsim.engine.cost import Cost
from archsim.engine.lanes import APART, Timed
from archsim.engine.transfer import queue
from archsim.mapping.plan import Away


def apart(tasks: Sequence[Timed], away: Away, replicas: Array) -> list[Timed]:
    """The tasks of a block, those of micro-batches that a point does not have at no cost.

    Pinned chips and their links are those of the layer alone, and where replicas share them tokens wait in line.
    """
    timed = [replace(task, skips=True) for task in _only(tasks, away.batches)]
    if not away.pinned or not any(task.lane == "ffn" for task in tasks):
        return timed
    wait = _wait(tasks, away, replicas) if (replicas > 1).any() else None
    first = {task.batch: index for index, task in reversed(list(enumerate(timed))) if task.lane == "ffn"}
    return [
        replace(task, pinned=task.lane in APART, wait=wait if first.get(task.batch) == index else None)
        for index, task in enumerate(timed)
    ]


def _only(tasks: Sequence[Timed], batches: Array) -> list[Timed]:
    """Tasks beyond the micro-batches of a point cost nothing there: one schedule serves every number of them."""
    if batches.size == 1:
        return list(tasks)
    masked: dict[tuple[int, int], Cost] = {}
    found = []
    for task in tasks:
        key = id(task.cost), task.batch
        if key not in masked:
            masked[key] = task.cost.scaled(np.where(task.batch < batches, 1.0, 0.0)) if task.batch else task.cost
        found.append(replace(task, cost=masked[key]))
    return found


def _wait(tasks: Sequence[Timed], away: Away, replicas: Array) -> Array:
    """Seconds in line, from the times of the first micro-batch."""
    one = [task for task in tasks if task.batch == 0]
    attention = _seconds(task for task in one if task.lane not in APART)
    lanes = (("to_ffn",), ("ffn", "ffn_in", "ffn_out"), ("from_ffn",))
    stations = tuple(_seconds(task for task in one if task.lane in own) for own in lanes)
    return queue(attention, stations, away.batches, replicas, float(away.layers))


def _seconds(tasks: Iterable[Timed]) -> Array:
    total = array(0.0)
    for task in tasks:
        total = total + task.cost.seconds
    return total
