"""What the tests of serving share: a made-up machine with plain step times, and random small set-ups."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import Any

import numpy as np

from archsim.serving.eviction import Eviction
from archsim.serving.outcome import Swap
from archsim.serving.pool import Layout
from archsim.serving.returning import Oracle
from archsim.serving.schedulers import BUILT_IN, Scheduler
from archsim.serving.simulate import ROUTERS, Played, Server, simulate
from archsim.serving.surface import Drafted, Surface
from archsim.serving.tiers import Level
from archsim.workload.requests import Requests, requests

MOST = 64


@dataclass(frozen=True)
class Steps:
    """Steps with prefill: fixed, by tokens, by pairs, and a decode part."""

    fixed: float = 1e-3
    token: float = 1e-5
    pair: float = 1e-9
    sequence: float = 1e-5
    context: float = 1e-7

    def seconds(self, batch: int, sums: Sequence[float], chunks: Sequence[tuple[int, int]]) -> float:
        prompts = sum(new * self.token + new * (old + new / 2) * self.pair for new, old in chunks)
        return self.fixed + prompts + batch * self.sequence + (sum(sums) * self.context if batch else 0.0)


def machine(prompts: Any = None, clips: Sequence[tuple[float, float]] = ((inf, inf),), arrival: float = 0.0) -> Surface:
    """A surface: 1 ms, 10 us a sequence, 0.1 us a cached token (more for each further clip)."""
    fixed = [1e-3 + batch * 1e-5 for batch in range(MOST + 1)]
    slope = [[1e-7 * (1 + index)] * (MOST + 1) for index in range(len(clips))]
    levels, beyond = (tuple(values) for values in zip(*clips, strict=True))
    return Surface(levels, beyond, fixed, slope, arrival, prompts or Steps())


def speculating(
    made: Surface, drafts: int, gain: float, *, extra: float = 4e-4, row: float = 2e-6, always: bool = False
) -> Surface:
    """The surface with drafts: `extra` seconds a step more, and `row` for each draft of a sequence."""
    more = [extra + batch * drafts * row for batch in range(MOST + 1)]
    fixed = [plain + added for plain, added in zip(made.fixed, more, strict=True)]
    steps = made.prompts
    prompts = replace(steps, fixed=steps.fixed + extra, sequence=steps.sequence + drafts * row)
    drafted = replace(made, fixed=fixed, prompts=prompts)
    return replace(made, drafted=Drafted(drafted, drafts, gain, always))


def policy(name: str = "chunked", batch: int = 16, tokens: int = 256) -> Scheduler:
    return BUILT_IN[name](batch, tokens, padded=name == "static", whole=name == "static")


def server(units: int = 1000, block: int = 16, name: str = "chunked", batch: int = 16, **more: Any) -> Server:
    layout = more.pop("layout", Layout(block, ((inf, 1),)))
    tokens = more.pop("tokens", 256)
    return Server(more.pop("surface", machine()), layout, units, policy(name, batch, tokens), **more)


def chained(rng: np.random.Generator, lengths: Sequence[int], block: int) -> list[list[int]]:
    """Prompts of three groups that share a random number of leading blocks with their group."""
    chains = []
    for index, length in enumerate(lengths):
        group, common = int(rng.integers(0, 3)), int(rng.integers(0, 8))
        names = range(length // block)
        chains.append([1000 * group + n if n < common else 10**6 + 100 * index + n for n in names])
    return chains


def in_sessions(rng: np.random.Generator, count: int) -> dict[str, Any]:
    """Five sessions; a step follows the one before, and now and then that of another session too."""
    after = [[index - 5] if index >= 5 else [] for index in range(count)]
    for index in range(6, count):
        if rng.random() < 0.2:
            after[index].append(index - 6)
    return {"after": after, "gap": rng.exponential(0.05, count), "session": np.arange(count) % 5}


def random_case(seed: int) -> tuple[Requests, Server]:
    """A small set-up: any scheduler, layout, prefix cache, priorities, preemption, router, open or closed."""
    rng = np.random.default_rng(seed)
    clips = ((64.0, float(rng.choice([64.0, 32.5]))), (inf, inf)) if rng.random() < 0.5 else ((inf, inf),)
    groups = ((48.0, 2), (inf, 3)) if rng.random() < 0.5 else ((inf, 1),)
    reserve = None if rng.random() < 0.7 else int(rng.choice([0, 300]))
    layout = Layout(int(rng.choice([1, 4, 16])), groups, int(rng.integers(0, 2)), reserve)
    count = int(rng.integers(1, 50))
    inputs, outputs = rng.integers(1, 120, count), rng.integers(1, 150, count)
    times = rng.exponential(float(rng.choice([0.001, 0.02, 0.1])), count).cumsum()
    shared: dict[str, Any] = {"chains": chained(rng, inputs.tolist(), 16), "block": 16} if rng.random() < 0.5 else {}
    ranked = {"priority": rng.integers(0, 3, count)} if rng.random() < 0.3 else {}
    kind = rng.random()
    closed: dict[str, Any] = {"clients": 5, "think": 0.01} if kind < 0.25 else {}
    if kind > 0.75:
        closed = in_sessions(rng, count)
    name = str(rng.choice(list(BUILT_IN)))
    chosen = policy(name, int(rng.choice([1, 4, 40])), int(rng.choice([64, 500])))
    units = layout.units(300) + int(rng.integers(0, layout.units(600)))
    made = Server(
        machine(clips=clips, arrival=float(rng.choice([0.0, 0.01]))),
        layout,
        units,
        chosen,
        replicas=int(rng.choice([1, 1, 2])),
        router=str(rng.choice(ROUTERS)),
        swap=Swap(1e-5) if rng.random() < 0.3 else None,
    )
    return requests(times.tolist(), inputs.tolist(), outputs.tolist(), **shared, **ranked, **closed), made


def common_case(seed: int) -> tuple[Requests, Server]:
    """A random case as `Express` plays it: every token of every layer in blocks, prompts that join, no priorities."""
    asked, made = random_case(seed)
    rng = np.random.default_rng(seed + 1)
    layout = Layout(int(rng.choice([1, 4, 16])), ((inf, int(rng.choice([1, 3]))),), int(rng.integers(0, 2)))
    units = layout.units(300) + int(rng.integers(0, layout.units(200)))
    chosen = policy(str(rng.choice(["chunked", "continuous"])), made.scheduler.max_batch, made.scheduler.max_tokens)
    machines = machine(arrival=made.surface.arrival)
    asked = replace(asked, chains=None, block=0, priority=None)
    return asked, replace(made, surface=machines, layout=layout, units=units, scheduler=chosen)


def drafting_case(seed: int) -> tuple[Requests, Server]:
    """A random case whose steps verify drafts, always or where that pays."""
    asked, made = random_case(seed)
    rng = np.random.default_rng(seed)
    drafts = int(rng.integers(1, 8))
    costs = {"extra": float(rng.choice([1e-4, 1e-3])), "row": float(rng.choice([1e-6, 1e-4, 3e-4]))}
    found = speculating(
        made.surface, drafts, float(rng.uniform(1.0, 1.0 + drafts)), always=bool(rng.random() < 0.3), **costs
    )
    layout = replace(made.layout, ahead=drafts)
    return asked, replace(made, surface=found, layout=layout, units=made.units + layout.units(drafts))


def both(seed: int, case: Callable[[int], tuple[Requests, Server]] = random_case) -> tuple[Played, Played]:
    """A random case, fast-forward and iteration by iteration."""
    asked, made = case(seed)
    return simulate(asked, made), simulate(asked, made, plain=True)


def tiered_case(seed: int) -> tuple[Requests, Server]:
    """A random case with a prefix cache, memories below it, and any eviction policy."""
    asked, made = random_case(seed)
    rng = np.random.default_rng(seed + 1)
    lengths = asked.input.tolist()
    asked = replace(asked, chains=chained(rng, lengths, 16), block=16)
    levels = []
    for index in range(int(rng.integers(0, 4))):
        speed = float(rng.choice([1e-7, 1e-5, 1e-3]))
        levels.append(
            Level(
                f"tier {index}",
                capacity=float(rng.choice([0.0, 1.0, 10.0, 60.0, inf])),
                read=speed,
                write=speed * float(rng.choice([1.0, 3.0])),
                latency=float(rng.choice([0.0, 1e-4, 5e-3])),
                lanes=int(rng.choice([1, 2])),
                backlog=float(rng.choice([0.25, 0.001])),
                shared=bool(rng.random() < 0.4),
                ttl=float(rng.choice([inf, 0.3])),
                size=1.0,
            )
        )
    predictor = Oracle(0.7, 0.6, horizon=0.05) if rng.random() < 0.4 else None
    eviction = Eviction(float(rng.choice([inf, 0.02, 0.3])), predictor, linger=float(rng.choice([inf, 0.0])))
    layout = replace(made.layout, reserve=None)
    units = layout.units(300) + int(rng.integers(0, layout.units(300)))
    return asked, replace(made, layout=layout, units=units, tiers=tuple(levels), eviction=eviction)
