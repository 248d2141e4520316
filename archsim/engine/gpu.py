"""Kind `gpu`: kernels in waves over SMs with a shared cache and memory. Prices any kernel of a plan."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from archsim.arrays import Array, Inputs, array
from archsim.chip.constants import (
    AllReduce,
    AllToAll,
    Constants,
    ContextAttention,
    Elementwise,
    Experts,
    Gemm,
    GenerationAttention,
    Indexer,
    StateScan,
    StateUpdate,
)
from archsim.chip.model import Chip
from archsim.engine.attention import context, context_bytes, generation, generation_bytes, unpacked
from archsim.engine.collective import all_reduce, all_to_all, beyond, link_bytes
from archsim.engine.cost import Cost
from archsim.engine.elementwise import elementwise, elementwise_bytes
from archsim.engine.experts import experts, experts_bytes
from archsim.engine.gemm import gemm, gemm_bytes
from archsim.engine.power import Counts, counted, throttled
from archsim.engine.state import (
    indexer,
    indexer_bytes,
    state_exponentials,
    state_scan,
    state_scan_bytes,
    state_update,
    state_update_bytes,
)
from archsim.mapping.plan import Kernel
from archsim.workload.operators import FLOPS, context_flops, experts_flops, gemm_flops, generation_flops

Flags = np.typing.NDArray[np.bool_]
Timed = tuple[Array, dict[str, Array]]
Timing = Callable[[Kernel, Chip, Any], Timed]

GATED = 3.0  # matrices of an expert with a gate

FORMS: dict[str, tuple[Timing, type[Constants]]] = {
    "gemm": (gemm, Gemm),
    "generation_attention": (generation, GenerationAttention),
    "mla_generation": (generation, GenerationAttention),
    "context_attention": (context, ContextAttention),
    "mla_context": (context, ContextAttention),
    "experts": (experts, Experts),
    "elementwise": (elementwise, Elementwise),
    "state_update": (state_update, StateUpdate),
    "state_scan": (state_scan, StateScan),
    "indexer": (indexer, Indexer),
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
    "state_update": state_update_bytes,
    "state_scan": state_scan_bytes,
    "indexer": indexer_bytes,
}


def price(kernel: Kernel, chip: Chip, stack: str) -> Cost:
    """The cost of one kernel on one chip with the constants of a kernel stack.

    Raises Unsuited when the chip's generation has no constants for it.
    """
    seconds, parts = timed(kernel, chip, stack)
    if kernel.kind in ("all_reduce", "all_to_all"):
        return Cost(seconds, parts, link_bytes=link_bytes(kernel), energy=chip.power.active * seconds)
    return throttled(seconds, parts, work(kernel, chip), chip)


def timed(kernel: Kernel, chip: Chip, stack: str) -> Timed:
    """Seconds and parts of a kernel, and of the variant that its library picks wherever the case for it is given."""
    timing, as_class = FORMS[kernel.kind]
    names, generation, stack = _formats(kernel), chip.generation, kernel.stack or stack
    constants = generation.constants(stack, kernel.kind, names, as_class)
    timing = _shown(timing, kernel.shown)
    for where, case in _cases(kernel, constants):
        other = generation.variant(stack, kernel.kind, names, case) if where.any() else None
        if other is None:
            continue
        seconds, parts = timing(kernel, chip, other)
        if where.all():
            return seconds, parts
        rest, own = timing(kernel, chip, constants)
        return np.where(where, seconds, rest), {name: np.where(where, part, own[name]) for name, part in parts.items()}
    return timing(kernel, chip, constants)


def _shown(timing: Timing, share: float) -> Timing:
    """A timing of whose fixed part only a share shows: launches overlap in a graph, a longer kernel hides it."""
    if share == 1.0:
        return timing

    def shown(kernel: Kernel, chip: Chip, constants: Constants) -> Timed:
        seconds, parts = timing(kernel, chip, constants)
        hidden = (1.0 - share) * parts["fixed"]
        return seconds - hidden, {**parts, "fixed": parts["fixed"] - hidden}

    return shown


def _cases(kernel: Kernel, constants: Constants) -> Iterator[tuple[Flags, str]]:
    """Where a library would pick another kernel, and the name of that variant; the first that exists counts."""
    if isinstance(constants, GenerationAttention):
        yield unpacked(kernel, constants), "unpacked"
    if isinstance(constants, Experts):
        yield kernel.dims["matrices"] < GATED, "ungated"
        yield kernel.dims["expert_ranks"] <= 1.0, "sliced"
    if isinstance(constants, AllReduce):
        yield beyond(kernel, constants), "nccl"
    if isinstance(constants, AllToAll) and "prompt" in kernel.dims:
        yield kernel.dims["prompt"] > 0, "normal"


def _formats(kernel: Kernel) -> tuple[str, ...]:
    """Names under which constants may stand: the weights' or cache's own format, its base, the compute format."""
    if kernel.library:
        return (kernel.library,)
    names = [kernel.weight.name]
    if kernel.weight.base == "int4":
        names.append("int4")
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
    if kernel.kind in ("state_update", "state_scan", "indexer"):
        return FLOPS[kernel.kind](d)
    return array(0.0)


def exponentials(kernel: Kernel) -> Array:
    """Exponentials of one rank: one a score of attention; the decays of a state."""
    d = kernel.dims
    if kernel.kind in ("state_update", "state_scan"):
        return state_exponentials(d)
    if kernel.kind in ("generation_attention", "mla_generation"):
        return d["tokens"] * d["queries"] * d["heads"]
    if kernel.kind in ("context_attention", "mla_context"):
        return d["pairs"] * d["heads"]
    return array(0.0)


def work(kernel: Kernel, chip: Chip) -> Counts:
    """What a kernel does and the energy that takes."""

    def done(dims: Inputs) -> tuple[Array, Array, Array]:
        part = replace(kernel, dims=dims)
        return kernel_flops(part), BYTES[kernel.kind](part), exponentials(part)

    return counted(done, kernel.dims, chip, kernel.compute)
