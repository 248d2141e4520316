"""A KV cache on its way: replicas that prefill give it away, replicas that decode take it.

A replica that prefills is done with a request at its first token. Its blocks stay until the cache has been sent. A
replica that decodes takes memory for the request at its next iteration, and the request decodes once the cache is
there. The cache travels layer by layer while the prompt is worked out, unless memory had to be waited for. Each end
sends or takes one cache after another on each of its lanes.
"""

from collections.abc import Callable
from dataclasses import dataclass
from heapq import heapreplace
from math import inf
from typing import Any

from archsim.serving.engine import Engine
from archsim.serving.waiting import Filling


@dataclass(frozen=True)
class Way:
    """From a replica that prefills to one that decodes.

    `held` are (tokens at the most, bytes a token) of layers that hold alike and `state` bytes besides; `rate` (B/s) is
    that of one lane, `latency` in s. `lanes` are those of a sender and of a receiver. `overlapped`: layer by layer.
    """

    held: tuple[tuple[float, float], ...]
    rate: float
    latency: float
    layers: int
    state: float = 0.0
    lanes: tuple[int, int] = (1, 1)
    overlapped: bool = True

    def size(self, tokens: int, there: int = 0) -> float:
        """Bytes of a sequence, of whose tokens the first so many are there already."""
        moved = sum([each * (min(tokens, limit) - min(there, limit)) for limit, each in self.held])
        return moved + self.state

    def seconds(self, tokens: int, there: int = 0) -> float:
        """Seconds that the bytes take on a lane."""
        return self.size(tokens, there) / self.rate

    def shown(self, seconds: float, prefill: float) -> float:
        """Seconds after a prefill of `prefill` until a transfer of `seconds` is there, with nobody else on the way.

        p/L + (L - 1) max(p, t)/L + t/L from the first layer on, of which p is the prefill.
        """
        if not self.overlapped:
            return seconds + self.latency
        return (seconds + (self.layers - 1) * max(seconds - prefill, 0.0)) / self.layers + self.latency


NOTHING = Way((), inf, 0.0, 1)


@dataclass(eq=False, slots=True)
class Offer:
    """A cache that waits to be taken: who has it, from when to when it was computed, and whether it had to wait."""

    sender: "Sender"
    begun: float
    ended: float
    late: bool = False


class Sender(Engine):
    """A replica that prefills. `hand` is told of every request that is to decode elsewhere."""

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self.hand: Callable[[Sender, int], None] | None = None
        self.lanes: list[float] = [0.0]
        self.owed: dict[int, float] = {}  # tokens of prompts that are to be computed here
        self.answers = self.output  # of all: here each has its first token only
        self.output = [1] * len(self.answers)
        self._kept_for = 0  # requests whose cache is still to be sent

    def _filled(self, request: int) -> None:
        self.owed.pop(request, None)
        if self.hand is None or self.answers[request] == 1:
            super()._filled(request)
            return
        if self.pool.prefixes is not None:
            self.holdings.share(request, self.input[request])
        self._kept_for += 1
        self.hand(self, request)

    def release(self, time: float, request: int) -> None:
        """A cache will have been sent at a time that is not past: its memory is free then."""
        self._at(time, ~request)

    def _enter(self, request: int) -> None:
        self.blocked = False
        if request >= 0:
            super()._enter(request)
            return
        self._kept_for -= 1
        self.holdings.free(~request, self.input[~request])

    def _refuse(self, request: int, reason: str) -> None:
        self.owed.pop(request, None)
        super()._refuse(request, reason)

    def _stuck(self) -> None:
        if self._kept_for:
            self.blocked = True
        else:
            super()._stuck()


