"""One replica: requests wait, are prefilled, decode and end, iteration by iteration or many at once."""

from array import array as numbers
from collections import deque
from collections.abc import Callable
from heapq import heappop, heappush
from math import inf

from archsim.serving.batch import Batch, Fast, Plain
from archsim.serving.holdings import Holdings
from archsim.serving.outcome import Outcome, Swap
from archsim.serving.pool import Pool
from archsim.serving.schedulers import Scheduler
from archsim.serving.surface import Surface
from archsim.serving.waiting import Filling, Line, Ranks
from archsim.workload.requests import Requests


class Engine:
    """A replica in time. `run` plays it; `outcome` and `log` say what happened.

    `log` holds, for every stretch of equal iterations, the columns COLUMNS one after another.
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
    ) -> None:
        self.surface, self.pool, self.scheduler, self.outcome = surface, pool, scheduler, outcome
        self.input: list[int] = requests.input.tolist()
        self.output: list[int] = requests.output.tolist()
        self.holdings = Holdings(pool, requests.chains)
        self.priority = None if requests.priority is None else requests.priority.tolist()
        self.swap = swap
        self.ended: Callable[[Engine, int], None] | None = None  # told of every request that is over
        self.halted = False  # what has just ended concerns others: `run` returns
        self.blocked = False  # what waits can start at the next event and not before
        self.clock = 0.0
        self.waiting: Line | Ranks = Line() if self.priority is None else Ranks(self.priority)
        self.filling: list[Filling] = []
        self.batch: Batch = (Plain if plain else Fast)(surface, pool.layout)
        self.log = numbers("d")
        self.pending: deque[tuple[float, int]] = deque()
        self.shifts: deque[tuple[float, Surface]] = deque()  # from when on steps take other times
        self._returning: list[tuple[float, int]] = []
        self._spare = int(watermark * pool.capacity)
        self._made: dict[int, int] = {}  # tokens generated before a preemption
        self._swapped: dict[int, tuple[int, int]] = {}
        self._left = 0  # sequences of a padded batch that have not ended
        self._extra = self._stall = 0.0
        self.mixed_seconds = surface.mixed if surface.prompts is None else surface.prompts.seconds
        self._deaf, self._padded = scheduler.deaf, scheduler.padded
        self._longest = pool.longest()
        self._listens = type(scheduler).deaf is Scheduler.deaf
        self._block_units = pool.layout.levels[0] if pool.layout.grows else 0
        self._next = 0  # units that the running sequences take in this iteration
        self._closed = True  # no admission in this iteration

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

        One that was swapped out decodes on and has nothing left to compute.
        """
        if self._closed:
            return None
        request = self.waiting.first()
        if request in self._swapped:
            return self._return(request)
        made = self._made.get(request, 0)
        prompt = self.input[request]
        tokens = prompt + made
        hits = self.holdings.take(request, tokens, prompt + self.output[request] - 1, self._kept())
        if hits < 0:
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
        if not self.holdings.again(request, cache, self._kept()):
            return None
        units = self.pool.layout.units(cache)
        self._next += self.pool.layout.units(cache + 1) - units
        self.waiting.pop_first()
        del self._swapped[request]
        self._extra += units * self.swap.unit if self.swap else 0.0
        self.batch.join(request, cache, steps)
        self._left += 1
        return Filling(request, cache, 0)

    # Time

    def next_time(self) -> float:
        """When the next request comes to the scheduler."""
        if self._returning:
            later = self._returning[0][0]
            return min(later, self.pending[0][0]) if self.pending else later
        return self.pending[0][0] if self.pending else inf

    def horizon(self) -> float:
        """A time before which no request ends, if nothing more arrives."""
        if self.blocked:
            return self.next_time()
        if self.waiting or self.filling:
            return self.clock
        if not self.batch.size:
            return self.next_time()
        _, seconds, _ = self.batch.stretch(self.pool.free, inf, False)
        found = min(self.next_time(), self.clock + self._extra + seconds)
        return min(found, self.shifts[0][0]) if self.shifts else found

    def expect(self, time: float, request: int) -> None:
        """A request will come at a time that is not past."""
        self._at(time + self.surface.arrival, request)

    def _at(self, time: float, request: int) -> None:
        """An event; a negative number is one of a kind of its own."""
        heappush(self._returning, (time, request))

    def run(self, until: float = inf, events: float = inf) -> None:
        """Plays every iteration that starts before `until`, or until so many events have happened in all."""
        out, waiting, pending, pool, batch = self.outcome, self.waiting, self.pending, self.pool, self.batch
        self.halted = False
        while True:
            if self.halted:
                return
            clock = self.clock
            if self.shifts and self.shifts[0][0] <= clock:
                self._shift()
            if self._returning or (pending and pending[0][0] <= clock):
                self._arrive()
            quiet = not waiting and not self.filling  # then any scheduler decodes
            size = batch.size
            idle = (quiet or self.blocked) and not size
            if idle:
                clock = self.next_time()
            if clock >= until:
                return
            if idle:
                self.clock = clock
                self._arrive()
                continue
            if out.events >= events:
                out.stopped = f"stopped after {out.events:,} events"
                return
            out.events += 1
            if quiet and pool.capacity - pool.used >= size * self._block_units:
                self._closed = False
                self._forward(until, self._listens)
            else:
                self._step(until)

    def _shift(self) -> None:
        """Steps take other times from now on."""
        self.surface = surface = self.shifts.popleft()[1]
        self.mixed_seconds = surface.mixed if surface.prompts is None else surface.prompts.seconds
        self.batch.use(surface)

    def _arrive(self) -> None:
        clock, pending, returning = self.clock, self.pending, self._returning
        while returning and returning[0][0] <= clock:
            while pending and pending[0] <= returning[0]:
                self._enter(pending.popleft()[1])
            self._enter(heappop(returning)[1])
        while pending and pending[0][0] <= clock:
            self._enter(pending.popleft()[1])

    def _enter(self, request: int) -> None:
        """A request reaches the scheduler; one that can never fit is refused."""
        layout = self.pool.layout
        total = self.input[request] + self.output[request] - 1
        if total <= self._longest:
            self.waiting.push(request)
        elif layout.reserve and total > layout.reserve:
            self._refuse(request, f"{total:,} tokens are more than the {layout.reserve:,} that a sequence reserves")
        else:
            self._refuse(request, f"{total:,} tokens are more than the KV memory holds")

    def _refuse(self, request: int, reason: str) -> None:
        self.outcome.refused[request] = reason
        self._over(request)

    def _step(self, until: float) -> None:
        """One iteration, or as many as go by before anything changes."""
        batch, pool = self.batch, self.pool
        self._closed = False
        self._next = 0
        if batch.size:
            self._next = batch.need(1)
            if self._next > pool.free:
                self._closed = True
                self._make_room()
        chunks, decode = self.scheduler.plan(self)
        if chunks:
            self._mixed(chunks, decode and batch.size > 0)
        elif batch.size:
            self._forward(until, not self._deaf(self))
        else:
            self._stuck()

    def _stuck(self) -> None:
        """Nothing runs, and nothing that waits can start."""
        self._refuse(self.waiting.pop_first(), "the scheduler never starts it")

    def _forward(self, until: float, listening: bool) -> None:
        """Decode alone, for as many iterations as nothing changes; what arrives may be such a change."""
        batch = self.batch
        if listening and (self.pending or self._returning):
            later = self.next_time() if self._returning else self.pending[0][0]
            if later < until:
                until = later
        if self.shifts and self.shifts[0][0] < until:
            until = self.shifts[0][0]
        time = until - self.clock - self._extra
        sums = batch.sums()
        total = sums[-1] if sums else 0.0
        steps, seconds, units = batch.stretch(self.pool.free, time, self._closed)
        self._ahead(seconds + self._extra, steps, batch.size, 0, total, units)

    def _ahead(self, seconds: float, steps: int, decoding: int, prefilled: int, total: float, units: int) -> None:
        """Time goes on; decoding sequences get a token each iteration, and those that end leave."""
        pool, batch = self.pool, self.batch
        if units:
            pool.take(units)
        size = batch.size
        active = pool.used if pool.prefixes is None else pool.active
        clock, running, waiting = self.clock, size + len(self.filling), len(self.waiting)
        self.log.extend((clock, seconds, steps, decoding, running, waiting, active, prefilled, total, self._stall))
        self.clock = clock + seconds
        self._extra = 0.0
        if decoding:
            self._stall = 0.0
            for request in batch.advance(steps):
                self._end(request)
        elif size:
            self._stall += seconds

    def _mixed(self, chunks: list[tuple[Filling, int]], decode: bool) -> None:
        """One iteration with prefill."""
        batch = self.batch
        size = batch.size if decode else 0
        sums = batch.sums()
        if len(chunks) == 1:
            filling, prefilled = chunks[0]
            parts = [(prefilled, filling.before)]
        else:
            parts = [(tokens, filling.before) for filling, tokens in chunks]
            prefilled = sum([tokens for tokens, _ in parts])
        seconds = self.mixed_seconds(size, sums, parts)
        self.outcome.prefilled += prefilled
        total = sums[-1] if size and sums else 0.0
        self._ahead(seconds + self._extra, 1, size, prefilled, total, self._next if size else 0)
        complete = []
        for filling, tokens in chunks:
            filling.before += tokens
            filling.left -= tokens
            if not filling.left:
                complete.append(filling.request)
        if complete:
            self.filling = [filling for filling in self.filling if filling.left] if len(self.filling) > 1 else []
            for request in complete:
                self._filled(request)

    def _filled(self, request: int) -> None:
        """A prompt is computed: its blocks can be shared, its first token is there, and it decodes."""
        out = self.outcome
        made = self._made.pop(request, 0)
        if self.pool.prefixes is not None:
            self.holdings.share(request, self.input[request])
        if not made:
            out.first[request] = self.clock
        self._left += 1
        left = self.output[request] - made - 1
        if left:
            self.batch.join(request, self.input[request] + made, left)
        else:
            out.generated += self.output[request]
            self._left -= 1
            self.holdings.free(request, self.input[request] + made)
            self._done(request)

    # Ends

    def _end(self, request: int) -> None:
        """A sequence has all its tokens."""
        self.outcome.generated += self.output[request]
        self._left -= 1
        if not self._padded:
            self.holdings.free(request, self.batch.leave(request)[0])
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
