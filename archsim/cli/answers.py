"""The commands that answer scenarios: run, explain, compare."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from archsim.cli.base import INFEASIBLE, Batch, Context, Mode, ModeOption, Name, app, numbers, refusals

if TYPE_CHECKING:
    from archsim.explore.result import Result
    from archsim.explore.scenario import Scenario


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
    beside: Annotated[
        list[str] | None,
        typer.Option(metavar="SCENARIO", help="With --html: scenarios to compare at the end of the page. Repeatable."),
    ] = None,
) -> None:
    """Answer a scenario: how fast, at what cost, and why. Exit code 1: nothing fits."""
    with refusals():
        from archsim.report import output

        for target in (html, trace, None if json in (None, "-") else Path(json)):
            output.check_place(target)
        if beside and (html is None or len(beside) < 2):
            raise ValueError("--beside compares two scenarios or more in the page of --html")
        results = _results(scenario, mode, numbers(batch), numbers(context))
        if html is not None:
            given = {"--batch": batch, "--context": context, "--mode": None if mode is None else mode.value}
            others = [_results(name, mode, None, None)[0] for name in beside or ()]
            named = [part for name in beside or () for part in ("--beside", name)]
            command = output.command_line("run", [scenario, *named], {**given, "--html": html.name})
            output.write_html(results, html, command, others, beside or ())
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
    with refusals():
        from archsim.report.explain import as_text, explain_one, memory_sections
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
                typer.echo("\n".join([*refusal_lines(point), as_text(point, memory_sections(point))]))
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
    with refusals():
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
