"""Requests that wait, and those in prefill."""

from collections import deque
from collections.abc import Sequence
from heapq import heappop, heappush


class Filling:
    """A request in prefill: tokens before it in the cache, and tokens left to compute."""

    __slots__ = ("before", "left", "request")

    def __init__(self, request: int, before: int, left: int) -> None:
        self.request, self.before, self.left = request, before, left


class Line(deque[int]):
    """Waiting requests, first come, first served; what was preempted goes to the front."""

    ranked = False
    push = deque.append
    back = deque.appendleft
    pop_first = deque.popleft

    def first(self) -> int:
        """The next one."""
        return self[0]


class Ranks:
    """Waiting requests by priority, and by arrival among equals."""

    ranked = True

    def __init__(self, priority: Sequence[int]) -> None:
        self._priority = priority
        self._heap: list[tuple[int, int]] = []

    def __len__(self) -> int:
        """How many wait."""
        return len(self._heap)

    def push(self, request: int) -> None:
        """One that comes, or comes back."""
        heappush(self._heap, (-self._priority[request], request))

    back = push

    def first(self) -> int:
        """The next one."""
        return self._heap[0][1]

    def pop_first(self) -> int:
        """Takes the next one out."""
        return heappop(self._heap)[1]
