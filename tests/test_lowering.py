"""Lowering and steps: the graph is what the architecture computes, and steps are sums over tokens."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import networkx as nx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scenarios import DEEPSEEK, GPT_OSS, LLAMA_70B, MODELS, QWEN3_06B, TINY, graph, made, model, one, same_bits

from archsim.arrays import Array, array
from archsim.workload.lowering import lower
from archsim.workload.model import LatentAttention, Model, precision_of
from archsim.workload.operators import OpGraph
from archsim.workload.step import FULL, Step, decode, prefill

CLIPS = (4.0, 128.0, FULL)
small = st.integers(min_value=0, max_value=40)
batches = st.integers(min_value=0, max_value=600)
lengths = st.integers(min_value=0, max_value=200_000)


def arrays(step: Step) -> dict[str, Array]:
    """Every number of a step by name."""
    single = (
        "sequences",
        "queries",
        "prefill_requests",
        "prefill_tokens",
        "prefill_prefix",
        "prefill_longest",
        "sampled",
    )
    found = {name: getattr(step, name) for name in single}
    for clip in step.context:
        found |= {f"context {clip}": step.context[clip], f"pairs {clip}": step.prefill_pairs[clip]}
    return found


# FLOPs


def multiplied(lowered: OpGraph) -> float:
    """Parameters that one token multiplies with: active ones, less those of lookups and of vectors (norms, biases)."""
    vectors = sum(
        share * count
        for operator, share in active(lowered)
        if operator.kind == "elementwise"
        for count in operator.parameters.values()
    )
    return lowered.active_parameters() - vectors


def active(lowered: OpGraph) -> list[tuple[Any, float]]:
    return [(operator, float(count)) for operator, count in lowered.everything()]


def attention_flops(of: Model, batch: float, context: float) -> float:
    """Scores and values by hand: 2 FLOP for each of width + value, of every head, for every token in sight."""
    total = 0.0
    for block, count in of.counted():
        a = block.attention
        wide = 2 * a.latent + a.rope if isinstance(a, LatentAttention) else 2 * a.width
        total += count * 2 * batch * min(context, a.window) * a.heads * wide
    return total


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize(("batch", "context"), [(1, 1), (64, 8192), (1000, 100_000)])
def test_a_decode_step_costs_two_flop_a_parameter_and_token_plus_attention(name: str, batch: int, context: int) -> None:
    of = model(name)
    lowered = graph(of, decode(batch, context, of.clips))
    expected = 2 * multiplied(lowered) * batch + attention_flops(of, batch, context)
    assert one(lowered.flops()) == pytest.approx(expected, rel=0.01)


def test_the_flops_of_70b_are_twice_its_parameters_without_the_embedding() -> None:
    lowered = graph(LLAMA_70B, decode(1, 1))
    assert one(lowered.flops()) == pytest.approx(2 * (70_553_706_496 - 128_256 * 8192), rel=1e-4)


@pytest.mark.parametrize("name", MODELS)
def test_prompt_attention_costs_its_pairs_and_no_more(name: str) -> None:
    of = model(name)
    for tokens, prefix in [(1, 0), (4000, 0), (1000, 7000)]:
        lowered = graph(of, prefill(tokens, prefix, clips=of.clips))
        found = sum(one(op.flops) * count for op, count in lowered.everything() if op.name == "prefill_attention")
        expected = 0.0
        for block, count in of.counted():
            a = block.attention
            wide = a.nope + a.rope + a.value if isinstance(a, LatentAttention) else 2 * a.width
            pairs = sum(min(position, a.window) for position in range(prefix + 1, prefix + tokens + 1))
            expected += count * 2 * pairs * a.heads * wide
        assert found == pytest.approx(expected, rel=1e-12)


def test_one_prompt_of_8000_costs_more_attention_than_two_of_4000_and_the_same_elsewhere() -> None:
    by_kind = []
    for step in (prefill(8000), prefill(4000, requests=2)):
        totals = {"attention": 0.0, "rest": 0.0}
        for op, count in graph(LLAMA_70B, step).everything():
            if op.role != "head":
                totals["attention" if op.kind == "context_attention" else "rest"] += one(op.flops) * count
        by_kind.append(totals)
    long, short = by_kind
    assert long["attention"] == pytest.approx(2 * short["attention"], rel=1e-3)
    assert long["rest"] == short["rest"]


def test_the_head_computes_sampled_tokens_only() -> None:
    rows = {}
    for name, step in {"decode": decode(64, 100), "prompt": prefill(5000), "nothing": prefill(0)}.items():
        (head,) = [op for op, _ in graph(LLAMA_70B, step).everything() if op.name == "head"]
        rows[name] = one(head.dims["m"])
    assert rows == {"decode": 64, "prompt": 1, "nothing": 0}


def test_drafts_scale_what_depends_on_tokens_and_read_the_cache_once() -> None:
    plain, drafted = (graph(LLAMA_70B, decode(8, 1000, queries=q)) for q in (1, 4))
    assert one(drafted.flops()) == 4 * one(plain.flops())
    (core,) = [op for op in drafted.operators("dense") if op.kind == "generation_attention"]
    assert one(core.dims["tokens"]) == 8 * 1000


def test_absorbed_and_expanded_attention_share_one_matrix() -> None:
    """DeepSeek's kv_b is counted once, whichever form a step takes, and in a step with both."""
    of = model(DEEPSEEK)
    steps = [
        decode(1, 10, of.clips),
        prefill(10, clips=of.clips),
        decode(1, 10, of.clips) + prefill(10, clips=of.clips),
    ]
    counts = {sum(graph(of, step).parameters().values()) for step in steps}
    assert counts == {671_026_419_200}


