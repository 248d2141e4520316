"""Measured mixers with a state, and small kernels: the gated delta rule, convolutions, quantisers."""

from collections.abc import Iterator

import numpy as np

from archsim.arrays import Array, array
from archsim.mapping.plan import Kernel
from archsim.units import format_named
from archsim.validation.database import Table, Tables, parts
from archsim.validation.measured import Flags, Measured, half

BF16, FP8, FP32 = format_named("bf16"), format_named("fp8"), format_named("fp32")
MILLI = 1e-3
WIDE = 2.0  # bytes of an activation
CHUNK = 64.0  # tokens of a chunk of the delta rule


def states(data: Tables, chip: str, stack: str, version: str | None = None) -> Iterator[Measured]:
    """The gated delta rule: updates of decode and scans of prompts."""
    table = data.table(chip, "linear_attention", stack, "gdn", version)
    if table is None:
        return
    for (source,), rows in parts(table, "kernel_source"):
        if "delta_rule" in source:
            kernel = _scan(rows) if "chunk" in source else _update(rows)
            yield _measured(kernel.kind.replace("_", " "), chip, stack, source, rows, kernel)


def _heads(table: Table) -> tuple[Array, Array, dict[str, Array]]:
    """Value heads, key channels, and the sizes that both state kernels have."""
    heads, keys = table.number("num_v_heads"), table.number("num_k_heads") * table.number("head_k_dim")
    value = table.number("head_v_dim")
    moved = WIDE * (2.0 * value + 2.0 + 2.0 * keys / heads)
    elements = table.number("head_k_dim") * value
    return heads, value, {"heads": heads, "elements": elements, "exponentials": array(1.0), "bytes": moved}


def _update(table: Table) -> Kernel:
    _, _, sizes = _heads(table)
    dims = {"sequences": table.number("batch_size"), "queries": array(1.0), **sizes, "work": 7.0 * sizes["elements"]}
    return Kernel("state", "state_update", "attention", dims, FP32, BF16, "bf16", ())


def _scan(table: Table) -> Kernel:
    _, value, sizes = _heads(table)
    inside = 3.0 * CHUNK * table.number("head_k_dim") + 2.0 * CHUNK * value + CHUNK * CHUNK / 3.0
    dims = {
        "requests": table.number("batch_size"),
        "tokens": table.number("num_tokens"),
        "prefix": array(0.0),
        **sizes,
        "work": inside + 6.0 * sizes["elements"],
        "chunk": array(CHUNK),
        "serial": array(1.0),
        "vector": array(0.0),
    }
    return Kernel("state", "state_scan", "attention", dims, FP32, BF16, "bf16", ())


def small(data: Tables, chip: str, stack: str, version: str | None = None) -> Iterator[Measured]:
    """Convolutions of state mixers, and the scaling of activations to fp8."""
    for name in ("gdn", "mamba2"):
        table = data.table(chip, "linear_attention", stack, name, version)
        for (source,), rows in parts(table, "kernel_source") if table is not None else ():
            if source.startswith("causal_conv1d"):
                yield _measured("convolution", chip, stack, source, rows, _convolution(rows, name))
    table = data.table(chip, "quantize", stack, "scale_matrix", version)
    if table is not None and stack != "sglang":  # SGLang's table times a chain of PyTorch operators, 30 B an element
        yield _scaled(chip, stack, table)


def _convolution(table: Table, name: str) -> Kernel:
    if name == "gdn":
        values = table.number("num_v_heads") * table.number("head_v_dim")
        channels = 2.0 * table.number("num_k_heads") * table.number("head_k_dim") + values
    else:
        inner = table.number("nheads") * table.number("head_dim")
        channels = inner + 2.0 * table.number("n_groups") * table.number("d_state")
    kept = 2.0 * (table.number("d_conv") - 1.0) * WIDE * channels * table.number("batch_size")
    tokens = table.number("num_tokens")
    dims = {"tokens": tokens, "bytes": 2.0 * WIDE * channels + kept / tokens}
    return Kernel("convolution", "elementwise", "attention", dims, BF16, BF16, "bf16", ())


def _measured(family: str, chip: str, stack: str, source: str, table: Table, kernel: Kernel) -> Measured:
    shape = {
        "batch": table.number("batch_size"),
        "length": table.number("seq_len"),
        "model width": table.number("d_model"),
        "heads": table.number("num_v_heads" if "num_v_heads" in table.columns else "nheads"),
    }
    return Measured(
        family=family,
        chip=chip,
        stack=stack,
        version=table.version,
        format="fp32" if kernel.weight is FP32 else "bf16",
        kernels=(kernel,),
        seconds=table.number("latency") * MILLI,
        shape=shape,
        regime=np.where(shape["length"] <= 1.0, "decode", "prompt"),
        fitted=half(chip, shape),
        flags={"one by one": (shape["batch"] > 1) & (family == "convolution") & (stack == "trtllm")},
        variant=source,
        constants=stack,
    )


def _scaled(chip: str, stack: str, table: Table) -> Measured:
    shape = {"m": table.number("m"), "k": table.number("k")}
    sizes = {"tokens": shape["m"], "bytes": shape["k"] * (BF16.bytes + FP8.bytes)}
    narrow: Flags = shape["k"] < 256
    return Measured(
        family="quantiser",
        chip=chip,
        stack=stack,
        version=table.version,
        format="fp8",
        kernels=(Kernel("quantiser", "elementwise", "ffn", sizes, BF16, FP8, "bf16", ()),),
        seconds=table.number("latency") * MILLI,
        shape=shape,
        regime=np.where(shape["m"] <= 256, "m <= 256", "m > 256"),
        fitted=half(chip, shape),
        flags={"narrow": narrow},
        constants=stack,
    )
