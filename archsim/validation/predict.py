"""What the engine says of measured kernels, under the conditions of their measurement.

Every time is the engine's own (`archsim.engine.gpu.timed`); nothing here is a second formula. What differs from a
running model is a fact of how the tables were made, and exists here only:

- weights and caches that the chip's shared cache still holds from the repetition before (`resident`);
- the kernel that quantises activations, inside the rows of quantised products (`QUANTISERS`);
- ranks that start together, so that no all-reduce waits for the last (`skew` 1);
- small kernels back to back in a graph, without the gaps that an engine has between them (`BACK_TO_BACK`).
"""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from archsim.arrays import Array, array, cached
from archsim.chip.constants import AllReduce, Constants, Elementwise
from archsim.chip.model import Chip, Generation
from archsim.engine.elementwise import elementwise
from archsim.engine.gpu import kernel_flops, timed
from archsim.mapping.plan import Kernel
from archsim.validation.measured import Flags, Measured
from archsim.workload.operators import FLOPS

ROTATED = 5.0  # copies of the weights that the timing of products walks through
OUTPUT = 2.0  # bytes of a result
BACK_TO_BACK = 1.9e-6  # s, fixed time of a small kernel in a graph of nothing else
SWEEP = {"experts": 0.5, "generation": 0.8}  # share of the cache that one pass over the operands can reuse
SMALL = 0.5  # of the cache, for activations that a small kernel read the last time
MONOLITHIC = 0.97  # the same of a cache that is one piece; half of one in two partitions
EDGE = {"gemm": 8.0, "experts": 6.0, "generation": 8.0}  # how sharply reuse ends with the size

# (fixed time, bytes of memory traffic an element, bytes a row) of the kernels that quantise activations inside the rows
# of quantised products, fitted with these on H100 (wgmma) and B200 (tcgen05). Where the database times the kernels
# alone they agree: TensorRT-LLM's maximum and scaling as PyTorch operators, vLLM's one kernel.
Passes = tuple[str, float, float]
QUANTISERS: Mapping[tuple[str, str], Mapping[str, Passes]] = {
    ("vllm", "fp8"): {"wgmma": ("2.0 us", 5.7, 20e3), "tcgen05": ("3.0 us", 11.8, 40e3)},
    ("sglang", "fp8"): {"wgmma": ("2.5 us", 5.7, 0.7e3), "tcgen05": ("3.2 us", 5.3, 1.4e3)},
    ("trtllm", "fp8"): {"wgmma": ("9.6 us", 7.6, 0.0), "tcgen05": ("11.5 us", 8.2, 5e3)},
    ("sglang", "fp8_block"): {"wgmma": ("1.2 us", 3.2, 3.8e3), "tcgen05": ("4.0 us", 3.1, 2.4e3)},
    ("trtllm", "fp8_block"): {"wgmma": ("1.5 us", 6.0, 0.0), "tcgen05": ("3.5 us", 3.1, 1.9e3)},
    ("vllm", "nvfp4"): {"tcgen05": ("4.4 us", 2.3, 2.6e3)},
    ("sglang", "nvfp4"): {"tcgen05": ("2.2 us", 3.6, 3.5e3)},
    ("trtllm", "nvfp4"): {"tcgen05": ("4.1 us", 3.3, 3.9e3)},
}


def predicted(table: Measured, chip: Chip) -> Array:
    """Seconds (n,) of every row of a measured table on `chip`. Raises KeyError where it has no constants for it."""
    bench = still(chip)
    total = array(0.0)
    for kernel in table.kernels:
        total = total + _seconds(kernel, bench, table)
    return np.broadcast_to(total, table.seconds.shape)


def below_roofline(table: Measured, chip: Chip) -> Flags:
    """Rows (n,) that beat their FLOPs at the peak rate of their format; memory can be beaten, by a cache."""
    kernel = table.kernels[0]
    if kernel.kind not in FLOPS:
        return np.zeros(table.seconds.shape, np.bool_)
    peak = chip.matrix.get(kernel.weight.base, chip.matrix[kernel.compute])
    return np.asarray(kernel_flops(kernel) / np.maximum(peak, chip.matrix[kernel.compute]) > table.seconds)


