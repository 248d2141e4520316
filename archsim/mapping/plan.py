"""Plan: kernels on lanes, transfers between ranks, and what sits in which memory."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from archsim.arrays import Array
from archsim.chip.model import Chip
from archsim.mapping.split import Split
from archsim.units import Format


@dataclass(frozen=True, eq=False)
class Kernel:
    """What one rank executes at once: one or more fused operators, or one collective.

    `dims` are those of its rank. `weight` and `input` are the formats in memory, `compute` the matrix format used;
    `library` is the one a collective is taken from, where the runtime has a choice; `stack` the one whose constants
    hold where they are not those of the runtime's own; `shown` is the share of its fixed time that
    shows in a running engine. `pool` is the other pool where the kernel runs there.
    """

    name: str
    kind: str
    role: str
    dims: Mapping[str, Array]
    weight: Format
    input: Format
    compute: str
    operators: tuple[str, ...]
    library: str = ""
    stack: str = ""
    shown: float = 1.0
    pool: str = ""


@dataclass(frozen=True, eq=False)
class Task:
    """A kernel on a lane; it starts when the lane is free and the tasks `after` (indices in its block) are done.

    Tasks without `after` wait for the end of their micro-batch in the block before.
    """

    kernel: Kernel
    lane: str
    after: tuple[int, ...]
    batch: int = 0


@dataclass(frozen=True, eq=False)
class MemoryPlan:
    """What each chip of a pool holds (bytes), of what capacity, and for how much it falls short.

    `kv_per_sequence` and `state_per_sequence` are the KV cache and the constant state of one sequence on a rank.
    `backing` is the capacity of the memory that holds KV caches where they are not on the chip; they are no part then.
    `partner` is what the chips of another pool hold that runs a part of the model.
    """

    parts: Mapping[str, Array]
    capacity: Array
    kv_per_sequence: Array
    sequences: Array
    state_per_sequence: Array = field(default_factory=lambda: np.zeros(1))
    backing: Array | None = None
    partner: "MemoryPlan | None" = None

    @property
    def per_sequence(self) -> Array:
        """What one sequence holds on a rank, cache and state."""
        return self.kv_per_sequence + self.state_per_sequence

    @property
    def needed(self) -> Array:
        """All parts together."""
        return sum(self.parts.values(), np.zeros(1))

    @property
    def free_for_kv(self) -> Array:
        """What is left for the KV cache and state once everything else is in."""
        free = self.capacity - (self.needed - self.parts["kv"] - self.parts["state"])
        return free if self.backing is None else np.where(free >= self.parts["state"], self.backing, free)

    @property
    def fits(self) -> "np.typing.NDArray[np.bool_]":
        """Where everything fits, on the other pool too."""
        own = self.needed <= self.capacity
        if self.backing is not None:
            own = own & (self.per_sequence * self.sequences <= self.backing)
        return own if self.partner is None else own & self.partner.fits

    @property
    def fullest(self) -> Array:
        """Share of the capacity in use, of the pool that is fuller."""
        own = self.needed / self.capacity
        return own if self.partner is None else np.maximum(own, self.partner.fullest)

    @property
    def missing(self) -> Array:
        """Shares of the capacity that are missing on either pool, added up: a pool that fits adds nothing."""
        own = np.maximum(self.needed / self.capacity - 1.0, 0.0)
        return own if self.partner is None else own + self.partner.missing


@dataclass(frozen=True, eq=False)
class Away:
    """The other pool of a plan: its chip and stack, the micro-batches in turn, and whether its chips are pinned.

    `layers` are those in which it has work; the tasks of micro-batches beyond `batches` cost nothing.
    """

    pool: str
    chip: Chip
    stack: str
    batches: Array
    pinned: bool
    layers: int


@dataclass(frozen=True, eq=False)
class Plan:
    """A step placed on one pool: tasks of each block in lane order, and the sequence of blocks.

    `host` is the host time of the step (s), `launch` that of one kernel where steps are eager, `boundary` the bytes
    that cross from one pipeline stage to the next. `flight` are the micro-batches on their way through the stages;
    None: as many as there are stages.
    that cross from one pipeline stage to the next. `flight` are the micro-batches on their way through the stages;
    None: as many as there are stages. `away` is what runs on another pool.
    """

    split: Split
    blocks: Mapping[str, tuple[Task, ...]]
    sequence: tuple[tuple[str, int], ...]
    host: Array
    launch: float
    boundary: Array
    flight: Array | None = None
    away: Away | None = None

    def kernels(self) -> list[tuple[str, Kernel, int]]:
        """(block, kernel, layers) of every task."""
        return [(block, task.kernel, count) for block, count in self.merged() for task in self.blocks[block]]

    def merged(self) -> list[tuple[str, int]]:
        """Every block with its number of layers, in order of first appearance."""
        totals: dict[str, int] = {}
        for block, count in self.sequence:
            totals[block] = totals.get(block, 0) + count
        return list(totals.items())
