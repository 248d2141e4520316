"""Cases that sizing tools are known to get wrong, each with its neighbours: the figure first, recomputed by hand.

What `test_models.py`, `test_memory.py` and the others show already is not repeated here; this file has the facts of
released models as they are shipped, the neighbours of each case, and what is said when a plan cannot run.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scenarios import (
    CHIPS,
    DEEPSEEK,
    GPT_OSS,
    LLAMA_8B,
    LLAMA_70B,
    MIXTRAL_8X7B,
    QWEN3_06B,
    TINY,
    chip,
    collective,
    deployment,
    gemm,
    generation,
    graph,
    made,
    model,
    one,
    priced,
    prompt,
    runtime,
    scenario,
)
from typer.testing import CliRunner

import archsim
from archsim.arrays import array
from archsim.catalog import CatalogError
from archsim.cli import app
from archsim.economics.fleet import fleet_rates
from archsim.economics.money import per_million
from archsim.engine.experts import distinct_experts
from archsim.engine.step import run_step
from archsim.explore.diagnosis import diagnose
from archsim.explore.result import METRICS
from archsim.mapping.memory import kv_bytes, longest_context, memory_plan, state_bytes, weight_bytes
from archsim.mapping.pipeline import largest
from archsim.mapping.place import place
from archsim.mapping.split import REASONS, legality, split
from archsim.serving.speculation import expected_tokens
from archsim.units import UnitError, format_named
from archsim.workload.model import Model, precision_of
from archsim.workload.step import decode, prefill

H100, H200 = "nvidia/h100-sxm", "nvidia/h200-sxm"
GPT_OSS_20B, NANO = "openai/gpt-oss-20b", "nvidia/nemotron-3-nano-30b-a3b"
GIB = 2**30
ROOT = Path(__file__).parent.parent


def kv_at(of: str | Model, context: float, tensor: int = 1, **precision: str) -> float:
    """KV-cache bytes of one sequence on one rank, in bf16 unless said."""
    what = of if isinstance(of, Model) else model(of)
    return one(kv_bytes(what, precision_of(what, {"kv": "bf16", **precision}), split(tensor=tensor), array(context)))


# Memory

# Every attention layer counted as full, in bf16: 2 x layers x KV heads x width x 2 B, or the latent's width once
PER_TOKEN = {
    LLAMA_8B: 2 * 32 * 8 * 128 * 2,
    "meta/llama-3.1-405b": 2 * 126 * 8 * 128 * 2,
    "meta/llama-4-maverick": 2 * 48 * 8 * 128 * 2,
    "meta/llama-4-scout": 196_608,
    "qwen/qwen3-32b": 262_144,  # hidden / heads would give 163,840
    "qwen/qwen3-0.6b": 114_688,  # 28 layers of 8 heads of 128; hidden / heads would give 57,344
    "qwen/qwen3-235b-a22b": 192_512,
    "qwen/qwen3-next-80b-a3b": 24_576,  # 12 of 48 layers attend
    DEEPSEEK: 70_272,  # 61 x 576 elements
    "deepseek/deepseek-r1": 70_272,
    "moonshot/kimi-k2": 70_272,
    "zai/glm-4.5": 376_832,
    GPT_OSS_20B: 49_152,  # 64 wide, not 2880 / 64 = 45
    GPT_OSS: 73_728,
    "mistral/mixtral-8x7b": 131_072,
    "mistral/mixtral-8x22b": 229_376,
    "google/gemma-3-27b": 507_904,
    "minimax/minimax-m2": 253_952,
    NANO: 6_144,  # 6 attention layers of 2 heads
    "nvidia/nemotron-h-56b": 40_960,
    "ai21/jamba-v0.1": 16_384,
}


@pytest.mark.parametrize("name", PER_TOKEN)
def test_released_models_cache_as_many_bytes_a_token_as_their_shapes_say(name: str) -> None:
    assert model(name).kv_elements_per_token() * 2 == PER_TOKEN[name]
    assert kv_at(name, 1) == PER_TOKEN[name]


@pytest.mark.parametrize("name", ["deepseek/deepseek-v3", "deepseek/deepseek-r1", "moonshot/kimi-k2"])
@pytest.mark.parametrize("tensor", [2, 8, 64])
def test_every_tensor_rank_holds_the_whole_latent_of_every_model_that_has_one(name: str, tensor: int) -> None:
    assert kv_at(name, 1000, tensor=tensor) == 70_272_000


def test_gpt_oss_20b_as_shipped_needs_6_094_gib_for_32_sequences_of_8192_and_not_12() -> None:
    assert round(32 * kv_at(GPT_OSS_20B, 8192) / GIB, 3) == 6.094
    assert 32 * 8192 * 49_152 / GIB == 12.0  # were every layer full
    for context in (1, 64, 127, 128):  # inside the window both agree
        assert kv_at(GPT_OSS_20B, context) == 49_152 * context
    assert kv_at(GPT_OSS_20B, 129) == 49_152 * 129 - 24_576


@pytest.mark.parametrize(
    "name", [GPT_OSS_20B, GPT_OSS, "google/gemma-3-27b", "google/gemma-3-4b", LLAMA_8B, DEEPSEEK, NANO]
)
@pytest.mark.parametrize("room", [10e6, 1e9, 37e9])
def test_the_longest_context_is_found_by_inverting_the_cache_to_the_token(name: str, room: float) -> None:
    of = model(name)
    free = room + one(state_bytes(of, split()))
    longest = longest_context(of, precision_of(of, {"kv": "bf16"}), split(), free)
    assert kv_at(of, longest) <= room < kv_at(of, longest + 1)


def test_nemotron_nano_holds_state_that_bounds_the_batch_and_not_the_length() -> None:
    of = model(NANO)
    ssm, convolution = 48_234_496, 847_872
    assert one(state_bytes(of, split())) == ssm + convolution
    assert ssm == 23 * 64 * 64 * 128 * 4  # Mamba layers, heads, their width, their state, float32
    assert convolution == 23 * (64 * 64 + 2 * 8 * 128) * 3 * 2  # channels, kernel less one, bf16
    d = deployment(NANO, H100)
    short, long, many = (memory_plan(d, array(b), array(c)) for b, c in [(1, 1), (1, 200_000), (50, 1)])
    assert one(short.parts["state"]) == one(long.parts["state"]) == ssm + convolution
    assert one(many.parts["state"]) == 50 * (ssm + convolution)
    assert one(long.parts["kv"]) == 200_000 * 6_144


@pytest.mark.parametrize("name", [NANO, "nvidia/nemotron-h-56b", "ai21/jamba-v0.1", "qwen/qwen3-next-80b-a3b"])
def test_state_never_fits_more_sequences_because_they_are_short(name: str) -> None:
    of = model(name)
    state = one(state_bytes(of, split()))
    assert state > 1000 * PER_TOKEN[name] / 2
    most = longest_context(of, precision_of(of, {}), split(), state * 0.999)
    assert most == 0, "a sequence without room for its state does not run at any length"
    assert longest_context(of, precision_of(of, {}), split(), state + 10 * PER_TOKEN[name]) == 10


@pytest.mark.parametrize("tensor", [2, 4, 8])
def test_state_heads_divide_among_ranks(tensor: int) -> None:
    whole, share = (one(state_bytes(model(NANO), split(tensor=t))) for t in (1, tensor))
    assert share == pytest.approx(whole / tensor)  # eight groups: nothing is replicated up to TP8


def test_qwen3_0_6b_stores_its_tied_embedding_once_and_computes_its_head() -> None:
    shipped = graph("qwen/qwen3-0.6b")
    assert sum(shipped.parameters().values()) == 596_049_920
    loose = graph(made(QWEN3_06B, tie_word_embeddings=False))
    assert sum(loose.parameters().values()) == 596_049_920 + 151_936 * 1024 == 751_632_384
    assert one(shipped.flops()) == one(loose.flops())
    (head,) = [op for op, _ in shipped.everything() if op.name == "head"]
    assert one(head.flops) == 2 * 151_936 * 1024


@pytest.mark.parametrize("tensor", [2, 4, 8])
def test_tied_weights_on_tensor_ranks_are_still_stored_once(tensor: int) -> None:
    tied, loose = (made(QWEN3_06B, tie_word_embeddings=tie) for tie in (True, False))
    held, more = (one(weight_bytes(of, precision_of(of, {}), split(tensor=tensor))) for of in (tied, loose))
    assert more - held == pytest.approx(151_936 * 1024 * 2 / tensor)


def test_gpt_oss_20b_weighs_its_experts_at_4_25_bits_and_the_rest_at_16() -> None:
    of = model(GPT_OSS_20B)
    experts = graph(GPT_OSS_20B).parameters()["experts"]
    total = sum(graph(GPT_OSS_20B).parameters().values())
    assert total == 20_914_757_184
    weighed = one(weight_bytes(of, precision_of(of, {}), split()))
    assert weighed == experts * 4.25 / 8 + (total - experts) * 2
    assert one(weight_bytes(of, precision_of(of, {"weights": "bf16", "experts": "bf16"}), split())) == 2 * total


@pytest.mark.parametrize(
    ("name", "bits"),
    [("mxfp4", 4 + 8 / 32), ("nvfp4", 4 + 8 / 16), ("mxfp8", 8 + 8 / 32), ("bf16", 16.0), ("fp8", 8.0)],
)
def test_formats_carry_their_scales(name: str, bits: float) -> None:
    assert format_named(name).bytes * 8 == bits


MULTIPLIED = [
    (LLAMA_70B, {"tensor": 4}),
    (LLAMA_70B, {"tensor": 16}),  # two ranks a KV head
    (DEEPSEEK, {"tensor": 8, "expert": 8}),
    ("qwen/qwen3-235b-a22b", {"tensor": 8, "expert": 8}),
    (LLAMA_70B, {"tensor": 4, "pipeline": 2}),
    (LLAMA_70B, {"tensor": 4, "data": 2}),
]


@pytest.mark.parametrize(("name", "by"), MULTIPLIED)
@pytest.mark.parametrize("under", ["vllm", "sglang", "tensorrt-llm", "ideal"])
def test_memory_divided_by_tokens_is_the_bytes_a_token_under_every_runtime(
    name: str, by: dict[str, int], under: str
) -> None:
    """Reserves, pages, graphs and buffers are parts of their own and never hide in a token."""
    of, how = model(name), split(**by)
    per_token = one(kv_bytes(of, precision_of(of, {}), how, array(1)))
    for batch, context in [(1, 1), (16, 4096), (512, 777)]:
        plan = memory_plan(deployment(name, H200, how, under), array(batch), array(context))
        tokens = -(-batch // int(one(how.groups))) * context
        assert one(plan.parts["kv"]) / tokens == pytest.approx(per_token, rel=1e-12)
        assert one(plan.needed) == pytest.approx(sum(one(part) for part in plan.parts.values()))


def test_prefix_caching_changes_no_byte_of_a_token() -> None:
    asked: dict[str, Any] = {"split": {"tensor": 8}}
    plain, cached = (
        archsim.run(
            scenario(LLAMA_70B, H100, 8, traffic={"input": 4000, "output": 500, "cached": part}, **asked), batch=8
        )
        for part in (0, 3000)
    )
    assert one(plain.metric("memory_needed")) == one(cached.metric("memory_needed"))
    assert one(cached.ttft) < one(plain.ttft)


# Plans that cannot run


@pytest.mark.parametrize(
    ("heads", "kv", "legal"),
    [
        (28, 4, [1, 2, 4, 28]),
        (32, 8, [1, 2, 4, 8, 16, 32]),
        (40, 8, [1, 2, 4, 8, 40]),
        (64, 4, [1, 2, 4, 8, 16, 32, 64]),
        (24, 8, [1, 2, 4, 8, 24]),
        (12, 2, [1, 2, 4, 6, 12]),
        (14, 2, [1, 2, 14]),
        (71, 1, [1, 71]),
    ],
)
def test_heads_allow_the_degrees_that_divide_both_kinds_evenly(heads: int, kv: int, legal: list[int]) -> None:
    of = made(
        TINY, num_attention_heads=heads, num_key_value_heads=kv, hidden_size=heads * 64, intermediate_size=heads * 512
    )
    degrees = np.arange(1.0, 129.0)
    broken = legality(of, split(tensor=degrees), degrees)
    assert [int(degree) for degree in degrees[broken == 0]] == legal
    for degree, rule in zip(degrees, broken, strict=True):
        wanted = "query heads" if heads % degree else "KV heads"
        assert int(degree) in legal or REASONS[int(rule)] == wanted, f"TP{degree:.0f}"


def test_28_heads_are_refused_in_words_and_with_degrees_that_work() -> None:
    """As shipped in Qwen2.5-Coder-7B: 28 query heads, 4 KV heads."""
    for tensor, said in [(7, "KV heads"), (14, "KV heads"), (8, "query heads")]:
        result = archsim.run(
            scenario("qwen/qwen2.5-coder-7b", H100, tensor, split={"tensor": tensor}, batch=1, context=100)
        )
        why = diagnose(result, 0)
        assert why is not None and said in why.reason
        assert why.fixes == ("degrees the model allows: TP1, TP2, TP4",)  # 28 does not divide its width of 18,944


WRONG_NAMES = [
    ({"chip": "nvidia/h100-sxn"}, "h100-sxm"),
    ({"chip": "A40"}, "l40s"),
    ({"chip": "H100"}, "h100"),
    ({"model": "meta/llama-3.1-07b"}, "llama-3.1-70b"),
    ({"model": "llama-31-8b"}, "llama-3.1-8b"),
    ({"runtime": "vlm"}, "vllm"),
    ({"mapper": "tensor-paralel"}, "tensor-parallel"),
    ({"precision": {"kv": "fp7"}}, "fp8"),
    ({"precision": {"weights": "fb8"}}, "fp8"),
    ({"precision": {"kw": "fp8"}}, "kv"),
    ({"kv_cache_dtpye": "fp8"}, "kv_cache_dtpye"),
    ({"contxt": 100}, "context"),
    ({"tarffic": {"input": 1, "output": 1}}, "traffic"),
    ({"split": {"tensr": 2}}, "tensor"),
    ({"slo": {"ttf": "1 s"}}, "ttft"),
]


@pytest.mark.parametrize(("keys", "near"), WRONG_NAMES)
def test_an_unknown_name_is_an_error_that_says_what_is_near(keys: dict[str, Any], near: str, tmp_path: Path) -> None:
    """Never another card's numbers, and never zero bytes."""
    asked: dict[str, Any] = {"model": LLAMA_8B, "batch": 1, "context": 100, **keys}
    asked["pools"] = {"gpu": {"chip": asked.pop("chip", H100), "count": 1}}
    file = tmp_path / "wrong.yaml"
    file.write_text(json.dumps(asked, indent=1), encoding="utf-8")
    done = CliRunner().invoke(app, ["run", str(file)])
    assert done.exit_code == 2 and not done.stdout, done.output
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"{file}:") and near in line.lower(), line


