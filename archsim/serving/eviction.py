"""Which idle blocks go first: the least recently used, those too old, those whose agent is said to stay away."""

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass
from math import inf

from archsim.serving.returning import Predictor, Returns, Verdicts
from archsim.workload.requests import Requests

Gone = tuple[int, bool, float]  # a block, whether its agent is said to leave, and when it went (s)


@dataclass(frozen=True)
class Eviction:
    """A policy: idle blocks go after `ttl` seconds; with a predictor, those of agents who leave go before all others.

    An agent is said to leave where its chance to is at least `threshold`. Its blocks go after `linger` seconds.
    """

    ttl: float = inf
    predictor: Predictor | None = None
    threshold: float = 0.5
    linger: float = inf

    def returns(self, requests: Requests) -> Returns | None:
        """What it says of these requests; None where it says nothing."""
        return None if self.predictor is None else Verdicts(self.predictor, requests, self.threshold)


LRU = Eviction()


class Order:
    """Idle blocks of a memory in the order in which they go: those said to leave, then the least recently used.

    `leaving` and `resting` hold blocks by name, with the time (s) since when; `held` counts block-seconds of what has
    left.
    """

    def __init__(self, ttl: float = inf, linger: float = inf) -> None:
        self.ttl, self.linger, self.held = ttl, min(linger, ttl), 0.0
        self.timed = self.linger < inf
        self.leaving: OrderedDict[int, float] = OrderedDict()
        self.resting: OrderedDict[int, float] = OrderedDict()

    def __contains__(self, name: int) -> bool:
        """Whether a block is in it."""
        return name in self.resting or name in self.leaving

    def __len__(self) -> int:
        """Blocks in it."""
        return len(self.leaving) + len(self.resting)

    def remove(self, name: int, time: float) -> None:
        """A block is no longer idle here."""
        since = self.resting.pop(name, None)
        self.held += time - (self.leaving.pop(name) if since is None else since)

    def again(self, names: Iterable[int], time: float) -> None:
        """Blocks that are here count as used now, one after another, by who is not said to leave."""
        leaving, resting, held = self.leaving, self.resting, self.held
        for name in names:
            since = resting.get(name)
            if since is None:
                since = leaving.pop(name)
            else:
                resting.move_to_end(name)
            held += time - since
            resting[name] = time
        self.held = held

    def pop(self, count: int, time: float, gone: float) -> list[Gone]:
        """Takes out so many that go next, if there are as many; they count as gone at a time of their own."""
        found: list[Gone] = []
        for order, leaves in ((self.leaving, True), (self.resting, False)):
            some = min(count - len(found), len(order))
            if some > 0:
                picked = [order.popitem(last=False) for _ in range(some)]
                self.held += some * time - sum([since for _, since in picked])
                found += [(name, leaves, gone) for name, _ in picked]
        return found

    def old(self, name: int, time: float) -> bool:
        """Whether a block has been idle for too long."""
        since = self.resting.get(name)
        return (self.leaving[name] + self.linger if since is None else since + self.ttl) <= time

    def expired(self, time: float) -> list[Gone]:
        """Takes out what has been idle for too long, and when that was."""
        found: list[Gone] = []
        for order, leaves, limit in ((self.leaving, True, self.linger), (self.resting, False, self.ttl)):
            while order:
                name, since = next(iter(order.items()))
                if since + limit > time:
                    break
                del order[name]
                self.held += limit
                found.append((name, leaves, since + limit))
        return found

    def until(self, time: float) -> float:
        """Block-seconds held up to a time, those of what is still here among them."""
        return self.held + sum(
            max(time - since, 0.0) for order in (self.leaving, self.resting) for since in order.values()
        )
