"""Plays requests on the replicas of a deployment: routing, limits, and what comes of it."""

import gc
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import inf

import numpy as np

from archsim.arrays import Array
from archsim.serving.cluster import Cluster, Router
from archsim.serving.engine import Engine
from archsim.serving.eviction import LRU, Eviction, Order
from archsim.serving.express import Express
from archsim.serving.following import Clients, Sessions, sticky
from archsim.serving.halves import NEXT, Halves, Prefill
from archsim.serving.handover import Receiver, Sender
from archsim.serving.outcome import Outcome, Swap, columns
from archsim.serving.pool import Layout, Pool, Prefixes
from archsim.serving.returning import Returns
from archsim.serving.schedulers import Scheduler
from archsim.serving.surface import Surface
from archsim.serving.tiers import Level, Recompute, Tier, Tiered, below
from archsim.workload.requests import Requests

ROUTERS = ("round-robin", "least-loaded", "prefix-affine", "session-affine")
TICKS = 200  # progress reports of a run
EVENTS = 1000  # between two looks at the progress, at the most


@dataclass(frozen=True, eq=False)
class Server:
    """What serves: the surface and memory of one replica, how many there are, and the policies.

    `units` are the units of KV memory of a replica, `unit` the bytes of one. `swap` preempts to the host at so many
    seconds a unit; without it what is preempted is computed again. `caching` keeps prefixes, `tiers` what `eviction`
    drives out. With `prefill` another pool prefills, and this one decodes. `shifts` are (s, surface): from then on
    steps take the times of another one.
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
    tiers: tuple[Level, ...] = ()
    eviction: Eviction = LRU
    prefill: Prefill | None = None
    shifts: tuple[tuple[float, Surface], ...] = ()

    @property
    def shares(self) -> bool:
        """Whether replicas share a memory, so that they must go through time together."""
        return self.replicas > 1 and any(level.shared for level in self.tiers)


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

    def pools_apart(self) -> "tuple[Played, Played]":
        """What the replicas that prefill played, and what those that decode did. Raises ValueError for one pool."""
        first = self.server.prefill
        if first is None:
            raise ValueError("all replicas do the same")
        count = first.server.replicas
        return (
            replace(self, server=first.server, logs=self.logs[:count], pools=self.pools[:count]),
            replace(self, logs=self.logs[count:], pools=self.pools[count:]),
        )

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

    `plain` goes iteration by iteration. `progress` is told the share of requests that are over, now and then.
    """
    outcome = Outcome.of(len(requests))
    engines = _engines(requests, server, outcome, plain)
    collecting = gc.isenabled()
    gc.disable()  # a run makes many objects and no cycles of them: looking for these is a third of its time
    try:
        _run(requests, server, engines, seconds, events, progress)
    finally:
        if collecting:
            gc.enable()
    late = outcome.over < len(requests) or any(engine.clock >= seconds for engine in engines)
    if not outcome.stopped and seconds < inf and late:
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
    told = _told(outcome, len(requests), progress)
    if server.prefill is not None:
        _apart(requests, server, server.prefill, engines, seconds, events, told)
        return
    if requests.clients:
        _each(engines, Clients(requests, engines, outcome).ended)
        if server.shares:
            Cluster(engines, lambda _: engines[0], outcome, strict=True).run(seconds, events, True, told)
        else:
            _play(engines, outcome, seconds, events, told)
        return
    starts = _starts(requests, outcome)
    if server.shares or (server.replicas > 1 and server.router != "round-robin"):
        _together(requests, server, engines, starts, seconds, events, told)
        return
    if requests.after:
        _each(engines, Sessions(requests, outcome, sticky).ended)
    for turn, request in enumerate(starts):
        engine = engines[turn % len(engines)]
        engine.pending.append((outcome.arrived[request] + engine.surface.arrival, request))
    _play(engines, outcome, seconds, events, told)


def _starts(requests: Requests, outcome: Outcome) -> Sequence[int]:
    """The requests that wait for no other, in order; they come when the trace says."""
    times = requests.arrival.tolist()
    if not requests.after:
        outcome.arrived = times
        return range(len(times))
    starts = [request for request, before in enumerate(requests.after) if not before]
    for request in starts:
        outcome.arrived[request] = times[request]
    return starts


def _each(engines: Sequence[Engine], ended: Callable[[Engine, int], None]) -> None:
    for engine in engines:
        engine.ended = ended


