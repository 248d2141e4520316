"""Pools of a scenario: chips of one or two kinds, the links between them, and what the second does for the first."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from pydantic import Field

from archsim.arrays import Array, array
from archsim.catalog import CatalogError, Document, Fault, StrictModel
from archsim.chip.model import Chip, with_value
from archsim.economics.terms import Terms
from archsim.fields import Bandwidth, Few, Seconds
from archsim.mapping.mapper import Mapper
from archsim.mapping.roles import Roles, Space
from archsim.mapping.runtime import Runtime, load_runtime
from archsim.mapping.split import Split
from archsim.mapping.system import Partner, Pool, System, Wire
from archsim.workload.model import Model

if TYPE_CHECKING:
    from archsim.explore.scenario import ScenarioFile

NATIVE = "scheduled"  # the runtime of an LPU


class PoolFile(StrictModel):
    """Chips of one kind."""

    chip: str
    count: Few | tuple[Few, ...] = Field(description="chips; of two pools also several numbers, to choose from")
    runtime: str | None = Field(
        None, description="of this pool; default: the scenario's, and `native` or `scheduled` for chips without kernels"
    )
    economics: Terms | None = Field(
        None,
        description="how these chips are paid for; default: as the scenario says, at the chip's own rent and capital",
    )


class WayFile(StrictModel):
    """What joins two pools, in each direction."""

    bandwidth: Bandwidth = Field(gt=0.0, description="of one chip of the pool that is named second")
    near: Bandwidth | None = Field(
        None,
        gt=0.0,
        description="of one chip of the pool that is named first; default: its scale_out, else `bandwidth`",
    )
    latency: Seconds = Field(description="one way")


@dataclass(frozen=True, eq=False)
class Pools:
    """Pools with a split for each proposal, and what the other pool is paid by."""

    system: System
    split: Split
    terms: Terms
    space: Space | None = None


def check_pools(file: "ScenarioFile", document: Document, mapper: Mapper | None) -> list[Fault]:
    """What is wrong with the pools of a scenario and the mapper's."""
    names = list(file.pools)
    roles = None if mapper is None else mapper.roles
    if len(names) > 2 or not names:
        return [document.mark("pools").fault(f"expected one or two pools, got {len(names)}")]
    faults = []
    if roles is not None and set(names) != {roles.main, roles.partner}:
        wanted = f"{roles.main!r} and {roles.partner!r}"
        faults.append(
            document.mark("pools").fault(f"mapper {file.mapper!r} needs pools {wanted}, got {', '.join(names)}")
        )
    if roles is None and mapper is not None and len(names) == 2:
        others = "attention-ffn, experts-only, prefill-decode or draft-verify"
        text = f"mapper {file.mapper!r} is about one pool; two need {others}"
        faults.append(document.mark("mapper").fault(text))
    if file.serving.disaggregation.given and (roles is None or roles.job != "prefill"):
        text = f"mapper {file.mapper!r} has no pool that prefills; `mapper: prefill-decode` has"
        faults.append(document.mark("serving", "disaggregation").fault(text))
    if len(names) == 1 and isinstance(file.pools[names[0]].count, tuple):
        faults.append(document.mark("pools", names[0], "count").fault("several numbers need two pools"))
    for name in file.links:
        if set(name.split("-to-") if "-to-" in name else _ends(name, names)) != set(names) or len(names) != 2:
            faults.append(
                document.mark("links", name).key_fault(f"{name!r} does not join two pools; join them as `A-to-B`")
            )
    return faults


def _ends(name: str, names: list[str]) -> list[str]:
    """Names of pools that a link's name is made of: `attention-ffn`."""
    return next(([a, b] for a in names for b in names if name == f"{a}-{b}"), [name])


def runtime_of(file: PoolFile, chip: Chip, scenario: Runtime, document: Document, name: str) -> Runtime:
    """The runtime of a pool: its own, the scenario's if the chip has constants for it, else that of its kind."""
    if file.runtime is not None:
        return load_runtime(file.runtime, document.mark("pools", name, "runtime"))
    if scenario.stack in chip.generation.kernels:
        return scenario
    return load_runtime(NATIVE if chip.kind == "lpu" else "native")


def paired(
    file: "ScenarioFile", document: Document, model: Model, roles: Roles, chips: Mapping[str, Chip], runtime: Runtime
) -> Pools:
    """Two pools with the proposals of their mapper. Raises CatalogError where they cannot work together."""
    _check_cover(file, document, model, roles)
    main, other = chips[roles.main], chips[roles.partner]
    out, back = _wires(file, document, roles, main, other)
    own = file.pools[roles.partner]
    partner = Partner(
        roles.partner,
        roles.job,
        roles.runs[roles.partner],
        other,
        runtime_of(own, other, runtime, document, roles.partner),
        array(_counts(own)),
        roles.pinned(other.kind),
        out,
        back,
    )
    mains = [Pool(main, array(count)) for count in _counts(file.pools[roles.main])]
    partners = [replace(partner, count=array(count)) for count in _counts(own)]
    try:
        found = roles.propose(model, mains, partners)
    except ValueError as error:
        raise CatalogError([document.mark("pools", roles.partner, "count").fault(str(error))]) from error
    split = found.split if file.split is None else file.split.split()
    first, second = (
        (found.chips, found.partner_chips)
        if file.split is None
        else (array(_counts(file.pools[roles.main])[0]), array(_counts(own)[0]))
    )
    partner = replace(partner, count=_one(second))
    pools = {roles.main: Pool(main, _one(first)), roles.partner: Pool(other, _one(second))}
    terms = own.economics or file.economics.model_copy(update={"rent": None, "capital": None})
    return Pools(System(pools, partner), split, terms, found.space if file.split is None else None)


