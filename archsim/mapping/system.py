"""System: pools of chips."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import isqrt

from archsim.arrays import Array
from archsim.chip.model import Chip


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
class System:
    """Pools by name."""

    pools: Mapping[str, Pool]

    @property
    def main(self) -> Pool:
        """The only pool of a system with one."""
        (pool,) = self.pools.values()
        return pool


def divisors(number: int) -> list[int]:
    """Every divisor of a number, the smallest first."""
    small = [value for value in range(1, isqrt(number) + 1) if number % value == 0]
    return sorted({*small, *(number // value for value in small)})
