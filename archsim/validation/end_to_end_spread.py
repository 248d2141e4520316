"""The 80 % bands of serving runs: how far measurements lie from predictions that have not seen their like.

Measured over predicted, by stack, time, kind of model and distance from the fitted chips; all from the fitted half:
for a model on a fitted chip, constants are fitted without that model; for another chip, without the runs of the chip
too. Runs outside the fitted half then show how many fall inside.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from archsim.arrays import Array
from archsim.mapping.runtime import SpreadFile
from archsim.validation.deployments import MODELS, STACKS, runtime_of
from archsim.validation.end_to_end_fit import Linear, put
from archsim.validation.end_to_end_tables import TIMES, Evaluated, unfitted
from archsim.validation.rows import FITTED_CHIPS, Run
from archsim.workload.model import Moe
from archsim.workload.schema import load_model

INSIDE = (10.0, 90.0)  # percentiles of an 80 % band
LEAST = 12  # runs of a kind and stack below which those of all stacks stand in
KINDS = ("dense", "experts")
DISTANCES = ("fitted", "sibling", "other")
FARTHER = 1.5  # of the logarithm of a band, for a generation without a serving run: a guess
Key = tuple[str, str, str, str]  # stack, time, kind, distance


@dataclass(frozen=True)
class Band:
    """Ends of an 80 % band, and its middle, as measured over predicted."""

    low: float
    middle: float
    high: float


@dataclass(frozen=True)
class Covered:
    """Runs that no fit saw, and how many of them lie inside their band."""

    key: Key
    runs: int
    inside: int


def kind_of(run: Run) -> str:
    """Whether a model has routed experts."""
    blocks = load_model(MODELS[run.model]).blocks.values()
    return "experts" if any(isinstance(block.ffn, Moe) for block in blocks) else "dense"


def distance_of(run: Run) -> str:
    """How far a run's chip is from those whose runs were fitted."""
    return "fitted" if run.chip in FITTED_CHIPS else "sibling"


def bands(fits: Mapping[str, Linear]) -> dict[Key, Band]:
    """Bands of every stack, time, kind and distance from the fits of the fitted half, by time."""
    return {key: band for time, linear in fits.items() for key, band in _bands(time, linear)}


def _bands(time: str, linear: Linear) -> Iterator[tuple[Key, Band]]:
    """Bands of one time."""
    near = -linear.without(lambda run: run.model)
    far = -linear.without(lambda run: run.chip)
    kinds = np.array([kind_of(run) for run in linear.runs])
    stacks = np.array([run.stack for run in linear.runs])
    for stack in STACKS:
        for kind in KINDS:
            rows = (kinds == kind) & (stacks == stack)
            rows = rows if rows.sum() >= LEAST else kinds == kind
            yield (stack, time, kind, "fitted"), _band(near[rows])
            both = np.concatenate([near[rows], far[rows]])
            yield (stack, time, kind, "sibling"), _band(both)
            yield (stack, time, kind, "other"), _band(FARTHER * both)


def _band(logs: Array) -> Band:
    low, high = np.percentile(logs, INSIDE)
    return Band(float(np.exp(low)), float(np.exp(np.median(logs))), float(np.exp(high)))


def coverage(done: Evaluated, bands: Mapping[Key, Band]) -> Iterator[Covered]:
    """Runs outside the fitted half inside their bands, by stack, time, kind and distance."""
    for time in TIMES:
        rest = done.chosen(unfitted(time))
        ratio = rest.measured(time) / rest.times(time)
        keys = [(run.stack, time, kind_of(run), distance_of(run)) for run in rest.runs]
        for key in dict.fromkeys(keys):
            mine = np.array([one == key for one in keys])
            band = bands[key]
            inside = (ratio[mine] >= band.low) & (ratio[mine] <= band.high)
            yield Covered(key, int(mine.sum()), int(inside.sum()))


def share(covered: Iterable[Covered], time: str, distance: str | None = None) -> float:
    """Share of runs inside their bands, over all stacks and kinds."""
    found = [one for one in covered if one.key[1] == time and distance in (None, one.key[3])]
    total = sum(one.runs for one in found)
    return sum(one.inside for one in found) / total if total else float("nan")


def shipped() -> dict[Key, Band]:
    """The bands of the runtime files; their middle is not kept and reads 1."""
    found: dict[Key, Band] = {}
    for stack, file in STACKS.items():
        spread = runtime_of(file).spread
        if isinstance(spread, SpreadFile):
            for time in TIMES:
                for kind in KINDS:
                    for distance in DISTANCES:
                        low, high = getattr(getattr(getattr(spread, time), kind), distance)
                        found[stack, time, kind, distance] = Band(low, 1.0, high)
    return found


def write(bands: Mapping[Key, Band], catalogue: Path) -> list[Path]:
    """Writes the bands into the runtime files; the changed files."""
    changed = []
    for stack, file in STACKS.items():
        path = catalogue / "mappers" / "runtimes" / f"{file}.yaml"
        text = path.read_text(encoding="utf-8")
        for time in TIMES:
            for kind in KINDS:
                ends = [bands[stack, time, kind, distance] for distance in DISTANCES]
                pairs = (f"{name}: [{e.low:.3f}, {e.high:.3f}]" for name, e in zip(DISTANCES, ends, strict=True))
                pattern = rf"^spread:.*\n(?:  .*\n)*?  {time}:\n(?:    .*\n)*?    {kind}: \{{(.*)\}}"
                text = put(text, pattern, ", ".join(pairs))
        path.write_text(text, encoding="utf-8")
        changed.append(path)
    return changed
