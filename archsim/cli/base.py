"""The application, its options, and how mistakes end: what all commands share."""

from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from typing import Annotated

import typer

from archsim import __version__

MOST_POINTS = 100_000
INFEASIBLE, MISTAKE, BROKEN = 1, 2, 3  # exit codes

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
        with refusals():
            from archsim.catalog import add_catalog

            for folder in reversed(catalog):
                add_catalog(folder)


@contextmanager
def refusals() -> Iterator[None]:
    """Turns what users can mend into lines on stderr and exit code 2; never a traceback for a mistake in a file.

    A number that the program owes and has not is its own mistake: exit code 3, and what to report.
    """
    try:
        yield
    except ArithmeticError as error:
        from archsim.arrays import BrokenModel

        if not isinstance(error, BrokenModel):
            raise
        typer.echo(f"archsim: {error}: a mistake in archsim {__version__}; please report it with your files", err=True)
        raise typer.Exit(BROKEN) from None
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


def numbers(text: str | None) -> "list[int] | None":
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


def checked(text: str | None) -> str | None:
    """The text, if it is one of numbers."""
    numbers(text)
    return text


Name = Annotated[str, typer.Argument(metavar="SCENARIO", help="A scenario file, or the name of a shipped example.")]
Batch = Annotated[
    str | None,
    typer.Option(callback=checked, metavar="NUMBERS", help="Sequences, or clients: 64 or 1,8,64 or 1..512."),
]
Context = Annotated[
    str | None, typer.Option(callback=checked, metavar="NUMBERS", help="Tokens of each sequence: 8192 or 1024,8192.")
]
ModeOption = Annotated[
    Mode | None,
    typer.Option(help="One decode step, the steady state of traffic, or both. Default: what the scenario asks."),
]
