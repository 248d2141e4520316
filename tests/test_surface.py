"""The surface of step times against the exact path, on real machines."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from scenarios import DEEPSEEK, GPT_OSS, LLAMA_8B, LLAMA_70B, one, scenario

import archsim
from archsim.arrays import array
from archsim.engine.step import run_step
from archsim.explore.evaluate import deployment_of
from archsim.explore.service import Service
from archsim.mapping.memory import memory_plan
from archsim.mapping.place import Deployment, place
from archsim.serving.curves import Curve, Grid, affine
from archsim.serving.pool import layout_of
from archsim.serving.speculation import Speculation, Writer
from archsim.serving.surface import GUARD, Surface, surface
from archsim.workload.requests import requests
from archsim.workload.step import decode, prefill

SYSTEMS = {
    "70b": (LLAMA_70B, "nvidia/h100-sxm", 8, {"tensor": 8}),
    "8b": (LLAMA_8B, "nvidia/h100-sxm", 1, {}),
    "deepseek": (DEEPSEEK, "nvidia/h200-sxm", 16, {"attention_data": 16, "expert": 16}),
    "gpt-oss": (GPT_OSS, "nvidia/b200-sxm", 1, {}),
    "pipeline": (LLAMA_70B, "nvidia/h100-sxm", 8, {"tensor": 4, "pipeline": 2}),
}
every = pytest.mark.parametrize("system", SYSTEMS)


@cache
def deployment(system: str) -> Deployment:
    model, chip, chips, split = SYSTEMS[system]
    return deployment_of(scenario(model, chip, chips, split=split, batch=1, context=1))


@cache
def made(system: str) -> Surface:
    return surface(deployment(system), 256, (200, 6000), 4096)


def exact(system: str, step: object) -> float:
    d = deployment(system)
    return float(run_step(place(d, step), d.chip, d.runtime.stack).turnaround.max())  # type: ignore[arg-type]


@every
def test_the_guard_is_kept(system: str) -> None:
    guard = made(system).guard
    assert guard.kept and guard.decode <= GUARD and guard.mixed <= GUARD, str(guard)


@every
@pytest.mark.parametrize("batch", [1, 7, 8, 9, 100, 255, 256])
def test_every_whole_batch_is_tabulated(system: str, batch: int) -> None:
    """Also beside the steps of a tile or of ranks, where interpolation would be off by a multiple of this."""
    d, found = deployment(system), made(system)
    for length in (400, 1500, 5000):
        step = decode(batch, length, d.model.clips)
        sums = [float(step.context[clip].max()) for clip in d.model.clips]
        assert found.decode(batch, sums) == pytest.approx(exact(system, step), rel=0.02)


def test_ragged_prompts_cost_more_than_equal_ones() -> None:
    """The same tokens in prompts of unequal length have more pairs; the exact path counts them by their sums."""
    d, found = deployment("70b"), made("70b")
    plain = decode(16, 1000, d.model.clips)
    sums = [16_000.0]
    equal = found.mixed(16, sums, [(2000, 0)] * 2)
    ragged = found.mixed(16, sums, [(3900, 0), (100, 0)])
    step = plain + prefill(3900, 0, 1, d.model.clips) + prefill(100, 0, 1, d.model.clips)
    assert ragged > equal
    assert ragged == pytest.approx(exact("70b", step), rel=0.02)


def test_a_chunk_among_decode_costs_no_more_than_both_apart() -> None:
    found = made("70b")
    both, alone = found.mixed(64, [64_000.0], [(1000, 0)]), found.mixed(0, [0.0], [(1000, 0)])
    assert both <= alone + found.decode(64, [64_000.0])
    assert found.mixed(0, [0.0], [(4000, 0)]) < found.mixed(0, [0.0], [(2000, 0), (2000, 4000)])


@every
def test_the_pool_holds_what_the_memory_plan_has_room_for(system: str) -> None:
    """Blocks of whole sequences fill the memory to the last few; windowed layers hold no more than their window."""
    d = deployment(system)
    layout, units, unit = layout_of(d, 16)
    plan = memory_plan(d, array(1.0), array(4096.0))
    sequences = float((plan.free_for_kv / plan.per_sequence).max()) * float(d.split.groups.max())
    assert units // layout.units(4096) == pytest.approx(sequences, rel=0.02, abs=1)
    assert layout.units(4096) * unit == pytest.approx(float(plan.per_sequence.max()), rel=0.02)


# One request on a real machine


def lone(prompt: int, answer: int) -> Service:
    asked = scenario(LLAMA_70B, "nvidia/h100-sxm", 8, split={"tensor": 8}, batch=1, context=prompt)
    return archsim.serve(asked, requests=requests([0.0], prompt, answer))


def test_a_lone_request_with_drafts_is_what_run_says() -> None:
    for drafts in ({"drafts": 4, "acceptance": 0.6}, {"drafts": 3, "acceptance": 0.8, "model": LLAMA_8B}):
        asked = scenario(LLAMA_70B, "nvidia/h100-sxm", 8, split={"tensor": 8}, traffic="chat", speculation=drafts)
        served = archsim.serve(asked, requests=requests([0.0], 3000, 400))
        step = archsim.run(asked, batch=1, context=3200)
        assert served.measures.tpot[0] == pytest.approx(one(step.tpot), rel=0.01)
        assert served.measures.ttft[0] == pytest.approx(one(archsim.run(asked, batch=1, context=3000).ttft), rel=0.01)
        assert served.power == pytest.approx(one(step.power), rel=0.05)
        gain = sum(drafts["acceptance"] ** n for n in range(drafts["drafts"] + 1))
        assert one(step.tpot) == pytest.approx(one(step.answer.cycle) / gain, rel=1e-9)


def test_a_lone_request_is_what_run_says() -> None:
    served, prompt, answer = lone(3000, 200), 3000, 200
    asked = served.scenario
    first = archsim.run(asked, batch=1, context=prompt)
    later = archsim.run(asked, batch=1, context=prompt + answer / 2)
    assert served.measures.ttft[0] == pytest.approx(one(first.ttft), rel=0.01)
    assert served.measures.tpot[0] == pytest.approx(one(later.tpot), rel=0.01)


def test_a_lone_request_takes_its_steps_summed() -> None:
    served, d = lone(3000, 200), deployment("70b")
    lengths = np.arange(3001.0, 3200.0)
    steps = run_step(place(d, decode(1, lengths, d.model.clips)), d.chip, d.runtime.stack).turnaround
    spent = served.played.end[0] - served.played.first[0]
    assert spent == pytest.approx(float(np.broadcast_to(steps, lengths.shape).sum()), rel=0.01)


@pytest.mark.parametrize("drafts", [{}, {"drafts": 4, "acceptance": 0.6}, {"drafts": 3, "model": LLAMA_8B}])
def test_a_closed_loop_is_near_the_steady_answer(drafts: dict[str, object]) -> None:
    """Two ways to the same thing: an event simulation and the closed form.

    Answers vary in length, as clients would otherwise stay in step with one another.
    """
    traffic = {"input": 1155, "output": 211}
    asked = scenario(LLAMA_70B, "nvidia/h100-sxm", 8, split={"tensor": 8}, traffic=traffic, speculation=drafts)
    steady = archsim.run(asked, mode="steady", batch=32)
    answers = np.random.default_rng(0).integers(1, 422, 1500).tolist()
    served = archsim.serve(asked, requests=requests([0.0] * 1500, 1155, answers, clients=32))
    later = slice(200, 1300)
    spent = (served.played.end - served.played.first)[later].sum()
    assert spent / np.sum(np.array(answers[later]) - 1) == pytest.approx(one(steady.tpot), rel=0.05)
    assert served.measures.drafted == bool(drafts)


def test_power_and_dollars_are_those_of_run() -> None:
    served = lone(3000, 2000)
    result = archsim.run(served.scenario, batch=1, context=4000)
    assert served.power == pytest.approx(one(result.power), rel=0.05)
    hours = served.measures.span / 3600
    assert served.dollars == pytest.approx(one(served.scenario.chip.price.rent) * 8 * hours, rel=1e-9)
    parts = served.costs()
    spent = parts["output_cost"] * 2000 + parts["input_cost"] * 3000
    assert spent == pytest.approx(parts["cost_per_token"] * 5000, rel=1e-9)


# Tables


def test_curves_and_grids_are_linear_between_their_knots() -> None:
    knots = Curve.knots(10_000)
    curve = Curve.of(knots, 3.0 * knots + 1.0)
    for place_ in (1, 7, 4095, 4096, 4097, 5000.5, 9999):
        assert curve(place_) == pytest.approx(3.0 * place_ + 1.0, rel=1e-12)
    x, y, z = array([1, 2, 4]), array([1, 3]), array([0, 10])
    grid = Grid.of(x, y, z, x[:, None, None] + 2 * y[None, :, None] + 5 * z[None, None, :])
    assert grid(3, 2, 5) == pytest.approx(3 + 4 + 25)
    assert grid(2, 3, 10) == pytest.approx(2 + 6 + 50)


def test_lines_are_found_again() -> None:
    length = np.linspace(100, 5000, 12)
    window = np.minimum(length, 128.0)
    rows = np.array([[1.0], [2.0]]) + np.array([[3e-3], [5e-3]]) * length + np.array([[1e-2], [0.0]]) * window
    constant, (first, second) = affine(rows, [window, length])
    assert np.allclose(second, [3e-3, 5e-3]) and np.allclose(constant + first * 128, [1 + 1.28, 2.0], rtol=1e-2)


# Drafts


def speculation(system: str, writer: str, drafts: int = 3) -> Speculation:
    d = deployment(system)
    writers = {
        "": None,
        "mtp": Writer(d, module=True),
        "8b": Writer(replace(d, model=deployment("8b").model)),
    }
    return Speculation(drafts, 0.7, writers[writer])


@pytest.mark.parametrize(("system", "writer"), [("70b", ""), ("70b", "8b"), ("deepseek", "mtp"), ("pipeline", "")])
def test_the_guard_is_kept_with_drafts(system: str, writer: str) -> None:
    drafts = speculation(system, writer)
    found = surface(deployment(system), 256, (200, 6000), 4096, speculation=drafts)
    assert found.guard.kept, str(found.guard)
    assert found.drafted is not None and found.drafted.gain == pytest.approx(1 + 0.7 + 0.49 + 0.343)
    plain = made(system)
    assert found.fixed == plain.fixed and found.slope == plain.slope
    for batch in (1, 16, 200):
        step = exact(system, decode(batch, 1500, deployment(system).model.clips, 4))
        if drafts.writer is not None:
            step += float(drafts.writer.seconds(3, array(batch), array(1500)).max())
        sums = [float(batch * min(1500, clip)) for clip in found.clips]
        assert found.drafted.surface.decode(batch, sums) == pytest.approx(step, rel=0.02)


def test_drafts_of_a_model_take_its_passes_and_memory() -> None:
    drafts = speculation("70b", "8b")
    assert drafts.writer is not None
    one = run_step(place(drafts.writer.d, decode(16, 1500)), drafts.writer.d.chip, drafts.writer.d.runtime.stack)
    written = float(drafts.writer.seconds(3, array(16), array(1500)).max())
    assert written == pytest.approx(3 * float((one.turnaround - one.plan.host).max()), rel=1e-9)
    weights, cached = (float(part.max()) for part in drafts.held)
    assert weights == pytest.approx(8.03e9 * 2 / 8, rel=0.02)
    assert cached == 32 * 2 * 1024 * 2 / 8  # 32 layers, keys and values of 1,024 elements in bf16, 8 tensor ranks
    alone, beside = (layout_of(deployment("70b"), 16, speculation=found) for found in (None, drafts))
    assert beside[1] * beside[2] == pytest.approx(alone[1] * alone[2] - weights, rel=1e-3)
    assert beside[2] == alone[2] + 16 * cached and beside[0].ahead == 3


def test_a_prediction_module_reads_what_was_verified_in_its_first_pass() -> None:
    writer = Writer(deployment("deepseek"), module=True)
    first, second = (float(writer.seconds(n, array(64), array(1500)).max()) for n in (1, 2))
    passed = float(writer.passes(decode(64, 1500, writer.d.model.clips, 2)).latency.max())
    assert first == pytest.approx(passed) and second > first
    weights, _ = (float(part.max()) for part in writer.held)
    assert 0.01 < weights / float(memory_plan(writer.d, array(1), array(1)).parts["weights"].max()) < 0.05
    with pytest.raises(ValueError, match="no prediction modules"):
        Writer(deployment("70b"), module=True).seconds(1, array(1), array(100))
