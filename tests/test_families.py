"""Every model of the catalogue: parameters, cache and state to the byte; and every family runs every kind of step."""

import warnings
from collections.abc import Iterator
from functools import cache

import numpy as np
import pytest

from archsim.arrays import array
from archsim.catalog import names
from archsim.chip.model import Chip
from archsim.chip.schema import load_chip
from archsim.engine.cost import Cost
from archsim.engine.gpu import price
from archsim.engine.step import run_step
from archsim.mapping.memory import kv_bytes, longest_context, memory_plan, state_bytes
from archsim.mapping.place import Deployment, place
from archsim.mapping.plan import Kernel
from archsim.mapping.runtime import Runtime, load_runtime
from archsim.mapping.split import Split, legality, split
from archsim.workload.lowering import lower, lower_mtp, mtp_parameters
from archsim.workload.model import (
    Chunk,
    DeltaNet,
    LatentAttention,
    Mamba1,
    Mamba2,
    Model,
    Moe,
    Recurrent,
    precision_of,
    quality_risks,
)
from archsim.workload.schema import load_model
from archsim.workload.step import FULL, Step, decode, prefill

# name: parameters, those one token touches (both embedding matrices), KV bytes a token in bf16, every layer as full
KNOWN = {
    "ai21/jamba-v0.1": (51_570_323_328, 12_110_311_296, 16_384),
    "deepseek/deepseek-r1": (671_026_419_200, 37_552_297_472, 70_272),
    "deepseek/deepseek-v3": (671_026_419_200, 37_552_297_472, 70_272),
    "deepseek/deepseek-v3.2": (671_877_944_064, 38_403_822_336, 70_272),
    "google/gemma-3-27b": (27_009_346_304, 27_009_346_304, 507_904),
    "google/gemma-3-4b": (3_880_263_168, 3_880_263_168, 139_264),
    "google/gemma-4-31b": (30_697_345_280, 30_697_345_280, 901_120),
    "meta/llama-2-70b": (68_976_648_192, 68_976_648_192, 327_680),
    "meta/llama-2-7b": (6_738_415_616, 6_738_415_616, 524_288),
    "meta/llama-3.1-405b": (405_853_388_800, 405_853_388_800, 516_096),
    "meta/llama-3.1-70b": (70_553_706_496, 70_553_706_496, 327_680),
    "meta/llama-3.1-8b": (8_030_261_248, 8_030_261_248, 131_072),
    "meta/llama-4-maverick": (400_711_848_960, 17_184_691_200, 196_608),
    "meta/llama-4-scout": (107_769_861_120, 17_172_894_720, 196_608),
    "meta/opt-1.3b": (1_315_758_080, 1_315_758_080, 196_608),
    "meta/opt-13b": (12_853_473_280, 12_853_473_280, 819_200),
    "meta/opt-30b": (29_974_540_288, 29_974_540_288, 1_376_256),
    "meta/opt-6.7b": (6_658_473_984, 6_658_473_984, 524_288),
    "meta/opt-66b": (65_719_701_504, 65_719_701_504, 2_359_296),
    "minimax/minimax-m2": (228_689_764_864, 11_030_553_088, 253_952),
    "minimax/minimax-m2.5": (228_689_764_864, 11_030_553_088, 253_952),
    "mistral/mixtral-8x22b": (140_620_634_112, 39_152_031_744, 229_376),
    "mistral/mixtral-8x7b": (46_702_792_704, 12_879_925_248, 131_072),
    "moonshot/kimi-k2": (1_026_408_232_448, 32_861_500_928, 70_272),
    "moonshot/kimi-k2.5": (1_026_408_232_448, 32_861_500_928, 70_272),
    "nvidia/nemotron-3-nano-30b-a3b": (31_577_940_288, 3_580_076_352, 6_144),
    "nvidia/nemotron-h-56b": (56_324_350_464, 56_324_350_464, 40_960),
    "openai/gpt-3-175b": (174_604_259_328, 174_604_259_328, 4_718_592),
    "openai/gpt-oss-120b": (116_829_156_672, 5_711_982_912, 73_728),
    "openai/gpt-oss-20b": (20_914_757_184, 4_187_440_704, 49_152),
    "openai/gpt-oss-2t-what-if": (1_991_087_385_600, 42_989_620_224, 147_456),
    "qwen/qwen2.5-coder-7b": (7_615_616_512, 7_615_616_512, 57_344),
    "qwen/qwen3-0.6b": (596_049_920, 596_049_920, 114_688),
    "qwen/qwen3-235b-a22b": (235_093_634_560, 22_190_763_520, 192_512),
    "qwen/qwen3-32b": (32_762_123_264, 32_762_123_264, 262_144),
    "qwen/qwen3-coder-30b-a3b": (30_532_122_624, 3_353_032_704, 98_304),
    "qwen/qwen3-next-80b-a3b": (79_674_391_296, 3_874_929_408, 24_576),
    "qwen/qwen3.5-397b-a17b": (396_346_350_336, 17_349_040_896, 30_720),
    "stepfun/step-3": (316_294_538_240, 38_841_328_640, 62_464),
    "zai/glm-4.5": (352_797_829_024, 33_632_266_144, 376_832),
    "zai/glm-5": (743_911_218_432, 41_784_728_832, 89_856),
}
FAMILIES = {  # one model of each kind of part
    "dense": "meta/llama-3.1-8b",
    "experts and windows": "openai/gpt-oss-20b",
    "sparse latent attention": "deepseek/deepseek-v3.2",
    "Mamba-2": "nvidia/nemotron-3-nano-30b-a3b",
    "Mamba-1": "ai21/jamba-v0.1",
    "gated delta": "qwen/qwen3-next-80b-a3b",
}

