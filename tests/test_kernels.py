"""One kernel at a time: never under a roofline, parts that add up, and losses that vanish when their cause does.

Properties hold for every kind of kernel, both stacks, all chips and all formats with constants. Hypothesis searches the
corners; a fixed sweep of a few hundred random shapes each covers the middle.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scenarios import (
    CHIPS,
    STACKS,
    chip,
    collective,
    gemm,
    generation,
    kernel,
    latent_generation,
    one,
    priced,
    prompt,
    routed,
)

from archsim.arrays import Array, array, soft_maximum
from archsim.chip.constants import ATTENTION_SPLITS, Gemm
from archsim.chip.model import Chip, Unsuited, with_value
from archsim.engine import attention as attention_module
from archsim.engine import experts as experts_module
from archsim.engine.cost import ALL_PARTS, Cost
from archsim.engine.experts import distinct_experts, imbalance
from archsim.engine.gemm import gemm as gemm_time
from archsim.mapping.plan import Kernel
from archsim.units import FORMATS, format_named

H100 = "nvidia/h100-sxm"
TIGHT = 1e-9

# Sizes from nothing to more than any machine holds
count = st.one_of(st.integers(0, 3), st.integers(0, 600), st.integers(0, 2**22))
width = st.one_of(st.integers(1, 300), st.integers(1, 2**17))
heads = st.sampled_from([1, 2, 4, 8, 16, 32, 64, 128])
degree = st.sampled_from([1, 2, 3, 4, 7, 8, 16, 64, 72])
skews = st.sampled_from([0.0, 0.5, 1.2])


def log_uniform(rng: np.random.Generator, low: float, high: float, size: int) -> Array:
    """Whole numbers spread evenly over their logarithm; a low of 0 gives some zeros."""
    drawn = np.floor(np.exp(rng.uniform(np.log(max(low, 0.5)), np.log(high), size)))
    return np.maximum(drawn, low)


def random_dims(kind: str, rng: np.random.Generator, size: int) -> dict[str, Array]:
    """Arguments of the makers below, as arrays."""

    def draw(low: float, high: float) -> Array:
        return log_uniform(rng, low, high, size)

    kv = 2.0 ** rng.integers(0, 5, size)
    head = kv * 2.0 ** rng.integers(0, 5, size)
    match kind:
        case "gemm":
            return {"m": draw(0, 2**22), "n": draw(1, 2**17), "k": draw(1, 2**17), "batch": draw(1, 200)}
        case "generation_attention":
            pick = {"width": 64.0 * 2.0 ** rng.integers(0, 3, size), "queries": draw(1, 8)}
            return {"sequences": draw(0, 2**14), "context": draw(1, 2**21), "heads": head, "kv_heads": kv, **pick}
        case "mla_generation":
            return {"sequences": draw(0, 2**14), "context": draw(1, 2**21), "heads": head}
        case "context_attention" | "mla_context":
            pick = {"heads": head, "kv_heads": kv if kind == "context_attention" else head}
            return {"requests": draw(1, 500), "tokens": draw(0, 2**17), "prefix": draw(0, 2**17), **pick}
        case "experts":
            ranks = 2.0 ** rng.integers(0, 4, size)
            rest = {"hidden": draw(64, 2**14), "width": draw(16, 2**14), "ranks": ranks, "apart": ranks}
            return {
                "tokens": draw(0, 2**18),
                "experts": 16.0 * 2.0 ** rng.integers(0, 6, size),
                "top_k": draw(1, 8),
                **rest,
            }
        case "elementwise":
            return {"tokens": draw(0, 2**22), "bytes": draw(1, 2**20)}
        case _:
            return {"size": draw(0, 2**40), "ranks": draw(1, 200)}


def dims_of(kind: str) -> st.SearchStrategy[dict[str, Any]]:
    """The same arguments, one shape at a time, with hypothesis to shrink them."""
    fixed: dict[str, dict[str, st.SearchStrategy[Any]]] = {
        "gemm": {"m": count, "n": width, "k": width, "batch": st.integers(1, 130)},
        "generation_attention": {
            "sequences": st.integers(0, 5000),
            "context": st.integers(1, 2**21),
            "kv_heads": heads,
            "group": st.sampled_from([1, 2, 7, 8, 64]),
            "queries": st.integers(1, 8),
            "width": st.sampled_from([64, 128, 256]),
        },
        "mla_generation": {"sequences": st.integers(0, 5000), "context": st.integers(1, 2**21), "heads": heads},
        "context_attention": {
            "requests": st.integers(0, 300),
            "tokens": st.one_of(st.integers(0, 200), st.integers(0, 2**17)),
            "prefix": st.one_of(st.just(0), st.integers(0, 2**17)),
            "window": st.sampled_from([128.0, 4096.0, float("inf")]),
            "kv_heads": heads,
            "group": st.sampled_from([1, 2, 8]),
        },
        "experts": {
            "tokens": count,
            "experts": st.sampled_from([8, 64, 128, 256]),
            "top_k": st.integers(1, 8),
            "hidden": width,
            "width": width,
            "ranks": st.sampled_from([1, 2, 8]),
            "apart": st.sampled_from([1, 8]),
            "skew": skews,
        },
        "elementwise": {"tokens": count, "bytes": width},
        "all_reduce": {"size": st.one_of(count, st.integers(0, 2**40)), "ranks": degree},
    }
    fixed["mla_context"] = fixed["context_attention"] | {"group": st.just(1)}
    fixed["all_to_all"] = fixed["all_reduce"]
    return st.fixed_dictionaries(fixed[kind]).map(_grouped)


def _grouped(dims: dict[str, Any]) -> dict[str, Any]:
    if "group" in dims:
        dims = dims | {"heads": dims["kv_heads"] * dims["group"]}
        del dims["group"]
    return dims


def make(kind: str, on: str, fmt: str, dims: Mapping[str, Any]) -> Kernel:
    match kind:
        case "gemm":
            return gemm(weight=fmt, on=on, **dims)
        case "generation_attention":
            return generation(kv=fmt, on=on, **dims)
        case "mla_generation":
            return latent_generation(kv=fmt, on=on, **dims)
        case "context_attention" | "mla_context":
            return prompt(kv=fmt, on=on, kind=kind, **dims)
        case "experts":
            return routed(weight=fmt, on=on, **dims)
        case "elementwise":
            return kernel(kind, on=on, **dims)
        case _:
            return collective(kind, **dims)


KINDS = (
    "gemm",
    "generation_attention",
    "mla_generation",
    "context_attention",
    "mla_context",
    "experts",
    "elementwise",
    "all_reduce",
    "all_to_all",
)
COLLECTIVES = ("all_reduce", "all_to_all")


def formats(on: str, stack: str, kind: str) -> list[str]:
    """The formats for which a chip has constants; `any` stands for all that it can compute."""
    listed = chip(on).generation.kernels[stack][kind]
    if "any" not in listed:
        return [name for name in listed if name in FORMATS and computes(on, name)]  # not variants of a set
    weights = ("bf16",) if kind in ("elementwise", *COLLECTIVES) else tuple(FORMATS)
    return [name for name in weights if computes(on, name)]


def computes(on: str, name: str) -> bool:
    return chip(on).compute_format(format_named(name)) is not None and format_named(name).bits <= 16


def sets() -> Iterator[tuple[str, str, str, str]]:
    """(chip, stack, kind, format) of every set of constants."""
    for on in CHIPS:
        for stack in STACKS:
            for kind in KINDS:
                yield from ((on, stack, kind, fmt) for fmt in formats(on, stack, kind))


SETS = list(sets())


def test_there_is_something_to_price() -> None:
    assert len(SETS) > 150 and {kind for _, _, kind, _ in SETS} == set(KINDS)


# Floors: what no machine undercuts, from first principles


def floor(of: Kernel, on: Chip) -> Array:
    """The larger of FLOPs at peak and of bytes that must move at full bandwidth (s)."""
    d = of.dims
    if of.kind in COLLECTIVES:
        return wire_floor(of, on)
    flops, moved = work(of)
    some = next(d[name] for name in ("m", "sequences", "tokens") if name in d) > 0
    peak = on.matrix[of.compute] if of.kind != "elementwise" else array(np.inf)
    return np.where(some, np.maximum(flops / peak, moved / on.memory.bandwidth), 0.0)


def work(of: Kernel) -> tuple[Array, Array]:
    """FLOPs, and bytes with everything read or written once."""
    d, b = of.dims, of.weight.bytes
    wide = d["width"] + d["value"] if "value" in d else 0.0
    match of.kind:
        case "gemm":
            times = d.get("batch", 1.0)
            once = d["n"] * d["k"] * b + d["m"] * (d["k"] * of.input.bytes + 2 * d["n"])
            return 2 * d["m"] * d["n"] * d["k"] * times, once * times
        case "generation_attention":
            cache = d["tokens"] * d["kv_heads"] * wide * b
            return 2 * d["tokens"] * d["queries"] * d["heads"] * wide, cache
        case "mla_generation":
            return 2 * d["tokens"] * d["queries"] * d["heads"] * wide, d["tokens"] * 576 * b
        case "context_attention" | "mla_context":
            return 2 * d["pairs"] * d["heads"] * wide, 2 * wide * d["tokens"] * (d["heads"] + d["kv_heads"])
        case "experts":
            read = distinct_experts(d["tokens"], d["all_experts"], d["top_k"], d["skew"]) / d["expert_ranks"]
            each = d["matrices"] * d["hidden"] * d["width"]
            rows = d["tokens"] * d["top_k"] / d["expert_ranks"]
            return 2 * rows * each, np.minimum(read, d["experts"]) * each * b
        case _:
            return array(0.0), d["tokens"] * d["bytes"]


def wire_floor(of: Kernel, on: Chip) -> Array:
    """What one rank must send: in an all-reduce at least its own data once, in an all-to-all all but its own share."""
    size, ranks = of.dims["bytes"], of.dims["ranks"]
    up, out = on.links["scale_up"], on.links["scale_out"]
    far = ranks > up.domain
    if of.kind == "all_reduce":
        inside = np.where(ranks > 1, size / up.bandwidth, 0.0)
        share = size / np.minimum(ranks, up.domain)  # of one rank, once the node is reduced
        return np.where(far, np.maximum(inside, share / out.bandwidth), inside)
    leaves = size * np.maximum(ranks - up.domain, 0.0) / ranks
    near = size * (np.minimum(ranks, up.domain) - 1.0) / ranks
    return np.maximum(near / up.bandwidth, leaves / out.bandwidth)


def check(of: Kernel, on: str, stack: str) -> None:
    """Everything that holds for any kernel at any point."""
    cost = priced(of, on, stack)
    seconds = cost.seconds
    assert np.all(np.isfinite(seconds)) and np.all(seconds >= 0)
    assert set(cost.parts) <= set(ALL_PARTS)
    assert all(np.all(part >= 0) for part in cost.parts.values()), "a part is negative"
    total = sum(cost.parts.values(), array(0.0))
    assert np.all(np.abs(total - seconds) <= TIGHT * seconds), "parts do not sum to the time"
    assert np.all(floor(of, chip(on)) <= seconds * (1 + 1e-12)), "faster than a roofline"
    assert np.all(cost.energy >= 0)
    assert np.all(cost.energy <= chip(on).power.cap * seconds * (1 + 1e-12)), "more power than the board may draw"
    if of.kind not in COLLECTIVES:
        flops, moved = (np.where(seconds > 0, value, 0.0) for value in work(of))
        assert np.allclose(cost.flops, flops, rtol=1e-12, atol=0), "FLOPs are counted differently"
        assert np.all(cost.bytes >= moved * (1 - 1e-12)), "fewer bytes than must move"
        assert np.all(cost.bytes <= seconds * chip(on).memory.bandwidth * (1 + 1e-12)), "bytes faster than the memory"


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("stack", STACKS)
def test_no_shape_is_faster_than_a_roofline_and_parts_add_up(stack: str, kind: str) -> None:
    @given(st.sampled_from([(on, fmt) for on in CHIPS for fmt in formats(on, stack, kind)]), dims_of(kind))
    def search(which: tuple[str, str], dims: dict[str, Any]) -> None:
        on, fmt = which
        check(make(kind, on, fmt, dims), on, stack)

    search()


@pytest.mark.parametrize("on", CHIPS)
@pytest.mark.parametrize("stack", STACKS)
def test_hundreds_of_random_shapes_of_every_format_obey_too(on: str, stack: str) -> None:
    rng = np.random.default_rng(20261129)
    for where, under, kind, fmt in SETS:
        if (where, under) == (on, stack):
            check(make(kind, on, fmt, random_dims(kind, rng, 300)), on, stack)


# More of a resource is never slower


def better(on: str) -> dict[str, Chip]:
    """A chip with more of one thing, by name."""
    base = chip(on)
    faster = {fmt: rate * 1.3 for fmt, rate in base.matrix.items()}
    changed = {
        "bandwidth": with_value(base, ("memory", "bandwidth"), base.memory.bandwidth * 1.37),
        "matrix": with_value(base, ("matrix",), faster),
        "clock": with_value(base, ("clock",), base.clock * 1.21),
        "capacity": with_value(base, ("memory", "capacity"), base.memory.capacity * 2),
    }
    for link in ("scale_up", "scale_out"):
        path = ("links", link, "bandwidth")
        changed[link] = with_value(base, path, base.links[link].bandwidth * 1.61)
        changed[f"{link} latency"] = with_value(base, ("links", link, "latency"), base.links[link].latency / 2)
    return changed


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("stack", STACKS)
def test_more_bandwidth_peak_clock_or_link_is_never_slower(stack: str, kind: str) -> None:
    @given(st.sampled_from([(on, fmt) for on in CHIPS for fmt in formats(on, stack, kind)]), dims_of(kind))
    def search(which: tuple[str, str], dims: dict[str, Any]) -> None:
        on, fmt = which
        of = make(kind, on, fmt, dims)
        before = priced(of, on, stack).seconds
        for name, machine in better(on).items():
            assert np.all(priced(of, machine, stack).seconds <= before * (1 + 1e-12)), name

    search()


@pytest.mark.parametrize("on", CHIPS)
@pytest.mark.parametrize("stack", STACKS)
def test_more_is_never_slower_for_hundreds_of_random_shapes(on: str, stack: str) -> None:
    rng = np.random.default_rng(7)
    machines = better(on)
    for where, under, kind, fmt in SETS:
        if (where, under) == (on, stack):
            of = make(kind, on, fmt, random_dims(kind, rng, 60))
            before = priced(of, on, stack).seconds
            for name, machine in machines.items():
                assert np.all(priced(of, machine, stack).seconds <= before * (1 + 1e-12)), (kind, fmt, name)


# Counterfactuals: a loss vanishes with its cause

WITH_MEMORY = tuple(kind for kind in KINDS if kind not in COLLECTIVES)


def parts_on(of: Kernel, machine: Chip, stack: str) -> tuple[dict[str, Array], Array]:
    cost = priced(of, machine, stack)
    return dict(cost.parts), cost.seconds


@pytest.mark.parametrize("kind", WITH_MEMORY)
@pytest.mark.parametrize("stack", STACKS)
def test_infinite_bandwidth_leaves_no_memory_and_no_bandwidth_part(stack: str, kind: str) -> None:
    rng = np.random.default_rng(3)
    for on in CHIPS:
        endless = with_value(chip(on), ("memory", "bandwidth"), array(1e30))
        for fmt in formats(on, stack, kind):
            parts, seconds = parts_on(make(kind, on, fmt, random_dims(kind, rng, 200)), endless, stack)
            for name in ("memory", "bandwidth"):
                assert np.all(parts.get(name, array(0.0)) <= 1e-12 * seconds + 1e-16), (on, fmt, name)


@pytest.mark.parametrize("kind", [kind for kind in WITH_MEMORY if kind != "elementwise"])
@pytest.mark.parametrize("stack", STACKS)
def test_infinite_peak_leaves_no_compute_and_no_clock_part(stack: str, kind: str) -> None:
    rng = np.random.default_rng(4)
    for on in CHIPS:
        endless = with_value(chip(on), ("matrix",), {fmt: array(1e33) for fmt in chip(on).matrix})
        for fmt in formats(on, stack, kind):
            parts, seconds = parts_on(make(kind, on, fmt, random_dims(kind, rng, 200)), endless, stack)
            for name in ("compute", "quantization", "occupancy", "imbalance", "clock"):
                assert np.all(parts.get(name, array(0.0)) <= 1e-9 * seconds + 1e-16), (on, fmt, name)


def one_tile(fmt: str, rows: int, columns: int) -> Gemm:
    """Hopper's constants with a menu of one tile and no split-K, so that the choice is forced."""
    constants = chip(H100).generation.kernels["vllm"]["gemm"][fmt]
    assert isinstance(constants, Gemm)
    return constants.model_copy(update={"tiles": ((rows, columns),), "split": None, "granule": 64})


