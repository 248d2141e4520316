"""Draws the sample of the public kernel database that the package carries: a few points of every table.

    python tests/regenerate_measured.py [DIR]   rewrites archsim/validation/measured/*.csv

Needs the extra `measurements`; `published.csv` is rewritten from the published files in DIR where that is given.

Which points is decided by a CRC-32 of their sizes, never by how well they are predicted: the first in that order that
no fit may see and no flag drops.
"""

import csv
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from zlib import crc32

import numpy as np

from archsim.validation.carried import FOLDER
from archsim.validation.database import STACKS, WHEEL, Database, Table, database, parts
from archsim.validation.families import LOADERS
from archsim.validation.measured import Measured
from archsim.validation.published import CARRIED, SOURCES, Published, records

CHIPS = ("nvidia/a100-sxm-80gb", "nvidia/h100-sxm", "nvidia/h200-sxm", "nvidia/b200-sxm", "nvidia/gb300")
TRIED = 60  # rows of a group looked at before it is given up
LEFT_OUT = {"framework", "version", "device", "power", "power_limit"}

# (family, folder, table, columns that part it, points of each part)
PLAN = (
    ("gemm", "gemm", "gemm", ("gemm_dtype",), 1),
    ("generation-attention", "attention", "generation_attention", ("kv_cache_dtype",), 1),
    ("context-attention", "attention", "context_attention", ("kv_cache_dtype", "attn_dtype"), 1),
    ("mla-generation", "mla", "generation_mla", ("kv_cache_dtype",), 1),
    ("mla-context", "mla", "context_mla", ("kv_cache_dtype",), 1),
    ("experts", "moe", "moe", ("moe_dtype",), 1),
    ("all-reduce", "comm", "custom_allreduce", (), 3),
    ("nccl", "comm", "nccl", ("op_name",), 1),
    ("all-to-all", "comm", "wideep_deepep_ll", (), 2),
    ("all-to-all", "comm", "wideep_deepep_normal", (), 1),
    ("state", "linear_attention", "gdn", ("kernel_source",), 1),
    ("elementwise", "quantize", "scale_matrix", (), 2),
)
HEAD = [
    f"# source: NVIDIA's measured kernel times, {WHEEL} (systems/data); sample of tests/regenerate_measured.py",
    "# licence: Apache-2.0. Columns and units are those of the database: latency in ms, *_us in us",
]
PUBLISHED = 5  # published points of an operator, beside the smallest
BF16_SHAPES = 4  # of bf16 products, the same of all stacks, so that their mean exists


@dataclass(frozen=True)
class Only:
    """A database of one table."""

    folder: str
    stack: str
    name: str
    rows: Table

    def table(self, chip: str, family: str, stack: str, name: str, version: str | None = None) -> Table | None:
        return self.rows if (family, stack, name) == (self.folder, self.stack, self.name) else None


def ordered(table: Table, *more: str) -> Iterator[Table]:
    """The rows of a table one by one, in the order of a hash of all that is not its time."""
    names = [name for name in table.columns if name not in LEFT_OUT and "latency" not in name and "_us" not in name]
    columns = [np.asarray(table.columns[name]).astype(str).tolist() for name in names]
    keys = [crc32("|".join((*row, *more)).encode()) for row in zip(*columns, strict=True)]
    for index in np.argsort(keys, kind="stable")[:TRIED]:
        rows = np.zeros(table.rows, np.bool_)
        rows[index] = True
        yield table.where(rows)


def measured(plan: tuple[str, str, str, tuple[str, ...], int], chip: str, stack: str, rows: Table) -> list[Measured]:
    family, folder, name, *_ = plan
    return [m for m in LOADERS[family][0](Only(folder, stack, name, rows), chip, stack, None) if m.seconds.size]


def usable(found: list[Measured]) -> bool:
    return bool(found) and not any(table.fitted[0] or table.dropped()[0] for table in found)


