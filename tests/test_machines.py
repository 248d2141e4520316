"""Near-memory chips and LPUs: published points, what of them is fitted, and what must hold of any machine.

Which numbers are fitted and on what stands in the generation files; here those points come back, the others are
predictions. Where a figure cannot be reproduced for a reason, the test says which.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scenarios import GPT_OSS, LLAMA_8B, LLAMA_70B, chip, one, same_bits, scenario
from typer.testing import CliRunner

import archsim
from archsim.arrays import array
from archsim.catalog import CatalogError
from archsim.chip.memory import turnaround
from archsim.chip.model import with_value
from archsim.cli import app
from archsim.engine import lpu, near_memory
from archsim.engine.cost import Cost
from archsim.engine.step import KINDS, TOGETHER
from archsim.explore.diagnosis import diagnose
from archsim.explore.result import Result
from archsim.mapping.plan import Kernel
from archsim.units import format_named

PAPER, BERTHA, JALAPENO = "hyperaccel/lpu", "hyperaccel/bertha-500-192gb", "openai/jalapeno"
GROQ, LPX = "groq/groqchip-v1", "nvidia/groq-3-lpx"
INT8 = dict.fromkeys(("weights", "attention", "experts", "head", "embedding"), "int8") | {"kv": "fp8"}
FP8 = dict.fromkeys(("weights", "attention", "head", "embedding", "kv"), "fp8")
MXFP4 = {"weights": "mxfp4", "attention": "fp8", "kv": "fp8", "experts": "mxfp4"}
EXAMPLES = ("llama-70b-on-bertha", "gpt-oss-on-jalapeno", "llama-2-70b-on-groqchips", "gemma-31b-on-lpx")


def answer(model: str, on: str, chips: int, context: object, batch: object = 1, **keys: object) -> Result:
    """The step answer under one split, tensor parallelism over all chips unless another is given."""
    under = "scheduled" if chip(on).kind == "lpu" else "native"
    known = {"runtime": under, "split": {"tensor": chips}, "batch": 1, "context": 1} | keys
    return archsim.run(scenario(model, on, chips, **known), batch=batch, context=context)


def ms(found: Result) -> float:
    assert found.feasible.all()
    return 1e3 * one(found.tpot)


# The LPU of HyperAccel's paper (arXiv 2408.07326): its own cycle-accurate simulation, 32 tokens in and 2016 out


def paper(size: str, chips: int = 1) -> float:
    return ms(answer(f"meta/opt-{size}", PAPER, chips, 32 + 2016 // 2))


def test_the_one_chip_points_of_the_lpu_paper_that_the_fit_saw_come_back() -> None:
    assert paper("1.3b") == pytest.approx(1.25, rel=0.01)
    assert paper("30b") == pytest.approx(20.3, rel=0.01)  # 90.2 % of 3.28 TB/s


def test_two_chips_of_the_lpu_paper_are_predicted_from_one() -> None:
    assert paper("66b", 2) == pytest.approx(22.2, rel=0.03)
    assert paper("66b", 2) > 20.9 * 1.05  # the abstract's number, which its own utilisation contradicts


def test_scaling_of_the_lpu_paper() -> None:
    """5.43 from one chip to eight, of a model that is not named: from OPT-6.7B on, small models scale less."""
    gain = {size: paper(size) / paper(size, 8) for size in ("6.7b", "13b", "30b")}
    assert 4.8 <= gain["13b"] <= 5.6
    assert gain["6.7b"] < 5.43 < gain["30b"]


def test_the_matrix_vector_unit_of_the_paper_is_sized_to_its_bandwidth() -> None:
    c, machine = chip(PAPER).generation.kernels["native"]["near_memory"]["any"], chip(PAPER)
    fed = c.outputs * c.inputs * 2.0 * one(machine.clock)  # l x v x 2 B x f
    assert one(machine.memory.bandwidth) <= fed <= 1.3 * one(machine.memory.bandwidth)
    assert one(machine.matrix["bf16"]) == pytest.approx(fed)


def test_the_paper_s_system_draws_86_watts_on_opt_30b() -> None:
    assert one(answer("meta/opt-30b", PAPER, 1, 1040).power) == pytest.approx(86, rel=0.05)


# Jalapeno: least time between tokens, Hot Chips 2026, InferenceX 8k in and 1k out; how many chips was not said

LEAST = {GPT_OSS: 0.69, "deepseek/deepseek-r1": 1.43, "moonshot/kimi-k2.5": 1.44}


def least_time(model: str, chips: int) -> float:
    return ms(answer(model, JALAPENO, chips, 8192, precision=MXFP4, split={"tensor": chips, "expert": chips}))


@pytest.mark.parametrize("model", LEAST)
def test_one_law_gives_the_least_times_of_jalapeno_on_16_chips(model: str) -> None:
    assert least_time(model, 16) == pytest.approx(LEAST[model], rel=0.05)


def test_the_law_holds_for_16_chips_and_neither_for_8_nor_for_32() -> None:
    off = {chips: max(abs(least_time(m, chips) / LEAST[m] - 1) for m in LEAST) for chips in (8, 16, 32)}
    assert off[16] < 0.05 < min(off[8], off[32])


def test_the_law_is_dependent_time_and_two_collectives_a_layer() -> None:
    found = answer(GPT_OSS, JALAPENO, 16, 8192, precision=MXFP4, split={"tensor": 16, "expert": 16})
    period = one(found.answer.decode.schedule.period["moe"])
    law = 9.7e-6 + 2 * 2 * 2.25e-6
    assert law < period < law + 1e-6  # bytes are the rest


def test_jalapeno_on_lpddr_is_slower_and_holds_more() -> None:
    hbm, lpddr = (answer(GPT_OSS, on, 16, 8192, 64, precision=MXFP4) for on in (JALAPENO, "openai/jalapeno-lpddr"))
    assert one(lpddr.tpot) > 2 * one(hbm.tpot)
    assert one(lpddr.memory_utilization) < one(hbm.memory_utilization)


# Groq v1: tokens a second and user (Groq and Artificial Analysis, 2024). Chips of all but Llama-2-70B are not published

GROQ_POINTS = {
    "meta/llama-2-70b": (576, {"tensor": 8, "pipeline": 72}),
    "meta/llama-2-7b": (64, {"tensor": 4, "pipeline": 16}),
    "meta/llama-3.1-8b": (64, {"tensor": 2, "pipeline": 32}),
    "meta/llama-3.1-70b": (576, {"tensor": 8, "pipeline": 72}),
    "mistral/mixtral-8x7b": (256, {"tensor": 8, "pipeline": 32}),
}


def groq(model: str) -> Result:
    chips, split = GROQ_POINTS[model]
    return answer(model, GROQ, chips, 2048, split=split, precision=INT8)


def speed(model: str) -> float:
    return 1e3 / ms(groq(model))


def test_the_period_of_groq_is_fitted_on_llama_2_70b() -> None:
    assert speed("meta/llama-2-70b") == pytest.approx(300, rel=0.01)


def test_the_same_period_predicts_the_other_dense_models_of_groq() -> None:
    assert speed("meta/llama-2-7b") == pytest.approx(750, rel=0.01)
    assert speed("meta/llama-3.1-8b") == pytest.approx(751, rel=0.05)
    assert speed("meta/llama-3.1-70b") == pytest.approx(250 * 1.2, rel=0.02)  # 20 % too fast: a later, slower service


def test_experts_of_groq_need_a_period_of_their_own() -> None:
    assert speed("mistral/mixtral-8x7b") == pytest.approx(480, rel=0.01)  # fitted on it
    c = chip(GROQ).generation.kernels["native"]["lpu"]["any"]
    assert c.period < c.routed_period


@pytest.mark.parametrize("model", GROQ_POINTS)
def test_structure_explains_a_minor_part_of_groq_s_time(model: str) -> None:
    """What follows from bytes, FLOPs and hops, apart from what is calibrated."""
    done = groq(model).answer.decode.total()
    calibrated = one(done.parts["fixed"]) / one(done.seconds)
    assert 0.07 <= 1 - calibrated <= 0.36


def test_gpt_oss_fills_576_groqchips() -> None:
    found = answer(GPT_OSS, GROQ, 576, 2048, split={"tensor": 16, "pipeline": 36}, precision=INT8)
    assert found.feasible.all() and one(found.memory_utilization) > 0.85
    assert 1e3 / ms(found) == pytest.approx(476, rel=0.15)  # a weak source, 2025


# Groq 3 LPX: Gemma 4 31B on one rack


def gemma(context: int, drafts: int = 0, acceptance: float = 0.8, under: str = "scheduled") -> float:
    split, guess = {"tensor": 16, "pipeline": 16}, {"drafts": drafts, "acceptance": acceptance}
    keys = {"split": split, "precision": FP8, "speculation": guess, "runtime": under}
    return 1e3 / ms(answer("google/gemma-4-31b", LPX, 256, context, **keys))


def test_a_rack_of_lpus_gives_what_a_third_party_measured_at_100k_tokens() -> None:
    assert gemma(100_000) == pytest.approx(3431, rel=0.02)  # the fixed time of a layer is fitted on it


@pytest.mark.parametrize("microseconds", [0.5, 1.0, 2.0])
def test_the_band_of_a_rack_of_lpus_holds_the_measurement_within_a_quarter(microseconds: float) -> None:
    c = chip(LPX).generation.kernels["native"]["lpu"]["any"].model_copy(update={"dependent_time": 1e-6 * microseconds})
    found = answer("google/gemma-4-31b", LPX, 256, 100_000, split={"tensor": 16, "pipeline": 16}, precision=FP8)
    least = chip(LPX).generation.kernels["native"]["lpu"]["any"].dependent_time
    seconds = one(found.tpot) + 60 * (c.dependent_time - least)
    assert 1 / seconds == pytest.approx(3431, rel=0.25)


def test_the_vendor_s_speed_of_a_rack_takes_speculation() -> None:
    """10,996 tokens a second at 16k: no schedule of this structure gives it a token a step, two to four tokens do."""
    assert gemma(16_384, under="ideal") < 10_996
    assert gemma(16_384) < 0.4 * 10_996
    assert gemma(16_384, drafts=4, acceptance=0.65) < 10_996 < gemma(16_384, drafts=4, acceptance=0.85)


def test_long_contexts_are_nearly_free_in_sram() -> None:
    assert 0.85 < gemma(100_000) / gemma(16_384) < 1.0


def test_the_sram_decides_the_number_of_chips_and_a_refusal_names_it() -> None:
    keys = {"runtime": "scheduled", "mapper": "layer-pipeline", "precision": FP8, "batch": 1, "context": 16_384}
    refused = archsim.run(scenario("google/gemma-4-31b", LPX, 32, **keys))
    found = diagnose(refused, 0)
    assert found is not None and found.resource == "memory"
    (fix,) = [text for text in found.fixes if "chips" in text]
    chips = int(fix.split()[0].replace(",", ""))
    assert 60 < chips < 80  # 31 GB of weights and a KV cache in 450 MB a chip
    degree, stages = (
        int(word.strip("TP")) for word in fix.split() if word.strip("TP").isdigit() and word != fix.split()[0]
    )
    enough = scenario("google/gemma-4-31b", LPX, chips, **{**keys, "split": {"tensor": degree, "pipeline": stages}})
    assert archsim.run(enough).feasible.all()


def test_users_share_the_pipeline_and_one_user_does_not_wait_for_it() -> None:
    split = {"tensor": 16, "pipeline": 16}
    found = answer("google/gemma-4-31b", LPX, 256, 2048, [1, 4, 16, 64], split=split, precision=FP8)
    rate, users = found.throughput, found.interactivity
    assert rate[2] > 10 * rate[0] and users[2] > 0.95 * users[0]  # 16 stages serve 16 users at the speed of one
    assert 0.9 * users[2] < users[3] < users[2]  # four a stage share the installed weights


# Bertha 500: nothing is measured; these are the predictions as they stand


def test_the_memory_of_bertha_binds_below_a_thousand_sequences() -> None:
    found = answer(LLAMA_8B, BERTHA, 1, 128, [1, 64, 256], precision=FP8)
    for part in ("memory", "compute"):
        shares = found.answer.decode.total().parts[part] / found.answer.decode.span
        assert np.all(shares.ravel() > 0.5) if part == "memory" else np.all(shares.ravel() < 0.4)
    ridge = one(chip(BERTHA).ridge("fp8"))
    assert 1000 < ridge < 2000


def test_a_bertha_serves_llama_8b_about_as_fast_as_its_bandwidth_says() -> None:
    weights = 8.03e9 - 128_256 * 4096
    seconds = weights / (0.546e12 * 0.891 * 0.98) + 32 * 9.6e-6
    assert ms(answer(LLAMA_8B, BERTHA, 1, 1, precision=FP8)) == pytest.approx(1e3 * seconds, rel=0.02)


def test_batches_raise_reuse_until_compute_binds() -> None:
    found = answer(LLAMA_8B, BERTHA, 1, 16, [1, 512, 8192], precision=FP8)
    throughput = found.throughput
    assert throughput[1] > 100 * throughput[0]
    assert one(found.answer.decode.total().parts["compute"][..., -1:].ravel()[-1:]) > 0


# What must hold of every machine

SYSTEMS = st.sampled_from(
    [
        (LLAMA_8B, BERTHA, {"tensor": 1}),
        (LLAMA_70B, BERTHA, {"tensor": 8}),
        (GPT_OSS, JALAPENO, {"tensor": 8, "expert": 8}),
        ("deepseek/deepseek-v3", JALAPENO, {"tensor": 16, "expert": 16, "context": 4}),
        ("meta/opt-13b", PAPER, {"tensor": 4}),
        (LLAMA_8B, GROQ, {"tensor": 8, "pipeline": 32}),
        ("mistral/mixtral-8x7b", GROQ, {"tensor": 8, "pipeline": 32}),
        ("google/gemma-4-31b", LPX, {"tensor": 16, "pipeline": 16}),
        ("deepseek/deepseek-v3", "nvidia/groq-3-lp30", {"tensor": 64, "pipeline": 40}),
    ]
)
BATCHES, CONTEXTS = (
    st.one_of(st.integers(1, 8), st.integers(1, 3000)),
    st.one_of(st.integers(1, 64), st.integers(1, 200_000)),
)
GROWN = ("chip.memory.bandwidth", "chip.links.scale_up.bandwidth", "chip.clock")


def priced(system: tuple[str, str, Mapping[str, int]], batch: object, context: object, **keys: object) -> Result:
    model, on, split = system
    return answer(
        model, on, int(np.prod([split["tensor"], split.get("pipeline", 1)])), context, batch, split=split, **keys
    )


@settings(max_examples=25)
@given(SYSTEMS, BATCHES, CONTEXTS)
def test_parts_sum_to_the_time_and_no_kernel_beats_its_roofline(
    system: tuple[str, str, Mapping[str, int]], batch: int, context: int
) -> None:
    found, machine = priced(system, batch, context), chip(system[1])
    for step in (found.answer.decode, found.answer.prefill):
        for _, kernel, cost, _ in step.kernels():
            parts = [np.asarray(part) for part in cost.parts.values()]
            assert all(np.all(part >= 0) for part in parts), kernel.name
            assert sum(part for part in parts) == pytest.approx(cost.seconds, rel=1e-9, abs=1e-18), kernel.name
            if kernel.kind not in ("all_reduce", "all_to_all"):
                least = np.maximum(cost.flops / machine.matrix[kernel.compute], cost.bytes / machine.memory.bandwidth)
                assert np.all(cost.seconds >= least * (1 - 1e-12)), kernel.name


@settings(max_examples=15)
@given(SYSTEMS, BATCHES, CONTEXTS)
def test_arrays_equal_points(system: tuple[str, str, Mapping[str, int]], batch: int, context: int) -> None:
    grid = priced(system, [1, batch], [context, 7])
    raw = grid.pick(grid.answer.tpot)
    point = priced(system, batch, context)
    assert raw.shape == (2, 2) and same_bits(raw[1:, :1].ravel(), point.pick(point.answer.tpot).ravel())


@settings(max_examples=20)
@given(SYSTEMS, BATCHES, CONTEXTS, st.sampled_from(GROWN))
def test_more_of_a_resource_is_never_slower(
    system: tuple[str, str, Mapping[str, int]], batch: int, context: int, field: str
) -> None:
    model, on, split = system
    chips = int(np.prod([split["tensor"], split.get("pipeline", 1)]))
    under = "scheduled" if chip(on).kind == "lpu" else "native"
    s = scenario(model, on, chips, runtime=under, split=dict(split), batch=1, context=1)
    value = s.chip
    for name in field.split(".")[1:]:
        value = value[name] if isinstance(value, Mapping) else getattr(value, name)
    found = archsim.run(s, batch=batch, context=context, over={field: one(value) * np.array([0.5, 1.0, 2.0, 8.0])})
    for values in (found.pick(found.answer.tpot), found.pick(found.answer.ttft)):
        assert np.all(np.diff(values.ravel()) <= 1e-12 * values.ravel()[:-1]), values


@settings(max_examples=15)
@given(SYSTEMS, BATCHES, CONTEXTS)
def test_more_compute_is_never_slower(system: tuple[str, str, Mapping[str, int]], batch: int, context: int) -> None:
    model, on, split = system
    chips = int(np.prod([split["tensor"], split.get("pipeline", 1)]))
    under = "scheduled" if chip(on).kind == "lpu" else "native"
    s = scenario(model, on, chips, runtime=under, split=dict(split), batch=1, context=1)
    fast = replace(s.chip, matrix={fmt: rate * 4.0 for fmt, rate in s.chip.matrix.items()})
    quick = replace(s, system=type(s.system)({name: replace(pool, chip=fast) for name, pool in s.system.pools.items()}))
    slow, found = (archsim.run(each, batch=batch, context=context) for each in (s, quick))
    assert one(found.pick(found.answer.tpot)) <= one(slow.pick(slow.answer.tpot)) * (1 + 1e-12)


@settings(max_examples=15)
@given(SYSTEMS, BATCHES, CONTEXTS)
def test_the_ideal_runtime_is_a_bound(system: tuple[str, str, Mapping[str, int]], batch: int, context: int) -> None:
    real, ideal = priced(system, batch, context), priced(system, batch, context, runtime="ideal")
    for name in ("tpot",):
        slow, fast = (one(found.pick(getattr(found.answer, name))) for found in (real, ideal))
        assert slow >= fast * (1 - 1e-12)


# The pieces


def product(m: float, n: float, k: float, name: str = "up", form: str = "fp8") -> Kernel:
    fmt = format_named(form)
    dims = {"m": array(m), "n": array(n), "k": array(k)}
    return Kernel(name, "gemm", "ffn", dims, fmt, fmt, form, (name,))


def reduction(size: float, ranks: float) -> Kernel:
    fmt = format_named("bf16")
    return Kernel("sum", "all_reduce", "ffn", {"bytes": array(size), "ranks": array(ranks)}, fmt, fmt, "bf16", ())


def test_links_hide_behind_the_product_before_but_for_the_last_chunk() -> None:
    machine = chip(BERTHA)
    long, short = product(1, 65536, 8192), product(1, 2048, 512)
    wire = one(near_memory.price(reduction(1e6, 8), machine, "native").parts["link"])
    chunks = machine.generation.kernels["native"]["near_memory"]["any"].chunks

    def shown(before: Kernel) -> Cost:
        pair = [(kernel, KINDS["near-memory"](kernel, machine, "native")) for kernel in (before, reduction(1e6, 8))]
        return TOGETHER["near-memory"](pair, machine, "native")[1][1]

    assert one(shown(long).parts["link"]) == pytest.approx(wire / chunks)
    busy = one(near_memory.price(short, machine, "native").seconds)
    assert one(shown(short).parts["link"]) == pytest.approx(max(wire - busy, wire / chunks))


def generation(sequences: float, context: float) -> Kernel:
    dims = {"sequences": sequences, "queries": 1.0, "tokens": sequences * context, "length": context, "heads": 32.0}
    fmt = format_named("fp8")
    sizes = {name: array(value) for name, value in {**dims, "kv_heads": 8.0, "width": 128.0, "value": 128.0}.items()}
    return Kernel("attention", "generation_attention", "attention", sizes, fmt, format_named("bf16"), "bf16", ())


@pytest.mark.parametrize("context", [1.0, 100.0, 8192.0])
def test_near_memory_pays_for_the_keys_and_values_that_it_writes(context: float) -> None:
    """8 heads of 128 + 128 bytes a token, read of all tokens and written of one, and the bus turns for it."""
    machine = chip(BERTHA)
    token = 8 * (128 + 128)
    cost = near_memory.price(generation(64.0, context), machine, "native")
    assert one(cost.bytes) == pytest.approx(64 * token * (context + 1))
    kept = turnaround(machine.memory.dram.timings, context / (context + 1))
    least = 64 * token * (context + 1) / one(machine.memory.bandwidth) / one(kept)
    assert one(cost.seconds) >= least * (1 - 1e-12)
    alone = one(lpu.price(generation(64.0, context), chip(LPX), "native").bytes)
    assert alone == pytest.approx(64 * token * context)  # SRAM writes beside its reads


@pytest.mark.parametrize("on", [BERTHA, JALAPENO, GROQ, LPX])
def test_a_group_of_one_and_no_tokens_cost_nothing(on: str) -> None:
    machine, kind = chip(on), chip(on).kind
    fmt = format_named("bf16")
    assert one(KINDS[kind](reduction(1e6, 1), machine, "native").seconds) == 0.0
    nothing = Kernel("down", "gemm", "ffn", {"m": array(0), "n": array(64), "k": array(64)}, fmt, fmt, "bf16", ())
    cost = KINDS[kind](nothing, machine, "native")
    assert one(cost.seconds) == 0.0 and all(one(part + 0.0 * cost.seconds) == 0.0 for part in cost.parts.values())


def test_the_dependent_time_of_a_layer_is_paid_once_in_two_halves() -> None:
    machine = chip(BERTHA)
    halves = [
        one(near_memory.price(product(1, 64, 64, name), machine, "native").parts["fixed"]) for name in ("o", "down")
    ]
    assert sum(halves) == pytest.approx(9.6e-6)
    assert one(near_memory.price(product(1, 64, 64, "up"), machine, "native").parts["fixed"]) == 0.0


def test_a_longer_reach_takes_longer_and_the_table_is_kept() -> None:
    link = chip("nvidia/groq-3-lp30").links["scale_up"]
    reach = link.latency_among(np.array([2.0, 16.0, 17.0, 256.0, 1280.0, 5000.0]))
    assert np.allclose(reach, [0.35e-6, 0.35e-6, 0.75e-6, 1.15e-6, 2.05e-6, 2.95e-6])


def test_an_expert_is_read_again_for_each_token_on_an_lpu_and_once_on_near_memory() -> None:
    bytes_of = {}
    for on in (GROQ, JALAPENO):
        precision = INT8 if on == GROQ else MXFP4
        split = {"tensor": 8, "pipeline": 32} if on == GROQ else {"tensor": 8}
        chips = 256 if on == GROQ else 8
        found = answer("mistral/mixtral-8x7b", on, chips, 64, [32, 4096], split=split, precision=precision)
        kernels = found.answer.decode.kernels()
        cost = next(cost for _, kernel, cost, _ in kernels if kernel.kind == "experts")
        bytes_of[on] = np.ravel(cost.bytes)
    assert bytes_of[GROQ][1] > 50 * bytes_of[GROQ][0]
    assert bytes_of[JALAPENO][1] < 2 * bytes_of[JALAPENO][0]


def test_the_schedule_of_an_lpu_stretches_a_layer_to_its_period_and_no_further() -> None:
    machine = chip(GROQ)
    pair = [
        (kernel, lpu.price(kernel, machine, "native"))
        for kernel in (product(1, 64, 64, "o", "int8"), product(1, 64, 64, "down", "int8"))
    ]
    total = sum(one(cost.seconds) for _, cost in lpu.scheduled(pair, machine, "native"))
    assert total == pytest.approx(machine.generation.kernels["native"]["lpu"]["any"].period)
    slow = with_value(machine, ("memory", "bandwidth"), array(1e6))
    long = [(kernel, lpu.price(kernel, slow, "native")) for kernel, _ in pair]
    assert [one(cost.seconds) for _, cost in lpu.scheduled(long, slow, "native")] == [
        one(cost.seconds) for _, cost in long
    ]


# The command


@pytest.mark.parametrize("example", EXAMPLES)
def test_the_examples_answer_both_questions_with_a_report_and_an_explanation(example: str, tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    ran = CliRunner().invoke(app, ["run", example, "--html", str(page)])
    assert ran.exit_code == 0, ran.output
    assert "TPOT" in ran.output and "TTFT" in ran.output and page.stat().st_size > 10_000
    explained = CliRunner().invoke(app, ["explain", example])
    assert explained.exit_code == 0 and "one run" in explained.output


def test_a_runtime_made_for_gpus_is_refused_with_those_that_fit() -> None:
    with pytest.raises(CatalogError, match=r"near_memory.*vllm.*ideal and native"):
        archsim.run(scenario(LLAMA_8B, BERTHA, 1, batch=1, context=1))


@pytest.mark.parametrize("on", [BERTHA, JALAPENO, PAPER, GROQ, LPX])
def test_the_command_shows_a_machine(on: str) -> None:
    shown = CliRunner().invoke(app, ["chips", "show", on])
    assert shown.exit_code == 0 and chip(on).kind in shown.output


def test_a_pool_that_would_do_is_told_which_mapper_finds_it() -> None:
    keys = {"runtime": "scheduled", "split": {"tensor": 64, "data": 9}, "precision": INT8, "batch": 1, "context": 2048}
    found = diagnose(archsim.run(scenario("meta/llama-2-70b", GROQ, 576, **keys)), 0)
    assert found is not None and any("layer-pipeline" in fix for fix in found.fixes)


# A KV cache behind the chip


def test_a_kv_cache_behind_the_chip_frees_sram_and_costs_its_bandwidth() -> None:
    split = {"tensor": 16, "pipeline": 16}
    near, far = (
        answer("google/gemma-4-31b", LPX, 256, 100_000, split=split, precision=FP8, placement={"kv": where})
        for where in ("chip", "backing")
    )
    assert one(far.memory_needed) < one(near.memory_needed)
    cached = near.answer.memory.kv_per_sequence * 16  # bytes of a sequence on all stages of one rank
    assert one(far.tpot) == pytest.approx(one(cached) / 12.5e9, rel=0.05)


def test_behind_the_chip_fit_more_users_up_to_its_capacity_and_the_refusal_says_so() -> None:
    keys = {"split": {"tensor": 16, "pipeline": 16}, "precision": FP8, "placement": {"kv": "backing"}}
    found = answer("google/gemma-4-31b", LPX, 256, 100_000, [1, 200, 1000], **keys)
    assert found.feasible.tolist() == [True, True, False]
    refused = diagnose(found, 2)
    assert refused is not None and "behind each" in refused.reason and refused.needed > refused.available


def test_a_chip_without_memory_behind_it_refuses_the_option_in_its_place() -> None:
    with pytest.raises(CatalogError, match=r"no memory behind it"):
        scenario(LLAMA_8B, GROQ, 64, runtime="scheduled", batch=1, context=1, placement={"kv": "backing"})
