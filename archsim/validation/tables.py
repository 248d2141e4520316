"""Error tables: one row a family, chip, stack, format and regime."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from archsim.arrays import Array
from archsim.validation.errors import Errors, errors
from archsim.validation.measured import Flags, Measured

EVERY = "all"  # the regime of a row over all regimes


@dataclass(frozen=True)
class Row:
    """Errors of one group of points, and its worst point in words.

    `level` is kernel, operator, layer, step or end to end; `regime` is EVERY for all of them together.
    """

    level: str
    family: str
    chip: str
    stack: str
    format: str
    regime: str
    errors: Errors
    worst: str = ""


def rows_of(table: Measured, predicted: Array, regimes: bool = True) -> Iterator[Row]:
    """The row of a measured table over the points that count and no fit saw, then one for each regime."""
    counted = ~table.dropped() & ~table.fitted
    if not counted.any():
        return
    yield _row(table, predicted, counted, EVERY)
    names = np.unique(table.regime[counted]).tolist() if regimes else []
    for name in names if len(names) > 1 else []:
        yield _row(table, predicted, counted & (table.regime == name), name)


def _row(table: Measured, predicted: Array, rows: Flags, regime: str) -> Row:
    found = errors(predicted[rows], table.seconds[rows])
    return Row(
        level="kernel",
        family=table.family,
        chip=table.chip,
        stack=table.stack,
        format=table.format,
        regime=regime,
        errors=found,
        worst=worst(table, predicted, int(np.flatnonzero(rows)[found.worst])),
    )


def worst(table: Measured, predicted: Array, index: int) -> str:
    """A point in words: its shape, what was predicted and measured."""
    times = f"{predicted[index] * 1e6:.4g} us for {table.seconds[index] * 1e6:.4g} us"
    return f"{table.text(index)}: {times}"
