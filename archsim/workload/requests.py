"""Requests of a simulation: when they come, how long they are, and which blocks of their prompts others share."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from archsim.arrays import Array
from archsim.workload.chains import Runs, Stretched

Integers = np.typing.NDArray[np.int64]
Chains = Sequence[Sequence[int]]
STOPS = ("", "tool_use", "end_turn")  # not known; a tool is called; the turn is over and a human goes on
COLUMNS = ("arrival", "input", "output", "priority", "gap", "session", "agent", "stop")


@dataclass(frozen=True, eq=False)
class Requests:
    """Requests in order of arrival (s), or session by session in order of their starts.

    `chains` are the ids of the leading blocks of `block` tokens of each prompt, equal where all before is equal too; a
    chain that goes on with the blocks of the answer lets later prompts find these as well.
    `priority`: larger goes first. With `clients` the arrivals are those of a closed loop: so many at first, and each
    further one `think` seconds after one has ended; `arrival` then only orders them.

    A request of a session comes `gap` seconds after all the requests that `after` names by their place have ended, and
    has no arrival of its own; those named stand before it. `session` numbers sessions, `agent` those who work in them
    one step at a time, and `stop` says why an answer ended (STOPS), as an index. `titles`
    are what a trace calls its sessions.
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
    titles: Sequence[str] = ()
    name: str = "requests"
    skipped: Sequence[str] = field(default=())

    def __len__(self) -> int:
        """How many."""
        return len(self.arrival)

    @property
    def sessions(self) -> int:
        """How many sessions."""
        return 0 if self.session is None or not len(self) else int(self.session.max()) + 1

    @property
    def starts(self) -> Array:
        """When those come that wait for no other (s)."""
        if self.after is None:
            return self.arrival
        return self.arrival[[index for index, before in enumerate(self.after) if not before]]

    @property
    def span(self) -> float:
        """Seconds from time 0 to the last arrival, or to the last start of a session."""
        starts = self.starts
        return float(starts[-1]) if len(starts) else 0.0

    @property
    def rate(self) -> float:
        """Mean arrivals a second, or starts of sessions; 0 where it is not known."""
        return len(self.starts) / self.span if self.span > 0 and not self.clients else 0.0

    def pick(self, rows: Integers) -> "Requests":
        """The requests of these places, in their order; those they wait for are among them and stand before them."""
        chains = self.chains
        picked = (
            chains.pick(rows) if isinstance(chains, Runs) else None if chains is None else [chains[i] for i in rows]
        )
        columns = {name: getattr(self, name) for name in COLUMNS}
        after = self.after
        if after is not None:
            place = np.full(len(self), -1, dtype=np.int64)
            place[rows] = np.arange(len(rows))
            after = [[int(place[step]) for step in after[row]] for row in rows.tolist()]
        kept: dict[str, Any] = {name: None if column is None else column[rows] for name, column in columns.items()}
        return replace(self, chains=picked, after=after, **kept)

    def first(self, count: int) -> "Requests":
        """The first so many."""
        cut = slice(0, count)
        columns = {name: getattr(self, name) for name in (*COLUMNS, "chains", "after")}
        kept: dict[str, Any] = {name: None if column is None else column[cut] for name, column in columns.items()}
        return replace(self, **kept)

    def before(self, seconds: float) -> "Requests":
        """Those that come before a time."""
        return self.first(int(np.searchsorted(self.arrival, seconds)))

    def starting(self, starts: Array) -> "Requests":
        """The same sessions with other starts (s, by session, none before that of the session before)."""
        if self.session is None or not len(self):
            return self
        return replace(self, arrival=self.arrival + (starts - self._begins)[self.session])

    @property
    def _begins(self) -> Array:
        """The first arrival of every session."""
        found = np.full(self.sessions, np.inf)
        if self.session is not None:
            np.minimum.at(found, self.session, self.arrival)
        return found

    def at_rate(self, rate: float) -> "Requests":
        """The same requests, as if they came at another mean rate: all times scaled, but not gaps within sessions."""
        if rate <= 0:
            raise ValueError("a rate is above 0 requests a second")
        if not self.rate:
            return self
        factor = self.rate / rate
        return (
            replace(self, arrival=self.arrival * factor) if self.after is None else self.starting(self._begins * factor)
        )

    def scaled(self, input: float = 1.0, output: float = 1.0) -> "Requests":
        """The same requests with prompts and answers so many times as long; what prompts share is scaled too."""
        if min(input, output) <= 0:
            raise ValueError("lengths are scaled by factors above 0")
        lengths = [
            np.maximum(np.round(size * factor), 1).astype(np.int64)
            for size, factor in ((self.input, input), (self.output, output))
        ]
        chains = self.chains if self.chains is None or input == 1.0 else Stretched(self.chains, input)
        return replace(self, input=lengths[0], output=lengths[1], chains=chains)


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
