"""Kind `lpu`: weights pinned in the SRAM of many chips, and a schedule that the compiler fixes clock by clock.

A layer is divided over the chips of its stage; operands stream from SRAM through matrix units, which install weights
tile by tile. There are no caches and no queues: a collective takes twice the latency to the farthest chip of the group
and its bytes on the links. What the schedule adds is a fixed time a layer, or a period that no stage undercuts; both
are calibrated, all else follows from the structure. Form and constants: `docs/machines.md`.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from archsim.arrays import Array, array, ceil_to, where_positive
from archsim.chip.constants import Lpu
from archsim.chip.model import Chip
from archsim.engine.collective import NOWHERE, link_bytes
from archsim.engine.cost import Cost
from archsim.engine.demand import COLLECTIVES, HALVES, Demand, demand, finished, halves
from archsim.mapping.place import BACKING
from archsim.mapping.plan import Kernel


def price(kernel: Kernel, chip: Chip, stack: str) -> Cost:
    """The cost of one kernel on the chips of one stage.

    Raises Unsuited when the chip's generation has no constants for the stack.
    """
    c = chip.generation.constants(stack, "lpu", ("any",), Lpu)
    if kernel.kind in COLLECTIVES:
        return _collective(kernel, chip)
    d = demand(kernel, c.reuse)
    peak, bandwidth = chip.matrix[kernel.compute], chip.memory.bandwidth
    cached = bandwidth * c.stream
    if kernel.library == BACKING and chip.backing is not None:
        cached = np.minimum(chip.backing.bandwidth, cached)
    padded = _padding(c, d)
    busiest = np.maximum(d.busiest, d.flops) * padded
    levels = {
        "compute": d.flops / peak,
        "memory": (d.weights + d.cache) / bandwidth,
        "quantization": d.flops * padded / peak,
        "imbalance": busiest / peak,
        "clock": busiest / (peak * c.matrix),
        "on_chip": np.maximum(
            (d.received + d.sent) / (bandwidth * c.stream),
            d.exponentials / (chip.exponentials * chip.clock * chip.cores),
        ),
        "bandwidth": d.weights * padded / (bandwidth * c.memory) + d.cache / cached,
    }
    return finished(levels, array(halves(kernel, c.dependent_time, c.routed_time)), d, kernel, chip)


def _padding(c: Lpu, d: Demand) -> Array:
    """Tiles of weights that matrix units install, over the weights there are."""
    sizes = (d.columns, d.depth)
    columns, depth = (np.where(s > 0, ceil_to(s, float(c.tile)) / np.maximum(s, 1.0), 1.0) for s in sizes)
    return columns * depth


def _collective(kernel: Kernel, chip: Chip) -> Cost:
    """Exchanges at the latency to the farthest chip of the group, and the bytes that each chip sends."""
    size, ranks = kernel.dims["bytes"], kernel.dims["ranks"]
    link = chip.links.get("scale_up", NOWHERE)
    active = np.where(size > 0, np.where(ranks > 1, 1.0, 0.0), 0.0)
    exchanges = kernel.dims.get("exchanges", array(2.0 if kernel.kind == "all_reduce" else 1.0))
    sent = link_bytes(kernel)
    parts = {
        "link": where_positive(active, sent / link.bandwidth),
        "link_latency": where_positive(active, exchanges * link.latency_among(ranks)),
    }
    seconds = parts["link"] + parts["link_latency"]
    return Cost(seconds, parts, link_bytes=sent, energy=chip.power.active * seconds)


def scheduled(priced: Sequence[tuple[Kernel, Cost]], chip: Chip, stack: str) -> list[tuple[Kernel, Cost]]:
    """The kernels of a block, a layer stretched to the period of the schedule: its last half waits for it."""
    c = chip.generation.constants(stack, "lpu", ("any",), Lpu)
    ends = [index for index, (kernel, _) in enumerate(priced) if kernel.name in HALVES]
    if not ends:
        return list(priced)
    routed = any(kernel.kind == "experts" for kernel, _ in priced)
    least = (c.routed_period if routed else 0.0) or c.period
    if not least:
        return list(priced)
    total = sum((cost.seconds for _, cost in priced), array(0.0))
    wait = where_positive(total, np.maximum(least * len(ends) / 2.0 - total, 0.0))
    found, last = list(priced), ends[-1]
    kernel, cost = found[last]
    parts = {**cost.parts, "fixed": cost.parts.get("fixed", 0.0) + wait}
    energy = cost.energy + chip.power.idle * wait
    found[last] = (kernel, replace(cost, seconds=cost.seconds + wait, parts=parts, energy=energy))
    return found