@pytest.mark.parametrize("name", ["fp7", "bf61", "float", "mxfp5", "", "16"])
def test_an_unknown_format_is_never_zero_bytes(name: str) -> None:
    with pytest.raises(UnitError):
        precision_of(model(LLAMA_8B), {"kv": name})
    with pytest.raises(CatalogError, match=r"unknown format|expected"):
        scenario(LLAMA_8B, H100, 1, precision={"kv": name}, batch=1, context=1)


@pytest.mark.parametrize(
    ("name", "gib"), [(H100, 79.65), (H200, None), ("nvidia/a100-sxm-80gb", None), ("nvidia/l40s", None)]
)
def test_a_card_has_the_memory_that_its_driver_reports_and_not_the_number_on_the_box(
    name: str, gib: float | None
) -> None:
    capacity = one(chip(name).memory.capacity)
    box = int("".join(c for c in chip(name).memory.technology if c.isdigit()) or 0)
    assert capacity % 1024 == 0 and capacity != box * 1e9
    if gib:
        assert round(capacity / GIB, 2) == gib and round(capacity / 1e9, 2) == 85.52


def test_a_plan_says_which_capacity_it_used(tmp_path: Path) -> None:
    file = tmp_path / "full.yaml"
    file.write_text(f"model: {LLAMA_70B}\npools: {{gpu: {{chip: {H100}, count: 1}}}}\nprecision: {{weights: fp8}}\n"
                    "batch: 1\ncontext: 131072\n", encoding="utf-8")  # fmt: skip
    done = CliRunner().invoke(app, ["run", str(file)])
    assert done.exit_code == 1
    assert "memory" in done.stdout.lower() and "13,164" in done.stdout and "TP2" in done.stdout
    assert "85.5 GB" in done.stdout.replace("\u00a0", " ") or "79.65 GiB" in done.stdout


