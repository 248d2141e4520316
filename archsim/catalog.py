"""Finds and reads the YAML files of chips, workloads, mappers and examples; reports every fault at once.

`load("chips", "nvidia/h100-sxm", ChipModel)` is the whole road: find the file by path or name, read it
(`archsim.yamlmarks`), apply `extends:` and `set:`, validate it. A user's folders come before the built-in
ones and are searched by the same route. Every mistake in a file ends in one CatalogError that lists them all
by position.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel

from archsim.fields import FaultAt, StrictModel, validate
from archsim.units import described, did_you_mean
from archsim.yamlmarks import MAX_DEPTH, CatalogError, Document, Fault, Mark, Where, read, read_text, shown

__all__ = [
    "CatalogError",
    "Document",
    "Fault",
    "FaultAt",
    "Mark",
    "StrictModel",
    "add_catalog",
    "added",
    "did_you_mean",
    "fetch",
    "find",
    "load",
    "names",
    "read",
    "read_text",
    "resolve",
    "roots",
    "validate",
]

ENVIRONMENT = "ARCHSIM_CATALOG"
ENTRY_POINTS = "archsim.catalog"  # the group in which a distribution offers a folder
# folders that hold another kind than the one above them
RESERVED = frozenset({"designs", "generations", "memory", "returns", "runtimes", "silicon", "traffic"})
MAX_EXTENDS = 10

_PACKAGE = Path(__file__).resolve().parent
_added: list[Path] = []
_NOUNS = {
    "chips": "chip",
    "workloads": "workload",
    "mappers": "mapper",
    "examples": "example",
    "chips/generations": "generation",
    "chips/memory": "memory technology",
    "chips/silicon": "file of silicon",
    "examples/designs": "design",
    "mappers/runtimes": "runtime",
    "workloads/returns": "return prediction",
    "workloads/traffic": "traffic",
}

T = TypeVar("T", bound=BaseModel)
Finder = Callable[[str, Path], Path]


def load(kind: str, name: str, model: type[T], mark: Mark | None = None) -> T:
    """Find, read, resolve and validate a file. Raises CatalogError with every fault; see the four steps."""
    return validate(model, fetch(kind, name, mark))


def fetch(kind: str, name: str, mark: Mark | None = None) -> Document:
    """Find, read and resolve a file: its data with `extends` and `set` applied, not yet validated."""

    def parent(name: str, referrer: Path) -> Path:
        return _located(kind, name, referrer.parent, referrer.resolve())

    return resolve(read(find(kind, name, mark)), parent)


# Where files lie


def add_catalog(path: Path | str) -> None:
    """Search a folder (which holds chips/, workloads/, mappers/ or examples/) before all others from now on.

    Raises CatalogError where there is no such folder.
    """
    folder = _folder(path, "no such catalogue folder")
    if folder in _added:
        _added.remove(folder)
    _added.insert(0, folder)


def added() -> tuple[Path, ...]:
    """The folders of `add_catalog`, the first to be searched first."""
    return tuple(_added)


def _folder(path: Path | str, message: str) -> Path:
    folder = Path(os.path.expanduser(path))  # which leaves "~nobody" as it is, where Path.expanduser raises
    if not folder.is_dir():
        raise CatalogError([Fault(str(path), 0, 0, message)])
    return folder.resolve()


def roots(kind: str) -> list[Path]:
    """The folders that hold files of a kind ("chips", "chips/generations", ...), in order of search.

    Those of `add_catalog`, those of the environment variable ARCHSIM_CATALOG, those of installed distributions
    (entry points of the group archsim.catalog), the built-in one: beside the package in a checkout (known by
    pyproject.toml), inside it when installed. Raises CatalogError where the variable or an entry point names a
    folder that does not exist, because a skipped folder would show as a wrong answer.
    """
    listed = [part for part in os.environ.get(ENVIRONMENT, "").split(os.pathsep) if part]
    named = [_folder(part, f"no such folder, named by {ENVIRONMENT}") for part in listed]
    beside = _PACKAGE.parent
    builtin = beside if (beside / "pyproject.toml").is_file() else _PACKAGE
    found = [base / kind for base in (*_added, *named, *_offered(), builtin)]
    return [folder for folder in dict.fromkeys(found) if folder.is_dir()]


@cache
def _offered() -> tuple[Path, ...]:
    """The folders that installed distributions offer, by the names of their entry points."""
    return tuple(_folder_of(point) for point in sorted(entry_points(group=ENTRY_POINTS), key=lambda point: point.name))


def _folder_of(point: EntryPoint) -> Path:
    """The folder of an entry point: of text, of a path, or of a function that returns one."""
    where = f"entry point {point.name!r} of {ENTRY_POINTS}"
    try:
        found = point.load()
        found = found() if callable(found) else found
    except Exception as error:  # another distribution's code may fail in any way
        raise CatalogError([Fault(where, 0, 0, f"{point.value}: {type(error).__name__}: {error}")]) from error
    if not isinstance(found, str | os.PathLike):
        expected = f"expected the path of a folder, got {described(found)}"
        raise CatalogError([Fault(where, 0, 0, f"{point.value}: {expected}")])
    folder = Path(found)
    if not folder.is_dir():
        raise CatalogError([Fault(where, 0, 0, f"{point.value}: no such folder {described(str(found))}")])
    return folder.resolve()


def names(kind: str) -> list[str]:
    """The names of all files of a kind: relative to their root, without suffix, such as "nvidia/h100-sxm"."""
    return sorted({name for root in roots(kind) for name in _names_in(root)})


def _names_in(root: Path) -> Iterator[str]:
    for path in root.rglob("*.yaml"):
        parts = path.relative_to(root).parts
        if not RESERVED.intersection(parts[:-1]) and not any(part.startswith(".") for part in parts):
            yield "/".join(parts).removesuffix(".yaml")


def find(kind: str, name: str, mark: Mark | None = None) -> Path:
    """The file that a name or path means.

    `name` is a path to an existing file (absolute, or relative to the file of `mark`, then to the current
    folder), a full name such as "nvidia/h100-sxm", or its last part where only one file has it. Raises
    CatalogError, at `mark` where given, with near matches.
    """
    folder = Path(mark.file).parent if mark else Path()
    try:
        return _located(kind, name, folder, None)
    except CatalogError as error:
        raise (_moved(error, name, mark) if mark else error) from None


def _moved(error: CatalogError, name: str, mark: Mark) -> CatalogError:
    """The faults about a name, which have no position of their own, at the text that says the name."""
    faults = error.faults
    return CatalogError(mark.fault(fault.message) if fault.file == name else fault for fault in faults)


def _located(kind: str, name: str, folder: Path, referrer: Path | None) -> Path:
    """`find` for a file in `folder`; a user's file may extend the built-in one of its own name."""
    path_like = name.endswith((".yaml", ".yml")) or name.startswith((".", "/", "~"))
    path = _file(folder, name)
    if path and path_like:
        return path
    bare = name.removesuffix(".yaml").removeprefix(f"{kind}/")
    candidates = [root / f"{full}.yaml" for full in _matches(kind, bare) for root in roots(kind)]
    existing = [candidate for candidate in candidates if _is_file(candidate)]
    if existing:
        return next((other for other in existing if other != referrer), existing[0])
    if path:
        return path
    raise CatalogError([Fault(name, 0, 0, _unknown(kind, name, bare, path_like))])


