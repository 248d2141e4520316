"""The largest rate that keeps the targets: bisection with common random numbers, and how sure that is."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from archsim.serving.measures import Measures, Targets

WIDEN = 12  # doublings before no rate is said to be enough, or halvings before none is said to hold
STUDENT = {2: 12.71, 3: 4.30, 4: 3.18, 5: 2.78, 6: 2.57, 7: 2.45, 8: 2.36}  # 95 % two-sided, by number of runs

Run = Callable[[float, int], Measures]


@dataclass(frozen=True)
class Largest:
    """The largest rate (requests a second) that holds: mean over seeds and the half width of its 95 % interval.

    0 with a `reason` where no rate does; NaN width where there is one seed.
    """

    rate: float
    width: float
    rates: tuple[float, ...]
    reason: str = ""


def largest_rate(run: Run, targets: Targets, start: float, seeds: int = 3) -> Largest:
    """Bisects the rate for each of some seeds; `run` plays the same requests at a rate, with a seed."""
    if not targets.any:
        return Largest(0.0, 0.0, (), "no SLO is given")
    rates = []
    guess = start
    for seed in range(seeds):
        found, why = _bisected(lambda rate, seed=seed: run(rate, seed).share(targets), targets.share, guess)  # type: ignore[misc]
        if why:
            return Largest(0.0, 0.0, (), why)
        rates.append(found)
        guess = found
    width = STUDENT.get(seeds, 2.0) * float(np.std(rates, ddof=1)) / np.sqrt(seeds) if seeds > 1 else float("nan")
    return Largest(float(np.mean(rates)), width, tuple(rates))


def _bisected(share: Callable[[float], float], wanted: float, start: float) -> tuple[float, str]:
    """The largest rate at which the share is as wanted, within 1 %; or why there is none."""
    low = high = start
    if share(start) >= wanted:
        for _ in range(WIDEN):
            low, high = high, high * 2.0
            if share(high) < wanted:
                break
        else:
            return high, ""
    else:
        for _ in range(WIDEN):
            low, high = low / 2.0, low
            if share(low) >= wanted:
                break
        else:
            best = share(low)
            return 0.0, f"even at {low:.3g} requests/s only {best:.1%} of requests keep the SLO, {wanted:.0%} must"
    while high / low > 1.01:
        middle = float(np.sqrt(low * high))
        low, high = (middle, high) if share(middle) >= wanted else (low, middle)
    return low, ""
