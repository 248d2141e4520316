"""One replica: requests wait, are prefilled, decode and end, iteration by iteration or many at once."""

from heapq import heappop, heappush
from math import inf

from archsim.serving.outcome import ROW
from archsim.serving.replica import Replica
from archsim.serving.waiting import Filling


class Engine(Replica):
    """A replica in time. `run` plays it."""

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

    def run(self, until: float = inf, events: float = inf, once: bool = False) -> None:
        """Plays every iteration that starts before `until`, or until so many events have happened in all.

        `once` plays only as many as go by before anything changes.
        """
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
            if self._speculates:
                batch.choose()
            if quiet and pool.capacity - pool.used >= size * self._block_units:
                self._closed = False
                self._forward(until, self._listens)
            else:
                self._step(until)
            if once:
                return

    def _shift(self) -> None:
        """Steps take other times from now on."""
        self.surface = surface = self.shifts.popleft()[1]
        self.mixed_seconds = surface.mixed if surface.prompts is None else surface.prompts.seconds
        self._drafted_seconds = self.mixed_seconds if surface.drafted is None else surface.drafted.mixed
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
            (self.waiting.back if self.holdings.loading(request) else self.waiting.push)(request)
        elif layout.reserve and total > layout.reserve:
            self._refuse(request, f"{total:,} tokens are more than the {layout.reserve:,} that a sequence reserves")
        else:
            self._refuse(request, f"{total:,} tokens are more than the KV memory holds")

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
        while self._aside and not chunks:
            self._aside = False
            chunks, decode = self.scheduler.plan(self)
        self._aside = False
        if chunks:
            self._mixed(chunks, decode and batch.size > 0)
        elif batch.size:
            self._forward(until, not self._deaf(self))
        elif self.waiting:
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
        gained = drafted = 0
        if decoding:
            gained, drafted = (batch.tokens(steps), steps * batch.drafting) if self._speculates else (steps, 0)
        stall, self.clock = self._stall, clock + seconds
        self.log += ROW.pack(
            clock, seconds, total, stall, steps, decoding, running, waiting, active, prefilled, gained, drafted
        )
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
        seconds = (self._drafted_seconds if size and batch.drafting else self.mixed_seconds)(size, sums, parts)
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
            self.holdings.free(request, self.input[request] + made, over=True)
            self._done(request)
