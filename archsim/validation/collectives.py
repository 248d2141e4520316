"""Measured collectives: the engines' own all-reduce, NCCL, and the all-to-all of experts."""

from collections.abc import Iterator

import numpy as np

from archsim.arrays import Array, array
from archsim.mapping.plan import Kernel
from archsim.units import Format, format_named
from archsim.validation.database import Table, Tables, parts
from archsim.validation.measured import Flags, Labels, Measured, half

BF16, FP8 = format_named("bf16"), format_named("fp8")
MILLI, MICRO = 1e-3, 1e-6
KIB = 1024.0
PER_NODE = {"nvidia/gb200": 4.0, "nvidia/gb300": 4.0}
MULTIPROCESSORS = 20.0  # given to DeepEP's normal kernels, as engines do; the tables sweep it
PHASES = {"all_gather": 1.0, "reduce_scatter": 1.0, "all_reduce": 2.0}
COPIES = {("nvidia/h200-sxm", "0.5.6.post2")}  # DeepEP tables that repeat those of H100


def all_reduces(data: Tables, chip: str, stack: str, version: str | None = None) -> Iterator[Measured]:
    """An engine's own all-reduce; `message_size` counts bf16 elements."""
    table = data.table(chip, "comm", stack, "custom_allreduce", version)
    if table is None:
        return
    source = table.words("kernel_source")
    size = table.number("message_size") * BF16.bytes
    ranks = table.number("num_gpus")
    yield _collective(
        "custom all-reduce",
        chip,
        stack,
        "bf16",
        table,
        _reduced(size, ranks, ""),
        table.number("latency") * MILLI,
        {
            "eager": np.char.endswith(source, "eager") & (chip != "intel/arc-pro-b60"),
            "across nodes": (np.char.find(source, "MNNVL") >= 0) | (ranks > 8) | _beyond(chip, ranks),
            "half rate": np.full(ranks.shape, chip == "nvidia/gb200" and stack == "vllm") & (ranks == 2),
        },
    )


def _beyond(chip: str, ranks: Array) -> Flags:
    return np.asarray(ranks > PER_NODE.get(chip, 8.0))


def nccl(data: Tables, chip: str, stack: str, version: str | None = None) -> Iterator[Measured]:
    """NCCL's all-reduce, all-gather and reduce-scatter, in bf16."""
    table = data.table(chip, "comm", "nccl", "nccl", version) if stack == "nccl" else None
    if table is None:
        return
    for (operation, fmt), rows in parts(table, "op_name", "nccl_dtype"):
        if operation not in PHASES or fmt != "bf16":
            continue
        size = rows.number("message_size") * BF16.bytes
        kernel = _reduced(size, rows.number("num_gpus"), "nccl", PHASES[operation])
        family = f"nccl {operation.replace('_', '-')}"
        yield _collective(family, chip, stack, fmt, rows, kernel, rows.number("latency") * MILLI, {})


def _reduced(size: Array, ranks: Array, library: str, phases: float = 2.0) -> Kernel:
    dims = {"bytes": size, "ranks": ranks, "phases": array(phases)}
    return Kernel("all-reduce", "all_reduce", "attention", dims, BF16, BF16, "bf16", (), library)


def all_to_alls(data: Tables, chip: str, stack: str, version: str | None = None) -> Iterator[Measured]:
    """NCCL's all-to-all; DeepEP's dispatch and combine, normal and low latency."""
    if stack == "nccl":
        yield from _nccl_all_to_all(data, chip, version)
        return
    low = data.table(chip, "comm", stack, "wideep_deepep_ll", version)
    if low is not None:
        yield from _deepep(chip, stack, "low latency", low, "dispatch_avg_t_us", "combine_avg_t_us")
    normal = data.table(chip, "comm", stack, "wideep_deepep_normal", version)
    if normal is not None:
        rows = normal.where(normal.number("dispatch_sms") == MULTIPROCESSORS)
        yield from _deepep(chip, stack, "normal", rows, "dispatch_transmit_us", "combine_transmit_us")
    modules = data.table(chip, "comm", stack, "moe_a2a", version)
    if modules is not None:
        yield from _modules(chip, stack, modules)


