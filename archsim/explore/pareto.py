"""Pareto fronts: the points that no other point beats, exactly, for any number of objectives.

A point beats another if it is at least as good in every objective and better in one. Points that tie in all of them
beat each other in none, so all of them stay. A point with an undefined objective (NaN) is on no front and beats
nothing; infinities compare as numbers do.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from archsim.arrays import Array
from archsim.units import did_you_mean

Mask = npt.NDArray[np.bool_]
DIRECTIONS = {"max": -1.0, "min": 1.0}


@dataclass(frozen=True)
class Objective:
    """A column and which way it is better: `sign` is 1 where less is."""

    name: str
    sign: float

    @property
    def direction(self) -> str:
        """`min` or `max`."""
        return "min" if self.sign > 0 else "max"


def objectives(text: str, columns: Sequence[str]) -> list[Objective]:
    """The objectives of `throughput_per_chip:max,interactivity:max`.

    Raises ValueError for a name that is not among `columns`, a direction other than `min` and `max`, or a repeat.
    """
    found = []
    for part in text.split(","):
        name, colon, direction = (item.strip() for item in part.partition(":"))
        if name not in columns:
            hint = did_you_mean(name, columns) or f"; there are {', '.join(columns)}"
            raise ValueError(f"no metric {name!r}{hint}")
        if not colon or direction not in DIRECTIONS:
            raise ValueError(f"say which way {name} is better: {name}:max or {name}:min, not {part.strip()!r}")
        found.append(Objective(name, DIRECTIONS[direction]))
    names = [objective.name for objective in found]
    if len(set(names)) < len(names):
        raise ValueError(f"an objective is given twice in {text!r}")
    return found


def front(columns: Mapping[str, Array], wanted: Sequence[Objective]) -> Mask:
    """Which points are on the front, as a mask over flat columns of one length.

    One and two objectives take O(n log n) by sorting; more take a pass over the points for each point of the front.
    """
    if not wanted:
        raise ValueError("a front needs at least one objective")
    values = np.stack([objective.sign * np.asarray(columns[objective.name]).ravel() for objective in wanted])
    on = np.zeros(values.shape[1], np.bool_)
    defined = np.flatnonzero(~np.isnan(values).any(axis=0))
    if not defined.size:
        return on
    on[defined] = _best(values[:, defined])
    return on


def _best(values: Array) -> Mask:
    """Which columns of a matrix without NaN no other column beats; less is better."""
    order = np.lexsort(values[::-1])
    ordered = values[:, order]
    fresh = np.ones(len(order), np.bool_)  # points that tie in everything are one
    fresh[1:] = (ordered[:, 1:] != ordered[:, :-1]).any(axis=0)
    points = ordered[:, fresh]
    best = _of_two(points[-1]) if len(points) <= 2 else _of_many(points)
    on = np.empty(len(order), np.bool_)
    on[order] = best[np.cumsum(fresh) - 1]
    return on


def _of_two(last: Array) -> Mask:
    """Of distinct points sorted by all their numbers, at most two: one is best if its last is below all before it."""
    on = np.ones(last.size, np.bool_)
    on[1:] = last[1:] < np.minimum.accumulate(last)[:-1]
    return on


def _of_many(points: Array) -> Mask:
    """Distinct points of any number of objectives.

    The point with the least sum of places is beaten by none that is left, and takes away all that it beats. Places
    instead of values, so that infinities add up.
    """
    places = np.stack([np.unique(row, return_inverse=True)[1].ravel() for row in points], axis=1)
    order = np.argsort(places.sum(axis=1), kind="stable")
    left = places[order]
    on = np.zeros(len(order), np.bool_)
    while len(order):
        on[order[0]] = True
        better = (left < left[0]).any(axis=1)
        order, left = order[better], left[better]
    return on