def test_a_tied_head_multiplies_as_much_as_a_loose_one() -> None:
    tied, loose = (graph(made(QWEN3_06B, tie_word_embeddings=t), decode(3, 5)) for t in (True, False))
    assert one(tied.flops()) == one(loose.flops()) > 2 * 3 * 151_936 * 1024


# The graph


def steps_of(of: Model) -> list[Step]:
    return [
        decode(4, 100, of.clips),
        prefill(64, 32, clips=of.clips),
        decode(4, 100, of.clips) + prefill(64, clips=of.clips),
    ]


@pytest.mark.parametrize("name", MODELS)
def test_every_block_is_one_dag_from_one_start_to_one_end(name: str) -> None:
    of = model(name)
    for step in steps_of(of):
        for block, lowered in graph(of, step).blocks.items():
            assert nx.is_directed_acyclic_graph(lowered), block
            assert nx.is_weakly_connected(lowered), block
            assert [node for node, degree in lowered.in_degree() if not degree] == [next(iter(lowered))]
            assert sum(1 for _, degree in lowered.out_degree() if not degree) == 1, f"{block} ends more than once"
            assert all("operator" in data for _, data in lowered.nodes(data=True)), "an edge names an unknown operator"


@pytest.mark.parametrize("name", MODELS)
def test_the_order_of_operators_respects_every_dependency(name: str) -> None:
    of = model(name)
    for step in steps_of(of):
        lowered = graph(of, step)
        for block in lowered.blocks:
            place = {operator.name: index for index, operator in enumerate(lowered.operators(block))}
            assert len(place) == len(lowered.blocks[block])
            assert all(place[before] < place[after] for before, after in lowered.blocks[block].edges)


def test_the_sequence_keeps_the_order_of_layers() -> None:
    assert graph(DEEPSEEK).sequence == (("embedding", 1), ("dense", 3), ("moe", 58), ("head", 1))
    alternating = graph(GPT_OSS).sequence[1:-1]
    assert len(alternating) == 36 and {count for _, count in alternating} == {1}
    assert all(left != right for left, right in pairwise(block for block, _ in alternating))
    assert alternating[0][0] == "windowed_moe"


def test_routed_and_shared_experts_do_not_wait_for_each_other() -> None:
    lowered = graph(DEEPSEEK).blocks["moe"]
    assert not nx.has_path(lowered, "experts", "shared_up") and not nx.has_path(lowered, "shared_down", "experts")
    assert nx.has_path(lowered, "ffn_norm", "shared_up") and nx.has_path(lowered, "experts", "shared_add")


def test_a_step_without_the_clips_of_its_model_is_refused() -> None:
    of = model(GPT_OSS)
    with pytest.raises(KeyError):
        lower(of, decode(1, 1), precision_of(of, {}))


def test_lowering_keeps_swept_axes_apart() -> None:
    lowered = graph(LLAMA_70B, decode(np.arange(1, 6).reshape(5, 1), np.arange(1, 8).reshape(1, 7)))
    shapes = {op.name: op.dims["m"].shape for op, _ in lowered.everything() if op.kind == "gemm"}
    assert set(shapes.values()) == {(5, 1)}, "a product knows no context"


