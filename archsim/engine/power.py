"""Board power: what a kernel does, what that draws, and how a power cap slows it.

Power is a floor while any kernel runs, plus energy a byte, a FLOP and an exponential. Kernels are calibrated at the
board's own limit; under a lower cap only the matrix part slows, by its clock, until what is left fits.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from archsim.arrays import Array, Inputs, blocked
from archsim.chip.model import Chip
from archsim.engine.cost import Cost

LEAST = 1.0  # W above the floor: a cap at the floor stops a chip almost, not quite
CLOCK_EXPONENT = 2.2  # dynamic power of the matrix units against their rate, from B200 power tables

Work = Callable[[Inputs], tuple[Array, Array, Array]]


@dataclass(frozen=True, eq=False)
class Counts:
    """FLOPs, bytes, and energy (J) above the floor: of all but the matrix units, and of these."""

    flops: Array
    bytes: Array
    base: Array
    matrix: Array


def counted(work: Work, dims: Mapping[str, Array], chip: Chip, compute: str) -> Counts:
    """Counts of a kernel; `work` gives FLOPs, bytes and exponentials."""
    energy = chip.energy
    rates = {
        "byte": energy.byte,
        "flop": energy.flop.get(compute, energy.flop["bf16"]),
        "exponential": energy.exponential,
    }

    def evaluate(x: Inputs) -> tuple[Array, ...]:
        flops, moved, exponentials = work(x)
        return flops, moved, x["byte"] * moved + x["exponential"] * exponentials, x["flop"] * flops

    return Counts(*blocked(evaluate, {**dims, **rates}))


def throttled(seconds: Array, parts: Mapping[str, Array], counts: Counts, chip: Chip) -> Cost:
    """The cost under the chip's power cap: energy capped, and time stretched where the cap is below the sustained
    one."""
    power = chip.power
    if power.cap is not power.sustained:
        floor = power.active
        stretch = _stretch(seconds, counts, power.cap - floor) / _stretch(seconds, counts, power.sustained - floor)
        enough = (power.sustained - floor) / np.maximum(
            power.cap - floor, LEAST
        )  # any kernel keeps the cap at this share
        longer = seconds * np.clip(stretch, 1.0, np.maximum(enough, 1.0))
        parts = {**parts, "clock": parts.get("clock", 0.0) + (longer - seconds)}
        seconds = longer
    energy = np.minimum(power.active * seconds + counts.base + counts.matrix, power.cap * seconds)
    return Cost(seconds, parts, counts.flops, counts.bytes, energy=energy)


def _stretch(seconds: Array, counts: Counts, above: Array) -> Array:
    """How many times longer a kernel takes with so many watts above the floor.

    Where all but the matrix units exceed them, everything slows.
    """
    budget = np.maximum(np.maximum(above, LEAST) * seconds, np.finfo(np.float64).tiny)
    room = np.maximum(budget - counts.base, 1e-2 * budget)
    matrix = np.maximum(counts.matrix / room, 1.0) ** (1.0 / CLOCK_EXPONENT)
    return np.maximum(matrix, counts.base / budget)