def _nccl_all_to_all(data: Tables, chip: str, version: str | None) -> Iterator[Measured]:
    table = data.table(chip, "comm", "nccl", "nccl", version)
    if table is None:
        return
    rows = table.where((table.words("op_name") == "alltoall") & (table.words("nccl_dtype") == "bf16"))
    if rows.rows:
        kernel = _exchanged(rows.number("message_size") * BF16.bytes, rows.number("num_gpus"), BF16, "nccl")
        family = "all-to-all, NCCL"
        yield _collective(family, chip, "nccl", "bf16", rows, kernel, rows.number("latency") * MILLI, {})


def _deepep(chip: str, stack: str, mode: str, table: Table, *columns: str) -> Iterator[Measured]:
    """Dispatch in fp8 and combine in bf16; every rank sends its tokens to their experts' ranks."""
    ranks = table.number("node_num") * PER_NODE.get(chip, 8.0)
    flags = {"copied": np.full(ranks.shape, (chip, table.version) in COPIES)}
    for fmt, column in zip((FP8, BF16), columns, strict=True):
        size = table.number("num_token") * _copies(mode, table.number("num_topk"), ranks)
        kernel = _exchanged(size * table.number("hidden_size") * fmt.bytes, ranks, fmt, _library(mode))
        seconds = table.number(column) * MICRO
        family = f"all-to-all, DeepEP {mode}"
        yield _collective(family, chip, stack, fmt.name, table, kernel, seconds, flags)


def _modules(chip: str, stack: str, table: Table) -> Iterator[Measured]:
    for (backend, phase, fmt), rows in parts(table, "comm_backend", "phase", "comm_dtype"):
        mode = "low latency" if backend.endswith("_ll") else "normal" if backend.endswith("_ht") else ""
        if not mode:
            continue
        sent = BF16 if phase == "combine" or fmt == "bf16" else FP8 if fmt == "default" else format_named(fmt)
        ranks = rows.number("ep_size")
        size = rows.number("num_tokens") * _copies(mode, rows.number("topk"), ranks)
        kernel = _exchanged(size * rows.number("hidden_size") * sent.bytes, ranks, sent, _library(mode))
        family = f"all-to-all, DeepEP {mode}"
        host = {"host-bound": np.ones(ranks.shape, np.bool_)}  # DeepEP's own benchmark times the kernel at a sixth
        yield _collective(family, chip, stack, sent.name, rows, kernel, rows.number("latency") * MICRO, host)


def _copies(mode: str, top_k: Array, ranks: Array) -> Array:
    """Copies of a token that leave: one an expert, or with the normal kernels one a rank that has any of them."""
    if mode == "low latency":
        return top_k
    return np.asarray(ranks * (1.0 - (1.0 - 1.0 / ranks) ** top_k))


def _library(mode: str) -> str:
    return "normal" if mode == "normal" else ""


def _exchanged(size: Array, ranks: Array, fmt: Format, library: str = "") -> Kernel:
    dims = {"bytes": size, "ranks": ranks}
    return Kernel("exchange", "all_to_all", "experts", dims, BF16, fmt, "bf16", (), library)


def _collective(
    family: str,
    chip: str,
    stack: str,
    fmt: str,
    table: Table,
    kernel: Kernel,
    seconds: Array,
    flags: dict[str, Flags],
) -> Measured:
    shape = {"bytes": np.round(kernel.dims["bytes"]), "ranks": kernel.dims["ranks"]}
    return Measured(
        family=family,
        chip=chip,
        stack=stack,
        version=table.version,
        format=fmt,
        kernels=(kernel,),
        seconds=seconds,
        shape=shape,
        regime=_regime(shape["bytes"]),
        fitted=half(chip, shape),
        flags=flags,
        constants="vllm" if stack == "nccl" else stack,
    )


def _regime(size: Array) -> Labels:
    return np.select([size <= 256 * KIB, size <= 8 * KIB * KIB], ["<= 256 KiB", "<= 8 MiB"], "> 8 MiB")
