"""The steady answer: a closed loop must conserve clients and time, whatever its traffic."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest
from scenarios import DEEPSEEK, GPT_OSS, LLAMA_8B, LLAMA_70B, one, scenario

import archsim
from archsim.arrays import Array, array
from archsim.engine.step import run_step
from archsim.explore.evaluate import SteadyAnswer, deployment_of
from archsim.explore.result import Result
from archsim.explore.scenario import Scenario
from archsim.mapping.place import place
from archsim.serving.steady import Steady
from archsim.workload.step import decode, prefill

# (model, chip, chips, split)
SYSTEMS: dict[str, tuple[str, str, int, dict[str, int]]] = {
    "8b": (LLAMA_8B, "nvidia/h100-sxm", 1, {}),
    "70b": (LLAMA_70B, "nvidia/h100-sxm", 8, {"tensor": 8}),
    "deepseek": (DEEPSEEK, "nvidia/h200-sxm", 16, {"attention_data": 16, "expert": 16}),
    "gpt-oss": (GPT_OSS, "nvidia/b200-sxm", 1, {}),
}
TRAFFIC = {"chat": (1155, 211), "long answers": (100, 1000), "summaries": (8000, 100), "classification": (8000, 1)}
CLIENTS = [1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512]

every = pytest.mark.parametrize("system", SYSTEMS)
any_traffic = pytest.mark.parametrize("traffic", TRAFFIC)


def asked(system: str, traffic: str, **keys: Any) -> Scenario:
    of, on, chips, by = SYSTEMS[system]
    prompt, output = TRAFFIC[traffic]
    return scenario(of, on, chips, split=by, traffic={"input": prompt, "output": output}, **keys)


@cache
def loop(system: str, traffic: str) -> Result:
    return archsim.run(asked(system, traffic), mode="steady", batch=CLIENTS)


def settled(result: Result) -> Steady:
    answer = result.answer
    assert isinstance(answer, SteadyAnswer)
    return answer.loop


def flat(values: Array) -> Array:
    return (
        np.broadcast_to(np.asarray(values).ravel(), (len(CLIENTS),)) if values.size == 1 else np.asarray(values).ravel()
    )


# Conservation


@every
@any_traffic
def test_clients_are_their_rate_times_the_time_of_a_request(system: str, traffic: str) -> None:
    """Little's law, waiting for memory included."""
    found, output = settled(loop(system, traffic)), TRAFFIC[traffic][1]
    clients = found.requests_per_second * (found.ttft + output * found.tpot)
    assert np.allclose(flat(clients), CLIENTS, rtol=1e-9)


@every
@any_traffic
def test_no_second_is_spent_twice(system: str, traffic: str) -> None:
    """Prefill of all requests, and the decode steps that their tokens need, fit into the time there is."""
    found, output = settled(loop(system, traffic)), TRAFFIC[traffic][1]
    assert np.all(flat(spent(found, output, TRAFFIC[traffic][0])) <= 1 + 1e-9)
    for share in (found.prefill_share, found.mixed_time):
        assert np.all((share >= 0) & (share <= 1))


def spent(found: Steady, output: int, prompt: int) -> Array:
    """Share of time in which a rank prefills or decodes, at the least: a step decodes all running at the most."""
    chunks = np.ceil(prompt / 8192)
    each = np.maximum(found.mixed_seconds - found.decode.turnaround, 0) * chunks / found.joined
    return found.requests_per_second * (each + output / found.running * found.decode.turnaround)


@every
@any_traffic
def test_many_clients_leave_no_machine_idle(system: str, traffic: str) -> None:
    """A client that has its answer asks again at once, so with many of them there is always work."""
    prompt, output = TRAFFIC[traffic]
    busy = flat(spent(settled(loop(system, traffic)), output, prompt))
    many = np.array(CLIENTS) >= 64
    assert np.all(busy[many] >= 0.85), busy[many]


@every
@any_traffic
def test_the_fixed_point_is_one(system: str, traffic: str) -> None:
    """Requests that a mixed step takes are those that arrive while it runs, at least one, at most what fits."""
    found = settled(loop(system, traffic))
    arriving = found.requests_per_second * found.mixed_seconds
    expected = np.clip(arriving, 1.0, found.most)
    assert np.allclose(found.joined, expected, rtol=1e-6)


