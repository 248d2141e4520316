"""The rows of a sweep as people take them away: columns in Python, CSV, JSON and Parquet, and a summary.

Files are written row by row as chunks come in, under another name until the last is there, so that a file that exists
is whole. An undefined number is NaN in arrays, empty in CSV, and null in JSON and Parquet.
"""

import csv
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TextIO

import numpy as np

from archsim.explore.rows import Column, Rows
from archsim.explore.sweep import Sweep

FLAGS = ("feasible", "meets_slo", "reason")
TOP = 10  # best rows that a summary keeps


class Sink(Protocol):
    """Takes columns of rows, chunk by chunk in order."""

    def add(self, columns: Mapping[str, Column]) -> None:
        """Takes a chunk."""

    def close(self) -> None:
        """All chunks were taken."""

    def abandon(self) -> None:
        """There will be no more: what was begun is put away."""


def full(sweep: Sweep, places: Mapping[str, Column], rows: Rows) -> dict[str, Column]:
    """All columns of a chunk, written out: axes, metrics, and the reason in words."""
    found: dict[str, Column] = dict(places)
    for name, values in rows.columns.items():
        if name == "reason":
            values = np.array(rows.reasons, dtype=object)[values]
        found[name] = np.broadcast_to(values, (rows.count,))
    return {name: found[name] for name in sweep.names}


@dataclass
class Table:
    """A sweep in memory: columns by name, and the unit of each ("" for none). `summary` counts and names the best."""

    columns: dict[str, Column]
    units: dict[str, str]
    summary: "Summary"

    def __len__(self) -> int:
        """Rows."""
        return self.summary.rows

    def __getitem__(self, name: str) -> Column:
        """A column. Raises KeyError naming those there are."""
        if name not in self.columns:
            raise KeyError(f"no column {name!r}; there are {', '.join(self.columns)}")
        return self.columns[name]

    def to_pandas(self) -> Any:
        """A pandas DataFrame, with `units` in its attrs. Raises ImportError where pandas is not installed."""
        import pandas

        frame = pandas.DataFrame(self.columns)
        frame.attrs["units"] = dict(self.units)
        return frame


@dataclass
class Memory:
    """Keeps all rows."""

    parts: list[dict[str, Column]] = field(default_factory=list)

    def add(self, columns: Mapping[str, Column]) -> None:
        """Takes a chunk."""
        self.parts.append(dict(columns))

    def close(self) -> None:
        """Nothing is left to do."""

    def abandon(self) -> None:
        """Nothing is left to do."""

    def columns(self) -> dict[str, Column]:
        """All rows; a column is put together and its parts are let go, one after another."""
        found: dict[str, Column] = {}
        for name in list(self.parts[0]) if self.parts else []:
            found[name] = np.concatenate([part.pop(name) for part in self.parts])
        return found


@dataclass
class Summary:
    """Counts of rows, and the best by the objective: those that are feasible and keep the SLO before those that do not.

    `best` are whole rows, the best first; of equals the earlier.
    """

    goal: str
    sign: float
    rows: int = 0
    feasible: int = 0
    kept: int = 0
    reasons: dict[str, int] = field(default_factory=dict)
    best: list[dict[str, Any]] = field(default_factory=list)
    ranks: list[tuple[int, float, int]] = field(default_factory=list)

    def take(self, rows: Rows, columns: Callable[[], Mapping[str, Column]]) -> None:
        """Takes a chunk; its whole columns are asked for where one of its rows is among the best."""
        feasible, kept, codes = (np.broadcast_to(rows.columns[name], (rows.count,)) for name in FLAGS)
        self.feasible += int(np.count_nonzero(feasible))
        self.kept += int(np.count_nonzero(kept & feasible))
        for reason, count in zip(rows.reasons, np.bincount(codes, minlength=len(rows.reasons)).tolist(), strict=True):
            if reason and count:
                self.reasons[reason] = self.reasons.get(reason, 0) + count
        if self.goal in rows.columns:
            self._rank(rows, feasible, kept, columns)
        self.rows += rows.count

    def _rank(self, rows: Rows, feasible: Column, kept: Column, columns: Callable[[], Mapping[str, Column]]) -> None:
        """Puts rows among the best, by whether they keep the SLO, then by the objective, then by their place."""
        values = np.broadcast_to(self.sign * rows.columns[self.goal], (rows.count,))
        full = len(self.ranks) == TOP
        found: list[tuple[int, float, int]] = []
        for outside, among in ((0, feasible & kept), (1, feasible & ~kept)):
            among = among & np.isfinite(values)
            if full and self.ranks[-1][0] <= outside:
                among = among & (values < self.ranks[-1][1]) if self.ranks[-1][0] == outside else among & False
            near = np.flatnonzero(among)
            if near.size > TOP:
                limit = np.partition(values[near], TOP - 1)[TOP - 1]
                near = near[values[near] <= limit]
            order = near[np.argsort(values[near], kind="stable")][:TOP]
            found += [(outside, float(values[i]), self.rows + int(i)) for i in order]
        ranks = sorted([*self.ranks, *found])[:TOP]
        old = dict(zip(self.ranks, self.best, strict=True))
        self.best = [old[rank] if rank in old else _row(columns(), rank[2] - self.rows) for rank in ranks]
        self.ranks = ranks


