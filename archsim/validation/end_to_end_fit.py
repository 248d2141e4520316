"""Fits the constants of running engines to serving runs: what no kernel table shows.

Of each stack: a small kernel of a layer, an eager launch, host time a sequence and a prefilled request. Of each
generation: how far apart ranks arrive at an all-reduce. Of all: the share of a product's fixed time that shows.
Least squares on the logarithm of time between tokens, robust (soft L1) and held by priors, on the half of the
measurements that may be fitted. The tables of kernels fit the rest.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from archsim.arrays import Array
from archsim.chip.constants import AllReduce, Constants, Elementwise
from archsim.chip.model import Chip
from archsim.mapping.place import Deployment
from archsim.mapping.runtime import Runtime
from archsim.validation.deployments import CHIPS, STACKS, Batch
from archsim.validation.end_to_end import HarnessFile, harness, predict, tpot
from archsim.validation.rows import FITTED_CHIPS, Run

NOISE = 0.12  # of ln(time) from which a residual counts as an outlier
ROUNDS = 3  # of slopes by differences
REWEIGHTED = 40  # rounds of weights for one set of slopes
STEP = 0.1  # of ln(constant), for the slopes
FARTHEST = 0.7  # of ln(constant) in one round
GENERATIONS = ("hopper", "blackwell")
BORROWING = ("ampere",)  # files that repeat the small kernels of the stacks
# Waits for the last rank over the fixed times of the kernels of each stack, as first read off serving runs: only one
# factor a generation on all three is fitted.
SKEW: Mapping[tuple[str, str], float] = {
    ("vllm", "hopper"): 1.42,
    ("sglang", "hopper"): 1.99,
    ("trtllm", "hopper"): 2.1,
    ("vllm", "blackwell"): 0.67,
    ("sglang", "blackwell"): 1.03,
    ("trtllm", "blackwell"): 0.97,
}


@dataclass(frozen=True)
class Prior:
    """A constant before the fit: its likeliest value (s, or a factor), the spread of its logarithm, its bound."""

    value: float
    spread: float
    most: float = np.inf


PRIORS: Mapping[str, Prior] = {
    "small": Prior(4.5e-6, 0.4),
    "launch": Prior(15e-6, 0.4),
    "request": Prior(4e-3, 0.7),
    "sequence": Prior(5e-6, 0.25),
    "product": Prior(0.7, 0.15, 1.0),
    "skew": Prior(1.0, 0.4),
}
BY_STACK = ("small", "launch", "request", "sequence")
BY_GENERATION = ("skew",)


@dataclass(frozen=True)
class Name:
    """A constant: what it is, and the stack or generation it belongs to."""

    kind: str
    of: str = ""

    def touches(self, run: Run) -> bool:
        """Whether the time of a run depends on it."""
        return self.of in ("", run.stack, generation_of(CHIPS[run.chip]))


Values = Mapping[Name, float]

NAMES = (
    *(Name(kind, stack) for stack in STACKS for kind in BY_STACK),
    *(Name(kind, generation) for generation in GENERATIONS for kind in BY_GENERATION),
    Name("product"),
)


def generation_of(chip: str) -> str:
    """The generation whose constants a chip shares, by its name in the catalogue."""
    return "hopper" if chip in ("nvidia/h100-sxm", "nvidia/h200-sxm") else "blackwell"


def deploying(values: Values) -> Callable[[Batch, str], Deployment]:
    """Deployments with these constants in place of the shipped ones."""

    def deploy(batch: Batch, pool: str) -> Deployment:
        d = batch.deployment(pool)
        stack = next(name for name, file in STACKS.items() if file == batch.structure.stack)
        chip = _chip(d.chip, values, stack, generation_of(batch.structure.chip))
        return replace(d, chip=chip, runtime=_runtime(d.runtime, values, stack))

    return deploy


def _runtime(runtime: Runtime, values: Values, stack: str) -> Runtime:
    times = {kind: values[Name(kind, stack)] for kind in ("launch", "request", "sequence")}
    host = runtime.host.model_copy(update=times)
    return replace(runtime, host=host, shown={**runtime.shown, "gemm": values[Name("product")]})


def _chip(chip: Chip, values: Values, stack: str, generation: str) -> Chip:
    sets = dict(chip.generation.kernels[stack])
    sets["elementwise"] = {
        name: _with(one, Elementwise, "fixed", values[Name("small", stack)])
        for name, one in sets["elementwise"].items()
    }
    skew = values[Name("skew", generation)] * SKEW[stack, generation]
    sets["all_reduce"] = {
        name: _with(one, AllReduce, "skew", skew) if name == "any" else one for name, one in sets["all_reduce"].items()
    }
    kernels = {**chip.generation.kernels, stack: sets}
    return replace(chip, generation=replace(chip.generation, kernels=kernels))


def _with(constants: Constants, kind: type[Constants], field: str, value: float) -> Constants:
    return constants.model_copy(update={field: value}) if isinstance(constants, kind) else constants


@dataclass(frozen=True, eq=False)
class Linear:
    """A fit around its last constants: ln(predicted / measured) of the runs, and its slopes over ln(constant)."""

    runs: tuple[Run, ...]
    logs: Array
    base: Array
    slopes: Array
    priors: tuple[Prior, ...]
    noise: float

    def without(self, group: Callable[[Run], str]) -> Array:
        """ln(predicted / measured) of every run with constants fitted to the runs of all other groups."""
        names = np.array([group(run) for run in self.runs])
        found = np.zeros(self.base.shape)
        for name in np.unique(names):
            held = names == name
            new = solved(self.logs, self.base[~held], self.slopes[~held], self.priors, self.noise)
            found[held] = self.base[held] + self.slopes[held] @ (new - self.logs)
        return found


def chosen_of(runs: Sequence[Run], time: str = "tpot") -> list[Run]:
    """The runs that a fit of a time may see: those of the fitted half that count."""
    return [run for run in runs if run.fitted and run.sound(time) and "repeat" not in run.flags]


def fitted(runs: Sequence[Run], report: Callable[[str], None] = lambda text: None) -> dict[Name, float]:
    """The constants from the runs of the fitted half among aggregated `runs`. Deterministic."""
    linear = fit(runs, report)
    return {name: float(value) for name, value in zip(NAMES, np.exp(linear.logs), strict=True)}


def fit(runs: Sequence[Run], report: Callable[[str], None] = lambda text: None) -> Linear:
    """The fit, with the slopes of its last round."""
    chosen = chosen_of(runs)
    file, measured = harness(), np.log([run.tpot for run in chosen])
    priors = tuple(PRIORS[name.kind] for name in NAMES)
    now = np.log([prior.value for prior in priors])
    base = _logs(chosen, now, file) - measured
    slopes = np.zeros((len(chosen), len(NAMES)))
    for index in range(ROUNDS):
        report(f"round {index}: {100 * np.abs(np.expm1(base)).mean():.2f} % on {len(chosen)} runs")
        slopes = _slopes(chosen, now, base + measured, file)
        now = solved(now, base, slopes, priors, NOISE)
        base = _logs(chosen, now, file) - measured
    report(f"fitted: {100 * np.abs(np.expm1(base)).mean():.2f} %")
    return Linear(tuple(chosen), now, base, slopes, priors, NOISE)


def _logs(runs: Sequence[Run], logs: Array, file: HarnessFile) -> Array:
    values = dict(zip(NAMES, np.exp(logs).tolist(), strict=True))
    return np.log(tpot(runs, predict(runs, deploying(values)), file))


def _slopes(runs: Sequence[Run], now: Array, base: Array, file: HarnessFile) -> Array:
    """d ln(time) / d ln(constant), (runs, constants); constants of one kind touch different runs and move together."""
    slopes = np.zeros((len(runs), len(NAMES)))
    for kind in PRIORS:
        columns = [index for index, name in enumerate(NAMES) if name.kind == kind]
        moved = now.copy()
        moved[columns] += STEP
        change = (_logs(runs, moved, file) - base) / STEP
        for index in columns:
            slopes[:, index] = np.where([NAMES[index].touches(run) for run in runs], change, 0.0)
    return slopes


def solved(now: Array, base: Array, slopes: Array, priors: Sequence[Prior], noise: float) -> Array:
    """Logarithms of constants after one round: soft-L1 least squares, reweighted, with priors as further equations.

    `base` are residuals (runs,) at `now` (constants,), `slopes` their derivatives (runs, constants).
    """
    wanted, spreads = np.log([prior.value for prior in priors]), np.array([prior.spread for prior in priors])
    most = np.log([prior.most for prior in priors])
    new = now
    for _ in range(REWEIGHTED):
        off = (base + slopes @ (new - now)) / noise
        weight = (1.0 + off**2) ** -0.25
        left = np.vstack([slopes / noise * weight[:, None], np.diag(1.0 / spreads)])
        right = np.concatenate([(slopes @ now - base) / noise * weight, wanted / spreads])
        new = np.clip(np.linalg.lstsq(left, right, rcond=None)[0], now - FARTHEST, now + FARTHEST)
        new = np.minimum(new, most)
    return np.asarray(new)


def write(values: Values, catalogue: Path, note: str) -> list[Path]:
    """Writes the constants into the files of runtimes and generations below `catalogue`; the changed files.

    Raises ValueError where a file does not hold a number that it should.
    """
    changed = []
    for stack, file in STACKS.items():
        path = catalogue / "mappers" / "runtimes" / f"{file}.yaml"
        text = path.read_text(encoding="utf-8")
        for kind in ("launch", "request", "sequence"):
            text = put(text, rf"^  {kind}: (\S+ \S+)", quantity(values[Name(kind, stack)]))
        text = put(text, r"^shown: \{gemm: ([\d.]+)\}", f"{values[Name('product')]:.2f}")
        text = put(text, r'^  - \{of: \[shown, host\], kind: measured, ref: "([^"]*)"', note)
        path.write_text(text, encoding="utf-8")
        changed.append(path)
    for generation in (*GENERATIONS, *BORROWING):
        path = catalogue / "chips" / "generations" / f"{generation}.yaml"
        text = path.read_text(encoding="utf-8")
        for stack in STACKS:
            text = put(
                text, _within(stack, "elementwise") + r"fixed: ([\d.]+ us)", quantity(values[Name("small", stack)])
            )
            if generation in GENERATIONS:
                skew = f"{values[Name('skew', generation)] * SKEW[stack, generation]:.3g}"
                text = put(text, _within(stack, "all_reduce") + r"skew: ([\d.]+)", skew)
        path.write_text(text, encoding="utf-8")
        changed.append(path)
    return changed


def _within(stack: str, family: str) -> str:
    """A pattern up to the first number of the set `any` of a family."""
    return rf"^  {stack}:\n(?:(?!^  \w).*\n)*?    {family}:\n(?:\s*#.*\n)*      any:[^}}]*?"


def put(text: str, pattern: str, value: str) -> str:
    """The text with the first group of the pattern's only match replaced."""
    found = list(re.finditer(pattern, text, re.MULTILINE))
    if len(found) != 1:
        raise ValueError(f"expected one {pattern!r}, found {len(found)}")
    start, end = found[0].span(1)
    return text[:start] + value + text[end:]


def quantity(seconds: float) -> str:
    """A time with three digits and a unit."""
    for unit, size in (("ms", 1e-3), ("us", 1e-6), ("ns", 1e-9)):
        if seconds >= 0.1 * size or unit == "ns":
            return f"{seconds / size:.3g} {unit}"
    return "0 us"


def note(runs: Sequence[Run]) -> str:
    """Provenance of the constants."""
    chips = " and ".join(chip.split("_")[0].upper() for chip in FITTED_CHIPS)
    return (
        f"fitted to the time between tokens of {len(chosen_of(runs))} end-to-end measurements on {chips} in "
        "aiconfigurator-core 0.12.0 (silicon_sample.csv), and arrival and expert_layer to their time to the first "
        "token, 2026; step as first fitted with other constants"
    )
