"""Traces of real requests: files read row by row, with every fault of a row at its line.

A reader turns a row into a `Row`; the format is known by the file's first line. A malformed row is refused with file
and line, or left out and counted. Rows go over into columns chunk by chunk, so that a trace is never held as text.
"""

import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from archsim.catalog import CatalogError
from archsim.workload.requests import Requests
from archsim.workload.sessions import in_sessions
from archsim.workload.traceagents import block_of, folder
from archsim.workload.tracelines import BAILIAN_BLOCK, MOONCAKE_BLOCK, Bailian, lines_of, mooncake
from archsim.workload.tracerows import Columns, Rows, chunked
from archsim.workload.tracetables import ALIASES, azure, burst, plain, steps, table
from archsim.yamlmarks import Fault, note, shown

KNOWN = (
    "CSV with columns TIMESTAMP,ContextTokens,GeneratedTokens (Azure), Timestamp,Request tokens,Response tokens "
    "(BurstGPT), time,input,output or session,input,output (plain); JSON lines of Mooncake and Bailian; "
    "JSON of a session of agents, or a folder of them"
)
HEAD = 65536  # bytes that tell a format


@dataclass(frozen=True)
class Format:
    """How a trace is read: `rows` of its lines, the tokens of a `block` of its prompts (0: it names none).

    `replayed`: steps wait for one another; else they come when they were recorded.
    """

    rows: Callable[[Iterable[str], str], Rows]
    block: int = 0
    replayed: bool = False


def load_trace(path: str | Path, skip_bad: bool = False, limit: int | None = None) -> Requests:
    """The requests of a trace, the first at time 0. Raises CatalogError with file and line of malformed rows.

    A path is a file, or a folder of sessions of agents. With `skip_bad` malformed rows are left out and named in
    `skipped`. `limit` reads so many requests at the most.
    """
    place = Path(path)
    columns = Columns()
    with _opened(place) as (rows, form):
        for good, faults in chunked(rows, skip_bad):
            columns.extend(good)
            columns.skipped += faults
            if limit is not None and len(columns) >= limit:
                break
    found = in_sessions(columns, form.block, place.stem) if form.replayed else _recorded(columns, form, place.stem)
    found = found if limit is None or limit >= len(found) else found.first(limit)
    return replace(found, skipped=[str(fault) for fault in columns.skipped])


def _recorded(columns: Columns, form: Format, name: str) -> Requests:
    """Requests that come when they were recorded; those of one session keep its number."""
    time = columns.floats("time")
    order = np.argsort(time, kind="stable")
    several = len(columns.sessions) > 1
    session = columns.integers("session")[order] if several else None
    return Requests(
        time[order] - (time[order[0]] if len(order) else 0.0),
        columns.integers("input")[order],
        columns.integers("output")[order],
        chains=columns.chains.pick(order) if form.block else None,
        block=form.block,
        session=session,
        agent=session,
        name=name,
    )


@contextmanager
def _opened(place: Path) -> Iterator[tuple[Rows, Format]]:
    """The rows of a trace, and its format."""
    try:
        for file in sorted(place.iterdir()) if place.is_dir() else [place]:
            note(file)
        if place.is_dir():
            yield _folder(place)
            return
        with place.open(encoding="utf-8", newline="") as lines:
            head = lines.read(HEAD)
            lines.seek(0)
            if _one_session(head):
                yield folder([place]), _agents(place)
                return
            form = _format(head, place)
            yield form.rows(lines, shown(place)), form
    except UnicodeDecodeError as error:
        raise CatalogError([Fault(shown(place), 0, 0, "not a text file")]) from error
    except OSError as error:
        raise CatalogError([Fault(str(place), 0, 0, error.strerror or str(error))]) from error


def _folder(place: Path) -> tuple[Rows, Format]:
    files = sorted(place.glob("*.json"))
    if not files:
        raise CatalogError([Fault(shown(place), 0, 0, "a folder without sessions (*.json)")])
    return folder(files), _agents(files[0])


def _agents(file: Path) -> Format:
    """The format of sessions, with the blocks of the first."""
    try:
        block = block_of(json.loads(file.read_text(encoding="utf-8")))
    except ValueError:
        block = 0  # its fault comes with its rows
    return Format(lambda _, __: iter(()), block, replayed=True)


def _one_session(head: str) -> bool:
    """Whether a file is one JSON object with `requests`, not one a line."""
    return head.lstrip().startswith("{") and '"requests"' in head and '"timestamp"' not in head


def _format(head: str, path: Path) -> Format:
    """The format of a file that begins so."""
    first = head.split("\n", 1)[0]
    if first.lstrip().startswith("{"):
        if '"chat_id"' in first:
            return Format(lambda lines, file: lines_of(lines, file, Bailian()), BAILIAN_BLOCK)
        return Format(lambda lines, file: lines_of(lines, file, mooncake), MOONCAKE_BLOCK)
    heads = {ALIASES.get(name, name) for name in (head.strip().lower() for head in first.split(","))}
    if {"timestamp", "contexttokens", "generatedtokens"} <= heads:
        return Format(lambda lines, file: table(lines, file, azure))
    if {"timestamp", "request tokens", "response tokens"} <= heads:
        return Format(lambda lines, file: table(lines, file, burst))
    if {"session", "input", "output"} <= heads and heads & {"time", "gap"}:
        return Format(lambda lines, file: table(lines, file, steps), replayed=True)
    if {"time", "input", "output"} <= heads:
        return Format(lambda lines, file: table(lines, file, plain))
    raise CatalogError([Fault(shown(path), 1, 1, f"not a trace of a known format; there are {KNOWN}")])
