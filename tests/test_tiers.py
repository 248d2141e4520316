"""KV memory below the chips: what sinks, what is loaded, what is computed instead, and what it costs to hold."""

from __future__ import annotations

import json
from dataclasses import replace
from math import inf
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from serving import Steps, machine, server, tiered_case

import archsim
from archsim.arrays import array
from archsim.catalog import CatalogError
from archsim.economics.holding import bought, break_even, recomputing, within
from archsim.economics.terms import Terms
from archsim.explore.evaluate import deployment_of
from archsim.explore.keeping import keeping
from archsim.report.keeping import keeping_table
from archsim.report.serving import to_json
from archsim.serving.eviction import Eviction, Order
from archsim.serving.measures import Measures
from archsim.serving.returning import Oracle, Regression
from archsim.serving.server import server_of
from archsim.serving.simulate import Played, simulate
from archsim.serving.tiers import Level, Recompute, Tier, Tiered
from archsim.workload.requests import Requests, requests
from archsim.workload.traces import load_trace

SHARED = Path(__file__).parent.parent.parent / "shared" / "traces"
COUNTS = ("preempted", "recomputed", "prefilled", "generated", "swapped")


# Fast-forward is plain iteration


def below(played: Played) -> list[tuple[int, ...]]:
    caches = [pool.prefixes for pool in played.pools if isinstance(pool.prefixes, Tiered)]
    return [(t.hits, t.loaded, t.written, t.refused, len(t)) for cache in caches for t in cache.below]


def check(seed: int) -> Played:
    asked, made = tiered_case(seed)
    fast, plain = simulate(asked, made), simulate(asked, made, plain=True)
    for name in ("arrived", "begun", "first", "end"):
        assert np.allclose(getattr(fast, name), getattr(plain, name), rtol=1e-9, atol=1e-9, equal_nan=True), name
    assert {n: getattr(fast.outcome, n) for n in COUNTS} == {n: getattr(plain.outcome, n) for n in COUNTS}
    assert [pool.taken for pool in fast.pools] == [pool.taken for pool in plain.pools]
    assert np.array_equal(fast.cached, plain.cached)
    assert below(fast) == below(plain)
    check_conserved(fast)
    return fast


def check_conserved(played: Played) -> None:
    """Tokens are found, loaded or computed; blocks taken are given back or held; no hit is beyond the bound."""
    asked, out, done = played.requests, played.outcome, played.finished
    assert done.sum() + len(out.refused) == len(asked)
    assert out.generated == asked.output[done].sum()
    assert out.prefilled == asked.input[done].sum() - played.cached[done].sum() + out.recomputed
    for pool in played.pools:
        held = pool.prefixes.held if pool.prefixes is not None else 0
        assert pool.used == held == pool.taken - pool.given <= pool.capacity
    m = Measures(played)
    assert np.isnan(m.bound) or m.hit_rate <= m.bound * (1 + 1e-12)
    assert sum(use.share for use in m.tiers) == pytest.approx(m.hit_rate, nan_ok=True)
    assert all(use.hits >= 0 and use.held >= 0 for use in m.tiers)


@settings(max_examples=25)
@given(st.integers(0, 10**9))
def test_fast_forward_is_plain_iteration(seed: int) -> None:
    check(seed)


@pytest.mark.slow
@settings(max_examples=300)
@given(st.integers(0, 10**9))
def test_fast_forward_is_plain_iteration_many_times(seed: int) -> None:
    check(seed)


def test_some_of_the_cases_load_and_some_writes_are_refused() -> None:
    """The comparison would prove little if these never happened."""
    found = [row for seed in range(60) for row in below(simulate(*tiered_case(seed)))]
    hits, loaded, written, refused, _ = np.array(found).sum(axis=0)
    assert 0 < hits <= loaded and written > loaded and refused > 0


# Load or recompute