# Time


@pytest.mark.parametrize(("experts", "top_k"), [(8, 2), (32, 4), (128, 4), (256, 8), (384, 8), (16, 1)])
@pytest.mark.parametrize("batch", [1, 2, 3, 4, 8, 16, 64, 1000])
def test_distinct_experts_are_n_times_one_minus_the_chance_that_all_miss(experts: int, top_k: int, batch: int) -> None:
    found = one(distinct_experts(array(batch), array(experts), array(top_k), array(0.0)))
    assert found == pytest.approx(experts * (1 - ((experts - top_k) / experts) ** batch), rel=1e-9)
    assert top_k - 1e-9 <= found <= experts


def test_a_layer_of_mixtral_reads_the_weights_of_its_distinct_experts_only() -> None:
    """In the bytes of a step: 2, 3.5 and 4.625 experts at one, two and three sequences, and near all 8 at 64."""
    moved = {}
    for batch in (1, 2, 3, 64):
        d = deployment(made(MIXTRAL_8X7B), H100, split(tensor=1), "ideal", skew=0.0)
        step = run_step(place(d, decode(batch, 10, d.model.clips)), d.chip, "ideal")
        (cost,) = [cost for _, kernel, cost, _ in step.kernels() if kernel.kind == "experts"]
        moved[batch] = one(cost.bytes) / (3 * 4096 * 14_336 * 2)
    assert moved[1] == pytest.approx(2.0, rel=0.01)
    assert moved[2] == pytest.approx(3.5, rel=0.01)
    assert moved[3] == pytest.approx(4.625, rel=0.01)
    assert 7.9 < moved[64] < 8.2


