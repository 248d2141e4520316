"""Files that a command writes: JSON, HTML, a trace, and the command that makes a report again."""

import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from archsim.explore.result import Result


def check_place(target: Path | None) -> None:
    """Refuses a file that cannot be written before anything is computed for it."""
    if target is not None and not target.parent.is_dir():
        raise ValueError(f"{target}: there is no folder {str(target.parent)!r}")
    if target is not None and target.is_dir():
        raise ValueError(f"{target} is a folder; give the name of a file")
    if target is not None and not os.access(target if target.exists() else target.parent, os.W_OK):
        raise ValueError(f"{target}: this place cannot be written to")


def write_text(text: str, target: str) -> None:
    """Writes text to a file, or to the output for "-"."""
    if target == "-":
        sys.stdout.write(text)
    else:
        Path(target).write_text(text, encoding="utf-8")


def write_json(results: Sequence[Result], target: str) -> None:
    """Writes results as JSON to a file, or to the output for "-"."""
    from archsim.report.document import to_json

    write_text(to_json(*results), target)


def write_trace(results: Sequence[Result], target: Path) -> None:
    """Writes the time line of every feasible result's best point."""
    from archsim.report import trace
    from archsim.report.point import main_point
    from archsim.report.steps import traced

    points = [point for point in map(main_point, results) if point.feasible]
    trace.write_trace(target, {name: step for point in points for name, step in traced(point).items()})


def write_html(
    results: Sequence[Result], target: Path, command: str, beside: Sequence[Result] = (), names: Sequence[str] = ()
) -> None:
    """Writes one self-contained HTML file; `command` is how to make it again.

    Results `beside`, of the scenarios of these names, are compared after them.
    """
    from archsim.report.compare import compared
    from archsim.report.html import to_html

    others = compared(beside, names) if beside else ()
    target.write_text(to_html(*results, command=command, beside=others), encoding="utf-8")


def command_line(verb: str, arguments: Sequence[str], options: Mapping[str, str | None]) -> str:
    """The command that makes a file again; options without a value are left out."""
    given = [part for name, value in options.items() if value is not None for part in (name, value)]
    return shlex.join(["archsim", verb, *arguments, *given])
