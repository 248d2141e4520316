"""Several replicas in one time: requests go to the replica that is best when they come.

Replicas run apart as long as none can send anything that another must know. A replica's `horizon` is a time before
which it ends no request; up to the least horizon and the next arrival all may run.
"""

from collections.abc import Callable, Sequence
from heapq import heappop, heappush
from math import inf, nextafter

from archsim.serving.engine import Engine
from archsim.serving.outcome import Outcome
from archsim.workload.requests import Requests

SLACK = 1.25  # times the mean load that a home may carry before a request goes elsewhere


class Router:
    """Chooses a replica for a request that comes."""

    def __init__(self, name: str, requests: Requests, engines: Sequence[Engine]) -> None:
        self._name, self._engines, self._chains = name, engines, requests.chains
        self._sessions = None if requests.session is None else requests.session.tolist()
        self._homes: dict[int, Engine] = {}
        self._turn = 0

    def choose(self, request: int) -> Engine:
        """The replica for a request, by the rule of the router's name."""
        if self._name == "round-robin":
            self._turn += 1
            return self._engines[(self._turn - 1) % len(self._engines)]
        loads = [engine.running + len(engine.waiting) + len(engine.pending) for engine in self._engines]
        least = self._engines[loads.index(min(loads))]
        if self._name == "session-affine" and self._sessions is not None:
            return self._homes.setdefault(self._sessions[request], least)
        if self._name == "prefix-affine" and self._chains is not None and len(self._chains[request]):
            return self._home(self._chains[request], loads) or least
        return least

    def _home(self, chain: Sequence[int], loads: Sequence[int]) -> Engine | None:
        """The replica that holds most of a prompt, unless it is overloaded."""
        hits = [engine.pool.prefixes.lookup(chain) if engine.pool.prefixes else 0 for engine in self._engines]
        home = max(range(len(hits)), key=lambda index: (hits[index], -loads[index]))
        return self._engines[home] if loads[home] <= SLACK * (sum(loads) + 1) / len(loads) + 1 else None


class Cluster:
    """Replicas behind a router. `coming` holds what is to be delivered: (time, request).

    `strict`: whatever a replica does may concern the others, so that none goes past what another may end.
    """

    def __init__(
        self, engines: Sequence[Engine], choose: Callable[[int], Engine], outcome: Outcome, strict: bool = False
    ) -> None:
        self._strict = strict
        self.engines, self.outcome = engines, outcome
        self.coming: list[tuple[float, int]] = []
        self._choose = choose

    def send(self, engine: Engine, time: float, request: int) -> None:
        """Something that a replica's request has caused comes at a time that is not past."""
        heappush(self.coming, (time, request))
        engine.halted = True

    def deliver(self, time: float, request: int) -> None:
        """A request reaches its replica."""
        engine = self._choose(request)
        engine.pending.append((time + engine.surface.arrival, request))

    def run(self, seconds: float, events: float, dynamic: bool, progress: Callable[[], None] | None = None) -> None:
        """Plays to the end, or to a limit. `dynamic`: what ends may send more."""
        outcome, engines = self.outcome, self.engines
        while not outcome.stopped:
            horizons = [engine.horizon() for engine in engines] if dynamic else [inf]
            soonest = min(horizons)
            if self.coming and self.coming[0][0] <= soonest:
                time, request = heappop(self.coming)
                if time >= seconds:
                    break
                for engine in engines:
                    engine.run(time, events)
                self.deliver(time, request)
            elif soonest >= seconds:
                break
            else:
                self._advance(horizons, seconds, events)
            if progress is not None:
                progress()
        for engine in engines:
            engine.run(seconds, events)

    def _advance(self, horizons: list[float], seconds: float, events: float) -> None:
        """The replica that may end something first goes on to where the next one may."""
        place = horizons.index(min(horizons))
        others = min((time for index, time in enumerate(horizons) if index != place), default=inf)
        limit = min(others, self.coming[0][0] if self.coming else inf)
        until = min(max(limit, nextafter(horizons[place], inf)), seconds)
        self.engines[place].run(until, events, self._strict)
