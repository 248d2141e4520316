"""The command that says how far off the models are: validate."""

from pathlib import Path
from typing import Annotated

import typer

from archsim.cli.base import app, refusals

Names = list[str] | None


@app.command()
def validate(
    chip: Annotated[Names, typer.Option(metavar="NAME", help="Only this measured chip. Repeatable.")] = None,
    family: Annotated[Names, typer.Option(metavar="NAME", help="Only this kernel family. Repeatable.")] = None,
    stack: Annotated[Names, typer.Option(metavar="NAME", help="Only this software stack. Repeatable.")] = None,
    html: Annotated[Path | None, typer.Option(metavar="FILE", help="Write a report with figures there.")] = None,
    json: Annotated[str | None, typer.Option(metavar="FILE", help="Write JSON there; - for the output.")] = None,
    markdown: Annotated[Path | None, typer.Option(metavar="FILE", help="Write the page docs/validation.md.")] = None,
    measurements: Annotated[
        Path | None, typer.Option(metavar="DIR", help="A folder with more published measurements.")
    ] = None,
    played: Annotated[
        int, typer.Option(metavar="N", min=0, help="Play so many serving runs request by request too: slow.")
    ] = 0,
) -> None:
    """How far off the models are, against published measurements, family by family and chip by chip."""
    with refusals():
        from archsim.report import output
        from archsim.report.validation import print_validation, to_json, to_markdown
        from archsim.validation.validate import validated

        for target in (html, markdown, None if json in (None, "-") else Path(json)):
            output.check_place(target)
        sections = validated(chip or (), family or (), stack or (), measurements, played)
        given = {"--chip": chip or [], "--family": family or [], "--stack": stack or []}
        given["--measurements"] = ["DIR"] if measurements else []
        given["--played"] = [str(played)] if played else []
        if html is not None:
            from archsim.report.validation_page import to_html

            html.write_text(to_html(sections, _command(given, {"--html": html.name})), encoding="utf-8")
        if markdown is not None:
            command = _command(given, {"--markdown": "docs/validation.md"})
            markdown.write_text(to_markdown(sections, command), encoding="utf-8")
        if json is not None:
            output.write_text(to_json(sections), json)
        if json != "-":
            print_validation(sections)


def _command(given: dict[str, list[str]], written: dict[str, str | None]) -> str:
    """The command that makes a page again."""
    from archsim.report.output import command_line

    repeated = [part for option, values in given.items() for value in values for part in (option, value)]
    return command_line("validate", repeated, written)
