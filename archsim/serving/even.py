"""Fast-forward where all layers cache every token of a sequence and none clips its context: the common case.

One context sum, one histogram of positions in blocks, no marks: `Fast` does the same for any layers, at twice the cost.
"""

from collections.abc import Sequence
from heapq import heapify, heappop, heappush
from math import inf

from archsim.serving.batch import few_enough
from archsim.serving.pool import Layout
from archsim.serving.surface import Surface

BITS = 40  # an end in the heap is (iteration << BITS) + request: whole numbers compare twice as fast as pairs
REQUEST = (1 << BITS) - 1
NONE: list[int] = []


class Even:
    """The decoding sequences of a replica; see Batch."""

    drafting = False  # see Batch, as for the other members
    discarded = 0

    def __init__(self, surface: Surface, layout: Layout) -> None:
        self.size = 0
        self._fixed, self._slope = surface.fixed, surface.slope[0]
        self._k = 0  # iterations that have gone by
        self.summed: list[float] = [0]
        self._block = layout.block if layout.grows else 0
        self._weight = layout.levels[0]
        self._phases = [0] * layout.block
        self._cycle = 0  # units that a block size of iterations takes
        self._ends: list[int] = []
        self._held: dict[int, tuple[int, int]] = {}  # the iteration at which it ends, and its tokens in the cache then
        self._padding: set[int] = set()

    @staticmethod
    def suits(surface: Surface, layout: Layout) -> bool:
        """Whether a deployment is the common case."""
        return surface.clips == (inf,) and len(layout.levels) == 1 and not layout.ahead

    @property
    def rows(self) -> int:
        """See Batch."""
        return self.size

    def choose(self) -> None:
        """See Batch."""

    def tokens(self, steps: int) -> int:
        """See Batch."""
        return steps

    def join(self, request: int, cache: int, steps: int) -> None:
        """See Batch."""
        k = self._k
        self.size += 1
        self.summed[0] += cache + 1
        self._held[request] = k + steps, cache + steps
        heappush(self._ends, (k + steps << BITS) + request)
        block = self._block
        if block:
            self._phases[(cache - k) % block] += 1
            self._cycle += self._weight

    def leave(self, request: int) -> tuple[int, int]:
        """See Batch."""
        end, final = self._held.pop(request)
        left = end - self._k
        cache = final - left
        self.size -= 1
        self.summed[0] -= cache + 1
        if request in self._padding:
            self._padding.remove(request)
            return cache, 0
        if left:  # before its end: rare
            self._ends.remove((end << BITS) + request)
            heapify(self._ends)
        if self._block:
            self._uncount(final - end)
        return cache, left

    def _uncount(self, phase: int) -> None:
        """A sequence takes no more blocks."""
        self._phases[phase % self._block] -= 1
        self._cycle -= self._weight

    def retire(self, request: int) -> None:
        """See Batch."""
        end, final = self._held[request]
        self._padding.add(request)
        if self._block:
            self._uncount(final - end)

    def use(self, surface: Surface) -> None:
        """See Batch."""
        self._fixed, self._slope = surface.fixed, surface.slope[0]

    def newest(self) -> int:
        """See Batch."""
        return next(reversed(self._held))

    def members(self) -> Sequence[int]:
        """See Batch."""
        return list(self._held)

    def sums(self) -> Sequence[float]:
        """See Batch."""
        return self.summed

    def stretch(self, free: int, time: float, once: bool) -> tuple[int, float, int]:
        """See Batch."""
        size = self.size
        gain = self._slope[size]
        each = self._fixed[size] + gain * self.summed[0]
        if once or time <= each:
            return 1, each, self.need(1)
        steps = (self._ends[0] >> BITS) - self._k
        block = self._block
        if block and free < (steps // block + 1) * self._cycle:
            steps = max(self._affordable(steps, free), 1)
        half = gain * size / 2.0
        seconds = steps * (each + half * (steps - 1))
        if seconds > time:
            steps = few_enough(time, each, half, steps)
            seconds = steps * (each + half * (steps - 1))
        return steps, seconds, self.need(steps) if block else 0

    def need(self, steps: int) -> int:
        """See Batch."""
        block = self._block
        if not block:
            return 0
        phases = self._phases
        if steps == 1:
            return phases[-self._k % block] * self._weight
        cycles, rest = divmod(steps, block)
        low = (1 - self._k - rest) % block
        found = sum(phases[low : low + rest])
        if low + rest > block:
            found += sum(phases[: low + rest - block])
        return cycles * self._cycle + found * self._weight

    def _affordable(self, steps: int, free: int) -> int:
        """How many of so many iterations `free` units of memory are enough for."""
        cycles, free = divmod(free, self._cycle)
        done = cycles * self._block
        while done < steps:
            free -= self._phases[(-self._k - done) % self._block] * self._weight
            if free < 0:
                break
            done += 1
        return min(done, steps)

    def go(self, steps: int) -> list[int]:
        """Runs iterations; the sequences that end with the last, which leave."""
        self._k = k = self._k + steps
        self.summed[0] += self.size * steps
        ends, block = self._ends, self._block
        if not ends or ends[0] >> BITS > k:
            return NONE
        ended = []
        while ends and ends[0] >> BITS <= k:
            request = heappop(ends) & REQUEST
            final = self._held.pop(request)[1]
            self.size -= 1
            self.summed[0] -= final + 1
            if block:
                self._phases[(final - k) % block] -= 1
                self._cycle -= self._weight
            ended.append(request)
        return ended

    def advance(self, steps: int) -> list[int]:
        """See Batch."""
        self._k = k = self._k + steps
        self.summed[0] += self.size * steps
        ends = self._ends
        if not ends or ends[0] >> BITS > k:
            return NONE
        ended = []
        while ends and ends[0] >> BITS <= k:
            ended.append(heappop(ends) & REQUEST)
        return ended
