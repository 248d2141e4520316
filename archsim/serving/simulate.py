"""Plays requests on the replicas of a deployment: routing, limits, and what comes of it."""

import gc
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import inf

import numpy as np

from archsim.arrays import Array
from archsim.serving.engine import COLUMNS, Engine, Outcome, Swap
from archsim.serving.pool import Layout, Pool, Prefixes
from archsim.serving.schedulers import Scheduler
from archsim.serving.surface import Surface
from archsim.workload.requests import Requests

ROUTERS = ("round-robin", "least-loaded", "prefix-affine")
AFFINITY = 4  # blocks by which a prompt's home is known
SLACK = 1.25  # times the mean load that a home may carry before a request goes elsewhere
TICKS = 200  # progress reports of a run


@dataclass(frozen=True, eq=False)
class Server:
    """What serves: the surface and memory of one replica, how many there are, and the policies.

    `units` are the units of KV memory of a replica, `unit` the bytes of one. `swap` preempts to the host at so many
    seconds a unit; without it what is preempted is computed again. `caching` keeps prefixes.
    """

    surface: Surface
    layout: Layout
    units: int
    scheduler: Scheduler
    unit: float = 1.0
    replicas: int = 1
    router: str = "round-robin"
    caching: bool = True
    swap: Swap | None = None
    watermark: float = 0.01


@dataclass(frozen=True, eq=False)
class Played:
    """What happened: times of every request (s; NaN: never) and the log of every replica, column by column."""

    requests: Requests
    server: Server
    arrived: Array
    begun: Array
    first: Array
    end: Array
    cached: Array
    outcome: Outcome
    logs: tuple[dict[str, Array], ...]
    pools: tuple[Pool, ...]

    @property
    def finished(self) -> "np.typing.NDArray[np.bool_]":
        """The requests that have all their tokens."""
        return np.isfinite(self.end)

    @property
    def seconds(self) -> float:
        """The end of the last iteration."""
        return max(
            [float(log["start"][-1] + log["seconds"][-1]) for log in self.logs if len(log["start"])], default=0.0
        )


def simulate(
    requests: Requests,
    server: Server,
    *,
    plain: bool = False,
    seconds: float = inf,
    events: float = inf,
    progress: Callable[[float], None] | None = None,
) -> Played:
    """Plays requests until all have ended, `seconds` have gone by, or `events` events have happened.

    `plain` goes iteration by iteration. `progress` is told the share of requests that have come, now and then.
    """
    outcome = Outcome.of(len(requests))
    engines = [_engine(requests, server, outcome, plain) for _ in range(server.replicas)]
    collecting = gc.isenabled()
    gc.disable()  # a run makes many objects and no cycles of them: looking for these is a third of its time
    try:
        _run(requests, server, engines, seconds, events, progress)
    finally:
        if collecting:
            gc.enable()
    if not outcome.stopped and seconds < inf and any(engine.clock >= seconds for engine in engines):
        outcome.stopped = f"stopped at the time limit of {seconds:g} s"
    return _played(requests, server, outcome, engines)


def _run(
    requests: Requests,
    server: Server,
    engines: Sequence[Engine],
    seconds: float,
    events: float,
    progress: Callable[[float], None] | None,
) -> None:
    outcome = engines[0].outcome
    if requests.clients:
        _closed(requests, engines, outcome)
    else:
        outcome.arrived = requests.arrival.tolist()
    if requests.clients or server.replicas == 1 or server.router == "round-robin":
        _dealt(requests, engines)
        _play(engines, outcome, len(requests), seconds, events, progress)
    else:
        _routed(requests, server, engines, seconds, events, progress)


