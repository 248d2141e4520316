"""The command that answers for many points: sweep."""

import shlex
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from archsim.cli.base import INFEASIBLE, ModeOption, app, refusals

if TYPE_CHECKING:
    from archsim.explore.executors import Workers
    from archsim.explore.journal import Journal
    from archsim.explore.running import Outputs, Progress
    from archsim.explore.sweep import Sweep
    from archsim.explore.table import Sink, Summary
    from archsim.report.sampled import Sampled

INTERRUPTED = 130  # exit code, as shells have it for Ctrl-C


@app.command()
def sweep(
    scenarios: Annotated[list[str], typer.Argument(metavar="SCENARIO...", help="Files or shipped examples.")],
    vary: Annotated[
        list[str],
        typer.Option(
            metavar="FIELD=VALUES",
            help="An axis: batch=1,8,64 or chip.memory.bandwidth=2..8TB/s:25 or batch=1..1024:11log or chip=A,B. "
            "Repeatable: all combinations.",
        ),
    ] = [],  # noqa: B006  # typer copies it
    zipped: Annotated[
        list[str] | None,
        typer.Option("--zip", metavar="FIELD,FIELD", help="Axes that go together, or `all`. Repeatable."),
    ] = None,
    override: Annotated[
        list[str] | None,
        typer.Option(metavar="'NAME: {FIELD: VALUE, ...}'", help="A named set of changes, one of an axis. Repeatable."),
    ] = None,
    mode: ModeOption = None,
    columns: Annotated[
        str | None, typer.Option(metavar="NAMES", help="Only these metrics: tpot,cost_per_token. Fewer are faster.")
    ] = None,
    csv: Annotated[str | None, typer.Option(metavar="OUT|-", help="Write rows as CSV.")] = None,
    parquet: Annotated[str | None, typer.Option(metavar="OUT", help="Write rows as Parquet (extra `parquet`).")] = None,
    json: Annotated[str | None, typer.Option(metavar="OUT|-", help="Write rows as JSON.")] = None,
    html: Annotated[Path | None, typer.Option(metavar="OUT", help="Draw the rows on one self-contained page.")] = None,
    workers: Annotated[int, typer.Option(min=0, help="Processes; 0: in this one.")] = 0,
    dask: Annotated[
        str | None, typer.Option(metavar="tcp://HOST:8786", help="Workers of a dask cluster (extra `cluster`).")
    ] = None,
    journal: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Keep what is done here. Default: beside the output, till done.")
    ] = None,
    no_journal: Annotated[bool, typer.Option("--no-journal", help="Keep nothing of a sweep that is killed.")] = False,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the sweep of the journal.")] = False,
    serve: Annotated[bool, typer.Option("--serve", help="Serve requests at every point: rate and seed are fields.")] = (
        False
    ),
    traffic: Annotated[
        str | None, typer.Option(metavar="NAME", help="With --serve: a traffic file or its name.")
    ] = None,
    trace: Annotated[str | None, typer.Option(metavar="FILE", help="With --serve: requests of a trace.")] = None,
    requests: Annotated[int | None, typer.Option(min=1, help="With --serve: so many requests.")] = None,
    seconds: Annotated[float | None, typer.Option(min=0.0, help="With --serve: those of so many seconds.")] = None,
) -> None:
    """Answer for every combination of values: a table with units. Exit code 1: no point is feasible."""
    with refusals():
        from archsim.explore.running import Outputs

        if mode is not None and mode.value == "both":
            raise ValueError("a sweep gives one answer: --mode step or --mode steady")
        if workers and dask:
            raise ValueError("give --workers or --dask, not both")
        if csv == "-" and json == "-":
            raise ValueError("the output takes one of --csv - and --json -; name a file for the other")
        asked = {"traffic": traffic, "requests": requests, "seconds": seconds}
        asked["trace"] = None if trace is None else str(Path(trace).resolve())
        asked = {name: value for name, value in asked.items() if value is not None}
        if asked and not serve:
            raise ValueError(f"--{next(iter(asked))} needs --serve")
        names = [text.split(",") for text in zipped or ()]
        wanted = () if columns is None else tuple(name.strip() for name in columns.split(","))
        chosen = None if mode is None else mode.value
        spec = _specified(scenarios, vary, names, override or (), chosen, wanted, asked if serve else None)
        outputs = Outputs(csv, parquet, json)
        page = _page(spec, html)
        book = _journal(spec, outputs, journal, no_journal, resume)
        summary = _run(spec, outputs, book, workers, dask, resume, [] if page is None else [page])
        _report(spec, summary, outputs, html, page)
        if not summary.feasible:
            raise typer.Exit(INFEASIBLE)


