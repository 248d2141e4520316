"""What a sweep is: scenarios, the axes of each, and how their points are cut into chunks.

Rows go scenario by scenario, structure by structure, and within a structure over the value axes in the order in which
they were given, the last changing fastest. The cut depends on nothing but the sweep, so that a chunk is the same
wherever and whenever it is worked on.
"""

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate
from math import prod
from typing import Any

import numpy as np

from archsim import catalog
from archsim.explore.rows import Column, Piece, Task, blocks, limit_of
from archsim.explore.structure import Origin
from archsim.explore.vary import Axis

TOGETHER = 8  # small structures that make a chunk, at the most


@dataclass(frozen=True)
class Group:
    """Axes that go together: one, or several that are zipped."""

    axes: tuple[Axis, ...]

    def __len__(self) -> int:
        """Its values."""
        return len(self.axes[0])

    @property
    def structure(self) -> bool:
        """Whether a value of it has to be built."""
        return any(axis.structure for axis in self.axes)

    def numbers(self, start: int, stop: int) -> dict[str, Any]:
        """Values of its fields that arrays carry."""
        return {axis.name: axis.numbers[start:stop] for axis in self.axes if axis.numbers is not None}

    def changes(self, index: int) -> dict[str, object]:
        """What one of its values changes in the scenario's data."""
        found: dict[str, object] = {}
        for axis in self.axes:
            if axis.structure:
                found |= axis.settings[index].changes
        return found


@dataclass(frozen=True)
class Grid:
    """The points of one scenario: all combinations of its groups."""

    origin: Origin
    groups: tuple[Group, ...]

    @cached_property
    def structures(self) -> tuple[Group, ...]:
        """Groups whose values are built one by one."""
        return tuple(group for group in self.groups if group.structure)

    @cached_property
    def values(self) -> tuple[Group, ...]:
        """Groups that arrays carry."""
        return tuple(group for group in self.groups if not group.structure)

    @cached_property
    def shape(self) -> tuple[int, ...]:
        """Values of each group that arrays carry."""
        return tuple(len(group) for group in self.values)

    @cached_property
    def builds(self) -> int:
        """Structures."""
        return prod(len(group) for group in self.structures)

    @property
    def rows(self) -> int:
        """Points."""
        return self.builds * prod(self.shape)

    def places(self, build: int) -> tuple[int, ...]:
        """Which value of each structure group a structure has."""
        sizes = tuple(len(group) for group in self.structures)
        return tuple(int(place) for place in np.unravel_index(build, sizes)) if sizes else ()


Bounds = tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Chunk:
    """A part of a sweep that is worked on at once: structures of one grid, and of each a block of its points."""

    index: int
    grid: int
    builds: tuple[int, int]
    bounds: Bounds
    start: int
    rows: int