model = cache(load_model)
chip = cache(load_chip)
runtime = cache(load_runtime)
ONE = split()


def counts(name: str) -> tuple[float, float]:
    graph = lower(model(name), decode(1, 1, model(name).clips), precision_of(model(name), {}))
    return sum(graph.parameters().values()), graph.active_parameters()


def cached(name: str, context: int, chosen: dict[str, str] | None = None, s: Split = ONE) -> float:
    precision = precision_of(model(name), {"kv": "bf16", **(chosen or {})})
    return float(kv_bytes(model(name), precision, s, array(context)).max())


# Parameters


def test_the_catalogue_is_known() -> None:
    assert set(names("workloads")) == set(KNOWN)


@pytest.mark.parametrize("name", KNOWN)
def test_parameters_and_cache_are_exact(name: str) -> None:
    total, active, kv = KNOWN[name]
    assert counts(name) == (total, active)
    assert model(name).kv_elements_per_token() * 2 == kv


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("qwen/qwen3-next-80b-a3b", 1_650_471_424),
        ("deepseek/deepseek-v3", 11_610_068_224),
        ("deepseek/deepseek-v3.2", 11_624_027_648),
        ("zai/glm-4.5", 3_988_069_792),
        ("meta/llama-3.1-8b", 0),
    ],
)
def test_prediction_layers_count_apart(name: str, parameters: int) -> None:
    assert mtp_parameters(model(name)) == parameters


def test_prediction_layers_are_lowered_only_when_asked() -> None:
    m = model("deepseek/deepseek-v3")
    step, precision = decode(4, 1000, m.clips), precision_of(m, {})
    assert "mtp" not in lower(m, step, precision).blocks
    graph = lower_mtp(m, step, precision)
    assert graph.sequence == (("mtp", 1), ("moe", 1), ("head", 1))
    assert float(graph.flops().max()) > 0


def test_llama_4_interleaves_experts() -> None:
    def routed(name: str) -> int:
        return sum(count for block, count in model(name).counted() if isinstance(block.ffn, Moe))

    assert (routed("meta/llama-4-scout"), routed("meta/llama-4-maverick")) == (48, 24)
    assert (routed("deepseek/deepseek-v3"), routed("moonshot/kimi-k2")) == (58, 60)


