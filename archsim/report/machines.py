"""Near-memory chips and LPUs: their fixed times as facts, and the formulas of their kernels."""

from math import ceil

from archsim.arrays import Array, array
from archsim.chip.constants import Constants, Lpu, Machine, NearMemory
from archsim.chip.memory import pages, streaming, turnaround
from archsim.chip.model import Chip
from archsim.engine.demand import ATTENTION, demand
from archsim.engine.near_memory import apart, moving, read_share
from archsim.mapping.plan import Kernel
from archsim.report.formulas import Term, named
from archsim.report.point import single
from archsim.report.words import counted, percent
from archsim.units import show

GROUPS = (8, 16, 64)  # chips of collectives that are shown


def machine_facts(chip: Chip) -> list[tuple[str, str]]:
    """The dependent time of a layer by stack, the schedule's period, and the least time of a collective."""
    facts: list[tuple[str, str]] = []
    for stack, families in chip.generation.kernels.items():
        for found in (one for sets in families.values() for one in sets.values() if isinstance(one, Machine)):
            if stack == "ideal":
                continue
            facts.append(("dependent time of a layer", _time(found.dependent_time)))
            facts.append(("added by routed experts", _time(found.routed_time)))
            facts.append(("sustained for weights", f"{percent(found.memory)} of what the memory can stream"))
            if isinstance(found, Lpu):
                facts.append(("least period of a layer", _time(found.period)))
                facts.append(("the same with experts", _time(found.routed_period)))
    return facts + (_collectives(chip) if facts else [])


def _time(seconds: float) -> str:
    return show(seconds, "time") if seconds else ""


def _collectives(chip: Chip) -> list[tuple[str, str]]:
    link = chip.links.get("scale_up")
    if link is None:
        return []
    sizes = [size for size in GROUPS if size <= link.domain]
    times = [(size, 2.0 * single(_exchange(chip, size))) for size in sizes]
    return [("all-reduce, without bytes", ", ".join(f"{show(t, 'time')} of {counted(n, 'chip')}" for n, t in times))]


def _exchange(chip: Chip, ranks: float) -> Array:
    link = chip.links["scale_up"]
    return link.latency_among(array(ranks)) if chip.kind == "lpu" else apart(link, array(ranks))


# Formulas


def bandwidth_terms(
    kernel: Kernel, chip: Chip, constants: Constants | None, moved: Term, bandwidth: Term
) -> list[Term]:
    """Bytes at the bandwidth that is sustained for them: padded to tiles (LPU), or as the DRAM allows (near-memory)."""
    if isinstance(constants, Lpu):
        d = demand(kernel, constants.reuse)
        if single(d.weights) == 0.0:
            return [moved / (bandwidth * named("stream share", constants.stream))]
        padded = moved
        for name, size in (("columns", single(d.columns)), ("depth", single(d.depth))):
            whole = ceil(size / constants.tile) * constants.tile
            if size and whole != size:
                padded = padded * (named(f"{name} in tiles", whole) / named(name, size))
        return [padded / (bandwidth * named("sustained share", constants.memory))]
    if isinstance(constants, NearMemory):
        share = named("sustained share", constants.memory)
        if chip.memory.dram is None:
            return [moved / (bandwidth * share)]
        t = chip.memory.dram.timings
        found = [moved / (bandwidth * share * named("DRAM streams", single(streaming(t))))]
        if kernel.kind in ATTENTION:
            d = moving(kernel)
            paged = share * named("DRAM pages", single(pages(t, d.run * constants.page)))
            turned = single(turnaround(t, read_share(d)))
            found.append(moved / (bandwidth * paged * named("reads and writes", turned)))
        return found
    return []


def fixed_terms(kernel: Kernel, constants: Constants | None) -> list[Term]:
    """Half of a layer's dependent time, with what routed experts add."""
    if not isinstance(constants, Machine):
        return []
    half = named("dependent time of a layer", constants.dependent_time, "time") / 2
    if kernel.kind == "experts" and constants.routed_time:
        return [half + named("routed experts", constants.routed_time, "time")]
    return [half]


def latency_terms(kernel: Kernel, chip: Chip) -> list[Term]:
    """Exchanges of a collective at the latency to the farthest of its group."""
    if chip.kind == "gpu" or "scale_up" not in chip.links:
        return []
    count = (
        single(kernel.dims["exchanges"]) if "exchanges" in kernel.dims else 2.0 if kernel.kind == "all_reduce" else 1.0
    )
    latency = single(_exchange(chip, single(kernel.dims["ranks"])))
    return [named("exchanges", count) * named("latency", latency, "time")]
