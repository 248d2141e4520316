"""Speculative decoding in the simulation: fast-forward against plain iteration, and what drafts change."""

from __future__ import annotations

from dataclasses import replace
from math import inf

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from serving import both, drafting_case, machine, policy, speculating

from archsim.serving.drafting import Pace, floor_sum
from archsim.serving.measures import Measures
from archsim.serving.outcome import Swap
from archsim.serving.pool import Layout
from archsim.serving.schedulers import BUILT_IN
from archsim.serving.simulate import Played, Server, simulate
from archsim.serving.speculation import expected_tokens
from archsim.workload.requests import Requests, requests

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


@pytest.mark.parametrize("swap", [None, Swap(1e-5)])
@pytest.mark.parametrize("name", BUILT_IN)
def test_every_scheduler_and_preemption(name: str, swap: Swap | None) -> None:
    rng = np.random.default_rng(1)
    asked = requests(
        rng.exponential(0.003, 60).cumsum().tolist(),
        rng.integers(1, 100, 60).tolist(),
        rng.integers(1, 120, 60).tolist(),
    )
    made = drafting(gain=2.3, units=110, name=name, swap=swap, watermark=0.0, extra=4e-4, row=1e-4)
    fast, plain = simulate(asked, made), simulate(asked, made, plain=True)
    assert np.allclose(fast.end, plain.end, rtol=1e-9, atol=1e-9)
    assert {n: getattr(fast.outcome, n) for n in COUNTS} == {n: getattr(plain.outcome, n) for n in COUNTS}
    assert [pool.taken for pool in fast.pools] == [pool.taken for pool in plain.pools]
    assert fast.outcome.preempted > 0 or name in ("static", "decode-first")
    assert 0 < Measures(fast).drafted < 1
    check_conserved(fast)


def drafting(gain: float, drafts: int = 3, units: int = 1000, name: str = "chunked", **more: object) -> Server:
    """A server with drafts; surfaces cost nothing for contexts, so that the batch alone decides."""
    costs = {key: more.pop(key) for key in ("extra", "row", "always") if key in more}
    flat = replace(machine(), slope=[[0.0] * 65])
    made = speculating(flat, drafts, gain, **costs)  # type: ignore[arg-type]
    layout = Layout(4, ((inf, 1),), ahead=drafts)
    return Server(made, layout, units, policy(name, 24, 256), **more)  # type: ignore[arg-type]


def without(made: Server) -> Server:
    """The same server without drafts."""
    return replace(made, surface=replace(made.surface, drafted=None), layout=replace(made.layout, ahead=0))


# Tokens and steps


def test_tokens_a_step_by_hand() -> None:
    assert expected_tokens(0.5, 3) == pytest.approx(1 + 0.5 + 0.25 + 0.125)
    assert expected_tokens((0.9, 0.5), 2) == pytest.approx(1 + 0.9 + 0.9 * 0.5)
    pace = going(2.5)
    assert [pace.tokens(steps) for steps in range(6)] == [0, 2, 5, 7, 10, 12]
    assert [pace.reach(tokens) for tokens in (1, 2, 3, 5, 6)] == [1, 1, 2, 2, 3]
    assert [pace.within(tokens) for tokens in (1, 2, 5, 6)] == [0, 1, 2, 2]
    assert pace.take(1) == 2 and pace.take(1) == 3  # what is left over is carried on


def going(gain: float) -> Pace:
    """A pace with drafts."""
    made = speculating(machine(), 3, gain, always=True)
    assert made.drafted is not None
    pace = Pace(made, made.drafted)
    pace.choose(1, [1.0])
    return pace


@given(st.floats(1.0, 8.0), st.integers(0, 50), st.integers(1, 60), st.integers(1, 100))
def test_many_steps_are_the_same_arithmetic_as_one_by_one(gain: float, before: int, steps: int, tokens: int) -> None:
    pace, single = going(gain), going(gain)
    pace.take(before)
    assert sum(single.take(1) for _ in range(before)) == going(gain).tokens(before)
    got = [pace.tokens(n) for n in range(steps + 1)]
    assert pace.summed(steps) == sum(got[:-1])
    assert pace.tokens(pace.reach(tokens)) >= tokens and (
        pace.reach(tokens) == 1 or pace.tokens(pace.reach(tokens) - 1) < tokens
    )
    assert pace.tokens(pace.within(tokens)) <= tokens < pace.tokens(pace.within(tokens) + 1)


