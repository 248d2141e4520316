"""The command that serves requests: serve."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from archsim.cli.base import INFEASIBLE, Name, app, refusals

if TYPE_CHECKING:
    from archsim.explore.service import Asked, Service

MOST_EVENTS = 200_000_000


@app.command()
def serve(
    scenario: Name,
    traffic: Annotated[
        str | None, typer.Option(metavar="NAME", help="A traffic file or its name, such as chat, instead of its own.")
    ] = None,
    trace: Annotated[
        str | None, typer.Option(metavar="PATH", help="Requests of a trace (a file, or a folder of sessions).")
    ] = None,
    rate: Annotated[
        float | None, typer.Option(min=1e-9, help="Requests (or sessions) a second; a trace is sped up to it.")
    ] = None,
    clients: Annotated[
        int | None, typer.Option(min=1, help="A closed loop: so many requests (or sessions) at once.")
    ] = None,
    scale_input: Annotated[float, typer.Option(min=1e-6, max=1e6, help="Prompts so many times as long.")] = 1.0,
    scale_output: Annotated[float, typer.Option(min=1e-6, max=1e6, help="Answers so many times as long.")] = 1.0,
    seconds: Annotated[float | None, typer.Option(min=0.0, help="Only requests that come in so many seconds.")] = None,
    requests: Annotated[int | None, typer.Option(min=0, help="Only so many requests.")] = None,
    largest: Annotated[
        bool, typer.Option("--largest-rate", help="Find the largest rate that keeps the SLO too, by bisection.")
    ] = False,
    ratios: Annotated[
        bool, typer.Option("--ratios", help="Find that rate for every division of the chips between two pools.")
    ] = False,
    workers: Annotated[int, typer.Option(min=1, help="Processes of these searches: the answer is the same.")] = 1,
    html: Annotated[Path | None, typer.Option(metavar="OUT", help="Write one self-contained HTML file.")] = None,
    json: Annotated[
        str | None, typer.Option(metavar="OUT|-", help="Write JSON to a file, or to the output instead of tables.")
    ] = None,
    csv: Annotated[Path | None, typer.Option(metavar="OUT", help="Write a row for every request.")] = None,
    parquet: Annotated[
        Path | None, typer.Option(metavar="OUT", help="Write those rows as Parquet (extra `parquet`).")
    ] = None,
    trace_out: Annotated[
        Path | None, typer.Option(metavar="OUT", help="Write the requests in time, for ui.perfetto.dev.")
    ] = None,
    plain: Annotated[bool, typer.Option("--plain", help="Go iteration by iteration: slow, and the same.")] = False,
    seed: Annotated[int, typer.Option(min=0, help="Of everything that is drawn.")] = 0,
    skip_bad: Annotated[bool, typer.Option("--skip-bad", help="Leave malformed rows of a trace out.")] = False,
    events: Annotated[int, typer.Option(min=1, help="Stop after so many events.")] = MOST_EVENTS,
) -> None:
    """Serve requests one by one: TTFT, TPOT, goodput and cost. Exit code 1: nothing fits, or nothing finished."""
    with refusals():
        from dataclasses import replace

        from archsim.explore.rates import best_rate, best_ratio
        from archsim.explore.service import Asked
        from archsim.report import output
        from archsim.report.requests import need_parquet
        from archsim.workload.traffic import load_traffic

        for target in (html, csv, parquet, trace_out, None if json in (None, "-") else Path(str(json))):
            output.check_place(target)
        if parquet is not None:
            need_parquet()
        loaded = None if traffic is None else load_traffic(traffic)
        asked = Asked(loaded, trace, rate, seconds, requests, plain, seed, skip_bad, events)
        asked = replace(asked, clients=clients, scale_input=scale_input, scale_output=scale_output)
        found = _served(scenario, asked)
        best = best_rate(found, workers=workers) if largest else None
        divided = best_ratio(found.scenario, asked, workers=workers) if ratios else ()
        if json != "-":
            from archsim.report.serving import print_service

            print_service(found, best, divided)
        given = {"--traffic": traffic, "--trace": trace, "--rate": rate, "--seconds": seconds, "--requests": requests}
        given |= {"--clients": clients, "--seed": seed}
        given |= {f"--scale-{name}": by for name, by in (("input", scale_input), ("output", scale_output)) if by != 1.0}
        options = {name: None if value is None else str(value) for name, value in given.items()}
        flags = {"--largest-rate": largest, "--ratios": ratios, "--plain": plain, "--skip-bad": skip_bad}
        command = output.command_line("serve", [scenario, *(name for name, given in flags.items() if given)], options)
        _write(found, best, divided, command, html, json, csv, parquet, trace_out)
        if len(found.requests) and not found.measures.finished:
            raise typer.Exit(INFEASIBLE)


def _served(name: str, asked: "Asked") -> "Service":
    """The scenario served; one that fits nowhere is refused as `run` refuses it."""
    from archsim import api
    from archsim.explore.service import Refused
    from archsim.explore.service import serve as serve_scenario

    with _progress() as progress:
        try:
            return serve_scenario(api.load(name), asked, progress=progress)
        except Refused as refused:
            result = refused.result
    from archsim.report.terminal import console, print_answer

    print_answer(console(), result)
    raise typer.Exit(INFEASIBLE)


def _write(
    found: "Service",
    best: object,
    ratios: object,
    command: str,
    html: Path | None,
    json: str | None,
    csv: Path | None,
    parquet: Path | None,
    trace: Path | None,
) -> None:
    from archsim.report import requests, serving
    from archsim.report.output import write_text

    if html is not None:
        again = f"{command} --html {html.name}"
        write_text(serving.to_html(found, best, again, ratios), str(html))  # type: ignore[arg-type]
    if csv is not None:
        requests.write_csv(found, csv)
    if parquet is not None:
        requests.write_parquet(found, parquet)
    if trace is not None:
        serving.write_trace(found, trace)
    if json is not None:
        write_text(serving.to_json(found, best, ratios), json)  # type: ignore[arg-type]
    if json != "-":
        for name, written in (
            ("Report", html),
            ("Requests", csv),
            ("Requests", parquet),
            ("Trace", trace),
            ("JSON", json),
        ):
            if written is not None:
                typer.echo(f"\n{name}: {written}")


@contextmanager
def _progress() -> "Iterator[Callable[[float], None] | None]":
    """A bar with the remaining time on a terminal's stderr; nothing elsewhere."""
    import sys

    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    columns = TextColumn("serving"), BarColumn(), TextColumn("{task.percentage:>3.0f} %"), TimeRemainingColumn()
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("serving", total=1.0)
        yield lambda share: bar.update(task, completed=share)
