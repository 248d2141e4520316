"""The KV memory of a replica in whole units: paged blocks or contiguous reservations, and the prefix cache in it.

Where every layer caches every token a unit is a block. Where some layers hold a window only, a unit is a byte, and a
block weighs less once a sequence is past the window.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from math import ceil, inf

from archsim.arrays import array
from archsim.mapping.memory import kv_bytes, memory_plan, state_bytes
from archsim.mapping.place import Deployment
from archsim.mapping.split import split
from archsim.serving.eviction import Gone, Order
from archsim.serving.speculation import Speculation
from archsim.workload.model import Model, Precision, Recurrent

ENDLESS = 1 << 40  # tokens that any memory is enough for


@dataclass(frozen=True)
class Layout:
    """How sequences lie in memory.

    `groups` are (tokens held at the most, units a block) of layers that hold alike, the shortest first; `state` units
    a sequence has besides. `reserve`, if given, is what every sequence reserves at once (tokens); 0 reserves the whole
    of its own length. Every sequence holds room for `ahead` tokens more than it has: for drafts.
    """

    block: int
    groups: tuple[tuple[float, int], ...]
    state: int = 0
    reserve: int | None = None
    ahead: int = 0

    @property
    def grows(self) -> bool:
        """Whether a sequence takes memory as it grows."""
        return self.reserve is None

    @cached_property
    def levels(self) -> tuple[int, ...]:
        """Units of a new block before any group is full, after the first is, and so on."""
        weights = [weight for _, weight in self.groups]
        return tuple(sum(weights[level:]) for level in range(len(self._full) + 1))

    @cached_property
    def _full(self) -> tuple[int, ...]:
        """Blocks at which a group is full, of the groups that ever are."""
        return tuple(ceil(held / self.block) for held, _ in self.groups if held < inf)

    def level(self, tokens: int) -> int:
        """The level from which the next block of a sequence of so many tokens is taken."""
        blocks = -(-(tokens + self.ahead) // self.block)
        return sum([1 for full in self._full if blocks >= full])

    def last(self, level: int) -> int:
        """Tokens at which a sequence has the last block that its level grows by."""
        return (self._full[level] - 1) * self.block + 1 - self.ahead

    def units(self, tokens: int) -> int:
        """Units that so many tokens of a sequence take."""
        blocks = -(-(tokens + self.ahead) // self.block)
        if not self._full:
            return self.state + blocks * self.groups[0][1]
        held = [(weight, inf if limit == inf else ceil(limit / self.block)) for limit, weight in self.groups]
        return self.state + sum([weight * int(min(blocks, limit)) for weight, limit in held])

    def reserved(self, now: int, final: int) -> int:
        """Units to take at admission for a sequence of `now` tokens that will have `final`."""
        return self.units(now) if self.reserve is None else self.units(max(self.reserve, final))


def layout_of(
    d: Deployment, block: int, reserve: int | None = None, speculation: Speculation | None = None
) -> tuple[Layout, int, float]:
    """The layout of a deployment, the units that its memory has room for (0: none), and the bytes of a unit.

    Sizes are of one rank; the ranks of a replica that hold sequences of their own add up. What writes drafts has its
    weights and its cache there too.
    """
    plan = memory_plan(d, array(1.0), array(1.0))
    weights, cached = (array(0.0),) * 2 if speculation is None else speculation.held
    free = float((plan.free_for_kv - weights).max()) * float(d.split.groups.max())
    state = float(plan.state_per_sequence.max())
    mixers = [item.attention for item in d.model.blocks.values()]
    ends = sorted({float(m.held) for m in mixers if m is not None and not isinstance(m, Recurrent)})

    def size(tokens: float) -> float:
        return float((kv_bytes(d.model, d.precision, d.split, array(tokens)) + cached * tokens).max())

    slopes = [size(1.0), *(size(end + 1.0) - size(end) for end in ends if end < inf)]
    if len(slopes) == 1 and slopes[0] > 0:
        unit = slopes[0] * block
        groups: tuple[tuple[float, int], ...] = ((inf, 1),)
    else:
        unit = 1.0
        steps = [*(before - after for before, after in pairwise(slopes)), slopes[-1]]
        limits = [*(end for end in ends if end < inf), inf]
        groups = tuple((end, round(step * block)) for end, step in zip(limits, steps, strict=True))
        groups = tuple(group for group in groups if group[1] > 0) or ((inf, 0),)
    ahead = 0 if speculation is None else speculation.drafts
    return Layout(block, groups, ceil(state / unit), reserve, ahead), int(max(free, 0.0) // unit), unit


def held_bytes(model: Model, precision: Precision) -> tuple[tuple[tuple[float, float], ...], float]:
    """(tokens held at the most, bytes a token) of layers that cache alike, and bytes of state of a whole sequence."""
    mixers = [item.attention for item in model.blocks.values()]
    ends = sorted({float(m.held) for m in mixers if m is not None and not isinstance(m, Recurrent)})

    def slope(tokens: float) -> float:
        near, far = (float(kv_bytes(model, precision, split(), array(tokens + n)).max()) for n in (0.0, 1.0))
        return far - near

    slopes = [*(slope(0.0 if index == 0 else ends[index - 1]) for index in range(len(ends))), 0.0]
    held = tuple((end, slopes[index] - slopes[index + 1]) for index, end in enumerate(ends))
    return held, float(state_bytes(model, split()).max())


class Prefixes:
    """Blocks of prompts by the hash of their chain, kept after use until memory is needed: LRU, tails before heads.

    `unit` is what a block takes of the pool, `block` its tokens. `order` says which idle ones go; those that it finds
    too old are no longer there. `clock` tells the time. Tiers below extend `dropped` and `settle`.
    """

    def __init__(self, block: int, unit: int, order: Order | None = None) -> None:
        self.block, self.unit = block, unit
        self.clock: Callable[[], float] = float
        self.order = Order() if order is None else order
        self._users: dict[int, int] = {}
        self._settled = 0.0

    @property
    def held(self) -> int:
        """Units of all blocks that are here."""
        return len(self._users) * self.unit

    @property
    def idle(self) -> int:
        """Units that nobody uses and that can be had back."""
        return len(self.order) * self.unit

    def lookup(self, chain: Sequence[int]) -> int:
        """Leading blocks of a chain that are here: none beyond the first that is not."""
        users, order = self._users, self.order
        if not order.timed:
            for place, name in enumerate(chain):
                if name not in users:
                    return place
            return len(chain)
        now = self.clock()
        for place, name in enumerate(chain):
            if name not in users or (not users[name] and order.old(name, now)):
                return place
        return len(chain)

    def idle_among(self, chain: Sequence[int]) -> int:
        """Units of these blocks that nobody uses yet."""
        return self.unit * sum([1 for name in chain if not self._users[name]])

    def use(self, chain: Sequence[int]) -> None:
        """Someone uses these blocks; they stay."""
        users, order, now = self._users, self.order, self.clock()
        for name in chain:
            if not users[name]:
                order.remove(name, now)
            users[name] += 1

    def touch(self, chain: Sequence[int]) -> None:
        """Someone will use these blocks: those that are idle go last."""
        self.order.again([name for name in reversed(chain) if not self._users[name]], self.clock())

    def add(self, chain: Sequence[int]) -> list[int]:
        """Keeps computed blocks, in use by their maker; those that another made meanwhile are left out."""
        users = self._users
        added = [name for name in chain if name not in users]
        for name in added:
            users[name] = 1
        return added

    def release(self, names: Sequence[int], leaves: bool = False) -> None:
        """Their user is done: the tail of a chain will go before its head, and all before others if the user leaves."""
        users, now = self._users, self.clock()
        idle = self.order.leaving if leaves else self.order.resting
        for name in reversed(names):
            left = users[name] - 1
            users[name] = left
            if not left:
                idle[name] = now

    def evict(self, units: int) -> int:
        """Gives back at least so many units, if there are as many idle ones; how many it gave."""
        return self._drop(self.order.pop(-(-units // self.unit), self.clock(), self._settled))

    def settle(self) -> int:
        """Drops what has been idle for too long; units given back. Called when a request changes something."""
        self._settled = now = self.clock()
        return self._drop(self.order.expired(now)) if self.order.timed else 0

    def _drop(self, gone: list[Gone]) -> int:
        for name, _, _ in gone:
            del self._users[name]
        self.dropped(gone)
        return len(gone) * self.unit

    def dropped(self, gone: list[Gone]) -> None:
        """Blocks leave this memory."""


@dataclass(eq=False)
class Pool:
    """What is used of the units there are. `taken` and `given` count all that ever was."""

    layout: Layout
    capacity: int
    prefixes: Prefixes | None = None
    used: int = 0
    taken: int = 0
    given: int = 0

    @property
    def free(self) -> int:
        """Units that can be had, idle blocks of the prefix cache included."""
        free = self.capacity - self.used
        return free if self.prefixes is None else free + self.prefixes.idle

    @property
    def active(self) -> int:
        """Units in use by sequences."""
        return self.used - (self.prefixes.idle if self.prefixes else 0)

    def longest(self) -> int:
        """The most tokens of a sequence that memory and its reservation have room for."""
        if self.layout.reserve:
            return self.layout.reserve if self.layout.units(self.layout.reserve) <= self.capacity else 0
        low, high = 0, 1
        while high < ENDLESS and self.layout.units(high) <= self.capacity:
            low, high = high, high * 2
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self.layout.units(middle) <= self.capacity else (low, middle)
        return low - self.layout.ahead  # the last step may go beyond the end

    def take(self, units: int) -> None:
        """Takes units, from idle blocks of the prefix cache where none are free."""
        used = self.used + units
        if used > self.capacity and self.prefixes is not None:
            self.give(self.prefixes.evict(used - self.capacity))
            used = self.used + units
        self.used = used
        self.taken += units

    def give(self, units: int) -> None:
        """Gives units back."""
        self.used -= units
        self.given += units
