"""The sections of serving runs, of machines and of published figures, for the report."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from archsim.validation.end_to_end_spread import coverage, share, shipped
from archsim.validation.end_to_end_tables import TIMES, Evaluated, evaluate, section_of
from archsim.validation.played import section as played_section
from archsim.validation.published_sections import machine_sections
from archsim.validation.rows import carried, read, table
from archsim.validation.tables import Section


def sections(folder: Path | None = None, source: Path | None = None, played: int = 0) -> list[Section]:
    """The section of serving runs, that of `played` ones, and those of the tables that lie in `folder`.

    Runs come from `source`, else from the extra `measurements`, else from what the package carries.
    """
    path = source or table() or carried()
    runs = read(path)
    done = evaluate(runs)
    section = section_of(done, few=path == carried())
    section = replace(section, notes=(*section.notes, *bands(done)))
    more = [played_section(runs, folder, played)] if played else []
    return [section, *more, *(machine_sections(folder) if folder is not None else [])]


def bands(done: Evaluated) -> Iterator[str]:
    """What share of the runs that no fit saw lies inside the 80 % bands of the runtime files."""
    found = list(coverage(done, shipped()))
    for time in TIMES:
        parts = []
        for name, distance in (("all", None), ("fitted chips", "fitted"), ("other chips", "sibling")):
            runs = sum(one.runs for one in found if one.key[1] == time and distance in (None, one.key[3]))
            if runs:
                parts.append(f"{name} {100 * share(found, time, distance):.0f} % of {runs}")
        if parts:
            yield f"80 % band of {time.upper()}, runs inside it (gate 70 to 88 %, aim 75 to 85 %): {', '.join(parts)}"
