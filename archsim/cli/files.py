"""The commands about files: import, schema, and the catalogue's chips, workloads and mappers."""

from pathlib import Path
from typing import Annotated

import typer

from archsim.cli.base import MISTAKE, app, refusals


@app.command("import")
def import_config(
    config: Annotated[Path, typer.Argument(metavar="CONFIG", help="The config.json of a Hugging Face repository.")],
    name: Annotated[str | None, typer.Option(metavar="NAME", help="The model's name.")] = None,
    out: Annotated[Path | None, typer.Option(metavar="FILE", help="Write it there, not to the output.")] = None,
    text_only: Annotated[bool, typer.Option("--text-only", help="The language part of one that sees.")] = False,
) -> None:
    """A workload file from a Hugging Face config.json; a key that is not understood is refused by its name."""
    with refusals():
        from archsim.report import output
        from archsim.workload.importer import import_config

        output.check_place(out)
        found = import_config(config, name, text_only)
        for warning in found.warnings:
            typer.echo(f"{config}: {warning}", err=True)
        output.write_text(found.text, "-" if out is None else str(out))


@app.command()
def schema(
    kind: Annotated[str | None, typer.Argument(metavar="[KIND]", help="scenario, chip, ...; default: all.")] = None,
    out: Annotated[Path | None, typer.Option(metavar="DIR", help="Write a file for each kind there.")] = None,
) -> None:
    """JSON Schemas of the files, with which editors complete and check them."""
    with refusals():
        from archsim.report.schemas import print_schemas

        print_schemas(kind, out)


def _list(kind: str) -> None:
    with refusals():
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
    with refusals():
        from archsim.report.catalogue import shown_tables
        from archsim.report.terminal import console, print_table

        out = console()
        for table in shown_tables(kind, name, model, chip, count):
            print_table(out, table)


def _check(kind: str, names: list[str]) -> None:
    failed = False
    for name in names:
        try:
            with refusals():
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
