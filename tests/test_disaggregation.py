"""Two pools in the simulation of serving: hand-over in time, memory on both sides, and where prompts are prefilled."""

from __future__ import annotations

import json
from dataclasses import replace
from math import inf
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from serving import Steps, policy, random_case, server
from typer.testing import CliRunner

import archsim
from archsim.catalog import CatalogError
from archsim.cli import app
from archsim.explore.rates import best_rate, best_ratio, divided
from archsim.explore.service import Asked, Service, serve
from archsim.serving.halves import Prefill
from archsim.serving.handover import Way
from archsim.serving.measures import Measures
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
    if rng.random() < 0.3:
        first, second = shifted(seed, first), shifted(seed, second)
    return asked, replace(second, prefill=Prefill(first, replace(road, overlapped=bool(rng.random() < 0.7)), skip))  # type: ignore[arg-type]


def shifted(seed: int, made: Server) -> Server:
    """Step times that change, faster and slower, while requests are served."""
    rng = np.random.default_rng(seed)
    first = made.surface
    times = np.sort(rng.uniform(0.0, 2.0, 5)).tolist()
    shifts = []
    for time in times:
        factor = float(rng.choice([0.3, 1.0, 3.0]))
        fixed, slope = ([factor * value for value in row] for row in (first.fixed, first.slope[0]))
        steps = Steps(fixed=factor * 1e-3, token=factor * 1e-5)
        shifts.append((time, replace(first, fixed=fixed, slope=[slope, *first.slope[1:]], prompts=steps)))
    return replace(made, shifts=tuple(shifts))


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


def check_shifts(seed: int) -> None:
    """The same for one pool whose step times change."""
    asked, made = random_case(seed)
    fast, plain = (simulate(asked, shifted(seed, made), plain=way) for way in (False, True))
    for name in ("arrived", "begun", "first", "end"):
        assert np.allclose(getattr(fast, name), getattr(plain, name), rtol=1e-9, atol=1e-9, equal_nan=True), name
    assert [pool.taken for pool in fast.pools] == [pool.taken for pool in plain.pools]
    check_conserved(fast)


@settings(max_examples=20)
@given(st.integers(0, 10**9))
def test_fast_forward_is_plain_iteration_while_step_times_change(seed: int) -> None:
    check_shifts(seed)


def test_steps_that_take_longer_from_a_time_on_take_longer() -> None:
    one = server()
    slow = replace(one.surface, fixed=[3 * value for value in one.surface.fixed])
    asked = requests([0.0], 100, 200)
    before = simulate(asked, one)
    after = simulate(asked, replace(one, shifts=((0.1, slow),)))
    assert after.first[0] == before.first[0]
    steps = [one.surface.decode(1, [100.0 + n]) for n in range(1, 200)]
    ends = before.first[0] + np.cumsum(steps)
    late = int((ends[:-1] >= 0.1).sum())  # steps that begin after it
    assert after.end[0] - before.end[0] == pytest.approx(late * 2 * one.surface.fixed[1], rel=1e-9)


# One request, by hand


def prefill_seconds(tokens: int) -> float:
    return Steps().seconds(0, [], [(tokens, 0)])


@pytest.mark.parametrize(("rate", "wire_bound"), [(1e9, False), (1e6, True)])
def test_a_lone_prompt_travels_layer_by_layer(rate: float, wire_bound: bool) -> None:
    road = way(rate=rate, latency=0.01, layers=10)
    played = simulate(requests([1.0], 100, 30), pair(way=road))
    alone, sent = prefill_seconds(100), 100 * 100.0 / rate
    assert (sent > alone) == wire_bound
    shown = (alone + sent) / 10 + 9 * max(alone, sent) / 10 - alone + 0.01
    assert road.shown(sent, alone) == pytest.approx(shown, rel=1e-12)
    assert played.first[0] == pytest.approx(1.0 + alone + shown, rel=1e-9)
    steps = [server().surface.decode(1, [100.0 + n]) for n in range(1, 30)]
    assert played.end[0] - played.first[0] == pytest.approx(sum(steps), rel=1e-9)


def test_without_overlap_the_whole_cache_travels_after_the_prefill() -> None:
    played = simulate(requests([0.0], 100, 30), pair(way=way(rate=1e6, latency=0.01, overlapped=False)))
    assert played.first[0] == pytest.approx(prefill_seconds(100) + 100 * 100.0 / 1e6 + 0.01, rel=1e-9)


def test_one_token_needs_no_decoding() -> None:
    played = simulate(requests([0.0], 100, 1), pair())
    assert played.end[0] == played.first[0] == pytest.approx(prefill_seconds(100), rel=1e-12)
    assert played.outcome.handed == 0


