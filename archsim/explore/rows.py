"""Rows of a sweep from a specification: what one task does, in this process or in another.

A task says what to build (a scenario's data and what is changed in it) and the values of its block of points. Nothing
that was built travels; the rows that come back are plain arrays, with the hashes of all files that were read.
"""

import hashlib
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from archsim.arrays import Array, array
from archsim.catalog import CatalogError, add_catalog
from archsim.explore.evaluate import most_clients
from archsim.explore.result import Result, check_defined, metrics_of, objective
from archsim.explore.run import answered, clients, placed
from archsim.explore.scenario import Scenario
from archsim.explore.structure import Origin, built, derived
from archsim.mapping.split import REASONS
from archsim.yamlmarks import recording

Column = npt.NDArray[Any]
Group = Mapping[str, Array]  # fields that share an axis, with values of one length

OWN = 1 << 15  # proposals times points of a block whose points all have values of their own
SHARED = 1 << 18  # the same where points share most of their values
CLIENTS = 160  # numbers of clients that a point of the steady answer is tried at, about
KEPT = 16  # scenarios that a process keeps built


@dataclass(frozen=True)
class Piece:
    """Points of one structure: all combinations of the values of its groups, the last changing fastest."""

    origin: Origin
    changes: Mapping[str, object]
    groups: tuple[Group, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        """Values of each group."""
        return tuple(next(iter(group.values())).size for group in self.groups)

    @property
    def rows(self) -> int:
        """Points."""
        return prod(self.shape)


@dataclass(frozen=True)
class Task:
    """A chunk of a sweep: `mode` is `step`, `steady` or `serve`, `columns` the metrics that are wanted of each row."""

    mode: str
    pieces: tuple[Piece, ...]
    columns: tuple[str, ...]
    catalogs: tuple[str, ...] = ()
    served: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Rows:
    """Columns of a chunk; one that is the same in all rows has length 1.

    `reason` is 0 for a feasible row, else a position in `reasons`, whose first is empty. `files` are the inputs that
    were read, with the SHA-256 of each.
    """

    count: int
    columns: dict[str, Column]
    reasons: tuple[str, ...]
    files: dict[str, str]


def work(task: Task) -> Rows:
    """The rows of a task. What cannot be built or fits nowhere is a row with its reason; BrokenModel is raised."""
    for folder in reversed(task.catalogs):
        add_catalog(folder)
    parts: list[dict[str, Column]] = []
    reasons: dict[str, int] = {"": 0}
    files: dict[str, str] = {}
    for piece in task.pieces:
        for columns, reason in _blocks(task, piece, files):
            codes = np.zeros(len(reason), np.int32)
            for used in np.flatnonzero(np.bincount(columns["reason"])).tolist():
                codes[used] = reasons.setdefault(reason[used], len(reasons))
            columns["reason"] = codes[columns["reason"]]
            parts.append(columns)
    names = list(parts[0])
    joined = {name: _short(np.concatenate([part[name] for part in parts])) for name in names}
    return Rows(sum(piece.rows for piece in task.pieces), joined, tuple(reasons), files)


def _short(values: Column) -> Column:
    """One value where all are the same bit for bit."""
    bits = values.view(np.uint64) if values.dtype == np.float64 else values
    return values[:1] if (bits == bits[0]).all() else values


def _blocks(task: Task, piece: Piece, files: dict[str, str]) -> Iterator[tuple[dict[str, Column], Sequence[str]]]:
    """Columns of the blocks of a piece, in order, with what their reasons mean."""
    try:
        scenario, read = scenario_of(piece.origin, piece.changes)
    except CatalogError as error:
        yield _refused(task, piece.rows, str(error.faults[0].message))
        return
    files.update(read)
    if task.mode == "serve":
        from archsim.explore.served import served_rows

        yield from served_rows(scenario, piece.groups, task.columns, task.served)
        return
    proposals = scenario.split.chips.size
    limit = limit_of(piece.shape)
    each = proposals * (CLIENTS if task.mode == "steady" and not _gives(piece, "batch") else 1)
    for bounds in blocks(piece.shape, max(limit // each, 1)):
        groups = [_cut(group, *ends) for group, ends in zip(piece.groups, bounds, strict=True)]
        try:
            yield _evaluated(scenario, task, groups), REASONS
        except CatalogError as error:
            yield _refused(task, prod(stop - start for start, stop in bounds), error.faults[0].message)
        except (KeyError, ValueError) as error:
            yield _refused(task, prod(stop - start for start, stop in bounds), str(error.args[0]))


def _gives(piece: Piece, name: str) -> bool:
    return any(name in group for group in piece.groups)


def limit_of(shape: tuple[int, ...]) -> int:
    """Points of a block: more where most values are shared, and what depends on few of them is priced once."""
    return SHARED if shape and prod(shape) >= 8 * max(shape) else OWN


def blocks(shape: tuple[int, ...], limit: int) -> Iterator[tuple[tuple[int, int], ...]]:
    """Blocks of a grid of at most `limit` points, in the order of its rows: (start, stop) along each axis."""
    inner, axis = 1, len(shape)
    while axis and inner * shape[axis - 1] <= limit:
        axis -= 1
        inner *= shape[axis]
    whole = tuple((0, size) for size in shape[axis:])
    if not axis:
        yield whole
        return
    step, cut = max(limit // inner, 1), shape[axis - 1]
    for place in np.ndindex(*shape[: axis - 1]):
        before = tuple((index, index + 1) for index in place)
        for start in range(0, cut, step):
            yield (*before, (start, min(start + step, cut)), *whole)


def _cut(group: Group, start: int, stop: int) -> Group:
    return {name: values[start:stop] for name, values in group.items()}


def scenario_of(origin: Origin, changes: Mapping[str, object]) -> tuple[Scenario, dict[str, str]]:
    """A scenario built, and the files that it was read from with their hashes; the last few are kept."""
    key = repr((origin.path, origin.data, sorted(changes.items())))
    kept = _BUILT.get(key)
    if kept is None or kept.stamps != _stamps(kept.files):
        with recording() as read:
            scenario = built(origin, changes)
        own = Path(origin.path)
        paths = sorted(path for path in read | ({own} if own.is_file() else set()) if not derived(path))
        files = {str(path): digest(path) for path in paths}
        while len(_BUILT) >= KEPT:
            _BUILT.popitem(last=False)
        kept = _BUILT[key] = _Kept(scenario, files, _stamps(files))
    return kept.scenario, kept.files


@dataclass(frozen=True)
class _Kept:
    """A scenario with the files it was read from: their hashes, and what tells that they were not written since."""

    scenario: Scenario
    files: dict[str, str]
    stamps: list[tuple[int, int]]


def _stamps(files: Mapping[str, str]) -> list[tuple[int, int]]:
    found = [Path(path).stat() for path in files if Path(path).is_file()]
    return [(stat.st_mtime_ns, stat.st_size) for stat in found]


_BUILT: OrderedDict[str, _Kept] = OrderedDict()


def digest(path: Path) -> str:
    """SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _refused(task: Task, count: int, reason: str) -> tuple[dict[str, Column], Sequence[str]]:
    """Rows that could not be priced at all."""
    columns: dict[str, Column] = {name: np.full(count, np.nan) for name in task.columns}
    columns |= {name: np.zeros(count, np.bool_) for name in ("feasible", "meets_slo")}
    return {**columns, "reason": np.ones(count, np.int32)}, ("", reason)


def _evaluated(scenario: Scenario, task: Task, groups: Sequence[Group]) -> dict[str, Column]:
    """Columns of one block: all points at once."""
    swept, names = _laid_out(groups)
    alone = task.mode == "steady" and "batch" not in swept
    if alone:
        rank = len(names)
        most = most_clients(placed(scenario, task.mode, swept, names))
        swept = {name: value[..., None] if value.ndim == rank and rank else value for name, value in swept.items()}
        tried = clients(most)
        swept["batch"] = tried.reshape(*(1,) * rank, -1)
        names = {**names, "batch": tried} if tried.size > 1 else names
        alone = tried.size > 1
    result = answered(scenario, task.mode, swept, names)
    where = _best_clients(result) if alone else np.arange(result.feasible.size)
    return _columns(result, task.columns, where, prod(_size(group) for group in groups))


def _laid_out(groups: Sequence[Group]) -> tuple[dict[str, Array], dict[str, Array]]:
    """Fields on the axes of their groups, and the values of each axis."""
    wide = [group for group in groups if _size(group) > 1]
    swept: dict[str, Array] = {}
    names: dict[str, Array] = {}
    for group in groups:
        shape = [1] * max(len(wide), 1)
        if _size(group) > 1:
            index = next(i for i, other in enumerate(wide) if other is group)
            shape[index] = _size(group)
            name = next(iter(group)) if len(group) == 1 else "point"
            names[name if name not in names else f"{name} {index}"] = (
                group[name] if name in group else np.arange(_size(group), dtype=np.float64)
            )
        swept |= {name: values.reshape(shape if _size(group) > 1 else (1,)) for name, values in group.items()}
    return swept, names


def _size(group: Group) -> int:
    return next(iter(group.values())).size


def _best_clients(result: Result) -> "npt.NDArray[np.intp]":
    """Flat index of the best number of clients of every point: the objective, within the SLO where any number is."""
    name, sign = objective(result.scenario, result.mode)
    values = np.where(result.feasible, sign * result.metric(name), np.inf)
    kept = np.where(result.meets_slo, values, np.inf)
    some = np.isfinite(kept).any(axis=-1, keepdims=True)
    best = np.argmin(np.where(some, kept, values), axis=-1).ravel()
    return np.asarray(np.arange(best.size) * result.shape[-1] + best, dtype=np.intp)


def _columns(result: Result, wanted: Sequence[str], where: "npt.NDArray[np.intp]", count: int) -> dict[str, Column]:
    """The wanted columns of a result at some of its points."""
    known = metrics_of(result.scenario, result.mode)
    split = result.scenario.split.named()
    found: dict[str, Column] = {}
    for name in wanted:
        if name in known:
            values = result.metric(name)
            check_defined(result, name, values)
        elif name.startswith("split.") and name.removeprefix("split.") in split:
            values = result.pick(split[name.removeprefix("split.")])
        elif name in ("chips", "batch"):
            values = result.pick(array(result.scenario.all_chips if name == "chips" else result.scenario.batch))
        else:
            values = np.full(result.shape, np.nan)
        found[name] = np.broadcast_to(values, result.shape).ravel()[where]
    found["feasible"] = result.feasible.ravel()[where]
    found["meets_slo"] = result.meets_slo.ravel()[where]
    found["reason"] = result.reason.ravel()[where].astype(np.int32)
    return {name: np.ascontiguousarray(np.broadcast_to(values, (count,))) for name, values in found.items()}
