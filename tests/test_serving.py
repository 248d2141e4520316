"""The simulation of serving: fast-forward against plain iteration, queues with known answers, conservation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import inf

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from serving import Steps, both, common_case, machine, policy, random_case, server

from archsim.arrays import Array
from archsim.serving.express import Express
from archsim.serving.goodput import largest_rate
from archsim.serving.measures import Measures, Targets, quantile
from archsim.serving.outcome import Swap
from archsim.serving.pool import Layout, Pool, Prefixes
from archsim.serving.schedulers import BUILT_IN
from archsim.serving.simulate import Played, Server, simulate
from archsim.workload.requests import Requests, requests

every = pytest.mark.parametrize("name", BUILT_IN)
COUNTS = ("preempted", "recomputed", "prefilled", "generated", "swapped")


def poisson(rate: float, count: int, seed: int = 0, tokens: int = 50, answer: int = 40) -> Requests:
    times = np.random.default_rng(seed).exponential(1.0 / rate, count).cumsum()
    return requests(times.tolist(), tokens, answer)


def total(played: Played, column: str) -> float:
    return sum(float(log[column].sum()) for log in played.logs)


# Fast-forward is plain iteration


def check_equal(seed: int, case: Callable[[int], tuple[Requests, Server]] = random_case) -> None:
    fast, plain = both(seed, case)
    for name in ("arrived", "begun", "first", "end"):
        assert np.allclose(getattr(fast, name), getattr(plain, name), rtol=1e-9, atol=1e-9, equal_nan=True), name
    assert {n: getattr(fast.outcome, n) for n in COUNTS} == {n: getattr(plain.outcome, n) for n in COUNTS}
    assert [pool.taken for pool in fast.pools] == [pool.taken for pool in plain.pools]
    assert np.array_equal(fast.cached, plain.cached)
    assert fast.outcome.events <= plain.outcome.events
    check_conserved(fast)


def check_conserved(played: Played) -> None:
    """Every request ends or is refused, every token is computed once and what is lost again, every block comes back."""
    asked, out = played.requests, played.outcome
    assert played.finished.sum() + len(out.refused) == len(asked)
    done = played.finished
    assert out.generated == asked.output[done].sum()
    fresh = asked.input[done].sum() - played.cached[done].sum()
    assert out.prefilled == fresh + out.recomputed == total(played, "prefilled")
    for pool in played.pools:
        held = pool.prefixes.held if pool.prefixes is not None else 0
        assert pool.used == held == pool.taken - pool.given <= pool.capacity


@settings(max_examples=30)
@given(st.integers(0, 10**9))
def test_fast_forward_is_plain_iteration(seed: int) -> None:
    check_equal(seed)


@pytest.mark.slow
@settings(max_examples=300)
@given(st.integers(0, 10**9))
def test_fast_forward_is_plain_iteration_many_times(seed: int) -> None:
    check_equal(seed)


@settings(max_examples=30)
@given(st.integers(0, 10**9))
def test_the_common_case_is_plain_iteration(seed: int) -> None:
    check_equal(seed, common_case)


@pytest.mark.slow
@settings(max_examples=300)
@given(st.integers(0, 10**9))
def test_the_common_case_is_plain_iteration_many_times(seed: int) -> None:
    check_equal(seed, common_case)


def test_the_common_case_has_a_way_of_its_own_and_preempts_there() -> None:
    found = [both(seed, common_case)[0] for seed in range(20)]
    for played in found:
        pool = Pool(played.server.layout, played.server.units)
        assert Express.suits(played.requests, played.server.surface, pool, played.server.scheduler)
    assert any(played.outcome.preempted > 5 and not played.outcome.swapped for played in found)
    assert any(played.outcome.swapped > 0 for played in found)


def test_some_of_the_cases_preempt_and_some_find_prefixes() -> None:
    """The comparison would prove little if these never happened."""
    found = [both(seed)[0] for seed in range(40)]
    assert any(played.outcome.preempted > 5 and not played.outcome.swapped for played in found)
    assert any(played.outcome.swapped > 0 for played in found)
    assert any(played.cached.sum() > 0 for played in found)


@every
def test_no_step_exceeds_the_limits(name: str) -> None:
    played = simulate(poisson(200.0, 200), server(400, name=name, batch=8, tokens=120))
    log = played.logs[0]
    assert log["running"].max() <= 8 and log["units"].max() <= 400
    assert log["prefilled"].max() <= 120
    if name == "chunked":
        assert (log["prefilled"] + log["decoding"]).max() <= 120


@every
def test_tokens_of_all_iterations_are_those_of_all_answers(name: str) -> None:
    asked = poisson(50.0, 100)
    played = simulate(asked, server(5000, name=name))
    log = played.logs[0]
    if name != "static":  # whose padding computes tokens that nobody wants
        assert (log["decoding"] * log["steps"]).sum() + len(asked) == asked.output.sum()
    else:
        assert (log["decoding"] * log["steps"]).sum() + len(asked) >= asked.output.sum()


# Queues with known answers: one slot, one token


@dataclass(frozen=True)
class PerToken(Steps):
    """A request takes its tokens times a constant."""

    def seconds(self, batch: int, sums: Sequence[float], chunks: Sequence[tuple[int, int]]) -> float:
        return sum(new for new, _ in chunks) * 1e-6


def waits(load: float, exponential: bool, count: int = 30_000, parts: int = 20) -> tuple[float, float]:
    """Mean wait in the queue and the half width of its 99.8 % interval, by batch means; services of mean 0.01 s."""
    rng = np.random.default_rng(7)
    times = rng.exponential(0.01 / load, count).cumsum()
    tokens = np.maximum(rng.exponential(10_000, count).round(), 1) if exponential else np.full(count, 10_000)
    asked = requests(times.tolist(), tokens.astype(int).tolist(), 1)
    one = server(10**9, name="continuous", batch=1, tokens=10**9, surface=machine(PerToken()))
    means = Measures(simulate(asked, one)).queue.reshape(parts, -1).mean(axis=1)
    return float(means.mean()), 3.58 * float(means.std(ddof=1)) / parts**0.5


@pytest.mark.parametrize("load", [0.3, 0.6])
def test_exponential_services_wait_as_in_an_m_m_1_queue(load: float) -> None:
    mean, width = waits(load, True)
    assert mean == pytest.approx(0.01 * load / (1 - load), abs=width)
    assert width < 0.3 * mean


@pytest.mark.parametrize("load", [0.3, 0.6])
def test_constant_services_wait_as_in_an_m_d_1_queue(load: float) -> None:
    mean, width = waits(load, False)
    assert mean == pytest.approx(0.01 * load / (2 * (1 - load)), abs=width)
    assert width < 0.3 * mean


@pytest.mark.parametrize("name", ["chunked", "continuous", "prefill-first"])  # the others look at arrivals later
def test_littles_law(name: str) -> None:
    """Requests in the system over time are their times in it; a stretch knows only those that came before it."""
    asked = poisson(30.0, 1000)
    played = simulate(asked, server(5000, name=name, batch=32))
    log = played.logs[0]
    present = ((log["running"] + log["waiting"]) * log["seconds"]).sum()
    spent = Measures(played).e2e.sum()
    assert present == pytest.approx(spent, rel=0.05)


# One request


@every
def test_a_lone_request_takes_its_steps(name: str) -> None:
    asked, one = requests([1.0], 100, 30), server(name=name, tokens=100)
    played = simulate(asked, one)
    steps = [one.surface.decode(1, [100.0 + n]) for n in range(1, 30)]
    assert played.first[0] == pytest.approx(1.0 + Steps().seconds(0, [], [(100, 0)]), rel=1e-12)
    assert played.end[0] - played.first[0] == pytest.approx(sum(steps), rel=1e-12)


def test_a_long_prompt_is_prefilled_in_chunks() -> None:
    played = simulate(requests([0.0], 250, 2), server(tokens=100))
    assert played.logs[0]["prefilled"].tolist() == [100, 100, 50, 0]
    expected = sum(Steps().seconds(0, [], [chunk]) for chunk in ((100, 0), (100, 100), (50, 200)))
    assert played.first[0] == pytest.approx(expected, rel=1e-12)


def test_the_time_of_an_output_token_leaves_the_first_out() -> None:
    played = simulate(requests([0.0, 5.0], 10, [1, 101]), server())
    shifted = replace(played, first=np.array([0.5, 0.5]), end=np.array([0.5, 10.5]))
    assert np.isnan(Measures(shifted).tpot[0])
    assert Measures(shifted).tpot[1] == pytest.approx(0.1, rel=1e-12)


# Policies


def test_continuous_batching_outruns_static_batches() -> None:
    rng = np.random.default_rng(3)
    asked = requests([0.0] * 200, 20, rng.integers(1, 200, 200).tolist())
    rate = {name: Measures(simulate(asked, server(5000, name=name))).output_rate for name in ("static", "continuous")}
    assert rate["continuous"] > 1.3 * rate["static"]


def test_paging_runs_more_sequences_than_reservations() -> None:
    asked = poisson(500.0, 300)
    paged = Measures(simulate(asked, server(60, batch=64)))
    reserved = Measures(simulate(asked, server(60, batch=64, layout=Layout(16, ((inf, 1),), reserve=256))))
    assert reserved.batch <= 60 * 16 / 256
    assert paged.batch > 2 * reserved.batch


def test_decode_first_keeps_tokens_steady_and_prefill_first_keeps_queues_short() -> None:
    asked = poisson(60.0, 400, tokens=400)
    found = {name: Measures(simulate(asked, server(5000, name=name, batch=32))) for name in BUILT_IN}
    assert found["prefill-first"].latency("ttft")["mean"] < found["decode-first"].latency("ttft")["mean"]
    assert found["decode-first"].latency("tpot")["mean"] < found["prefill-first"].latency("tpot")["mean"]


def test_a_smaller_budget_shortens_the_longest_gap_between_tokens() -> None:
    asked = poisson(40.0, 300, tokens=900)
    gaps = [Measures(simulate(asked, server(9000, tokens=tokens))).latency("itl")["p99"] for tokens in (64, 1024)]
    assert gaps[0] < gaps[1]


def test_priorities_go_first() -> None:
    ranks = np.array([0, 0, 0, 0, 5])
    asked = replace(requests([0.0, 0.0, 0.0, 0.0, 1e-4], 50, 50), priority=ranks)
    played = simulate(asked, server(batch=1))
    assert played.begun[4] < played.begun[1:4].min() and played.begun[0] < played.begun[4]


@pytest.mark.parametrize("swap", [None, Swap(1e-4)])
def test_preemption_loses_nothing(swap: Swap | None) -> None:
    played = simulate(poisson(1000.0, 60, answer=100), server(40, swap=swap, watermark=0.0))
    assert played.outcome.preempted > 0
    assert (played.outcome.recomputed == 0) == (swap is not None)
    check_conserved(played)


def test_routers_spread_load_and_keep_prefixes_together() -> None:
    rng = np.random.default_rng(0)
    group = rng.integers(0, 40, 800)
    chains = [[int(g) * 100 + n for n in range(12)] for g in group]
    asked = replace(poisson(150.0, 800, tokens=200, answer=10), chains=chains, block=16)
    hits = {
        router: Measures(simulate(asked, server(300, replicas=4, router=router))).hit_rate
        for router in ("round-robin", "least-loaded", "prefix-affine")
    }
    assert hits["prefix-affine"] > 1.2 * hits["round-robin"]
    check_conserved(simulate(asked, server(300, replicas=4, router="prefix-affine")))


# The prefix cache


def test_a_chain_without_its_head_hits_nothing() -> None:
    cache = Prefixes(16, 1)
    cache.add([1, 2, 3])
    cache.release([1, 2, 3])
    cache.use([3])
    cache.release([3])
    assert cache.lookup([1, 2, 3]) == 3
    assert cache.evict(2) == 2  # 2 and 1: least recently used, tail first
    assert cache.lookup([1, 2, 3]) == 0 and cache.held == 1


def test_the_tail_of_a_chain_goes_first() -> None:
    cache = Prefixes(16, 1)
    cache.add([1, 2, 3])
    cache.release([1, 2, 3])
    cache.evict(1)
    assert cache.lookup([1, 2, 3]) == 2


def test_blocks_in_use_are_not_evicted() -> None:
    cache = Prefixes(16, 1)
    cache.add([1, 2])
    assert cache.evict(2) == 0 and cache.lookup([1, 2]) == 2


@pytest.mark.parametrize(("tokens", "hit"), [(64, 48), (65, 64), (15, 0), (16, 0), (17, 16)])
def test_the_last_token_is_always_computed(tokens: int, hit: int) -> None:
    chain = list(range(tokens // 16))
    asked = replace(requests([0.0, 1.0], tokens, 3), chains=[chain, chain], block=16)
    assert simulate(asked, server()).cached.tolist() == [0.0, float(hit)]


def test_what_is_preempted_is_no_new_hit() -> None:
    chains = [[100 * n + i for i in range(3)] for n in range(60)]
    asked = replace(poisson(1000.0, 60, answer=100), chains=chains, block=16)
    played = simulate(asked, server(40, watermark=0.0))
    assert played.outcome.preempted > 0 and played.cached.sum() == 0


# Answers with a reason, never a hang


def test_no_requests_and_no_memory() -> None:
    nothing = Measures(simulate(requests([], [], []), server()))
    assert nothing.finished == 0 and np.isnan(nothing.latency("ttft")["p99"]) and np.isnan(nothing.output_rate)
    played = simulate(requests([0.0, 0.0], [10, 100_000], 5), server())
    assert played.finished.tolist() == [True, False] and "more than the KV memory holds" in played.outcome.refused[1]
    reserved = simulate(requests([0.0], 200, 100), server(layout=Layout(16, ((inf, 1),), reserve=256)))
    assert "reserves" in reserved.outcome.refused[0]


def test_a_closed_loop_goes_on_after_a_refusal() -> None:
    asked = replace(requests([0.0] * 6, [10, 100_000, 10, 100_000, 10, 10], 5), clients=1)
    assert simulate(asked, server()).finished.sum() == 4


def test_limits_say_that_they_were_reached() -> None:
    asked = poisson(1e5, 2000)
    late = simulate(asked, server(), seconds=0.5)
    assert "time limit" in late.outcome.stopped and late.seconds < 1.0 and not late.finished.all()
    short = simulate(asked, server(), events=10)
    assert "10 events" in short.outcome.stopped and short.outcome.events == 10


def test_the_largest_rate_that_holds() -> None:
    made = server(5000)

    def play(rate: float, seed: int) -> Measures:
        return Measures(simulate(poisson(rate, 300, seed), made))

    targets = Targets(ttft=0.05, tpot=0.005)
    found = largest_rate(play, targets, 1.0)
    assert found.rate > 1.0 and 0 < found.width < found.rate
    assert play(found.rates[0], 0).share(targets) >= 0.9 > play(found.rates[0] * 1.05, 0).share(targets)
    none = largest_rate(play, Targets(ttft=1e-9), 1.0, 1)
    assert none.rate == 0 and "even at" in none.reason


def test_the_same_seed_gives_the_same_bytes() -> None:
    times = [simulate(poisson(50.0, 200), server()).end.tobytes() for _ in range(2)]
    assert times[0] == times[1]


def test_quantiles_weigh() -> None:
    values: Array = np.array([3.0, 1.0, 2.0])
    assert quantile(values, np.array([1.0, 8.0, 1.0]), 0.8) == 1.0
    assert quantile(values, np.array([1.0, 8.0, 1.0]), 0.81) == 2.0
    assert np.isnan(quantile(values[:0], values[:0], 0.5))


def test_a_schedulers_limits_are_its_own() -> None:
    assert policy("static").padded and policy("static").whole and not policy("chunked").padded


@pytest.mark.parametrize(
    "more", [{}, {"replicas": 2, "router": "round-robin"}, {"replicas": 2, "router": "least-loaded"}]
)
def test_progress_is_told_and_changes_nothing(more: dict[str, object]) -> None:
    told: list[float] = []
    asked, made = poisson(100.0, 500), server(2000, **more)
    watched, alone = simulate(asked, made, progress=told.append), simulate(asked, made)
    assert np.array_equal(watched.end, alone.end) and not watched.outcome.stopped
    assert len(told) > 50 and told == sorted(told) and told[0] >= 0 and 0.9 < told[-1] <= 1.0
    limited = simulate(asked, made, progress=told.append, events=30)
    assert limited.outcome.events <= 31 and "events" in limited.outcome.stopped


# Sessions


def in_turn(count: int, gap: float, **more: object) -> Requests:
    """One session of equal steps."""
    after = [[index - 1] if index else [] for index in range(count)]
    return requests([0.0] * count, 100, 10, after=after, gap=np.full(count, gap), session=np.zeros(count, int), **more)


@pytest.mark.parametrize("router", ["round-robin", "least-loaded", "session-affine"])
def test_a_step_of_a_session_comes_a_gap_after_the_one_before(router: str) -> None:
    made = server(replicas=2, router=router)
    alone = simulate(requests([0.0], 100, 10), made).end[0]
    found = simulate(in_turn(5, 2.0), made)
    assert np.allclose(found.end, alone + np.arange(5) * (alone + 2.0))


def test_a_step_waits_for_all_that_it_names() -> None:
    asked = requests([0.0] * 3, [100, 100, 10], [5, 80, 1], after=[[], [], [0, 1]], gap=np.array([0.0, 0.0, 1.0]))
    found = simulate(asked, server(replicas=2, router="least-loaded"))
    assert found.arrived[2] == max(found.end[:2]) + 1.0


def test_sessions_stay_where_their_first_step_went() -> None:
    count = 40
    after = [[index - 4] if index >= 4 else [] for index in range(count)]
    chains = [[1000 * (index % 4) + name for name in range(index // 4 + 4)] for index in range(count)]
    asked = requests(
        np.arange(count) * 1e-4, 200, 5, after=after, gap=np.full(count, 0.01), session=np.arange(count) % 4,
        chains=chains, block=16,
    )  # fmt: skip
    found = {name: simulate(asked, server(replicas=2, router=name)) for name in ("session-affine", "least-loaded")}
    assert found["session-affine"].cached.sum() >= found["least-loaded"].cached.sum() > 0
    assert all(played.finished.all() for played in found.values())
