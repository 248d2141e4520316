"""What a request waits for: an answer to its client, or the steps before it in its session."""

from collections import deque
from collections.abc import Callable, Sequence

from archsim.serving.engine import Engine
from archsim.serving.outcome import Outcome
from archsim.workload.requests import Requests

Send = Callable[[Engine, float, int], None]


def sticky(engine: Engine, time: float, request: int) -> None:
    """A request goes to the replica that served what it waited for."""
    engine.expect(time, request)


class Clients:
    """A closed loop: so many requests at first, and each further one a while after one of its replica has ended."""

    def __init__(self, requests: Requests, engines: Sequence[Engine], outcome: Outcome) -> None:
        self._outcome, self._think = outcome, requests.think
        self._backlogs: dict[Engine, deque[int]] = {engine: deque() for engine in engines}
        delay = engines[0].surface.arrival
        for request in range(len(requests)):
            engine = engines[request % len(engines)]
            if request < requests.clients:
                outcome.arrived[request] = 0.0
                engine.pending.append((delay, request))
            else:
                self._backlogs[engine].append(request)

    def ended(self, engine: Engine, request: int) -> None:
        """A client has its answer and sends the next request after a while."""
        backlog = self._backlogs[engine]
        if backlog:
            following, time = backlog.popleft(), engine.clock + self._think
            self._outcome.arrived[following] = time
            engine.expect(time, following)


class Sessions:
    """Requests that come a gap after all those they name have ended; `send` says where they go."""

    def __init__(self, requests: Requests, outcome: Outcome, send: Send) -> None:
        after = requests.after or ()
        self._outcome, self._send = outcome, send
        self._gap: list[float] = [0.0] * len(after) if requests.gap is None else requests.gap.tolist()
        self._left = [len(before) for before in after]
        self._latest = [0.0] * len(after)  # end of those it waits for: replicas tell of theirs out of order
        self._following: dict[int, list[int]] = {}
        for request, before in enumerate(after):
            for earlier in before:
                self._following.setdefault(earlier, []).append(request)

    def ended(self, engine: Engine, request: int) -> None:
        """Sends what has waited for this request and for nothing else any more."""
        for following in self._following.pop(request, ()):
            self._left[following] -= 1
            self._latest[following] = max(self._latest[following], engine.clock)
            if not self._left[following]:
                time = self._latest[following] + self._gap[following]
                self._outcome.arrived[following] = time
                self._send(engine, time, following)
