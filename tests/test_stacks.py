"""Kernel stacks and runtimes: each prices each chip, sets stay small, and libraries dispatch as they are said to."""

import itertools
import warnings
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from archsim.arrays import Array, array
from archsim.catalog import CatalogError, fetch, read_text, validate
from archsim.chip.constants import AllReduce, Constants, GenerationAttention
from archsim.chip.model import Chip, Link
from archsim.chip.schema import load_chip
from archsim.engine.attention import generation, unpacked
from archsim.engine.collective import all_reduce
from archsim.engine.cost import Cost
from archsim.engine.gpu import price
from archsim.engine.step import PricedStep, run_step
from archsim.mapping.memory import memory_plan
from archsim.mapping.place import Deployment, place
from archsim.mapping.plan import Kernel
from archsim.mapping.runtime import load_runtime
from archsim.mapping.split import split
from archsim.units import format_named
from archsim.workload.model import Model, precision_of
from archsim.workload.schema import load_model
from archsim.workload.step import Step, decode, prefill

CHIPS = ("nvidia/a100-sxm-80gb", "nvidia/h100-sxm", "nvidia/h200-sxm", "nvidia/b200-sxm")
MODELS = ("meta/llama-3.1-8b", "openai/gpt-oss-120b", "deepseek/deepseek-v3")
RUNTIMES = ("vllm", "sglang", "tensorrt-llm", "llama.cpp", "ideal")
STACKS = ("vllm", "sglang", "trtllm", "llamacpp")
GENERATIONS = ("base", "ampere", "hopper", "blackwell")
A100, H100, H200, B200 = CHIPS
BF16, FP8 = format_named("bf16"), format_named("fp8")

chip_of = cache(load_chip)
runtime_of = cache(load_runtime)
model_of = cache(load_model)


def deployment(runtime: str, chip: str, model: Model, **degrees: int) -> Deployment:
    return Deployment(model, precision_of(model, {}), split(**degrees), chip_of(chip), runtime_of(runtime), array(1.2))


def step_of(runtime: str, chip: str, model: Model, step: Step, **degrees: int) -> PricedStep:
    d = deployment(runtime, chip, model, **degrees)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return run_step(place(d, step), d.chip, d.runtime.stack)


def consistent(cost: Cost) -> bool:
    """Parts are never negative, and sum to the time."""
    total = sum(cost.parts.values(), np.zeros(1))
    return all((part >= 0).all() for part in cost.parts.values()) and np.allclose(
        total, cost.seconds, rtol=1e-9, atol=0
    )


@pytest.mark.parametrize("chip", CHIPS)
@pytest.mark.parametrize("runtime", RUNTIMES)
def test_every_runtime_prices_every_chip(runtime: str, chip: str) -> None:
    for name in MODELS:
        model = model_of(name)
        steps = (
            decode(array([1.0, 64.0, 512.0]), array(4096.0), model.clips),
            prefill(array([128.0, 8192.0]), array(0.0), array(1.0), model.clips),
        )
        for step in steps:
            priced = step_of(runtime, chip, model, step, tensor=8)
            assert np.isfinite(priced.span).all() and (priced.span > 0).all()
            assert all(consistent(cost) for _, _, cost, _ in priced.kernels())


@pytest.mark.parametrize("chip", CHIPS)
def test_no_stack_beats_the_chip_itself(chip: str) -> None:
    model = model_of("openai/gpt-oss-120b")
    step = decode(array([1.0, 16.0, 256.0]), array(4096.0), model.clips)
    least = step_of("ideal", chip, model, step, tensor=8).span
    for runtime in RUNTIMES:
        assert (step_of(runtime, chip, model, step, tensor=8).span >= least).all(), runtime


@pytest.mark.parametrize("generation_name", GENERATIONS)
def test_a_set_has_ten_numbers_at_the_most(generation_name: str) -> None:
    kernels = fetch("chips/generations", generation_name).data["kernels"]
    found = {
        f"{stack}.{family}.{name}": [
            key
            for key, value in values.items()
            if key not in ("error", "spread", "sibling", "fitted_on", "tiles") and value not in (True, False)
        ]
        for stack, families in kernels.items()
        for family, sets in families.items()
        for name, values in sets.items()
    }
    assert {name: keys for name, keys in found.items() if len(keys) > 10} == {}
    assert all(
        values["fitted_on"] for families in kernels.values() for sets in families.values() for values in sets.values()
    )


