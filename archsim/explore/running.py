"""Running a sweep: chunks through an executor and a journal, in order into tables and files."""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from archsim.explore.executors import Workers, in_order
from archsim.explore.journal import Journal, news
from archsim.explore.rows import Column, Rows, work
from archsim.explore.sweep import Chunk, Sweep
from archsim.explore.table import Csv, Json, Memory, Parquet, Sink, Summary, Table, full, headed

MOST_ROWS = 20_000_000  # in memory

Progress = Callable[[int, int], None]  # rows that are done in all, and those of them that were before this run


class Stopped(Exception):
    """A sweep that was interrupted; `done` of `chunks` are in its journal (0 without one)."""

    def __init__(self, done: int, chunks: int, journal: Path | None) -> None:
        super().__init__(f"stopped: {done} of {chunks} chunks are kept")
        self.done, self.chunks, self.journal = done, chunks, journal


@dataclass(frozen=True)
class Outputs:
    """Files to write: paths, or `-` for the output."""

    csv: str | None = None
    parquet: str | None = None
    json: str | None = None

    def opened(self, sweep: Sweep) -> list[Sink]:
        """Their writers."""
        heads, found = headed(sweep), list[Sink]()
        if self.csv is not None:
            found.append(Csv(self.csv, heads))
        if self.json is not None:
            found.append(Json(self.json, heads))
        if self.parquet is not None:
            found.append(Parquet(self.parquet, heads, sweep.texts))
        return found


def run_sweep(
    sweep: Sweep,
    workers: Workers | None = None,
    journal: Journal | None = None,
    outputs: Outputs | None = None,
    progress: Progress | None = None,
    sinks: Sequence[Sink] = (),
) -> Summary:
    """Works through a sweep and writes its rows. Raises Stopped when it is interrupted."""
    summary = Summary(*sweep.objective)
    with ExitStack() as stack:
        takers: list[Sink] = [*sinks]
        for sink in (outputs or Outputs()).opened(sweep):
            takers.append(sink)
            stack.callback(sink.abandon)
        try:
            _run(sweep, workers, journal, summary, takers, progress)
        except KeyboardInterrupt:
            kept = None if journal is None else journal.path
            raise Stopped(0 if journal is None else journal.done, sweep.chunks, kept) from None
        for sink in takers:
            sink.close()
        stack.pop_all()
    return summary


def _run(
    sweep: Sweep,
    workers: Workers | None,
    journal: Journal | None,
    summary: Summary,
    takers: Sequence[Sink],
    progress: Progress | None,
) -> None:
    """Rows in order into all takers."""
    hashes: dict[str, str] = {}
    before = sum(sweep.chunk(number).rows for number in range(sweep.chunks) if journal and journal.has(number))
    finished = before

    def done(number: int, rows: Rows) -> None:
        nonlocal finished
        if journal is None:
            hashes.update(news(hashes, rows.files))
        else:
            journal.add(number, rows)
        finished += rows.count
        if progress is not None:
            progress(finished, before)

    def kept(number: int) -> bool:
        return journal is not None and journal.has(number)

    if progress is not None:
        progress(before, before)
    flow = in_order(sweep.chunks, lambda n: sweep.task(sweep.chunk(n)), workers, kept, done, journal is None)
    try:
        for number, rows in flow:
            chunk = sweep.chunk(number)
            if rows is None and journal is not None:
                rows = _read(journal, sweep, number)
            if rows is not None:
                columns = _Whole(sweep, chunk, rows)
                summary.take(rows, columns)
                for sink in takers:
                    sink.add(columns())
    finally:
        flow.close()


class _Whole:
    """All columns of a chunk, put together when they are first asked for."""

    def __init__(self, sweep: Sweep, chunk: Chunk, rows: Rows) -> None:
        self.sweep, self.chunk, self.rows = sweep, chunk, rows
        self.columns: dict[str, Column] = {}

    def __call__(self) -> dict[str, Column]:
        self.columns = self.columns or full(self.sweep, self.sweep.places(self.chunk), self.rows)
        return self.columns


def _read(journal: Journal, sweep: Sweep, number: int) -> Rows:
    """The rows of a chunk that is done; one that was damaged since is done again."""
    try:
        return journal.read(number)
    except ValueError:
        rows = work(sweep.task(sweep.chunk(number)))
        journal.add(number, rows)
        return rows


def tabled(
    sweep: Sweep,
    workers: Workers | None = None,
    journal: Journal | None = None,
    outputs: Outputs | None = None,
    keep: bool = True,
) -> Table:
    """A sweep as a table, without rows unless they are to be kept. Raises ValueError for too many of them."""
    if keep and sweep.rows > MOST_ROWS:
        text = f"{sweep.rows:,} rows are too many for a table in memory"
        raise ValueError(f"{text}; write them: parquet='rows.parquet', keep=False")
    memory = Memory()
    summary = run_sweep(sweep, workers, journal, outputs, None, [memory] if keep else [])
    return Table(memory.columns(), headed(sweep), summary)
