"""What a system draws and costs: its pools, each with its own chips, terms and power, added up."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from archsim.arrays import Array, array
from archsim.chip.model import Chip
from archsim.economics.money import Rate, rate, wall_power
from archsim.economics.terms import HOUR, Terms
from archsim.engine.cost import Cost
from archsim.engine.step import PricedStep
from archsim.mapping.place import Deployment

if TYPE_CHECKING:
    from archsim.explore.evaluate import Answer


@dataclass(frozen=True, eq=False)
class Share:
    """One pool in a bill: its chips, how they are paid for, how many they are, and their mean board power (W)."""

    pool: str
    chip: Chip
    terms: Terms
    count: Array
    watts: Array

    @property
    def rate(self) -> Rate:
        """What one chip costs an hour."""
        return rate(self.chip, self.terms, self.watts)

    @property
    def hourly(self) -> Array:
        """USD an hour of the pool."""
        return self.rate.hourly * self.count


def energy(step: PricedStep, deployment: Deployment) -> Array:
    """Joules of one chip over a step: its kernels, and idling in between."""
    total: Cost = step.total()
    if step.plan.flight is not None:
        total = total.scaled(step.busy)
    return total.energy + deployment.chip.power.idle * (step.turnaround - total.seconds)


def away_energy(step: PricedStep, deployment: Deployment) -> Array:
    """Joules of one chip of the other pool over a step; chips that are left over idle."""
    partner, other = deployment.partner, deployment.split.partner
    if partner is None or other is None:
        return array(0.0)
    idle = partner.chip.power.idle
    work = step.away()
    own = work.energy + idle * np.maximum(step.turnaround - work.seconds, 0.0)
    used = np.minimum(other.chips / partner.count, 1.0)
    return used * own + (1.0 - used) * idle * step.turnaround


def shares(answer: "Answer") -> list[Share]:
    """The pools of an answer, the main one first."""
    scenario = answer.scenario
    found = [Share(scenario.system.main_name, scenario.chip, scenario.terms, scenario.chips, answer.power)]
    partner = scenario.partner
    if partner is not None:
        found.append(Share(partner.name, partner.chip, scenario.partner_terms, partner.count, answer.partner_power))
    return found


def mean_power(answer: "Answer") -> Array:
    """Mean board power (W) of a chip, over all pools."""
    if answer.scenario.partner is None:
        return answer.power
    watts = array(0.0)
    for share in shares(answer):
        watts = watts + share.watts * share.count
    return watts / answer.scenario.all_chips


def facility_power(answer: "Answer") -> Array:
    """Facility power (W) of the whole system."""
    watts = array(0.0)
    for share in shares(answer):
        own = wall_power(share.watts, share.terms) * share.count
        watts = own if watts.size == 1 and not watts.any() else watts + own
    return watts


def dollars_per_second(answer: "Answer") -> Array:
    """USD a second of the whole system."""
    if answer.scenario.partner is None:
        return shares(answer)[0].rate.hourly / HOUR * answer.scenario.chips
    dollars = array(0.0)
    for share in shares(answer):
        dollars = dollars + share.hourly
    return np.asarray(dollars / HOUR)
