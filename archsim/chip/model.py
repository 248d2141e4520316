"""Chip and its parts. Every number is an array that broadcasts, in SI units."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from typing import Any, TypeVar, cast

import numpy as np

from archsim.arrays import Array
from archsim.chip.constants import Constants
from archsim.chip.memory import Technology
from archsim.sources import Source
from archsim.units import Format

GB = 1e9  # bytes that a price of memory is for

FamilySet = TypeVar("FamilySet", bound=Constants)


class Unsuited(ValueError):
    """A chip, or its generation, that lacks what a model in some format needs of it."""


@dataclass(frozen=True, eq=False)
class Memory:
    """Memory of a chip: capacity (B), bandwidth (B/s), and the timings of its DRAM where its file names them."""

    technology: str
    capacity: Array
    bandwidth: Array
    dram: Technology | None = None


@dataclass(frozen=True, eq=False)
class Link:
    """A fabric: bandwidth of one chip in one direction (B/s), latency (s), chips it joins.

    `reach` has the latency (s) to the farthest of so many chips, where that grows with their number.
    """

    name: str
    bandwidth: Array
    latency: Array
    domain: int
    switch: bool = False
    reach: Mapping[int, Array] = field(default_factory=dict)

    def latency_among(self, chips: Array) -> Array:
        """Latency (s) between the farthest two of a group of so many chips."""
        table = sorted(self.reach.items(), reverse=True)
        found = np.maximum(self.latency, table[0][1]) if table else self.latency
        for size, seconds in table:
            found = np.where(chips <= size, seconds, found)
        return found


@dataclass(frozen=True, eq=False)
class Power:
    """Board power (W): limit, idle with a context alive, floor while any kernel runs, and the cap in use.

    `sustained` is the cap at which kernels were calibrated; a lower `cap` slows what would draw more.
    """

    tdp: Array
    idle: Array
    active: Array
    cap: Array
    sustained: Array


@dataclass(frozen=True, eq=False)
class Energy:
    """Energy of doing (J): a byte of DRAM traffic with its path, a FLOP by format, an exponential."""

    byte: Array
    flop: Mapping[str, Array]
    exponential: Array


@dataclass(frozen=True, eq=False)
class Price:
    """Money: the chip alone, all-in (USD), rent (USD/h), and when that was so.

    All-in is `system`, or else `base` (USD) and `memory` (USD/GB) times the capacity; `Chip.capital` says which.
    """

    chip: Array | None
    system: Array | None
    base: Array | None
    memory: Array | None
    rent: Array | None
    as_of: str


@dataclass(frozen=True)
class Generation:
    """Calibration constants by stack, kernel family and format."""

    name: str
    matrix_style: str
    kernels: Mapping[str, Mapping[str, Mapping[str, Constants]]]
    sources: tuple[Source, ...] = ()

    def constants(self, stack: str, family: str, formats: tuple[str, ...], as_class: type[FamilySet]) -> FamilySet:
        """The first set among `formats`, then `any`. Raises Unsuited with what exists."""
        sets = self.kernels.get(stack, {}).get(family, {})
        for name in (*formats, "any"):
            if name in sets:
                found = sets[name]
                if isinstance(found, as_class):
                    return found
        others = [name for name, families in self.kernels.items() if families.get(family)]
        have = ", ".join(sorted(sets)) or (f"those of stack {' and '.join(others)} only" if others else "none")
        wanted = " or ".join(dict.fromkeys(formats))
        raise Unsuited(
            f"generation {self.name!r} has no {family} constants of stack {stack!r} for {wanted} (it has: {have})"
        )

    def variant(self, stack: str, family: str, formats: tuple[str, ...], name: str) -> Constants | None:
        """The set of another kernel that the library picks in the case `name`; None where there is none.

        It is called `<format>_<name>`, or just `<name>` beside a set `any`.
        """
        sets = self.kernels.get(stack, {}).get(family, {})
        first = next((fmt for fmt in formats if fmt in sets), "")
        return sets.get(f"{first}_{name}" if first else name)


@dataclass(frozen=True, eq=False)
class Chip:
    """A chip as a user holds it.

    `matrix` maps formats to dense peak FLOP/s, `vector` likewise; `exponentials` are per clock and core; `clock` is
    in Hz, `cores` are SMs, compute units or core slices, `sram` is bytes a core, `cache` bytes shared by all; a
    `partitioned` cache keeps a copy of what both of its halves read. `network` are the B/s that a core takes from the
    network on chip (None: never the limit), `backing` the memory behind an LPU that may hold its KV cache.
    A `varied` chip is not as its file says, but what-if.
    """

    name: str
    kind: str
    clock: Array
    cores: Array
    matrix: Mapping[str, Array]
    vector: Mapping[str, Array]
    exponentials: Array
    sram: Array
    cache: Array
    memory: Memory
    links: Mapping[str, Link]
    power: Power
    energy: Energy
    price: Price
    generation: Generation
    sources: tuple[Source, ...] = field(default=())
    partitioned: bool = False
    network: Array | None = None
    backing: Memory | None = None
    varied: bool = False

    @property
    def capital(self) -> Array | None:
        """All-in price (USD) with its share of server and network, at the price of its memory; None: not known."""
        price = self.price
        if price.system is not None or price.base is None or price.memory is None:
            return price.system
        return price.base + price.memory * self.memory.capacity / GB

    def ridge(self, fmt: str = "bf16") -> Array:
        """Ridge point (FLOP/B): the arithmetic intensity at which compute and memory take equally long."""
        return self.matrix[fmt] / self.memory.bandwidth

    def compute_format(self, *operands: Format) -> str | None:
        """The narrowest matrix format at least as wide as the widest operand, which is the fastest; None if there is
        none."""
        widest = max(operand.bits for operand in operands)
        whole = all(operand.base in INTEGERS for operand in operands)
        fitting = [name for name in self.matrix if FORMAT_BITS[name] >= widest and (whole or name not in INTEGERS)]
        return min(fitting, key=lambda name: (FORMAT_BITS[name], name not in INTEGERS), default=None)


FORMAT_BITS = {"fp4": 4, "int4": 4, "fp8": 8, "int8": 8, "bf16": 16, "tf32": 19, "fp32": 32}
INTEGERS = {"int8", "int4"}  # units for whole numbers take nothing else

Part = TypeVar("Part")


def with_value(part: Part, path: tuple[str, ...], value: object) -> Part:
    """A copy of a tree of dataclasses and mappings with the field at `path` replaced.

    Raises KeyError naming the fields that exist where the path leaves the tree.
    """
    return cast(Part, _with_value(part, path, value))


def _with_value(part: Any, path: tuple[str, ...], value: object) -> Any:
    head, rest = path[0], path[1:]
    known = (
        list(part) if isinstance(part, Mapping) else [item.name for item in fields(part)] if is_dataclass(part) else []
    )
    if head not in known:
        raise KeyError(f"no {head!r} here; there are {', '.join(map(str, known)) or 'no fields'}")
    inner = part[head] if isinstance(part, Mapping) else getattr(part, head)
    new = _with_value(inner, rest, value) if rest else value
    return {**part, head: new} if isinstance(part, Mapping) else replace(part, **{head: new})
