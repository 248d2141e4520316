"""A user's own benchmark as measurements: a CSV file becomes tables as the public database has them.

Columns are `family`, `format`, `seconds` and the sizes that a family needs (`SIZES`); cells that a family does not
need stay empty. The loaders of the public tables read it, so that both are predicted in one way.
"""

import csv
import io
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from archsim.catalog import CatalogError
from archsim.units import FORMATS, did_you_mean
from archsim.validation.database import Table
from archsim.yamlmarks import Fault, shown

MILLI = 1e-3
WORDS = ("family", "format")

Sizes = Mapping[str, str]  # a column of the file: the same in the tables of the database
_ATTENTION: Sizes = {
    "batch": "batch_size",
    "length": "isl",
    "heads": "num_heads",
    "kv_heads": "num_key_value_heads",
    "width": "head_dim",
}
_LATENT: Sizes = {"batch": "batch_size", "length": "isl", "heads": "num_heads"}
SIZES: Mapping[str, Sizes] = {
    "gemm": {"m": "m", "n": "n", "k": "k"},
    "generation-attention": _ATTENTION,
    "context-attention": _ATTENTION,
    "mla-generation": _LATENT,
    "mla-context": _LATENT,
    "experts": {
        "tokens": "num_tokens",
        "hidden": "hidden_size",
        "width": "inter_size",
        "top_k": "topk",
        "experts": "num_experts",
        "tensor": "moe_tp_size",
        "ranks": "moe_ep_size",
    },
    "all-reduce": {"bytes": "message_size", "ranks": "num_gpus"},
}
COLUMNS = tuple(dict.fromkeys((*WORDS, "seconds", *(name for sizes in SIZES.values() for name in sizes))))
# The columns of the database that say which kernel and format a row is of, with what they hold here ("" the format).
LABELS: Mapping[str, Mapping[str, str]] = {
    "gemm": {"gemm_dtype": ""},
    "generation-attention": {"kv_cache_dtype": "", "kernel_source": "own"},
    "context-attention": {"kv_cache_dtype": "", "attn_dtype": "", "kernel_source": "own"},
    "mla-generation": {"kv_cache_dtype": "", "kernel_source": "own"},
    "mla-context": {"kv_cache_dtype": "", "kernel_source": "own"},
    "experts": {"moe_dtype": "", "kernel_source": "own", "distribution": "balanced"},
    "all-reduce": {"kernel_source": "own"},
}
KNOWN = {"all-reduce": ("bf16",), "gemm": ("bf16", "fp8", "fp8_block", "nvfp4", "int4")}
CACHES = ("bf16", "fp8")


@dataclass(frozen=True)
class Row:
    """One line: its family and format, sizes by column, seconds."""

    family: str
    format: str
    sizes: Mapping[str, float]
    seconds: float


@dataclass(frozen=True)
class Bench:
    """Rows of a file in the place of the public database."""

    rows: tuple[Row, ...]

    def table(self, chip: str, family: str, stack: str, name: str, version: str | None = None) -> Table | None:
        """The rows of the table that a loader asks for."""
        wanted = name.removesuffix("_perf").replace("custom_allreduce", "all-reduce").replace("moe", "experts")
        rows = [row for row in self.rows if row.family.replace("-", "_") == wanted.replace("-", "_")]
        return _table(rows[0].family, rows) if rows else None


def _table(family: str, rows: Sequence[Row]) -> Table:
    columns: dict[str, object] = {
        name: np.array([row.sizes[own] for row in rows]) for own, name in SIZES[family].items()
    }
    if family == "all-reduce":
        columns["message_size"] = np.array([row.sizes["bytes"] / 2.0 for row in rows])
    columns |= {name: np.array([text or row.format for row in rows]) for name, text in LABELS[family].items()}
    columns |= {"step": np.zeros(len(rows)), "latency": np.array([row.seconds / MILLI for row in rows])}
    return Table("", columns)


def read_bench(path: Path) -> Bench:
    """Reads a file. Raises CatalogError with every fault at its line and column."""
    name = shown(path)
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "not UTF-8 text"
        raise CatalogError([Fault(name, 0, 0, f"the file cannot be read: {reason}")]) from None
    lines = [line for line in enumerate(text.splitlines(), 1) if line[1].strip() and not line[1].startswith("#")]
    if not lines:
        raise CatalogError([Fault(name, 0, 0, "the file has no lines")])
    head = _cells(lines[0][1])
    faults = [Fault(name, lines[0][0], column, message) for column, message in _head(head)]
    if faults:
        raise CatalogError(faults)
    names = [cell for _, cell in head]
    rows = []
    for number, line in lines[1:]:
        found = list(_row(names, _cells(line)))
        faults += [Fault(name, number, one[0], one[1]) for one in found if isinstance(one, tuple)]
        rows += [one for one in found if isinstance(one, Row)]
    if faults or not rows:
        raise CatalogError(faults or [Fault(name, lines[0][0], 1, "there are no rows below the names of the columns")])
    return Bench(tuple(rows))


Cells = list[tuple[int, str]]  # column in the line, text
Said = tuple[int, str]  # column in the line, what is wrong


def _cells(line: str) -> Cells:
    cells = next(csv.reader(io.StringIO(line)))
    found, at = [], 1
    for cell in cells:
        found.append((at, cell.strip()))
        at += len(cell) + 1
    return found


def _head(head: Cells) -> Iterator[Said]:
    names = [cell for _, cell in head]
    for index, (column, name) in enumerate(head):
        if name not in COLUMNS:
            hint = did_you_mean(name, COLUMNS) or f"; known: {', '.join(COLUMNS)}"
            yield column, f"unknown column {name!r}{hint}"
        elif name in names[:index]:
            yield column, f"the column {name!r} is there twice"
    for name in (*WORDS, "seconds"):
        if name not in names and not any(did_you_mean(other, [name]) for other in names if other not in COLUMNS):
            yield 1, f"missing column {name!r}"


def _row(names: Sequence[str], cells: Cells) -> Iterator[Row | Said]:
    """The row, or what is wrong with it."""
    if len(cells) != len(names):
        yield cells[-1][0], f"expected {len(names)} cells as in the first line, got {len(cells)}"
        return
    by_name = dict(zip(names, cells, strict=True))
    column, family = by_name["family"]
    if family not in SIZES:
        hint = did_you_mean(family, SIZES) or f" (there are: {', '.join(SIZES)})"
        yield column, f"unknown family {family!r}{hint}"
        return
    said = list(_format(by_name["format"], family))
    values: dict[str, float] = {}
    for name in (*SIZES[family], "seconds"):
        if name not in by_name:
            said.append((column, f"{family} needs a column {name!r}"))
            continue
        place, text = by_name[name]
        number = _number(text)
        if number is None:
            said.append((place, f"expected a number above 0 for {name!r}, got {text!r}"))
        else:
            values[name] = number
    if said:
        yield from said
        return
    seconds = values.pop("seconds")
    yield Row(family, by_name["format"][1], values, seconds)


def _format(cell: tuple[int, str], family: str) -> Iterator[Said]:
    known = KNOWN.get(family, KNOWN["gemm"] if family == "experts" else CACHES)
    if cell[1] not in known:
        hint = did_you_mean(cell[1], known) or f" (there are: {', '.join(known)})"
        what = "unknown format" if cell[1] not in FORMATS else f"no constants of {family} for"
        yield cell[0], f"{what} {cell[1]!r}{hint}"


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if 0.0 < value < float("inf") else None
