"""Kind `near-memory`: cores that each own a slice of memory and stream it past a matrix-vector unit.

Weights are striped over the slices by columns or, where that is more even, by depth; activations are broadcast and
partial sums reduced over a network on chip. Nothing is launched. What waits for one another on chip takes a fixed time
a layer, and a collective its latency with the last column chunk of its bytes. Form and constants: `docs/machines.md`.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from archsim.arrays import Array, array, where_positive
from archsim.chip.constants import NearMemory
from archsim.chip.memory import pages, streaming, turnaround
from archsim.chip.model import Chip, Link
from archsim.engine.collective import NOWHERE, link_bytes
from archsim.engine.cost import Cost
from archsim.engine.demand import ATTENTION, COLLECTIVES, Demand, appended, demand, finished, halves
from archsim.mapping.plan import Kernel

PARTIAL = 4.0  # bytes of a partial sum
WORK = 4.0  # FLOPs of a small kernel for every two bytes that it moves
FED = ("gemm", "experts")  # products, whose column chunks a link carries while the next are worked out


def price(kernel: Kernel, chip: Chip, stack: str) -> Cost:
    """The cost of one kernel on one chip; collectives with all of their bytes, which `overlapped` then hides.

    Raises Unsuited when the chip's generation has no constants for the stack.
    """
    c = chip.generation.constants(stack, "near_memory", ("any",), NearMemory)
    if kernel.kind in COLLECTIVES:
        return _collective(kernel, chip)
    d = moving(kernel)
    levels = {
        "compute": d.flops / chip.matrix[kernel.compute],
        "memory": (d.weights + d.kept) / chip.memory.bandwidth,
        **_uneven(kernel, chip, c, d),
    }
    fixed = array(halves(kernel, c.dependent_time, c.routed_time))
    return finished(levels, fixed, d, kernel, chip)


def moving(kernel: Kernel) -> Demand:
    """What a kernel asks for, with the keys and values that new tokens write into the slices."""
    d = demand(kernel)
    return replace(d, written=appended(kernel, d))


def _uneven(kernel: Kernel, chip: Chip, c: NearMemory, d: Demand) -> dict[str, Array]:
    """The levels that depend on how a kernel is striped over cores: by columns, or by depth where that is faster."""
    options = [
        _striped(kernel, chip, c, d, by_depth) for by_depth in ((False, True) if kernel.kind == "gemm" else (False,))
    ]
    best = options[0]
    for other in options[1:]:
        faster = np.maximum.reduce(np.broadcast_arrays(*other.values())) < np.maximum.reduce(
            np.broadcast_arrays(*best.values())
        )
        best = {name: np.where(faster, other[name], level) for name, level in best.items()}
    return best


def _striped(kernel: Kernel, chip: Chip, c: NearMemory, d: Demand, by_depth: bool) -> dict[str, Array]:
    padded, uneven = _padding(chip, c, d, by_depth)
    peak, bandwidth = chip.matrix[kernel.compute], chip.memory.bandwidth
    compute = np.maximum(d.busiest, d.flops) * padded / peak
    moved = uneven * d.weights / _streamed(chip, c) + _pages_uneven(chip, c, d) * d.kept / _paged(kernel, chip, c, d)
    return {
        "quantization": d.flops * padded / peak,
        "imbalance": np.maximum(compute, (uneven * d.weights + _pages_uneven(chip, c, d) * d.kept) / bandwidth),
        "clock": compute / c.matrix,
        "on_chip": np.maximum(_network(chip, d, by_depth), _vector(kernel, chip, d)),
        "bandwidth": moved / bandwidth,
    }


def _padding(chip: Chip, c: NearMemory, d: Demand, by_depth: bool) -> tuple[Array, Array]:
    """Factors on FLOPs (both dimensions padded) and on bytes (the fullest slice over the mean)."""
    cores = chip.cores
    across = float(c.outputs) * (array(1.0) if by_depth else cores)
    along = float(c.inputs) * (cores if by_depth else array(1.0))
    columns = np.where(d.columns > 0, _whole(d.columns, across) / np.maximum(d.columns, 1.0), 1.0)
    depth = np.where(d.depth > 0, _whole(d.depth, along) / np.maximum(d.depth, 1.0), 1.0)
    return columns * depth, depth if by_depth else columns


def _whole(size: Array, multiple: Array) -> Array:
    return np.ceil(size / multiple) * multiple


def _pages_uneven(chip: Chip, c: NearMemory, d: Demand) -> Array:
    """Pages of the KV cache in the fullest slice over the mean; where there are many they even out."""
    count = np.maximum(np.ceil(d.cache / (d.run * c.page)), 1.0)
    return np.where(d.cache > 0, np.ceil(count / chip.cores) * chip.cores / count, 1.0)


def _streamed(chip: Chip, c: NearMemory) -> Array:
    """Sustained share of the bandwidth for weights."""
    return array(c.memory) if chip.memory.dram is None else c.memory * streaming(chip.memory.dram.timings)


def _paged(kernel: Kernel, chip: Chip, c: NearMemory, d: Demand) -> Array:
    """Sustained share for the KV cache, whose pages are scattered: the run of a page is `page` tokens of one head.

    The bus turns for what is written.
    """
    if chip.memory.dram is None or kernel.kind not in ATTENTION:
        return _streamed(chip, c)
    timings = chip.memory.dram.timings
    return c.memory * pages(timings, d.run * c.page) * turnaround(timings, read_share(d))


def read_share(d: Demand) -> Array:
    """Share of the traffic of the KV cache that reads it."""
    return 1.0 - d.written / np.maximum(d.kept, np.finfo(np.float64).tiny)


def _network(chip: Chip, d: Demand, by_depth: bool) -> Array:
    """Seconds of the network on chip: every core takes all inputs of its columns; or partial sums of all are added."""
    if chip.network is None:
        return array(0.0)
    others = (chip.cores - 1.0) / chip.cores
    results = d.sent * (PARTIAL / 2.0 * others if by_depth else 1.0)
    return (d.received / (chip.cores if by_depth else 1.0) + results) / chip.network


def _vector(kernel: Kernel, chip: Chip, d: Demand) -> Array:
    """Seconds of the vector units: exponentials beside the products, and all of a small kernel or a state."""
    exponentials = d.exponentials / (chip.exponentials * chip.clock * chip.cores)
    work = d.flops if kernel.kind == "state_update" else np.zeros(1)
    if kernel.kind == "elementwise":
        work = WORK * (d.received + d.sent) / 2.0
    return exponentials + work / chip.vector["fp32"]


# Collectives


def _collective(kernel: Kernel, chip: Chip) -> Cost:
    """Latency of its exchanges, and the bytes on the links: two exchanges in an all-reduce, one in others."""
    size, ranks = kernel.dims["bytes"], kernel.dims["ranks"]
    active = np.where(size > 0, np.where(ranks > 1, 1.0, 0.0), 0.0)
    exchanges = kernel.dims.get("exchanges", array(2.0 if kernel.kind == "all_reduce" else 1.0))
    latency, wire = _links(kernel, chip, ranks)
    parts = {"link": where_positive(active, wire), "link_latency": where_positive(active, exchanges * latency)}
    seconds = parts["link"] + parts["link_latency"]
    return Cost(seconds, parts, link_bytes=link_bytes(kernel), energy=chip.power.active * seconds)


def _links(kernel: Kernel, chip: Chip, ranks: Array) -> tuple[Array, Array]:
    """Latency of an exchange, and seconds of all bytes that a rank sends, those to other domains by the slower link."""
    up, out = chip.links.get("scale_up", NOWHERE), chip.links.get("scale_out", NOWHERE)
    sent = link_bytes(kernel)
    inside = np.minimum(ranks, up.domain)
    far = np.where(ranks > up.domain, sent / inside / out.bandwidth, 0.0)
    return np.where(ranks > up.domain, apart(up, inside) + out.latency, apart(up, ranks)), sent / up.bandwidth + far


def apart(link: Link, ranks: Array) -> Array:
    """Latency of an exchange (s): as the link's table of reach has it, or half way around a ring."""
    return link.latency_among(ranks) * (1.0 if link.reach else np.ceil(ranks / 2.0))


def overlapped(priced: Sequence[tuple[Kernel, Cost]], chip: Chip, stack: str) -> list[tuple[Kernel, Cost]]:
    """The kernels of a block with the bytes of collectives hidden behind the product before them.

    A product is worked out in column chunks, and the links carry each while the next is worked out: what shows of the
    bytes is the last chunk, and what the product is too short to hide.
    """
    c = chip.generation.constants(stack, "near_memory", ("any",), NearMemory)
    found: list[tuple[Kernel, Cost]] = []
    hides = array(0.0)  # seconds that the product before works, its fixed time left out
    for kernel, cost in priced:
        if kernel.kind not in COLLECTIVES:
            hides = cost.seconds - cost.parts["fixed"] if kernel.kind in FED else array(0.0)
        elif kernel.kind == "all_reduce":
            wire = cost.parts["link"]
            shows = np.maximum(wire - hides, wire / c.chunks)
            parts = {**cost.parts, "link": shows}
            seconds = shows + cost.parts["link_latency"]
            cost = replace(cost, seconds=seconds, parts=parts, energy=chip.power.active * seconds)
        found.append((kernel, cost))
    return found
