"""Joules of the steps that a simulation plays."""

from dataclasses import dataclass

import numpy as np

from archsim.arrays import Array


@dataclass(frozen=True, eq=False)
class Energies:
    """Joules of one chip: of a decode step as a line, of a token in prefill (by tokens of the step), and idle (W)."""

    fixed: Array
    slope: Array
    tokens: Array
    joules: Array
    idle: float

    def decode(self, batch: Array, sums: Array) -> Array:
        """Joules of decode steps; `sums` has one row a clip."""
        index = np.minimum(batch.astype(np.intp), len(self.fixed) - 1)
        total = self.fixed[index] + sum(slope[index] * row for slope, row in zip(self.slope, sums, strict=True))
        return np.where(batch > 0, total, 0.0)

    def prefill(self, tokens: Array) -> Array:
        """Joules of the prefill of so many tokens in a step."""
        return np.where(tokens > 0, np.interp(tokens, self.tokens, self.joules), 0.0)
