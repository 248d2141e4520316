"""The commands that search: deployments, size, design."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from archsim.cli.base import INFEASIBLE, Name, app, refusals

JsonOut = Annotated[
    str | None, typer.Option(metavar="OUT|-", help="Write JSON to a file, or to the output instead of tables.")
]


class Least(StrEnum):
    """What is to be as little as possible."""

    chips = "chips"
    cost = "cost"
    power = "power"


@app.command()
def deployments(
    scenario: Name,
    chips: Annotated[int | None, typer.Option(min=1, max=4096, help="Chips; default: those of the scenario.")] = None,
    top: Annotated[int, typer.Option(min=1, max=1000, help="How many of each kind to list.")] = 10,
    json: JsonOut = None,
) -> None:
    """Every legal deployment on so many chips, prefill apart or not: the best under the SLO. Exit code 1: none."""
    with refusals():
        from archsim import api
        from archsim.explore.deployments import deployments as search
        from archsim.report import output
        from archsim.report.search import deployments_json, print_deployments

        output.check_place(None if json in (None, "-") else Path(str(json)))
        found = search(api.load(scenario), chips, top)
        if json is not None:
            output.write_text(deployments_json(found), json)
        if json != "-":
            print_deployments(found)
        if not found.found:
            raise typer.Exit(INFEASIBLE)


@app.command()
def size(
    scenario: Name,
    rate: Annotated[float | None, typer.Option(min=1e-6, max=1e5, help="Requests a second.")] = None,
    sessions: Annotated[int | None, typer.Option(min=1, help="Sessions at once, each waiting for its answer.")] = None,
    objective: Annotated[Least, typer.Option(help="What is to be as little as possible.")] = Least.chips,
    percentile: Annotated[
        float | None, typer.Option(min=1.0, max=100.0, help="Of TTFT and TPOT that must keep the SLO; default: 90.")
    ] = None,
    chips: Annotated[
        str | None,
        typer.Option(metavar="NAMES", help="Kinds of chips to choose from: nvidia/h200-sxm,nvidia/b200-sxm."),
    ] = None,
    largest: Annotated[
        int | None, typer.Option(min=1, max=4096, help="Chips of a replica at the most; default: 64.")
    ] = None,
    tries: Annotated[int, typer.Option(min=1, help="Proposals to play before giving up.")] = 12,
    requests: Annotated[int | None, typer.Option(min=10, help="Requests to play; default: enough to settle.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Of the requests that are drawn.")] = 0,
    json: JsonOut = None,
) -> None:
    """The fewest chips for a rate or for sessions under the SLO, played before it is an answer. Exit code 1: none."""
    with refusals():
        from archsim import api
        from archsim.explore.played import Demand
        from archsim.explore.size import on_chip
        from archsim.explore.size import size as search
        from archsim.report import output
        from archsim.report.search import print_sized, sized_json

        output.check_place(None if json in (None, "-") else Path(str(json)))
        own = api.load(scenario)
        kinds = [own] if chips is None else [on_chip(own, name.strip()) for name in chips.split(",")]
        demand = Demand(rate, sessions, objective.value, percentile, largest, tries, requests, seed)
        found = search(kinds, demand)
        if json is not None:
            output.write_text(sized_json(found), json)
        if json != "-":
            print_sized(found)
        if found.answer is None:
            raise typer.Exit(INFEASIBLE)


@app.command()
def design(
    file: Annotated[
        str, typer.Argument(metavar="FILE", help="What may vary, the budgets, and the scenario to be best at.")
    ],
    top: Annotated[int, typer.Option(min=1, max=1000, help="How many designs to list.")] = 8,
    storage: Annotated[
        Path | None,
        typer.Option(metavar="DB", help="Keep a search by optuna in this file, and go on from it if it is there."),
    ] = None,
    json: JsonOut = None,
) -> None:
    """Which chip would be best within budgets of area, power and price. Exit code 1: none keeps them and the SLO."""
    with refusals():
        from archsim.explore.design import design as search
        from archsim.explore.design import load_problem
        from archsim.report import output
        from archsim.report.designs import designs_json, print_designs

        output.check_place(None if json in (None, "-") else Path(str(json)))
        output.check_place(storage)
        found = search(load_problem(file), None if storage is None else str(storage))
        if json is not None:
            output.write_text(designs_json(found, top), json)
        if json != "-":
            print_designs(found, top)
        if found.best is None:
            raise typer.Exit(INFEASIBLE)
