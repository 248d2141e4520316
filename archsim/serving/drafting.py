"""Decoding sequences that verify drafts: steps that give each of them several tokens.

All sequences of a replica move on alike. After n steps with drafts each has floor(rest + n E) tokens more, where E is
the mean of tokens a step and `rest` what was left over before; both are whole multiples of 2^-16, so that many steps
are the same arithmetic as one by one. A sequence that ends within a step discards what the step gave beyond its end.

Whether a batch verifies drafts is decided when its sequences change, by the step times of both kinds.
"""

from collections.abc import Sequence
from heapq import heappop

from archsim.serving.batch import Batch, Fast, Plain, few_enough
from archsim.serving.even import Even
from archsim.serving.pool import Layout
from archsim.serving.surface import Drafted, Surface

BITS = 16  # of the fraction of a token
ONE = 1 << BITS


class Pace:
    """How far a step takes every sequence: one token, or E with drafts."""

    def __init__(self, surface: Surface, drafted: Drafted) -> None:
        self._plain, self._drafted = surface, drafted
        self._gain = round(drafted.gain * ONE)
        self._each = ONE
        self._rest = 0
        self.stale = True
        self.drafting = False

    def use(self, surface: Surface) -> None:
        """Step times of both kinds are others from now on."""
        self._plain, self._drafted = surface, surface.drafted or self._drafted
        self.stale = True

    def choose(self, size: int, sums: Sequence[float]) -> Surface:
        """The step times of a batch whose sequences have changed, with drafts if these pay."""
        self.stale = False
        self.drafting = self._drafted.pays(self._plain, size, sums)
        self._each = self._gain if self.drafting else ONE
        return self._drafted.surface if self.drafting else self._plain

    def tokens(self, steps: int) -> int:
        """Tokens that each sequence gets from the next steps."""
        return (self._rest + steps * self._each) >> BITS

    def take(self, steps: int) -> int:
        """Those tokens; the steps are done."""
        whole = self._rest + steps * self._each
        self._rest = whole & (ONE - 1)
        return whole >> BITS

    def reach(self, tokens: int) -> int:
        """The fewest steps that give so many tokens, at least one."""
        return max(-((self._rest - (tokens << BITS)) // self._each), 1)

    def within(self, tokens: int) -> int:
        """The most steps that give no more than so many tokens."""
        return (((tokens + 1) << BITS) - 1 - self._rest) // self._each

    def summed(self, steps: int) -> int:
        """The tokens that each sequence has got before each of the next steps, added up."""
        return floor_sum(steps, ONE, self._each, self._rest)

    def mean(self) -> float:
        """Tokens a step."""
        return self._each / ONE


def floor_sum(count: int, divisor: int, factor: int, offset: int) -> int:
    """Sum of (factor i + offset) // divisor over i = 0 .. count - 1, by Euclid's algorithm; nothing is negative."""
    total = 0
    while count:
        whole, factor = divmod(factor, divisor)
        total += whole * (count * (count - 1) // 2)
        whole, offset = divmod(offset, divisor)
        total += whole * count
        end = factor * count + offset
        if end < divisor:
            break
        count, offset = divmod(end, divisor)
        divisor, factor = factor, divisor
    return total


class Paced:
    """What both kinds say of their drafts."""

    size: int
    _pace: Pace
    _drafts: int

    @property
    def drafting(self) -> bool:
        """See Batch."""
        return self._pace.drafting

    @property
    def rows(self) -> int:
        """See Batch."""
        return self.size * (1 + self._drafts) if self._pace.drafting else self.size

    def tokens(self, steps: int) -> int:
        """See Batch."""
        return self._pace.tokens(steps)


class FastDrafting(Paced, Fast):
    """Fast-forward with drafts."""

    def __init__(self, surface: Surface, layout: Layout, drafted: Drafted) -> None:
        super().__init__(surface, layout)
        self._pace = Pace(surface, drafted)
        self._drafts = drafted.drafts

    def use(self, surface: Surface) -> None:
        """See Batch."""
        super().use(surface)
        self._pace.use(surface)

    def choose(self) -> None:
        """See Batch."""
        if self._pace.stale and self.size:
            chosen = self._pace.choose(self.size, self._sums)
            self._fixed, self._slope = chosen.fixed, chosen.slope

    def join(self, request: int, cache: int, steps: int) -> None:
        """See Batch."""
        self._pace.stale = True
        super().join(request, cache, steps)

    def leave(self, request: int) -> tuple[int, int]:
        """See Batch."""
        self._pace.stale = True
        cache, left = super().leave(request)
        return cache, max(left, 0)

    def need(self, steps: int) -> int:
        """See Batch."""
        tokens = self._pace.tokens(steps)
        total = super().need(tokens)
        return total - self._lighter(tokens) if self._marks and len(self._phases) > 1 else total

    def _lighter(self, tokens: int) -> int:
        """What the histogram counts too much where a step takes a sequence on by blocks of its next level."""
        late = self._k + tokens - self._block
        if self._marks[0][0] > late:
            return 0
        more = 0
        for mark, request, index, joined in self._marks:
            known = self._joined.get(request)
            if index >= 0 or mark > late or known is None or known[0] != joined or request not in self._due:
                continue
            cache = known[1] + self._k - joined
            level = self._layout.level(known[1] + mark - joined - 1)
            held = (cache + self._layout.ahead + tokens - 1) // self._block
            blocks = held - (cache + self._layout.ahead - 1) // self._block
            exact = self._layout.units(cache + tokens) - self._layout.units(cache)
            more += blocks * self._layout.levels[level] - exact
        return more

    def stretch(self, free: int, time: float, once: bool) -> tuple[int, float, int]:
        """See Batch."""
        pace = self._pace
        once = once or pace.stale  # a sequence came back within this iteration: decide anew after it
        if not pace.drafting:
            return super().stretch(free, time, once)
        each, more = self._price()
        if once or time <= each:
            return 1, each, self.need(1)
        ends, due = self._ends, self._due
        while due.get(ends[0][1]) != ends[0][0]:
            heappop(ends)
        tokens = ends[0][0] - self._k
        if self._marks:
            tokens = min(tokens, max(self._marks[0][0] - self._k, 1))
        steps = pace.reach(tokens)
        tokens = pace.tokens(steps)
        if self._block and free < (tokens // self._block + 1) * self._cycle:
            steps = max(min(steps, pace.within(self._affordable(tokens, free))), 1)
        seconds = steps * each + more * pace.summed(steps)
        if seconds > time:
            steps = self._until(time, each, more, steps)
            seconds = steps * each + more * pace.summed(steps)
        return steps, seconds, self.need(steps)

    def _until(self, time: float, each: float, more: float, most: int) -> int:
        """The fewest steps that end no sooner than in `time`, up to `most`."""
        pace = self._pace
        steps = few_enough(time, each, more * pace.mean() / 2.0, most)
        while steps < most and steps * each + more * pace.summed(steps) < time:
            steps += 1
        while steps > 1 and (steps - 1) * each + more * pace.summed(steps - 1) >= time:
            steps -= 1
        return steps

    def advance(self, steps: int) -> list[int]:
        """See Batch."""
        ended = super().advance(self._pace.take(steps))
        if ended:
            self.discarded += sum([self._k - self._due[request] for request in ended])
            ended.sort()
        return ended


class PlainDrafting(Paced, Plain):
    """The same, sequence by sequence and step by step."""

    def __init__(self, surface: Surface, layout: Layout, drafted: Drafted) -> None:
        super().__init__(surface, layout)
        self._pace = Pace(surface, drafted)
        self._drafts = drafted.drafts

    def use(self, surface: Surface) -> None:
        """See Batch."""
        super().use(surface)
        self._pace.use(surface)

    def choose(self) -> None:
        """See Batch."""
        if self._pace.stale and self.size:
            self._surface = self._pace.choose(self.size, self.sums())

    def join(self, request: int, cache: int, steps: int) -> None:
        """See Batch."""
        self._pace.stale = True
        super().join(request, cache, steps)

    def leave(self, request: int) -> tuple[int, int]:
        """See Batch."""
        self._pace.stale = True
        return super().leave(request)

    def need(self, steps: int) -> int:
        """See Batch."""
        return super().need(self._pace.tokens(steps))

    def advance(self, steps: int) -> list[int]:
        """See Batch."""
        ended = super().advance(self._pace.take(steps))
        self.discarded -= sum([self._left[request] for request in ended])
        return ended


def batch_of(surface: Surface, layout: Layout, plain: bool) -> Batch:
    """The decoding sequences of a replica, none yet."""
    if surface.drafted is not None:
        return (PlainDrafting if plain else FastDrafting)(surface, layout, surface.drafted)
    if plain:
        return Plain(surface, layout)
    return (Even if Even.suits(surface, layout) else Fast)(surface, layout)