def returning(blocks: int, gap: float = 1.0, others: int = 5) -> Requests:
    """A prompt that comes twice; meanwhile others fill the memory of the chips."""
    count = others + 2
    chains = [list(range(blocks)), *([1000 * n + i for i in range(blocks)] for n in range(1, others + 1))]
    times = [0.0, *(gap * n for n in range(1, others + 1)), gap * (others + 1)]
    return requests(times, 16 * blocks + 1, 2, chains=[*chains, chains[0]], block=16) if count else requests([], 1, 1)


def test_a_block_that_was_evicted_is_loaded_where_that_is_sooner() -> None:
    asked, fast = returning(8), Level("cpu", read=1e-6, write=1e-6)
    base = simulate(asked, server(20))
    with_tier = simulate(asked, server(20, tiers=(fast,)))
    assert base.cached[-1] == 0 and with_tier.cached[-1] == 8 * 16
    assert with_tier.first[-1] - with_tier.arrived[-1] < base.first[-1] - base.arrived[-1]
    alone = Steps().seconds(0, [], [(1, 128)])
    assert with_tier.first[-1] - with_tier.arrived[-1] == pytest.approx(8e-6 + alone, rel=1e-9)


def test_what_is_slower_to_load_is_computed() -> None:
    played = simulate(returning(8), server(20, tiers=(Level("ssd", read=1.0, write=1e-6),)))
    assert played.cached[-1] == 0 and below(played)[0][1] == 0


def test_latency_and_queue_decide_too() -> None:
    lone = machine(Steps(fixed=0.0, pair=0.0))
    each = 16 * 1e-5  # seconds to compute a block
    for latency, loaded in ((7.9 * each, True), (8.1 * each, False)):
        played = simulate(returning(8), server(20, surface=lone, tiers=(Level("ssd", latency=latency),)))
        assert (played.cached[-1] > 0) == loaded


def test_the_best_cut_loads_what_is_near_and_computes_the_rest() -> None:
    """Three blocks in a fast tier, five in one slower than computing."""
    near, far = Tier(Level("near", read=1e-6)), Tier(Level("far", read=1.0))
    near.take([(name, False, 0.0) for name in (0, 1, 2)])
    far.take([(name, False, 0.0) for name in (3, 4, 5, 6, 7)])
    cache = Tiered(16, 1, [near, far], Recompute(machine(), 256))
    cache.clock = lambda: 1.0
    load = cache.fetch(list(range(8)), 129, 0)
    assert load is not None and load.end == 3 and load.done == pytest.approx(1.0 + 3e-6)


def test_a_chain_with_its_head_gone_finds_nothing() -> None:
    tier = Tier(Level("cpu"))
    tier.take([(name, False, 0.0) for name in (1, 2, 3)])
    cache = Tiered(16, 1, [tier], Recompute(machine(), 256))
    cache.clock = lambda: 1.0
    assert cache.fetch([0, 1, 2, 3], 65, 0) is None
    cache.add([0])
    assert cache.fetch([0, 1, 2, 3], 65, 1) is not None


def test_a_block_is_not_there_before_it_is_written() -> None:
    tier = Tier(Level("cpu", write=0.5))
    tier.take([(1, False, 0.0), (2, False, 0.0)])
    assert [tier.has(1, 0.4), tier.has(1, 0.5), tier.has(2, 0.9), tier.has(2, 1.0)] == [False, True, False, True]


def test_loads_wait_for_one_another_and_lanes_share() -> None:
    for lanes, second in ((1, 1.1), (4, 0.65)):
        tier = Tier(Level("cpu", read=0.1, latency=0.0, lanes=lanes))
        tier.take([(name, False, 0.0) for name in range(10)])
        assert tier.load(range(6), 0.0) == pytest.approx(0.6)
        assert tier.loading(5, 0.0) == pytest.approx(second)


def test_writes_that_cannot_keep_up_are_not_kept() -> None:
    tier = Tier(Level("ssd", write=0.1, backlog=0.25))
    tier.take([(name, False, 0.0) for name in range(10)])
    assert len(tier) == 3 and tier.refused == 7