# One client


@every
@any_traffic
def test_one_client_decodes_at_the_plain_step(system: str, traffic: str) -> None:
    s, (prompt, output) = asked(system, traffic), TRAFFIC[traffic]
    d = deployment_of(s)
    plain = run_step(place(d, decode(1, prompt + output / 2, d.model.clips)), d.chip, d.runtime.stack)
    assert flat(settled(loop(system, traffic)).tpot)[0] == pytest.approx(one(plain.turnaround), rel=1e-12)


@every
@any_traffic
def test_one_client_waits_for_its_own_prefill_and_the_host_and_for_nobody_else(system: str, traffic: str) -> None:
    prompt = TRAFFIC[traffic][0]
    alone = archsim.run(asked(system, traffic), batch=1, context=prompt)
    found = settled(loop(system, traffic))
    first, lone, token = flat(found.ttft)[0], one(alone.ttft), flat(found.tpot)[0]
    assert first >= 0.95 * lone
    assert first <= 1.05 * lone + token, f"{first:.3f} s against {lone:.3f} s of the lone request"


# More clients


@every
@any_traffic
def test_more_clients_never_speed_up_anybodys_tokens(system: str, traffic: str) -> None:
    tpot = flat(settled(loop(system, traffic)).tpot)
    assert np.all(np.diff(tpot) >= -1e-9 * tpot[1:])


@every
@any_traffic
def test_no_token_waits_longer_than_a_step_that_prefills(system: str, traffic: str) -> None:
    """Every step gives every decoding sequence a token, and none is longer than one with a chunk of prefill."""
    found = settled(loop(system, traffic))
    worst = float(np.max(found.tpot / np.maximum(found.mixed_seconds, found.decode.turnaround)))
    assert worst <= 1 + 1e-9, f"up to {worst:.3g} steps a token"


@every
@any_traffic
def test_throughput_never_falls_when_clients_join_and_all_of_them_run(system: str, traffic: str) -> None:
    found = settled(loop(system, traffic))
    rate, running = flat(found.requests_per_second), flat(found.running)
    fits = running >= np.array(CLIENTS)
    rises = np.diff(rate[fits]) / rate[fits][1:]
    assert np.all(rises >= -0.005), f"it falls by {-rises.min():.1%} from {CLIENTS[int(np.argmin(rises))]} clients on"


@every
def test_clients_beyond_the_memory_wait_and_are_marked(system: str) -> None:
    s = asked(system, "summaries")
    found = archsim.run(s, mode="steady", batch=[1, 10_000, 20_000])
    inner = settled(found)
    assert list(found.feasible) == [True, False, False]
    assert found.reason_at(1) == "memory"
    assert np.isnan(found.throughput[1:]).all()
    running, ttft, tpot = (np.broadcast_to(v.ravel(), (3,)) for v in (inner.running, inner.ttft, inner.tpot))
    assert running[1] == running[2] < 10_000, "memory holds so many and no more"
    assert tpot[1] == pytest.approx(tpot[2])
    assert ttft[2] > ttft[1], "the others queue"


@every
def test_every_number_of_clients_up_to_the_memory_limit_is_priced_and_fits(system: str) -> None:
    found = archsim.run(asked(system, "chat"), mode="steady")
    priced = found.axes["batch"]
    assert list(priced[:64]) == list(range(1, 65))
    assert found.feasible.all()
    over = archsim.run(asked(system, "chat"), mode="steady", batch=[priced[-1], 1.05 * priced[-1] + 20])
    assert list(over.feasible) == [True, False]


# Resources and traffic


@pytest.mark.parametrize("system", ["8b", "gpt-oss"])
def test_more_memory_runs_more_clients_and_never_serves_fewer_tokens(system: str) -> None:
    capacity = one(asked(system, "chat").chip.memory.capacity)
    found = archsim.run(
        asked(system, "chat"),
        mode="steady",
        batch=20_000,
        over={"chip.memory.capacity": capacity * np.array([1.0, 1.3, 1.8, 2.5])},
    )
    inner = settled(found)
    assert np.all(np.diff(inner.running.ravel()) >= 0) and inner.running.ravel()[-1] > inner.running.ravel()[0]
    rate = inner.requests_per_second.ravel()
    # where prefill is saturated, each sequence waits for a little more of the prefill of others: 0.003 % here
    assert np.all(np.diff(rate) >= -1e-4 * rate[1:])