class Receiver(Engine):
    """A replica that decodes what others have prefilled, and prefills what comes to it directly."""

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self.way = NOTHING
        self.lanes: list[float] = [0.0]
        self.owed: dict[int, float] = {}
        self._offers: dict[int, Offer] = {}
        self._wanted = 0  # units that they will take
        self._landing = 0  # requests that have memory and whose cache is on its way

    @property
    def running(self) -> int:
        """Sequences that decode, are prefilled, or are on their way."""
        return self.batch.size + len(self.filling) + self._landing

    def offer(self, time: float, request: int, offer: Offer) -> None:
        """A cache can be had from a time that is not past; it comes late where memory has no room for it by then."""
        self._offers[request] = offer
        self._wanted += self.pool.layout.units(self.input[request])
        offer.late = self._wanted + self._spare > self.pool.free
        self.pending.append((time, request))

    def has_room(self, request: int) -> bool:
        """Whether memory is enough for a request, if nothing else is there."""
        return self.input[request] + self.output[request] - 1 <= self._longest

    def next_tokens(self) -> int:
        """Tokens of the next waiting request, if nothing is cached; none of one that is prefilled."""
        return 0 if self.waiting.first() in self._offers else super().next_tokens()

    def admit(self) -> Filling | None:
        """The next waiting request starts, if memory allows."""
        if self._closed or self.waiting.first() not in self._offers:
            return super().admit()
        request = self.waiting.first()
        tokens, offer = self.input[request], self._offers[request]
        layout = self.pool.layout
        more = layout.units(tokens + 1) - layout.units(tokens) if layout.grows else 0
        hits = self.holdings.take(request, tokens, tokens + self.output[request] - 1, self._kept() + more)
        if hits < 0:
            offer.late = True
            return None
        self.waiting.pop_first()
        del self._offers[request]
        self._wanted -= layout.units(tokens)
        there = self._sent(request, offer, hits)
        self.outcome.first[request] = there
        if there <= self.clock:
            self._next += more
            self._join(request)
        else:
            self._landing += 1
            self._at(there, ~request)
        return Filling(request, tokens, 0)

    def _sent(self, request: int, offer: Offer, hits: int) -> float:
        """When a cache is there; both ends are busy until then, and the sender's memory is free."""
        way = self.way
        size = way.size(self.input[request], hits)
        seconds = size / way.rate
        self.outcome.handed += 1
        self.outcome.sent += size
        sender = offer.sender
        soonest = offer.ended
        if offer.late:
            soonest = self.clock
        elif way.overlapped:
            soonest = offer.begun + (offer.ended - offer.begun) / way.layers
        free = max(soonest, sender.lanes[0], self.lanes[0]) + seconds
        heapreplace(sender.lanes, free)
        heapreplace(self.lanes, free)
        last = seconds / way.layers if way.overlapped else seconds
        end = max(free, offer.ended + last)
        sender.release(max(end, self.clock), request)
        self.halted = True
        return end + way.latency

    def _join(self, request: int) -> None:
        """The cache is there: its blocks can be shared, and it decodes."""
        if self.pool.prefixes is not None:
            self.holdings.share(request, self.input[request])
        self._left += 1
        self.batch.join(request, self.input[request], self.output[request] - 1)

    def _enter(self, request: int) -> None:
        self.blocked = False
        if request >= 0:
            super()._enter(request)
            return
        self._landing -= 1
        self._join(~request)

    def _filled(self, request: int) -> None:
        self.owed.pop(request, None)
        super()._filled(request)

    def _refuse(self, request: int, reason: str) -> None:
        self.owed.pop(request, None)
        offer = self._offers.pop(request, None)
        if offer is not None:
            self._wanted -= self.pool.layout.units(self.input[request])
            offer.sender.release(self.clock, request)
        super()._refuse(request, reason)

    def _forward(self, until: float, listening: bool) -> None:
        """What is on its way joins at the first iteration after it is there, whatever the scheduler listens to.

        One iteration where a sender has just been told something: it may send more.
        """
        if self.halted:
            until = self.clock
        super()._forward(min(until, self._returning[0][0] if self._landing else inf), listening)

    def _stuck(self) -> None:
        if self._landing:
            self.blocked = True
        else:
            super()._stuck()