def test_blocks_sink_from_tier_to_tier() -> None:
    tiers = [Tier(Level("cpu", capacity=2.0)), Tier(Level("ssd", capacity=3.0))]
    cache = Tiered(16, 1, tiers, Recompute(machine(), 256))
    cache.add(list(range(8)))
    cache.release(list(range(8)))
    cache.evict(8)
    cache.settle()
    assert [len(tier) for tier in tiers] == [2, 3] and cache.gone == 3
    assert [name for name in range(8) if tiers[0].has(name, 1.0)] == [0, 1]
    assert [name for name in range(8) if tiers[1].has(name, 1.0)] == [2, 3, 4]


def test_shared_tiers_serve_all_replicas() -> None:
    rng = np.random.default_rng(0)
    group = rng.integers(0, 40, 600)
    chains = [[int(g) * 100 + n for n in range(12)] for g in group]
    times = rng.exponential(1 / 40, 600).cumsum()
    asked = requests(times.tolist(), 200, 10, chains=chains, block=16)
    hits = {}
    for shared in (False, True):
        tier = Level("remote", read=1e-5, write=1e-5, shared=shared)
        hits[shared] = Measures(simulate(asked, server(100, replicas=4, tiers=(tier,)))).hit_rate
    assert hits[True] > hits[False] + 0.05


# Eviction


def test_idle_blocks_go_after_their_time_to_the_second() -> None:
    chain = list(range(4))
    for gap, hit in ((0.99, 64), (1.01, 0)):
        asked = requests([0.0], 65, 1)
        asked = requests([0.0, 0.0], 65, 1, after=[[], [0]], gap=np.array([0.0, gap]), chains=[chain] * 2, block=16)
        played = simulate(asked, server(1000, eviction=Eviction(ttl=1.0)))
        assert played.cached[1] == hit


def test_what_is_too_old_sinks() -> None:
    chain = list(range(4))
    asked = requests([0.0, 0.0], 65, 1, after=[[], [0]], gap=np.array([0.0, 5.0]), chains=[chain] * 2, block=16)
    played = simulate(asked, server(1000, eviction=Eviction(ttl=1.0), tiers=(Level("cpu", read=1e-6),)))
    assert played.cached[1] == 64 and below(played)[0][:2] == (4, 4)


def test_those_said_to_leave_go_first() -> None:
    order = Order()
    order.resting[1] = 0.0
    order.leaving[2] = 1.0
    order.resting[3] = 2.0
    assert [name for name, _, _ in order.pop(9, 3.0, 3.0)] == [2, 1, 3]
    assert order.held == 3.0 + 2.0 + 1.0 and not len(order)


def test_those_said_to_leave_may_go_at_once() -> None:
    """And are found in the tier below."""
    chain = list(range(4))
    asked = requests([0.0, 0.0], 65, 1, after=[[], [0]], gap=np.array([0.0, 5.0]), chains=[chain] * 2, block=16)
    policy = Eviction(predictor=Oracle(horizon=1.0), linger=0.0)
    played = simulate(asked, server(1000, eviction=policy, tiers=(Level("cpu", read=1e-6, size=1.0),)))
    assert played.cached[1] == 64 and below(played)[0][:2] == (4, 4)
    assert Measures(played).tiers[0].held == 0 < Measures(played).tiers[1].held


def agents(rng: np.random.Generator, count: int = 20, steps: int = 15) -> Requests:
    """Agents that come back every two seconds, among requests that never do."""
    rows: list[tuple[float, int, int, int]] = [  # order, agent, step, blocks
        (2.0 * step + 2.0 * who / count, who, step, 8) for step in range(steps) for who in range(count)
    ]
    once = rng.uniform(0, 2.0 * steps, 12 * steps)
    rows += [(float(time), count + index, 0, 12) for index, time in enumerate(once)]
    rows.sort()
    places = {(who, step): index for index, (_, who, step, _) in enumerate(rows)}
    return requests(
        [time for time, _, _, _ in rows],
        [16 * blocks + 1 for _, _, _, blocks in rows],
        2,
        after=[[places[who, step - 1]] if step else [] for _, who, step, _ in rows],
        gap=np.array([2.0 if step else 0.0 for _, _, step, _ in rows]),
        agent=np.array([who for _, who, _, _ in rows]),
        chains=[[1000 * who + n for n in range(blocks)] for _, who, _, blocks in rows],
        block=16,
    )


