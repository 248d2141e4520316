"""Measured routed experts: gated and not, balanced and with the skew of a power law, by library kernel."""

from collections.abc import Iterator
from functools import lru_cache

import numpy as np

from archsim.arrays import Array, array
from archsim.mapping.plan import Kernel
from archsim.units import format_named
from archsim.validation.database import Table, Tables, parts
from archsim.validation.measured import Flags, Measured, half

MILLI = 1e-3
SHUFFLES = 9  # fixed placements of experts on ranks, of which the median counts
COMPUTE = {"fp8_block": "fp8", "nvfp4": "fp4", "int4": "bf16", "mxfp4": "bf16", "mxfp4_mxfp8": "fp8"}
WEIGHTS = {"mxfp4_mxfp8": "mxfp4"}
INPUTS = {"int4": "bf16", "mxfp4": "bf16", "mxfp4_mxfp8": "mxfp8"}
KNOWN = ("bf16", "fp8", "fp8_block", "nvfp4", "mxfp4", "mxfp4_mxfp8", "int4")

# The library kernel that the constants of a stack describe, by a word in the name of the table's source, where a
# table holds several.
OWN = {
    ("sglang", "bf16"): {
        "nvidia/h100-sxm": "fused_moe_triton",
        "nvidia/h200-sxm": "fused_moe_triton",
        "": "trtllm_moe",
    },
    ("sglang", "fp8_block"): {"nvidia/h100-sxm": "triton", "nvidia/h200-sxm": "triton", "": "trtllm_moe"},
    ("sglang", "mxfp4"): {"": "trtllm_moe"},
    ("vllm", "bf16"): {"": "trtllmbf16experts"},
    ("vllm", "fp8"): {"": "trtllmfp8experts"},
    ("vllm", "fp8_block"): {"": "trtllmfp8expertsmonolithic"},
    ("vllm", "nvfp4"): {"": "nvfp4expertsmonolithic"},
}
CUTLASS, SLICED = "cutlass_flashinferexperts", "triton_tritonexperts"


def experts(data: Tables, chip: str, stack: str, version: str | None = None) -> Iterator[Measured]:
    """The routed experts of one layer; `num_tokens` are those of the whole expert-parallel group."""
    table = data.table(chip, "moe", stack, "moe", version)
    if table is None:
        return
    for (fmt, source), rows in parts(table, "moe_dtype", "kernel_source"):
        if fmt in KNOWN:
            sources = np.unique(table.words("kernel_source")[table.words("moe_dtype") == fmt]).tolist()
            yield _measured(chip, stack, fmt, source, sources, rows)


def _measured(chip: str, stack: str, fmt: str, source: str, sources: list[str], table: Table) -> Measured:
    columns = {
        "tokens": "num_tokens",
        "hidden": "hidden_size",
        "width": "inter_size",
        "top k": "topk",
        "experts": "num_experts",
        "tensor": "moe_tp_size",
        "ranks": "moe_ep_size",
    }
    shape = {name: table.number(column) for name, column in columns.items()}
    law = table.words("distribution")
    gated = "nongated" not in source
    kernel = _kernel(shape, _exponents(law), fmt, gated)
    group = {name: values for name, values in shape.items() if name != "tokens"}
    return Measured(
        family="experts" if gated else "experts, ungated",
        chip=chip,
        stack=stack,
        version=table.version,
        format=fmt,
        kernels=(kernel,),
        seconds=table.number("latency") * MILLI,
        shape=shape,
        regime=np.asarray(np.char.replace(law, "_", " ")),
        fitted=half(chip, group),  # groups of shapes are tuned together, so they stay on one side
        flags={
            "minimum latency": np.full(law.shape, "min_latency" in source),
            "another kernel": _other(chip, stack, fmt, source, sources, shape["ranks"]),
        },
        variant=source,
        constants=stack,
    )


def _other(chip: str, stack: str, fmt: str, source: str, sources: list[str], ranks: Array) -> Flags:
    """Rows of a kernel that the engine's constants for this stack and format do not describe."""
    if fmt == "fp8_block" and stack == "vllm" and any(CUTLASS in name for name in sources):
        sliced = ranks <= 1.0  # the constants know both: CUTLASS for whole experts, Triton for slices of them
        return ~sliced if SLICED in source else sliced if CUTLASS in source else np.ones(ranks.shape, np.bool_)
    words = OWN.get((stack, fmt), {})
    word = words.get(chip, words.get("", ""))
    known = [name for name in sources if word and word in name]
    return np.full(ranks.shape, bool(known) and source not in known)


