"""Measured attention: generation and context, grouped-query and latent."""

from collections.abc import Iterator

import numpy as np

from archsim.arrays import Array, array
from archsim.mapping.plan import Kernel
from archsim.units import format_named
from archsim.validation.database import Table, Tables, parts
from archsim.validation.measured import Flags, Labels, Measured, half

BF16 = format_named("bf16")
MILLI = 1e-3
WIDE = 1e12  # tokens of a window that is none
LATENT, ROPE, NOPE = 512.0, 64.0, 128.0  # of DeepSeek's latent attention, the only one in the tables

# Kernels that a stack's constants do not describe: libraries fall back on them for some heads.
OTHERS = ("triton", "flashinfer", "vllm_triton_attn", "vllm_flash_attn_fa4", "torch_flow_flashinfer",
          "vllm_flashinfer_trtllmdecode")  # fmt: skip
OWN = {  # where one of them is the stack's own kernel after all
    ("generation_attention", "vllm_flashinfer_trtllmdecode"),
}
ON_WORKSTATION = ("nvidia/l40s", "nvidia/rtx-pro-6000-server")
ABSORBED = ("nvidia/h100-sxm", "nvidia/h200-sxm")  # where SGLang's context MLA runs in the absorbed form


def generation(data: Tables, chip: str, stack: str, version: str | None = None) -> Iterator[Measured]:
    """One new token a sequence; the cache holds isl + step tokens."""
    table = data.table(chip, "attention", stack, "generation_attention", version)
    if table is None:
        return
    for (fmt, source), rows in parts(table, "kv_cache_dtype", "kernel_source"):
        yield _generation(chip, stack, fmt, source, rows)


def _generation(chip: str, stack: str, fmt: str, source: str, table: Table) -> Measured:
    shape, length = _shape(table, table.number("isl") + table.number("step"))
    window = _window(table)
    seen = np.minimum(length, window)
    dims = {
        "sequences": shape["batch"],
        "queries": array(1.0),
        "tokens": shape["batch"] * seen,
        "length": seen,
        "heads": shape["heads"],
        "kv_heads": shape["kv heads"],
        "width": shape["width"],
        "value": shape["width"],
    }
    kernel = Kernel("attention", "generation_attention", "attention", dims, format_named(fmt), BF16, "bf16", ())
    return Measured(
        family="generation attention",
        chip=chip,
        stack=stack,
        version=table.version,
        format=fmt,
        kernels=(kernel,),
        seconds=table.number("latency") * MILLI,
        shape=shape,
        regime=np.where(window < WIDE, "window", _grouped(shape["heads"] / shape["kv heads"], length)),
        fitted=half(chip, shape),
        flags={"another kernel": _other(kernel.kind, source, chip, length)},
        variant=source,
        constants=stack,
    )


def _grouped(group: Array, length: Array) -> Labels:
    return np.select([length <= 256.0, group <= 1.0], ["length <= 256", "one query a KV head"], "grouped queries")


def context(data: Tables, chip: str, stack: str, version: str | None = None) -> Iterator[Measured]:
    """Causal attention of whole prompts."""
    table = data.table(chip, "attention", stack, "context_attention", version)
    if table is None:
        return
    for (fmt, queries, source), rows in parts(table, "kv_cache_dtype", "attn_dtype", "kernel_source"):
        yield _context(chip, stack, fmt, queries, source, rows)


def _context(chip: str, stack: str, fmt: str, queries: str, source: str, table: Table) -> Measured:
    shape, length = _shape(table, table.number("isl"))
    window = _window(table)
    dims = prompt(shape["batch"], length, window) | {
        "heads": shape["heads"],
        "kv_heads": shape["kv heads"],
        "width": shape["width"],
        "value": shape["width"],
    }
    kernel = Kernel("attention", "context_attention", "attention", dims, format_named(fmt), BF16, "bf16", ())
    mixed = fmt == "fp8" and queries == "bf16" and stack != "vllm"  # constants of these stacks are those of fp8 queries
    return Measured(
        family="context attention",
        chip=chip,
        stack=stack,
        version=table.version,
        format=f"{fmt} KV, {queries} queries" if fmt != queries else fmt,
        kernels=(kernel,),
        seconds=table.number("latency") * MILLI,
        shape=shape,
        regime=np.select([window < WIDE, length < 256.0], ["window", "length < 256"], "length >= 256"),
        fitted=half(chip, shape),
        flags={
            "one token": length <= 1.0,
            "another kernel": _other(kernel.kind, source, chip, length) | np.full(length.shape, mixed),
            "window ignored": (window < length) & (chip == "intel/arc-pro-b60"),
        },
        variant=source,
        constants=stack,
    )