def test_caches_that_meet_at_a_receiver_come_one_after_another() -> None:
    """Two senders are done at once; a lane takes one cache after the other, two lanes take both."""
    asked = requests([0.0, 0.0], 100, 30)
    ahead = server(replicas=2)
    sent = 100 * 100.0 / 1e4
    one, two = (
        simulate(asked, pair(ahead, way=way(rate=1e4, latency=0.0, lanes=(1, lanes)))).first for lanes in (1, 2)
    )
    assert sorted(one)[1] - sorted(one)[0] == pytest.approx(sent, rel=1e-9)
    assert two[0] == pytest.approx(two[1], rel=1e-9)


# Memory on both sides


def test_a_full_receiver_holds_the_senders_memory() -> None:
    """Room for one sequence where it decodes, for two where it is prefilled: the fourth waits for the first to end."""
    asked = requests([0.0] * 4, 100, 20)
    first, second = server(units=14), server(units=8, batch=4)
    played = simulate(asked, pair(first, second, way=way(rate=1e9, latency=0.0)))
    assert played.finished.all()
    assert played.begun[3] >= played.end[0]
    assert played.first[1] >= played.end[0] and played.first[2] >= played.end[1]
    roomy = simulate(asked, pair(server(units=100), second, way=way(rate=1e9, latency=0.0)))
    assert roomy.begun[3] < roomy.end[0]


def test_a_cache_that_waits_for_memory_travels_after_it() -> None:
    asked = requests([0.0, 0.0], 100, 20)
    played = simulate(asked, pair(server(units=100), server(units=8, batch=4), way=way(rate=1e5, latency=0.0)))
    assert played.first[1] - played.end[0] == pytest.approx(100 * 100.0 / 1e5, rel=1e-2)


def test_a_request_that_no_decode_replica_has_room_for_is_refused() -> None:
    played = simulate(requests([0.0, 0.1], [100, 10], [100, 5]), pair(second=server(units=8)))
    assert "more than the KV memory holds" in played.outcome.refused[0]
    assert played.finished.tolist() == [False, True]
    long = simulate(requests([0.0, 0.1], [300, 10], 5), pair(first=server(units=8)))
    assert list(long.outcome.refused) == [0]


def test_a_time_limit_stops_both_pools() -> None:
    asked = requests(np.arange(200) * 0.01, 100, 50)
    played = simulate(asked, pair(), seconds=0.5)
    assert "time limit" in played.outcome.stopped
    assert 0 < played.finished.sum() < 200
    assert simulate(requests([], [], []), pair()).finished.sum() == 0


# Where prompts are prefilled


def test_short_prompts_stay_where_they_decode() -> None:
    asked = requests(np.arange(40) * 0.05, [20, 200] * 20, 10)
    moved = {skip: simulate(asked, pair(skip=skip)) for skip in (None, 0, 20, 200)}
    assert {skip: played.outcome.handed for skip, played in moved.items()} == {None: 40, 0: 40, 20: 20, 200: 0}
    assert moved[20].logs[1]["prefilled"].sum() == 20 * 20


def test_a_cached_prompt_stays_where_it_decodes() -> None:
    """A second turn finds the first one's blocks in the decode pool: little is left to compute, nothing travels."""
    chains = [list(range(12)), list(range(12))]
    asked = requests([0.0, 5.0], 200, 10, chains=chains, block=16)
    played = simulate(asked, pair(skip=50))
    assert played.outcome.handed == 1
    assert played.cached.tolist() == [0, 192]
    away = simulate(asked, pair())
    assert away.outcome.handed == 2 and away.cached.tolist() == [0, 192]
    assert away.outcome.sent == 100.0 * (200 + 200 - 192)  # what is there already does not travel


def test_auto_chooses_what_ends_sooner() -> None:
    rng = np.random.default_rng(1)
    times, lengths = rng.exponential(0.008, 600).cumsum(), np.where(rng.random(600) < 0.5, 16, 400)
    asked = requests(times.tolist(), lengths.tolist(), 20)
    road = way(rate=1e7, latency=5e-3)
    ttft = {
        skip: Measures(simulate(asked, pair(server(5000), server(5000, batch=32), way=road, skip=skip))).latency("ttft")
        for skip in (None, 10**6, "auto")
    }
    assert ttft["auto"]["mean"] < min(ttft[None]["mean"], ttft[10**6]["mean"])


def test_the_next_step_of_a_session_goes_through_both_pools() -> None:
    asked = requests([0.0] * 3, 100, 20, after=[[], [0], [1]], gap=np.array([0.0, 0.5, 0.5]))
    played = simulate(asked, pair())
    assert played.outcome.handed == 3
    assert played.arrived[1:] == pytest.approx(played.end[:2] + 0.5, rel=1e-12)


# Scenarios

