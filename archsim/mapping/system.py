"""System: pools of chips, the links between them, and what a pool does for another."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import isqrt

from archsim.arrays import Array
from archsim.chip.model import Chip
from archsim.mapping.runtime import Runtime


@dataclass(frozen=True, eq=False)
class Pool:
    """`count` chips of one kind."""

    chip: Chip
    count: Array

    @property
    def chips(self) -> int:
        """Chips, the most of a sweep."""
        return int(self.count.max())

    @property
    def domain(self) -> int:
        """Chips that one domain of fast links joins; 1 where there are none."""
        link = self.chip.links.get("scale_up")
        return link.domain if link else 1

    def within_domain(self) -> list[int]:
        """Divisors of the chips that stay inside the fast links, the smallest first."""
        return [value for value in divisors(self.chips) if value <= self.domain]


@dataclass(frozen=True, eq=False)
class Wire:
    """The way from one pool to another: latency (s), and what each chip at either end sends or takes (B/s)."""

    name: str
    latency: Array
    sender: Array
    receiver: Array


@dataclass(frozen=True, eq=False)
class Partner:
    """What a second pool does for the main one, on which chips, and the ways there and back.

    `job` is `roles` (it runs operators of these `roles` in every step), `prefill` or `draft`. `pinned`: each of its
    chips holds one layer, and serves whichever of the replicas of the main pool comes by.
    """

    name: str
    job: str
    roles: frozenset[str]
    chip: Chip
    runtime: Runtime
    count: Array
    pinned: bool
    out: Wire
    back: Wire


@dataclass(frozen=True, eq=False)
class System:
    """Pools by name, and what the second of two does for the first."""

    pools: Mapping[str, Pool]
    partner: Partner | None = None

    @property
    def main(self) -> Pool:
        """The pool that attends: the only one of a system with one."""
        return self.pools[self.main_name]

    @property
    def main_name(self) -> str:
        """The name of the main pool."""
        (name,) = (name for name in self.pools if self.partner is None or name != self.partner.name)
        return name

    @property
    def chips(self) -> Array:
        """Chips of all pools."""
        count = self.main.count
        return count if self.partner is None else count + self.partner.count


def divisors(number: int) -> list[int]:
    """Every divisor of a number, the smallest first."""
    small = [value for value in range(1, isqrt(number) + 1) if number % value == 0]
    return sorted({*small, *(number // value for value in small)})