def test_a_tied_head_is_counted_once_but_multiplied() -> None:
    graph = lower(model("qwen/qwen3-0.6b"), decode(1, 1), precision_of(model("qwen/qwen3-0.6b"), {}))
    head = next(operator for operator in graph.operators("head") if operator.name == "head")
    assert "head" not in graph.parameters()
    assert float(head.flops.max()) == 2 * 151_936 * 1024


def test_gemma_ends_with_two_windowed_layers() -> None:
    assert model("google/gemma-3-27b").sequence[-1] == ("windowed_dense", 2)
    assert model("google/gemma-3-27b").sequence[:2] == (("windowed_dense", 5), ("dense", 1))


# Cache and state


def test_windowed_layers_hold_their_window() -> None:
    assert cached("openai/gpt-oss-20b", 8192) * 32 == pytest.approx(6.094 * 2**30, rel=1e-4)
    assert cached("openai/gpt-oss-20b", 128) == 128 * 49_152  # below the window all layers hold everything
    assert cached("google/gemma-3-27b", 100_000) == 100_000 * 81_920 + 436_207_616


def test_chunked_layers_hold_their_chunk() -> None:
    assert cached("meta/llama-4-scout", 100_000) == 100_000 * 49_152 + 8192 * (196_608 - 49_152)


def test_latent_cache_is_whole_on_every_rank() -> None:
    assert cached("deepseek/deepseek-v3", 1000, s=split(8)) == cached("deepseek/deepseek-v3", 1000) == 70_272_000


def test_sparse_attention_keeps_every_token_and_an_index_key() -> None:
    assert cached("deepseek/deepseek-v3.2", 10_000) == 10_000 * (70_272 + 8_052)
    assert cached("deepseek/deepseek-v3.2", 10_000, {"kv": "fp8"}) == 10_000 * 48_068  # 656 + 132 bytes, 61 layers


def test_heads_beyond_the_kv_heads_are_replicated() -> None:
    assert cached("qwen/qwen3-235b-a22b", 1, s=split(8)) == 48_128


def test_hybrid_state_bounds_the_batch_and_not_the_length() -> None:
    name = "nvidia/nemotron-3-nano-30b-a3b"
    assert float(state_bytes(model(name), ONE).max()) == 48_234_496 + 847_872
    assert cached(name, 1000) == 6_144_000
    d = Deployment(model(name), precision_of(model(name), {}), ONE, chip("h100-sxm"), runtime("vllm"), array(1.2))
    short, long = (memory_plan(d, array(64), array(context)) for context in (1000, 2000))
    assert float(short.parts["state"].max()) == float(long.parts["state"].max()) == 64 * 49_082_368
    assert float(short.per_sequence.max()) == 6_144_000 + 49_082_368
    assert (
        float((short.needed + short.free_for_kv - short.parts["kv"] - short.parts["state"] - short.capacity).max()) == 0
    )
    room = 49_082_368 + 6144.0 * 77
    assert longest_context(model(name), d.precision, ONE, room) == 77
    assert longest_context(model(name), d.precision, ONE, room / 2) == 0


@pytest.mark.parametrize(
    ("name", "kind", "recurrent", "convolution"),
    [
        ("nvidia/nemotron-3-nano-30b-a3b", Mamba2, 12_058_624, 423_936),
        ("qwen/qwen3-next-80b-a3b", DeltaNet, 18_874_368, 884_736),
        ("ai21/jamba-v0.1", Mamba1, 3_670_016, 688_128),
    ],
)
def test_state_elements_are_exact(name: str, kind: type[Recurrent], recurrent: int, convolution: int) -> None:
    found = [(b.attention, count) for b, count in model(name).counted() if isinstance(b.attention, kind)]
    assert sum(mixer.heads * mixer.elements * count for mixer, count in found) == recurrent
    assert sum(sum(mixer.conv_bytes) / 2 * count for mixer, count in found) == convolution


