"""Predicted against measured: the statistics of every error table."""

from dataclasses import dataclass

import numpy as np

from archsim.arrays import Array


@dataclass(frozen=True)
class Errors:
    """Of predicted / measured - 1, in %: mean and median of its size, its median with sign, and its 90th percentile.

    `worst` is the index of the point furthest off by ratio. With no point all are NaN and `worst` is -1.
    """

    points: int
    mape: float
    median: float
    bias: float
    p90: float
    worst: int


NONE = Errors(0, np.nan, np.nan, np.nan, np.nan, -1)


def errors(predicted: Array, measured: Array) -> Errors:
    """The errors of predictions (n,) of measured values (n,) > 0 in the same unit."""
    if not measured.size:
        return NONE
    off = 100.0 * (predicted / measured - 1.0)
    size = np.abs(off)
    worst = int(np.argmax(np.abs(np.log(predicted / measured))))
    return Errors(
        points=measured.size,
        mape=float(size.mean()),
        median=float(np.median(size)),
        bias=float(np.median(off)),
        p90=float(np.percentile(size, 90)),
        worst=worst,
    )