def _matches(kind: str, name: str) -> list[str]:
    """The full name meant in a list, or an empty list. Raises CatalogError where there are several."""
    known = names(kind)
    if name in known:
        return [name]
    ending = [full for full in known if full.endswith(f"/{name}")]
    if len(ending) > 1:
        listed = " or ".join(repr(full) for full in ending)
        raise CatalogError([Fault(name, 0, 0, f"{_noun(kind)} {name!r} is ambiguous: write {listed}")])
    return ending


def _file(folder: Path, name: str) -> Path | None:
    tried = [base / os.path.expanduser(name) for base in (folder, Path())]
    return next((path.resolve() for path in tried if _is_file(path)), None)


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:  # such as a name that is too long
        return False


def _noun(kind: str) -> str:
    return _NOUNS.get(kind, kind)


def _unknown(kind: str, name: str, bare: str, path_like: bool) -> str:
    known = names(kind)
    what = f"no such file {described(name)}" if path_like else f"unknown {_noun(kind)} {described(name)}"
    # by the last part first: vendors are seldom mistyped and make unlike names look alike
    hint = did_you_mean(bare.rpartition("/")[2], (full.rpartition("/")[2] for full in known))
    hint = hint or did_you_mean(bare, known)
    if hint or path_like:
        return what + hint
    if not known:
        return f"{what}; no catalogue folder has any"
    rest = f", ... ({len(known)} in all)" if len(known) > 12 else ""
    return f"{what}; known: {', '.join(known[:12])}{rest}"


