"""A scenario as data with some of it changed: what a sweep builds anew for each of its structures.

A dotted path goes into the scenario's own data, and on into the files that it names: `runtime.prefill.chunk` changes
the runtime, `pools.gpu.chip.links.scale_up.domain` the chip. For those a file is derived that extends the named one,
by the same `extends` that users write, in a folder of this process.
"""

import hashlib
import json
import shutil
import tempfile
from atexit import register
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from copy import deepcopy
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from archsim.catalog import CatalogError, Document, Fault, fetch, find, validate
from archsim.explore.axes import FILE_NAMES
from archsim.explore.scenario import Scenario, ScenarioFile, build
from archsim.workload.huggingface import model_of
from archsim.workload.lowering import lower
from archsim.workload.model import precision_of
from archsim.workload.schema import WorkloadFile
from archsim.workload.step import decode
from archsim.yamlmarks import Mark

Changes = Mapping[str, object]

NAMED = {
    "model": "workloads",
    "runtime": "mappers/runtimes",
    "mapper": "mappers",
    "speculation.model": "workloads",
}
IN_POOL = {"chip": "chips", "runtime": "mappers/runtimes"}
SOURCED = ("chips", "workloads", "mappers/runtimes")  # kinds whose files name the source of every number
REF = "varied in a sweep"


@dataclass(frozen=True)
class Origin:
    """A scenario as plain data, and the file that it stands in: what travels to another process."""

    name: str
    path: str
    data: Mapping[str, Any]

    @property
    def document(self) -> Document:
        """As a document without positions."""
        return Document(Path(self.path), dict(self.data), {})


def origin_of(scenario: Scenario) -> Origin:
    """The data of a scenario, as its file says or as it was made in Python. Raises ValueError where there are none."""
    if scenario.marks is None:
        raise ValueError("a sweep needs a scenario of a file or of data: load it, or make it with archsim.scenario()")
    path = scenario.marks.path
    return Origin(scenario.name, str(path.resolve() if path.is_file() else path), scenario.marks.data)


def built(origin: Origin, changes: Changes, document: Document | None = None) -> Scenario:
    """The scenario with changes. Raises CatalogError with every fault of it and of the files it names."""
    base = origin.document if document is None else document
    changed = Document(base.path, changed_data(base, changes), base.marks)
    with _plainly():
        return build(validate(ScenarioFile, changed), changed)


@contextmanager
def _plainly() -> Iterator[None]:
    """Faults of derived files are told without their place, which is no file of the user's."""
    try:
        yield
    except CatalogError as error:
        folder = str(_folder())
        raise CatalogError(
            Fault(REF, 0, 0, fault.message) if folder in fault.file else fault for fault in error.faults
        ) from None


def changed_data(document: Document, changes: Changes) -> dict[str, Any]:
    """The data of a scenario with values at dotted paths, those of files that it names included."""
    data = deepcopy(document.data)
    inside: dict[tuple[str, ...], dict[str, object]] = {}
    for dotted, value in changes.items():
        parts = tuple(dotted.split("."))
        depth = _reference(parts)
        if depth and len(parts) > depth:
            inside.setdefault(parts[:depth], {})[".".join(parts[depth:])] = value
        elif parts[0] == "traffic" and len(parts) > 1:
            _set(data, ("traffic",), _inline(document, data))
            _set(data, parts, value)
        else:
            _set(data, parts, value)
    for where, own in inside.items():
        _set(data, where, str(_derived(document, data, where, own)))
    return data


def _reference(parts: tuple[str, ...]) -> int:
    """How many parts of a path lead to the name of a file; 0 where they lead to none."""
    if parts[0] == "pools" and len(parts) > 2 and parts[2] in IN_POOL:
        return 3
    return next((depth for depth in (2, 1) if ".".join(parts[:depth]) in NAMED), 0)


def _set(data: dict[str, Any], parts: tuple[str, ...], value: object) -> None:
    """Sets a value at a path, through lists too; mappings on the way are made."""
    inner: Any = data
    for index, part in enumerate(parts):
        key: str | int = part
        if isinstance(inner, list):
            if not part.isdecimal() or int(part) >= len(inner):
                raise CatalogError([Fault(REF, 0, 0, f"there is no {'.'.join(parts[: index + 1])!r} to vary")])
            key = int(part)
        if index == len(parts) - 1:
            inner[key] = value
            return
        following = inner[key] if isinstance(key, int) else inner.get(key)
        if not isinstance(following, dict | list):
            following = inner[key] = {}
        inner = following


