"""Dollars and joules of a system: per hour, per second of work, per million tokens."""

from dataclasses import dataclass

import numpy as np

from archsim.arrays import Array, array
from archsim.chip.model import Chip
from archsim.economics.terms import HOUR, YEAR_HOURS, Terms, recovery_factor


@dataclass(frozen=True, eq=False)
class Rate:
    """What one chip costs an hour (USD), what it is made of, and whether by rent or by capital."""

    by: str
    parts: dict[str, Array]

    @property
    def hourly(self) -> Array:
        """USD an hour of one chip."""
        total = array(0.0)
        for part in self.parts.values():
            total = total + part
        return total


def rate(chip: Chip, terms: Terms, watts: Array) -> Rate:
    """What one chip costs an hour at a mean board power of `watts`.

    NaN, `by` nothing, where neither the chip nor the scenario has a price. Raises ValueError naming what to add when
    `by`
    asks for a price that is not there.
    """
    rent = terms.rent if terms.rent is not None else chip.price.rent
    capital = terms.capital if terms.capital is not None else chip.capital
    if terms.by is None and rent is None and capital is None:
        return Rate("nothing", {"unknown": array(np.nan)})
    by = terms.by or ("rent" if rent is not None else "capital")
    if by == "rent":
        if rent is None:
            raise ValueError(f"{chip.name} has no rent; give `economics: {{rent: 3 USD/h}}` or `by: capital`")
        return Rate("rent", {"rent": array(rent) / terms.utilization})
    if capital is None:
        raise ValueError(f"{chip.name} has no all-in price; give `economics: {{capital: 50000 USD}}` or `by: rent`")
    yearly = array(capital) / (YEAR_HOURS * terms.utilization)
    energy = wall_power(watts, terms) / 1e3 * terms.electricity
    parts = {
        "capital": yearly * recovery_factor(terms.interest, terms.years),
        "operation": yearly * terms.operation,
        "power": energy,
    }
    return Rate("capital", parts)


def per_million(hourly: Array, chips: Array, tokens_per_second: Array) -> Array:
    """USD per million tokens of a system that costs `hourly` a chip."""
    return hourly * chips / HOUR / tokens_per_second * 1e6


def wall_power(watts: Array, terms: Terms) -> Array:
    """Facility power (W) of one chip that draws `watts` on its board."""
    return (watts + terms.overhead) * terms.pue
