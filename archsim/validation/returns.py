"""Learns from a trace who comes back, scores that on the half it has not seen, and writes it down."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from archsim.serving.returning import (
    FEATURES,
    Regression,
    Score,
    area,
    average_precision,
    halves,
    leaving,
    scores,
    train,
)
from archsim.workload.requests import Requests
from archsim.workload.traces import load_trace


@dataclass(frozen=True, eq=False)
class Learned:
    """A prediction with its scores on sessions that it was not trained on."""

    trace: str
    model: Regression
    trained: int
    scored: int
    base: float
    area: float
    precision: float
    table: tuple[Score, ...]

    def text(self) -> str:
        """The file of `workloads/returns/`."""
        weights = "".join(f"  {name}: {value:.4f}\n" for name, value in zip(FEATURES, self.model.weights, strict=True))
        return (
            f"name: {self.trace}\nhorizon: {self.model.horizon:g} s\nbias: {self.model.bias:.4f}\nweights:\n{weights}"
            f"sources:\n  - of: [horizon, bias, weights]\n    kind: measured\n"
            f'    ref: "logistic regression on {self.trained:,} requests of {self.trace},\n'
            f"      of sessions whose names have an even CRC-32; on the {self.scored:,} others: area under the ROC\n"
            f'      {self.area:.3f}, average precision {self.precision:.3f}, {self.base:.1%} leave"\n'
        )

    def write(self, folder: Path) -> Path:
        """Writes it, by the name of the trace."""
        folder.mkdir(parents=True, exist_ok=True)
        target = folder / f"{self.trace}.yaml"
        target.write_text(self.text(), encoding="utf-8")
        return target


def learn(trace: str, thresholds: Sequence[float] = (0.05, 0.1, 0.2, 0.3)) -> Learned:
    """Learns from the sessions of a trace. Raises ValueError where it has none, or only one half of what it takes."""
    return learned(load_trace(trace), thresholds)


def learned(requests: Requests, thresholds: Sequence[float] = (0.05, 0.1, 0.2, 0.3)) -> Learned:
    """Trained on one half of the sessions, scored on the other."""
    half = halves(requests)
    model = train(requests, half)
    leave, truth = (1.0 - model.returns(requests))[~half], leaving(requests)[~half]
    found = scores(leave, truth, thresholds)
    base = float(truth.mean()) if len(truth) else float("nan")
    sizes = int(half.sum()), int((~half).sum())
    return Learned(requests.name, model, *sizes, base, area(leave, truth), average_precision(leave, truth), found)


def rows(found: Learned) -> list[tuple[str, str, str, str]]:
    """(threshold, share that is named, precision, recall) as text."""
    shown = ((s.flagged, s.precision, s.recall) for s in found.table)
    cells = [tuple("n/a" if np.isnan(value) else f"{value:.1%}" for value in row) for row in shown]
    return [(f"{s.threshold:g}", *cell) for s, cell in zip(found.table, cells, strict=True)]  # type: ignore[misc]