@pytest.mark.parametrize(("drafts", "tokens"), [(0, 1.0), (1, 1.8), (3, 2.952), (5, 3.689)])
def test_drafts_accepted_with_0_8_give_so_many_tokens_a_step(drafts: int, tokens: float) -> None:
    assert one(expected_tokens(0.8, drafts)) == pytest.approx(tokens, abs=5e-4)


@given(st.floats(0.0, 0.999), st.integers(0, 20))
def test_tokens_a_step_are_the_geometric_sum_and_between_one_and_all(acceptance: float, drafts: int) -> None:
    found = one(expected_tokens(acceptance, drafts))
    assert found == pytest.approx((1 - acceptance ** (drafts + 1)) / (1 - acceptance), rel=1e-9)
    assert 1 <= found <= drafts + 1
    assert found <= one(expected_tokens(acceptance, drafts + 1))
    assert found == pytest.approx(one(expected_tokens([acceptance] * drafts, drafts)))


def test_no_drafts_and_no_acceptance_are_exactly_off_and_certainty_is_all_of_them() -> None:
    assert one(expected_tokens(0.8, 0)) == one(expected_tokens(0.0, 7)) == one(expected_tokens([], 0)) == 1.0
    assert one(expected_tokens(1.0, 7)) == 8.0


def test_a_mean_rate_is_no_probability_of_each_position() -> None:
    """Positions accepted with 0.9, 0.6 and 0.3 give fewer tokens than three at their mean."""
    profile = one(expected_tokens([0.9, 0.6, 0.3], 3))
    assert profile == pytest.approx(1 + 0.9 + 0.9 * 0.6 + 0.9 * 0.6 * 0.3)
    assert profile != pytest.approx(one(expected_tokens(0.6, 3)))
    assert one(expected_tokens([0.9, 0.6, 0.3], 1)) == pytest.approx(1.9)
    assert one(expected_tokens([0.3, 0.6, 0.9], 3)) < profile, "the first positions count most"


