"""What lanes play and give: timed tasks, what a lane did, and the account of a schedule."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from archsim.arrays import Array
from archsim.engine.cost import NOTHING, Cost

GAPS = {
    "link": "waiting for a transfer",
    "compute": "waiting for kernels on another lane",
    "host": "waiting for the host",
    "dependency": "waiting for something that itself waited",
    "bubble": "before the first task",
    "no_work": "after the last task",
    "to_ffn": "waiting for activations on their way to the other pool",
    "ffn": "waiting for the other pool",
    "ffn_in": "waiting for tokens to spread inside the other pool",
    "ffn_out": "waiting for results to meet inside the other pool",
    "from_ffn": "waiting for results on their way back",
    "queue": "waiting for a turn at chips that several groups share",
    "other_layers": "pinned to one layer, while others run or other groups are served",
}
APART = ("to_ffn", "ffn", "ffn_in", "ffn_out", "from_ffn", "queue")  # lanes of another pool, and of the links to it


@dataclass(frozen=True, eq=False)
class Timed:
    """A task with its cost: lane, seconds, and the tasks of its block that it waits for."""

    name: str
    lane: str
    cost: Cost
    after: tuple[int, ...]
    wide: bool = False  # knows more axes than most: added last, so that a grid is touched once
    batch: int = 0  # micro-batch
    pinned: bool = False  # its lane is one of its layer alone
    skips: bool = False  # where it costs nothing it takes no turn on its lane
    wait: Array | None = None  # for a turn at a pinned lane that others share


@dataclass(frozen=True, eq=False)
class Work:
    """A cost that a lane bears a number of times; wide ones know more axes than most."""

    cost: Cost
    times: float
    wide: bool


def together(work: Iterable[Work]) -> Cost:
    """The cost of all of it; what is wide is added last, so that a grid is touched once."""
    cost = NOTHING
    for item in sorted(work, key=lambda item: item.wide):
        cost = cost.plus(item.cost, item.times)
    return cost


@dataclass(frozen=True, eq=False)
class Lane:
    """What a lane did over the span, and its gaps by cause (s)."""

    work: Sequence[Work]
    gaps: Mapping[str, Array]

    @cached_property
    def cost(self) -> Cost:
        """All its kernels together."""
        return together(self.work)

    @property
    def parts(self) -> Mapping[str, Array]:
        """Parts of its kernels (s); with the gaps they sum to the span."""
        return self.cost.parts


@dataclass(frozen=True, eq=False)
class Schedule:
    """Span (s), the period of each block (s), and every lane's account of the span."""

    span: Array
    period: Mapping[str, Array]
    lanes: Mapping[str, Lane]