# extends and set


def resolve(document: Document, find: Finder) -> Document:
    """Apply the top-level `extends: name-or-path` and `set: {dotted.path: value}` of a document.

    Mappings merge deeply, the child's values over the parent's; lists and scalars replace, but top-level
    `sources` add up. `set` then replaces values at paths that exist ("pools.0.count" reaches into lists). Marks
    point into the file that
    said the value. `find` maps (name, path of the referring file) to a file. Raises CatalogError for a parent
    that is not found, a circle, more than 10 generations, and for `set` paths that do not exist.
    """
    return _resolved(document, find, ())


def _resolved(document: Document, find: Finder, trail: tuple[Path, ...]) -> Document:
    own = {key: value for key, value in document.data.items() if key not in ("extends", "set")}
    data, marks = own, dict(document.marks)
    if "extends" in document.data:
        parent = _parent(document, find, (*trail, document.path.resolve()))
        marks = {(): document.mark()}
        data = _merged(parent, Document(document.path, own, document.marks), marks)
    if "set" in document.data:
        data = _overridden(data, marks, document)
    for where in [where for where in marks if where and where[0] in ("extends", "set")]:
        del marks[where]
    return Document(document.path, data, marks)


def _parent(document: Document, find: Finder, trail: tuple[Path, ...]) -> Document:
    mark, name = document.mark("extends"), document.data["extends"]
    if not isinstance(name, str):
        message = f"expected the name or path of a file to extend, got {described(name)}"
        raise CatalogError([mark.fault(message)])
    try:
        path = find(name, document.path)
    except CatalogError as error:
        raise _moved(error, name, mark) from None
    if path.resolve() in trail:
        circle = " -> ".join(shown(step) for step in (*trail[trail.index(path.resolve()) :], path))
        raise CatalogError([mark.fault(f"extends goes in a circle: {circle}")])
    if len(trail) > MAX_EXTENDS:
        raise CatalogError([mark.fault(f"extends goes more than {MAX_EXTENDS} files deep")])
    return _resolved(read(path), find, trail)


def _merged(below: Document, above: Document, marks: dict[Where, Mark], where: Where = ()) -> dict[str, Any]:
    """The data of one mapping over another; adds the marks of what is inside to `marks`."""
    low, high = _value(below.data, where), _value(above.data, where)
    data: dict[str, Any] = {}
    for key in dict.fromkeys((*low, *high)):
        path = (*where, key)
        source = above if key in high else below
        marks[path] = source.mark(*path)
        if isinstance(low.get(key), dict) and isinstance(high.get(key), dict):
            data[key] = _merged(below, above, marks, path)
        elif path == ("sources",) and isinstance(low.get(key), list) and isinstance(high.get(key), list):
            data[key] = _joined(below, above, marks)
        else:
            data[key] = high[key] if key in high else low[key]
            marks.update((inner, source.mark(*inner)) for inner in _paths(data[key], path))
    return data