def test_state_divides_among_tensor_ranks_and_groups_do_not_beyond_their_number() -> None:
    m = model("nvidia/nemotron-3-nano-30b-a3b")
    whole, sixteenth = (float(state_bytes(m, split(tensor)).max()) for tensor in (1, 16))
    shared = 23 * 2 * 2 * 8 * 128 * 3  # bytes of the convolution's B and C, of eight groups
    assert sixteenth == (whole - shared) / 16 + shared / 8


# What tokens see


@pytest.mark.parametrize("old", [0, 5, 8, 19])
@pytest.mark.parametrize("new", [1, 8, 30])
def test_chunked_prompts_see_their_own_chunk(old: int, new: int) -> None:
    seen = sum((position - 1) % 8 + 1 for position in range(old + 1, old + new + 1))
    assert float(prefill(new, old, 3, (Chunk(8.0),)).prefill_pairs[8.0].max()) == 3 * seen


def test_chunked_decode_takes_the_mean_over_positions() -> None:
    clip = Chunk(8.0)
    sums = [float(decode(2, length, (clip,)).context[clip].max()) for length in (1, 8, 9, 80)]
    assert sums == [2, 16, 9, 9]


def test_sparse_attention_costs_the_same_beyond_its_top_k_but_the_index_grows() -> None:
    m = model("deepseek/deepseek-v3.2")
    assert m.clips == (2048.0, FULL)
    graphs = [lower(m, decode(1, length, m.clips), precision_of(m, {})) for length in (4096, 8192)]
    flops = [{o.name: float(o.flops.max()) for o in graph.operators("sparse_moe")} for graph in graphs]
    assert flops[0]["attention"] == flops[1]["attention"] == 2 * 2048 * 128 * (576 + 512)
    assert 2 * flops[0]["indexer"] == flops[1]["indexer"] == 2 * 8192 * 64 * 128


# Every family runs


def tensor_degree(m: Model) -> int:
    return next(t for t in (8, 4, 2, 1) if not legality(m, split(t), array(float(t))).any())


def deployed(name: str, c: Chip, r: Runtime, chosen: dict[str, str] | None = None) -> Deployment:
    m = model(name)
    return Deployment(m, precision_of(m, chosen or {}), split(tensor_degree(m)), c, r, array(1.2))


def priced(d: Deployment, step: Step) -> list[tuple[Kernel, Cost]]:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = run_step(place(d, step), d.chip, d.runtime.stack)
    assert np.isfinite(found.span).all() and (found.span > 0).all()
    return [(kernel, cost) for _, kernel, cost, _ in found.kernels()]


def steps(m: Model) -> Iterator[Step]:
    yield decode([1, 64], 9000, m.clips)
    yield prefill(3000, 1000, 2, m.clips)


@pytest.mark.parametrize("name", KNOWN)
def test_every_model_runs_and_never_beats_the_roofline(name: str) -> None:
    for chip_name in ("h100-sxm", "h200-sxm"):
        for stack in ("vllm", "ideal"):
            d = deployed(name, chip(chip_name), runtime(stack))
            for step in steps(d.model):
                for kernel, cost in priced(d, step):
                    bound = np.maximum(cost.flops / d.chip.matrix[kernel.compute], cost.bytes / d.chip.memory.bandwidth)
                    assert (cost.seconds >= bound * (1 - 1e-9)).all(), kernel.name
                    assert sum(cost.parts.values()) == pytest.approx(cost.seconds, rel=1e-9, abs=1e-18), kernel.name
                    assert all((part >= 0).all() for part in cost.parts.values()), kernel.name


@pytest.mark.parametrize("name", FAMILIES.values())
@pytest.mark.parametrize("weights", ["int8", "int4", "int4_g32", "nvfp4", "mxfp8", "mxfp4", "fp8"])
def test_every_format_has_constants_on_every_chip(name: str, weights: str) -> None:
    for chip_name in ("a100-sxm-80gb", "h100-sxm", "b200-sxm"):
        d = deployed(name, chip(chip_name), runtime("vllm"), {"weights": weights, "kv": "fp8"})
        assert priced(d, decode(8, 1000, d.model.clips))


