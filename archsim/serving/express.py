"""A replica in the common case, with fewer steps between events: no prefix cache, drafts, padding or priorities.

Every token of every layer is cached in blocks, and prompts join the decoding sequences. What is not common even there,
such as several prompts at once, one longer than an iteration, or memory that is short, is left to `Engine`.
"""

from archsim.serving.engine import Engine
from archsim.serving.even import Even
from archsim.serving.outcome import ROW
from archsim.serving.pool import Pool
from archsim.serving.schedulers import Continuous, Scheduler
from archsim.serving.surface import Surface
from archsim.workload.requests import Requests


class Express(Engine):
    """Plays what `Engine` plays, to the same numbers."""

    batch: Even

    @staticmethod
    def suits(requests: Requests, surface: Surface, pool: Pool, scheduler: Scheduler) -> bool:
        """Whether this is the common case."""
        plain = requests.priority is None and pool.prefixes is None and pool.layout.grows
        known = type(scheduler) in (Scheduler, Continuous) and not scheduler.padded
        return plain and known and surface.drafted is None and Even.suits(surface, pool.layout)

    def _step(self, until: float) -> None:
        """One iteration; here that of a prompt which comes alone and fits in, if it has not been preempted before."""
        batch, pool, out, scheduler = self.batch, self.pool, self.outcome, self.scheduler
        request, size = self.waiting.first() if self.waiting else -1, batch.size
        if len(self.waiting) != 1 or self.filling or out.begun[request] >= 0 or size >= scheduler.max_batch:
            super()._step(until)
            return
        tokens, more = self.input[request], batch.need(1) if size else 0
        units = pool.layout.units(tokens) + more
        if size + tokens > scheduler.max_tokens or pool.used + units + (self._spare if size else 0) > pool.capacity:
            super()._step(until)
            return
        self.waiting.pop_first()
        pool.used += units
        pool.taken += units
        out.begun[request] = self.clock
        out.prefilled += tokens
        sums = batch.sums()
        total = sums[0] if size else 0
        self._pass(self.mixed_seconds(size, sums, [(tokens, 0)]), 1, total, tokens)
        out.first[request] = self.clock
        left = self.output[request] - 1
        if left:
            batch.join(request, tokens, left)
        else:
            self._gone(request, tokens)

    def _forward(self, until: float, listening: bool) -> None:
        batch, pool = self.batch, self.pool
        if listening and (self.pending or self._returning):
            until = min(until, self.next_time() if self._returning else self.pending[0][0])
        if self.shifts and self.shifts[0][0] < until:
            until = self.shifts[0][0]
        total = batch.sums()[0]
        time = until - self.clock - self._extra
        steps, seconds, units = batch.stretch(pool.capacity - pool.used, time, self._closed)
        pool.used += units
        pool.taken += units
        self._pass(seconds, steps, total, 0)

    def _pass(self, seconds: float, steps: int, total: float, prefilled: int) -> None:
        """Time goes on, all sequences get a token each iteration, and those that end leave."""
        batch, clock = self.batch, self.clock
        size = batch.size
        seconds += self._extra
        running = size + 1 if prefilled else size + len(self.filling)
        self.log += ROW.pack(
            *(clock, seconds, total, self._stall),
            *(steps, size, running, len(self.waiting), self.pool.used, prefilled, steps if size else 0, 0),
        )
        self.clock = clock + seconds
        self._extra = 0.0
        if size:
            self._stall = 0.0
            for request in batch.go(steps):
                self._gone(request, self.input[request] + self.output[request] - 1)

    def _gone(self, request: int, cache: int) -> None:
        """A sequence that has left has all its tokens."""
        pool, out = self.pool, self.outcome
        units = pool.layout.units(cache)
        pool.used -= units
        pool.given += units
        out.generated += self.output[request]
        self._done(request)