def _engine(requests: Requests, server: Server, outcome: Outcome, plain: bool) -> Engine:
    layout = server.layout
    if server.scheduler.whole and layout.reserve is None:
        layout = replace(layout, reserve=0)
    prefixes = None
    if requests.chains is not None and not uncached(requests, server):
        prefixes = Prefixes(requests.block, requests.block // layout.block * layout.levels[-1])
    pool = Pool(layout, server.units, prefixes)
    return Engine(requests, server.surface, pool, server.scheduler, outcome, plain, server.swap, server.watermark)


def uncached(requests: Requests, server: Server) -> str:
    """Why prompts that share blocks are not kept for one another; empty where they are."""
    layout = server.layout
    if not server.caching:
        return "the prefix cache is off"
    if not layout.grows:
        return "contiguous memory shares no blocks"
    if requests.block % layout.block:
        return (
            f"blocks of {requests.block} tokens, which prompts share, are no whole number of blocks of {layout.block}"
        )
    return "" if layout.levels[-1] else "no layer holds a whole context"


def _closed(requests: Requests, engines: Sequence[Engine], outcome: Outcome) -> None:
    """The first requests of all clients come at once; the others wait for answers. Clients stay with their replica."""
    clients = min(requests.clients, len(requests))
    delay = engines[0].surface.arrival
    for request in range(len(requests)):
        engine = engines[request % len(engines)]
        if request < clients:
            outcome.arrived[request] = 0.0
            engine.pending.append((delay, request))
        else:
            engine.backlog.append(request)


def _dealt(requests: Requests, engines: Sequence[Engine]) -> None:
    """Requests to replicas in turn."""
    if requests.clients:
        return
    times = (requests.arrival + engines[0].surface.arrival).tolist()
    for index, engine in enumerate(engines):
        engine.pending.extend((times[i], i) for i in range(index, len(times), len(engines)))


def _play(
    engines: Sequence[Engine],
    outcome: Outcome,
    count: int,
    seconds: float,
    events: float,
    progress: Callable[[float], None] | None,
) -> None:
    """Every replica to its end."""
    share = max(events - outcome.events, 0) / len(engines) if events < inf else inf
    for index, engine in enumerate(engines):
        limit = outcome.events + share
        if progress is None:
            engine.run(seconds, limit)
            continue
        ahead = len(engine.pending) + len(engine.backlog)
        step = max(min(2000, ahead // TICKS), 1)
        while engine.next_time() < inf or engine.running or engine.waiting:
            before = outcome.events
            engine.run(seconds, min(limit, outcome.events + step))
            left = len(engine.pending) + len(engine.backlog)
            progress((index + 1.0 - left / max(ahead, 1)) / len(engines))
            if outcome.events >= limit or outcome.events == before or engine.clock >= seconds:
                break
            outcome.stopped = ""


def _routed(
    requests: Requests,
    server: Server,
    engines: Sequence[Engine],
    seconds: float,
    events: float,
    progress: Callable[[float], None] | None,
) -> None:
    """Requests one by one to the replica that is best when they come."""
    outcome = engines[0].outcome
    delay = server.surface.arrival
    step = max(len(requests) // TICKS, 1)
    for request, time in enumerate(requests.arrival.tolist()):
        if time >= seconds or outcome.stopped:
            break
        for engine in engines:
            engine.run(time, events)
        chosen = _chosen(requests, server.router, engines, request)
        chosen.pending.append((time + delay, request))
        if progress is not None and request % step == 0:
            progress(request / len(requests))
    for engine in engines:
        engine.run(seconds, events)


def _chosen(requests: Requests, router: str, engines: Sequence[Engine], request: int) -> Engine:
    """The replica with the fewest requests, or the home of the prompt's first blocks while that is not overloaded."""
    loads = [engine.running + len(engine.waiting) + len(engine.pending) for engine in engines]
    if router == "prefix-affine" and requests.chains is not None and len(requests.chains[request]):
        chain = requests.chains[request]
        hits = [engine.pool.prefixes.lookup(chain) if engine.pool.prefixes else 0 for engine in engines]
        home = max(range(len(engines)), key=lambda index: (hits[index], -loads[index]))
        if loads[home] <= SLACK * (sum(loads) + 1) / len(loads) + 1:
            return engines[home]
    return engines[min(range(len(engines)), key=lambda index: loads[index])]


def _played(requests: Requests, server: Server, outcome: Outcome, engines: Sequence[Engine]) -> Played:
    outcome.discarded = sum(engine.batch.discarded for engine in engines)
    columns = [np.array(values, dtype=np.float64) for values in (outcome.arrived, outcome.begun)]
    columns += [np.array(values, dtype=np.float64) for values in (outcome.first, outcome.end)]
    arrived, begun, first, end = (np.where(column < 0, np.nan, column) for column in columns)
    logs = tuple(_log(engine) for engine in engines)
    pools = tuple(engine.pool for engine in engines)
    cached = np.array(outcome.cached, dtype=np.float64)
    return Played(requests, server, arrived, begun, first, end, cached, outcome, logs, pools)


def _log(engine: Engine) -> dict[str, Array]:
    table = np.frombuffer(engine.log, dtype=np.float64).reshape(-1, len(COLUMNS)) if len(engine.log) else None
    return {name: np.zeros(0) if table is None else table[:, i] for i, name in enumerate(COLUMNS)}
