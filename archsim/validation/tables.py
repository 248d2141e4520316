"""Error tables and gates: what every level of validation hands to the report."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from archsim.arrays import Array
from archsim.validation.errors import Errors, errors
from archsim.validation.measured import Flags, Measured

EVERY = "all"  # the regime of a row over all regimes
WHOLE = "no window"  # the regime of attention over everything before
WINDOW = "window"
MET, MISSED, UNKNOWN = "met", "missed", "not measured"


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


@dataclass(frozen=True)
class Gate:
    """What a group of rows must reach: MAPE in %. `aim` is where it should get to."""

    name: str
    gate: float
    aim: float | None


@dataclass(frozen=True)
class Standing:
    """A gate with what was measured: the row furthest off of those it covers, and the mean of all."""

    gate: Gate
    rows: tuple[Row, ...]

    @property
    def worst(self) -> Row | None:
        """The row with the largest MAPE."""
        return max(self.rows, key=lambda row: row.errors.mape, default=None)

    @property
    def mean(self) -> float:
        """Mean MAPE of the rows."""
        return float(np.mean([row.errors.mape for row in self.rows])) if self.rows else float("nan")

    @property
    def verdict(self) -> str:
        """Whether every row is at or under the gate."""
        if self.worst is None:
            return UNKNOWN
        return MET if self.worst.errors.mape <= self.gate.gate else MISSED


@dataclass(frozen=True, eq=False)
class Points:
    """Some points of one table, for a figure: seconds (n,) each, with their shapes in words."""

    family: str
    label: str
    predicted: Array
    measured: Array
    shapes: tuple[str, ...]


@dataclass(frozen=True)
class Left:
    """Rows left out of the means, or named because they stay wrong: how many, why, and how far off they are."""

    family: str
    chip: str
    stack: str
    format: str
    flag: str
    reason: str
    dropped: bool
    errors: Errors


@dataclass(frozen=True)
class Section:
    """One level of validation: its tables, gates, named rows and points to draw. `text` says how it was done."""

    title: str
    text: str
    rows: tuple[Row, ...]
    gates: tuple[Standing, ...] = ()
    left: tuple[Left, ...] = ()
    points: tuple[Points, ...] = ()
    notes: tuple[str, ...] = ()


def rows_of(table: Measured, predicted: Array, level: str = "kernel") -> Iterator[Row]:
    """The rows of a table over the points that count and no fit saw: over all, then one for each regime.

    Attention has one more, of all but its windows.
    """
    counted = ~table.dropped() & ~table.fitted
    if not counted.any():
        return
    yield _row(level, table, predicted, counted, EVERY)
    names = np.unique(table.regime[counted]).tolist()
    if table.family in ("generation attention", "context attention") and names != [WINDOW]:
        yield _row(level, table, predicted, counted & (table.regime != WINDOW), WHOLE)
    for name in names if len(names) > 1 else []:
        yield _row(level, table, predicted, counted & (table.regime == name), name)


def _row(level: str, table: Measured, predicted: Array, rows: Flags, regime: str) -> Row:
    found = errors(predicted[rows], table.seconds[rows])
    return Row(
        level=level,
        family=table.family,
        chip=table.chip,
        stack=table.stack,
        format=table.format,
        regime=regime,
        errors=found,
        worst=in_words(table, predicted, int(np.flatnonzero(rows)[found.worst])),
    )


def in_words(table: Measured, predicted: Array, index: int) -> str:
    """A point in words: its shape, what was predicted and measured."""
    times = f"{duration(predicted[index])} predicted, {duration(table.seconds[index])} measured"
    return f"{table.text(index)}: {times}"


def duration(seconds: float) -> str:
    """A time in microseconds, or milliseconds from 10 ms."""
    return f"{seconds * 1e3:.4g} ms" if seconds >= 0.01 else f"{seconds * 1e6:.4g} us"


def left_of(table: Measured, predicted: Array, reasons: Sequence[tuple[str, str, bool]]) -> Iterator[Left]:
    """What is said of rows with a flag; `reasons` are (name, reason, dropped)."""
    for name, reason, dropped in reasons:
        where = table.flags.get(name)
        if where is not None and where.any():
            found = errors(predicted[where], table.seconds[where])
            yield Left(table.family, table.chip, table.stack, table.format, name, reason, dropped, found)


def drawn(table: Measured, predicted: Array, most: int) -> Points | None:
    """At most `most` points of a table for a figure, evenly over its rows by time; None where none counts."""
    counted = np.flatnonzero(~table.dropped() & ~table.fitted)
    if not counted.size:
        return None
    order = counted[np.argsort(table.seconds[counted], kind="stable")]
    chosen = order[np.unique(np.linspace(0, order.size - 1, min(most, order.size)).astype(np.int64))]
    label = f"{table.chip.partition('/')[2]}, {table.stack}, {table.format}"
    shapes = tuple(table.text(int(index)) for index in chosen)
    return Points(table.family, label, predicted[chosen], table.seconds[chosen], shapes)
