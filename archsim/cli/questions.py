"""The commands that ask about a design: what it hangs on, and where two of them change places."""

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from archsim.cli.base import INFEASIBLE, Mode, ModeOption, Name, app, refusals

if TYPE_CHECKING:
    from collections.abc import Sequence

    from archsim.explore.scenario import Scenario
    from archsim.report.tables import Table

Output = Annotated[
    str | None, typer.Option(metavar="METRIC", help="The metric asked about. Default: what the scenario is best at.")
]
Html = Annotated[Path | None, typer.Option(metavar="OUT", help="Write one self-contained HTML file.")]
Json = Annotated[
    str | None, typer.Option(metavar="OUT|-", help="Write JSON to a file, or to the output instead of tables.")
]
Ranges = Annotated[
    list[str] | None,
    typer.Option(metavar="FIELD=LOW..HIGH", help="A range of a field, such as chip.memory.bandwidth=2..8TB/s."),
]


class Varied(StrEnum):
    """In which design of two a field is varied."""

    first = "first"
    second = "second"
    both = "both"


def one_mode(scenario: "Scenario", mode: Mode | None) -> str:
    """The one answer that a question is about: that asked for, else the steady one where there is traffic."""
    if mode is Mode.both:
        raise ValueError("a question is about one answer: --mode step or --mode steady")
    if mode is not None:
        return mode.value
    return "steady" if scenario.input is not None else "step"


@app.command()
def sensitivity(
    scenario: Name,
    output: Output = None,
    vary: Ranges = None,
    sobol: Annotated[
        bool, typer.Option("--sobol", help="Sobol indices over the ranges of --vary and the error of the model.")
    ] = False,
    samples: Annotated[
        int, typer.Option(min=2, max=1 << 20, help="Of --sobol: a power of two, for each of which all ranges vary.")
    ] = 256,
    seed: Annotated[int, typer.Option(min=0, help="Of --sobol.")] = 0,
    same_plan: Annotated[
        bool,
        typer.Option("--same-plan", help="With --sobol: keep the plan that is best now at every sample."),
    ] = False,
    html: Html = None,
    json: Json = None,
    mode: ModeOption = None,
) -> None:
    """What an answer hangs on: elasticities to every number of the chips, and what more of each is worth."""
    with refusals():
        from archsim import api
        from archsim.explore.sensitivity import Nothing, number_axes, tornado
        from archsim.explore.sensitivity import sensitivity as ask
        from archsim.report import hangs_on
        from archsim.report import output as files

        places(html, json)
        loaded = api.load(scenario)
        axes = number_axes(vary or [], loaded)
        if sobol:
            from archsim.explore.sobol import ready

            ready()
        chosen = one_mode(loaded, mode)
        try:
            found = ask(loaded, chosen, output)
        except Nothing:
            _refuse(loaded, chosen)
        bars = hangs_on.range_rows(found, axes, tornado(loaded, chosen, found.output, axes)) if axes else []
        indices = None
        if sobol:
            from archsim.explore.sobol import sobol as decide

            indices = decide(loaded, chosen, found.output, axes, samples, seed, not same_plan)
        if html is not None:
            given = _given(output, vary, mode, _sobol_options(samples, seed, same_plan) if sobol else [])
            command = files.command_line("sensitivity", [scenario, *given], {"--html": html.name})
            files.write_text(hangs_on.sensitivity_page(found, command, bars, indices), str(html))
        if json is not None:
            files.write_text(hangs_on.sensitivity_json(found, bars, indices), json)
        if json != "-":
            print_all(hangs_on.lead(found), hangs_on.tables(found, bars, indices))
            written(HTML=html, JSON=json)


def _given(output: str | None, vary: "Sequence[str] | None", mode: Mode | None, more: "Sequence[str]") -> list[str]:
    """The options of a command as they were given."""
    named = {"--output": output, "--mode": None if mode is None else mode.value}
    found = [part for name, value in named.items() if value is not None for part in (name, value)]
    return [*found, *(part for text in vary or () for part in ("--vary", text)), *more]


def _sobol_options(samples: int, seed: int, same_plan: bool) -> list[str]:
    return ["--sobol", "--samples", str(samples), "--seed", str(seed), *(["--same-plan"] if same_plan else [])]


@app.command()
def breakeven(
    first: Annotated[str, typer.Argument(metavar="SCENARIO", help="A scenario file, or a shipped example.")],
    second: Annotated[str, typer.Argument(metavar="SCENARIO", help="The one that it is compared with.")],
    ranges: Annotated[
        list[str],
        typer.Option(
            "--vary", metavar="FIELD=LOW..HIGH", help="The field and its range: economics.capital=2000..20000USD."
        ),
    ],
    output: Annotated[str, typer.Option(metavar="METRIC", help="What they are compared by.")] = "cost_per_token",
    within: Annotated[
        Varied | None,
        typer.Option("--in", help="The design that it is varied in. Default: both; of chips and money, the first."),
    ] = None,
    html: Html = None,
    json: Json = None,
    mode: ModeOption = None,
) -> None:
    """Where two designs change places: each value at which the better one changes. Exit code 1: neither fits."""
    with refusals():
        from archsim import api
        from archsim.explore.breakeven import breakeven as ask
        from archsim.explore.breakeven import check_output, looked_at, varied_in
        from archsim.report import crossings
        from archsim.report import output as files

        places(html, json)
        check_output(output)
        if len(ranges) > 1:
            raise ValueError(f"one field is varied, not {len(ranges)}: give --vary once (`sweep` takes several)")
        vary = ranges[0]
        designs = api.load(first), api.load(second)
        name = vary.partition("=")[0].strip()
        varied = within.value if within is not None else varied_in(name)
        field, values = looked_at(vary, designs[varied == "second"])
        chosen = {one_mode(item, mode) for item in designs}
        if len(chosen) > 1:
            raise ValueError("one of them asks for a step, the other has traffic: give --mode step or steady")
        found = ask(*designs, chosen.pop(), field, values, output, varied)
        if html is not None:
            options = {"--output": output, "--in": within, "--mode": None if mode is None else mode.value}
            command = files.command_line("breakeven", [first, second, "--vary", vary], {**options, "--html": html.name})
            files.write_text(crossings.breakeven_page(found, command), str(html))
        if json is not None:
            files.write_text(crossings.breakeven_json(found), json)
        if json != "-":
            print_all(crossings.breakeven_lead(found), [crossings.breakeven_table(found)])
            written(HTML=html, JSON=json)
        if not found.usable:
            raise typer.Exit(INFEASIBLE)


def places(*targets: "Path | str | None") -> None:
    """Refuses files that cannot be written before anything is computed."""
    from archsim.report import output

    for target in targets:
        output.check_place(None if target in (None, "-") else Path(str(target)))


def print_all(lines: "Sequence[str]", tables: "Sequence[Table]") -> None:
    """Sentences, then tables."""
    from archsim.report.terminal import console, print_table

    out = console()
    for line in lines:
        out.print(line)
    for table in tables:
        print_table(out, table)


def written(**targets: object) -> None:
    """Where the files are."""
    for name, target in targets.items():
        if target is not None:
            typer.echo(f"\n{'Report' if name == 'HTML' else name}: {target}")


def _refuse(scenario: "Scenario", mode: str) -> NoReturn:
    """Why nothing fits; ends the command."""
    from archsim import api
    from archsim.report.point import main_point
    from archsim.report.terminal import console, print_refusal

    print_refusal(console(), main_point(api.run(scenario, mode=mode)))
    raise typer.Exit(INFEASIBLE)