def _inline(document: Document, data: Mapping[str, Any]) -> object:
    """The traffic of a scenario as a mapping, that of the file it names where it names one."""
    traffic = data.get("traffic")
    if isinstance(traffic, str):
        return deepcopy(fetch("workloads/traffic", traffic, _mark(document)).data)
    return traffic if isinstance(traffic, dict) else {}


def _mark(document: Document) -> Mark:
    """A place in the scenario's file, relative to which names of files are found."""
    return Mark(str(document.path), 0, 0, 0, 0)


def _derived(document: Document, data: Mapping[str, Any], where: tuple[str, ...], own: Mapping[str, object]) -> Path:
    """A file that extends the one named at a path, with values of its own."""
    kind = IN_POOL[where[2]] if where[0] == "pools" else NAMED[".".join(where)]
    name = _named(data, where)
    base = find(kind, name, _mark(document))
    content: dict[str, Any] = {"extends": str(base)}
    lists: dict[str, object] = {}
    known = fetch(kind, str(base)).data
    for dotted, value in own.items():
        parts = _own_names(kind, dotted).split(".")
        if _through_list(known, parts):
            lists[".".join(parts)] = value
        else:
            _set(content, tuple(parts), value)
    if lists:
        content["set"] = lists
    if kind in SOURCED:
        content["sources"] = [{"of": [_own_names(kind, dotted) for dotted in own], "kind": "assumption", "ref": REF}]
    if kind == "workloads" and any(dotted.startswith("architecture") for dotted in own):
        content["parameters"] = _counted(_written(content, base))
    return _written(content, base)


def _named(data: Mapping[str, Any], where: tuple[str, ...]) -> str:
    """The name of a file at a path of a scenario, or the default there."""
    inner: Any = data
    for part in where:
        inner = inner.get(part) if isinstance(inner, Mapping) else None
    if inner is None and where[0] in ("runtime", "mapper"):
        inner = ScenarioFile.model_fields[where[0]].default
    if not isinstance(inner, str):
        raise CatalogError([Fault(REF, 0, 0, f"the scenario names no {'.'.join(where)} to change")])
    return inner


def _own_names(kind: str, dotted: str) -> str:
    """A path as the file of a chip has it: `sram` is `sram.per_core` there."""
    return next((file for file, own in FILE_NAMES.items() if kind == "chips" and dotted == own), dotted)


def _through_list(data: Any, parts: list[str]) -> bool:
    """Whether a path goes into a list."""
    for part in parts:
        if isinstance(data, list):
            return True
        data = data.get(part) if isinstance(data, dict) else None
    return False


def _counted(path: Path) -> dict[str, int]:
    """Parameters of a model whose architecture was changed, as its own graph has them."""
    file = validate(WorkloadFile, fetch("workloads", str(path)))
    model = model_of(file.name, file.architecture, {}, {})
    graph = lower(model, decode(1, 1, model.clips), precision_of(model, {}))
    return {"total": round(sum(graph.parameters().values())), "active": round(graph.active_parameters())}


def _written(content: Mapping[str, Any], base: Path) -> Path:
    """A derived file, called by its content so that the same one is written once."""
    text = json.dumps(content, indent=1, sort_keys=True)
    path = _folder() / f"{base.stem}-{hashlib.sha256(text.encode()).hexdigest()[:16]}.yaml"
    if not path.exists():
        path.write_text(text, encoding="utf-8")
    return path


@cache
def _folder() -> Path:
    """A folder of this process for derived files, gone when it ends."""
    folder = Path(tempfile.mkdtemp(prefix="archsim-")).resolve()
    register(_forget, folder)
    return folder


def _forget(folder: Path) -> None:
    with suppress(OSError):
        shutil.rmtree(folder)


def derived(path: Path) -> bool:
    """Whether a file was derived here, and so is no input of the user's."""
    return _folder() in path.parents