@pytest.mark.parametrize("name", ["deepseek/deepseek-v3.2", "nvidia/nemotron-3-nano-30b-a3b", "ai21/jamba-v0.1"])
def test_no_tokens_take_no_time(name: str) -> None:
    """A step that could decode and prefill, but has only one of the two: the kernels of the other cost nothing."""
    kinds = ("state_update", "state_scan", "indexer")
    d = deployed(name, chip("h100-sxm"), runtime("vllm"))
    clips = d.model.clips
    for step, idle in (
        (decode(0, 1000, clips) + prefill(512, 0, 1, clips), lambda kernel: not kernel.name.startswith("prefill")),
        (decode(8, 1000, clips) + prefill(0, 0, 0, clips), lambda kernel: kernel.name.startswith("prefill")),
    ):
        kernels = [kernel for _, kernel, _ in place(d, step).kernels() if kernel.kind in kinds]
        found = [(kernel, price(kernel, d.chip, "vllm")) for kernel in kernels]
        assert {idle(kernel) for kernel, _ in found} == {True, False}
        for kernel, cost in found:
            assert (cost.seconds == 0).all() == idle(kernel)
            assert sum(cost.parts.values()) == pytest.approx(cost.seconds, rel=1e-9)


def test_a_state_step_reads_and_writes_every_state_once() -> None:
    name = "nvidia/nemotron-3-nano-30b-a3b"
    d = deployed(name, chip("h100-sxm"), runtime("vllm"))
    kernel, cost = next(found for found in priced(d, decode(64, 1000, (FULL,))) if found[0].kind == "state_update")
    state = 64 * 64 * 64 * 128 * 4 / 8  # sequences x heads x width x size in fp32 on one of eight ranks
    assert float(cost.bytes.max()) == pytest.approx(2 * state, rel=0.02)
    assert float(cost.seconds.max()) > 2 * state / 3.35e12
    assert kernel.weight.name == "fp32" and kernel.compute == "bf16"


def test_the_chain_of_chunks_decides_for_a_lone_long_prompt() -> None:
    """H100, vLLM: 32 value heads scan 8192 tokens in 390 us, alone or with 16 (861 us with 8 prompts)."""
    d = deployed("qwen/qwen3-next-80b-a3b", chip("h100-sxm"), runtime("vllm"))
    one = Deployment(d.model, d.precision, ONE, d.chip, d.runtime, d.skew)

    def scan(requests: int) -> float:
        found = priced(one, prefill(8192, 0, requests, d.model.clips))
        return next(float(cost.seconds.max()) for kernel, cost in found if kernel.kind == "state_scan")

    assert scan(1) == pytest.approx(390e-6, rel=0.1)
    assert scan(4) == pytest.approx(403e-6, rel=0.1)
    assert scan(8) == pytest.approx(861e-6, rel=0.15)


def test_state_heads_must_divide() -> None:
    m = model("nvidia/nemotron-3-nano-30b-a3b")
    assert legality(m, split(8), array(8.0)).item() == 0
    assert legality(m, split(128), array(128.0)).item() > 0


def test_latent_attention_is_read_from_its_keys() -> None:
    blocks = model("zai/glm-5").blocks.values()
    assert all(isinstance(block.attention, LatentAttention) and block.attention.index for block in blocks)


# What a precision may cost


def test_quality_risks_name_the_most_sensitive_first() -> None:
    m = model("meta/llama-3.1-8b")
    assert quality_risks(m, precision_of(m, {})) == []
    risks = quality_risks(m, precision_of(m, {"weights": "nvfp4", "kv": "fp8", "head": "fp8"}))
    assert [risk.split(" in ")[0].split(" quantised")[0] for risk in risks] == [
        "attention projections",
        "KV cache",
        "activations",
        "output head",
        "dense weights",
    ]
    native = model("openai/gpt-oss-120b")
    assert quality_risks(native, precision_of(native, {})) == []  # released like that
