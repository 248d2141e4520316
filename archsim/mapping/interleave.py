"""Micro-batches on one pool: while one waits for a transfer, the other computes."""

from collections.abc import Callable, Sequence
from itertools import groupby

from archsim.mapping.plan import Task


def _lane(lane: str) -> str:
    return lane


def interleaved(tasks: Sequence[Task], batches: int, section: Callable[[str], str] = _lane) -> tuple[Task, ...]:
    """The tasks of a block for every micro-batch, in turn at each change of lane, or of a `section` of lanes.

    Each micro-batch keeps its own order and dependencies; on a lane they alternate.
    """
    if batches == 1:
        return tuple(tasks)
    runs = [list(run) for _, run in groupby(range(len(tasks)), key=lambda index: section(tasks[index].lane))]
    order = [(index, batch) for run in runs for batch in range(batches) for index in run]
    place = {key: position for position, key in enumerate(order)}
    return tuple(
        Task(tasks[index].kernel, tasks[index].lane, tuple(place[after, batch] for after in tasks[index].after), batch)
        for index, batch in order
    )
