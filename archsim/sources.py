"""Where numbers come from: every figure of a catalogue file carries its origin as data."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import Field

from archsim.catalog import CatalogError, Document, StrictModel
from archsim.yamlmarks import Where

Origin = Literal["datasheet", "talk", "paper", "measured", "analyst", "assumption"]


class SourceEntry(StrictModel):
    """Which fields a source vouches for, of what kind it is, and where to find it."""

    of: tuple[str, ...] = Field(description="dotted fields; a field covers everything below it")
    kind: Origin
    ref: str


@dataclass(frozen=True)
class Source:
    """A source entry with the file it stands in."""

    of: tuple[str, ...]
    kind: str
    ref: str
    file: str = ""


def check_sources(document: Document, sources: tuple[SourceEntry, ...], skip: tuple[str, ...]) -> None:
    """Refuses a catalogue file in which a field has no source."""
    covered = {of for entry in sources for of in entry.of}
    faults = [
        document.mark(*path).fault(f"no source covers {'.'.join(map(str, path))!r}; add it to `sources`")
        for path in _leaves(document.data)
        if path[0] not in (*skip, "sources", "extends", "set")
        and not any(".".join(map(str, path[: depth + 1])) in covered for depth in range(len(path)))
    ]
    if faults:
        raise CatalogError(faults)


def _leaves(data: Any, path: Where = ()) -> Iterator[Where]:
    """Paths of all values that are no mappings; a list counts as one value."""
    if not isinstance(data, dict):
        yield path
        return
    for key, value in data.items():
        yield from _leaves(value, (*path, key))


def sources_of(entries: tuple[SourceEntry, ...], file: str) -> tuple[Source, ...]:
    """The entries of one file."""
    return tuple(Source(entry.of, entry.kind, entry.ref, file) for entry in entries)
