"""What it costs to keep KV cache in each memory of a served scenario, and what the hits there saved."""

from dataclasses import dataclass

import numpy as np

from archsim.arrays import Array, array
from archsim.economics.holding import GB, bought, break_even, recomputing, within
from archsim.economics.money import rate as hourly_rate
from archsim.economics.terms import HOUR
from archsim.explore.service import Service
from archsim.serving.tiers import Recompute
from archsim.serving.usage import Use


@dataclass(frozen=True, eq=False)
class Kept:
    """One memory: what it did, USD per GB-hour, USD for what it held and USD of prefill that its hits saved.

    `hours` are those for which a prompt that surely comes back is worth keeping there; a chance p makes them p times
    as many. NaN where the chips have no price.
    """

    use: Use
    rate: float
    held: float
    saved: float
    hours: float


def keeping(service: Service) -> tuple[Kept, ...]:
    """The memory of the chips first, then the tiers below; nothing where prompts share nothing."""
    scenario, server, uses = service.scenario, service.server, service.measures.tiers
    if not uses:
        return ()
    watts = array(service.power if np.isfinite(service.power) else 0.0)
    hourly = hourly_rate(scenario.chip, scenario.terms, watts).hourly
    chips = service.chips / server.replicas
    prompt = max(round(float(service.requests.input.mean())), 1)
    recompute = Recompute(server.surface, server.scheduler.max_tokens)
    once = recomputing(recompute(0, prompt), hourly, chips)
    copies = chips / float(scenario.split.groups.max()) * server.replicas  # chips that hold a part of each block
    size = array(prompt / server.layout.block * server.layout.levels[-1] * server.unit) * copies
    found = [_kept(uses[0], within(hourly, scenario.chip.memory.capacity), hourly, chips, once, size, copies)]
    for use, level in zip(uses[1:], server.tiers, strict=True):
        stored = array(prompt / service.requests.block * level.size)
        found.append(_kept(use, bought(use.price, scenario.terms), hourly, chips, once, stored))
    return tuple(found)


def _kept(use: Use, rate: Array, hourly: Array, chips: float, once: Array, size: Array, copies: float = 1.0) -> Kept:
    held = use.held * copies / GB / HOUR * rate
    saved = recomputing(use.saved, hourly, chips)
    with np.errstate(divide="ignore"):  # what costs nothing may be kept for ever
        hours = break_even(1.0, once, size, rate)
    return Kept(use, *(float(value.max()) for value in (rate, held, saved, hours)))