def test_knowing_who_comes_back_keeps_more_than_recency() -> None:
    asked = agents(np.random.default_rng(1))
    policies = (Eviction(), Eviction(predictor=Oracle(0.7, 0.6)), Eviction(predictor=Oracle()))
    hits = [Measures(simulate(asked, server(250, eviction=policy))).hit_rate for policy in policies]
    assert hits[0] + 0.02 < hits[1] < hits[2] - 0.02


@pytest.mark.skipif(not SHARED.is_dir(), reason="the traces lie beside the checkout where they are developed")
@pytest.mark.parametrize(
    ("name", "bound"), [("mooncake_conversation_trace.jsonl", 0.374), ("mooncake_synthetic_trace.jsonl", 0.651)]
)
def test_a_tier_without_limit_comes_near_the_bound_of_a_trace(name: str, bound: float) -> None:
    asked = load_trace(SHARED / name)
    fast = machine(Steps(fixed=1e-3, token=1e-6, pair=1e-12, context=0.0))
    tier = Level("cpu", read=1e-4, write=1e-4)
    played = simulate(asked, server(2000, block=512, surface=fast, tokens=8192, tiers=(tier,)))
    m = Measures(played)
    assert m.bound <= bound and bound - 0.02 < m.hit_rate <= m.bound
    assert below(played)[0][0] > 0 and inf > m.tiers[1].wait > 0


def test_tiers_change_nothing_where_nothing_is_shared() -> None:
    asked = requests([0.0, 1.0], 100, 5)
    assert np.array_equal(simulate(asked, server()).end, simulate(asked, replace(server(), tiers=(Level("cpu"),))).end)


# Scenarios and money


def terms(**more: object) -> Terms:
    return Terms(**{"interest": 0.0, "years": 4.0, "operation": 0.0, **more})


def test_published_break_even_times() -> None:
    """Llama 70B with GQA in bf16 on chips of 80 GB at 2 USD/h: 0.33 MB and 0.35 ms of 400 TFLOP/s a token."""
    size, hourly = array(327_680.0), array(2.0)
    saved = recomputing(2 * 70e9 / 400e12, hourly, 1.0)
    assert saved == pytest.approx(1.9e-7, rel=0.03)
    rates = {
        "HBM": within(hourly, array(80e9)),
        "DRAM": bought(10.0, terms()),
        "NVMe": bought(0.15, terms()),
    }
    assert rates["HBM"] == pytest.approx(0.025) and rates["DRAM"] == pytest.approx(2.9e-4, rel=0.02)
    hours = {name: float(break_even(1.0, saved, size, rate).max()) for name, rate in rates.items()}
    assert hours["HBM"] * 3600 == pytest.approx(83, rel=0.05)
    assert hours["DRAM"] == pytest.approx(2.0, rel=0.05)
    assert hours["NVMe"] / 24 == pytest.approx(6.0, rel=0.1)
    assert break_even(0.25, saved, size, rates["HBM"]) == pytest.approx(hours["HBM"] / 4)


def node(model: str = "meta/llama-3.1-70b", split: dict[str, int] | None = None, **kv: object) -> object:
    return archsim.scenario(
        model=model,
        pools={"gpu": {"chip": "nvidia/h100-sxm", "count": 8}},
        split=split or {"tensor": 8},
        precision={"weights": "fp8", "kv": "fp8"},
        traffic={"input": 4000, "output": 200},
        serving={"kv": kv},
    )