KEYS: dict[str, Any] = {
    "model": "meta/llama-3.1-70b",
    "pools": {
        "prefill": {"chip": "nvidia/h100-sxm", "count": 8},
        "decode": {"chip": "nvidia/h200-sxm", "count": 8},
    },
    "mapper": "prefill-decode",
    "precision": {"weights": "fp8", "kv": "fp8"},
    "split": {"tensor": 8, "partner": {"tensor": 4, "data": 2}},
}


def served(clients: int, count: int = 600, **more: Any) -> Service:
    traffic = {"input": 2048, "output": 256, "arrivals": "closed", "clients": clients}
    return serve(archsim.scenario(**KEYS, traffic=traffic, **more), Asked(count=count))


@pytest.mark.parametrize("clients", [4, 16, 32])
def test_the_simulation_agrees_with_the_closed_form(clients: int) -> None:
    """One prompt a step, as the closed form has it: a step of four makes clients come, and wait, in step."""
    found = served(clients, 30 * clients, serving={"disaggregation": {"max_tokens": 2048}})
    result = archsim.run(found.scenario, mode="steady", batch=[clients])
    m = found.measures
    assert m.latency("tpot")["p50"] == pytest.approx(float(result.tpot[0]), rel=0.04)
    assert m.rate(m.finished) == pytest.approx(float(result.answer.loop.requests_per_second.ravel()[0]), rel=0.05)


def test_both_pools_are_paid_and_shown() -> None:
    from archsim.report.serving import load_rows, policy_label, to_json

    found = served(16)
    assert found.chips == 16
    assert [part.name for part in found.parts] == ["decode", "prefill"]
    assert found.dollars == pytest.approx(sum(part.dollars for part in found.parts))
    assert "1 replica behind 2 replicas that prefill" in policy_label(found)
    assert {"pool decode", "pool prefill", "handed over"} <= {name for name, _ in load_rows(found)}
    data = json.loads(to_json(found))
    assert data["pools"]["handed_over"] == 600
    costs = found.costs()
    whole = costs["output_cost"] * 256 + costs["input_cost"] * 2048
    assert whole == pytest.approx(costs["cost_per_token"] * 2304, rel=1e-9)


@pytest.mark.parametrize(("traffic", "count"), [({"output": 20}, 0), ({"output": 1}, 10)])
def test_nothing_to_serve_and_nothing_to_hand_over_are_answers(traffic: dict[str, int], count: int) -> None:
    from archsim.report.serving import load_rows, sentence, to_json

    found = serve(archsim.scenario(**KEYS, traffic={"input": 500, "rate": 5, **traffic}), Asked(count=count))
    assert found.played.outcome.handed == 0
    assert json.loads(to_json(found))["finished"] == count
    assert sentence(found)
    assert not count or "nothing each" in dict(load_rows(found))["handed over"]


def test_a_cache_of_a_real_model_has_its_bytes() -> None:
    found = served(4)
    assert found.played.outcome.sent / 600 == pytest.approx(2048 * 80 * 2 * 8 * 128, rel=1e-9)


def test_disaggregation_without_a_pool_that_prefills_is_refused(tmp_path: Path) -> None:
    keys = {**KEYS, "pools": {"gpu": {"chip": "nvidia/h100-sxm", "count": 8}}, "mapper": "auto", "split": None}
    with pytest.raises(CatalogError, match="has no pool that prefills"):
        archsim.scenario(**keys, serving={"disaggregation": {"skip_below": 100}})
    with pytest.raises(CatalogError, match="skip_below"):
        archsim.scenario(**KEYS, serving={"disaggregation": {"skip_below": "atuo"}})


# Rates and ratios

CHAT: dict[str, Any] = {"input": 1024, "output": 128, "rate": 4}
EQUAL: dict[str, Any] = {
    **KEYS,
    "pools": {name: {"chip": "nvidia/h100-sxm", "count": 4} for name in ("prefill", "decode")},
    "split": {"tensor": 2, "data": 2, "partner": {"tensor": 2, "data": 2}},
    "slo": {"ttft": "500 ms", "tpot": "25 ms"},
}


def test_every_ratio_of_the_chips_is_tried_and_the_best_is_in_between() -> None:
    found = best_ratio(archsim.scenario(**EQUAL, traffic=CHAT), Asked(count=150))
    assert sorted((ratio.prefill, ratio.decode) for ratio in found) == [(1, 3), (2, 2), (3, 1)]
    assert all(ratio.prefill_chips + ratio.decode_chips == 8 for ratio in found)
    assert [ratio.per_chip for ratio in found] == sorted((ratio.per_chip for ratio in found), reverse=True)
    assert found[0].per_chip > 1.2 * found[-1].per_chip
    one = serve(divided(archsim.scenario(**EQUAL, traffic=CHAT), 1, 3), Asked(count=150))
    (same,) = (ratio for ratio in found if ratio.prefill == 1)
    assert best_rate(one, 1).rate == pytest.approx(same.largest.rate, rel=0.02)


