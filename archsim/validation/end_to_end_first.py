"""Fits what a first token waits for: host times of the stacks, and what the harnesses add to them.

Given the steps, all of it enters the time to a first token as a sum, so no step is priced again. Robust least squares
on its logarithm, held by priors, on the half of the measurements that may be fitted.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from archsim.arrays import Array
from archsim.validation.deployments import STACKS, runtime_of
from archsim.validation.end_to_end import HarnessFile, Predicted, harness, ttft
from archsim.validation.end_to_end_fit import Linear, Name, Prior, put, quantity, solved
from archsim.validation.rows import Run

NOISE = 0.25  # of ln(time) from which a residual counts as an outlier
ROUNDS = 12
STEP = 1e-3

PRIORS: Mapping[str, Prior] = {
    "arrival": Prior(10e-3, 0.5),
    "expert_layer": Prior(0.4e-3, 0.7),
    "queue": Prior(0.5, 0.7),
    "burst": Prior(0.2, 0.5),
    "lab": Prior(60e-3, 0.7),
    "patience": Prior(20.0, 0.5),
}
NAMES = (
    *(Name(kind, stack) for stack in STACKS for kind in PRIORS if kind != "patience"),
    Name("patience"),
)
Values = Mapping[Name, float]


@dataclass(frozen=True, eq=False)
class First:
    """Runs with their steps, and the time to a first token without any of the constants that are fitted."""

    runs: tuple[Run, ...]
    predicted: Predicted
    bare: Array

    def seconds(self, values: Values) -> Array:
        """The reported time (runs,) with these constants."""
        host = np.array([values[Name("arrival", run.stack)] for run in self.runs])
        layer = np.array([values[Name("expert_layer", run.stack)] for run in self.runs])
        settled = replace(self.predicted, ttft=self.bare + host + layer * self.predicted.layers)
        return ttft(self.runs, settled, changed(harness(), values))


def changed(file: HarnessFile, values: Values) -> HarnessFile:
    """The harness with fitted numbers."""
    stacks = {
        stack: one.model_copy(update={kind: values[Name(kind, stack)] for kind in ("queue", "burst", "lab")})
        for stack, one in file.stacks.items()
    }
    return file.model_copy(update={"stacks": stacks, "patience": values[Name("patience")]})


def first_of(runs: Sequence[Run], predicted: Predicted) -> First:
    """The runs with their steps; `predicted` is made with the shipped constants."""
    hosts = [runtime_of(STACKS[run.stack]).host for run in runs]
    shipped = np.array([host.arrival for host in hosts]) + predicted.layers * np.array([h.expert_layer for h in hosts])
    return First(tuple(runs), predicted, predicted.ttft - shipped)


def fitted(runs: Sequence[Run], predicted: Predicted) -> dict[Name, float]:
    """The constants from runs that all may be fitted on. Deterministic."""
    linear = fit(runs, predicted)
    return {name: float(value) for name, value in zip(NAMES, np.exp(linear.logs), strict=True)}


def fit(runs: Sequence[Run], predicted: Predicted) -> Linear:
    """The fit, with the slopes of its last round."""
    first, measured = first_of(runs, predicted), np.log([run.ttft for run in runs])

    def logs(values: Array) -> Array:
        return np.asarray(np.log(first.seconds(dict(zip(NAMES, np.exp(values).tolist(), strict=True)))))

    priors = tuple(PRIORS[name.kind] for name in NAMES)
    now = np.log([prior.value for prior in priors])
    slopes = np.zeros((len(runs), len(NAMES)))
    for _ in range(ROUNDS):
        base = logs(now)
        slopes = np.stack([(logs(now + STEP * row) - base) / STEP for row in np.eye(len(NAMES))], 1)
        now = solved(now, base - measured, slopes, priors, NOISE)
    return Linear(tuple(runs), now, logs(now) - measured, slopes, priors, NOISE)


def write(values: Values, catalogue: Path) -> list[Path]:
    """Writes the constants into the runtime files and `harness.yaml`; the changed files."""
    path = Path(__file__).parent / "harness.yaml"
    text = path.read_text(encoding="utf-8")
    text = put(text, r"^patience: (\S+)", f"{values[Name('patience')]:.3g}")
    changed_files = [path]
    for stack, file in STACKS.items():
        for kind in ("queue", "burst"):
            text = put(text, rf"^  {stack}: \{{.*?{kind}: ([\d.]+)", f"{values[Name(kind, stack)]:.3g}")
        text = put(text, rf"^  {stack}: \{{.*?lab: ([\d.]+ ms)", f"{values[Name('lab', stack)] * 1e3:.3g} ms")
        runtime = catalogue / "mappers" / "runtimes" / f"{file}.yaml"
        lines = runtime.read_text(encoding="utf-8")
        for kind in ("arrival", "expert_layer"):
            lines = put(lines, rf"^  {kind}: (\S+ \S+)", quantity(values[Name(kind, stack)]))
        runtime.write_text(lines, encoding="utf-8")
        changed_files.append(runtime)
    path.write_text(text, encoding="utf-8")
    return changed_files