@dataclass(frozen=True)
class Sweep:
    """A sweep: `mode` is `step`, `steady` or `serve`; `columns` the metrics of each row; `served` what is served."""

    mode: str
    grids: tuple[Grid, ...]
    columns: tuple[str, ...]
    units: Mapping[str, str]
    objective: tuple[str, float]
    catalogs: tuple[str, ...] = ()
    served: Mapping[str, Any] = field(default_factory=dict)

    @property
    def rows(self) -> int:
        """Points of all scenarios."""
        return sum(grid.rows for grid in self.grids)

    @cached_property
    def axes(self) -> list[str]:
        """Names of the axes of all scenarios, as columns have them."""
        names = dict.fromkeys(axis.name for grid in self.grids for group in grid.groups for axis in group.axes)
        return [*(["scenario"] if len(self.grids) > 1 else []), *names]

    @cached_property
    def names(self) -> list[str]:
        """All columns, in order."""
        return [*self.axes, *self.columns, "feasible", "meets_slo", "reason"]

    @cached_property
    def texts(self) -> frozenset[str]:
        """Columns of text."""
        axes = [axis for grid in self.grids for group in grid.groups for axis in group.axes]
        built = [axis.name for axis in axes if axis.text]
        return frozenset({"scenario", "reason", *built})

    @cached_property
    def _sections(self) -> list["_Section"]:
        return [_section(index, grid, self.mode) for index, grid in enumerate(self.grids)]

    @cached_property
    def _ends(self) -> list[int]:
        return list(accumulate(section.chunks for section in self._sections))

    @property
    def chunks(self) -> int:
        """How many chunks there are."""
        return self._ends[-1]

    def chunk(self, index: int) -> Chunk:
        """One chunk."""
        grid = bisect_right(self._ends, index)
        before = self._ends[grid - 1] if grid else 0
        start = sum(other.rows for other in self.grids[:grid])
        return self._sections[grid].chunk(index, index - before, start)

    def task(self, chunk: Chunk) -> Task:
        """What has to be done for a chunk, as data."""
        grid = self.grids[chunk.grid]
        ends = zip(grid.values, chunk.bounds, strict=True)
        groups = tuple(group.numbers(start, stop) for group, (start, stop) in ends)
        pieces = tuple(Piece(grid.origin, *_built(grid, build, groups)) for build in range(*chunk.builds))
        return Task(self.mode, pieces, self.columns, self.catalogs, self.served)

    def places(self, chunk: Chunk) -> dict[str, Column]:
        """The columns of the axes for the rows of a chunk."""
        grid = self.grids[chunk.grid]
        sizes = [stop - start for start, stop in chunk.bounds]
        block, many = prod(sizes), chunk.builds[1] - chunk.builds[0]
        found: dict[str, Column] = {}
        for axis, (group, (start, stop)) in enumerate(zip(grid.values, chunk.bounds, strict=True)):
            repeat, tile = prod(sizes[axis + 1 :]), many * prod(sizes[:axis])
            for name, values in group.numbers(start, stop).items():
                found[name] = np.tile(np.repeat(values, repeat), tile)
        placed = [grid.places(build) for build in range(*chunk.builds)]
        for axis, group in enumerate(grid.structures):
            index = np.repeat([place[axis] for place in placed], block)
            found |= {item.name: item.column()[index] for item in group.axes}
        if len(self.grids) > 1:
            found["scenario"] = np.full(chunk.rows, grid.origin.name)
        missing = {name for name in self.axes if name not in found}
        found |= {
            name: np.full(chunk.rows, "") if name in self.texts else np.full(chunk.rows, np.nan) for name in missing
        }
        return {name: found[name] for name in self.axes}


def _built(grid: Grid, build: int, groups: tuple[dict[str, Any], ...]) -> tuple[dict[str, object], tuple[Any, ...]]:
    """What a structure changes in the scenario's data, and its groups: numbers zipped with it have one value."""
    changes: dict[str, object] = {}
    own: list[dict[str, Any]] = []
    for group, index in zip(grid.structures, grid.places(build), strict=True):
        changes |= group.changes(index)
        numbers = group.numbers(index, index + 1)
        own += [numbers] if numbers else []
    return changes, (*own, *groups)