def test_any_number_of_workers_finds_the_same() -> None:
    found = serve(archsim.scenario(**EQUAL, traffic=CHAT), Asked(count=100))
    assert best_rate(found, 3, workers=1) == best_rate(found, 3, workers=2)


def test_ratios_need_two_pools_of_equal_chips() -> None:
    one = {**EQUAL, "pools": {"gpu": {"chip": "nvidia/h100-sxm", "count": 4}}, "mapper": "auto", "split": {"tensor": 4}}
    with pytest.raises(ValueError, match="two pools"):
        best_ratio(archsim.scenario(**one, traffic=CHAT), Asked(count=10))
    with pytest.raises(ValueError, match="give `ratios`"):
        best_ratio(archsim.scenario(**KEYS, traffic=CHAT), Asked(count=10))


def test_experts_that_repeat_less_slow_decode_from_then_on() -> None:
    keys = {
        "model": "openai/gpt-oss-120b",
        "pools": {"gpu": {"chip": "nvidia/h100-sxm", "count": 2}},
        "split": {"tensor": 2},
        "traffic": {"input": 500, "output": 200, "arrivals": "closed", "clients": 16},
    }
    half = serve(archsim.scenario(**keys, routing={"skew": 3.0}), Asked(count=100)).measures.span / 2
    found = serve(archsim.scenario(**keys, routing={"skew": 3.0, "over_time": [[half, 0.0]]}), Asked(count=100))
    log = found.measures.log
    full = (log["decoding"] == 16) & (log["prefilled"] == 0)
    each, late = log["seconds"] / log["steps"], log["start"] >= half
    assert each[full & late].mean() > 1.1 * each[full & ~late].mean()


def test_skews_over_time_come_in_order() -> None:
    for wrong, why in (([[5, 1.0], [5, 0.5]], "grow"), ([[5, 11.0]], "at the most")):
        with pytest.raises(CatalogError, match=why):
            archsim.scenario(**KEYS, traffic=CHAT, routing={"over_time": wrong})


APART = """\
name: apart
model: meta/llama-3.1-8b
mapper: prefill-decode
pools:
  prefill: {chip: nvidia/h100-sxm, count: 1}
  decode: {chip: nvidia/h100-sxm, count: 1}
traffic: {input: {mean: 900, spread: 0.5}, output: 60, rate: 8, requests: 60}
slo: {ttft: 500 ms, interactivity: 60 tok/s}
serving: {disaggregation: {skip_below: 600}}
"""


def test_the_command_serves_both_pools_with_any_number_of_workers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    Path("apart.yaml").write_text(APART, encoding="utf-8")
    run = CliRunner().invoke
    shown = run(app, ["serve", "apart.yaml", "--html", "out.html", "--trace-out", "out.json"])
    assert shown.exit_code == 0, shown.output
    assert "1 replica behind 1 replica that prefill" in shown.output and "handed over" in shown.output
    assert "up to 600 fresh tokens prefilled where they decode" in shown.output
    assert "handed over" in Path("out.html").read_text(encoding="utf-8")
    assert "replica 1, prefill" in Path("out.json").read_text(encoding="utf-8")
    one, two = (
        run(app, ["serve", "apart.yaml", "--largest-rate", "--workers", count, "--json", "-"]).stdout
        for count in ("1", "2")
    )
    assert one == two
    data = json.loads(one)
    assert data["largest_rate"]["rate"] > 0
    assert 0 < data["pools"]["handed_over"] < 60
    shown = run(app, ["serve", "apart.yaml", "--ratios"])
    assert "replicas that prefill + decode" in shown.output and "1 + 1" in shown.output
    ratios = json.loads(run(app, ["serve", "apart.yaml", "--ratios", "--json", "-"]).stdout)["ratios"]
    assert [(ratio["prefill"], ratio["decode"]) for ratio in ratios] == [(1, 1)] and ratios[0]["rate"] > 0
    plain = json.loads(run(app, ["serve", "apart.yaml", "--plain", "--json", "-"]).stdout)
    fast = json.loads(run(app, ["serve", "apart.yaml", "--json", "-"]).stdout)
    assert plain["latency"]["ttft"]["p99"] == pytest.approx(fast["latency"]["ttft"]["p99"], rel=1e-9)
    assert plain["counts"] == fast["counts"]


def test_a_mistake_in_the_policy_has_its_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("apart.yaml").write_text(APART.replace("skip_below: 600", "skip_bellow: 600"), encoding="utf-8")
    wrong = CliRunner().invoke(app, ["serve", "apart.yaml"])
    assert wrong.exit_code == 2 and "apart.yaml:9:" in wrong.stderr and "skip_below" in wrong.stderr