@pytest.mark.parametrize("acceptance", [-0.1, 1.1, [0.5], [0.5, 0.5, 1.5]])
def test_what_is_no_probability_of_three_drafts_is_refused(acceptance: float | list[float]) -> None:
    with pytest.raises(ValueError, match="acceptance"):
        expected_tokens(acceptance, 3)


def test_verification_scales_tokens_and_reads_weights_once() -> None:
    (plain, drafted) = (graph(LLAMA_70B, decode(4, 1000, queries=q)) for q in (1, 4))
    assert plain.parameters() == drafted.parameters()
    products = [
        (a, b) for a, b in zip(plain.operators("dense"), drafted.operators("dense"), strict=True) if a.kind == "gemm"
    ]
    assert products
    for a, b in products:
        assert one(b.dims["m"]) == 4 * one(a.dims["m"]) and one(a.dims["n"]) == one(b.dims["n"])


@pytest.mark.parametrize(
    ("layers", "count", "speedup"),
    [
        (64, 6, 5.818),
        (64, 8, 8.0),
        (64, 5, 4.923),
        (80, 6, 5.714),
        (61, 4, 3.8125),
        (61, 8, 7.625),
        (32, 3, 2.909),
        (7, 7, 7.0),
    ],
)
def test_equal_layers_speed_up_by_all_over_the_largest_stage(layers: int, count: int, speedup: float) -> None:
    sizes = {"layer": array(1.0)}
    most = one(largest([("layer", layers)], sizes, array(count)))
    assert layers / most == pytest.approx(speedup, abs=5e-4)
    assert layers / most <= count


