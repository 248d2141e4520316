"""Chains of blocks in little memory: ids that follow one another are kept as runs."""

from array import array as numbers
from collections.abc import Iterable, Sequence
from math import ceil, floor
from typing import overload

import numpy as np


class Runs(Sequence[Sequence[int]]):
    """Chains of block ids, written once and read as lists; 16 bytes for each run of ids that follow one another."""

    def __init__(self) -> None:
        self._starts, self._sizes, self._ends = numbers("q"), numbers("q"), numbers("q", [0])
        self._rows: np.typing.NDArray[np.int64] | None = None
        self._last: tuple[int, list[int]] = (-1, [])

    def __len__(self) -> int:
        """How many chains."""
        return len(self._ends) - 1 if self._rows is None else len(self._rows)

    def append(self, chain: Iterable[int]) -> None:
        """Adds a chain by its ids."""
        starts, sizes, following = self._starts, self._sizes, None
        for name in chain:
            if name == following:
                sizes[-1] += 1
            else:
                starts.append(name)
                sizes.append(1)
            following = name + 1
        self._ends.append(len(starts))

    def append_runs(self, runs: Iterable[tuple[int, int]]) -> None:
        """Adds a chain by (first id, how many) of its runs."""
        for start, size in runs:
            self._starts.append(start)
            self._sizes.append(size)
        self._ends.append(len(self._starts))

    def extend(self, other: "Runs") -> None:
        """Adds all chains of another that was not reordered."""
        base = len(self._starts)
        self._starts.extend(other._starts)
        self._sizes.extend(other._sizes)
        self._ends.extend([base + end for end in other._ends[1:]])

    def runs(self, index: int) -> list[tuple[int, int]]:
        """(first id, how many) of the runs of a chain."""
        row = index if self._rows is None else int(self._rows[index])
        begin, end = self._ends[row], self._ends[row + 1]
        return list(zip(self._starts[begin:end], self._sizes[begin:end], strict=True))

    def pick(self, rows: "np.typing.NDArray[np.int64]") -> "Runs":
        """The chains of these places, in their order; memory is shared."""
        found = Runs()
        found._starts, found._sizes, found._ends = self._starts, self._sizes, self._ends
        found._rows = rows if self._rows is None else self._rows[rows]
        return found

    @overload
    def __getitem__(self, index: int) -> list[int]: ...
    @overload
    def __getitem__(self, index: slice) -> "Runs": ...
    def __getitem__(self, index: int | slice) -> "list[int] | Runs":
        if isinstance(index, slice):
            return self.pick(np.arange(len(self))[index])
        if self._last[0] == index:
            return self._last[1]
        count = len(self)
        if not -count <= index < count:
            raise IndexError(index)
        found: list[int] = []
        for start, size in self.runs(index % count):
            found.extend(range(start, start + size))
        self._last = (index, found)
        return found


class Stretched(Sequence[Sequence[int]]):
    """Chains of prompts that are `factor` times as long: what was shared stays shared, to whole blocks."""

    def __init__(self, chains: Sequence[Sequence[int]], factor: float) -> None:
        self._chains, self._factor = chains, factor

    def __len__(self) -> int:
        """How many chains."""
        return len(self._chains)

    @overload
    def __getitem__(self, index: int) -> list[int]: ...
    @overload
    def __getitem__(self, index: slice) -> "Stretched": ...
    def __getitem__(self, index: int | slice) -> "list[int] | Stretched":
        if isinstance(index, slice):
            return Stretched(self._chains[index], self._factor)
        chain, factor = self._chains[index], self._factor
        places = np.arange(1, floor(len(chain) * factor + 1e-9) + 1)
        last = np.ceil(places / factor - 1e-9).astype(np.int64) - 1  # the last old block in each new one
        parts = places - np.floor(last * factor).astype(np.int64)
        ids = np.array(chain, dtype=np.int64)[last] * (ceil(factor) + 2) + parts
        found: list[int] = ids.tolist()
        return found