def big(**kv: object) -> object:
    return archsim.scenario(
        model="deepseek/deepseek-v3",
        pools={"gpu": {"chip": "nvidia/h200-sxm", "count": 8}},
        split={"tensor": 8},
        precision={"weights": "fp8", "kv": "fp8"},
        traffic={"input": 4000, "output": 200},
        serving={"kv": kv},
    )


def levels(scenario: object, block: int = 512) -> tuple[Level, ...]:
    asked = requests([0.0], 4000, 200, chains=[[1, 2]], block=block)
    return server_of(deployment_of(scenario), scenario.serving, asked).tiers


def test_a_block_has_its_bytes() -> None:
    """80 layers of 8 KV heads of 128, keys and values, one byte each, of which TP8 moves an eighth a link."""
    cpu, ssd = levels(node(tiers=[{"medium": "cpu", "capacity": "1 TB"}, {"medium": "ssd"}]))
    size = 512 * 80 * 2 * 8 * 128
    assert cpu.size == ssd.size == size and cpu.capacity == 1e12 // size and ssd.capacity == inf
    assert cpu.read == pytest.approx(size / 8 / 64e9) and ssd.read == pytest.approx(size / (8 * 6.5e9))
    assert ssd.write > ssd.read and cpu.latency < ssd.latency


def test_latent_attention_is_copied_to_every_rank_and_kept_once() -> None:
    tiers = [{"medium": "cpu"}, {"medium": "remote", "read": "100 GB/s"}]
    cpu, remote = levels(big(tiers=tiers))
    size = 512 * 61 * 576
    assert cpu.size == remote.size == pytest.approx(size)
    assert cpu.read == pytest.approx(size / 64e9) and remote.read == pytest.approx(size / 100e9)
    assert remote.shared and not cpu.shared


def test_a_served_scenario_tells_what_its_memories_did() -> None:
    found = archsim.serve(node(tiers=[{"medium": "cpu"}]), requests=returning(8))
    chips, cpu = keeping(found)
    assert chips.rate == pytest.approx(2.95 / (81559 * 2**20 / 1e9)) and cpu.rate < chips.rate / 50
    assert chips.held > 0 and 0 < chips.hours < cpu.hours
    assert keeping_table(found).rows[1][0] == "cpu"
    kv = json.loads(to_json(found))["kv"]
    assert [row["name"] for row in kv] == ["chips", "cpu"] and kv[0]["hits"] == chips.use.hits
    plain = archsim.serve(node(), requests=returning(8))
    assert not keeping_table(plain).rows and json.loads(to_json(plain))["kv"] is None


@pytest.mark.parametrize(
    ("kv", "message"),
    [
        ({"eviction": {"policy": "ttl"}}, "needs a `ttl`"),
        ({"eviction": {"ttl": "5 min"}}, "policy: ttl"),
        ({"allocation": "contiguous", "tiers": [{"medium": "cpu"}]}, "shares no blocks"),
        ({"tiers": [{"medium": "tape"}]}, "cpu"),
        ({"tiers": [{"medium": "cpu", "capacity": "-1 GB"}]}, "capacity"),
    ],
)
def test_mistakes_are_refused(kv: dict[str, object], message: str) -> None:
    with pytest.raises(CatalogError, match=message):
        node(**kv)


def test_policies_of_a_scenario() -> None:
    asked = agents(np.random.default_rng(1))
    made = {
        name: server_of(deployment_of(found), found.serving, asked).eviction
        for name, found in {
            "ttl": node(eviction={"policy": "ttl", "ttl": "5 min"}),
            "oracle": node(eviction={"policy": "return", "precision": 0.5, "recall": 0.8}),
            "trained": node(eviction={"policy": "return", "predictor": "coding-agents"}),
        }.items()
    }
    assert made["ttl"].ttl == 300.0 and made["ttl"].predictor is None
    assert made["oracle"].predictor == Oracle(0.5, 0.8)
    assert isinstance(made["trained"].predictor, Regression) and made["trained"].threshold == 0.1
