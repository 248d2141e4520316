"""Speculative decoding in the simulation: fast-forward against plain iteration, and what drafts change."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from serving import both, drafting_case

from archsim.serving.schedulers import BUILT_IN
from archsim.serving.simulate import Played

every = pytest.mark.parametrize("name", BUILT_IN)
COUNTS = ("preempted", "recomputed", "prefilled", "generated", "swapped", "discarded")


def check_equal(seed: int) -> Played:
    fast, plain = both(seed, drafting_case)
    for name in ("arrived", "begun", "first", "end"):
        assert np.allclose(getattr(fast, name), getattr(plain, name), rtol=1e-9, atol=1e-9, equal_nan=True), name
    assert {n: getattr(fast.outcome, n) for n in COUNTS} == {n: getattr(plain.outcome, n) for n in COUNTS}
    assert [pool.taken for pool in fast.pools] == [pool.taken for pool in plain.pools]
    assert np.array_equal(fast.cached, plain.cached)
    assert fast.outcome.events <= plain.outcome.events
    for name in ("steps", "tokens", "drafted"):
        assert [log[name].sum() for log in fast.logs] == [log[name].sum() for log in plain.logs], name
    check_conserved(fast)
    return fast


def check_conserved(played: Played) -> None:
    """Every request has all its tokens, every block comes back, memory never overflows."""
    asked, out = played.requests, played.outcome
    done = played.finished
    assert done.sum() + len(out.refused) == len(asked)
    assert out.generated == asked.output[done].sum()
    for pool, log in zip(played.pools, played.logs, strict=True):
        held = pool.prefixes.held if pool.prefixes is not None else 0
        assert pool.used == held == pool.taken - pool.given <= pool.capacity
        assert log["units"].max(initial=0) <= pool.capacity


@settings(max_examples=60)
@given(st.integers(0, 10**9))
def test_fast_forward_is_plain_iteration_with_drafts(seed: int) -> None:
    check_equal(seed)


@pytest.mark.slow
@settings(max_examples=400)
@given(st.integers(0, 10**9))
def test_fast_forward_is_plain_iteration_with_drafts_many_times(seed: int) -> None:
    check_equal(seed)