@pytest.mark.parametrize("generation_name", GENERATIONS[1:])
def test_stacks_have_the_families_of_vllm_and_a_source_for_each_set(generation_name: str) -> None:
    document = fetch("chips/generations", generation_name)
    kernels = document.data["kernels"]
    covered = [field for source in document.data["sources"] for field in source["of"]]
    for stack in STACKS:
        assert kernels[stack].keys() == kernels["vllm"].keys()
        for family, sets in kernels[stack].items():
            if stack != "llamacpp":
                assert {name for name in kernels["vllm"][family] if not name.endswith("_sliced")} <= sets.keys()
            for name in sets:
                fields = (f"kernels.{stack}.{family}", f"kernels.{stack}.{family}.{name}")
                assert any(field in covered for field in fields), fields


# TensorRT-LLM: query heads packed by their group, or a block for each


def attention(
    chip: Chip, sequences: object, length: object, heads: float, kv_heads: float, kv: str = "bf16", queries: float = 1.0
) -> Kernel:
    many, cached = array(sequences), array(length)
    dims = {
        "sequences": many,
        "queries": array(queries),
        "tokens": many * cached,
        "heads": array(heads),
        "kv_heads": array(kv_heads),
        "width": array(128.0),
        "value": array(128.0),
    }
    compute = chip.compute_format(format_named(kv), BF16) or "bf16"
    return Kernel(
        "attention", "generation_attention", "attention", dims, format_named(kv), BF16, compute, ("attention",)
    )


def sets(chip: Chip, stack: str, family: str) -> dict[str, Constants]:
    return dict(chip.generation.kernels[stack][family])


@pytest.mark.parametrize(
    ("chip", "kv", "sequences", "length", "heads", "kv_heads", "expected"),
    [
        (H100, "bf16", 64, 4096, 32, 8, False),  # groups of four, much work
        (H100, "bf16", 64, 4096, 32, 32, True),  # no groups
        (H100, "bf16", 64, 4096, 64, 1, True),  # groups of 64
        (H100, "bf16", 64, 4096, 32, 1, False),  # groups of 32
        (H100, "bf16", 1, 512, 32, 8, True),  # 1 x 8 x 512 < 8192
        (H100, "bf16", 1, 1024, 32, 8, False),  # 1 x 8 x 1024 = 8192
        (H100, "bf16", 8, 16, 32, 8, False),  # a short context counts as 128
        (H100, "bf16", 7, 16, 32, 8, True),
        (H100, "fp8", 1, 512, 32, 8, False),  # the rule for little work is of bf16 alone
        (H100, "fp8", 64, 4096, 32, 32, True),
        (A100, "bf16", 1, 512, 32, 8, True),
        (B200, "bf16", 1, 512, 32, 8, False),
        (B200, "bf16", 64, 4096, 32, 32, False),  # Blackwell packs single heads too
        (B200, "bf16", 64, 4096, 64, 1, True),
        (B200, "fp8", 64, 4096, 40, 1, True),
    ],
)
def test_trtllm_packs_by_group_and_work(
    chip: str, kv: str, sequences: int, length: int, heads: int, kv_heads: int, expected: bool
) -> None:
    machine = chip_of(chip)
    kernel = attention(machine, sequences, length, heads, kv_heads, kv)
    known = sets(machine, "trtllm", "generation_attention")
    packed, other = known[kv], known[f"{kv}_unpacked"]
    assert isinstance(packed, GenerationAttention) and isinstance(other, GenerationAttention)
    assert bool(unpacked(kernel, packed)[0]) is expected
    taken = generation(kernel, machine, other if expected else packed)
    assert price(kernel, machine, "trtllm").seconds == taken[0]


