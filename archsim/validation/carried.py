"""The measured figures that the package carries: a sample of every table of the public kernel database.

One CSV file a table, in the columns of the database, so that the same loaders read both. The first lines of a file,
which start with `#`, give source and licence; `chip`, `stack` and `version` say which table a row is from.
"""

import csv
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from archsim.validation.database import NoDatabase, Table

FOLDER = Path(__file__).parent / "measured"
PLACE = ("chip", "stack", "version")


class Carried:
    """The carried sample, in the shape of the database."""

    def table(self, chip: str, family: str, stack: str, name: str, version: str | None = None) -> Table | None:
        """The carried rows of one table; None where there are none. Raises NoDatabase for another version."""
        file = FOLDER / f"{family}-{name}.csv"
        rows = [row for row in _rows(file) if (row["chip"], row["stack"]) == (chip, stack)] if file.is_file() else []
        if not rows:
            return None
        found = rows[0]["version"]
        if version not in (None, found):
            raise NoDatabase(f"the package carries {name} of {stack} {found} on {chip}, not {version}")
        names = [column for column in rows[0] if column not in PLACE and all(row[column] for row in rows)]
        return Table(found, {column: _column(row[column] for row in rows) for column in names})


@lru_cache
def _rows(file: Path) -> list[dict[str, str]]:
    lines = [line for line in file.read_text(encoding="utf-8").splitlines() if not line.startswith("#")]
    return list(csv.DictReader(lines))


def _column(values: Iterable[str]) -> Any:
    cells = list(values)
    try:
        return np.array([float(cell) for cell in cells])
    except ValueError:
        return np.array(cells, dtype=np.str_)
