"""The largest rate that keeps the targets: bisection with common random numbers, and how sure that is."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from archsim.serving.measures import Measures, Targets

WIDEN = 12  # doublings before no rate is said to be enough, or halvings before none is said to hold
STUDENT = {2: 12.71, 3: 4.30, 4: 3.18, 5: 2.78, 6: 2.57, 7: 2.45, 8: 2.36}  # 95 % two-sided, by number of runs

Run = Callable[[float, int], Measures]
Task = tuple[Run, Targets, float, int]
Spread = Callable[[Callable[[Task], tuple[float, str]], Sequence[Task]], Sequence[tuple[float, str]]]


@dataclass(frozen=True)
class Largest:
    """The largest rate (requests a second) that holds: mean over seeds and the half width of its 95 % interval.

    0 with a `reason` where no rate does; NaN width where there is one seed.
    """

    rate: float
    width: float
    rates: tuple[float, ...]
    reason: str = ""


def largest_rate(run: Run, targets: Targets, start: float, seeds: int = 3, spread: Spread | None = None) -> Largest:
    """Bisects the rate for each of some seeds; `run` plays the same requests at a rate, with a seed.

    The first seed's rate is where the others start; `spread` maps these, over worker processes perhaps.
    """
    if not targets.any:
        return Largest(0.0, 0.0, (), "no SLO is given")
    first = for_seed((run, targets, start, 0))
    later = [(run, targets, first[0], seed) for seed in range(1, seeds)] if not first[1] else []
    found = [first, *(spread(for_seed, later) if spread is not None else map(for_seed, later))]
    why = next((why for _, why in found if why), "")
    if why:
        return Largest(0.0, 0.0, (), why)
    rates = [rate for rate, _ in found]
    width = STUDENT.get(seeds, 2.0) * float(np.std(rates, ddof=1)) / np.sqrt(seeds) if seeds > 1 else float("nan")
    return Largest(float(np.mean(rates)), width, tuple(rates))


def for_seed(task: Task) -> tuple[float, str]:
    """The largest rate of one seed, from where to start; or why there is none."""
    run, targets, start, seed = task
    return _bisected(lambda rate: run(rate, seed).share(targets), targets.share, start)


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