def _told(outcome: Outcome, count: int, progress: Callable[[float], None] | None) -> Callable[[], None] | None:
    """Tells the share of requests that are over, each time that another part of TICKS is."""
    if progress is None:
        return None
    step, last = max(count // TICKS, 1), [0]

    def tell() -> None:
        if outcome.over >= last[0] + step:
            last[0] = outcome.over
            progress(outcome.over / count)

    return tell


def _together(
    requests: Requests,
    server: Server,
    engines: Sequence[Engine],
    starts: Sequence[int],
    seconds: float,
    events: float,
    told: Callable[[], None] | None,
) -> None:
    """All replicas in one time, behind a router that looks at them."""
    outcome = engines[0].outcome
    cluster = Cluster(engines, Router(server.router, requests, engines).choose, outcome, server.shares)
    cluster.coming = [(outcome.arrived[request], request) for request in starts]  # in order: a heap already
    if requests.after:
        _each(engines, Sessions(requests, outcome, cluster.send).ended)
    cluster.run(seconds, events, bool(requests.after) or server.shares, told)


def _apart(
    requests: Requests,
    server: Server,
    prefill: Prefill,
    engines: Sequence[Engine],
    seconds: float,
    events: float,
    told: Callable[[], None] | None,
) -> None:
    """Two pools: requests, what is handed over, and what follows on answers, all in one time."""
    outcome = engines[0].outcome
    senders = [engine for engine in engines if isinstance(engine, Sender)]
    receivers = [engine for engine in engines if isinstance(engine, Receiver)]
    cluster = Halves(requests, senders, receivers, prefill, server.router, outcome)
    if requests.clients:
        cluster.coming = [(0.0, NEXT)] * min(requests.clients, len(requests))
        _each(engines, cluster.next_client)
    else:
        cluster.coming = [(outcome.arrived[request], request) for request in _starts(requests, outcome)]
        if requests.after:
            _each(engines, Sessions(requests, outcome, cluster.send).ended)
    cluster.run(seconds, events, True, told)


def _engines(requests: Requests, server: Server, outcome: Outcome, plain: bool) -> list[Engine]:
    """The replicas: those that prefill before those that decode."""
    returns = server.eviction.returns(requests)

    def pool(own: Server, kind: type[Engine]) -> list[Engine]:
        tiers = below(own.tiers, own.replicas)
        return [_engine(requests, own, outcome, plain, each, returns, kind) for each in tiers]

    if server.prefill is None:
        return pool(server, Engine)
    return [*pool(server.prefill.server, Sender), *pool(server, Receiver)]


def _engine(
    requests: Requests,
    server: Server,
    outcome: Outcome,
    plain: bool,
    tiers: Sequence[Tier],
    returns: Returns | None,
    kind: type[Engine] = Engine,
) -> Engine:
    layout, watermark, order = server.layout, server.watermark, Order(server.eviction.ttl, server.eviction.linger)
    if server.scheduler.whole and layout.reserve is None:
        layout = replace(layout, reserve=0)
    prefixes = None
    if requests.chains is not None and not uncached(requests, server):
        prefixes = Prefixes(requests.block, requests.block // layout.block * layout.levels[-1], order)
        if tiers:
            recompute = Recompute(server.surface, server.scheduler.max_tokens)
            prefixes = Tiered(prefixes.block, prefixes.unit, tiers, recompute, order)
    pool = Pool(layout, server.units, prefixes)
    if kind is Engine and not plain and Express.suits(requests, server.surface, pool, server.scheduler):
        kind = Express
    made = kind(requests, server.surface, pool, server.scheduler, outcome, plain, server.swap, watermark, returns)
    made.shifts.extend(server.shifts)
    return made


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


def _play(
    engines: Sequence[Engine], outcome: Outcome, seconds: float, events: float, told: Callable[[], None] | None
) -> None:
    """Every replica to its end."""
    share = max(events - outcome.events, 0) / len(engines) if events < inf else inf
    step = min(len(outcome.end) // TICKS + 1, EVENTS)
    for engine in engines:
        limit = outcome.events + share
        if told is None:
            engine.run(seconds, limit)
            continue
        while engine.next_time() < inf or engine.running or engine.waiting:
            before = outcome.events
            engine.run(seconds, min(limit, outcome.events + step))
            told()
            if outcome.events >= limit or outcome.events == before or engine.clock >= seconds:
                break
            outcome.stopped = ""


def _played(requests: Requests, server: Server, outcome: Outcome, engines: Sequence[Engine]) -> Played:
    outcome.discarded = sum(engine.batch.discarded for engine in engines)
    times = [np.array(values, dtype=np.float64) for values in (outcome.arrived, outcome.begun)]
    times += [np.array(values, dtype=np.float64) for values in (outcome.first, outcome.end)]
    arrived, begun, first, end = (np.where(column < 0, np.nan, column) for column in times)
    logs = tuple(columns(engine.log) for engine in engines)
    pools = tuple(engine.pool for engine in engines)
    cached = np.array(outcome.cached, dtype=np.float64)
    return Played(requests, server, arrived, begun, first, end, cached, outcome, logs, pools)
