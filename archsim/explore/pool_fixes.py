"""What helps where one of two pools is too small: the fewest chips that hold its part, checked against its plan."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from archsim.arrays import Array, array
from archsim.explore.evaluate import memory_of
from archsim.explore.pools import count_of
from archsim.explore.scenario import Scenario
from archsim.mapping.plan import MemoryPlan
from archsim.mapping.split import Split, legality, partner_legality
from archsim.mapping.system import Partner
from archsim.units import format_named, show
from archsim.workload.model import Moe
from archsim.workload.operators import ROLES

MOST = 64  # times the chips there are, that are tried


def partner_reason(partner: Partner, plan: MemoryPlan) -> str:
    """Why the other pool is too small: what each of its chips would have to hold."""
    needed, capacity = float(plan.needed.max()), float(plan.capacity.max())
    parts = {name: float(part.max()) for name, part in plan.parts.items()}
    largest = ", ".join(f"{show(size, 'bytes')} {name}" for name, size in parts.items() if size)
    count, chip = int(partner.count.max()), partner.chip.name
    text = f"each of the {count:,} {chip} of pool {partner.name!r} would need {show(needed, 'bytes')}"
    return f"memory: {text} ({largest}) of {show(capacity, 'bytes')}"


def partner_fixes(scenario: Scenario, partner: Partner, batch: float, context: float) -> Iterator[str]:
    """More chips in the other pool, or narrower weights there."""
    count = _fewest(scenario, partner, batch, context)
    if count:
        yield f"{count:,} chips in pool {partner.name!r} hold it"
    for name in ("fp8", "nvfp4"):
        fmt = format_named(name)
        if scenario.precision.experts.bits <= fmt.bits:
            continue
        narrow = replace(scenario, precision=replace(scenario.precision, experts=fmt, weights=fmt))
        plan = memory_of(narrow, array(batch), array(context)).partner
        if plan is not None and bool(plan.fits.all()):
            yield f"weights in {name} fit"
            return


def main_fixes(scenario: Scenario, batch: float, context: float) -> Iterator[str]:
    """More chips in the main pool, each group with sequences of its own."""
    partner, split = scenario.partner, scenario.split
    roles = frozenset(ROLES) - (partner.roles if partner is not None else frozenset())
    for factor in range(2, MOST + 1):
        for name in ("attention_data", "data"):
            wider = replace(split, **{name: getattr(split, name) * factor})
            grown = replace(scenario, split=wider)
            legal = legality(scenario.model, wider, wider.chips, roles) == 0
            if bool((legal & (memory_of(grown, array(batch), array(context)).fits)).all()):
                yield f"{int(wider.chips.max()):,} chips in pool {scenario.system.main_name!r} hold it"
                return


def _fewest(scenario: Scenario, partner: Partner, batch: float, context: float) -> int:
    """The fewest chips of the other pool that hold its part; 0 where none of those tried do."""
    split = scenario.split.partner
    if split is None:
        return 0
    layers = int(split.pipeline.max())
    start = max(int(partner.count.max()) // layers, 1)
    sizes = array(np.arange(start, start * MOST + 1)) if layers > 1 else array(start * np.arange(1, MOST + 1))
    found = 0
    for tried in _splits(scenario, sizes, split):
        grown = replace(scenario, split=replace(scenario.split, partner=tried))
        grown = replace(grown, system=count_of(grown.system, partner.name, tried.chips))
        plan = memory_of(grown, array(batch), array(context)).partner
        legal = partner_legality(scenario.model, tried, partner, tried.chips) == 0
        good = np.flatnonzero(legal & np.broadcast_to(plan.fits if plan is not None else False, sizes.shape))
        if good.size:
            chips = int(np.broadcast_to(tried.chips, sizes.shape)[good[0]])
            found = chips if not found else min(found, chips)
    return found


def _splits(scenario: Scenario, sizes: Array, split: Split) -> Iterator[Split]:
    """Splits of so many chips (a layer): experts shared among all, widths among all, or tokens sent on."""
    one = np.ones_like(sizes)
    routed = any(isinstance(block.ffn, Moe) for block in scenario.model.blocks.values())
    yield Split(sizes, one, sizes if routed else one, one, split.pipeline)
    yield Split(sizes, one, one, one, split.pipeline)
    if routed:
        yield Split(one, sizes, sizes, one, split.pipeline)
