"""What a replica holds: its requests, its memory, and who starts, ends and gives way. `engine.py` plays it in time."""

from collections import deque
from collections.abc import Callable
from heapq import heappush
from typing import Any

from archsim.serving.batch import Batch
from archsim.serving.drafting import batch_of
from archsim.serving.holdings import LOADING, Holdings
from archsim.serving.outcome import Outcome, Swap
from archsim.serving.pool import Pool
from archsim.serving.returning import Returns
from archsim.serving.schedulers import Scheduler
from archsim.serving.surface import Surface
from archsim.serving.waiting import Filling, Line, Ranks
from archsim.workload.requests import Requests


class Replica:
    """Requests, memory and policies of one replica. `outcome` and `log` say what happened.

    `log` holds a ROW for every stretch of equal iterations.
    """

    def __init__(
        self,
        requests: Requests,
        surface: Surface,
        pool: Pool,
        scheduler: Scheduler,
        outcome: Outcome,
        plain: bool = False,
        swap: Swap | None = None,
        watermark: float = 0.01,
        returns: Returns | None = None,
    ) -> None:
        self.surface, self.pool, self.scheduler, self.outcome = surface, pool, scheduler, outcome
        self.input: list[int] = requests.input.tolist()
        self.output: list[int] = requests.output.tolist()
        self.holdings = Holdings(pool, requests.chains, returns)
        self.priority = None if requests.priority is None else requests.priority.tolist()
        self.swap = swap
        self.ended: Callable[[Any, int], None] | None = None  # told of every request that is over
        self.halted = False  # what has just ended concerns others: `run` returns
        self.blocked = False  # what waits can start at the next event and not before
        self.clock = 0.0
        self.waiting: Line | Ranks = Line() if self.priority is None else Ranks(self.priority)
        self.filling: list[Filling] = []
        self.batch: Batch = batch_of(surface, pool.layout, plain)
        self.log = bytearray()
        self.pending: deque[tuple[float, int]] = deque()
        self.shifts: deque[tuple[float, Surface]] = deque()  # from when on steps take other times
        self._returning: list[tuple[float, int]] = []
        self._spare = int(watermark * pool.capacity)
        self._made: dict[int, int] = {}  # tokens generated before a preemption
        self._swapped: dict[int, tuple[int, int]] = {}
        self._left = 0  # sequences of a padded batch that have not ended
        self._extra = self._stall = 0.0
        self.mixed_seconds = surface.mixed if surface.prompts is None else surface.prompts.seconds
        drafted = surface.drafted
        self._drafted_seconds = self.mixed_seconds if drafted is None else drafted.mixed
        self._speculates = drafted is not None
        self._deaf, self._padded = scheduler.deaf, scheduler.padded
        self._longest = pool.longest()
        self._listens = type(scheduler).deaf is Scheduler.deaf
        if pool.prefixes is not None:
            pool.prefixes.clock = lambda: self.clock
        if self.holdings.tiers is not None:  # who comes back with loaded blocks goes first
            self._listens, self._deaf = True, _never
        self._block_units = pool.layout.levels[0] if pool.layout.grows else 0
        self._block_units *= -(-(1 + pool.layout.ahead) // pool.layout.block)
        self._next = 0  # units that the running sequences take in this iteration
        self._closed = True  # no admission in this iteration
        self._aside = False  # someone's blocks are loaded before it starts

    # What schedulers use

    @property
    def running(self) -> int:
        """Sequences that decode or are prefilled."""
        return self.batch.size + len(self.filling)

    def next_tokens(self) -> int:
        """Tokens of the next waiting request, if nothing is cached."""
        request = self.waiting.first()
        return self.input[request] + self._made.get(request, 0)

    def admit(self) -> Filling | None:
        """The next waiting request starts, if memory allows; None where it does not.

        One that was swapped out decodes on and has nothing left to compute. One whose blocks are loaded first stands
        aside: None, and who is next may be asked for in a plan anew.
        """
        if self._closed or not self.waiting:
            return None
        request = self.waiting.first()
        if request in self._swapped:
            return self._return(request)
        made = self._made.get(request, 0)
        prompt = self.input[request]
        tokens = prompt + made
        hits = self.holdings.take(request, tokens, prompt + self.output[request] - 1, self._kept())
        if hits < 0:
            if hits == LOADING:
                self._aside = True
                heappush(self._returning, (self.holdings.ready(request), self.waiting.pop_first()))
            return None
        self.waiting.pop_first()
        return self._start(request, hits, tokens)

    def _kept(self) -> int:
        """Units that an admission leaves: for the next tokens of those that run, and some to spare."""
        return self._next + self._spare if self.batch.size or self.filling else 0

    def _start(self, request: int, hits: int, tokens: int) -> Filling:
        out = self.outcome
        if out.begun[request] < 0:
            out.begun[request] = self.clock
            out.cached[request] = hits
        else:
            out.recomputed += tokens - hits
        found = Filling(request, hits, tokens - hits)
        self.filling.append(found)
        return found

    def _return(self, request: int) -> Filling | None:
        """A request that was swapped out comes back."""
        cache, steps = self._swapped[request]
        layout, ahead = self.pool.layout, cache + self.batch.tokens(1)
        if not self.holdings.again(request, cache, self._kept() + layout.units(ahead) - layout.units(cache + 1)):
            return None
        units = layout.units(cache)
        self._next += layout.units(ahead) - units
        self.waiting.pop_first()
        del self._swapped[request]
        self._extra += units * self.swap.unit if self.swap else 0.0
        self.batch.join(request, cache, steps)
        self._left += 1
        return Filling(request, cache, 0)

    # Ends

    def _end(self, request: int) -> None:
        """A sequence has all its tokens."""
        self.outcome.generated += self.output[request]
        self._left -= 1
        if not self._padded:
            cache, _ = self.batch.leave(request)
            if self.pool.prefixes is not None:
                self.holdings.share(request, cache)  # its chain may go on with the answer
            self.holdings.free(request, cache, over=True)
        elif self._left:
            self.batch.retire(request)
        else:
            self._dissolve()
        self._done(request)

    def _dissolve(self) -> None:
        """A padded batch is done: all leave."""
        while self.batch.size:
            request = self.batch.newest()
            cache, _ = self.batch.leave(request)
            self.holdings.free(request, cache)

    def _done(self, request: int) -> None:
        self.outcome.end[request] = self.clock
        self._over(request)

    def _over(self, request: int) -> None:
        self.outcome.over += 1
        if self.ended is not None:
            self.ended(self, request)

    def _make_room(self) -> None:
        """Preempts the newest requests until the others can take a step."""
        out = self.outcome
        while self.running > 1 and self.batch.size and self.batch.need(1) > self.pool.free:
            out.preempted += 1
            if self.filling:
                self._unfill(self.filling.pop())
                continue
            request = self._victim()
            cache, steps = self.batch.leave(request)
            self._left -= 1
            self.holdings.free(request, cache)
            self.waiting.back(request)
            if self.swap is None:
                self._made[request] = self.output[request] - steps
            else:
                self._swapped[request] = (cache, steps)
                moved = self.pool.layout.units(cache)
                out.swapped += moved
                self._extra += moved * self.swap.unit

    def _victim(self) -> int:
        """The newest sequence, of the lowest priority."""
        ranks = self.priority
        if ranks is None:
            return self.batch.newest()
        lowest = min(ranks[request] for request in self.batch.members())
        return next(request for request in reversed(self.batch.members()) if ranks[request] == lowest)

    def _unfill(self, filling: Filling) -> None:
        """A request in prefill gives its memory back and starts again later."""
        self.outcome.recomputed -= filling.left  # counted at its next start as a whole
        self.holdings.free(filling.request, filling.before + filling.left)
        self.waiting.back(filling.request)

    def _refuse(self, request: int, reason: str) -> None:
        self.outcome.refused[request] = reason
        self._over(request)


def _never(engine: object) -> bool:
    """Every arrival changes something."""
    return False
