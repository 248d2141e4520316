"""The decoding sequences of a replica: once by arithmetic over many iterations, once plainly, one by one.

Between two events a batch is constant and its context sums grow by one a sequence and iteration, so that n iterations
are one step of arithmetic. Events are a sequence's end, a sequence that reaches a clip of its context or the last
block that a layer holds, and the iteration that the pool has no blocks for: that one is found from the histogram of
positions modulo the block size. `Plain` does the same by going over all sequences at every iteration.
"""

from collections.abc import Sequence
from heapq import heappop, heappush
from math import inf, sqrt
from typing import Protocol

from archsim.serving.pool import Layout
from archsim.serving.surface import Surface


class Batch(Protocol):
    """What an engine asks of its decoding sequences."""

    @property
    def size(self) -> int:
        """Sequences, padding included."""

    @property
    def rows(self) -> int:
        """Tokens of the next iteration: a sequence has one, and its drafts."""

    @property
    def drafting(self) -> bool:
        """Whether the next iteration verifies drafts."""

    @property
    def discarded(self) -> int:
        """Tokens that iterations gave beyond the ends of sequences."""

    def choose(self) -> None:
        """Decides whether the next iterations verify drafts, if sequences have joined or left since."""

    def tokens(self, steps: int) -> int:
        """Tokens that each sequence gets from so many iterations."""

    def join(self, request: int, cache: int, steps: int) -> None:
        """A sequence with `cache` tokens starts to decode for `steps` tokens."""

    def leave(self, request: int) -> tuple[int, int]:
        """Takes a sequence out; its tokens in the cache and those it still had to get."""

    def newest(self) -> int:
        """The sequence that joined last."""

    def members(self) -> Sequence[int]:
        """All sequences in the order in which they joined."""

    def sums(self) -> Sequence[float]:
        """Clipped context sums of the next iteration."""

    def need(self, steps: int) -> int:
        """Units of KV memory that so many iterations take."""

    def stretch(self, free: int, time: float, once: bool) -> tuple[int, float, int]:
        """How many iterations go by before anything changes, their seconds, and the units of memory they take.

        They need no more than `free` units; the last is the first that ends no sooner than in `time` seconds.
        """

    def advance(self, steps: int) -> list[int]:
        """Runs iterations, and the sequences that end with the last, which stay until they leave."""

    def retire(self, request: int) -> None:
        """A sequence that has ended stays as padding: it takes no more memory."""

    def use(self, surface: Surface) -> None:
        """Step times are those of another surface, with the same clips."""