def _row(columns: Mapping[str, Column], index: int) -> dict[str, Any]:
    """One row, with values as Python has them."""
    return {name: column[index : index + 1].tolist()[0] for name, column in columns.items()}


def headed(sweep: Sweep) -> dict[str, str]:
    """Columns of a file with their units."""
    return {name: sweep.units.get(name, "") for name in sweep.names}


class _Placed:
    """A file under another name until it is whole; `-` is the output."""

    def __init__(self, target: Path) -> None:
        self.target = target
        self.path = target.with_name(f".{target.name}.part")

    def moved(self) -> None:
        self.path.replace(self.target)

    def removed(self) -> None:
        with suppress(OSError):
            self.path.unlink(missing_ok=True)


class _Text:
    """What CSV and JSON share: a text file, or the output for `-`."""

    def __init__(self, target: str) -> None:
        self.placed = None if target == "-" else _Placed(Path(target))
        place = self.placed
        self.file: TextIO = sys.stdout if place is None else place.path.open("w", encoding="utf-8", newline="")

    def close(self) -> None:
        if self.placed is None:
            self.file.flush()
            return
        self.file.close()
        self.placed.moved()

    def abandon(self) -> None:
        if self.placed is not None:
            with suppress(OSError):
                self.file.close()
            self.placed.removed()


class Csv(_Text):
    """CSV; a head names the columns, with units in brackets."""

    def __init__(self, target: str, heads: Mapping[str, str]) -> None:
        """Opens a file, or the output for `-`."""
        super().__init__(target)
        self.writer = csv.writer(self.file, lineterminator="\n")
        self.writer.writerow([f"{name} [{unit}]" if unit else name for name, unit in heads.items()])

    def add(self, columns: Mapping[str, Column]) -> None:
        """Writes a chunk."""
        self.writer.writerows(zip(*(_texts(values) for values in columns.values()), strict=True))


def _texts(values: Column) -> Sequence[str]:
    """Values as CSV has them: numbers exactly, in as few digits as that takes."""
    if values.dtype == np.bool_:
        return ["true" if value else "false" for value in values.tolist()]
    if values.dtype != np.float64:
        return list(map(str, values.tolist()))
    same = {} if values.strides[0] else {0: _number(float(values[0]))}
    return [same[0]] * len(values) if same else [_number(value) for value in values.tolist()]


def _number(value: float) -> str:
    return "" if value != value else repr(value).removesuffix(".0")


class Json(_Text):
    """JSON: the units of columns, and a list of rows."""

    def __init__(self, target: str, heads: Mapping[str, str]) -> None:
        """Opens a file, or the output for `-`."""
        super().__init__(target)
        units = json.dumps({name: unit for name, unit in heads.items() if unit})
        self.file.write(f'{{"units": {units},\n"rows": [')
        self.first = True

    def add(self, columns: Mapping[str, Column]) -> None:
        """Writes a chunk."""
        names = list(columns)
        for row in zip(*(values.tolist() for values in columns.values()), strict=True):
            item = {name: None if value != value else value for name, value in zip(names, row, strict=True)}
            self.file.write(("\n" if self.first else ",\n") + json.dumps(item, allow_nan=False))
            self.first = False

    def close(self) -> None:
        """Ends the list."""
        self.file.write("\n]}\n")
        super().close()


class Parquet:
    """Parquet, a row group for every chunk; units are metadata of the columns. Needs pyarrow (extra `parquet`)."""

    def __init__(self, target: str, heads: Mapping[str, str], texts: frozenset[str]) -> None:
        """Opens a file. Raises ValueError without pyarrow."""
        try:
            import pyarrow
            import pyarrow.parquet
        except ImportError:
            raise ValueError("Parquet needs pyarrow: pip install 'archsim[parquet]'") from None
        self.arrow, self.placed = pyarrow, _Placed(Path(target))
        kinds = {name: pyarrow.string() if name in texts else pyarrow.float64() for name in heads}
        kinds |= dict.fromkeys(("feasible", "meets_slo"), pyarrow.bool_())
        fields = [
            pyarrow.field(name, kinds[name], metadata={"unit": unit} if unit else None) for name, unit in heads.items()
        ]
        self.schema = pyarrow.schema(fields)
        self.writer = pyarrow.parquet.ParquetWriter(self.placed.path, self.schema)

    def add(self, columns: Mapping[str, Column]) -> None:
        """Writes a chunk."""
        arrays = [self._array(columns[item.name], item.type) for item in self.schema]
        self.writer.write_table(self.arrow.Table.from_arrays(arrays, schema=self.schema))

    def _array(self, values: Column, kind: Any) -> Any:
        """A column as Arrow has it, NaN as null; one that is all the same is repeated."""
        if values.size > 1 and values.dtype != np.bool_ and (values == values[0]).all():
            return self.arrow.repeat(self.arrow.scalar(values[:1].tolist()[0], kind), len(values))
        return self.arrow.array(values, kind, mask=np.isnan(values) if values.dtype == np.float64 else None)

    def close(self) -> None:
        """Ends the file."""
        self.writer.close()
        self.placed.moved()

    def abandon(self) -> None:
        """Removes what was begun."""
        with suppress(OSError, ValueError):
            self.writer.close()
        self.placed.removed()
