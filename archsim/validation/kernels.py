"""Kernel level: every measured table predicted, one after the other, and what is kept of each."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import lru_cache

import numpy as np

from archsim.arrays import Array
from archsim.catalog import names
from archsim.chip.model import Chip, Unsuited
from archsim.chip.schema import load_chip, load_generation
from archsim.validation.errors import errors
from archsim.validation.gates import KERNEL_GATES, TRANSFERS, standing
from archsim.validation.measured import FLAGS, Flags, Measured
from archsim.validation.predict import below_roofline, predicted
from archsim.validation.tables import EVERY, Left, Points, Row, Section, drawn, in_words, left_of, rows_of

SLOW = 1.8  # a group whose balanced median is further above the model than this was not tuned
DRAWN = 60  # points of a table in a figure
NOT_FITTED = {  # provenance, and facts of a library
    "error", "spread", "sibling", "fitted_on", "tiles", "rows", "splits", "least_rows", "granule", "persistent", "edge",
    "ranks", "walks_all", "tiled", "groups_only", "unpacked_groups", "unpacked_single", "unpacked_work",
}  # fmt: skip
REASONS = tuple((flag.name, flag.reason, flag.dropped) for flag in FLAGS.values())
SAMPLE = (
    " These are the points that the package carries, a sample of the database; `pip install 'archsim[measurements]'` "
    "brings all of it, and judges the gates."
)
HOW = (
    "Every point of the public kernel database predicted with the engine's own kernel functions and the constants of "
    "the chip's generation file. Only points that no fit may see: half of the shapes on A100, H100 and B200, all on "
    "other chips. Conditions of the measurement (weights that L2 still holds, quantisers inside rows, ranks that start "
    "together) are modelled as such, here and nowhere else."
)


@lru_cache
def chip_of(name: str) -> Chip:
    """A chip of the catalogue, read once."""
    return load_chip(name)


def sample_section(tables: Iterable[Measured]) -> Section:
    """Errors of a few points of every table, pooled by family and by family and chip: too few to judge a gate by."""
    pools: dict[tuple[str, str], list[tuple[Measured, Array]]] = {}
    points: list[Points] = []
    for table in tables:
        try:
            checked, times = check(table)
        except (KeyError, Unsuited):
            continue
        found = drawn(checked, times, DRAWN)
        points += [found] if found else []
        for chip in (EVERY, table.chip):
            pools.setdefault((table.family, chip), []).append((checked, times))
    rows = [row for (family, chip), pool in sorted(pools.items()) for row in _pooled(family, chip, pool)]
    return Section("Kernels", HOW + SAMPLE, tuple(rows), points=tuple(points))


def _pooled(family: str, chip: str, pool: Sequence[tuple[Measured, Array]]) -> Iterator[Row]:
    counted = [
        (table.where(rows), times[rows]) for table, times in pool if (rows := ~table.dropped() & ~table.fitted).any()
    ]
    if not counted:
        return
    times = np.concatenate([times for _, times in counted])
    seconds = np.concatenate([table.seconds for table, _ in counted])
    found = errors(times, seconds)
    ends = np.cumsum([table.seconds.size for table, _ in counted])
    place = int(np.searchsorted(ends, found.worst, side="right"))
    table, own = counted[place]
    index = found.worst - (int(ends[place - 1]) if place else 0)
    words = f"{table.chip}, {table.stack}, {table.format}, {in_words(table, own, index)}"
    yield Row("kernel", family, chip, EVERY, EVERY, EVERY, found, words)


def kernel_section(tables: Iterable[Measured], progress: Callable[[Measured], None] = lambda table: None) -> Section:
    """Errors, gates and named rows of measured tables; `progress` hears of each before it is predicted."""
    rows: list[Row] = []
    left: list[Left] = []
    points: list[Points] = []
    missing: dict[str, None] = {}
    for table in tables:
        progress(table)
        try:
            checked, times = check(table)
        except (KeyError, Unsuited) as error:
            reason = str(error.args[0])
            reason = reason if " " in reason else f"the chip multiplies no {reason}"
            missing[f"{table.family} of {table.stack} in {table.format} on {table.chip}: {reason}"] = None
            continue
        rows += rows_of(checked, times)
        left += left_of(checked, times, REASONS)
        found = drawn(checked, times, DRAWN)
        points += [found] if found else []
        rows += _transferred(checked)
    gates = tuple(standing(gate, rows) for gate in KERNEL_GATES)
    return Section("Kernels", HOW, tuple(rows), gates, tuple(left), tuple(points), (*missing, constants()))


def constants() -> str:
    """How many sets of constants were fitted to measurements, and how many numbers they hold."""
    found = {}
    for name in names("chips/generations"):
        for families in load_generation(name).kernels.values():
            for family, sets in families.items():
                for one in sets.values():
                    if one.error is not None:
                        given = one.model_dump(exclude_defaults=True, exclude=NOT_FITTED)
                        found[family, str(given)] = len(given)
    most, total = max(found.values()), sum(found.values())
    return f"constants: {len(found)} sets fitted x {total / len(found):.1f} numbers = {total}, at most {most} in a set"


def check(table: Measured) -> tuple[Measured, Array]:
    """A table with the flags that only a prediction shows, and its predicted seconds (n,)."""
    chip = chip_of(table.chip)
    times = predicted(table, chip)
    flags = {**table.flags, "below the roofline": below_roofline(table, chip)}
    if table.family.startswith("experts"):
        flags["failed tuning"] = untuned(table, times)
    return replace(table, flags=flags), times


def untuned(table: Measured, times: Array) -> Flags:
    """Rows of groups (one set of experts, one split) whose balanced median is far above the model at every size.

    The rule looks at the model's own residual, so tables are shown with and without these rows.
    """
    names = [values for name, values in table.shape.items() if name != "tokens"]
    _, group = np.unique(np.stack(names), axis=1, return_inverse=True)
    balanced = table.regime == "balanced"
    slow = np.zeros(table.seconds.shape, np.bool_)
    ratio = table.seconds / times
    order = np.argsort(group, kind="stable")
    for rows in np.split(order, np.flatnonzero(np.diff(group[order])) + 1):
        even = rows[balanced[rows]]
        if even.size and np.median(ratio[even]) > SLOW:
            slow[rows] = True
    return slow


def _transferred(table: Measured) -> Iterator[Row]:
    """Rows of the same table with the constants of another generation, as if this one had never been measured."""
    for generation in TRANSFERS.get((table.family, table.stack, table.chip), ()):
        other = replace(chip_of(table.chip), generation=load_generation(generation))
        times = predicted(table, other)
        for row in rows_of(replace(table, fitted=np.zeros_like(table.fitted)), times):
            if row.regime == EVERY:
                yield replace(row, stack=f"constants of {generation}")
