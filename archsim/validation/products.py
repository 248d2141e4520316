"""Measured matrix products: one table a stack and format, and for bf16 the mean of the stacks."""

from collections.abc import Iterator

import numpy as np

from archsim.arrays import Array, array
from archsim.mapping.plan import Kernel
from archsim.units import Format, format_named
from archsim.validation.database import STACKS, Table, Tables, parts
from archsim.validation.measured import Labels, Measured, half

MEAN = "mean of stacks"
BF16 = format_named("bf16")
INPUTS = {"int4": "bf16", "mxfp4": "bf16"}
COMPUTE = {"fp8_block": "fp8", "nvfp4": "fp4", "int4": "bf16", "mxfp4": "bf16"}
KNOWN = ("bf16", "fp8", "fp8_block", "nvfp4", "int4")
MILLI = 1e-3


def products(data: Tables, chip: str, stack: str, version: str | None = None) -> Iterator[Measured]:
    """The tables of a stack, or for `mean of stacks` the mean bf16 times of all three."""
    if stack == MEAN:
        yield from _mean(data, chip)
        return
    table = data.table(chip, "gemm", stack, "gemm", version)
    if table is None:
        return
    for (fmt,), rows in parts(table, "gemm_dtype"):
        if fmt in KNOWN:
            yield _measured(chip, stack, fmt, rows)


def _mean(data: Tables, chip: str) -> Iterator[Measured]:
    tables = [data.table(chip, "gemm", stack, "gemm") for stack in STACKS]
    found = [table.where(table.words("gemm_dtype") == "bf16") for table in tables if table is not None]
    if len(found) < len(STACKS):
        return
    keyed = [_keyed(table) for table in found]
    common = sorted(set.intersection(*(set(keys) for keys in keyed)))
    times = np.mean([[keys[shape] for shape in common] for keys in keyed], axis=0)
    m, n, k = np.array(common, dtype=np.float64).T
    columns = {"m": m, "n": n, "k": k, "latency": times}
    yield _measured(chip, MEAN, "bf16", Table(" / ".join(table.version for table in found), columns))


def _keyed(table: Table) -> dict[tuple[float, float, float], float]:
    """Time by shape; a shape measured more than once counts with its last row."""
    columns = [table.number(name).tolist() for name in ("m", "n", "k", "latency")]
    return {(m, n, k): time for m, n, k, time in zip(*columns, strict=True)}


def _measured(chip: str, stack: str, fmt: str, table: Table) -> Measured:
    shape = {name: table.number(name) for name in ("m", "n", "k")}
    large = (shape["k"] >= 51200) & (shape["n"] >= 16384) & (fmt != "bf16")
    return Measured(
        family="gemm",
        chip=chip,
        stack=stack,
        version=table.version,
        format=fmt,
        kernels=(product(shape, format_named(fmt)), *quantisers(shape, fmt)),
        seconds=table.number("latency") * MILLI,
        shape=shape,
        regime=regime(shape["m"]),
        fitted=half(chip, shape),
        flags={
            "narrow": (shape["n"] < 256) | (shape["k"] < 256),
            "host-bound": np.full(large.shape, stack == "vllm" and fmt == "fp8_block"),
            "leaves the cache": large,
        },
        constants="vllm" if stack == MEAN else stack,
    )


def product(shape: dict[str, Array], weight: Format) -> Kernel:
    """The product as an engine runs it: activations as wide as the weights, or bf16 where only weights are narrow."""
    entry = format_named(INPUTS.get(weight.name, weight.name))
    return Kernel("gemm", "gemm", "ffn", shape, weight, entry, COMPUTE.get(weight.name, weight.name), ())


def quantisers(shape: dict[str, Array], fmt: str) -> tuple[Kernel, ...]:
    """What a row of quantised products times besides: its activations, read in bf16 and written narrow."""
    if fmt in ("bf16", *INPUTS):
        return ()
    narrow = format_named(fmt)
    sizes = {"tokens": shape["m"], "bytes": shape["k"] * (BF16.bytes + narrow.bytes)}
    return (Kernel("quantiser", "elementwise", "ffn", sizes, BF16, narrow, "bf16", ()),)


def regime(rows: Array) -> Labels:
    """By rows: those of small and large decode batches, and of prompts."""
    return np.select([rows <= array(16), rows <= 256], ["m <= 16", "m 17-256"], "m > 256")