def _counts(file: PoolFile) -> tuple[int, ...]:
    return file.count if isinstance(file.count, tuple) else (file.count,)


def _one(counts: Array) -> Array:
    """Numbers of chips of all proposals, or the only one."""
    return counts[:1] if (counts == counts[0]).all() else counts


def _check_cover(file: "ScenarioFile", document: Document, model: Model, roles: Roles) -> None:
    missing = roles.uncovered(model)
    if missing:
        listed = "; ".join(f"{role} ({', '.join(names)})" for role, names in missing.items())
        text = f"no pool of {file.mapper!r} runs these operators of {model.name}: {listed}; add their roles to `runs`"
        raise CatalogError([document.mark("mapper").fault(text)])


def _wires(file: "ScenarioFile", document: Document, roles: Roles, main: Chip, other: Chip) -> tuple[Wire, Wire]:
    """The ways from the main pool to the other and back."""
    given = {
        frozenset(_ends(name, list(file.pools)) if "-to-" not in name else name.split("-to-")): (name, link)
        for name, link in file.links.items()
    }
    found = given.get(frozenset((roles.main, roles.partner)))
    near, far = main.links.get("scale_out"), other.links.get("scale_out")
    if found is None:
        missing = [chip.name for chip, link in ((main, near), (other, far)) if link is None]
        if near is None or far is None:
            text = (
                f"no link joins {roles.main!r} and {roles.partner!r}: {' and '.join(missing)} has no scale_out; "
                f"add `links: {{{roles.main}-to-{roles.partner}: {{bandwidth: 50 GB/s, latency: 5 us}}}}`"
            )
            raise CatalogError([document.mark("pools").fault(text)])
        latency = np.maximum(near.latency, far.latency)
        return (
            Wire(near.name, latency, near.bandwidth, far.bandwidth),
            Wire(far.name, latency, far.bandwidth, near.bandwidth),
        )
    name, link = found
    swapped = name.startswith(roles.partner)
    first = far if swapped else near
    close = (
        array(link.near) if link.near is not None else first.bandwidth if first is not None else array(link.bandwidth)
    )
    ends = (array(link.bandwidth), close) if swapped else (close, array(link.bandwidth))
    latency = array(link.latency)
    return Wire(name, latency, *ends), Wire(name, latency, *reversed(ends))


def chip_of(system: System, name: str, chip: Chip) -> System:
    """The system with another chip in one of its pools."""
    pools = {**system.pools, name: replace(system.pools[name], chip=chip)}
    partner = system.partner
    if partner is not None and partner.name == name:
        partner = replace(partner, chip=chip)
    return System(pools, partner)


def count_of(system: System, name: str, count: Array) -> System:
    """The system with another number of chips in one of its pools."""
    pools = {**system.pools, name: replace(system.pools[name], count=count)}
    partner = system.partner
    if partner is not None and partner.name == name:
        partner = replace(partner, count=count)
    return System(pools, partner)


def wires_of(system: System, name: str, value: Array) -> System:
    """The system with another `latency` of the links between its pools, or `bandwidth` of one chip of the other pool.

    Raises KeyError for a name that is neither, or without a second pool.
    """
    partner = system.partner
    if partner is None or name not in ("latency", "bandwidth"):
        raise KeyError(f"no field 'links.{name}'; links between two pools have latency and bandwidth")
    if name == "latency":
        ways = replace(partner.out, latency=value), replace(partner.back, latency=value)
    else:
        ways = replace(partner.out, receiver=value), replace(partner.back, sender=value)
    return System(system.pools, replace(partner, out=ways[0], back=ways[1]))


def changed(system: System, name: str, value: Array) -> System:
    """The system with one field changed: `chips`, `chip.*`, `links.*`, or `count` and `chip.*` of `pools.NAME`.

    Raises KeyError for any other name.
    """
    head, _, rest = name.partition(".")
    pool, _, field = rest.partition(".")
    if name == "chips":
        return count_of(system, system.main_name, value)
    if head == "chip" and rest:
        return _varied(system, system.main_name, rest, value)
    if head == "links" and rest:
        return wires_of(system, rest, value)
    if head == "pools" and system.partner is not None and pool in system.pools:
        if field == "count":
            return count_of(system, pool, value)
        if field.startswith("chip."):
            return _varied(system, pool, field.removeprefix("chip."), value)
    raise KeyError(f"no field {name!r}; there are chips, chip.*, and of two pools links.* and pools.NAME.*")


def _varied(system: System, pool: str, field: str, value: Array) -> System:
    """The system with a chip that is not as its file says."""
    price = system.pools[pool].chip.price
    if field in ("price.base", "price.memory") and (price.base is None or price.system is not None):
        text = "its file has one price for all, `price.system`; it needs `base` and `memory` instead"
        raise KeyError(f"no {field!r} of {system.pools[pool].chip.name}: {text}")
    chip = replace(with_value(system.pools[pool].chip, tuple(field.split(".")), value), varied=True)
    return chip_of(system, pool, chip)
