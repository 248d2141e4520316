"""The numbers of a scenario's chips by dotted name, and the resources that an architect adds more of."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from archsim.arrays import Array
from archsim.chip.model import Chip
from archsim.explore.axes import Field, fields_of
from archsim.explore.scenario import Scenario


@dataclass(frozen=True)
class Resource:
    """What an architect adds more of: fields that grow together, or where `less` is better, shrink."""

    name: str
    fields: tuple[str, ...]
    less: bool = False


# Fields of a chip by the resource they make up; a name that ends in a dot stands for all below it
MADE_OF: tuple[tuple[str, tuple[str, ...], bool], ...] = (
    ("memory bandwidth", ("memory.bandwidth",), False),
    ("memory capacity", ("memory.capacity",), False),
    ("matrix peak", ("matrix.",), False),
    ("vector peak", ("vector.",), False),
    ("exponentials", ("exponentials",), False),
    ("clock, with all peaks", ("clock", "matrix.", "vector."), False),
    ("cores, with all peaks", ("cores", "matrix.", "vector."), False),
    ("SRAM of a core", ("sram",), False),
    ("shared cache", ("cache",), False),
    ("network on chip", ("network",), False),
    ("memory behind, bandwidth", ("backing.bandwidth",), False),
    ("memory behind, capacity", ("backing.capacity",), False),
    ("scale-up link bandwidth", ("links.scale_up.bandwidth",), False),
    ("scale-up link latency", ("links.scale_up.latency",), True),
    ("scale-out link bandwidth", ("links.scale_out.bandwidth",), False),
    ("scale-out link latency", ("links.scale_out.latency",), True),
    ("power cap", ("power.cap",), False),
    ("idle and active power", ("power.idle", "power.active"), True),
    ("energy per byte", ("energy.byte",), True),
    ("energy per FLOP", ("energy.flop.",), True),
)
ON_CHIP = {"memory bandwidth": "SRAM bandwidth", "memory capacity": "SRAM capacity"}  # of a chip without DRAM


def chip_fields(scenario: Scenario) -> dict[str, Field]:
    """The numbers of the chips of all pools, and of the links between them, by the name that a sweep calls them.

    Those that are 0 have no share to add, and a single core no part. Prices do to a cost what is plain, the limit of
    the board is its cap, and latencies that grow with the number of chips are a table.
    """
    known = {field.name: field for field in fields_of(scenario).values()}
    skipped, chips = [], _chips(scenario)
    for prefix, chip in chips:
        reach = [f"links.{name}.latency" for name, link in chip.links.items() if link.reach]
        skipped += [f"{prefix}{name}" for name in ("price.", "power.tdp", *reach)]
    return {
        name: field
        for name, field in known.items()
        if name.startswith((*(prefix for prefix, _ in chips), "links."))
        and not name.startswith(tuple(skipped))
        and (field.now or 0.0) > field.whole
    }


def resources(scenario: Scenario) -> list[Resource]:
    """The resources of all pools that their chips have; of two pools with the pool's name first."""
    known = chip_fields(scenario)
    found = []
    for prefix, chip in _chips(scenario):
        pool = f"{prefix.split('.')[1]}: " if scenario.partner is not None else ""
        for name, parts, less in MADE_OF:
            own = [f"{prefix}{part}" for part in parts]
            names = tuple(field for field in known if any(_among(field, part) for part in own))
            label = ON_CHIP.get(name, name) if chip.kind == "lpu" else name
            if names:
                found.append(Resource(f"{pool}{label}", names, less))
    if scenario.partner is not None:
        found.append(Resource("links between the pools, bandwidth", ("links.bandwidth",)))
        found.append(Resource("links between the pools, latency", ("links.latency",), True))
    return found


def changed_values(known: Mapping[str, Field], variants: Sequence[tuple[tuple[str, ...], float]]) -> dict[str, Array]:
    """Fields with a value for the scenario as it is and then for each variant, in which some are multiplied.

    Whole numbers stay whole, and change by one at least.
    """
    touched = dict.fromkeys(name for names, _ in variants for name in names)
    values = {name: np.full(len(variants) + 1, float(known[name].now or 0.0)) for name in touched}
    for row, (names, factor) in enumerate(variants, 1):
        for name in names:
            values[name][row] = _grown(values[name][0], factor, known[name].whole)
    return values


def _grown(value: float, factor: float, whole: bool) -> float:
    if not whole:
        return value * factor
    return (
        max(round(value * factor), value + 1.0) if factor > 1.0 else max(min(round(value * factor), value - 1.0), 1.0)
    )


def _among(field: str, part: str) -> bool:
    return field.startswith(part) if part.endswith(".") else field == part


def _chips(scenario: Scenario) -> list[tuple[str, Chip]]:
    """What the fields of each pool's chip begin with, and the chip."""
    if scenario.partner is None:
        return [("chip.", scenario.chip)]
    return [(f"pools.{name}.chip.", pool.chip) for name, pool in scenario.system.pools.items()]
