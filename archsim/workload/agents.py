"""Sessions of agents drawn from distributions: contexts that grow with every tool result, pauses, sub-agents.

Every session has random numbers of its own, so that it is the same at any rate and among any number of others.
"""

from array import array as numbers
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
from pydantic import Field

from archsim.catalog import StrictModel
from archsim.fields import Count, Fraction
from archsim.workload.chains import Runs
from archsim.workload.lengths import Lengths, Times, draw
from archsim.workload.requests import STOPS, Requests

BLOCK = 64  # tokens of a block of prompts
STREAM = 3  # the first random stream of sessions; those before draw plain requests
TOOL, TURN = STOPS.index("tool_use"), STOPS.index("end_turn")


class SubAgents(StrictModel):
    """Agents that a step starts, and that its agent waits for."""

    chance: Fraction = Field(description="share of steps that start some")
    together: Count | Lengths = Field(1, description="how many at once")
    steps: Count | Lengths = Field(description="of each")
    start: Count | Lengths = Field(description="tokens of the first prompt beyond what all share")
    results: Count | Lengths = Field(description="tokens of a tool result")


class Agents(StrictModel):
    """Sessions of one agent each, step by step.

    The next prompt is the one before, its answer and what a tool or a human adds. One that would exceed the window is
    compacted: all but what every prompt shares is new, and it is shorter.
    """

    steps: Count | Lengths = Field(description="of a session")
    start: Count | Lengths = Field(description="tokens of the first prompt beyond what all share")
    results: Count | Lengths = Field(description="tokens that a tool or a human adds to the prompt")
    window: Count | Lengths = Field(1_000_000, description="tokens of a session beyond which it is compacted")
    compacted: Count | Lengths = Field(50_000, description="tokens after it, beyond what all share")
    rewritten: Fraction = Field(0.0, description="share of steps whose prompt shares only what every one does")
    human: Fraction = Field(description="share of steps after which a human goes on, and not a tool")
    tool_gaps: Times = Field(description="from an answer to the next prompt, if a tool goes on")
    human_gaps: Times = Field(description="from an answer to the next prompt, if a human goes on")
    subagents: SubAgents | None = None
    keeps_answers: bool = Field(True, description="the blocks of an answer are found again as part of the next prompt")


@dataclass
class Columns:
    """Steps so far."""

    shared: int
    session: int = 0
    agents: int = 0
    following: int = 0  # the next new block
    input: "numbers[int]" = field(default_factory=lambda: numbers("q"))
    output: "numbers[int]" = field(default_factory=lambda: numbers("q"))
    sessions: "numbers[int]" = field(default_factory=lambda: numbers("q"))
    agent: "numbers[int]" = field(default_factory=lambda: numbers("q"))
    stop: "numbers[int]" = field(default_factory=lambda: numbers("q"))
    gap: "numbers[float]" = field(default_factory=lambda: numbers("d"))
    after: list[list[int]] = field(default_factory=list)
    chains: Runs = field(default_factory=Runs)


