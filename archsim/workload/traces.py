"""Traces of real requests: files read row by row, with every fault of a row at its line.

A reader turns a row into (time, input tokens, output tokens, ids of prompt blocks); the format is known by the file's
first line. A malformed row is refused with file and line, or left out and counted.
"""

import csv
import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import numpy as np

from archsim.catalog import CatalogError
from archsim.workload.requests import Requests
from archsim.yamlmarks import Fault, note, shown

ROWS = 4096  # of a chunk
MOST_FAULTS = 20
MOST_TOKENS = 2**31
MOONCAKE_BLOCK = 512

Row = tuple[float, int, int, tuple[int, ...]]


@dataclass(frozen=True, eq=False)
class Chunk:
    """Rows as columns, and what was left out."""

    time: "np.typing.NDArray[np.float64]"
    input: "np.typing.NDArray[np.int64]"
    output: "np.typing.NDArray[np.int64]"
    chains: list[tuple[int, ...]]
    skipped: list[Fault]


def load_trace(path: str | Path, skip_bad: bool = False, limit: int | None = None) -> Requests:
    """The requests of a trace file, the first at time 0. Raises CatalogError with file and line of malformed rows.

    With `skip_bad` these are left out and named in `skipped`. `limit` reads so many requests at the most.
    """
    parts: list[Chunk] = []
    count = 0
    block = 0
    for part, size in chunks(path, skip_bad):
        parts.append(part)
        block = size
        count += len(part.time)
        if limit is not None and count >= limit:
            break
    time, inputs, outputs = (
        np.concatenate([getattr(part, name) for part in parts]) if parts else np.zeros(0)
        for name in ("time", "input", "output")
    )
    order = np.argsort(time, kind="stable")[:limit]
    chains = [chain for part in parts for chain in part.chains]
    skipped = [str(fault) for part in parts for fault in part.skipped]
    start = time[order[0]] if len(order) else 0.0
    return Requests(
        time[order] - start,
        inputs[order].astype(np.int64),
        outputs[order].astype(np.int64),
        chains=[chains[i] for i in order] if block else None,
        block=block,
        name=Path(path).stem,
        skipped=skipped,
    )


def chunks(path: str | Path, skip_bad: bool = False) -> Iterator[tuple[Chunk, int]]:
    """A trace in chunks of ROWS rows with the tokens of a block of its prompts (0: it names none)."""
    place = Path(path)
    try:
        note(place)
        with place.open(encoding="utf-8", newline="") as lines:
            first = lines.readline()
            lines.seek(0)
            reader, block = _reader(first, place)
            yield from ((chunk, block) for chunk in _chunked(reader(lines, shown(place)), skip_bad))
    except UnicodeDecodeError as error:
        raise CatalogError([Fault(shown(place), 0, 0, "not a text file")]) from error
    except OSError as error:
        raise CatalogError([Fault(str(path), 0, 0, error.strerror or str(error))]) from error


Reader = Callable[[Iterable[str], str], Iterator[Row | Fault]]


def _reader(first: str, path: Path) -> tuple[Reader, int]:
    """The reader for a file that begins with such a line."""
    if first.lstrip().startswith("{"):
        return _mooncake, MOONCAKE_BLOCK
    heads = [head.strip().lower() for head in first.split(",")]
    if {"timestamp", "contexttokens", "generatedtokens"} <= set(heads):
        return _azure, 0
    if {"time", "input", "output"} <= set(heads):
        return _plain, 0
    known = "Azure (TIMESTAMP,ContextTokens,GeneratedTokens), plain CSV (time,input,output), Mooncake JSON lines"
    raise CatalogError([Fault(shown(path), 1, 1, f"not a trace of a known format; there are {known}")])


def _chunked(rows: Iterator[Row | Fault], skip_bad: bool) -> Iterator[Chunk]:
    """Rows gathered; faults raised together, or kept with the rows."""
    faults: list[Fault] = []
    good: list[Row] = []
    for row in rows:
        if isinstance(row, Fault):
            faults.append(row)
            if not skip_bad and len(faults) >= MOST_FAULTS:
                break
        else:
            good.append(row)
        if len(good) == ROWS and (skip_bad or not faults):
            yield _columns(good, faults)
            good, faults = [], []
    if faults and not skip_bad:
        raise CatalogError(faults)
    if good or faults:
        yield _columns(good, faults)


