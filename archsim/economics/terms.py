"""The terms of a cost: every default visible, settable in a scenario, and shown in the report."""

from typing import Literal

import numpy as np
from pydantic import Field

from archsim.arrays import Array, array
from archsim.catalog import StrictModel
from archsim.fields import Dollars, DollarsPerHour, DollarsPerKWh, Fraction, NonNegative, Positive, Watts

HOUR = 3600.0
YEAR_HOURS = 8760.0


class Terms(StrictModel):
    """How chips are paid for.

    `by: rent` prices a chip at its hourly rent, power included; `by: capital` spreads its all-in price over its life
    at an interest rate and adds power and operation. Without `by`, rent is used where the chip has one.
    """

    by: Literal["rent", "capital"] | None = None
    rent: DollarsPerHour | None = Field(None, description="of one chip; default: the chip's own")
    capital: Dollars | None = Field(
        None, description="all-in price of one chip with its share of server and network; default: the chip's own"
    )
    years: Positive = Field(5.0, ge=0.1, le=100.0, description="life over which capital is spread")
    interest: NonNegative = Field(0.08, le=10.0, description="a year, on capital not yet paid back")
    operation: NonNegative = Field(0.05, description="of capital a year: staff, space, repair")
    electricity: DollarsPerKWh = Field(0.08, description="price of energy")
    pue: Positive = Field(1.2, description="facility power over IT power")
    overhead: Watts = Field(400.0, description="host, fans, switches and supply losses of one chip")
    utilization: Fraction = Field(
        1.0, ge=0.001, description="share of its life in which the system serves at this rate"
    )


def recovery_factor(interest: float | Array, years: float | Array) -> Array:
    """Share of capital to pay a year: r / (1 - (1 + r)^-n), or 1 / n without interest; numbers or arrays."""
    r, n = array(interest), array(years)
    free = r == 0.0
    owed = np.where(free, 1.0, r)
    return np.where(free, 1.0 / n, -owed / np.expm1(-n * np.log1p(owed)))