def test_a_stage_with_the_head_can_be_the_largest() -> None:
    sizes = {"layer": array(1.0), "head": array(3.0), "embedding": array(0.0)}
    assert one(largest([("embedding", 1), ("layer", 64), ("head", 1)], sizes, array(4))) == 19.0
    assert one(largest([("embedding", 1), ("layer", 64), ("head", 1)], sizes, array(1))) == 67.0


def test_more_stages_answer_more_sequences_but_never_one_token_sooner() -> None:
    """One token's latency is the sum of all stages and their hops."""
    found = [
        archsim.run(
            scenario(LLAMA_70B, H100, 4 * stages, split={"tensor": 4, "pipeline": stages}, batch=1, context=1000)
        )
        for stages in (1, 2, 4)
    ]
    tpot = [one(result.tpot) for result in found]
    assert tpot[0] <= tpot[1] * (1 + 1e-9) and tpot[1] <= tpot[2] * (1 + 1e-9)


@pytest.mark.parametrize("ranks", [16, 24, 32, 64])
@pytest.mark.parametrize("size", [1e6, 1e8, 1e9])
def test_an_all_reduce_over_nodes_waits_for_the_network_card(ranks: int, size: float) -> None:
    far = priced(collective("all_reduce", size, ranks), stack="ideal")
    nodes = ranks // 8
    crossing = 2 * (nodes - 1) / nodes * size / 8 / 50e9
    assert one(far.seconds) >= crossing
    near = one(priced(collective("all_reduce", size, 8), stack="ideal").seconds)
    assert one(far.seconds) > near


@pytest.mark.parametrize("under", ["vllm", "sglang", "tensorrt-llm", "ideal"])
def test_a_slower_network_slows_what_crosses_nodes_and_nothing_inside_one(under: str) -> None:
    s = {
        count: scenario(LLAMA_70B, H100, count, runtime=under, split={"tensor": count}, batch=64, context=1000)
        for count in (8, 16)
    }
    field = "chip.links.scale_out.bandwidth"
    fast, slow = ({count: archsim.run(of, over={field: rate}).tpot for count, of in s.items()} for rate in (50e9, 5e9))
    assert one(fast[8]) == one(slow[8])
    assert one(slow[16]) > 1.05 * one(fast[16])


@pytest.mark.parametrize("stack", ["vllm", "sglang", "trtllm"])
@pytest.mark.parametrize(("n", "k"), [(8192, 8192), (28_672, 8192), (4096, 14_336)])
def test_one_row_is_bound_by_bytes_and_thousands_by_compute(stack: str, n: int, k: int) -> None:
    row, some, many = (priced(gemm(m, n, k), stack=stack) for m in (1, 256, 8192))
    weights = n * k * 2 / 3.35e12
    assert one(row.seconds) >= weights
    assert one(row.parts["compute"]) < 0.05 * one(row.seconds)
    assert one(some.parts["compute"]) == pytest.approx(256 * one(row.parts["compute"]), rel=1e-9)
    assert one(some.seconds) > one(row.seconds)
    assert one(many.parts["compute"]) > 0.5 * one(many.seconds)


MIXED = [
    (LLAMA_8B, H100, {}),
    (LLAMA_70B, H100, {"tensor": 8}),
    (GPT_OSS_20B, H100, {}),
    (DEEPSEEK, H200, {"tensor": 8, "expert": 8}),
]


@pytest.mark.parametrize(("name", "on", "by"), MIXED)
@pytest.mark.parametrize("under", ["vllm", "sglang", "tensorrt-llm", "ideal"])
def test_a_mixed_step_costs_no_more_than_its_parts_and_no_less_than_either(
    name: str, on: str, by: dict[str, int], under: str
) -> None:
    d = deployment(name, on, split(**by), under)
    clips = d.model.clips
    decoding, prompts = decode([[1], [16], [200]], 3000, clips), prefill([[64, 700, 8000]], 500, 1, clips)
    mixed, plain, alone = (
        run_step(place(d, step), d.chip, under_stack(under)).span for step in (decoding + prompts, decoding, prompts)
    )
    assert np.all(mixed <= (plain + alone) * (1 + 1e-12)), f"up to {np.max(mixed / (plain + alone)) - 1:.1%} more"
    assert np.all(mixed >= np.maximum(plain, alone) * (1 - 1e-12))