def _columns(rows: list[Row], faults: list[Fault]) -> Chunk:
    return Chunk(
        np.array([row[0] for row in rows], dtype=np.float64),
        np.array([row[1] for row in rows], dtype=np.int64),
        np.array([row[2] for row in rows], dtype=np.int64),
        [row[3] for row in rows],
        list(faults),
    )


def _azure(lines: Iterable[str], file: str) -> Iterator[Row | Fault]:
    """TIMESTAMP, ContextTokens, GeneratedTokens, the time as a date (2023, 2024)."""
    names = ("timestamp", "contexttokens", "generatedtokens")
    yield from _table(lines, file, names, lambda text: _date(text))


def _plain(lines: Iterable[str], file: str) -> Iterator[Row | Fault]:
    """time (s), input, output."""
    yield from _table(lines, file, ("time", "input", "output"), float)


def _table(
    lines: Iterable[str], file: str, names: tuple[str, str, str], time: Callable[[str], float]
) -> Iterator[Row | Fault]:
    table = csv.reader(lines)
    heads = [head.strip().lower() for head in next(table)]
    places = [heads.index(name) for name in names]
    for row in table:
        if not row:
            continue
        try:
            if len(row) != len(heads):
                raise ValueError(f"expected {len(heads)} columns, got {len(row)}")
            when, tokens, answer = (row[place].strip() for place in places)
            yield time(when), _tokens(tokens, names[1], 1), max(_tokens(answer, names[2], 0), 1), ()
        except ValueError as error:
            yield Fault(file, table.line_num, 1, str(error))


def _date(text: str) -> float:
    """Seconds of a date with up to seven digits of a second."""
    whole, _, fraction = text.partition(".")
    digits = fraction.rstrip("Z").split("+")[0]
    try:
        moment = datetime.fromisoformat(whole).timestamp()
        return moment + (float(f"0.{digits}") if digits else 0.0)
    except ValueError:
        raise ValueError(f"expected a date such as 2023-11-16 18:15:46.68, got {text!r}") from None


def _tokens(value: object, name: str, least: int) -> int:
    """A number of tokens. Raises ValueError saying what was expected."""
    try:
        number = int(str(value))
    except ValueError:
        number = -1
    if isinstance(value, bool) or not least <= number < MOST_TOKENS:
        raise ValueError(f"{name}: expected a whole number of at least {least}, got {value!r}")
    return number


def _mooncake(lines: Iterable[str], file: str) -> Iterator[Row | Fault]:
    """timestamp (ms), input_length, output_length, hash_ids of the prompt's blocks, chained from its head."""
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            yield _mooncake_row(line)
        except ValueError as error:
            yield Fault(file, number, 1, str(error))


def _mooncake_row(line: str) -> Row:
    try:
        row = json.loads(line)
    except json.JSONDecodeError as error:
        raise ValueError(f"not JSON: {error.msg}") from None
    missing = [name for name in ("timestamp", "input_length", "output_length") if name not in row]
    if not isinstance(row, dict) or missing:
        raise ValueError(f"missing {missing[0] if missing else 'a mapping'!r}")
    time = row["timestamp"]
    if isinstance(time, bool) or not isinstance(time, int | float) or not 0 <= time < 1e15:
        raise ValueError(f"timestamp: expected milliseconds, got {time!r}")
    tokens = _tokens(row["input_length"], "input_length", 1)
    answer = max(_tokens(row["output_length"], "output_length", 0), 1)
    ids = row.get("hash_ids", [])
    if not isinstance(ids, list) or not all(isinstance(name, int) for name in ids):
        raise ValueError("hash_ids: expected a list of whole numbers")
    blocks = -(-tokens // MOONCAKE_BLOCK)
    if ids and len(ids) != blocks:
        raise ValueError(f"{tokens:,} tokens have {blocks} blocks of {MOONCAKE_BLOCK} tokens, not {len(ids)} hash_ids")
    return time / 1e3, tokens, answer, tuple(ids[: tokens // MOONCAKE_BLOCK])
