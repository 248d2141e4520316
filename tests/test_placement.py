"""Placement: what a rank executes under a split and a runtime, and what its collectives cost."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scenarios import (
    DEEPSEEK,
    GPT_OSS,
    LLAMA_8B,
    LLAMA_70B,
    MODELS,
    QWEN3_235B,
    TINY,
    chip,
    deployment,
    graph,
    made,
    model,
    one,
    priced,
    runtime,
    same_bits,
    scenario,
)

from archsim.arrays import array
from archsim.catalog import CatalogError
from archsim.chip.model import Chip, with_value
from archsim.engine.step import PricedStep, run_step
from archsim.mapping.mapper import DEGREES, load_mapper
from archsim.mapping.pipeline import stages
from archsim.mapping.place import Deployment, place
from archsim.mapping.plan import Kernel, Plan
from archsim.mapping.split import Split, legality, split
from archsim.mapping.system import Pool
from archsim.workload.step import FULL, Step, decode, prefill

H100, H200, GB200 = "nvidia/h100-sxm", "nvidia/h200-sxm", "nvidia/gb200"
COLLECTIVES = ("all_reduce", "all_to_all")


def kernels(plan: Plan) -> dict[str, Kernel]:
    """Kernels by name; those of the same name in several blocks are alike."""
    return {kernel.name: kernel for _, kernel, _ in plan.kernels()}


def run(d: Deployment, step: Step) -> PricedStep:
    return run_step(place(d, step), d.chip, d.runtime.stack)


def seconds(step: PricedStep, kinds: tuple[str, ...]) -> float:
    return sum(one(cost.seconds) * count for _, kernel, cost, count in step.kernels() if kernel.kind in kinds)


# Collectives stand where results are needed, and cost nothing alone


@pytest.mark.parametrize("name", MODELS)
def test_a_split_of_one_rank_costs_nothing_for_being_split(name: str) -> None:
    for step in (decode(32, 1000, model(name).clips), prefill(500, clips=model(name).clips)):
        alone = run(deployment(name, H200), step)
        assert seconds(alone, COLLECTIVES) == 0.0
        assert all(
            np.all(part == 0.0)
            for _, kernel, cost, _ in alone.kernels()
            if kernel.kind in COLLECTIVES
            for part in (*cost.parts.values(), cost.energy, cost.link_bytes)
        )


def test_a_dense_layer_has_two_all_reduces_and_a_routed_one_two_and_its_dispatch() -> None:
    dense = place(deployment(LLAMA_70B, by=split(tensor=8)), decode(1, 100))
    assert [t.kernel.name for t in dense.blocks["dense"] if t.lane == "link" and one(priced(t.kernel).seconds)] == [
        "o_all_reduce",
        "down_all_reduce",
    ]
    routed = place(deployment(DEEPSEEK, H200, split(attention_data=8, expert=8)), decode(64, 100))
    paid = [t.kernel.name for t in routed.blocks["moe"] if t.lane == "link" and one(priced(t.kernel).seconds)]
    assert paid == ["dispatch", "return"], "nothing is summed where every rank attends to its own sequences"
    inside = place(deployment(DEEPSEEK, H200, split(tensor=8, expert=8)), decode(64, 100))
    paid = [t.kernel.name for t in inside.blocks["moe"] if t.lane == "link" and one(priced(t.kernel).seconds)]
    assert paid == ["o_all_reduce", "experts_all_reduce"], "tensor ranks have all tokens, so none travel"


def test_an_all_reduce_carries_the_residual_stream_of_its_rank() -> None:
    for data, tokens in [(1, 64), (4, 16), (5, 13)]:
        plan = place(deployment(LLAMA_70B, by=split(tensor=8, data=data)), decode(64, 100))
        assert one(kernels(plan)["o_all_reduce"].dims["bytes"]) == tokens * 8192 * 2


@pytest.mark.parametrize("ranks", [2, 8, 16, 64])
def test_dispatch_sends_every_token_to_its_experts_less_what_stays(ranks: int) -> None:
    d = deployment(DEEPSEEK, H200, split(attention_data=ranks, expert=ranks))
    priced_step = run(d, decode(128 * ranks, 1000))
    (sent,) = [cost for block, kernel, cost, _ in priced_step.kernels() if kernel.name == "dispatch"]
    whole = 128 * 8 * 7168 * d.precision.activations.bytes
    assert one(sent.link_bytes) == pytest.approx(whole * (ranks - 1) / ranks)


def test_attention_dp_of_one_is_no_attention_dp() -> None:
    step = decode(np.array([1.0, 9, 64]), 500)
    for name in (DEEPSEEK, GPT_OSS):
        shape = decode(np.array([1.0, 9, 64]), 500, model(name).clips)
        plain, explicit = (
            run(deployment(name, H200, by), shape)
            for by in (split(tensor=8), split(tensor=8, attention_data=1, expert=1))
        )
        assert same_bits(plain.span, explicit.span)
    assert same_bits(
        run(deployment(LLAMA_70B, by=split(tensor=8)), step).span,
        run(deployment(LLAMA_70B, by=split(tensor=8, data=1, pipeline=1, context=1)), step).span,
    )


def test_every_degree_of_one_in_a_sweep_is_the_degree_left_out() -> None:
    step = decode(64, 2000)
    swept = run(deployment(LLAMA_70B, by=split(tensor=array([1, 2, 4, 8]))), step).span
    for index, tensor in enumerate([1, 2, 4, 8]):
        assert swept[index] == one(run(deployment(LLAMA_70B, by=split(tensor=tensor)), step).span)


# What is divided adds up to the whole


@pytest.mark.parametrize("tensor", [1, 2, 4, 8])
def test_tensor_ranks_of_a_dense_model_share_its_flops_without_loss(tensor: int) -> None:
    step = decode(48, 3000) + prefill(700, 300)
    total = one(run(deployment(LLAMA_70B, by=split(tensor=tensor)), step).total().flops)
    assert total * tensor == pytest.approx(one(graph(LLAMA_70B, step).flops()), rel=1e-12)


@pytest.mark.parametrize(
    "by", [split(tensor=8, expert=8), split(tensor=8, expert=2), split(attention_data=8, expert=8)]
)
def test_expert_ranks_share_the_routed_flops_without_loss(by: Split) -> None:
    step = decode(64, 1000)
    parts = run(deployment(DEEPSEEK, H200, by), step)
    found = sum(one(cost.flops) * count for _, kernel, cost, count in parts.kernels() if kernel.kind == "experts")
    whole = sum(one(op.flops) * count for op, count in graph(DEEPSEEK, step).everything() if op.kind == "experts")
    assert found * 8 == pytest.approx(whole, rel=1e-12)


def test_data_parallel_replicas_divide_the_sequences_and_nothing_else() -> None:
    shared = run(deployment(LLAMA_8B, by=split(data=4)), decode(64, 1000))
    alone = run(deployment(LLAMA_8B), decode(16, 1000))
    assert same_bits(shared.span, alone.span)


@pytest.mark.parametrize(("tensor", "heads", "kv"), [(1, 64, 4), (2, 32, 2), (4, 16, 1), (8, 8, 1), (16, 4, 1)])
def test_kv_heads_are_replicated_whole_beyond_their_number(tensor: int, heads: int, kv: int) -> None:
    plan = place(deployment(made(QWEN3_235B), H200, split(tensor=tensor)), decode(8, 100))
    core, qkv = kernels(plan)["attention"], kernels(plan)["qkv"]
    assert (one(core.dims["heads"]), one(core.dims["kv_heads"])) == (heads, kv)
    assert one(qkv.dims["n"]) == (heads + 2 * kv) * 128


def test_the_head_multiplies_the_padded_vocabulary() -> None:
    odd = made(TINY, vocab_size=50_257)
    assert one(kernels(place(deployment(odd, by=split(tensor=8)), decode(1, 1)))["head"].dims["n"]) == 6288
    assert one(kernels(place(deployment(odd), decode(1, 1)))["head"].dims["n"]) == 50_257


def test_shared_experts_follow_tensor_ranks_and_not_expert_ranks() -> None:
    spread = kernels(place(deployment(DEEPSEEK, H200, split(attention_data=8, expert=8)), decode(64, 10)))
    split_up = kernels(place(deployment(DEEPSEEK, H200, split(tensor=8, expert=8)), decode(64, 10)))
    assert one(spread["shared_up"].dims["n"]) == 2 * 2048
    assert one(split_up["shared_up"].dims["n"]) == 2 * 2048 / 8
    assert one(spread["experts"].dims["experts"]) == one(split_up["experts"].dims["experts"]) == 256 / 8


def test_expert_ranks_and_expert_tensor_ranks_multiply_to_the_replica() -> None:
    d = kernels(place(deployment(DEEPSEEK, H200, split(tensor=8, expert=2)), decode(64, 10)))["experts"].dims
    assert one(d["experts"]) == 128 and one(d["width"]) == 2048 / 4


def test_experts_see_the_tokens_of_all_attention_ranks() -> None:
    d = kernels(place(deployment(DEEPSEEK, H200, split(attention_data=16, expert=16)), decode(160, 10)))["experts"].dims
    assert one(d["tokens"]) == 160


# What a runtime makes of operators


def test_small_kernels_are_launched_one_by_one_unless_the_runtime_fuses_them() -> None:
    for name in MODELS:
        step = decode(4, 10, model(name).clips)
        fused, single = (place(deployment(name, H200, under=under), step) for under in ("ideal", "vllm"))
        assert not [k for _, k, _ in fused.kernels() if k.kind == "elementwise"]
        small = {op.name for op, _ in graph(name, step).everything() if op.kind == "elementwise"}
        assert small & set(kernels(single)) == {op for op in small if not runtime("vllm").fused(op)} != set()


def test_fusing_changes_no_flops() -> None:
    step = decode(4, 10)
    fused, single = (run(deployment(LLAMA_70B, under=under), step).total().flops for under in ("ideal", "vllm"))
    assert one(fused) == one(single)


def test_quantisers_stand_where_the_runtime_has_them() -> None:
    def quantisers(**precision: str) -> list[str]:
        plan = place(deployment(LLAMA_70B, **precision), decode(1, 1))
        return [task.kernel.name for task in plan.blocks["dense"] if task.kernel.name.endswith("_quantizer")]

    assert quantisers(weights="bf16") == []
    assert quantisers(weights="fp8") == ["o_quantizer", "down_quantizer"]
    assert quantisers(weights="fp8_block") == [f"{name}_quantizer" for name in ("qkv", "o", "up", "down")]
    assert quantisers(weights="mxfp4") == [], "weight-only formats take bf16 activations"


def test_prefill_steps_are_launched_kernel_by_kernel_and_decode_steps_are_graphs() -> None:
    d = deployment(LLAMA_70B)
    assert place(d, decode(1, 1)).launch == 0
    for step in (prefill(10), decode(1, 1) + prefill(10)):
        assert place(d, step).launch == d.runtime.host.launch > 0
    assert place(replace(d, runtime=runtime("ideal")), prefill(10)).launch == 0


def test_the_host_schedules_a_step_and_each_of_its_sequences() -> None:
    d = deployment(LLAMA_70B)
    times = d.runtime.host
    host = place(d, decode(np.array([1.0, 100.0]), 10)).host
    assert min(times.step, times.sequence, times.request) > 0
    assert list(host) == pytest.approx([times.step + times.sequence, times.step + 100 * times.sequence])
    assert one(place(d, prefill(100, requests=3)).host) == pytest.approx(times.step + 3 * times.request)


# Formats


@pytest.mark.parametrize(
    ("on", "weights", "computes"),
    [
        (H100, "bf16", "bf16"),
        (H100, "fp8", "fp8"),
        (H100, "fp8_block", "fp8"),
        (H100, "mxfp4", "bf16"),  # weight-only: widened
        (H100, "nvfp4", "bf16"),  # no fp4 units: activations stay in bf16
        ("nvidia/b200-sxm", "nvfp4", "fp4"),
        ("nvidia/b200-sxm", "mxfp8", "fp8"),
        ("nvidia/a100-sxm-80gb", "fp8", "bf16"),  # no fp8 units, and integers are no substitute
    ],
)
def test_products_compute_in_the_fastest_format_that_is_wide_enough(on: str, weights: str, computes: str) -> None:
    plan = place(deployment(LLAMA_70B, on, weights=weights), decode(1, 1))
    assert kernels(plan)["up"].compute == computes
    assert kernels(plan)["up"].weight.name == weights, "narrow weights stay narrow in memory"


def test_attention_follows_the_format_of_the_cache_and_routers_stay_wide() -> None:
    plan = kernels(place(deployment(DEEPSEEK, H200, kv="fp8"), decode(1, 1)))
    assert plan["attention"].weight.name == "fp8"
    assert plan["router"].weight.name == plan["router"].compute == "bf16"
    assert plan["absorb_k"].weight.name == "bf16"


def test_a_chip_without_a_wide_enough_format_is_refused_by_name() -> None:
    narrow: Chip = with_value(chip(H100), ("matrix",), {"fp8": chip(H100).matrix["fp8"]})
    with pytest.raises(ValueError, match=r"H100.*no matrix format for .*bf16"):
        place(deployment(LLAMA_8B, narrow), decode(1, 1))


# Tasks


@pytest.mark.parametrize("name", MODELS)
def test_tasks_wait_only_for_earlier_ones_and_stand_in_the_order_of_the_graph(name: str) -> None:
    step = decode(4, 100, model(name).clips) + prefill(64, clips=model(name).clips)
    lowered = graph(name, step)
    plan = place(deployment(name, H200, split(tensor=8)), step)
    for block, tasks in plan.blocks.items():
        assert all(0 <= index < at for at, task in enumerate(tasks) for index in task.after)
        at = {task.kernel.name: index for index, task in enumerate(tasks)}
        assert all(
            at[before] < at[after] for before, after in lowered.blocks[block].edges if before in at and after in at
        )
        assert {task.lane for task in tasks} <= {"compute", "link"}
        assert all((task.lane == "link") == (task.kernel.kind in COLLECTIVES) for task in tasks)


def test_kernels_that_blocks_share_are_priced_once() -> None:
    d = deployment(GPT_OSS, H200)
    costs = run(d, decode(1, 100, d.model.clips)).costs
    experts = {
        id(cost) for block in ("moe", "windowed_moe") for kernel, cost in costs[block] if kernel.kind == "experts"
    }
    assert len(experts) == 1


# Pipeline stages


def test_64_layers_on_6_stages_run_5_818_times_faster_not_6() -> None:
    largest = max(sum(n for block, n in held.items() if block == "layer") for held in stages([("layer", 64)], 6))
    assert round(64 / largest, 3) == 5.818


@pytest.mark.parametrize("count", [1, 2, 3, 5, 8, 61])
def test_stages_hold_every_layer_once_in_order_with_the_ends_outside(count: int) -> None:
    cut = stages(graph(DEEPSEEK).sequence, count)
    assert len(cut) == count
    assert sum(held.get("dense", 0) for held in cut) == 3 and sum(held.get("moe", 0) for held in cut) == 58
    assert [("embedding" in held, "head" in held) for held in cut] == [(i == 0, i == count - 1) for i in range(count)]
    layers = [held.get("dense", 0) + held.get("moe", 0) for held in cut]
    assert max(layers) - min(layers) <= 1 and min(layers) >= 1


def test_a_token_passes_all_stages_and_comes_round_with_the_slowest() -> None:
    by = {
        count: run(deployment(LLAMA_70B, by=split(tensor=4, pipeline=count)), decode(64, 1000)) for count in (1, 2, 4)
    }
    alone = by[1]
    assert one(alone.turnaround) == one(alone.latency) == one(alone.span)
    for count in (2, 4):
        assert one(by[count].latency) >= one(by[count].span)
        assert one(by[count].turnaround) >= count * one(by[count].stage) * (1 - 1e-12)
        assert one(by[count].stage) <= one(by[count].span)


# What mappers propose


def pool(on: str, count: int) -> Pool:
    return Pool(chip(on), array(count))


@pytest.mark.parametrize("mapper", ["auto", "tensor-parallel", "expert-parallel", "context-parallel", "pipeline"])
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("count", [1, 2, 8, 16])
def test_proposals_are_legal_and_use_every_chip(mapper: str, name: str, count: int) -> None:
    if proposes_nothing(mapper, name, count):
        return  # neither copies of KV heads nor more chips than a stage can be
    proposed = load_mapper(mapper).propose(model(name), pool(H200, count))
    assert np.all(legality(model(name), proposed, array(count)) == 0)
    assert np.all(proposed.chips == count)
    assert len(rows(proposed)) == proposed.chips.size, "a proposal comes twice"


def rows(proposed: Split) -> set[tuple[float, ...]]:
    """The degrees of every proposal, in the order of DEGREES."""
    return {tuple(row) for row in np.stack([getattr(proposed, name) for name in DEGREES], -1)}


def proposes_nothing(mapper: str, name: str, count: int) -> bool:
    found = load_mapper(mapper)
    return not any(s.propose(model(name), pool(H200, count), s.degrees) for s in found.strategies)


def test_auto_proposes_what_the_others_do_and_more() -> None:
    def by(name: str) -> set[tuple[float, ...]]:
        return rows(load_mapper(name).propose(model(DEEPSEEK), pool(H200, 16)))

    others = [by(name) for name in ("tensor-parallel", "expert-parallel", "context-parallel", "pipeline")]
    assert set().union(*others) < by("auto")
    assert len(by("auto")) < 30


def special(name: str, on: str, count: int) -> tuple[set[float], set[float]]:
    """Pipeline stages and context ranks that auto proposes."""
    found = load_mapper("auto").propose(model(name), pool(on, count))
    return set(found.pipeline), set(found.context)


def test_auto_proposes_stages_and_context_ranks_only_where_they_help() -> None:
    assert special(LLAMA_70B, H200, 8) == ({1}, {1})  # TP8 spans the domain, and its 8 KV heads have no copies
    assert special(LLAMA_70B, H200, 6) == ({1, 3}, {1})  # 64 heads divide by 2 of 6 chips
    assert special(LLAMA_70B, H200, 16) == ({1, 2}, {1})  # two domains
    assert special(LLAMA_70B, H200, 88) == ({1, 11}, {1})  # no fewer stages divide 11 domains
    assert special(LLAMA_70B, GB200, 16) == ({1}, {1, 2})  # one domain, two copies of each KV head
    assert special(DEEPSEEK, H200, 8) == ({1}, {1, 2, 4, 8})  # a latent cache is copied on every tensor rank
    assert special(LLAMA_8B, H200, 1) == ({1}, {1})


def test_a_mapper_says_what_it_looked_at() -> None:
    def said(name: str, on: str, count: int) -> str:
        return "; ".join(load_mapper("auto").looked_at(model(name), pool(on, count)))

    assert "no context ranks" in said(LLAMA_70B, H200, 8) and "TP8 spans all chips" in said(LLAMA_70B, H200, 8)
    assert "more than a domain of 8" in said(DEEPSEEK, H200, 16) and "from TP2" in said(DEEPSEEK, H200, 16)
    assert "stages of TP2" in said(LLAMA_70B, H200, 6)


def test_proposals_keep_to_what_the_runtime_can_do() -> None:
    def ranks(name: str, runtime: str, count: int = 8, on: str = H200) -> set[float]:
        return set(scenario(name, on, count, runtime=runtime, batch=1, context=1000).split.context)

    assert ranks(DEEPSEEK, "vllm") == ranks(DEEPSEEK, "sglang") == ranks(DEEPSEEK, "ideal") == {1, 2, 4, 8}
    assert ranks(DEEPSEEK, "tensorrt-llm") == ranks(DEEPSEEK, "llama.cpp") == {1}
    assert ranks(LLAMA_70B, "vllm", 16, GB200) == {1, 2} and ranks(LLAMA_70B, "sglang", 16, GB200) == {1}
    with pytest.raises(CatalogError, match=r"llama\.cpp has no context ranks"):
        scenario(DEEPSEEK, H200, 8, runtime="llama.cpp", mapper="context-parallel", batch=1, context=1000)


def user_mapper(folder: Path, code: str, **keys: Any) -> str:
    (folder / "mine.py").write_text(code, encoding="utf-8")
    text = "\n".join(
        f"{name}: {value}" for name, value in {"name": "mine", "describe": "mine", "strategy": "mine", **keys}.items()
    )
    (folder / "mine.yaml").write_text(text, encoding="utf-8")
    return str(folder / "mine.yaml")


def test_a_users_strategy_loads_by_the_same_route(tmp_path: Path) -> None:
    path = user_mapper(tmp_path, "def propose(model, pool, degrees):\n    return [{'tensor': 4, 'data': 2}]\n")
    proposed = load_mapper(path).propose(model(LLAMA_70B), pool(H200, 8))
    assert (one(proposed.tensor), one(proposed.data)) == (4, 2)


@pytest.mark.parametrize("strategy", ["import nothing_like_this", "propse = None", "def propose(:", "1 / 0"])
def test_a_users_strategy_that_fails_is_refused_and_never_skipped(strategy: str, tmp_path: Path) -> None:
    with pytest.raises(CatalogError, match=r"mine\.py"):
        load_mapper(user_mapper(tmp_path, strategy))


def test_unknown_degrees_and_missing_strategies_are_refused(tmp_path: Path) -> None:
    with pytest.raises(CatalogError, match="unknown degree 'tensr'"):
        load_mapper(user_mapper(tmp_path, "def propose(m, p, d): return []", degrees="{tensr: 2}"))
    with pytest.raises(CatalogError, match="no strategy file"):
        load_mapper(user_mapper(tmp_path, "", strategy="elsewhere"))


def test_the_context_sums_of_a_window_reach_its_kernel() -> None:
    plan = place(deployment(GPT_OSS, H200), decode(10, 5000, model(GPT_OSS).clips))
    seen: Mapping[str, float] = {
        block: one(next(task.kernel for task in tasks if task.kernel.name == "attention").dims["tokens"])
        for block, tasks in plan.blocks.items()
        if block in model(GPT_OSS).blocks
    }
    assert seen == {"moe": 50_000, "windowed_moe": 1280}
    assert FULL in model(GPT_OSS).clips
