"""Kind `gpu`: kernels in waves over SMs with a shared cache and memory. Prices any kernel of a plan."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from archsim.arrays import Array, array, blocked
from archsim.chip.constants import AllReduce, AllToAll, Constants, ContextAttention, Elementwise, Experts, Gemm, GenerationAttention
from archsim.chip.model import Chip
from archsim.engine.attention import context, context_bytes, generation, generation_bytes
from archsim.engine.collective import all_reduce, all_to_all, link_bytes
from archsim.engine.cost import Cost
from archsim.engine.elementwise import elementwise, elementwise_bytes
from archsim.engine.experts import experts, experts_bytes
from archsim.engine.gemm import gemm, gemm_bytes
from archsim.mapping.plan import Kernel
from archsim.workload.operators import context_flops, experts_flops, gemm_flops, generation_flops

Timing = Callable[[Kernel, Chip, Any], tuple[Array, dict[str, Array]]]

FORMS: dict[str, tuple[Timing, type[Constants]]] = {
    "gemm": (gemm, Gemm),
    "generation_attention": (generation, GenerationAttention),
    "mla_generation": (generation, GenerationAttention),
    "context_attention": (context, ContextAttention),
    "mla_context": (context, ContextAttention),
    "experts": (experts, Experts),
    "elementwise": (elementwise, Elementwise),
    "all_reduce": (all_reduce, AllReduce),
    "all_to_all": (all_to_all, AllToAll),
}

BYTES: dict[str, Callable[[Kernel], Array]] = {
    "gemm": gemm_bytes,
    "generation_attention": generation_bytes,
    "mla_generation": generation_bytes,
    "context_attention": context_bytes,
    "mla_context": context_bytes,
    "experts": experts_bytes,
    "elementwise": elementwise_bytes,
}


def price(kernel: Kernel, chip: Chip, stack: str) -> Cost:
    """The cost of one kernel on one chip with the constants of a kernel stack.

    Raises KeyError when the chip's generation has no constants for it.
    """
    timing, as_class = FORMS[kernel.kind]
    constants = chip.generation.constants(stack, kernel.kind, _formats(kernel), as_class)
    seconds, parts = timing(kernel, chip, constants)
    if kernel.kind in ("all_reduce", "all_to_all"):
        return Cost(seconds, parts, link_bytes=link_bytes(kernel), energy=chip.power.active * seconds)
    flop = chip.energy.flop.get(kernel.compute, chip.energy.flop["bf16"])
    rates = {"byte": chip.energy.byte, "flop": flop, "exponential": chip.energy.exponential}
    limits = {"active": chip.power.active, "cap": chip.power.cap, "seconds": seconds}
    done = blocked(lambda x: _work(replace(kernel, dims=x)), {**kernel.dims, **rates, **limits})
    return Cost(seconds, parts, done[0], done[1], energy=done[2])


def _formats(kernel: Kernel) -> tuple[str, ...]:
    """Names under which constants may stand: the weights' or cache's own format, its base, the compute format."""
    names = [kernel.weight.name]
    if kernel.weight.bits < 16 and kernel.compute == "bf16":
        names.append("mxfp4" if kernel.weight.bits == 4 else "bf16")
    return (*names, kernel.weight.base, kernel.compute)


def kernel_flops(kernel: Kernel) -> Array:
    """FLOPs of one rank, two a multiply-add, padding not counted."""
    d = kernel.dims
    if kernel.kind == "gemm":
        return gemm_flops(d)
    if kernel.kind in ("generation_attention", "mla_generation"):
        return generation_flops(d)
    if kernel.kind in ("context_attention", "mla_context"):
        return context_flops(d)
    if kernel.kind == "experts":
        return experts_flops(d) / d["expert_ranks"]
    return array(0.0)


def _exponentials(kernel: Kernel) -> Array:
    d = kernel.dims
    if kernel.kind in ("generation_attention", "mla_generation"):
        return d["tokens"] * d["queries"] * d["heads"]
    if kernel.kind in ("context_attention", "mla_context"):
        return d["pairs"] * d["heads"]
    return array(0.0)


def _work(kernel: Kernel) -> tuple[Array, Array, Array]:
    """FLOPs, bytes and joules: a floor while any kernel runs, every byte, FLOP and exponential; capped by the board."""
    x = kernel.dims
    flops, moved = kernel_flops(kernel), BYTES[kernel.kind](kernel)
    energy = x["active"] * x["seconds"] + x["byte"] * moved + x["flop"] * flops + x["exponential"] * _exponentials(kernel)
    return flops, moved, np.minimum(energy, x["cap"] * x["seconds"])