# Steps


@given(batches, lengths, batches, lengths, small, small, small)
def test_steps_add_number_by_number(b1: int, c1: int, b2: int, c2: int, new: int, old: int, requests: int) -> None:
    left, right = decode(b1, c1, CLIPS), decode(b2, c2, CLIPS) + prefill(new, old, requests, CLIPS)
    summed = arrays(left + right)
    for name, value in arrays(left).items():
        if name == "queries":
            continue
        if name == "prefill_longest":
            assert one(summed[name]) == max(one(value), one(arrays(right)[name]))
        else:
            assert one(summed[name]) == one(value) + one(arrays(right)[name]), name
    assert one((left + right).tokens) == one(left.tokens) + one(right.tokens)


@given(batches, lengths)
def test_context_sums_clip_every_sequence(batch: int, context: int) -> None:
    step = decode(batch, context, CLIPS)
    for clip in CLIPS:
        assert one(step.context[clip]) == batch * min(context, clip)


@given(small, small, st.integers(min_value=0, max_value=5), st.sampled_from([1.0, 4.0, 13.0, 128.0, FULL]))
def test_pairs_are_the_sum_over_positions(new: int, old: int, requests: int, clip: float) -> None:
    step = prefill(new, old, requests, (clip,))
    brute = requests * sum(min(position, clip) for position in range(old + 1, old + new + 1))
    assert one(step.prefill_pairs[clip]) == brute


@given(st.lists(small, min_size=1, max_size=6), st.sampled_from([4.0, 13.0, FULL]))
def test_chunks_of_a_prompt_add_up_to_the_prompt(chunks: list[int], clip: float) -> None:
    """Pairs and tokens of chunks, each after what came before it, are those of the whole prompt."""
    parts = [prefill(chunk, sum(chunks[:index]), clips=(clip,)) for index, chunk in enumerate(chunks)]
    whole = prefill(sum(chunks), clips=(clip,))
    assert sum(one(part.prefill_pairs[clip]) for part in parts) == one(whole.prefill_pairs[clip])
    assert sum(one(part.prefill_tokens) for part in parts) == one(whole.prefill_tokens)


@given(batches, lengths, small, small, small)
def test_one_rank_keeps_a_step_bit_for_bit(batch: int, context: int, new: int, old: int, requests: int) -> None:
    step = decode(batch, context / 3, CLIPS) + prefill(new / 7, old / 11, requests / 3, CLIPS)
    alone = arrays(step.divided(array(1.0)))
    for name, value in arrays(step).items():
        assert same_bits(alone[name], value), name


@given(st.integers(min_value=1, max_value=2000), lengths, st.integers(min_value=1, max_value=300))
def test_the_busiest_rank_keeps_whole_sequences_and_at_least_one(batch: int, context: int, ranks: int) -> None:
    share = decode(batch, context, CLIPS).divided(array(ranks))
    held = one(share.sequences)
    assert held == -(-batch // ranks) >= 1
    for clip in CLIPS:
        assert one(share.context[clip]) == pytest.approx(held * min(context, clip), rel=1e-12)
    assert one(share.sampled) == pytest.approx(held)


@given(st.integers(min_value=1, max_value=50), st.integers(min_value=1, max_value=64))
def test_the_busiest_rank_prefills_at_least_one_whole_request(requests: int, ranks: int) -> None:
    share = prefill(100, 20, requests, CLIPS).divided(array(ranks))
    assert one(share.prefill_requests) >= min(1.0, requests) * (1 - 1e-12)
    assert one(share.prefill_requests) >= requests / ranks * (1 - 1e-12)
    assert one(share.prefill_tokens) == pytest.approx(100 * one(share.prefill_requests))
    assert one(share.prefill_longest) == 100


def test_a_degree_is_an_array_like_any_other() -> None:
    ranks = np.array([1.0, 2.0, 4.0, 8.0])
    together = decode(13, 1000).divided(ranks)
    apart = [one(decode(13, 1000).divided(array(rank)).context[FULL]) for rank in ranks]
    assert same_bits(together.context[FULL], np.array(apart))


def test_nothing_is_left_of_a_step_without_tokens() -> None:
    lowered = lower(made(TINY), decode(0, 1000) + prefill(0, requests=0), precision_of(made(TINY), {}))
    assert one(lowered.flops()) == 0.0
