"""What sessions cost and how long they take, as wholes."""

from dataclasses import dataclass

import numpy as np

from archsim.arrays import Array
from archsim.serving.measures import QUANTILES, quantile
from archsim.serving.simulate import Played

Flags = np.typing.NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class Sessions:
    """Sessions of which all steps ended, and the time (s) of each: from its first arrival to its last end.

    `served` is the part of it in which a step waits or runs; the rest are gaps. `steps` counts steps that ended.
    """

    count: int
    finished: int
    steps: int
    seconds: Array
    served: Array
    mean_steps: float

    def time(self, name: str = "seconds") -> dict[str, float]:
        """Mean and percentiles; NaN where no session ended."""
        values: Array = getattr(self, name)
        found = {"mean": float(values.mean()) if len(values) else float("nan")}
        return found | {f"p{q}": quantile(values, np.ones(len(values)), q / 100.0) for q in QUANTILES}

    def costs(self, dollars: float) -> dict[str, float]:
        """USD of a step that ended, and of a session of the mean number of steps; NaN where none ended."""
        step = dollars / self.steps if self.steps else float("nan")
        return {"step": step, "session": step * self.mean_steps}


def sessions_of(played: Played) -> Sessions | None:
    """The sessions of what was played; None where requests are of none."""
    session = played.requests.session
    if session is None or not len(session):
        return None
    count = int(session.max()) + 1
    done = np.bincount(session, played.finished, count) == np.bincount(session, minlength=count)
    sizes = np.bincount(session, minlength=count)
    start, end = np.full(count, np.inf), np.full(count, -np.inf)
    np.minimum.at(start, session, np.nan_to_num(played.arrived, nan=np.inf))
    np.maximum.at(end, session, np.nan_to_num(played.end, nan=-np.inf))
    whole = done & (sizes > 0)
    served = _covered(session, played.arrived, played.end, played.finished, count)
    return Sessions(
        int((sizes > 0).sum()),
        int(whole.sum()),
        int(played.finished.sum()),
        (end - start)[whole],
        served[whole],
        float(sizes[sizes > 0].mean()),
    )


def _covered(session: "np.typing.NDArray[np.int64]", begin: Array, end: Array, kept: Flags, count: int) -> Array:
    """Seconds of each session in which at least one of its steps is there."""
    rows = np.flatnonzero(kept)
    rows = rows[np.lexsort((begin[rows], session[rows]))]
    covered, until, current = np.zeros(count), 0.0, -1
    for number, start, stop in zip(session[rows].tolist(), begin[rows].tolist(), end[rows].tolist(), strict=True):
        until = until if number == current else -np.inf
        current = number
        covered[number] += max(stop - max(start, until), 0.0)
        until = max(until, stop)
    return covered