def groups(table: Table, columns: tuple[str, ...]) -> Iterator[Table]:
    if not columns:
        yield table
        return
    for _, rows in parts(table, *columns):
        yield rows


def chosen(data: Database, chip: str, stack: str, plan: tuple[str, str, str, tuple[str, ...], int]) -> Iterator[Table]:
    _, folder, name, columns, each = plan
    table = data.table(chip, folder, stack, name)
    if table is None:
        return
    for group in groups(table, columns):
        if name == "gemm" and group.words("gemm_dtype")[0] == "bf16":
            continue
        picked = (row for row in ordered(group, chip, stack) if usable(measured(plan, chip, stack, row)))
        for _, row in zip(range(each), picked, strict=False):
            yield row


def at(table: Table, key: list[float]) -> Table:
    """The rows of one product."""
    return table.where(np.all([table.number(name) == size for name, size in zip("mnk", key, strict=True)], axis=0))


def common_products(data: Database, chip: str) -> Iterator[tuple[str, Table]]:
    """bf16 products of one chip, the same shapes of every stack."""
    tables = {stack: data.table(chip, "gemm", stack, "gemm") for stack in STACKS}
    plain = {stack: t.where(t.words("gemm_dtype") == "bf16") for stack, t in tables.items() if t is not None}
    first, count = plain[STACKS[0]], 0
    for row in ordered(first, chip):
        key = [row.number(name)[0] for name in "mnk"]
        same = {
            s: t.where(np.all([t.number(n) == k for n, k in zip("mnk", key, strict=True)], 0)) for s, t in plain.items()
        }
        if all(t.rows for t in same.values()) and usable(measured(PLAN[0], chip, STACKS[0], row)):
            for stack, found in same.items():
                yield stack, found.where(np.arange(found.rows) == found.rows - 1)
            count += 1
        if count == BF16_SHAPES:
            return


def lines(chip: str, stack: str, row: Table) -> dict[str, str]:
    cells = {name: str(values[0]) for name, values in row.columns.items() if name not in LEFT_OUT}
    return {"chip": chip, "stack": stack, "version": row.version} | cells


def write(file: Path, rows: list[dict[str, str]], head: list[str] = HEAD) -> None:
    columns = list(dict.fromkeys(name for row in rows for name in row))
    with file.open("w", encoding="utf-8", newline="") as stream:
        stream.write("\n".join(head) + "\n")
        writer = csv.DictWriter(stream, columns, restval="", lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def published(folder: Path) -> list[dict[str, str]]:
    """A sample of what others published: every part of a layer, and of each operator the first in hash order."""
    found = records(folder)
    groups: dict[tuple[str, str, str], list[Published]] = {}
    for record in found:
        if not record.part_of:
            groups.setdefault((record.source, record.operator, record.chip), []).append(record)
    kept = [record for record in found if record.part_of]
    for group in groups.values():
        smallest = min(group, key=lambda record: record.seconds)  # a launch is read off it
        rest = sorted(group, key=lambda record: crc32(record.line()["sizes"].encode()))
        kept += [smallest, *[record for record in rest if record is not smallest][:PUBLISHED]]
    return [record.line() for record in kept]


def main(folder: Path | None) -> None:
    data = database()
    if folder is not None:
        source = "; ".join(SOURCES.values())
        write(CARRIED, published(folder), [f"# source: {source}", "# licence: as named with each. Times in seconds"])
    FOLDER.mkdir(exist_ok=True)
    for plan in PLAN:
        family, folder, name, *_ = plan
        rows = []
        for chip in CHIPS:
            if name == "gemm":
                rows += [lines(chip, stack, row) for stack, row in common_products(data, chip)]
            stacks = [stack for stack in LOADERS[family][1] if stack in (*STACKS, "nccl")]
            rows += [lines(chip, stack, row) for stack in stacks for row in chosen(data, chip, stack, plan)]
        write(FOLDER / f"{folder}-{name}.csv", rows)
        print(f"{folder}-{name}.csv: {len(rows)} points")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else None)
