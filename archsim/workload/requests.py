"""Requests of a simulation: when they come, how long they are, and which blocks of their prompts others share."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from archsim.arrays import Array

Integers = np.typing.NDArray[np.int64]
Chains = Sequence[Sequence[int]]
STOPS = ("", "tool_use", "end_turn")  # not known; a tool is called; the turn is over and a human goes on


@dataclass(frozen=True, eq=False)
class Requests:
    """Requests in order of arrival (s).

    `chains` are the ids of the leading blocks of `block` tokens of each prompt, equal where all before is equal too.
    `priority`: larger goes first. With `clients` the arrivals are those of a closed loop: so many at first, and each
    further one `think` seconds after one has ended; `arrival` then only orders them.

    A request of a session comes `gap` seconds after all the requests that `after` names by their place have ended, and
    has no arrival of its own; those named stand before it. `session` numbers sessions, `agent` those who work in them
    one step at a time, and `stop` says why an answer ended (STOPS), as an index.
    """

    arrival: Array
    input: Integers
    output: Integers
    chains: Chains | None = None
    block: int = 0
    priority: Integers | None = None
    clients: int = 0
    think: float = 0.0
    after: Sequence[Sequence[int]] | None = None
    gap: Array | None = None
    session: Integers | None = None
    agent: Integers | None = None
    stop: Integers | None = None
    name: str = "requests"
    skipped: Sequence[str] = field(default=())

    def __len__(self) -> int:
        """How many."""
        return len(self.arrival)

    @property
    def span(self) -> float:
        """Seconds from time 0 to the last arrival."""
        return float(self.arrival[-1]) if len(self) else 0.0

    @property
    def rate(self) -> float:
        """Mean arrivals a second; 0 where it is not known."""
        return len(self) / self.span if self.span > 0 and not self.clients else 0.0

    def first(self, count: int) -> "Requests":
        """The first so many."""
        cut = slice(0, count)
        return replace(
            self,
            arrival=self.arrival[cut],
            input=self.input[cut],
            output=self.output[cut],
            chains=None if self.chains is None else self.chains[cut],
            priority=None if self.priority is None else self.priority[cut],
            after=None if self.after is None else self.after[cut],
            gap=None if self.gap is None else self.gap[cut],
            session=None if self.session is None else self.session[cut],
            agent=None if self.agent is None else self.agent[cut],
            stop=None if self.stop is None else self.stop[cut],
        )

    def before(self, seconds: float) -> "Requests":
        """Those that come before a time."""
        return self.first(int(np.searchsorted(self.arrival, seconds)))

    def at_rate(self, rate: float) -> "Requests":
        """The same requests, as if they came at another mean rate: all times scaled, but not gaps within sessions."""
        if rate <= 0:
            raise ValueError("a rate is above 0 requests a second")
        return replace(self, arrival=self.arrival * (self.rate / rate)) if self.rate else self


def requests(
    arrival: Sequence[float], input: Sequence[int] | int, output: Sequence[int] | int, **more: object
) -> Requests:
    """Requests from plain numbers, sorted by arrival; a single length is that of all."""
    times = np.asarray(arrival, dtype=np.float64)
    sizes = [np.broadcast_to(np.asarray(size, dtype=np.int64), times.shape) for size in (input, output)]
    if any(bool((size < 1).any()) for size in sizes):
        raise ValueError("a request has at least one token in and one out")
    order = np.argsort(times, kind="stable")
    return replace(Requests(times[order], sizes[0][order], sizes[1][order]), **more)  # type: ignore[arg-type]
