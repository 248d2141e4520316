"""Two pools in the simulation of serving: hand-over in time, memory on both sides, and where prompts are prefilled."""

from __future__ import annotations

from dataclasses import replace
from math import inf
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from serving import MOST, Steps, machine, policy, random_case, server

from archsim.serving.halves import Prefill
from archsim.serving.handover import Way
from archsim.serving.pool import Layout
from archsim.serving.schedulers import BUILT_IN
from archsim.serving.simulate import Played, Server, simulate
from archsim.workload.requests import Requests, requests

COUNTS = ("preempted", "recomputed", "prefilled", "generated", "swapped", "handed", "sent", "refused")


def way(rate: float = 1e6, latency: float = 1e-3, layers: int = 10, **more: Any) -> Way:
    return Way(((inf, 100.0),), rate, latency, layers, **more)


def pair(first: Server | None = None, second: Server | None = None, **more: Any) -> Server:
    skip = more.pop("skip", None)
    prefill = Prefill(first or server(), more.pop("way", way()), skip)
    return replace(second or server(), prefill=prefill, **more)


def random_pair(seed: int) -> tuple[Requests, Server]:
    """A random case whose prompts another pool prefills, with a memory, a policy and a way of its own."""
    asked, second = random_case(seed)
    rng = np.random.default_rng(seed + 1)
    layout = replace(second.layout, reserve=None if rng.random() < 0.7 else int(rng.choice([0, 300])))
    name = str(rng.choice(list(BUILT_IN)))
    first = replace(
        second,
        layout=layout,
        units=layout.units(300) + int(rng.integers(0, layout.units(300))),
        scheduler=policy(name, int(rng.choice([1, 4, 40])), int(rng.choice([64, 500]))),
        replicas=int(rng.choice([1, 2, 3])),
        swap=None,
    )
    lanes = (int(rng.choice([1, 2])), int(rng.choice([1, 2])))
    road = way(float(rng.choice([1e5, 1e6, 1e9])), float(rng.choice([0.0, 2e-3])), lanes=lanes)
    skip = [None, None, 0, 40, "auto"][int(rng.integers(0, 5))]
    return asked, replace(second, prefill=Prefill(first, replace(road, overlapped=bool(rng.random() < 0.7)), skip))  # type: ignore[arg-type]


def check_equal(seed: int) -> Played:
    asked, made = random_pair(seed)
    fast, plain = simulate(asked, made), simulate(asked, made, plain=True)
    for name in ("arrived", "begun", "first", "end"):
        assert np.allclose(getattr(fast, name), getattr(plain, name), rtol=1e-9, atol=1e-9, equal_nan=True), name
    assert {n: getattr(fast.outcome, n) for n in COUNTS} == {n: getattr(plain.outcome, n) for n in COUNTS}
    assert [pool.taken for pool in fast.pools] == [pool.taken for pool in plain.pools]
    check_conserved(fast)
    return fast


def check_conserved(played: Played) -> None:
    """Every request ends or is refused, every token is computed once, and every block of both pools comes back."""
    asked, out = played.requests, played.outcome
    done = played.finished
    assert done.sum() + len(out.refused) == len(asked)
    assert out.generated == asked.output[done].sum()
    assert out.prefilled == asked.input[done].sum() - played.cached[done].sum() + out.recomputed
    for pool in played.pools:
        held = pool.prefixes.held if pool.prefixes is not None else 0
        assert pool.used == held == pool.taken - pool.given <= pool.capacity
    for log in played.logs:
        assert (np.diff(log["start"]) >= log["seconds"][:-1] - 1e-9).all()


@settings(max_examples=30)
@given(st.integers(0, 10**9))
def test_fast_forward_is_plain_iteration_in_two_pools(seed: int) -> None:
    check_equal(seed)


@pytest.mark.slow
@settings(max_examples=300)
@given(st.integers(0, 10**9))
def test_fast_forward_is_plain_iteration_in_two_pools_many_times(seed: int) -> None:
    check_equal(seed)
