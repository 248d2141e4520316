"""The `archsim` command: thin, and lazy, so that `--help` loads typer only."""

from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from archsim import __version__

if TYPE_CHECKING:
    from archsim.explore.result import Result
    from archsim.explore.scenario import Scenario

MOST_POINTS = 100_000
INFEASIBLE, MISTAKE = 1, 2  # exit codes

app = typer.Typer(
    rich_markup_mode=None,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="How fast, at what cost and why does a language model run on a chip or a cluster?",
)


class Mode(StrEnum):
    """Which answer is wanted."""

    step = "step"
    steady = "steady"
    both = "both"


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"archsim {__version__}")
        raise typer.Exit


@app.callback()
def main(
    catalog: Annotated[
        list[str] | None,
        typer.Option(
            metavar="DIR",
            help="A folder with chips/, workloads/, mappers/ or examples/ that comes before all others. Repeatable.",
        ),
    ] = None,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """How fast, at what cost and why does a language model run on a chip or a cluster?"""
    if catalog:
        with _refusals():
            from archsim.catalog import add_catalog

            for folder in reversed(catalog):
                add_catalog(folder)


@contextmanager
def _refusals() -> Iterator[None]:
    """Turns what users can mend into lines on stderr and exit code 2; never a traceback for a mistake in a file."""
    try:
        yield
    except Exception as error:
        lines = _lines_of(error)
        if lines is None:
            raise
        for line in lines:
            typer.echo(line, err=True)
        raise typer.Exit(MISTAKE) from None


def _lines_of(error: Exception) -> list[str] | None:
    """What to say about an error; None for one that is not the user's."""
    if isinstance(error, typer.Exit | BrokenPipeError):
        return None
    from archsim.catalog import CatalogError

    if isinstance(error, CatalogError):
        return [str(fault) for fault in error.faults]
    if isinstance(error, KeyError | ValueError) and error.args:
        return [f"archsim: {error.args[0]}"]
    if isinstance(error, OSError):
        where = "" if error.filename is None else f"{error.filename}: "
        return [f"archsim: {where}{error.strerror or error}"]
    return None


def _numbers(text: str | None) -> "list[int] | None":
    """The numbers of `1,8,64` or `1..512` or both mixed. Raises BadParameter for anything else."""
    if text is None:
        return None
    found: list[int] = []
    for part in text.split(","):
        first, dots, last = part.strip().partition("..")
        ends = [end.strip().replace("_", "") for end in ((first, last) if dots else (first,))]
        if not all(end.isdecimal() and end.isascii() and 0 < len(end) < 13 and int(end) > 0 for end in ends):
            raise typer.BadParameter(f"expected whole numbers from 1 such as 64 or 1,8,64 or 1..512, got {text!r}")
        low, high = int(ends[0]), int(ends[-1])
        if high < low:
            raise typer.BadParameter(f"{part.strip()!r} runs backwards")
        if len(found) + high - low >= MOST_POINTS:
            raise typer.BadParameter(f"more than {MOST_POINTS:,} numbers")
        found.extend(range(low, high + 1))
    return list(dict.fromkeys(found))


def _checked(text: str | None) -> str | None:
    _numbers(text)
    return text


Name = Annotated[str, typer.Argument(metavar="SCENARIO", help="A scenario file, or the name of a shipped example.")]
Batch = Annotated[
    str | None,
    typer.Option(callback=_checked, metavar="NUMBERS", help="Sequences, or clients: 64 or 1,8,64 or 1..512."),
]
Context = Annotated[
    str | None, typer.Option(callback=_checked, metavar="NUMBERS", help="Tokens of each sequence: 8192 or 1024,8192.")
]
ModeOption = Annotated[
    Mode | None,
    typer.Option(help="One decode step, the steady state of traffic, or both. Default: what the scenario asks."),
]


@app.command()
def run(
    scenario: Name,
    html: Annotated[Path | None, typer.Option(metavar="OUT", help="Write one self-contained HTML file.")] = None,
    json: Annotated[
        str | None, typer.Option(metavar="OUT|-", help="Write JSON to a file, or to the output instead of tables.")
    ] = None,
    trace: Annotated[
        Path | None, typer.Option(metavar="OUT", help="Write the time line of every kernel, for ui.perfetto.dev.")
    ] = None,
    batch: Batch = None,
    context: Context = None,
    mode: ModeOption = None,
) -> None:
    """Answer a scenario: how fast, at what cost, and why. Exit code 1: nothing fits."""
    with _refusals():
        from archsim.report import output

        for target in (html, trace, None if json in (None, "-") else Path(json)):
            output.check_place(target)
        results = _results(scenario, mode, _numbers(batch), _numbers(context))
        if html is not None:
            given = {"--batch": batch, "--context": context, "--mode": None if mode is None else mode.value}
            options = {**given, "--html": html.name}
            output.write_html(results, html, output.command_line("run", [scenario], options))
        if trace is not None:
            output.write_trace(results, trace)
        if json is not None:
            output.write_json(results, json)
        if json != "-":
            _print(results)
            for name, written in (("Report", html), ("Trace", trace), ("JSON", json)):
                if written is not None:
                    typer.echo(f"\n{name}: {written}")
        if not any(bool(result.feasible.any()) for result in results):
            raise typer.Exit(INFEASIBLE)


def _modes(scenario: "Scenario", mode: Mode | None, batch: object, context: object) -> list[str]:
    """The answers to give: those that are wanted, or those that the scenario asks for."""
    if mode is not None:
        return ["step", "steady"] if mode is Mode.both else [mode.value]
    step = (batch is not None or scenario.batch is not None) and (context is not None or scenario.context is not None)
    modes = [*(["step"] if step else []), *(["steady"] if scenario.input is not None else [])]
    if not modes:
        missing = [name for name in ("batch", "context") if getattr(scenario, name) is None]
        raise ValueError(
            f"the scenario asks nothing: give {' and '.join(f'--{name}' for name in missing)}, or `traffic` in the file"
        )
    return modes


def _results(name: str, mode: Mode | None, batch: list[int] | None, context: list[int] | None) -> "list[Result]":
    from archsim import api

    scenario = api.load(name)
    results = []
    for wanted in _modes(scenario, mode, batch, context):
        fields: dict[str, object] = {} if batch is None else {"batch": batch}
        if context is not None and wanted == "step":
            fields["context"] = context
        results.append(api.run(scenario, mode=wanted, over=fields))
    return results


def _print(results: "list[Result]") -> None:
    from archsim.report.terminal import console, print_answer

    out = console()
    for index, result in enumerate(results):
        if index:
            out.print()
        print_answer(out, result)


@app.command()
def explain(
    scenario: Name,
    batch: Annotated[int | None, typer.Option(min=1, help="Sequences, or clients.")] = None,
    context: Annotated[int | None, typer.Option(min=1, help="Tokens of each sequence.")] = None,
    kernel: Annotated[str | None, typer.Option(metavar="NAME", help="Only this kernel, with its constants.")] = None,
    mode: ModeOption = None,
) -> None:
    """Where every millisecond and dollar goes: each kernel and each sum with its formula and its numbers."""
    with _refusals():
        from archsim.report.explain import as_text, explain_one, memory_section
        from archsim.report.explain import explain as explain_all
        from archsim.report.point import main_point
        from archsim.report.terminal import refusal_lines

        wanted = None if batch is None else [batch], None if context is None else [context]
        results = _results(scenario, mode, *wanted)
        if mode is None:
            results = results[:1]  # the step where both are asked: it is what the steady state is made of
        feasible = False
        for result in results:
            point = main_point(result)
            feasible = feasible or point.feasible
            if not point.feasible:
                typer.echo("\n".join([*refusal_lines(point), as_text(point, [memory_section(point)])]))
            else:
                typer.echo(as_text(point, explain_all(point) if kernel is None else explain_one(point, kernel)))
        if not feasible:
            raise typer.Exit(INFEASIBLE)


@app.command()
def compare(
    scenarios: Annotated[list[str], typer.Argument(metavar="SCENARIO SCENARIO...", help="Files or shipped examples.")],
    html: Annotated[Path | None, typer.Option(metavar="OUT", help="Write one self-contained HTML file.")] = None,
    json: Annotated[str | None, typer.Option(metavar="OUT|-", help="Write JSON to a file, or to the output.")] = None,
    mode: ModeOption = None,
) -> None:
    """Scenarios side by side, and why each differs from the first, part by part of its time and of its cost."""
    with _refusals():
        from archsim.report import output
        from archsim.report.compare import compared, print_comparison, to_html, to_json

        if len(scenarios) < 2:
            raise ValueError("give two scenarios or more to compare")
        for target in (html, None if json in (None, "-") else Path(json)):
            output.check_place(target)
        found = compared([_results(name, mode, None, None)[0] for name in scenarios], scenarios)
        if html is not None:
            options = {"--mode": None if mode is None else mode.value, "--html": html.name}
            output.write_text(to_html(found, output.command_line("compare", scenarios, options)), str(html))
        if json is not None:
            output.write_text(to_json(found), json)
        if json != "-":
            print_comparison(found)
        if not all(item.feasible for item in found):
            raise typer.Exit(INFEASIBLE)


@app.command("import")
def import_config(
    config: Annotated[Path, typer.Argument(metavar="CONFIG", help="The config.json of a Hugging Face repository.")],
    name: Annotated[str | None, typer.Option(metavar="NAME", help="The model's name.")] = None,
    out: Annotated[Path | None, typer.Option(metavar="FILE", help="Write it there, not to the output.")] = None,
    text_only: Annotated[
        bool, typer.Option("--text-only", help="The language part of one that sees.")
    ] = False,
) -> None:
    """A workload file from a Hugging Face config.json; a key that is not understood is refused by its name."""
    with _refusals():
        from archsim.report import output
        from archsim.workload.importer import import_config

        output.check_place(out)
        found = import_config(config, name, text_only)
        for warning in found.warnings:
            typer.echo(f"{config}: {warning}", err=True)
        output.write_text(found.text, "-" if out is None else str(out))


@app.command()
def schema(
    kind: Annotated[
        str | None, typer.Argument(metavar="[KIND]", help="scenario, chip, ...; default: all.")
    ] = None,
    out: Annotated[Path | None, typer.Option(metavar="DIR", help="Write a file for each kind there.")] = None,
) -> None:
    """JSON Schemas of the files, with which editors complete and check them."""
    with _refusals():
        from archsim.report.schemas import print_schemas

        print_schemas(kind, out)


# The catalogue


def _list(kind: str) -> None:
    with _refusals():
        from archsim.report.catalogue import listing
        from archsim.report.terminal import console, print_table

        tables, faults = listing(kind)
        out = console()
        for table in tables:
            print_table(out, table)
        for fault in faults:
            typer.echo(str(fault), err=True)
        if faults:
            raise typer.Exit(MISTAKE)


def _show(kind: str, name: str, model: str, chip: str, count: int) -> None:
    with _refusals():
        from archsim.report.catalogue import shown_tables
        from archsim.report.terminal import console, print_table

        out = console()
        for table in shown_tables(kind, name, model, chip, count):
            print_table(out, table)


def _check(kind: str, names: list[str]) -> None:
    failed = False
    for name in names:
        try:
            with _refusals():
                from archsim.report.catalogue import check

                typer.echo(f"{check(kind, name)}: ok")
        except typer.Exit:
            failed = True
    if failed:
        raise typer.Exit(MISTAKE)


Names = Annotated[list[str], typer.Argument(metavar="FILE...", help="Files, or names from the catalogue.")]
EXAMPLE_MODEL, EXAMPLE_CHIP = "meta/llama-3.1-70b", "nvidia/h100-sxm"


def _catalogue(kind: str, noun: str) -> typer.Typer:
    """The commands of one kind of file; alone, it lists."""
    group = typer.Typer(rich_markup_mode=None, help=f"List, show or check {noun}.")

    @group.callback(invoke_without_command=True)
    def every(context: typer.Context) -> None:
        if context.invoked_subcommand is None:
            _list(kind)

    @group.command("list", help=f"All {noun} there are.")
    def all_of_them() -> None:
        _list(kind)

    @group.command("check", help="Validate files: `FILE: ok`, or every fault with its place and exit code 2.")
    def check(files: Names) -> None:
        _check(kind, files)

    return group


chips = _catalogue("chips", "chips and their calibration")
workloads = _catalogue("workloads", "models")
mappers = _catalogue("mappers", "mappers and runtimes")


@chips.command("show")
def show_chip(name: str) -> None:
    """One chip: peaks, ridge points, bandwidths, price, and where every number comes from."""
    _show("chips", name, EXAMPLE_MODEL, EXAMPLE_CHIP, 8)


@workloads.command("show")
def show_workload(name: str) -> None:
    """One model: parameters, layers, KV cache, formats, sources."""
    _show("workloads", name, EXAMPLE_MODEL, EXAMPLE_CHIP, 8)


@mappers.command("show")
def show_mapper(
    name: str,
    model: Annotated[str, typer.Option(help="The model to propose for.")] = EXAMPLE_MODEL,
    chip: Annotated[str, typer.Option(help="The chip to propose for.")] = EXAMPLE_CHIP,
    count: Annotated[int, typer.Option(min=1, max=4096, help="How many of them.")] = 8,
) -> None:
    """One mapper with what it proposes, or one runtime."""
    _show("mappers", name, model, chip, count)


app.add_typer(chips, name="chips")
app.add_typer(workloads, name="workloads")
app.add_typer(mappers, name="mappers")