def _seconds(kernel: Kernel, chip: Chip, table: Measured) -> Array:
    styles = QUANTISERS.get((table.constants, table.format), {})
    passes = styles.get(chip.generation.matrix_style) or next(iter(styles.values()), None)
    if kernel.name == "quantiser" and len(table.kernels) > 1 and passes is not None:
        return _quantised(kernel, chip, table, passes)
    share = resident(kernel, chip)
    if kernel.kind == "elementwise":
        held = _held(kernel.dims["tokens"] * kernel.dims["bytes"], chip.cache * SMALL, EDGE["gemm"])
        kernel = replace(kernel, dims={**kernel.dims, "bytes": cached(kernel.dims["bytes"], held)})
    elif share is not None:
        kernel = replace(kernel, dims={**kernel.dims, "resident": share})
    return timed(kernel, chip, table.constants)[0]


def _quantised(kernel: Kernel, chip: Chip, table: Measured, passes: Passes) -> Array:
    """Time of the quantiser inside the rows of products: passes over the activations, and a fixed time."""
    fixed, element, row = passes
    each = {**kernel.dims, "bytes": table.shape["k"] * element + row}
    source = "the rows of quantised products"
    constants = Elementwise.model_validate({"fixed": fixed, "memory": 1.0, "fitted_on": source})
    return elementwise(replace(kernel, dims=each), chip, constants)[0]


def still(chip: Chip) -> Chip:
    """The chip as a micro-benchmark sees it: ranks that start together, small kernels back to back."""
    kernels = {
        stack: {
            family: {name: _still(constants) for name, constants in sets.items()} for family, sets in families.items()
        }
        for stack, families in chip.generation.kernels.items()
    }
    generation = chip.generation
    return replace(chip, generation=Generation(generation.name, generation.matrix_style, kernels, generation.sources))


def _still(constants: Constants) -> Constants:
    if isinstance(constants, AllReduce):
        return constants.model_copy(update={"skew": 1.0})
    if isinstance(constants, Elementwise) and constants.fixed > 0.0:
        return constants.model_copy(update={"fixed": BACK_TO_BACK})
    return constants


def resident(kernel: Kernel, chip: Chip) -> Array | None:
    """Share (n,) of a kernel's operands that the cache holds from the repetition before; None where none can be."""
    d = kernel.dims
    if kernel.kind == "gemm":
        weights = d["n"] * d["k"] * kernel.weight.bytes
        rows = d["m"] * (d["k"] * kernel.input.bytes + d["n"] * OUTPUT)
        copies = np.minimum(ROTATED, np.ceil(chip.cache / weights))
        part = 0.5 if chip.partitioned else MONOLITHIC
        return _held(rows + weights * copies, part * chip.cache, EDGE["gemm"])
    if kernel.kind in ("generation_attention", "mla_generation"):
        heads = 1.0 if kernel.kind == "mla_generation" else d["kv_heads"]
        width = d["width"] if kernel.kind == "mla_generation" else d["width"] + d["value"]
        small = OUTPUT * d["sequences"] * d["heads"] * (d["width"] + d["value"])
        size = d["tokens"] * heads * width * kernel.weight.bytes + small
        return _held(size, SWEEP["generation"] * chip.cache, EDGE["generation"])
    if kernel.kind == "experts":
        size = d["known_touched"] * d["matrices"] * d["hidden"] * d["width"] * kernel.weight.bytes
        return _held(size, SWEEP["experts"] * chip.cache, EDGE["experts"])
    return None


def _held(size: Array, room: Array, edge: float) -> Array:
    """1 well below `room` bytes, 0 well above."""
    return np.asarray(1.0 / (1.0 + (size / room) ** edge))
