"""What it costs to hold bytes for a while, against what computing them again costs.

Bytes with a chance `p` to be needed again are worth holding for up to p x USD saved / (GB x USD per GB-hour).
"""

from archsim.arrays import Array
from archsim.economics.terms import HOUR, YEAR_HOURS, Terms, recovery_factor

GB = 1e9


def bought(price: float, terms: Terms) -> Array:
    """USD per GB-hour of memory that is bought at `price` USD per GB, paid for as chips by capital are; no power."""
    return price * (recovery_factor(terms.interest, terms.years) + terms.operation) / (YEAR_HOURS * terms.utilization)


def within(hourly: Array, capacity: Array) -> Array:
    """USD per GB-hour of the memory of a chip that costs `hourly`: all of the chip is paid to hold what fits."""
    return hourly / (capacity / GB)


def recomputing(seconds: float, hourly: Array, chips: float) -> Array:
    """USD of so many seconds of work of chips that cost `hourly` each."""
    return seconds * hourly * chips / HOUR


def break_even(chance: float, saved: Array, size: Array, rate: Array) -> Array:
    """Hours for which `size` bytes are worth holding at `rate` USD per GB-hour, if a hit saves `saved` USD."""
    return chance * saved / (size / GB * rate)