def prompt(requests: Array, length: Array, window: Array) -> dict[str, Array]:
    """Sizes of `requests` prompts of `length` tokens, each token of which sees at most `window`."""
    seen = np.minimum(length, window)
    pairs = requests * (seen * (seen + 1.0) / 2.0 + (length - seen) * seen)
    return {
        "requests": requests,
        "tokens": requests * length,
        "pairs": pairs,
        "prefix": array(0.0),
        "window": window,
    }


def _shape(table: Table, length: Array) -> tuple[dict[str, Array], Array]:
    kv_heads = table.number("num_key_value_heads")
    heads = table.number("num_heads")
    shape = {
        "batch": table.number("batch_size"),
        "length": length,
        "heads": heads,
        "kv heads": np.where(kv_heads > 0, kv_heads, heads),
        "width": table.number("head_dim"),
        "window": _stated(table),
    }
    return shape, length


def _window(table: Table) -> Array:
    window = _stated(table)
    return np.where(window > 0, window, WIDE)


def _stated(table: Table) -> Array:
    """The window as tables state it: 0 for none; older ones have no such column."""
    return table.number("window_size") if "window_size" in table.columns else np.zeros(table.rows)


def _other(kind: str, source: str, chip: str, length: Array) -> Flags:
    own = source not in OTHERS or (kind, source) in OWN
    return np.full(length.shape, not own or (chip in ON_WORKSTATION and "flashinfer" in source))


def latent_generation(data: Tables, chip: str, stack: str, version: str | None = None) -> Iterator[Measured]:
    """Latent attention of new tokens, in the absorbed form: one shared head of 576."""
    table = data.table(chip, "mla", stack, "generation_mla", version)
    if table is None:
        return
    for (fmt, source), rows in parts(table, "kv_cache_dtype", "kernel_source"):
        shape = _latent_shape(rows, rows.number("isl") + rows.number("step"))
        dims = {
            "sequences": shape["batch"],
            "queries": array(1.0),
            "tokens": shape["batch"] * shape["length"],
            "length": shape["length"],
            "heads": shape["heads"],
            "width": array(LATENT + ROPE),
            "value": array(LATENT),
        }
        yield _latent("mla generation", "mla_generation", chip, stack, fmt, source, rows, shape, dims)


def latent_context(data: Tables, chip: str, stack: str, version: str | None = None) -> Iterator[Measured]:
    """Latent attention of prompts, keys and values expanded for every head."""
    table = data.table(chip, "mla", stack, "context_mla", version)
    if table is None:
        return
    for (fmt, source), rows in parts(table, "kv_cache_dtype", "kernel_source"):
        shape = _latent_shape(rows, rows.number("isl"))
        sizes = {"heads": shape["heads"], "kv_heads": shape["heads"]}
        dims = prompt(shape["batch"], shape["length"], array(WIDE)) | sizes
        dims |= {"width": array(NOPE + ROPE), "value": array(NOPE)}
        yield _latent("mla context", "mla_context", chip, stack, fmt, source, rows, shape, dims)


def _latent_shape(table: Table, length: Array) -> dict[str, Array]:
    return {"batch": table.number("batch_size"), "length": length, "heads": table.number("num_heads")}


def _latent(
    family: str,
    kind: str,
    chip: str,
    stack: str,
    fmt: str,
    source: str,
    table: Table,
    shape: dict[str, Array],
    dims: dict[str, Array],
) -> Measured:
    absorbed = kind == "mla_context" and stack == "sglang" and chip in ABSORBED
    length = shape["length"]
    return Measured(
        family=family,
        chip=chip,
        stack=stack,
        version=table.version,
        format=fmt,
        kernels=(Kernel("attention", kind, "attention", dims, format_named(fmt), BF16, "bf16", ()),),
        seconds=table.number("latency") * MILLI,
        shape=shape,
        regime=np.where(length <= 256.0, "length <= 256", "length > 256"),
        fitted=half(chip, shape),
        flags={
            "one token": (length <= 1.0) & (kind == "mla_context"),
            "absorbed form": np.full(length.shape, absorbed),
            "another kernel": np.full(length.shape, source == "triton"),
        },
        variant=source,
        constants=stack,
    )