def _exponents(law: "np.typing.NDArray[np.str_]") -> Array:
    """Exponent of the power law of every row; 0 where loads are balanced."""
    return np.array([float(name.rpartition("_")[2]) if "power" in name else 0.0 for name in law.tolist()])


def _kernel(shape: dict[str, Array], exponent: Array, fmt: str, gated: bool) -> Kernel:
    rows, touched = loads(shape["tokens"], shape["top k"], shape["experts"], shape["ranks"], exponent)
    dims = {
        "tokens": shape["tokens"],
        "top_k": shape["top k"],
        "hidden": shape["hidden"],
        "width": shape["width"] / shape["tensor"],
        "matrices": array(3.0 if gated else 2.0),
        "experts": shape["experts"] / shape["ranks"],
        "all_experts": shape["experts"],
        "expert_ranks": shape["ranks"],
        "skew": array(0.0),
        "hottest": array(1.0),
        "apart": array(1.0),
        "known_rows": rows,
        "known_touched": touched,
    }
    weight = format_named(WEIGHTS.get(fmt, fmt))
    entry = format_named(INPUTS.get(fmt, fmt))
    return Kernel("experts", "experts", "experts", dims, weight, entry, COMPUTE.get(fmt, fmt), ())


def loads(tokens: Array, top_k: Array, experts: Array, ranks: Array, exponent: Array) -> tuple[Array, Array]:
    """Rows of the busiest expert rank, and how many of its experts have any: (n,) each."""
    columns = [values.tolist() for values in (tokens, top_k, experts, ranks, exponent)]
    known = [busiest(*row) for row in zip(*columns, strict=True)]
    rows, touched = np.array(known, dtype=np.float64).T
    return rows, touched


@lru_cache(maxsize=1 << 17)
def busiest(tokens: float, top_k: float, experts: float, ranks: float, exponent: float) -> tuple[float, float]:
    """`loads` of one row."""
    chosen, each = int(tokens * top_k), int(experts)
    if exponent == 0.0:
        return chosen / ranks, float(min(chosen / ranks, experts / ranks))
    counts = spread(int(tokens), int(top_k), each, exponent)
    found = []
    for order in _orders(each):
        by_rank = counts[order].reshape(int(ranks), -1)
        hottest = by_rank[int(by_rank.sum(axis=1).argmax())]
        found.append((float(hottest.sum()), float((hottest > 0).sum())))
    return sorted(found)[SHUFFLES // 2]


@lru_cache(maxsize=64)
def _orders(size: int) -> list["np.typing.NDArray[np.intp]"]:
    generator = np.random.default_rng(0)
    return [generator.permutation(size) for _ in range(SHUFFLES)]


@lru_cache(maxsize=1 << 14)
def spread(tokens: int, top_k: int, experts: int, exponent: float) -> "np.typing.NDArray[np.int64]":
    """Tokens of each expert where popularity follows a power law, as the database draws it.

    Density x^-exponent on [1, 0.8 tokens], or on [0.01, 2] where there are fewer choices than experts; here at fixed
    quantiles, scaled to tokens x top_k, rounded, what rounding left over given to or taken from the hottest in turn.
    """
    total = tokens * top_k
    low, high = (1.0, 0.8 * tokens) if total > experts else (0.01, 2.0)
    power = 1.0 - exponent
    quantiles = (np.arange(experts) + 0.5) / experts
    sizes = np.sort(((high**power - low**power) * quantiles + low**power) ** (1.0 / power))[::-1]
    counts: np.typing.NDArray[np.int64] = np.minimum(np.round(sizes / sizes.sum() * total), tokens).astype(np.int64)
    _settled(counts, total, tokens)
    return counts


def _settled(counts: "np.typing.NDArray[np.int64]", total: int, most: int) -> None:
    """Adds to or takes from the hottest in turn until `counts` sum to `total`, none above `most`."""
    missing = total - int(counts.sum())
    step = 1 if missing > 0 else -1
    while missing:
        free = np.flatnonzero(counts < most if step > 0 else counts > 0)[: abs(missing)]
        counts[free] += step
        missing -= step * free.size