def test_packing_is_chosen_point_by_point() -> None:
    machine = chip_of(H100)
    grid = attention(machine, np.array([[1.0], [4.0], [64.0]]), np.array([256.0, 1024.0, 8192.0]), 32, 8)
    cost = price(grid, machine, "trtllm")
    alone = [
        float(price(attention(machine, many, cached, 32, 8), machine, "trtllm").seconds[0])
        for many, cached in itertools.product((1.0, 4.0, 64.0), (256.0, 1024.0, 8192.0))
    ]
    assert cost.seconds.ravel().tolist() == alone
    assert consistent(cost)
    ideal = price(grid, machine, "ideal").seconds
    assert (cost.seconds >= ideal).all()


def test_several_queries_a_sequence_and_other_stacks_are_always_packed() -> None:
    machine = chip_of(H100)
    drafts = attention(machine, 1, 128, 32, 32, queries=4.0)
    packed = sets(machine, "trtllm", "generation_attention")["bf16"]
    assert isinstance(packed, GenerationAttention) and not unpacked(drafts, packed).any()
    for stack in ("vllm", "sglang", "llamacpp", "ideal"):
        found = [c for c in sets(machine, stack, "generation_attention").values() if isinstance(c, GenerationAttention)]
        assert not any(unpacked(attention(machine, 1, 128, 32, 32), c).any() for c in found)


# All-reduce: the engine's own kernels, and NCCL


def collective(size: object, ranks: object, library: str = "custom") -> Kernel:
    dims = {"bytes": array(size), "ranks": array(ranks)}
    return Kernel("reduce", "all_reduce", "ffn", dims, BF16, BF16, "bf16", (), library)


def nccl_time(size: float, ranks: float, link: Link, c: AllReduce) -> float:
    """LL, Simple and NVLS, as NCCL chooses among them."""
    others, rate = ranks - 1.0, float(link.bandwidth[0])
    both = 2.0 * others / ranks * size
    low = ((c.two_shot or 0.0) + c.rank * others) * c.skew + both / (rate * c.two_shot_link)
    simple = ((c.ring or 0.0) + c.ring_rank * others) * c.skew + both / (rate * c.ring_link)
    switched = np.inf
    if c.switch_link is not None and link.switch and ranks > 2:
        switched = (c.ring or 0.0) * c.skew + (1.0 + 1.0 / ranks) * size / (rate * c.switch_link)
    return min(low, simple, switched)


@pytest.mark.parametrize("chip", CHIPS)
@pytest.mark.parametrize("ranks", [2.0, 4.0, 8.0])
def test_nccl_is_its_closed_form(chip: str, ranks: float) -> None:
    machine = chip_of(chip)
    constants = sets(machine, "trtllm", "all_reduce")["nccl"]
    assert isinstance(constants, AllReduce) and constants.one_shot is None
    for size in (1e3, 64e3, 1e6, 64e6, 1e9):
        cost = price(collective(size, ranks, "nccl"), machine, "trtllm")
        assert cost.seconds[0] == pytest.approx(nccl_time(size, ranks, machine.links["scale_up"], constants), rel=1e-12)
        assert consistent(cost)


@pytest.mark.parametrize("stack", ["vllm", "sglang", "trtllm"])
def test_own_kernels_reach_eight_ranks_and_nccl_goes_on(stack: str) -> None:
    machine = chip_of(H100)
    wide = replace(machine, links={**machine.links, "scale_up": replace(machine.links["scale_up"], domain=72)})
    own, library = (price(collective(1e5, 8.0, name), wide, stack).seconds[0] for name in ("custom", "nccl"))
    assert own < library
    for ranks in (16.0, 72.0):
        own, library = (price(collective(1e5, ranks, name), wide, stack).seconds[0] for name in ("custom", "nccl"))
        assert own == library
    both = price(collective(1e5, [8.0, 16.0]), wide, stack)
    assert both.seconds.tolist() == [float(price(collective(1e5, r), wide, stack).seconds[0]) for r in (8.0, 16.0)]
    assert consistent(both)


