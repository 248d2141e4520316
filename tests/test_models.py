"""What models hold: parameters, bytes of weights, bytes of KV cache, and how ranks share them.

Every number here is published or recomputed by hand; the figure comes first, its origin beside it.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from scenarios import (
    DEEPSEEK,
    GPT_OSS,
    LLAMA_8B,
    LLAMA_70B,
    MIXTRAL_8X7B,
    QWEN3_06B,
    QWEN3_32B,
    QWEN3_235B,
    TINY,
    chip,
    deployment,
    graph,
    made,
    model,
    one,
)

from archsim.arrays import array
from archsim.catalog import CatalogError, find
from archsim.chip.model import Chip
from archsim.mapping.memory import kv_bytes, longest_context, memory_plan, weight_bytes
from archsim.mapping.place import divide
from archsim.mapping.split import REASONS, legality, split
from archsim.units import format_named, show
from archsim.workload.model import Model, precision_of
from archsim.workload.schema import load_model

# safetensors totals of the Hub where there is one, else counted from config.json by hand
COUNTS = {
    LLAMA_8B: (8_030_261_248, 8_030_261_248),
    LLAMA_70B: (70_553_706_496, 70_553_706_496),
    DEEPSEEK: (671_026_419_200, 37_552_297_472),
    GPT_OSS: (116_829_156_672, 5_711_982_912),
}


def weights(of: Model, **precision: str) -> float:
    return one(weight_bytes(of, precision_of(of, precision), split()))


def kv_at(of: Model, context: float, tensor: int = 1, **precision: str) -> float:
    """KV-cache bytes of one sequence on one rank."""
    return one(kv_bytes(of, precision_of(of, precision), split(tensor=tensor), array(context)))


# Parameters


@pytest.mark.parametrize("name", COUNTS)
def test_parameters_are_counted_exactly(name: str) -> None:
    total, active = COUNTS[name]
    lowered = graph(name)
    assert sum(lowered.parameters().values()) == total
    assert lowered.active_parameters() == active


def test_parameters_of_models_that_are_only_a_config_are_counted_too() -> None:
    lowered = graph(made(QWEN3_235B))
    assert sum(lowered.parameters().values()) == 235_093_634_560  # safetensors total of Qwen3-235B-A22B
    assert lowered.active_parameters() == 22_190_763_520
    assert sum(graph(made(MIXTRAL_8X7B)).parameters().values()) == 46_702_792_704  # of Mixtral-8x7B-v0.1


def test_a_tied_head_is_stored_once_and_still_computed() -> None:
    tied = made(QWEN3_06B)
    loose = made(QWEN3_06B, tie_word_embeddings=False)
    assert sum(graph(tied).parameters().values()) == 596_049_920
    assert sum(graph(loose).parameters().values()) == 751_632_384
    assert weights(tied) == 2 * 596_049_920
    assert one(graph(tied).flops()) == one(graph(loose).flops())


def test_a_declared_count_that_the_shapes_contradict_is_refused_where_it_stands(tmp_path: Path) -> None:
    text = find("workloads", LLAMA_8B).read_text(encoding="utf-8")
    wrong = tmp_path / "wrong.yaml"
    wrong.write_text(text.replace("total: 8030261248", "total: 8040261248"), encoding="utf-8")  # 0.12 % more
    with pytest.raises(CatalogError, match=r"wrong\.yaml:\d+:\d+: 8,040,261,248 is declared, but .* 8,030,261,248"):
        load_model(str(wrong))


# Bytes of weights


def test_70b_in_fp8_with_wide_embedding_and_head_is_67_67_gib() -> None:
    assert weights(model(LLAMA_70B), weights="fp8") == 72_655_052_800


def test_gpt_oss_in_its_native_mxfp4_is_60_77_gib() -> None:
    assert format_named("mxfp4").bits + 8 / 32 == 4.25 == 8 * format_named("mxfp4").bytes
    assert 114_661_785_600 * 4.25 / 8 + 2_167_371_072 * 2 == 65_248_815_744
    assert weights(model(GPT_OSS)) == 65_248_815_744


def test_8b_in_bf16_is_two_bytes_a_parameter() -> None:
    assert weights(model(LLAMA_8B)) == 2 * 8_030_261_248


@pytest.mark.parametrize("tensor", [2, 4, 8])
def test_tensor_ranks_of_a_divisible_model_hold_equal_shares_and_whole_norms(tensor: int) -> None:
    of = model(LLAMA_70B)
    held = one(weight_bytes(of, precision_of(of, {}), split(tensor=tensor)))
    norms = (2 * 80 + 1) * 8192
    assert held == pytest.approx((70_553_706_496 - norms) * 2 / tensor + norms * 2, rel=1e-12)


def test_a_vocabulary_that_tp_does_not_divide_is_padded_and_the_padding_is_counted() -> None:
    of = made(TINY, vocab_size=50_257)
    rows = {1: 50_257, 2: 25_152, 5: 10_061, 8: 6_288, 16: 3_144, 128: 393}  # of 64 x 786 = 50,304 in all
    for tensor, expected in rows.items():
        held = divide({"n": array(50_257)}, "n", "vocabulary", split(tensor=tensor))
        assert one(held) == expected, tensor
    whole = one(weight_bytes(of, precision_of(of, {}), split()))
    half = one(weight_bytes(of, precision_of(of, {}), split(tensor=2)))
    pure = made(TINY, vocab_size=50_304)
    assert half == pytest.approx(one(weight_bytes(pure, precision_of(pure, {}), split(tensor=2))), rel=1e-14)
    assert 2 * half - whole >= 2 * 2 * (50_304 - 50_257) * 256  # both matrices, two bytes, 47 rows of padding


def test_ep_divides_routed_experts_and_leaves_the_shared_one_whole() -> None:
    of = model(DEEPSEEK)
    precision = precision_of(of, {})
    routed = graph(DEEPSEEK).parameters()["experts"]
    alone = one(weight_bytes(of, precision, split()))
    spread = one(weight_bytes(of, precision, split(attention_data=64, expert=64)))
    experts = routed * precision.experts.bytes
    assert routed == 58 * 256 * 3 * 7168 * 2048
    assert spread == pytest.approx(alone - experts * 63 / 64, rel=1e-12)
    shared = 58 * 3 * 7168 * 2048 * precision.weights.bytes
    without = made_without_shared(of)
    assert spread - one(weight_bytes(without, precision, split(attention_data=64, expert=64))) == pytest.approx(shared)


def made_without_shared(of: Model) -> Model:
    from dataclasses import replace

    from archsim.workload.model import Moe

    blocks = {
        name: replace(block, ffn=replace(block.ffn, shared=0)) if isinstance(block.ffn, Moe) else block
        for name, block in of.blocks.items()
    }
    return replace(of, blocks=blocks)


# KV cache


@pytest.mark.parametrize(
    ("name", "per_token"), [(LLAMA_8B, 131_072), (LLAMA_70B, 327_680), (DEEPSEEK, 70_272), (GPT_OSS, 73_728)]
)
def test_kv_bytes_per_token_in_bf16(name: str, per_token: int) -> None:
    of = model(name)
    assert of.kv_elements_per_token() * 2 == per_token
    assert kv_at(of, 1, kv="bf16") == per_token  # one token fills no window
    assert kv_at(of, 1, kv="fp8") == per_token / 2


def test_the_cache_of_70b_at_batch_512_and_131072_tokens_is_22_tb() -> None:
    whole = 512 * kv_at(model(LLAMA_70B), 131_072)
    assert whole == 327_680 * 131_072 * 512
    assert show(whole, "bytes") == "22.0 TB"


@pytest.mark.parametrize("context", [1, 127, 128, 129, 8192, 131_072])
def test_windowed_layers_of_gpt_oss_stop_growing_at_their_window(context: int) -> None:
    assert kv_at(model(GPT_OSS), context) == 36_864 * context + 36_864 * min(context, 128)


def test_a_full_window_of_gpt_oss_is_4_718_592_bytes_a_sequence() -> None:
    assert kv_at(model(GPT_OSS), 1_000_000) - 36_864 * 1_000_000 == 4_718_592


def test_gpt_oss_20b_needs_6_094_gib_for_32_sequences_of_8192() -> None:
    layers = {"num_hidden_layers": 24, "layer_types": ["sliding_attention", "full_attention"] * 12}
    heads = {"num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 64}
    small = made(TINY, **layers, **heads, hidden_size=2880, sliding_window=128)
    assert round(32 * kv_at(small, 8192) / 2**30, 3) == 6.094


def test_capacity_with_windows_is_found_by_inverting_the_cache_not_by_dividing() -> None:
    of = model(GPT_OSS)
    room = 10_000 * 36_864 + 4_718_592
    longest = longest_context(of, precision_of(of, {}), split(), room)
    assert longest == 10_000
    assert longest != room // 73_728  # what KV(1) would give
    assert kv_at(of, longest) <= room < kv_at(of, longest + 1)


def test_explicit_head_widths_are_believed() -> None:
    assert kv_at(made(QWEN3_32B), 1) == 262_144  # hidden / heads would give 163,840
    implied = {key: value for key, value in QWEN3_32B.items() if key != "head_dim"}
    assert kv_at(made(implied), 1) == 163_840
    assert {block.attention.width for block in model(GPT_OSS).blocks.values()} == {64}  # not 2880 / 64 = 45


def test_latent_attention_is_known_by_its_keys_and_not_by_a_name() -> None:
    heads = {"num_attention_heads": 128, "num_key_value_heads": 128, "num_hidden_layers": 61}
    latent = {
        "q_lora_rank": 1536,
        "kv_lora_rank": 512,
        "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64,
        "v_head_dim": 128,
    }
    config = {**TINY, **heads, **latent}
    for name in ("deepseek_v3", "llama", "something_new"):
        assert kv_at(made(config, model_type=name), 1) == 70_272


@pytest.mark.parametrize("tensor", [1, 2, 4, 8, 16])
def test_latent_cache_is_whole_on_every_tensor_rank(tensor: int) -> None:
    assert kv_at(model(DEEPSEEK), 1, tensor=tensor, kv="bf16") == 70_272


@pytest.mark.parametrize(("tensor", "per_token"), [(1, 192_512), (2, 96_256), (4, 48_128), (8, 48_128), (16, 48_128)])
def test_ranks_beyond_the_kv_heads_hold_one_replicated_head_each(tensor: int, per_token: int) -> None:
    assert kv_at(made(QWEN3_235B), 1, tensor=tensor) == per_token


def test_under_attention_dp_each_sequence_lives_on_one_rank() -> None:
    one_sequence = kv_at(model(DEEPSEEK), 4096)
    spread = deployment(DEEPSEEK, "nvidia/h200-sxm", split(attention_data=8, expert=8))
    shared = deployment(DEEPSEEK, "nvidia/h200-sxm", split(tensor=8, expert=8))
    for batch, held in [(1, 1), (8, 1), (9, 2), (64, 8)]:
        assert one(memory_plan(spread, array(batch), array(4096)).parts["kv"]) == held * one_sequence
        assert one(memory_plan(shared, array(batch), array(4096)).parts["kv"]) == batch * one_sequence


def test_memory_multiplies_out() -> None:
    """What is left for the cache, divided by the bytes of a token, is the number of tokens shown."""
    d = deployment(LLAMA_70B, "nvidia/h100-sxm", split(tensor=4))
    plan = memory_plan(d, array(1), array(1))
    tokens = longest_context(d.model, d.precision, d.split, one(plan.free_for_kv))
    assert tokens == one(plan.free_for_kv) // one(plan.kv_per_sequence) == one(plan.free_for_kv) // (327_680 / 4)


# Which splits a model allows


def test_28_query_heads_with_4_kv_heads_allow_tp_1_2_4_and_28() -> None:
    of = made(TINY, num_attention_heads=28, num_key_value_heads=4, hidden_size=3584, intermediate_size=28 * 8 * 64)
    degrees = np.arange(1.0, 65.0)
    broken = legality(of, split(tensor=degrees), degrees)
    assert list(degrees[broken == 0]) == [1, 2, 4, 28]
    why = {int(degree): REASONS[int(rule)] for degree, rule in zip(degrees, broken, strict=True)}
    assert why[7] == why[14] == "KV heads"
    assert why[8] == why[3] == "query heads"


def test_widths_experts_and_chips_have_reasons_of_their_own() -> None:
    narrow = made(TINY, intermediate_size=510)
    assert reason(narrow, tensor=4) == "feed-forward width"
    eight = made(MIXTRAL_8X7B)
    assert reason(eight, tensor=8, expert=8) == ""
    assert reason(eight, attention_data=16, expert=16) == "experts"  # 8 experts on 16 ranks
    assert reason(eight, tensor=4, expert=8) == "experts"  # more expert ranks than ranks
    assert reason(made(MIXTRAL_8X7B, intermediate_size=14330), tensor=4) == "expert width"
    assert reason(model(LLAMA_70B), chips=16, tensor=8) == "chips"
    assert reason(model(LLAMA_70B), chips=16, tensor=8, data=2) == ""


def reason(of: Model, chips: int | None = None, **degrees: int) -> str:
    by = split(**degrees)
    return REASONS[int(one(legality(of, by, by.chips if chips is None else array(chips))))]


# Chips that models meet


def test_the_ridge_point_of_h100_is_near_295_flop_a_byte() -> None:
    h100: Chip = chip("nvidia/h100-sxm")
    assert one(h100.ridge()) == pytest.approx(295, abs=0.5)
    assert one(h100.ridge("fp8")) == pytest.approx(2 * 295, abs=1)


def test_an_80_gb_card_holds_79_65_gib_and_its_link_is_one_direction() -> None:
    h100 = chip("nvidia/h100-sxm")
    assert round(one(h100.memory.capacity) / 2**30, 2) == 79.65
    assert one(h100.links["scale_up"].bandwidth) == 450e9  # NVLink 4 is sold as 900 GB/s, both directions together