class Fast:
    """Fast-forward: sums, heaps and a histogram."""

    def __init__(self, surface: Surface, layout: Layout) -> None:
        self.size = self.discarded = 0
        self._k = 0
        self._fixed, self._slope = surface.fixed, surface.slope
        self._clips = list(zip(surface.clips, surface.beyond, strict=True))
        self._sums: list[float] = [0] * len(surface.clips)
        self._growth: list[float] = [0] * len(surface.clips)
        self._layout, self._ahead = layout, layout.ahead
        self._block = layout.block if layout.grows else 0
        self._phases = [[0] * layout.block for _ in layout.levels]
        self._counts = [0] * len(layout.levels)
        self._cycle = 0  # units that a block size of iterations takes
        self._flat = self._phases[0] if len(self._phases) == 1 else None  # where all layers hold alike
        self._weight = layout.levels[0]
        self._ends: list[tuple[int, int]] = []
        self._due: dict[int, int] = {}
        self._marks: list[tuple[int, int, int, int]] = []  # iteration, sequence, which (-1: blocks), when it joined
        self._joined: dict[int, tuple[int, int]] = {}

    @property
    def rows(self) -> int:
        """See Batch."""
        return self.size

    @property
    def drafting(self) -> bool:
        """See Batch."""
        return False

    def choose(self) -> None:
        """See Batch."""

    def tokens(self, steps: int) -> int:
        """See Batch."""
        return steps

    def join(self, request: int, cache: int, steps: int) -> None:
        """See Batch."""
        k = self._k
        self.size += 1
        self._joined[request] = (k, cache)
        self._due[request] = k + steps
        heappush(self._ends, (k + steps, request))
        context = cache + 1
        for index, (clip, beyond) in enumerate(self._clips):
            if context <= clip:
                self._sums[index] += context
                self._growth[index] += 1
                if clip < context + steps + self._ahead or (
                    clip < inf and not self._block
                ):  # padding goes on beyond its end
                    heappush(self._marks, (k + int(clip) + 1 - context, request, index, k))
            else:
                self._sums[index] += beyond
        if self._flat is not None and self._block:
            self._flat[(cache + self._ahead - k) % self._block] += 1
            self._cycle += self._weight
        elif self._block:
            self._enter(request, cache, steps, k)

    def _enter(self, request: int, cache: int, steps: int, joined: int) -> None:
        """Into the histogram, and a mark where its next level of blocks begins."""
        level = self._layout.level(cache)
        self._count(cache, level, 1)
        if level + 1 < len(self._counts):
            last = self._layout.last(level)  # tokens of the last block that this level still grows by
            if last <= cache + steps + self._ahead:
                heappush(self._marks, (self._k + last - cache, request, -1, joined))

    def _count(self, cache: int, level: int, change: int) -> None:
        """A sequence enters or leaves the histogram of its level."""
        self._phases[level][(cache + self._ahead - self._k) % self._block] += change
        self._counts[level] += change
        self._cycle += change * self._layout.levels[level]

    def _uncount(self, cache: int) -> None:
        """A sequence takes no more blocks."""
        if self._flat is not None:
            self._flat[(cache + self._ahead - self._k) % self._block] -= 1
            self._cycle -= self._weight
        else:
            self._count(cache, self._layout.level(cache), -1)

    def leave(self, request: int) -> tuple[int, int]:
        """See Batch."""
        start, first = self._joined.pop(request)
        cache = first + self._k - start
        context = cache + 1
        self.size -= 1
        for index, (clip, beyond) in enumerate(self._clips):
            if context <= clip:
                self._sums[index] -= context
                self._growth[index] -= 1
            else:
                self._sums[index] -= beyond
        end = self._due.pop(request, None)
        if end is None:
            return cache, 0
        if self._block:
            self._uncount(cache)
        return cache, end - self._k

    def retire(self, request: int) -> None:
        """See Batch."""
        start, first = self._joined[request]
        del self._due[request]
        if self._block:
            self._uncount(first + self._k - start)

    def use(self, surface: Surface) -> None:
        """See Batch."""
        self._fixed, self._slope = surface.fixed, surface.slope

    def newest(self) -> int:
        """See Batch."""
        return next(reversed(self._joined))

    def members(self) -> Sequence[int]:
        """See Batch."""
        return list(self._joined)

    def sums(self) -> Sequence[float]:
        """See Batch."""
        return self._sums

    def stretch(self, free: int, time: float, once: bool) -> tuple[int, float, int]:
        """See Batch."""
        each, more = self._price()
        if once or time <= each:
            return 1, each, self.need(1)
        ends, due = self._ends, self._due
        while due.get(ends[0][1]) != ends[0][0]:
            heappop(ends)
        steps = ends[0][0] - self._k
        if self._marks:
            steps = min(steps, max(self._marks[0][0] - self._k, 1))
        if self._block and free < (steps // self._block + 1) * self._cycle:
            steps = max(self._affordable(steps, free), 1)
        half = more / 2.0
        seconds = steps * (each + half * (steps - 1))
        if seconds > time:
            steps = few_enough(time, each, half, steps)
            seconds = steps * (each + half * (steps - 1))
        return steps, seconds, self.need(steps)

    def _price(self) -> tuple[float, float]:
        """Seconds of the next iteration, and what they grow by with a token of every sequence."""
        size = self.size
        each, more = self._fixed[size], 0.0
        for slope, summed, growth in zip(self._slope, self._sums, self._growth):  # noqa: B905  # hot
            gain = slope[size]
            each += gain * summed
            more += gain * growth
        return each, more

    def need(self, steps: int) -> int:
        """See Batch."""
        block = self._block
        if not block:
            return 0
        if steps == 1 and self._flat is not None:
            return self._flat[-self._k % block] * self._weight
        cycles, rest = divmod(steps, block)
        total = cycles * self._cycle
        if rest:
            low = (1 - self._k - rest) % block
            over = low + rest - block
            for phases, weight in zip(self._phases, self._layout.levels):  # noqa: B905  # hot
                total += weight * sum(phases[low : low + rest])
                if over > 0:
                    total += weight * sum(phases[:over])
        return total

    def _affordable(self, steps: int, free: int) -> int:
        """How many of so many iterations `free` units of memory are enough for."""
        cycles = free // self._cycle
        if steps < cycles * self._block:
            return steps
        done, free = cycles * self._block, free - cycles * self._cycle
        while done < steps:
            place = (-self._k - done) % self._block
            for phases, weight in zip(self._phases, self._layout.levels, strict=True):
                free -= weight * phases[place]
            if free < 0:
                break
            done += 1
        return done

    def advance(self, steps: int) -> list[int]:
        """See Batch."""
        self._k = k = self._k + steps
        for index, growth in enumerate(self._growth):
            self._sums[index] += growth * steps
        ends, due = self._ends, self._due
        ended: list[int] = []
        while ends and ends[0][0] <= k:
            end, request = heappop(ends)
            if due.get(request) == end and ended[-1:] != [request]:  # it may have left and come back with the same end
                ended.append(request)
        if self._marks and self._marks[0][0] <= k:
            self._pass_marks()
        return ended

    def _pass_marks(self) -> None:
        """Sequences whose context reached a clip, or whose cache the last block of a level."""
        while self._marks and self._marks[0][0] <= self._k:
            mark, request, index, joined = heappop(self._marks)
            known = self._joined.get(request)
            if known is None or known[0] != joined:  # it has left, and may have come back since
                continue
            cache = known[1] + self._k - joined
            if index >= 0:
                self._sums[index] += self._clips[index][1] - (cache + 1)
                self._growth[index] -= 1
            elif request in self._due:
                self._count(cache, self._layout.level(known[1] + mark - joined - 1), -1)
                self._enter(request, cache, self._due[request] - self._k, joined)


class Plain:
    """The same, sequence by sequence and iteration by iteration."""

    def __init__(self, surface: Surface, layout: Layout) -> None:
        self.discarded = 0
        self._surface = surface
        self._clips = list(zip(surface.clips, surface.beyond, strict=True))
        self._layout = layout
        self._cache: dict[int, int] = {}
        self._left: dict[int, int] = {}

    @property
    def size(self) -> int:
        """Sequences, padding included."""
        return len(self._cache)

    @property
    def rows(self) -> int:
        """See Batch."""
        return self.size

    @property
    def drafting(self) -> bool:
        """See Batch."""
        return False

    def choose(self) -> None:
        """See Batch."""

    def tokens(self, steps: int) -> int:
        """See Batch."""
        return steps

    def join(self, request: int, cache: int, steps: int) -> None:
        """See Batch."""
        self._cache[request], self._left[request] = cache, steps

    def leave(self, request: int) -> tuple[int, int]:
        """See Batch."""
        return self._cache.pop(request), max(self._left.pop(request), 0)

    def retire(self, request: int) -> None:
        """See Batch."""
        self._left[request] = -1

    def use(self, surface: Surface) -> None:
        """See Batch."""
        self._surface = surface

    def newest(self) -> int:
        """See Batch."""
        return next(reversed(self._cache))

    def members(self) -> Sequence[int]:
        """See Batch."""
        return list(self._cache)

    def sums(self) -> Sequence[float]:
        """See Batch."""
        contexts = [cache + 1 for cache in self._cache.values()]
        return [sum(c if c <= clip else beyond for c in contexts) for clip, beyond in self._clips]

    def stretch(self, free: int, time: float, once: bool) -> tuple[int, float, int]:
        """See Batch."""
        return 1, self._surface.decode(self.size, self.sums()), self.need(1)

    def need(self, steps: int) -> int:
        """See Batch."""
        if not self._layout.grows:
            return 0
        now = [self._cache[request] for request, left in self._left.items() if left >= 0]
        return sum(self._layout.units(cache + steps) - self._layout.units(cache) for cache in now)

    def advance(self, steps: int) -> list[int]:
        """See Batch."""
        ended = []
        for request in self._cache:
            self._cache[request] += steps
            if self._left[request] >= 0:
                self._left[request] -= steps
                if self._left[request] <= 0:
                    ended.append(request)
        return sorted(ended)


def few_enough(time: float, each: float, half: float, most: int) -> int:
    """The fewest iterations that end no sooner than in `time`, up to `most`: n each + half n (n - 1)."""
    linear = each - half
    steps = int(2.0 * time / (linear + sqrt(linear * linear + 4.0 * half * time)))
    while steps * (each + half * (steps - 1)) < time:
        steps += 1
    while steps > 1 and (steps - 1) * (each + half * (steps - 2)) >= time:
        steps -= 1
    return min(steps, most)