def test_across_nodes_the_network_comes_on_top_of_nccl_inside() -> None:
    machine = chip_of(H100)
    constants = sets(machine, "vllm", "all_reduce")["nccl"]
    assert isinstance(constants, AllReduce)
    out, size = machine.links["scale_out"], 1e7
    far = 2.0 * size * 0.5 / 8.0 / float(out.bandwidth[0]) + 2.0 * float(out.latency[0])
    inside = nccl_time(size, 8.0, machine.links["scale_up"], constants)
    assert price(collective(size, 16.0), machine, "vllm").seconds[0] == pytest.approx(inside + far, rel=1e-12)


@pytest.mark.parametrize("stack", [*STACKS, "ideal"])
@pytest.mark.parametrize("library", ["custom", "nccl"])
def test_one_rank_and_no_bytes_take_no_time(stack: str, library: str) -> None:
    for chip in CHIPS:
        for kernel in (collective(1e6, 1.0, library), collective(0.0, 8.0, library), collective(0.0, 64.0, library)):
            assert price(kernel, chip_of(chip), stack).seconds.tolist() == [0.0]


def test_the_runtime_says_which_library() -> None:
    model = model_of("meta/llama-3.1-8b")
    step = decode(array(16.0), array(1024.0), model.clips)
    own = deployment("vllm", H100, model, tensor=8)
    other = replace(own, runtime=replace(own.runtime, all_reduce="nccl"))
    times = [float(run_step(place(d, step), d.chip, "vllm").span[0]) for d in (own, other)]
    assert times[0] < times[1]
    assert {runtime_of(name).all_reduce for name in RUNTIMES} == {"custom"}


def test_an_all_reduce_needs_an_algorithm() -> None:
    with pytest.raises(CatalogError, match="needs an algorithm"):
        validate(AllReduce, read_text("fitted_on: nothing\nskew: 2.0\n", Path("x.yaml")))


def test_the_ideal_all_reduce_is_bytes_and_one_latency() -> None:
    machine = chip_of(H100)
    link = machine.links["scale_up"]
    size, ranks = 1e8, 8.0
    least = (1.0 + 1.0 / ranks) * size / float(link.bandwidth[0]) + float(link.latency[0])
    seconds: Array = all_reduce(collective(size, ranks), machine, _ideal(machine))[0]
    assert seconds[0] == pytest.approx(least, rel=1e-12)
    assert price(collective(size, ranks), machine, "ideal").seconds[0] == pytest.approx(least, rel=1e-12)


def _ideal(machine: Chip) -> AllReduce:
    found = sets(machine, "ideal", "all_reduce")["any"]
    if not isinstance(found, AllReduce):
        raise TypeError(found)
    return found


# Runtimes


def test_a_share_of_the_free_memory_is_what_the_rest_leaves() -> None:
    d = deployment("tensorrt-llm", H100, model_of("meta/llama-3.1-8b"))
    plan = memory_plan(d, array(1.0), array(1024.0))
    rest = sum(float(plan.parts[name][0]) for name in ("weights", "activations", "buffers"))
    assert d.runtime.of_free
    assert plan.free_for_kv[0] == pytest.approx(0.9 * (float(plan.capacity[0]) - rest))


def test_llama_cpp_decodes_on_lpddr_as_measured() -> None:
    """gpt-oss-120b on DGX Spark, one sequence: 57.3, 51.9 and 41.4 tokens a second behind 512, 8192 and 32768."""
    machine = chip_of(H100)
    memory = replace(machine.memory, bandwidth=array(273e9))
    matrix = {name: rate * 125e12 / 989e12 for name, rate in machine.matrix.items()}
    spark = replace(machine, memory=memory, matrix=matrix, cores=array(48.0), clock=array(2.54e9))
    model = model_of("openai/gpt-oss-120b")
    narrow = dict.fromkeys(("weights", "attention", "head", "embedding"), "q8_0") | {"experts": "mxfp4"}
    d = Deployment(model, precision_of(model, narrow), split(), spark, runtime_of("llama.cpp"), array(1.2))
    step = decode(array(1.0), array([512.0, 8192.0, 32768.0]), model.clips)
    rate = 1.0 / run_step(place(d, step), spark, "llamacpp").span
    assert np.allclose(rate, [57.3, 51.9, 41.4], rtol=0.08)
