"""What a kernel asks of a machine without shared caches: FLOPs, and bytes of weights, KV cache and activations.

Weights and cache lie in the memory that is streamed; activations travel on chip. Shared by the kinds `near-memory` and
`lpu`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from archsim.arrays import Array, array, where_positive
from archsim.chip.model import Chip
from archsim.engine.cost import Cost, chain
from archsim.engine.experts import load
from archsim.engine.gpu import exponentials, kernel_flops
from archsim.engine.power import Counts, throttled
from archsim.engine.state import indexer_bytes, state_scan_bytes, state_update_bytes
from archsim.mapping.plan import Kernel

WIDE = 2.0  # bytes of an activation on chip
HALVES = ("o", "out_proj", "down", "experts")  # operators at which half a layer ends
COLLECTIVES = ("all_reduce", "all_to_all")
ATTENTION = ("generation_attention", "mla_generation", "context_attention", "mla_context")


ZERO = array(0.0)


@dataclass(frozen=True, eq=False)
class Demand:
    """FLOPs (those of the mean and of the busiest rank), bytes, exponentials, and the shape of products.

    `received` and `sent` are bytes of activations into and out of the cores; `columns` and `depth` the N and K of
    products over all of a batch, or 0; `run` the bytes of one token in one KV head; `present` is 0 where there is no
    work. `written` are bytes of the KV cache that new tokens add, where a machine pays for them.
    """

    flops: Array
    busiest: Array
    weights: Array
    cache: Array
    received: Array
    sent: Array
    exponentials: Array
    columns: Array
    depth: Array
    run: Array
    heads: Array
    present: Array
    written: Array = field(default_factory=lambda: ZERO)

    @property
    def kept(self) -> Array:
        """Bytes of the KV cache that are read and written."""
        return self.cache + self.written


def demand(kernel: Kernel, reuse: bool = True) -> Demand:
    """What a kernel of one rank asks for; `reuse` tells whether tokens share a pass over an expert's weights."""
    flops, waves = kernel_flops(kernel), exponentials(kernel)
    nothing = Demand(flops, flops, ZERO, ZERO, ZERO, ZERO, waves, ZERO, ZERO, array(1.0), array(1.0), array(1.0))
    if kernel.kind == "gemm":
        return _product(kernel, nothing)
    if kernel.kind == "experts":
        return _experts(kernel, nothing, reuse)
    if kernel.kind in ATTENTION:
        return _attention(kernel, nothing)
    return _rest(kernel, nothing)


def _product(kernel: Kernel, d: Demand) -> Demand:
    m, n, k = (kernel.dims[name] for name in ("m", "n", "k"))
    batch = kernel.dims.get("batch", array(1.0))
    return replace(
        d,
        weights=batch * n * k * kernel.weight.bytes,
        received=batch * m * k * kernel.input.bytes,
        sent=batch * m * n * WIDE,
        columns=batch * n,
        depth=k,
        present=m,
    )


def _experts(kernel: Kernel, d: Demand, reuse: bool) -> Demand:
    dims = kernel.dims
    now = load(dims)
    one = dims["matrices"] * dims["hidden"] * dims["width"]
    passes = now["touched"] if reuse else now["rows"]
    moved = WIDE * now["present"] * dims["hidden"]
    return replace(
        d,
        busiest=2.0 * now["rows"] * one,
        weights=passes * one * kernel.weight.bytes,
        received=moved,
        sent=moved,
        columns=dims["width"],
        depth=dims["hidden"],
        present=dims["tokens"],
    )


def _attention(kernel: Kernel, d: Demand) -> Demand:
    """The cache that is seen, once; queries in and results out."""
    dims = kernel.dims
    width, value = dims["width"], dims["value"]
    latent = kernel.kind == "mla_generation"
    heads = array(1.0) if latent else dims["kv_heads"]
    run = (width if latent else width + value) * kernel.weight.bytes
    if kernel.kind in ("context_attention", "mla_context"):
        rows, present = dims["tokens"], dims["tokens"]
        seen = dims["tokens"] + np.minimum(dims["prefix"], dims["requests"] * dims["window"])
    else:
        rows, present = dims["sequences"] * dims["queries"], dims["sequences"]
        seen = dims["tokens"]
    return replace(
        d,
        cache=seen * heads * run,
        received=WIDE * rows * dims["heads"] * width,
        sent=WIDE * rows * dims["heads"] * value,
        run=run,
        heads=heads,
        present=present,
    )


def appended(kernel: Kernel, d: Demand) -> Array:
    """Bytes of the KV cache that new tokens write; 0 of a prompt's latents, which its kernel has expanded already."""
    dims = kernel.dims
    if kernel.kind in ("generation_attention", "mla_generation"):
        return dims["sequences"] * dims["queries"] * d.heads * d.run
    return dims["tokens"] * d.heads * d.run if kernel.kind == "context_attention" else ZERO


def _rest(kernel: Kernel, d: Demand) -> Demand:
    """States, index keys, and small kernels, which only pass activations on."""
    dims = kernel.dims
    if kernel.kind == "elementwise":
        moved = dims["tokens"] * dims["bytes"]
        return replace(d, received=moved / 2.0, sent=moved / 2.0, present=dims["tokens"])
    sizes = {"state_update": state_update_bytes, "state_scan": state_scan_bytes, "indexer": indexer_bytes}
    present = dims[{"state_update": "sequences", "state_scan": "tokens", "indexer": "rows"}[kernel.kind]]
    return replace(d, cache=sizes[kernel.kind](kernel), present=present)


def halves(kernel: Kernel, dependent: float, routed: float) -> float:
    """The fixed time that a kernel carries: half a layer's where half a layer ends, and what routed experts add."""
    share = dependent / 2.0 if kernel.name in HALVES else 0.0
    return share + (routed if kernel.kind == "experts" else 0.0)


def finished(levels: Mapping[str, Array], fixed: Array, d: Demand, kernel: Kernel, chip: Chip) -> Cost:
    """The cost of the longest of `levels` plus `fixed`, under the power cap; exactly 0 where there is no work."""
    longest = next(iter(levels.values()))
    for level in levels.values():
        longest = np.maximum(longest, level)
    parts = {name: where_positive(d.present, part) for name, part in chain(levels, fixed).items()}
    seconds = where_positive(d.present, longest + fixed)
    energy, moved = chip.energy, where_positive(d.present, d.weights + d.kept)
    flop = energy.flop.get(kernel.compute, next(iter(energy.flop.values())))
    base = energy.byte * moved + energy.exponential * d.exponentials
    return throttled(seconds, parts, Counts(d.flops, moved, base, flop * d.flops), chip)
