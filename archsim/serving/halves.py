"""A deployment of two pools in time: some replicas prefill and hand over, the others decode.

Conditional: a prompt of which few tokens are left to compute, because it is short or its beginning is cached where it
would decode, is prefilled there and nothing travels.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil
from typing import TYPE_CHECKING, Literal

from archsim.serving.cluster import Cluster, Router
from archsim.serving.engine import Engine
from archsim.serving.handover import Offer, Receiver, Sender, Way
from archsim.serving.outcome import Outcome
from archsim.workload.requests import Requests

if TYPE_CHECKING:
    from archsim.serving.simulate import Server

Skip = int | Literal["auto"] | None
NEXT = 1 << 62
HANDED = 1 << 61


@dataclass(frozen=True, eq=False)
class Prefill:
    """The pool that prefills for a server, and the way from there.

    `skip`: with so many tokens left to compute, or fewer, a prompt is prefilled where it decodes; `auto`: where its
    first token comes sooner by the step times and what is queued; None: never.
    """

    server: "Server"
    way: Way
    skip: Skip = None


class Halves(Cluster):
    """Both pools in one time. In `coming` a request that is handed over is less HANDED: negative.

    In a closed loop NEXT is the next request, whichever that is by then, so many at first.
    """

    def __init__(
        self,
        requests: Requests,
        senders: Sequence[Sender],
        receivers: Sequence[Receiver],
        prefill: Prefill,
        router: str,
        outcome: Outcome,
    ) -> None:
        super().__init__([*senders, *receivers], Router(prefill.server.router, requests, senders).choose, outcome)
        self._decoding = Router(router, requests, receivers)
        self._senders: dict[Engine, Sender] = {sender: sender for sender in senders}
        self._receivers: dict[Engine, Receiver] = {receiver: receiver for receiver in receivers}
        self._chains, self._way, self._skip = requests.chains, prefill.way, prefill.skip
        self._offers: dict[int, Offer] = {}
        self._think, self._backlog = requests.think, iter(range(len(requests)))
        for sender in senders:
            sender.hand = self._handed
            sender.lanes = [0.0] * prefill.way.lanes[0]
        for receiver in receivers:
            receiver.way = prefill.way
            receiver.lanes = [0.0] * prefill.way.lanes[1]

    def _handed(self, sender: Sender, request: int) -> None:
        """A prompt is computed; who decodes it is chosen when all are at this time."""
        self._offers[request] = Offer(sender, self.outcome.begun[request], sender.clock)
        self.send(sender, sender.clock, request - HANDED)

    def next_client(self, engine: Engine, request: int) -> None:
        """A client has its answer and sends the next request after a while."""
        self.send(engine, engine.clock + self._think, NEXT)

    def deliver(self, time: float, request: int) -> None:
        """A request reaches the replica that prefills it, or its cache the one that decodes it."""
        if request == NEXT:
            request = next(self._backlog, NEXT)
            if request == NEXT:
                return
            self.outcome.arrived[request] = time
        if request < 0:
            request += HANDED
            receiver = self._receivers[self._decoding.choose(request)]
            receiver.offer(time, request, self._offers.pop(request))
            return
        receiver = self._receivers[next(iter(self._receivers))]
        if self._skip is not None and receiver.has_room(request):
            receiver = self._receivers[self._decoding.choose(request)]
        sender = self._senders[self._choose(request)]
        if not receiver.has_room(request) or self._stays(receiver, sender, request):
            receiver.owed[request] = self._fresh(receiver, request)
            receiver.expect(time, request)
        else:
            sender.owed[request] = self._fresh(sender, request)
            sender.pending.append((time + sender.surface.arrival, request))

    def _fresh(self, engine: Engine, request: int) -> int:
        """Tokens of a prompt that a replica would have to compute."""
        tokens, cache = engine.input[request], engine.pool.prefixes
        if cache is None or self._chains is None:
            return tokens
        return tokens - cache.block * min(cache.lookup(self._chains[request]), (tokens - 1) // cache.block)

    def _stays(self, receiver: Receiver, sender: Sender, request: int) -> bool:
        """Whether a prompt is prefilled where it decodes."""
        if self._skip is None:
            return False
        here = self._fresh(receiver, request)
        if self._skip != "auto":
            return here <= self._skip
        tokens, there = receiver.input[request], self._fresh(sender, request)
        alone = self._seconds(sender, there, tokens)
        sent = self._way.shown(self._way.seconds(tokens, tokens - here), alone)
        away = self._seconds(sender, int(sum(sender.owed.values())), 0) + alone + sent
        return (
            self._seconds(receiver, int(sum(receiver.owed.values())), 0) + self._seconds(receiver, here, tokens) <= away
        )

    @staticmethod
    def _seconds(engine: Engine, fresh: int, tokens: int) -> float:
        """Seconds in which a replica computes the last `fresh` of some tokens, step by step, beside what it decodes."""
        if not fresh:
            return 0.0
        size = engine.batch.size
        steps = ceil(fresh / max(engine.scheduler.max_tokens - size, 1))
        each = ceil(fresh / steps)
        before = max(tokens - fresh, 0) + (fresh - each) // 2
        return steps * engine.mixed_seconds(size, engine.batch.sums(), [(each, before)])
