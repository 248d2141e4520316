"""YAML as plain data with the position of every value, and faults that name file, line and column.

PyYAML follows YAML 1.1, where `no` is a boolean, `12:30:45` is 45045, `017` is 15, `1e9` is text and the
second of two equal keys wins in silence. Here only its scanner and parser are used. Scalars follow a strict
core schema: `true` and `false`, `null` and `~`, decimal numbers, and everything else is text. Nothing in a
file can run code, exhaust memory or escape as anything but a CatalogError.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

import yaml

from archsim.units import described

Where = tuple[str | int, ...]  # a path into the data: keys and list positions

MAX_BYTES = 5_000_000
MAX_NODES = 100_000  # aliases expanded
MAX_DEPTH = 50

# libyaml where PyYAML was built with it, about ten times as fast
_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


@dataclass(frozen=True, order=True)
class Fault:
    """One mistake in a file. Lines and columns count from 1; line 0 means that no position is known."""

    file: str
    line: int
    column: int
    message: str

    def __str__(self) -> str:
        """`file:line:col: message`, or `file: message` without a position."""
        position = f":{self.line}:{self.column}" if self.line else ""
        return f"{self.file}{position}: {self.message}"


class CatalogError(Exception):
    """Everything that is wrong with what was read; `faults` in order of position, each once."""

    def __init__(self, faults: Iterable[Fault]) -> None:
        self.faults: tuple[Fault, ...] = tuple(sorted(set(faults)))
        super().__init__(self.faults)  # what pickle hands back to __init__ in another process

    def __str__(self) -> str:
        """One fault per line."""
        return "\n".join(str(fault) for fault in self.faults)


@dataclass(frozen=True)
class Mark:
    """Where a value and its key stand; `file` is the file that says it, which may be one that is extended."""

    file: str
    line: int
    column: int
    key_line: int
    key_column: int

    def fault(self, message: str) -> Fault:
        """A fault at the value."""
        return Fault(self.file, self.line, self.column, message)

    def key_fault(self, message: str) -> Fault:
        """A fault at the key (of a list item: at the item)."""
        return Fault(self.file, self.key_line, self.key_column, message)


@dataclass(frozen=True)
class Document:
    """What a file says: plain `data`, and for every path in it a mark. The path () is the whole."""

    path: Path
    data: dict[str, Any]
    marks: dict[Where, Mark]

    def mark(self, *where: str | int) -> Mark:
        """The mark of a path, or of the nearest thing around it that has one."""
        for length in range(len(where), -1, -1):
            if where[:length] in self.marks:
                return self.marks[where[:length]]
        return Mark(shown(self.path), 0, 0, 0, 0)

    def at(self, *where: str | int) -> Document:
        """The mapping at a path, as a document of its own. Raises CatalogError where there is no mapping."""
        data: Any = self.data
        for part in where:
            inside = data.get(part) if isinstance(data, dict) else None
            if isinstance(data, list) and isinstance(part, int) and 0 <= part < len(data):
                inside = data[part]
            data = inside
        if not isinstance(data, dict):
            name = ".".join(map(str, where))
            raise CatalogError([self.mark(*where).fault(f"expected a mapping at {name!r}")])
        size = len(where)
        marks = {path[size:]: mark for path, mark in self.marks.items() if path[:size] == where}
        return Document(self.path, data, marks)


_recorders: list[set[Path]] = []


@contextmanager
def recording() -> Iterator[set[Path]]:
    """The files that are read meanwhile, and those whose contents are taken from memory."""
    found: set[Path] = set()
    _recorders.append(found)
    try:
        yield found
    finally:
        _recorders[:] = [other for other in _recorders if other is not found]


def note(*paths: Path) -> None:
    """Says that files are an input of what is loaded now."""
    for found in list(_recorders):
        found.update(path.resolve() for path in paths)


def shown(path: Path) -> str:
    """A path as messages print it: relative when it lies below the current directory."""
    try:
        return str(path.relative_to(Path.cwd()))
    except (ValueError, OSError):
        return str(path)


def read(path: Path) -> Document:
    """Read one YAML file, whose top level must be a mapping.

    Raises CatalogError for a file that is missing, unreadable, empty, over 5 MB or not UTF-8 text, and for
    YAML that is malformed, holds several documents, tags, merge keys, duplicate keys or keys that are not
    text, numbers that are not finite, more than 100 000 nodes or more than 50 levels.
    """
    name = shown(path)
    try:
        if path.is_dir():
            raise CatalogError([Fault(name, 0, 0, "expected a file, this is a folder")])
        with path.open("rb") as file:
            raw = file.read(MAX_BYTES + 1)
        note(path)
    except FileNotFoundError:
        raise CatalogError([Fault(name, 0, 0, "no such file")]) from None
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        reason = getattr(error, "strerror", None) or str(error)
        raise CatalogError([Fault(name, 0, 0, f"the file cannot be read: {reason}")]) from None
    if len(raw) > MAX_BYTES:
        raise CatalogError([Fault(name, 0, 0, f"the file is larger than {MAX_BYTES // 1_000_000} MB")])
    return read_text(_decoded(raw, name), path)


def read_text(text: str, path: Path) -> Document:
    """Read YAML from a text; `path` names it in messages. Raises CatalogError as `read` does."""
    name = shown(path)
    strange = _UNPRINTABLE.search(text)
    if strange:
        message = f"the file is not plain text: it holds the character U+{ord(strange[0]):04X}"
        raise CatalogError([Fault(name, *_position(text[: strange.start()]), message)])
    reader = _Reader(name)
    root = reader.compose(text)
    if root is None or (root.value == "" and root.plain):
        raise CatalogError([*reader.faults, Fault(name, 1, 1, "the file is empty")])
    data = reader.plain(root, (), root, 0)
    if not isinstance(data, dict):
        kind = "a list" if isinstance(data, list) else "a single value"
        reader.fault(root, f"expected a mapping of keys to values at the top level, got {kind}")
    if reader.faults:
        raise CatalogError(reader.faults)
    return Document(path, data, reader.marks)


# What YAML itself allows in a stream; the text comes without its byte order mark
_UNPRINTABLE = re.compile("[^\t\n\r\x20-\x7e\x85\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]|\ufeff")


def _decoded(raw: bytes, name: str) -> str:
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line, column = _position(raw[: error.start].decode("utf-8", "replace"))
        raise CatalogError([Fault(name, line, column, "the file is not UTF-8 text")]) from None


def _position(before: str) -> tuple[int, int]:
    """Line and column of what follows a text."""
    return before.count("\n") + 1, len(before) - before.rfind("\n")


@dataclass(frozen=True)
class _Node:
    """A scalar (str), list (nodes) or mapping (pairs of nodes) as written; `plain` scalars have no quotes."""

    value: str | list[_Node] | list[tuple[_Node, _Node]]
    line: int
    column: int
    plain: bool = False
    mapping: bool = False


@dataclass
class _Reader:
    """Turns the events of one file into nodes (`compose`) and nodes into data and marks (`plain`)."""

    file: str
    faults: list[Fault] = field(default_factory=list)
    marks: dict[Where, Mark] = field(default_factory=dict)
    anchors: dict[str, _Node] = field(default_factory=dict)
    composed: int = 0

    def fault(self, node: _Node, message: str) -> None:
        self.faults.append(Fault(self.file, node.line, node.column, message))

    def stop(self, node: _Node, message: str) -> NoReturn:
        self.fault(node, message)
        raise CatalogError(self.faults)

    # text to nodes

    def compose(self, text: str) -> _Node | None:
        """The root of the only document, None for an empty stream.

        Events instead of yaml.compose, whose recursion a deeply nested file overflows before a limit can stop
        it.
        """
        events = iter(yaml.parse(text, Loader=_LOADER))
        root = None
        try:
            for event in events:
                if isinstance(event, yaml.DocumentStartEvent):
                    if root is not None:
                        self.stop(_node(event, ""), "a second document starts here; a file holds one")
                    root = self.node(next(events), events, 1)
        except (yaml.YAMLError, ValueError, OverflowError, IndexError) as error:
            # not only YAMLError: the Python scanner lets the ValueError of an odd escape or directive through
            self.faults.append(_syntax_fault(self.file, error))
            raise CatalogError(self.faults) from None
        return root

    def node(self, event: Any, events: Iterator[Any], depth: int) -> _Node:
        here = _node(event, "")
        self.composed += 1
        if self.composed > MAX_NODES:
            self.stop(here, f"the file holds more than {MAX_NODES} values")
        if depth > MAX_DEPTH:
            self.stop(here, f"the file is nested deeper than {MAX_DEPTH} levels")
        if isinstance(event, yaml.AliasEvent):
            if event.anchor not in self.anchors:
                self.stop(here, f"the alias '*{event.anchor}' has no finished anchor '&{event.anchor}' before it")
            return self.anchors[event.anchor]
        if event.tag is not None:
            self.fault(here, f"YAML tags such as {described(event.tag)} are not supported")
        result = self.contents(event, events, depth)
        if event.anchor is not None:
            self.anchors[event.anchor] = result
        return result

    def contents(self, event: Any, events: Iterator[Any], depth: int) -> _Node:
        if isinstance(event, yaml.ScalarEvent):
            return _node(event, event.value, plain=not event.style)
        if isinstance(event, yaml.SequenceStartEvent):
            return _node(event, list(self.until(yaml.SequenceEndEvent, events, depth)))
        flat = list(self.until(yaml.MappingEndEvent, events, depth))
        return _node(event, list(zip(flat[::2], flat[1::2], strict=True)), mapping=True)

    def until(self, end: type, events: Iterator[Any], depth: int) -> Iterator[_Node]:
        for event in events:
            if isinstance(event, end):
                return
            yield self.node(event, events, depth + 1)

    # nodes to data

    def plain(self, node: _Node, where: Where, key: _Node, depth: int) -> Any:
        """The data of a node; notes the marks below it and counts again, because aliases multiply nodes."""
        self.marks[where] = Mark(self.file, node.line, node.column, key.line, key.column)
        if len(self.marks) > MAX_NODES:
            self.stop(node, f"the file holds more than {MAX_NODES} values, aliases expanded")
        if depth > MAX_DEPTH:
            self.stop(node, f"the file is nested deeper than {MAX_DEPTH} levels, aliases expanded")
        if isinstance(node.value, str):
            return self.scalar(node, node.value)
        if node.mapping:
            return self.pairs(node.value, where, depth)
        items: Iterable[Any] = node.value
        return [self.plain(item, (*where, index), item, depth + 1) for index, item in enumerate(items)]

    def pairs(self, pairs: Iterable[Any], where: Where, depth: int) -> dict[str, Any]:
        data: dict[str, Any] = {}
        first: dict[str, int] = {}
        for key, value in pairs:
            name = self.key(key)
            if name is None:
                continue
            if name in first:
                self.fault(key, f"duplicate key {described(name)}; it is first given on line {first[name]}")
                continue
            first[name] = key.line
            data[name] = self.plain(value, (*where, name), key, depth + 1)
        return data

    def key(self, node: _Node) -> str | None:
        """The name of a key, None after a fault."""
        if not isinstance(node.value, str):
            self.fault(node, "a key must be text, not a list or a mapping")
            return None
        if node.plain and node.value == "<<":
            self.fault(node, "merge keys '<<' are not supported; use 'extends:'")
            return None
        name = self.scalar(node, node.value)
        if not isinstance(name, str):
            self.fault(node, f"a key must be text; write it in quotes: {described(node.value)}")
            return None
        return name

    def scalar(self, node: _Node, text: str) -> str | int | float | bool | None:
        if not node.plain:
            return self.text(node, text)
        if text in _WORDS:
            return _WORDS[text]
        if _NOT_FINITE.fullmatch(text):
            self.fault(node, f"a number must be finite, got {text}")
        elif _INTEGER.fullmatch(text):
            return self.number(node, text, int)
        elif _FLOAT.fullmatch(text):
            return self.number(node, text, float)
        return text

    def text(self, node: _Node, text: str) -> str:
        # only an escape such as "\0" can bring one in; it would surface as a crash far from here
        strange = _UNPRINTABLE.search(text)
        if strange:
            self.fault(node, f"the text holds the character U+{ord(strange[0]):04X}")
        return text

    def number(self, node: _Node, text: str, kind: type[int] | type[float]) -> int | float:
        # the length first: int() of very many digits is slow, and refused by Python from 4300 on
        if len(text) > 400 or abs(float(text)) > 1e300:
            self.fault(node, f"the number is too large or too long ({len(text)} characters)")
            return 0
        return kind(text)


_WORDS: dict[str, bool | None] = {"true": True, "false": False, "null": None, "~": None, "": None}
_INTEGER = re.compile(r"[-+]?(?:0|[1-9][0-9]*)")
_FLOAT = re.compile(r"[-+]?(?:(?:0|[1-9][0-9]*)(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][-+]?[0-9]+)?")
_NOT_FINITE = re.compile(r"[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)")


def _node(event: Any, value: Any, plain: bool = False, mapping: bool = False) -> _Node:
    mark = event.start_mark
    return _Node(value, mark.line + 1, mark.column + 1, plain, mapping)


_HINTS = (
    (
        "cannot start any token",
        "indent with spaces, and put text that starts with %, @, ` or a tab in quotes",
    ),
    ("mapping values are not allowed", "put text that holds ': ' in quotes"),
    ("could not find expected ':'", "is a ':' or a space after it missing?"),
    ("did not find expected key", "is the indentation right?"),
    ("expected <block end>", "is the indentation right?"),
)


def _syntax_fault(file: str, error: Exception) -> Fault:
    mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
    problem = str(getattr(error, "problem", None) or str(error) or "it cannot be parsed").splitlines()[0][:200]
    line, column = (mark.line + 1, mark.column + 1) if mark else (1, 1)
    start = getattr(error, "context_mark", None)
    context = getattr(error, "context", None)  # such as "while parsing a flow sequence"
    begun = f", {context} that starts on line {start.line + 1}" if context and start and start.line + 1 < line else ""
    hint = next((f" ({hint})" for sign, hint in _HINTS if sign in problem), "")
    return Fault(file, line, column, f"this is not valid YAML: {problem}{begun}{hint}")
