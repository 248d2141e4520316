"""Tables that a simulation reads one number at a time: curves over tokens, grids of three axes, and lines fitted."""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from archsim.arrays import Array

FINE = 4096  # tokens up to which every whole number is a knot
COARSE = 32  # tokens between knots beyond


@dataclass(frozen=True, eq=False)
class Curve:
    """Values at every whole number up to FINE and at every COARSE-th beyond; linear in between."""

    fine: Sequence[float]
    coarse: Sequence[float]

    @staticmethod
    def knots(most: int) -> Array:
        """The numbers of tokens at which to price."""
        beyond = np.arange(FINE, max(most, FINE) + 2 * COARSE, COARSE, dtype=np.float64)
        return np.concatenate([np.arange(1.0, FINE), beyond])

    @staticmethod
    def of(knots: Array, values: Array) -> "Curve":
        """A curve through values at `knots`."""
        full = np.broadcast_to(values, knots.shape).tolist()
        return Curve([full[0], *full[:FINE]], full[FINE - 1 :])

    def __call__(self, tokens: float) -> float:
        """The value at a number of tokens, which need not be whole; extended as a line beyond the last knot."""
        if tokens <= FINE:
            low = int(tokens)
            value = self.fine[low]
            return value if low == tokens else value + (tokens - low) * (self.fine[low + 1] - value)
        place = (tokens - FINE) / COARSE
        low = min(int(place), len(self.coarse) - 2)
        value = self.coarse[low]
        return value + (place - low) * (self.coarse[low + 1] - value)


@dataclass(frozen=True, eq=False)
class Grid:
    """Values over three axes, linear between knots and held at the ends of the first two."""

    axes: tuple[Sequence[float], Sequence[float], Sequence[float]]
    values: Sequence[Sequence[Sequence[float]]]

    @staticmethod
    def of(x: Array, y: Array, z: Array, values: Array) -> "Grid":
        """A grid of plain lists."""
        return Grid((x.tolist(), y.tolist(), z.tolist()), np.asarray(values).tolist())

    def __call__(self, x: float, y: float, z: float) -> float:
        """The value at a point."""
        i, u = _place(self.axes[0], x)
        j, v = _place(self.axes[1], y)
        k, w = _place(self.axes[2], z)
        low, high = self.values[i], self.values[i + 1]
        a = _bilinear(low, j, k, v, w)
        return a + u * (_bilinear(high, j, k, v, w) - a) if u else a


def _bilinear(plane: Sequence[Sequence[float]], j: int, k: int, v: float, w: float) -> float:
    row = plane[j]
    a = row[k] + w * (row[k + 1] - row[k]) if w else row[k]
    if not v:
        return a
    row = plane[j + 1]
    b = row[k] + w * (row[k + 1] - row[k]) if w else row[k]
    return a + v * (b - a)


def _place(axis: Sequence[float], value: float) -> tuple[int, float]:
    """The knot below a value and how far along to the next it lies; beyond the last it goes on."""
    if value <= axis[0]:
        return 0, 0.0
    low = min(bisect_right(axis, value) - 1, len(axis) - 2)
    return low, (value - axis[low]) / (axis[low + 1] - axis[low])


def affine(values: Array, features: Sequence[Array]) -> tuple[Array, list[Array]]:
    """Constant and one gain a feature for every row of `values`, by least squares of the relative error.

    A feature that does not vary gets gain 0. Shapes: values (rows, columns), features (columns,).
    """
    varying = [index for index, feature in enumerate(features) if np.ptp(feature) > 0]
    design = np.stack([np.ones(values.shape[1]), *(features[index] for index in varying)], axis=1)
    scale = design.max(axis=0)
    weighted = (design / scale)[None] / values[:, :, None]
    found = np.linalg.pinv(weighted, rcond=1e-10) @ np.ones((len(values), values.shape[1], 1))
    gains = [np.zeros(len(values)) for _ in features]
    for place, index in enumerate(varying, 1):
        gains[index] = found[:, place, 0] / scale[place]
    return found[:, 0, 0], gains