class Worker:
    """An agent at work: its prompt grows, and its steps follow one another."""

    def __init__(self, columns: Columns, keeps_answers: bool) -> None:
        self.columns, self._keeps = columns, keeps_answers
        self.number = columns.agents
        columns.agents += 1
        self._runs: list[tuple[int, int]] = []
        self._blocks = 0

    def step(self, after: list[int], gap: float, kept: int, size: int, output: int, stop: int) -> int:
        """Adds a step whose prompt of `size` tokens begins with `kept` tokens of the one before; its place."""
        found = self.columns
        self._cut(max(kept, found.shared) // BLOCK)
        self._grow((size + output if self._keeps else size) // BLOCK)
        found.chains.append_runs(self._runs)
        found.input.append(size)
        found.output.append(output)
        found.sessions.append(found.session)
        found.agent.append(self.number)
        found.stop.append(stop)
        found.gap.append(gap)
        found.after.append(after)
        return len(found.after) - 1

    def _cut(self, blocks: int) -> None:
        """Keeps so many leading blocks, of which all agents share the first ones."""
        common = self.columns.shared // BLOCK
        runs = self._runs or [(0, common)]
        self._runs, left = [], blocks
        for start, size in runs:
            if left and size:
                self._runs.append((start, min(size, left)))
                left -= self._runs[-1][1]
        self._blocks = blocks - left

    def _grow(self, blocks: int) -> None:
        fresh, following = blocks - self._blocks, self.columns.following
        if fresh <= 0:
            return
        if self._runs and sum(self._runs[-1]) == following and self._runs[-1][0] >= self.columns.shared // BLOCK:
            self._runs[-1] = (self._runs[-1][0], self._runs[-1][1] + fresh)
        else:
            self._runs.append((following, fresh))
        self.columns.following += fresh
        self._blocks = blocks


def sessions(
    model: Agents, output: int | Lengths, shared: int, steps: int, many: int | None = None, seed: int = 0
) -> Requests:
    """Sessions that all begin at time 0: `many`, or as many as have so many steps together, the last one cut.

    Prompts begin with `shared` tokens that are the same for all.
    """
    columns = Columns(shared, following=shared // BLOCK)
    while columns.session < many if many is not None else len(columns.after) < steps:
        _session(model, output, columns, np.random.default_rng([seed, STREAM, columns.session]))
        columns.session += 1
    gap = np.array(columns.gap, dtype=np.float64)
    found = [
        np.array(getattr(columns, name), dtype=np.int64) for name in ("input", "output", "sessions", "agent", "stop")
    ]
    requests = Requests(
        np.zeros(len(gap)), found[0], found[1], chains=columns.chains, block=BLOCK, after=columns.after, gap=gap,
        session=found[2], agent=found[3], stop=found[4],
    )  # fmt: skip
    return requests if many is not None else requests.first(steps)


def _session(model: Agents, output: int | Lengths, columns: Columns, rng: np.random.Generator) -> None:
    """One session, step by step."""
    count = int(draw(model.steps, rng, 1)[0])
    window, size = int(draw(model.window, rng, 1)[0]), columns.shared + int(draw(model.start, rng, 1)[0])
    rows = _rows(model, output, rng, count)
    worker = Worker(columns, model.keeps_answers)
    kept, waits, wait = 0, list[int](), 0.0
    for answer, result, shorter, turn, rewritten, tool_gap, human_gap, team in rows:
        last = worker.step(waits, wait, kept, size, answer, TURN if turn else TOOL)
        waits, wait = [last], human_gap if turn else tool_gap
        if team and model.subagents is not None and not turn:
            waits += [_beside(model, model.subagents, output, columns, rng, last) for _ in range(team)]
        kept = 0 if rewritten else size + answer
        size = size + answer + result
        if size > window:
            kept, size = 0, min(columns.shared + shorter, size)


def _rows(
    model: Agents, output: int | Lengths, rng: np.random.Generator, count: int
) -> Iterator[tuple[int, int, int, bool, bool, float, float, int]]:
    """What is drawn for each step of a session."""
    lengths = [draw(length, rng, count).tolist() for length in (output, model.results, model.compacted)]
    chances = [(rng.random(count) < chance).tolist() for chance in (model.human, model.rewritten)]
    gaps = [times.draw(rng, count).tolist() for times in (model.tool_gaps, model.human_gaps)]
    teams = [0] * count
    if model.subagents is not None:
        launched = rng.random(count) < model.subagents.chance
        teams = (draw(model.subagents.together, rng, count) * launched).tolist()
    yield from zip(*lengths, *chances, *gaps, teams, strict=True)


def _beside(
    model: Agents, sub: SubAgents, output: int | Lengths, columns: Columns, rng: np.random.Generator, before: int
) -> int:
    """A sub-agent that starts when a step has ended; its last step."""
    count, size = int(draw(sub.steps, rng, 1)[0]), columns.shared + int(draw(sub.start, rng, 1)[0])
    lengths = [draw(length, rng, count).tolist() for length in (output, sub.results)]
    worker, kept, wait = Worker(columns, model.keeps_answers), 0, 0.0
    for left, (answer, result, gap) in enumerate(
        zip(*lengths, model.tool_gaps.draw(rng, count).tolist(), strict=True), 1 - count
    ):
        before = worker.step([before], wait, kept, size, answer, TOOL if left else TURN)
        kept, wait = size + answer, gap
        size = kept + result
    return before
