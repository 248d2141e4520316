"""The public kernel database: NVIDIA's measured kernel times, in the wheel `aiconfigurator-core` (Apache-2.0).

Only its data is read: Parquet files `systems/data/<system>/<family>/<stack>/<version>/<table>_perf.parquet`. It is an
optional extra (`pip install archsim[measurements]`), and nothing of it is copied into this project but the few
figures of `archsim/validation/measured/`.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from archsim.arrays import Array

WHEEL = "aiconfigurator-core 0.12.0"
SYSTEMS = {
    "nvidia/a100-sxm-80gb": "a100_sxm",
    "nvidia/h100-sxm": "h100_sxm",
    "nvidia/h200-sxm": "h200_sxm",
    "nvidia/b200-sxm": "b200_sxm",
    "nvidia/b300-sxm": "b300_sxm",
    "nvidia/gb200": "gb200",
    "nvidia/gb300": "gb300",
    "nvidia/l40s": "l40s",
    "nvidia/rtx-pro-6000-server": "rtx_pro_6000_server",
    "intel/arc-pro-b60": "b60",
}
STACKS = ("vllm", "sglang", "trtllm")
# The release that most chips were measured with: a later table of one chip alone holds but a few shapes.
RELEASES = {"vllm": "0.24.0", "sglang": "0.5.14", "trtllm": "1.3.0rc20", "nccl": "2.29.2"}
FORMATS = {
    "bfloat16": "bf16",
    "half": "bf16",
    "int4_wo": "int4",
    "int8_wo": "int8",
    "w4a16_mxfp4": "mxfp4",
    "w4a8_mxfp4_mxfp8": "mxfp4_mxfp8",
}


class NoDatabase(ValueError):
    """The extra is not installed, or what was asked for is not in it; the text says what to do."""


@dataclass(frozen=True, eq=False)
class Table:
    """Columns of one file, numbers as float64 (n,) and words as strings (n,)."""

    version: str
    columns: Mapping[str, Any]

    def number(self, name: str) -> Array:
        """A column of numbers."""
        return np.asarray(self.columns[name], dtype=np.float64)

    def words(self, name: str) -> "np.typing.NDArray[np.str_]":
        """A column of words, in the names that this project uses for formats."""
        return np.asarray([FORMATS.get(word, word) for word in self.columns[name]], dtype=np.str_)

    def where(self, rows: "np.typing.NDArray[np.bool_]") -> "Table":
        """The rows for which `rows` (n,) is true."""
        return Table(self.version, {name: np.asarray(values)[rows] for name, values in self.columns.items()})

    @property
    def rows(self) -> int:
        """How many there are."""
        return len(next(iter(self.columns.values())))


class Tables(Protocol):
    """Where measured tables are found: the database, or the sample that the package carries."""

    def table(self, chip: str, family: str, stack: str, name: str, version: str | None = None) -> Table | None:
        """One table of a chip (catalogue name); None where there is none."""


@dataclass(frozen=True)
class Database:
    """The folder with one folder for each system."""

    root: Path

    def table(self, chip: str, family: str, stack: str, name: str, version: str | None = None) -> Table | None:
        """One table of a chip (catalogue name); of the release in RELEASES where no version is given, or the last
        before it. None where there is none. Raises NoDatabase for a version that is not there."""
        files = self._files(chip, family, stack, name)
        if version is not None and version not in files:
            have = ", ".join(sorted(files, key=release)) or "none"
            raise NoDatabase(f"{chip} has no {name} table of {stack} {version} (it has: {have})")
        chosen = version or _default(list(files), RELEASES.get(stack))
        return None if chosen is None else Table(chosen, _read(files[chosen]))

    def _files(self, chip: str, family: str, stack: str, name: str) -> dict[str, Path]:
        folder = self.root / SYSTEMS[chip] / family / stack
        found = sorted(folder.glob(f"*/{name}_perf.parquet"))
        return {path.parent.name: path for path in found}


def database() -> Database:
    """The installed database. Raises NoDatabase where the extra is missing."""
    found = find_spec("aiconfigurator_core")
    places = [] if found is None else [Path(place) for place in found.submodule_search_locations or ()]
    for place in places:
        if (place / "systems" / "data").is_dir() and find_spec("pyarrow") is not None:
            return Database(place / "systems" / "data")
    raise NoDatabase(f"the measured kernel times are not installed: pip install 'archsim[measurements]' ({WHEEL})")


def installed() -> bool:
    """Whether `database()` works."""
    try:
        database()
    except NoDatabase:
        return False
    return True


def release(version: str) -> tuple[int, ...]:
    """A version as numbers that order: 1.3.0rc20 is (1, 3, 0, 20)."""
    return tuple(int(number) for number in re.findall(r"\d+", version))


def _default(versions: list[str], wanted: str | None) -> str | None:
    ordered = sorted(versions, key=release)
    before = [version for version in ordered if wanted is None or release(version) <= release(wanted)]
    chosen = before or ordered[:1]
    return chosen[-1] if chosen else None


def _read(path: Path) -> dict[str, Any]:
    from pyarrow import parquet  # only those who validate pay for it

    table = parquet.read_table(path)
    return {name: _column(table[name]) for name in table.column_names}


def _column(column: Any) -> Any:
    kind = str(column.type)
    numeric = kind.startswith(("int", "uint", "float", "double"))
    return column.to_numpy() if numeric else np.asarray(column.to_pylist(), dtype=np.str_)


def parts(table: Table, *names: str) -> Iterator[tuple[tuple[str, ...], Table]]:
    """The table apart by the values of its columns `names`, in order."""
    words = [table.words(name) for name in names]
    joined = np.asarray(["\t".join(row) for row in zip(*words, strict=True)], dtype=np.str_)
    for value in np.unique(joined):
        yield tuple(str(value).split("\t")), table.where(joined == value)