@dataclass(frozen=True)
class _Section:
    """How the points of a grid are cut: blocks of every structure, or several structures whole."""

    index: int
    grid: Grid
    blocks: tuple[Bounds, ...]
    together: int

    @property
    def chunks(self) -> int:
        """Chunks of the grid."""
        if len(self.blocks) > 1:
            return self.grid.builds * len(self.blocks)
        return -(-self.grid.builds // self.together)

    def chunk(self, index: int, own: int, start: int) -> Chunk:
        """The chunk of a number within the grid, whose rows begin at `start`."""
        each = prod(self.grid.shape)
        if len(self.blocks) > 1:
            build, block = divmod(own, len(self.blocks))
            bounds = self.blocks[block]
            before = start + build * each + self._starts[block]
            return Chunk(index, self.index, (build, build + 1), bounds, before, _points(bounds))
        builds = own * self.together, min((own + 1) * self.together, self.grid.builds)
        rows = each * (builds[1] - builds[0])
        return Chunk(index, self.index, builds, self.blocks[0], start + builds[0] * each, rows)

    @cached_property
    def _starts(self) -> list[int]:
        return [0, *accumulate(_points(bounds) for bounds in self.blocks)]


def _points(bounds: Bounds) -> int:
    return prod(stop - start for start, stop in bounds)


def _section(index: int, grid: Grid, mode: str) -> _Section:
    limit = 1 if mode == "serve" else limit_of(grid.shape)
    together = max(min(limit // max(prod(grid.shape), 1), TOGETHER), 1)
    return _Section(index, grid, tuple(blocks(grid.shape, limit)), together)


def described(sweep: Sweep) -> dict[str, str]:
    """A sweep in words, item by item: what a journal compares when it is resumed."""
    found = {"mode": sweep.mode, "columns": ", ".join(sweep.columns), "catalogues": ", ".join(sweep.catalogs)}
    found |= {f"--{name}": str(value) for name, value in sweep.served.items()}
    for number, grid in enumerate(sweep.grids):
        of = f" of {grid.origin.name}" if len(sweep.grids) > 1 else ""
        found[f"scenario {number + 1}"] = grid.origin.path
        found |= {f"{where}{of}": text for where, text in _flat(grid.origin.data, "")}
        for group in grid.groups:
            for axis in group.axes:
                found[f"values of {axis.name}{of}"] = _values(axis)
            if len(group.axes) > 1:
                found[f"zipped with {group.axes[0].name}{of}"] = ", ".join(axis.name for axis in group.axes[1:])
    return found


def _values(axis: Axis) -> str:
    """The values of an axis, exactly; of a long one their number, ends and hash."""
    if axis.numbers is None:
        return ", ".join(f"{setting.label} {sorted(setting.changes.items())!r}" for setting in axis.settings)
    numbers = axis.numbers
    if numbers.size <= 50:
        return ", ".join(map(repr, numbers.tolist()))
    from hashlib import sha256

    ends = f"{numbers.size} values from {numbers[0]!r} to {numbers[-1]!r}"
    return f"{ends}, SHA-256 {sha256(numbers.tobytes()).hexdigest()[:16]}"


def _flat(data: Any, before: str) -> Iterator[tuple[str, str]]:
    """Every value in nested data, by its dotted path."""
    if isinstance(data, Mapping):
        for key, value in data.items():
            yield from _flat(value, f"{before}.{key}" if before else str(key))
    elif isinstance(data, list):
        for index, value in enumerate(data):
            yield from _flat(value, f"{before}.{index}")
    else:
        yield before, str(data)


def folders() -> tuple[str, ...]:
    """Catalogue folders that were added in this process, for others to add."""
    return tuple(str(folder) for folder in catalog.added())


def grid_of(origin: Origin, axes: Sequence[Axis], zips: Sequence[Sequence[str]]) -> Grid:
    """The grid of some axes, of which some are zipped. Raises ValueError for unknown names and unequal lengths."""
    by_name = {axis.name: axis for axis in axes}
    leader: dict[str, int] = {}
    for number, names in enumerate(zips):
        for name in names:
            if name not in by_name:
                raise ValueError(f"--zip {','.join(names)}: {name!r} is not varied; there are {', '.join(by_name)}")
            if name in leader:
                raise ValueError(f"--zip {','.join(names)}: {name!r} is zipped twice")
            leader[name] = number
        lengths = {name: len(by_name[name]) for name in names}
        if len(set(lengths.values())) > 1:
            told = ", ".join(f"{name} has {length}" for name, length in lengths.items())
            raise ValueError(f"--zip {','.join(names)}: axes must have equally many values; {told}")
    groups: list[Group] = []
    done: set[int] = set()
    for axis in axes:
        number = leader.get(axis.name, -1)
        if number < 0:
            groups.append(Group((axis,)))
        elif number not in done:
            done.add(number)
            groups.append(Group(tuple(by_name[name] for name in zips[number])))
    return Grid(origin, tuple(groups))