def _joined(below: Document, above: Document, marks: dict[Where, Mark]) -> list[Any]:
    """The sources of a child and then its parent's: what is inherited keeps the source it had."""
    low, high = below.data["sources"], above.data["sources"]
    for index in range(len(high) + len(low)):
        document, old = (above, index) if index < len(high) else (below, index - len(high))
        for inner in _paths(document.data["sources"][old], ()):
            marks["sources", index, *inner] = document.mark("sources", old, *inner)
    return [*high, *low]


def _value(data: Any, where: Where) -> Any:
    for part in where:
        data = data[part]
    return data


def _paths(data: Any, where: Where) -> Iterator[Where]:
    """A path and all paths inside it."""
    yield where
    items = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    for part, value in items:
        yield from _paths(value, (*where, part))


def _overridden(data: dict[str, Any], marks: dict[Where, Mark], document: Document) -> dict[str, Any]:
    overrides = document.data["set"]
    if not isinstance(overrides, dict):
        message = f"expected a mapping of dotted paths to values, got {described(overrides)}"
        raise CatalogError([document.mark("set").fault(message)])
    faults = []
    for dotted, value in overrides.items():
        where = _target(data, dotted)
        said: Where = ("set", dotted)
        if isinstance(where, str):
            faults.append(document.mark(*said).key_fault(where))
            continue
        depth = len(where) + max(map(len, _paths(value, ())))
        if depth > MAX_DEPTH:  # every file of a chain could add as many levels as a file may have
            faults.append(document.mark(*said).fault(f"this nests values deeper than {MAX_DEPTH} levels"))
            continue
        for old in _paths(_value(data, where), where):
            marks.pop(old, None)
        data = _replaced(data, where, value)
        marks.update((where + path[2:], document.mark(*path)) for path in _paths(value, said))
    if faults:
        raise CatalogError(faults)
    return data


def _target(data: Any, dotted: str) -> Where | str:
    """The path that a dotted text means, or what is wrong with it."""
    where, reached, rest = _followed(data, dotted)
    if rest is None:
        return where
    before, (_, dot, tail) = dotted[: len(dotted) - len(rest)], rest.partition(".")
    keys = [(key, reached[part]) for key, part in _keys(reached).items()]
    fitting = [key for key, inner in keys if not dot or _followed(inner, tail)[2] is None]
    near = [f"{before}{key}{dot}{tail}" for key in fitting]
    return f"there is no {described(dotted)} to set{did_you_mean(dotted, near)}"


def _followed(data: Any, dotted: str) -> tuple[Where, Any, str | None]:
    """As far as a dotted path exists: the path, what it reached, and the rest of the text (None: nothing)."""
    where: Where = ()
    rest: str | None = dotted
    while rest is not None:
        keys = _keys(data)
        ends = [at for at in range(len(rest) + 1) if at == len(rest) or rest[at] == "."]
        fitting = [rest[:end] for end in ends if rest[:end] in keys]
        if not fitting:
            break
        key = fitting[-1]  # the longest, because keys may hold dots too ("llama.cpp")
        where, data = (*where, keys[key]), data[keys[key]]
        rest = rest[len(key) + 1 :] if len(rest) > len(key) else None
    return where, data, rest


def _keys(data: Any) -> dict[str, str | int]:
    """What a dotted path may go on with: keys of a mapping, positions in a list, nothing in a scalar."""
    if isinstance(data, dict):
        return {key: key for key in data}
    return {str(at): at for at in range(len(data))} if isinstance(data, list) else {}


def _replaced(data: Any, where: Where, value: Any) -> Any:
    """A copy with another value at an existing path; what is not on the path is shared."""
    if not where:
        return value
    copy = data.copy()
    copy[where[0]] = _replaced(data[where[0]], where[1:], value)
    return copy