def under_stack(name: str) -> str:
    return runtime(name).stack


@pytest.mark.parametrize("stack", ["vllm", "sglang", "trtllm", "ideal"])
@pytest.mark.parametrize("tokens", [2000, 8000, 64_000])
def test_one_long_prompt_costs_more_attention_than_two_of_half_its_length(stack: str, tokens: int) -> None:
    long, short = (priced(prompt(requests, tokens // requests), stack=stack) for requests in (1, 2))
    assert one(long.flops) == pytest.approx(2 * one(short.flops), rel=2e-3)
    assert one(long.seconds) > one(short.seconds)
    assert one(long.parts["compute"]) > one(short.parts["compute"])


def test_inside_a_window_a_long_prompt_costs_what_two_halves_cost() -> None:
    """The neighbour for which the rule does not hold: past its window attention is linear in the prompt."""
    long, short = (one(priced(prompt(n, 64_000 // n, window=128), stack="ideal").flops) for n in (1, 2))
    assert long == pytest.approx(short, rel=5e-3)


def test_a_request_lasts_its_first_token_and_the_others_one_tpot_each() -> None:
    """TPOT is (end - first token) / (n - 1): in the closed loop a client's time is TTFT and its other tokens."""
    assert (10.5 - 0.5) / (101 - 1) == 0.1
    s = scenario(LLAMA_8B, H100, 1, split={}, traffic={"input": 500, "output": 101})
    found = archsim.run(s, batch=[1, 8, 32], mode="steady")
    rate = found.throughput / 101
    seconds = found.point(0)["batch"] / rate[0]
    ttft, tpot = one(found.ttft[:1]), one(found.tpot[:1])
    assert seconds == pytest.approx(ttft + 101 * tpot, rel=0.02)
    assert (seconds - ttft) / 100 == pytest.approx(tpot, rel=0.02)


def test_one_output_token_is_answered_with_finite_numbers() -> None:
    found = archsim.run(
        scenario(LLAMA_8B, H100, 1, split={}, traffic={"input": 500, "output": 1}), batch=[1, 4], mode="steady"
    )
    for name in METRICS:
        assert np.all(np.isfinite(found.metric(name))) and np.all(found.metric(name) > 0), name


@pytest.mark.parametrize("context", [2000, 8000, 100_000])
def test_decode_attention_reads_the_whole_cache_once_a_step(context: int) -> None:
    cost = priced(generation(16, context, 32, 8), stack="ideal")
    assert one(cost.bytes) == pytest.approx(16 * context * 8 * 128 * 2 * 2, rel=0.02)


# Throughput and money


def test_8_prefill_and_16_decode_gpus_have_rates_by_role_and_by_fleet() -> None:
    rates = fleet_rates(10, 8000, 1000, 8, 16)
    assert (rates.input_by_role, rates.output_by_role) == (10_000, 625)
    assert rates.input_by_fleet == pytest.approx(3333.3, abs=0.05)
    assert rates.output_by_fleet == pytest.approx(416.7, abs=0.05)
    assert rates.total_by_fleet == 3750
    assert not hasattr(rates, "total_by_role")


@given(st.floats(0.1, 1e4), st.integers(1, 10**6), st.integers(1, 10**6), st.integers(1, 500), st.integers(1, 500))
def test_fleet_rates_times_chips_are_the_tokens_and_roles_are_never_added(
    requests: float, prompt_tokens: int, output: int, first: int, second: int
) -> None:
    rates = fleet_rates(requests, prompt_tokens, output, first, second)
    assert rates.total_by_fleet * (first + second) == pytest.approx(requests * (prompt_tokens + output))
    assert rates.input_by_role > rates.input_by_fleet and rates.output_by_role > rates.output_by_fleet
    assert rates.total_by_fleet < rates.input_by_role + rates.output_by_role


@pytest.mark.parametrize(
    ("hourly", "chips", "rate", "dollars"),
    [(3, 8, 8000, 0.8333), (2, 1, 1000, 0.5556), (2.95, 64, 100_000, 0.5244), (3, 16, 8000, 1.6667)],
)
def test_dollars_a_million_are_the_fleets_hour_over_its_tokens(
    hourly: float, chips: int, rate: float, dollars: float
) -> None:
    assert one(per_million(array(hourly), array(chips), array(rate))) == pytest.approx(dollars, abs=5e-5)


@pytest.mark.parametrize(("rent", "pue"), [(3, 1.0), (3, 1.3), (1.5, 1.0)])
def test_the_cost_and_energy_of_a_run_multiply_out_from_its_own_rate_and_power(rent: float, pue: float) -> None:
    terms = {"rent": f"{rent} USD/h", "pue": pue, "overhead": "100 W"}
    found = archsim.run(scenario(LLAMA_70B, H100, 8, split={"tensor": 8}, batch=64, context=2000, economics=terms))
    assert one(found.cost_per_token) == pytest.approx(rent * 8 / 3600 / one(found.throughput) * 1e6)
    kwh = (one(found.power) + 100) * pue * 8 / 1000 / one(found.throughput) * 1e6 / 3600
    assert one(found.energy_per_token) * 1e6 / 3.6e6 == pytest.approx(kwh)
    assert pytest.approx(2.415, abs=5e-4) == 2.0 / 230 * 1e6 / 3600  # 2 kW at 230 tok/s


# Always

names = st.sampled_from([LLAMA_8B, GPT_OSS_20B, LLAMA_70B, GPT_OSS])
GROWN = (
    "memory.bandwidth",
    "memory.capacity",
    "matrix.bf16",
    "matrix.fp8",
    "clock",
    "links.scale_up.bandwidth",
    "exponentials",
)


@st.composite
def machines(draw: st.DrawFn) -> dict[str, float]:
    """A chip that nobody sells: every rate drawn alone, over two or three decades."""

    def rate(low: float, high: float) -> float:
        return float(10 ** draw(st.floats(np.log10(low), np.log10(high))))

    bf16 = rate(5e13, 5e15)
    return {
        "memory.bandwidth": rate(1e11, 3e13),
        "memory.capacity": rate(2e10, 1e12),
        "matrix.bf16": bf16,
        "matrix.fp8": bf16 * rate(1, 4),
        "clock": rate(5e8, 4e9),
        "links.scale_up.bandwidth": rate(1e10, 3e12),
        "exponentials": rate(4, 64),
    }


@settings(max_examples=25)
@given(
    names, st.sampled_from(CHIPS), st.sampled_from([1, 2, 4, 8]), machines(), st.sampled_from(GROWN),
    st.floats(1.001, 50), st.integers(1, 600), st.integers(1, 60_000), st.sampled_from(["tpot", "ttft"]),
    st.sampled_from(["vllm", "ideal", "sglang"]),
)  # fmt: skip
def test_more_of_anything_never_slows_the_best_plan_of_a_chip_that_nobody_sells(
    name: str,
    on: str,
    chips: int,
    machine: dict[str, float],
    field: str,
    factor: float,
    batch: int,
    context: int,
    goal: str,
    under: str,
) -> None:
    s = scenario(name, on, chips, runtime=under, batch=1, context=1, objective={"minimize": goal})
    over: dict[str, Any] = {
        f"chip.{key}": value for key, value in machine.items() if key.partition(".")[2] in ("", *known(on, key))
    }
    more = {**over, f"chip.{field}": machine[field] * factor} if f"chip.{field}" in over else over
    before, after = (archsim.run(s, batch=batch, context=context, over=fields) for fields in (over, more))
    assert after.feasible.all() or not before.feasible.any()
    if before.feasible.all():
        assert one(after.metric(goal)) <= one(before.metric(goal)) * (1 + 1e-12)
    for result in (before, after):
        for metric, (_, _, of) in METRICS.items():
            value = one(result.pick(of(result.answer)))
            assert np.isfinite(value) and value >= 0, metric


def known(on: str, key: str) -> tuple[str, ...]:
    """The tails of `matrix` that a chip has, and every other tail: A100 has no fp8 to make faster."""
    tail = key.partition(".")[2]
    return tuple(chip(on).matrix) if key.startswith("matrix.") else (tail,)


def test_the_same_question_gives_the_same_bytes_in_another_process(tmp_path: Path) -> None:
    text = f"model: {GPT_OSS_20B}\npools: {{gpu: {{chip: {H100}, count: 1}}}}\nbatch: 4\ncontext: 500\n"
    file = tmp_path / "same.yaml"
    file.write_text(text, encoding="utf-8")
    command = ["run", str(file), "--json", "-"]
    here = CliRunner().invoke(app, command).stdout
    argv = [sys.executable, "-m", "archsim", *command]
    there = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=True, timeout=120).stdout
    assert here.startswith("{") and json.loads(there)["answers"] == json.loads(here)["answers"]
