"""The command that finds the points of a sweep that no other point beats."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from archsim.cli.base import INFEASIBLE, ModeOption, app, refusals
from archsim.cli.questions import Html, Json, places, print_all, written

if TYPE_CHECKING:
    from archsim.explore.fronts import Front
    from archsim.explore.pareto import Objective
    from archsim.explore.sweep import Sweep

LADDER = "batch=1..4096:37log"


@app.command()
def pareto(
    scenarios: Annotated[list[str], typer.Argument(metavar="SCENARIO...", help="Files or shipped examples.")],
    vary: Annotated[
        list[str] | None,
        typer.Option(metavar="FIELD=VALUES", help=f"An axis, as of `sweep`. Repeatable. Default: {LADDER}."),
    ] = None,
    objectives: Annotated[
        str, typer.Option(metavar="NAME:max,NAME:min", help="Metrics, and which way each is better.")
    ] = "throughput_per_chip:max,interactivity:max",
    zipped: Annotated[
        list[str] | None,
        typer.Option("--zip", metavar="FIELD,FIELD", help="Axes that go together, or `all`. Repeatable."),
    ] = None,
    override: Annotated[
        list[str] | None,
        typer.Option(metavar="'NAME: {FIELD: VALUE, ...}'", help="A named set of changes, one of an axis. Repeatable."),
    ] = None,
    refine: Annotated[bool, typer.Option("--refine/--no-refine", help="Add points where the SLO is just kept.")] = True,
    html: Html = None,
    csv: Annotated[str | None, typer.Option(metavar="OUT|-", help="Write the front as CSV.")] = None,
    json: Json = None,
    mode: ModeOption = None,
) -> None:
    """The Pareto front of a sweep, over every plan: what no other point beats. Exit code 1: nothing fits."""
    with refusals():
        from archsim.explore.fronts import front_of
        from archsim.explore.pareto import objectives as read
        from archsim.explore.result import METRICS, PRICED
        from archsim.report import fronts

        places(html, csv, json)
        wanted = read(objectives, [*METRICS, *PRICED])
        names = [text.split(",") for text in zipped or ()]
        spec = _specified(scenarios, vary, names, override or [], None if mode is None else mode.value)
        found = front_of(spec, wanted, refine)
        if not found.feasible:
            typer.echo("\n".join(fronts.lead(found, wanted)))
            raise typer.Exit(INFEASIBLE)
        given = _given(vary, objectives, zipped, override, refine, mode)
        _write(found, wanted, spec, [*scenarios, *given], html, csv, json)


def _specified(
    scenarios: list[str], vary: list[str] | None, zips: list[list[str]], overrides: list[str], mode: str | None
) -> "Sweep":
    from archsim import api
    from archsim.explore.specify import specify

    loaded = [api.load(name) for name in scenarios]
    axes = vary if vary or overrides else [LADDER]
    return specify(loaded, axes or [], zips=zips, overrides=overrides, mode=mode)


def _given(
    vary: list[str] | None,
    objectives: str,
    zipped: list[str] | None,
    override: list[str] | None,
    refine: bool,
    mode: object,
) -> list[str]:
    """The options as they were given."""
    pairs = (("--vary", vary), ("--objectives", [objectives]), ("--zip", zipped), ("--override", override))
    found = [part for name, values in pairs for value in values or () for part in (name, value)]
    return [*found, *([] if refine else ["--no-refine"]), *([] if mode is None else ["--mode", str(mode)])]


def _write(
    found: "Front",
    wanted: "list[Objective]",
    spec: "Sweep",
    arguments: list[str],
    html: Path | None,
    csv: str | None,
    json: str | None,
) -> None:
    """The page and the files that are asked for, and the answer."""
    from archsim.report import fronts
    from archsim.report import output as files

    title = " and ".join(grid.origin.name for grid in spec.grids)
    points = fronts.points_of_front(found)
    if html is not None:
        command = files.command_line("pareto", arguments, {"--html": html.name})
        files.write_text(fronts.to_html(found, points, wanted, title, command), str(html))
    if csv is not None:
        files.write_text(fronts.to_csv(points, found, wanted), csv)
    if json is not None:
        files.write_text(fronts.to_json(points, found, wanted), json)
    if "-" not in (csv, json):
        print_all(fronts.lead(found, wanted), [fronts.table(found, points, wanted)])
        written(HTML=html, CSV=csv, JSON=json)