def _specified(
    scenarios: list[str],
    vary: list[str],
    zips: list[list[str]],
    overrides: Any,
    mode: str | None,
    columns: tuple[str, ...],
    served: dict[str, Any] | None,
) -> "Sweep":
    from archsim import api
    from archsim.explore.specify import specify

    if not vary and not overrides and len(scenarios) < 2:
        raise ValueError("nothing is varied: add --vary FIELD=VALUES, such as --vary batch=1,8,64")
    loaded = [api.load(name) for name in scenarios]
    return specify(loaded, vary, zips=zips, overrides=overrides, mode=mode, columns=columns, served=served)


def _journal(
    spec: "Sweep", outputs: "Outputs", given: Path | None, without: bool, resume: bool
) -> "tuple[Journal | None, bool]":
    """The journal, and whether it goes when all rows are written: the one that nobody named does."""
    from archsim.explore.journal import Journal
    from archsim.report.output import check_place

    written = [path for path in (outputs.csv, outputs.parquet, outputs.json) if path not in (None, "-")]
    for path in written:
        check_place(Path(str(path)))
    check_place(given)
    if without:
        return None, False
    if given is not None:
        return Journal(given, spec, resume), False
    place = Path(f"{written[0]}.journal") if written else None
    if place is None:
        if resume:
            raise ValueError("--resume needs --journal FILE, or the output that the sweep was to write")
        return None, False
    if spec.chunks == 1 and not place.exists():
        return None, False
    return Journal(place, spec, resume), True


def _run(
    spec: "Sweep",
    outputs: "Outputs",
    journal: "tuple[Journal | None, bool]",
    workers: int,
    dask: str | None,
    resume: bool,
    sinks: "Sequence[Sink]",
) -> "Summary":
    """Runs a sweep; says how to go on with one that stops."""
    from archsim.explore.executors import Lost
    from archsim.explore.journal import Full
    from archsim.explore.running import Stopped, run_sweep

    book, passing = journal
    with ExitStack() as stack:
        if book is not None:
            stack.callback(book.close)
        try:
            pool = stack.enter_context(_workers(workers, dask)) if workers or dask else None
            progress = stack.enter_context(_progress(spec))
            summary = run_sweep(spec, pool, book, outputs, progress, sinks)
        except (Stopped, KeyboardInterrupt):
            stack.close()
            typer.echo(_stopped(spec, book), err=True)
            raise typer.Exit(INTERRUPTED) from None
        except (Full, Lost, OSError) as error:
            stack.close()
            where = f"{error.filename}: {error.strerror}" if isinstance(error, OSError) and error.filename else error
            typer.echo(f"archsim: {where}", err=True)
            typer.echo(_stopped(spec, book), err=True)
            raise typer.Exit(2) from None
        if book is not None and passing:
            book.remove()
    return summary


def _stopped(spec: "Sweep", book: "Journal | None") -> str:
    """What is kept of a sweep that stops, and how to go on."""
    if book is None:
        return "stopped; nothing is kept: add --journal FILE to be able to go on"
    given = [part for part in sys.argv[1:] if part != "--resume"]
    command = shlex.join(["archsim", *given, "--resume"])
    return f"stopped: {book.done} of {spec.chunks} chunks are in {book.path}; go on with\n  {command}"


@contextmanager
def _workers(count: int, dask: str | None) -> "Iterator[Workers]":
    from archsim.explore import executors

    with executors.dask(dask) if dask is not None else executors.processes(count) as found:
        yield found


@contextmanager
def _progress(spec: "Sweep") -> "Iterator[Progress | None]":
    """A bar with the remaining time, told by the rows of this run alone, on a terminal's stderr; nothing elsewhere."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = TextColumn("sweep"), BarColumn(), MofNCompleteColumn(), TextColumn("rows"), TimeRemainingColumn()
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True, speed_estimate_period=120.0) as bar:
        task: Any = None

        def told(done: int, before: int) -> None:
            nonlocal task
            if task is None:  # rows of an earlier run count as done, and not for the speed
                task = bar.add_task("sweep", total=spec.rows, completed=before)
            bar.update(task, completed=done)

        yield told


def _page(spec: "Sweep", html: Path | None) -> "Sampled | None":
    """What keeps the rows of a page, where one is asked for."""
    if html is None:
        return None
    from archsim.report.output import check_place
    from archsim.report.sampled import sampled

    check_place(html)
    return sampled(spec)


def _report(
    spec: "Sweep", summary: "Summary", outputs: "Outputs", html: Path | None = None, page: "Sampled | None" = None
) -> None:
    if html is not None and page is not None:
        from archsim.report.sampled import sweep_page

        command = shlex.join(["archsim", *(part for part in sys.argv[1:] if part != "--resume")])
        html.write_text(sweep_page(spec, page, summary, command), encoding="utf-8")
    if "-" in (outputs.csv, outputs.json):
        return
    from archsim.report.sweeps import print_summary

    print_summary(spec, summary)
    files = (("CSV", outputs.csv), ("Parquet", outputs.parquet), ("JSON", outputs.json), ("Report", html))
    for name, path in files:
        if path is not None:
            typer.echo(f"\n{name}: {path}")
