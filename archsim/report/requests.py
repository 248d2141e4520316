"""The table of requests that were served, a row each: CSV and Parquet."""

import csv
import math
from pathlib import Path
from typing import Any

import numpy as np

from archsim.explore.service import Service, times

WHOLE = ("input", "output", "cached")  # tokens; the other columns are seconds


def outcomes(service: Service) -> list[str]:
    """What became of each request: finished, refused or unfinished."""
    refused, done = service.played.outcome.refused, service.played.finished
    return [
        "finished" if ended else "refused" if index in refused else "unfinished" for index, ended in enumerate(done)
    ]


def write_csv(service: Service, target: Path) -> None:
    """A row for every request (s, tokens); what is undefined is empty."""
    columns = times(service)
    with target.open("w", encoding="utf-8", newline="") as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow(["request", *columns, "outcome"])
        rows = zip(*(column.tolist() for column in columns.values()), strict=True)
        for index, (row, outcome) in enumerate(zip(rows, outcomes(service), strict=True)):
            table.writerow([index, *(f"{value:.9g}" if math.isfinite(value) else "" for value in row), outcome])


def need_parquet() -> Any:
    """pyarrow. Raises ValueError that says how to get it."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise ValueError("--parquet needs pyarrow: pip install 'archsim[parquet]'") from None
    return pyarrow


def write_parquet(service: Service, target: Path) -> None:
    """The same columns as Parquet: tokens as whole numbers, null for what is undefined, units as their metadata."""
    arrow = need_parquet()
    fields, arrays = [arrow.field("request", arrow.int64())], [arrow.array(range(len(service.requests)), arrow.int64())]
    for name, column in times(service).items():
        kind = arrow.int64() if name in WHOLE else arrow.float64()
        known = np.isfinite(column)
        values = np.where(known, column, 0.0)
        own = values.astype(np.int64) if name in WHOLE else values
        fields.append(arrow.field(name, kind, metadata={"unit": "tokens" if name in WHOLE else "s"}))
        arrays.append(arrow.array(own, kind, mask=~known))
    fields.append(arrow.field("outcome", arrow.string()))
    arrays.append(arrow.array(outcomes(service), arrow.string()))
    arrow.parquet.write_table(arrow.Table.from_arrays(arrays, schema=arrow.schema(fields)), target)