@given(st.integers(0, 200), st.integers(1, 10**6), st.integers(0, 10**7), st.integers(0, 10**7))
def test_floor_sum(count: int, divisor: int, factor: int, offset: int) -> None:
    assert floor_sum(count, divisor, factor, offset) == sum((factor * i + offset) // divisor for i in range(count))


# What drafts change


def slowly(count: int = 10, answer: int = 41) -> Requests:
    """Requests that never meet."""
    return requests([float(i) for i in range(count)], 50, answer)


def test_a_lone_request_takes_its_steps_with_drafts() -> None:
    made = drafting(gain=2.5, always=True, extra=4e-4, row=2e-6)
    played = simulate(requests([0.0], 50, 41), made)
    step = made.surface.drafted.surface.decode(1, [0.0])  # type: ignore[union-attr]
    assert step == pytest.approx(1e-3 + 1e-5 + 4e-4 + 3 * 2e-6)
    assert played.end[0] - played.first[0] == pytest.approx(16 * step)  # 40 tokens by 2.5
    assert played.outcome.discarded == 0
    assert simulate(requests([0.0], 50, 42), made).outcome.discarded == 1  # 41 tokens: 17 steps give 42
    assert played.outcome.generated == 41


def test_rejected_drafts_only_add_their_costs() -> None:
    made = drafting(gain=1.0, always=True, extra=4e-4, row=2e-6)
    with_drafts, plain = simulate(slowly(), made), simulate(slowly(), without(made))
    added = (with_drafts.end - with_drafts.first) - (plain.end - plain.first)
    assert added == pytest.approx(np.full(10, 40 * (4e-4 + 3 * 2e-6)))
    unpaid = simulate(slowly(), drafting(gain=1.0, extra=4e-4, row=2e-6))
    assert np.allclose(unpaid.end, plain.end, rtol=1e-12) and Measures(unpaid).drafted == 0


def test_first_tokens_come_as_soon_and_the_others_sooner() -> None:
    made = drafting(gain=2.5, extra=1e-4)
    with_drafts, plain = Measures(simulate(slowly(), made)), Measures(simulate(slowly(), without(made)))
    assert np.allclose(with_drafts.ttft, plain.ttft, rtol=1e-12)
    assert with_drafts.latency("tpot")["mean"] == pytest.approx(
        plain.latency("tpot")["mean"] * 1.116e-3 / 1.01e-3 / 2.5
    )
    assert with_drafts.tokens_per_step == pytest.approx(2.5)


def test_drafts_are_switched_off_where_they_no_longer_pay() -> None:
    made = drafting(gain=2.0, extra=4e-4, row=4e-5, units=10_000)
    # 1 ms + 10 us B + 0.4 ms + 3 x 40 us B < 2 (1 ms + 10 us B) up to B = 5
    asked = requests(np.random.default_rng(0).exponential(0.004, 400).cumsum().tolist(), 20, 30)
    log = simulate(asked, made).logs[0]
    decoding = log["decoding"] > 0
    assert set(log["decoding"][decoding & (log["drafted"] > 0)]) == {1, 2, 3, 4, 5}
    assert log["decoding"][decoding & (log["drafted"] == 0)].min() == 6
    always = drafting(gain=2.0, extra=4e-4, row=4e-5, units=10_000, always=True)
    assert Measures(simulate(asked, made)).e2e.mean() < Measures(simulate(asked, always)).e2e.mean()


def test_drafts_of_a_step_count_among_its_tokens() -> None:
    asked = requests([0.0] * 40, 200, 60)
    log = simulate(asked, drafting(gain=2.0, units=10_000, always=True)).logs[0]
    assert (log["prefilled"] + 4 * log["decoding"]).max() <= 256


def test_a_sequence_that_fills_memory_has_room_for_its_drafts() -> None:
    made = drafting(gain=3.7, units=50, always=True)
    most = 50 * 4 - 2 * 3  # room for drafts, and for what the last step gives beyond the end
    played = simulate(requests([0.0, 0.0], [100, 100], [most - 99, most - 98]), made)
    assert played.finished.tolist() == [True, False] and played.outcome.refused
    check_conserved(played)
