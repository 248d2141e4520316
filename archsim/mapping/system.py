"""System: pools of chips."""

from collections.abc import Mapping
from dataclasses import dataclass

from archsim.arrays import Array
from archsim.chip.model import Chip


@dataclass(frozen=True, eq=False)
class Pool:
    """`count` chips of one kind."""

    chip: Chip
    count: Array


@dataclass(frozen=True, eq=False)
class System:
    """Pools by name."""

    pools: Mapping[str, Pool]

    @property
    def main(self) -> Pool:
        """The only pool of a system with one."""
        (pool,) = self.pools.values()
        return pool
