"""A replica in the common case, with fewer steps between events: no prefix cache, drafts, padding or priorities.

Every token of every layer is cached in blocks, and prompts join the decoding sequences. What is not common even there,
such as several prompts at once, one longer than an iteration, or memory that is short, is left to `Engine`.
"""

from typing import Any

from archsim.serving.engine import Engine
from archsim.serving.even import Even
from archsim.serving.outcome import ROW
from archsim.serving.pool import Pool
from archsim.serving.schedulers import Continuous, Scheduler
from archsim.serving.surface import Surface
from archsim.serving.waiting import Line
from archsim.workload.requests import Requests

pack = ROW.pack


class Express(Engine):
    """Plays what `Engine` plays, to the same numbers."""

    batch: Even
    waiting: Line

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        layout = self.pool.layout
        self._block, self._weight, self._state = layout.block, layout.levels[0], layout.state
        self._most, self._budget = self.scheduler.max_batch, self.scheduler.max_tokens

    @staticmethod
    def suits(requests: Requests, surface: Surface, pool: Pool, scheduler: Scheduler) -> bool:
        """Whether this is the common case."""
        plain = requests.priority is None and pool.prefixes is None and pool.layout.grows
        known = type(scheduler) in (Scheduler, Continuous) and not scheduler.padded
        return plain and known and surface.drafted is None and Even.suits(surface, pool.layout)

    def _arrive(self) -> None:
        if self._returning:
            super()._arrive()
            return
        clock, pending = self.clock, self.pending
        while pending and pending[0][0] <= clock:
            request = pending.popleft()[1]
            if self.input[request] + self.output[request] <= self._longest:
                self.waiting.append(request)
            else:  # it hardly fits, or not at all
                self._enter(request)

    def _step(self, until: float) -> None:
        """One iteration; here that of a prompt which comes alone and fits in, if it has not been preempted before."""
        batch, pool, out, waiting = self.batch, self.pool, self.outcome, self.waiting
        if len(waiting) != 1 or self.filling or out.begun[waiting[0]] >= 0:
            super()._step(until)
            return
        request, size = waiting[0], batch.size
        tokens = self.input[request]
        units = self._state - (-tokens // self._block) * self._weight
        kept = self._spare if size else 0
        if size:
            units += batch.need(1)
        if size >= self._most or size + tokens > self._budget or pool.used + units + kept > pool.capacity:
            super()._step(until)
            return
        waiting.popleft()
        pool.used += units
        pool.taken += units
        out.begun[request] = self.clock
        out.prefilled += tokens
        sums = batch.summed
        self._pass(self.mixed_seconds(size, sums, [(tokens, 0)]), 1, sums[0], tokens)
        out.first[request] = self.clock
        left = self.output[request] - 1
        if left:
            batch.join(request, tokens, left)
        else:
            self._gone(request, tokens)

    def _forward(self, until: float, listening: bool) -> None:
        batch, pool = self.batch, self.pool
        if listening and (self.pending or self._returning):
            later = self.next_time() if self._returning else self.pending[0][0]
            if later < until:
                until = later
        if self.shifts and self.shifts[0][0] < until:
            until = self.shifts[0][0]
        total = batch.summed[0]
        time = until - self.clock - self._extra
        steps, seconds, units = batch.stretch(pool.capacity - pool.used, time, self._closed)
        pool.used += units
        pool.taken += units
        self._pass(seconds, steps, total, 0)

    def _pass(self, seconds: float, steps: int, total: float, prefilled: int) -> None:
        """Time goes on, all sequences get a token each iteration, none ever stalls, and those that end leave."""
        batch, clock = self.batch, self.clock
        size = batch.size
        seconds += self._extra
        self.clock = clock + seconds
        self._extra = 0.0
        running = size + (1 if prefilled else len(self.filling))
        gained, used = (steps if size else 0), self.pool.used
        self.log += pack(
            clock, seconds, total, 0.0, steps, size, running, len(self.waiting), used, prefilled, gained, 0
        )
        if size:
            for request in batch.go(steps):
                self._gone(request, self.input[request] + self.output[request] - 1)

    def _gone(self, request: int, cache: int) -> None:
        """A sequence that has left has all its tokens."""
        pool, out = self.pool, self.outcome
        units = self._state - (-cache // self._block) * self._weight
        pool.used -= units
        pool.given += units
        out.generated += self.output[request]
        out.end[request] = self.clock
        self._over(request)
