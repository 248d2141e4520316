"""What one kernel costs, and why.

A cost is an immutable value that adds and scales. Its `seconds` come from the kernel's closed form; its parts come,
apart from that, from a chain of running maxima that starts at the roofline, so that a loss counts only where it
shows. Parts are never negative and sum to `seconds`.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np

from archsim.arrays import Array, array

PARTS: dict[str, str] = {
    "compute": "the FLOPs at the peak rate of their format",
    "memory": "waiting for bytes at the peak bandwidth, beyond the compute",
    "quantization": "padding to tiles, and the last partial wave of tiles",
    "occupancy": "cores without work",
    "imbalance": "waiting for the busiest rank or expert",
    "clock": "the sustained rate of the matrix units below their peak",
    "on_chip": "feeding operands, epilogues, exponentials, the fixed work of a thread block",
    "bandwidth": "the sustained bandwidth below its peak, and traffic that splitting adds",
    "overlap": "compute and memory that do not overlap perfectly",
    "fixed": "launch, pipeline depth, synchronisation",
}

LINK_PARTS: dict[str, str] = {
    "link": "bytes at the peak bandwidth of the link",
    "link_latency": "the fixed time of a collective",
}

ALL_PARTS: dict[str, str] = PARTS | LINK_PARTS
ZERO = array(0.0)


def _zero() -> Array:
    return ZERO


@dataclass(frozen=True, eq=False)
class Cost:
    """Time (s), its parts (s), and what was done: FLOPs, bytes of memory and of links, joules."""

    seconds: Array
    parts: Mapping[str, Array]
    flops: Array = field(default_factory=_zero)
    bytes: Array = field(default_factory=_zero)
    link_bytes: Array = field(default_factory=_zero)
    energy: Array = field(default_factory=_zero)

    def __add__(self, other: "Cost") -> "Cost":
        """Both, one after the other."""
        return self.plus(other)

    def plus(self, other: "Cost", times: float = 1.0) -> "Cost":
        """This, and then another so many times."""
        names = dict.fromkeys((*self.parts, *other.parts))
        return Cost(
            _plus(self.seconds, other.seconds, times),
            {name: _plus(self.parts.get(name, ZERO), other.parts.get(name, ZERO), times) for name in names},
            _plus(self.flops, other.flops, times),
            _plus(self.bytes, other.bytes, times),
            _plus(self.link_bytes, other.link_bytes, times),
            _plus(self.energy, other.energy, times),
        )

    def scaled(self, factor: float | Array) -> "Cost":
        """The cost of doing it `factor` times."""
        return Cost(
            self.seconds * factor,
            {name: part * factor for name, part in self.parts.items()},
            self.flops * factor,
            self.bytes * factor,
            self.link_bytes * factor,
            self.energy * factor,
        )


NOTHING = Cost(ZERO, {})


def total(costs: Iterable[Cost]) -> Cost:
    """The sum of costs in the order given: put those on whole grids last, so that a grid is touched once."""
    result = NOTHING
    for cost in costs:
        result = result + cost
    return result


def _plus(left: Array, right: Array, times: float) -> Array:
    """left + right x times, without touching a grid for nothing."""
    if right is ZERO:
        return left
    if times == 1.0:
        return right if left is ZERO else left + right
    grown = right * times
    if left is ZERO:
        return grown
    if np.broadcast_shapes(left.shape, grown.shape) == grown.shape:
        return np.add(left, grown, out=grown)
    return left + grown


def chain(levels: Mapping[str, Array], fixed: Array) -> dict[str, Array]:
    """Parts from candidate times in order: each counts what it adds to the largest before it; then `fixed`."""
    parts: dict[str, Array] = {}
    level = ZERO
    for name, candidate in levels.items():
        raised = np.maximum(level, candidate)
        parts[name] = raised - level
        level = raised
    parts["fixed"] = fixed
    return parts