@every
def test_longer_prompts_are_never_served_faster(system: str) -> None:
    found = archsim.run(asked(system, "chat"), mode="steady", batch=8, input=[100, 300, 1000, 3000, 9000, 20_000])
    inner = settled(found)
    assert np.all(np.diff(inner.ttft.ravel()) > 0)
    assert np.all(np.diff(inner.requests_per_second.ravel()) < 0)


def test_cached_prompt_tokens_save_prefill_and_no_memory() -> None:
    s = asked("70b", "summaries")
    found = archsim.run(s, mode="steady", batch=16, cached=[0, 1000, 4000, 7999, 8000])
    inner = settled(found)
    ttft = inner.ttft.ravel()
    assert np.all(np.diff(ttft) <= 0) and ttft[-1] < 0.5 * ttft[0]
    assert ttft[-1] == ttft[-2], "the last token of a prompt is always computed"
    assert inner.memory.kv_per_sequence.size == 1, "a token weighs the same, cached or not"
    plain = settled(archsim.run(s, mode="steady", batch=16))
    assert one(plain.ttft) == ttft[0]


@every
def test_a_mixed_step_costs_no_more_than_its_decode_and_its_prefill_apart(system: str) -> None:
    d = deployment_of(asked(system, "chat"))
    clips = d.model.clips
    decoding, prompt = decode([[1], [64], [300]], 2000, clips), prefill([[100, 1000, 8000]], 0, 1, clips)
    mixed, plain, alone = (
        run_step(place(d, step), d.chip, d.runtime.stack).span for step in (decoding + prompt, decoding, prompt)
    )
    assert np.all(mixed <= plain + alone), f"up to {np.max(mixed / (plain + alone)) - 1:.1%} more"
    assert np.all(mixed >= np.maximum(plain, alone) * (1 - 1e-12))


def test_a_prompt_in_chunks_is_prefilled_in_as_many_steps() -> None:
    found = archsim.run(asked("70b", "chat"), batch=1, context=[8192, 8193, 16_384, 16_385])
    assert list(np.asarray(found.answer.chunks).ravel()) == [1, 2, 2, 3]


def test_an_answer_of_traffic_needs_traffic() -> None:
    bare = scenario(LLAMA_8B, batch=1, context=10, split={})
    with pytest.raises(ValueError, match="traffic"):
        archsim.run(bare, mode="steady", batch=1)


def test_one_call_for_all_clients_gives_what_calls_one_by_one_give() -> None:
    together = loop("70b", "chat")
    for index in (0, 4, 11, 17):
        alone = archsim.run(asked("70b", "chat"), mode="steady", batch=CLIENTS[index])
        for name in ("tpot", "ttft", "throughput", "cost_per_token", "power"):
            assert one(alone.metric(name)) == together.metric(name)[index], name
    assert array(CLIENTS).size == together.tpot.size


def test_replicas_do_not_wait_for_one_another() -> None:
    """Four replicas serve four times the clients of one at its times, power and memory; idle ones serve nobody."""

    def run(replicas: int, clients: float) -> Result:
        split, chips = {"data": replicas}, {"gpu": {"chip": "nvidia/h200-sxm", "count": replicas}}
        sizes = {"input": 1000, "output": 500}
        asked = archsim.scenario(model="openai/gpt-oss-120b", pools=chips, split=split, traffic=sizes)
        return archsim.run(asked, mode="steady", batch=clients)

    for clients in (1, 7, 64):
        one, four = run(1, clients), run(4, 4 * clients)
        assert four.throughput == pytest.approx(4 * one.throughput)
        for name in ("tpot", "ttft", "power", "memory_needed"):
            assert four.metric(name) == pytest.approx(one.metric(name))
    assert run(4, 2).throughput == pytest.approx(2 * run(1, 1).throughput)
