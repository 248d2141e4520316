"""Sessions of agents: steps that follow one another, sub-agents beside them, and when sessions start."""

from array import array as numbers
from dataclasses import replace
from math import isnan, nan

import numpy as np

from archsim.arrays import Array
from archsim.workload.chains import Runs
from archsim.workload.requests import Integers, Requests
from archsim.workload.tracerows import Columns

ROUNDED = 1.0  # s: traces give whole seconds, so that an answer may seem to end after what waited for it
SESSION_BLOCK = 64  # tokens of a block of prompts of which a trace only counts what they share
STARTS = 7  # the random stream of starts


class Following:
    """What each step of one session waits for, and how long after.

    The agent of the first step is the main one. Another agent starts from the step of the main one before it; the main
    one waits for those that are over by the time of its next step. A clock that is behind the step before counts from
    the start of the sub-agent. No gap is longer than the time from the step before, whatever was recorded.
    """

    def __init__(self) -> None:
        self._last: dict[int, tuple[int, float]] = {}  # of an agent: its last step, and when that ended
        self._came: dict[int, float] = {}
        self._offset: dict[int, float] = {}
        self._main = -1
        self._beside: list[int] = []  # sub-agents that the main one has not waited for

    def step(self, index: int, agent: int, time: float, service: float, gap: float) -> tuple[list[int], float, float]:
        """(those waited for, gap, time from the start of the session) of a step; steps come in order of the file."""
        before = self._last.get(agent)
        if before is None:
            before, gap = self._begin(agent, time), nan
        waits = [] if before is None else [before]
        if isnan(time):  # not recorded
            time = (before[1] if before else 0.0) + (0.0 if isnan(gap) else gap)
        else:
            time += self._offset[agent]
            gap = min(gap, max(time - self._came[agent], 0.0)) if agent in self._came else gap
        self._came[agent] = time
        if agent == self._main:
            over = [sub for sub in self._beside if self._last[sub][1] <= time + ROUNDED]
            if over:
                self._beside = [sub for sub in self._beside if sub not in over]
                waits, gap = [*waits, *(self._last[sub] for sub in over)], nan
        self._last[agent] = (index, time + (0.0 if isnan(service) else service))
        wait = max(time - max(end for _, end in waits), 0.0) if waits and isnan(gap) else gap
        return [step for step, _ in waits], wait if waits else 0.0, time

    def _begin(self, agent: int, time: float) -> tuple[int, float] | None:
        """What the first step of an agent follows, its clock set."""
        if self._main < 0:
            self._main = agent
            self._offset[agent] = 0.0 if isnan(time) else -time
            return None
        last = self._last[self._main]
        same = time + self._offset[self._main] >= last[1] - 2 * ROUNDED
        self._offset[agent] = self._offset[self._main] if same else last[1]
        self._beside.append(agent)
        return last


def in_sessions(columns: Columns, block: int, name: str) -> Requests:
    """The steps of recorded sessions, session by session as they start; where `shared` is counted, chains of it."""
    session, agent = columns.integers("session"), columns.integers("agent")
    order = np.argsort(session, kind="stable")
    rows = zip(
        *(column[order].tolist() for column in (session, agent)),
        *(columns.floats(column)[order].tolist() for column in ("time", "service", "gap")),
        strict=True,
    )
    after, gaps, times, starts = [], numbers("d"), numbers("d"), []
    current, steps = -1, Following()
    for index, (number, worker, time, service, gap) in enumerate(rows):
        if number != current:
            current, steps = number, Following()
            starts.append(0.0 if isnan(time) else time)
        waits, wait, when = steps.step(index, worker, time, service, gap)
        after.append(waits)
        gaps.append(wait)
        times.append(when)
    found = Requests(
        np.array(times, dtype=np.float64),
        columns.integers("input")[order],
        columns.integers("output")[order],
        chains=columns.chains.pick(order) if block else None,
        block=block,
        after=after,
        gap=np.array(gaps, dtype=np.float64),
        session=session[order],
        agent=agent[order],
        stop=columns.integers("stop")[order],
        titles=list(columns.sessions),
        name=name,
    )
    if not block and any(columns.shared):
        chains = from_shared(found, columns.integers("shared")[order])
        found = replace(found, chains=chains, block=SESSION_BLOCK)
    begins = np.array(starts, dtype=np.float64)
    return _in_order(found, begins - begins.min() if len(begins) else begins)


def from_shared(requests: Requests, shared: Integers, block: int = SESSION_BLOCK) -> Runs:
    """Chains of prompts that share so many leading tokens with the step before of their agent."""
    chains, following = Runs(), 0
    held: dict[int, list[tuple[int, int]]] = {}
    agents = [0] * len(requests) if requests.agent is None else requests.agent.tolist()
    for agent, size, same in zip(agents, requests.input.tolist(), shared.tolist(), strict=True):
        kept, left = [], same // block
        for start, length in held.get(agent, ()):
            if left:
                kept.append((start, min(length, left)))
                left -= kept[-1][1]
        fresh = size // block - (same // block - left)
        if kept and sum(kept[-1]) == following:
            kept[-1] = (kept[-1][0], kept[-1][1] + fresh)
        elif fresh:
            kept.append((following, fresh))
        following += fresh
        chains.append_runs(kept)
        held[agent] = kept
    return chains


def _in_order(requests: Requests, starts: Array) -> Requests:
    """Sessions in order of their starts (s, by session), each from its own."""
    session = requests.session
    if session is None or not len(requests):
        return requests
    turn = np.argsort(starts, kind="stable")
    place = np.empty(len(turn), dtype=np.int64)
    place[turn] = np.arange(len(turn))
    titles = [requests.titles[number] for number in turn.tolist()]
    moved = replace(requests, session=place[session], arrival=requests.arrival + starts[session], titles=titles)
    if (turn == np.arange(len(turn))).all():
        return moved
    return moved.pick(np.argsort(place[session], kind="stable"))


def started(requests: Requests, rate: float, seed: int = 0) -> Requests:
    """The same sessions, starting at random (Poisson) at so many a second."""
    rng = np.random.default_rng([seed, STARTS])
    return requests.starting(np.cumsum(rng.exponential(1.0, requests.sessions)) / rate)


def in_lanes(requests: Requests, clients: int) -> Requests:
    """So many sessions at once: each further one starts when that so many before it has ended."""
    if requests.after is None or requests.session is None:
        return replace(requests, clients=clients)
    session = requests.session.tolist()
    heads: list[int] = []
    tails: list[list[int]] = []
    awaited = {step for waits in requests.after for step in waits}
    for index, number in enumerate(session):
        if number == len(heads):
            heads.append(index)
            tails.append([])
        if index not in awaited:
            tails[number].append(index)
    after = list(requests.after)
    for number in range(clients, len(heads)):
        after[heads[number]] = tails[number - clients]
    gap = np.zeros(len(requests)) if requests.gap is None else requests.gap
    return replace(requests.starting(np.zeros(len(heads))), after=after, gap=gap)