@given(
    st.sampled_from([(64, 64), (64, 128), (128, 128), (128, 256)]),
    st.integers(1, 64),
    st.integers(1, 64),
    st.integers(1, 128),
    st.sampled_from(["bf16", "fp8"]),
)
def test_whole_tiles_leave_no_quantization(
    tile: tuple[int, int], rows: int, columns: int, depth: int, fmt: str
) -> None:
    of = gemm(tile[0] * rows, tile[1] * columns, 64 * depth, weight=fmt)
    seconds, parts = gemm_time(of, chip(H100), one_tile(fmt, *tile))
    assert one(parts["quantization"]) <= 1e-12 * one(seconds)


@given(
    st.sampled_from([(64, 128), (128, 256)]),
    st.integers(1, 2000),
    st.integers(1, 2000),
    st.integers(1, 4000),
)
def test_tiles_that_do_not_divide_cost_their_padding(tile: tuple[int, int], m: int, n: int, k: int) -> None:
    """On a chip of one core and endless bandwidth, compute and quantization are the padded FLOPs at peak."""
    single = with_value(with_value(chip(H100), ("cores",), array(1.0)), ("memory", "bandwidth"), array(1e30))
    _, parts = gemm_time(gemm(m, n, k), single, one_tile("bf16", *tile))
    padded = [-(-size // step) * step for size, step in ((m, tile[0]), (n, tile[1]), (k, 64))]
    expected = 2 * np.prod(np.array(padded, float)) / one(single.matrix["bf16"])
    assert one(parts["compute"] + parts["quantization"]) == pytest.approx(expected, rel=1e-12)


@given(st.integers(1, 6), st.integers(1, 100), st.sampled_from([11, 12, 33, 44, 66, 132]))
def test_tiles_that_fill_all_cores_leave_no_occupancy(waves: int, depth: int, across: int) -> None:
    of = gemm(128 * across, 128 * (132 // across) * waves, 64 * depth)
    seconds, parts = gemm_time(of, chip(H100), one_tile("bf16", 128, 128))
    assert one(parts["occupancy"]) <= 1e-12 * one(seconds)
    _, fewer = gemm_time(gemm(128, 128, 64 * depth), chip(H100), one_tile("bf16", 128, 128))
    assert one(fewer["occupancy"]) > 0, "one tile on 132 cores leaves 131 without work"


@pytest.mark.parametrize("on", CHIPS)
def test_enough_sequences_and_heads_leave_no_occupancy_in_decode_attention(on: str) -> None:
    cores = one(chip(on).cores)
    for sequences, heads_, kv in [(cores, 8, 1), (cores, 64, 8), (16 * cores, 32, 8)]:
        assert one(priced(generation(sequences, 4096, heads_, kv, on=on), on).parts["occupancy"]) == 0.0
    endless = with_value(chip(on), ("memory", "bandwidth"), array(1e30))
    assert one(priced(generation(1, 64, 64, 1, on=on), endless).parts["occupancy"]) > 0, (
        "one block leaves the rest idle"
    )


def test_rows_spread_over_experts_leave_half_a_tile_an_expert_unfilled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(experts_module, "EXPERT_TILES", (64,))
    tokens, experts, top_k = 1 << 16, 128, 8  # every expert is touched and gets 4096 rows, 64 tiles of 64
    assert one(distinct_experts(array(tokens), array(experts), array(top_k), array(0.0))) == experts
    whole = priced(routed(tokens, experts, top_k, hidden=4096, width=1536, skew=0.0))
    ragged = priced(routed(tokens + 64, experts, top_k, hidden=4000, width=1500, skew=0.0))
    assert one(whole.parts["quantization"]) == pytest.approx(0.5 / 64 * one(whole.parts["compute"]), rel=1e-9)
    assert one(ragged.parts["quantization"]) > 1e-3 * one(ragged.seconds)


@pytest.mark.parametrize("stack", STACKS)
def test_one_expert_rank_waits_for_nobody(stack: str) -> None:
    tokens = np.array([1.0, 64.0, 5000.0])
    assert np.all(priced(routed(tokens, ranks=1), stack=stack).parts["imbalance"] == 0)
    spread = priced(routed(tokens, ranks=8, apart=8), stack=stack)
    assert np.all(spread.parts["imbalance"] >= 0)
    assert np.all(imbalance(tokens, array(1.0)) == 1.0)


def test_a_perfect_stack_has_no_losses_at_all() -> None:
    """On `ideal` a product is compute and memory at their peaks, and nothing else."""
    rng = np.random.default_rng(5)
    for kind in ("gemm", "generation_attention", "mla_generation", "context_attention", "mla_context"):
        parts, seconds = parts_on(make(kind, H100, "bf16", random_dims(kind, rng, 200)), chip(H100), "ideal")
        losses = sum((part for name, part in parts.items() if name not in ("compute", "memory")), array(0.0))
        assert np.all(losses <= 1e-12 * seconds), kind


# Nothing costs nothing


NOTHING: dict[str, list[dict[str, Any]]] = {
    "gemm": [{"m": 0, "n": 4096, "k": 4096}, {"m": 0, "n": 4096, "k": 4096, "batch": 128}],
    "generation_attention": [{"sequences": 0, "context": 8192, "heads": 64, "kv_heads": 8}],
    "mla_generation": [{"sequences": 0, "context": 8192}],
    "context_attention": [
        {"requests": 0, "tokens": 100},
        {"requests": 1, "tokens": 0},
        {"requests": 4, "tokens": 0, "prefix": 900},
    ],
    "experts": [{"tokens": 0}, {"tokens": 0, "ranks": 8, "apart": 8}],
    "elementwise": [{"tokens": 0, "bytes": 1000}],
    "all_reduce": [{"size": 0, "ranks": 8}, {"size": 0, "ranks": 64}],
}
NOTHING |= {"mla_context": NOTHING["context_attention"], "all_to_all": NOTHING["all_reduce"]}


def everything(cost: Cost) -> dict[str, Array]:
    rest = {"flops": cost.flops, "bytes": cost.bytes, "link bytes": cost.link_bytes, "energy": cost.energy}
    return {"seconds": cost.seconds, **cost.parts, **rest}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("on", CHIPS)
def test_zero_tokens_cost_exactly_nothing_launch_included(on: str, kind: str) -> None:
    for stack in STACKS:
        for fmt in formats(on, stack, kind):
            for dims in NOTHING[kind]:
                for name, value in everything(priced(make(kind, on, fmt, dims), on, stack)).items():
                    assert one(value) == 0.0, (stack, fmt, dims, name)


@pytest.mark.parametrize("kind", KINDS)
def test_zero_tokens_cost_nothing_under_a_power_cap_either(kind: str) -> None:
    capped = with_value(chip(H100), ("power", "cap"), array(300.0))
    for dims in NOTHING[kind]:
        for name, value in everything(priced(make(kind, H100, "bf16", dims), capped)).items():
            assert one(value) == 0.0, (dims, name)


@pytest.mark.parametrize("watts", [250.0, 400.0, 600.0])
@pytest.mark.parametrize("kind", KINDS)
def test_a_power_cap_is_kept_and_slows_a_kernel_no_more_than_slowing_everything_would(kind: str, watts: float) -> None:
    power = chip(H100).power
    capped = with_value(chip(H100), ("power", "cap"), array(watts))
    dims = {name: np.maximum(value, 1.0) for name, value in random_dims(kind, np.random.default_rng(6), 200).items()}
    of = make(kind, H100, "bf16", dims)
    free, slow = priced(of), priced(of, capped)
    assert np.all(slow.energy <= watts * slow.seconds * (1 + 1e-12))
    parts = sum(slow.parts.values(), array(0.0))
    assert np.all(np.abs(parts - slow.seconds) <= TIGHT * slow.seconds)
    assert np.all(slow.seconds >= free.seconds)
    most = one(
        (power.cap - power.active) / (watts - power.active)
    )  # at this share of its speed any kernel keeps the cap
    worst = float(np.max(slow.seconds[free.seconds > 0] / free.seconds[free.seconds > 0]))
    assert worst <= most * (1 + 1e-12), f"{worst:.1f} times slower where {most:.1f} would do"


@pytest.mark.parametrize("kind", COLLECTIVES)
@pytest.mark.parametrize("on", CHIPS)
def test_a_group_of_one_costs_exactly_nothing(on: str, kind: str) -> None:
    sizes = np.array([0.0, 1.0, 1e6, 1e12])
    for stack in STACKS:
        for name, value in everything(priced(collective(kind, sizes, 1), on, stack)).items():
            assert np.all(value == 0.0), (stack, name)


def test_a_slow_link_rules_where_a_ring_crosses_it() -> None:
    """Sixteen ranks on two nodes: the network card of 50 GB/s, not NVLink, sets the time."""
    size = 1e9
    near, far = (one(priced(collective("all_reduce", size, ranks), stack="ideal").seconds) for ranks in (8, 16))
    assert far - near >= size / 8 / 50e9
    assert far > 1.5 * near


# The expected number of experts that a batch touches


@pytest.mark.parametrize(
    ("batch", "expected"), [(1, 2.000), (2, 3.500), (3, 4.625), (4, 5.469), (8, 7.199), (16, 7.920)]
)
def test_mixtral_touches_as_many_experts_as_counted_by_hand(batch: int, expected: float) -> None:
    found = one(distinct_experts(array(batch), array(8), array(2), array(0.0)))
    assert found == pytest.approx(expected, abs=5e-4)
    assert found == pytest.approx(8 * (1 - (6 / 8) ** batch), rel=1e-12)


@given(st.integers(0, 10_000), st.sampled_from([(8, 2), (128, 4), (128, 8), (256, 8), (64, 6)]), skews)
def test_a_batch_touches_no_more_experts_than_there_are_or_than_it_chooses(
    tokens: int, shape: tuple[int, int], skew: float
) -> None:
    experts, top_k = shape
    found = one(distinct_experts(array(tokens), array(experts), array(top_k), array(skew)))
    assert 0 <= found <= min(experts, tokens * top_k) * (1 + 1e-12)


@pytest.mark.parametrize("shape", [(8, 2), (16, 4), (128, 4), (256, 8)])
@pytest.mark.parametrize("skew", [0.0, 0.6, 1.2])
def test_one_token_touches_exactly_the_experts_it_chooses(shape: tuple[int, int], skew: float) -> None:
    experts, top_k = shape
    assert one(distinct_experts(array(1), array(experts), array(top_k), array(skew))) == pytest.approx(top_k, rel=1e-9)


def touched_by_playing(tokens: int, experts: int, top_k: int, skew: float, rounds: int) -> float:
    """Tokens draw `top_k` different experts each by popularity; how many were drawn at all, on average."""
    rng = np.random.default_rng(17)
    popularity = -skew * np.log(np.arange(1, experts + 1))
    seen = []
    for _ in range(rounds):
        scores = popularity + rng.gumbel(size=(tokens, experts))  # the k largest are a draw without replacement
        seen.append(np.unique(np.argpartition(-scores, top_k - 1, axis=1)[:, :top_k]).size)
    return float(np.mean(seen))


@pytest.mark.parametrize("shape", [(8, 2), (128, 4), (128, 8), (256, 8)])
@pytest.mark.parametrize(("skew", "tolerance"), [(0.0, 0.02), (0.6, 0.04), (1.2, 0.09)])
def test_skewed_popularity_agrees_with_playing_it(shape: tuple[int, int], skew: float, tolerance: float) -> None:
    for tokens in (2, 8, 32, 128):
        played = touched_by_playing(tokens, *shape, skew, rounds=150)
        found = one(distinct_experts(array(tokens), array(shape[0]), array(shape[1]), array(skew)))
        assert found == pytest.approx(played, rel=tolerance), tokens


@given(st.integers(2, 4096), st.sampled_from([0.3, 0.8, 1.2, 2.0]))
def test_unpopular_experts_rest_so_skew_touches_fewer(tokens: int, skew: float) -> None:
    even, skewed = (one(distinct_experts(array(tokens), array(128), array(8), array(s))) for s in (0.0, skew))
    assert skewed <= even * (1 + 1e-12)


def test_the_busiest_rank_has_more_than_the_mean_and_at_most_twice_or_all_of_it() -> None:
    rows = np.geomspace(1, 1e7, 50)
    for ranks in (2, 8, 64):
        factor = imbalance(rows, array(ranks))
        assert np.all(factor >= 1) and np.all(factor <= min(ranks, 2))
        assert np.all(np.diff(factor) <= 1e-12), "more rows even out"


# The soft maximum


def norm(x: float, y: float, p: float) -> float:
    """The definition, with the larger one factored out so that nothing overflows."""
    top, low = max(x, y), min(x, y)
    return 0.0 if top == 0 else float(top * (1 + (low / top) ** p) ** (1 / p))


times = st.one_of(st.just(0.0), st.floats(1e-9, 1e-1))
exponents = st.sampled_from([1.0, 1.5, 2.0, 2.11, 3.4, 4.0, 4.99, 8.0, 12.9, 16.0, 64.0])


@given(times, times, exponents)
def test_the_soft_maximum_is_the_norm_of_its_definition(x: float, y: float, p: float) -> None:
    found = one(soft_maximum(array(x), array(y), p))
    if p >= 16:
        assert found == max(x, y)  # counts as perfect
    else:
        assert found == pytest.approx(norm(x, y, p), rel=1e-12, abs=1e-300)
    assert found >= max(x, y) * (1 - 1e-15)
    assert found <= max(x, y) * 2 ** (1 / p) * (1 + 1e-12)


@given(times, times, st.floats(1.0, 3.0), exponents)
def test_the_soft_maximum_grows_with_either_time(x: float, y: float, factor: float, p: float) -> None:
    at, more = (one(soft_maximum(array(first), array(y), p)) for first in (x, x * factor))
    assert at <= more * (1 + 1e-15)
    assert one(soft_maximum(array(y), array(x), p)) == pytest.approx(at, rel=1e-15)


def test_the_soft_maximum_leaves_its_arguments_alone() -> None:
    for p in (1.0, 1.5, 2.0, 4.0, 8.0, 3.3, 16.0):
        x, y = array([1.0, 2.0]), array([3.0, 1.0])
        soft_maximum(x, y, p)
        assert list(x) == [1.0, 2.0] and list(y) == [3.0, 1.0], p


# Facts that any model of these machines must show


def test_a_single_row_is_bound_by_bytes_and_256_rows_cost_more() -> None:
    lone, many = (priced(gemm(m, 8192, 8192)) for m in (1, 256))
    moved = 8192 * 8192 * 2 / 3.35e12
    assert one(lone.parts["memory"]) == pytest.approx(moved, rel=0.01)
    assert one(lone.parts["compute"]) < 0.01 * moved
    assert one(many.seconds) > one(lone.seconds)


def test_narrow_weights_read_fewer_bytes() -> None:
    by_format = {fmt: one(priced(gemm(1, 8192, 8192, weight=fmt)).bytes) for fmt in ("bf16", "fp8", "mxfp4")}
    assert by_format["fp8"] == pytest.approx(by_format["bf16"] / 2, rel=1e-3)
    assert by_format["mxfp4"] == pytest.approx(by_format["bf16"] * 4.25 / 16, rel=1e-3)


def test_more_rows_are_never_faster() -> None:
    rows = np.unique(np.geomspace(1, 1e5, 400).astype(int)).astype(float)
    for on, stack, kind, fmt in SETS:
        if kind == "gemm":
            seconds = priced(gemm(rows, 8192, 4096, weight=fmt, on=on), on, stack).seconds
            assert np.all(np.diff(seconds) >= -1e-12 * seconds[1:]), (on, stack, fmt)


@pytest.mark.parametrize("on", CHIPS)
def test_one_more_token_in_thousands_costs_no_jump(on: str) -> None:
    """Tokens choose at random: where the mean expert just fills its tiles, some need one more and some do not."""
    tokens = np.arange(8000.0, 8400.0)  # 128 experts, 4 a token: 256 rows each at 8192
    seconds = priced(routed(tokens, 128, 4, 2880, 2880, skew=0.0, on=on), on).seconds
    steps = np.diff(seconds) / seconds[1:]
    assert steps.max() < 0.03, f"{steps.max():.0%} more from {tokens[steps.argmax()]:.0f} tokens to the next"


def test_a_longer_cache_is_never_faster() -> None:
    context = np.unique(np.geomspace(1, 1e6, 500).astype(int)).astype(float)
    makers: dict[str, Callable[..., Kernel]] = {
        "generation_attention": lambda **rest: generation(4, context, 64, 8, **rest),
        "mla_generation": lambda **rest: latent_generation(4, context, 128, **rest),
    }
    for on, stack, kind, fmt in SETS:
        if kind in makers:
            seconds = priced(makers[kind](kv=fmt, on=on), on, stack).seconds
            assert np.all(np.diff(seconds) >= -1e-12 * seconds[1:]), (on, stack, kind, fmt)


def test_a_missing_constant_is_refused_with_what_exists() -> None:
    generation_ = chip(H100).generation
    bare = replace(chip(H100), generation=replace(generation_, kernels={"vllm": {"gemm": {}}}))
    with pytest.raises(Unsuited, match=r"hopper.*no gemm constants"):
        priced(gemm(1, 64, 64), bare)
    with pytest.raises(Unsuited, match="no experts constants of stack 'vllm'"):
        priced(routed(1), bare)


@pytest.mark.parametrize("stack", STACKS)
def test_the_splits_of_attention_that_are_left_out_are_never_the_fastest(
    stack: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One point at a time, so that as many as possible are left out, against the whole menu at once."""
    rng = np.random.default_rng(11)
    dims = random_dims("generation_attention", rng, 300)
    few = [
        one(priced(generation(**{k: v[[i]] for k, v in dims.items()}), chip(H100), stack).seconds) for i in range(300)
    ]
    monkeypatch.setattr(
        attention_module._Generation,
        "_candidates",
        lambda self: [1.0, *(float(count) for count in ATTENTION_SPLITS if 1 < count <= self.c.splits)],
    )
    assert priced(generation(**dims), chip(H100), stack).seconds.tolist() == few
