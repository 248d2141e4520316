"""Calibration: which set of constants is fitted to which tables, what is kept, and what the files then say.

Constants are fitted on A100, H100 and B200, on half of their shapes; a generation of which only one other chip was
measured is fitted on that one. Chips of a fitted generation that no fit sees say what the constants are worth on a
chip never measured.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from zlib import crc32

import numpy as np

from archsim.arrays import Array
from archsim.chip.constants import Constants, Gemm
from archsim.chip.model import Chip, Unsuited
from archsim.chip.schema import load_generation
from archsim.units import did_you_mean
from archsim.validation.database import STACKS, Database, Table, database
from archsim.validation.errors import errors
from archsim.validation.families import loaded
from archsim.validation.fit import FREE, OVERLAPS, Problem, Relative, fit, judging
from archsim.validation.kernels import check, chip_of
from archsim.validation.measured import CALIBRATION, Measured, half
from archsim.validation.products import MEAN

BETTER = 0.1  # % of mean error that a new set must gain to replace an old one
STABLE = 0.7  # % that it may lose, where the old one has an exponent that costs a general power
WEIGHT_ONLY = ("int4", "mxfp4")  # constants that explain serving runs, not tables
EXPLAINED = 20.0  # % of mean error above which a fit has not found what rows are of, unless it gains LARGE
LARGE = 5.0
LEFT = {  # sets that tables cannot teach
    ("hopper", "vllm", "experts", "fp8"): "no constants explain its rows; the set is borrowed",
    ("xe2", "vllm", "all_reduce", "any"): "vLLM's rows are of eager launches, the set is of oneCCL's",
    ("ada", "vllm", "gemm", "fp8"): "the quantiser in its rows is not known apart",
    ("blackwell-workstation", "vllm", "gemm", "fp8"): "the same",
    ("blackwell-workstation", "vllm", "gemm", "nvfp4"): "the same",
}

# The chip that each generation is fitted on, and those that only judge it.
GENERATIONS: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "ampere": ("nvidia/a100-sxm-80gb", ()),
    "hopper": ("nvidia/h100-sxm", ("nvidia/h200-sxm",)),
    "blackwell": ("nvidia/b200-sxm", ("nvidia/b300-sxm", "nvidia/gb200", "nvidia/gb300")),
    "ada": ("nvidia/l40s", ()),
    "blackwell-workstation": ("nvidia/rtx-pro-6000-server", ()),
    "xe2": ("intel/arc-pro-b60", ()),
}
# Families of tables and the sets that they are of.
KINDS: Mapping[str, tuple[str, ...]] = {
    "gemm": ("gemm",),
    "generation-attention": ("generation_attention",),
    "context-attention": ("context_attention",),
    "mla-generation": ("mla_generation",),
    "mla-context": ("mla_context",),
    "experts": ("experts",),
    "all-reduce": ("all_reduce",),
    "nccl": ("all_reduce",),
    "all-to-all": ("all_to_all",),
    "state": ("state_update", "state_scan"),
}
VARIANTS = ("unpacked",)  # sets of other kernels that rows of the same table run


# Of large tables of chips that only judge, one shape in so many is enough; a shape falls the same way on every chip.
THINNED: Mapping[str, tuple[int, tuple[str, ...]]] = {
    "gemm": (3, ("m", "n", "k")),
    "moe": (3, ("hidden_size", "inter_size", "topk", "num_experts", "moe_tp_size", "moe_ep_size")),
    "generation_attention": (3, ("batch_size", "num_heads", "num_key_value_heads", "head_dim", "isl", "step")),
    "context_attention": (3, ("batch_size", "num_heads", "num_key_value_heads", "head_dim", "isl")),
}


@dataclass(frozen=True)
class Thin(Database):
    """The database with a part of the rows of its largest tables."""

    def table(self, chip: str, family: str, stack: str, name: str, version: str | None = None) -> Table | None:
        """The rows whose shape falls on the right remainder."""
        found = super().table(chip, family, stack, name, version)
        if found is None or name not in THINNED:
            return found
        part, columns = THINNED[name]
        rows = zip(*(found.number(column).astype(np.int64).tolist() for column in columns), strict=True)
        return found.where(np.array([crc32(str(row).encode()) % part == 0 for row in rows], np.bool_))


@dataclass(frozen=True)
class Job:
    """Tables that are read together: a generation, a family of tables, and stacks in order."""

    generation: str
    family: str
    stacks: tuple[str, ...]


@dataclass(frozen=True)
class Score:
    """How far off a set is: mean error in % on rows no fit saw, on each relative, and the log-sigma of both."""

    error: float
    relatives: Mapping[str, float]
    spread: float
    sibling: float | None

    @property
    def far(self) -> float | None:
        """Mean error over relatives."""
        return float(np.mean(list(self.relatives.values()))) if self.relatives else None


@dataclass(frozen=True)
class Outcome:
    """What became of one set, or of two that are fitted together: old and new constants with their scores.

    `rows` were fitted of `shapes` in all; `kept` tells that the old constants stay.
    """

    generation: str
    family: str
    stack: str
    old: Mapping[str, Constants]
    new: Mapping[str, Constants]
    before: Score
    after: Score
    rows: int
    shapes: int
    kept: bool

    @property
    def key(self) -> tuple[str, ...]:
        """What it is of."""
        return self.generation, self.stack, self.family, *self.old

    @property
    def final(self) -> Mapping[str, Constants]:
        """The constants that stand in the end."""
        return self.old if self.kept else self.new

    @property
    def score(self) -> Score:
        """Their score."""
        return self.before if self.kept else self.after


def ready() -> None:
    """Raises ValueError where the library that fits is not installed."""
    if find_spec("scipy") is None:
        raise ValueError("fitting needs scipy, which is not installed: pip install 'archsim[calibrate]'")


def jobs(generations: Sequence[str] = (), families: Sequence[str] = (), stacks: Sequence[str] = ()) -> list[Job]:
    """What there is to fit, the longest first; everything where nothing is named. Raises ValueError for other names."""
    every = {"generation": list(GENERATIONS), "kernel family": list(KINDS), "stack": [*STACKS, "nccl"]}
    for (what, options), names in zip(every.items(), (generations, families, stacks), strict=True):
        for name in names:
            if name not in options:
                raise ValueError(
                    f"no {what} {name!r} to fit{did_you_mean(name, options)} (there are: {', '.join(options)})"
                )
    return sorted(_jobs(generations or list(GENERATIONS), families or list(KINDS), stacks), key=_length)


def _jobs(generations: Sequence[str], families: Sequence[str], stacks: Sequence[str]) -> Iterator[Job]:
    for generation in generations:
        have = STACKS if GENERATIONS[generation][0] in CALIBRATION else STACKS[:1]
        for family in families:
            if family == "state" and have != STACKS:
                continue  # their caches hold whole states, and their sets are those of Ampere
            fitting = ("nccl",) if family == "nccl" else ("sglang",) if family == "all-to-all" else have
            wanted = tuple(stack for stack in fitting if not stacks or stack in stacks)
            if family == "gemm" and wanted:
                yield Job(generation, family, (MEAN, *wanted))  # in one go: quantised products launch as bf16 does
            else:
                yield from (Job(generation, family, (stack,)) for stack in wanted)


def _length(job: Job) -> tuple[int, str, str, tuple[str, ...]]:
    """Longer jobs first: those with more chips, and of experts and products."""
    weight = {"experts": 3, "gemm": 4}.get(job.family, 1) * (2 + len(GENERATIONS[job.generation][1]))
    return -weight, job.generation, job.family, job.stacks


def outcomes(job: Job, data: Database | None = None) -> list[Outcome]:
    """Fits the sets of one job."""
    data = data or database()
    chip_name, relatives = GENERATIONS[job.generation]
    chip = chip_of(chip_name)
    tables = _tables(data, chip_name, job)
    far = {name: (chip_of(name), _tables(Thin(data.root), name, job)) for name in relatives}
    found: list[Outcome] = []
    for key in sorted(tables, key=lambda key: (key[0], key[2] != "bf16", key)):
        problem = _problem(job.generation, key, chip, tables[key], far)
        if problem is not None:
            found.append(outcome(job.generation, _launched(problem, found)))
    return found


Key = tuple[str, str, str]  # family, stack, name of a set


def _tables(data: Database, chip: str, job: Job) -> dict[Key, list[Measured]]:
    """The rows that count of a chip, by the set that they are of."""
    found: dict[Key, list[Measured]] = {}
    generation = chip_of(chip).generation
    for table in loaded(data, [chip], [job.family], job.stacks):
        try:
            cut = _counted(table)
        except (KeyError, Unsuited):  # no constants, or no such peak
            continue
        kernel = table.kernels[0]
        sets = generation.kernels.get(table.constants, {}).get(kernel.kind, {})
        names = (kernel.library, kernel.weight.name, kernel.weight.base, kernel.compute, "any")
        name = next((name for name in names if name in sets), "")
        if cut.seconds.size and name and _counts(job, table, name):
            found.setdefault((kernel.kind, table.constants, name), []).append(halved(cut))
    return found


def _counted(table: Measured) -> Measured:
    """The rows that count, judged by the constants that stand: groups far above them were not tuned."""
    found, _ = check(table)
    return found.where(~found.dropped())


def _counts(job: Job, table: Measured, name: str) -> bool:
    """Whether a fit may use a table: bf16 products are fitted to the mean of their stacks."""
    kind, stack = table.kernels[0].kind, table.constants
    if name in WEIGHT_ONLY or table.format.startswith(WEIGHT_ONLY) or (job.generation, stack, kind, name) in LEFT:
        return False
    if kind not in KINDS[job.family] or table.family in ("nccl all-gather", "nccl reduce-scatter", "experts, ungated"):
        return False
    if kind == "all_to_all" and "low latency" not in table.family:
        return False
    return kind != "gemm" or name != "bf16" or table.stack == MEAN or table.chip == "intel/arc-pro-b60"


def halved(table: Measured) -> Measured:
    """The table with its half to fit also where the chip is no calibration chip."""
    shape = {name: values for name, values in table.shape.items() if table.family != "experts" or name != "tokens"}
    return replace(table, fitted=half(CALIBRATION[0], shape))


def _problem(
    generation: str,
    key: Key,
    chip: Chip,
    tables: list[Measured],
    far: Mapping[str, tuple[Chip, dict[Key, list[Measured]]]],
) -> Problem | None:
    """The problem of one set, with the variants that rows of its tables run; None where the chip has no such peak."""
    family, stack, name = key
    known = chip.generation.kernels[stack][family]
    names = [name, *(f"{name}_{variant}" for variant in VARIANTS if f"{name}_{variant}" in known)]
    if family == "experts" and tables[0].stack == "vllm" and f"{name}_sliced" in known:
        names.append(f"{name}_sliced")
    sets = {one: known[one] for one in names}
    problem = Problem(family, stack, sets, chip, tuple(tables))
    try:
        problem.seconds(sets, tables)
    except (KeyError, Unsuited):
        return None
    relatives = tuple(
        Relative(other, there, {one: there.generation.kernels[stack][family][one] for one in names}, tuple(have[key]))
        for other, (there, have) in far.items()
        if key in have
    )
    return replace(problem, relatives=relatives)


def _launched(problem: Problem, before: Sequence[Outcome]) -> Problem:
    """Quantised products whose launch was that of bf16 keep it so."""
    if problem.family != "gemm":
        return problem
    for outcome in before:
        own, other = outcome.old.get("bf16"), outcome.final.get("bf16")
        if own is None or other is None or "bf16" in problem.sets:
            continue
        sets = problem.sets
        if all(_launch(one) == _launch(own) for one in sets.values()):
            return replace(problem, frozen=("fixed",), start={"fixed": _launch(other)})
    return problem


def _launch(constants: Constants) -> float:
    return constants.fixed if isinstance(constants, Gemm) else 0.0


def outcome(generation: str, problem: Problem) -> Outcome:
    """Fits one problem and says what becomes of its sets."""
    tried = [fit(problem), *([_near(problem.sets)] if _costly(problem.sets) else [])]
    scores = [score(problem, sets) for sets in tried]
    best = min(range(len(tried)), key=lambda index: _mean(scores[index]))
    new, before, after = tried[best], score(problem, problem.sets), scores[best]
    return Outcome(
        generation,
        problem.family,
        problem.stack,
        problem.sets,
        new,
        before,
        after,
        sum(int(table.fitted.sum()) for table in problem.tables),
        sum(table.seconds.size for table in problem.tables),
        not _better(problem.sets, before, after),
    )


def score(problem: Problem, sets: Mapping[str, Constants]) -> Score:
    """How far off sets are on the rows that no fit saw."""
    unfitted = [judging(table) for table in problem.tables]
    measured = np.concatenate([table.seconds for table in unfitted])
    own = problem.seconds(sets, unfitted)
    far, logs = {}, []
    for one in problem.relatives:
        seconds = problem.relative(sets, one, one.tables)
        there = np.concatenate([table.seconds for table in one.tables])
        far[one.name] = errors(seconds, there).mape
        logs.append(np.log(there / seconds))
    return Score(
        errors(own, measured).mape,
        far,
        _sigma(np.log(measured / own)),
        _sigma(np.concatenate(logs)) if logs else None,
    )


def _mean(score: Score) -> float:
    """Mean error over rows not fitted and relatives."""
    return score.error if score.far is None else (score.error + score.far) / 2.0


def _costly(sets: Mapping[str, Constants]) -> bool:
    """Whether an exponent of overlap costs a general power."""
    return any(getattr(one, "overlap", OVERLAPS[0]) not in OVERLAPS for one in sets.values())


def _near(sets: Mapping[str, Constants]) -> dict[str, Constants]:
    """The sets with the exponent of the menu that is nearest by ratio, and shares of a peak up to 1."""
    result = {}
    for name, one in sets.items():
        overlap = min(OVERLAPS, key=lambda option: abs(np.log(option / getattr(one, "overlap", option))))
        update = {"overlap": overlap}
        if (getattr(one, "exponential", None) or 0.0) > 1.0:
            update["exponential"] = 1.0
        result[name] = one.model_copy(update=update)
    return result


def _sigma(logs: Array) -> float:
    """A robust standard deviation: half the distance between the 16th and the 84th percentile."""
    low, high = np.percentile(logs, [16.0, 84.0])
    return float(high - low) / 2.0


def _better(old: Mapping[str, Constants], before: Score, after: Score) -> bool:
    """Whether new constants replace old ones: by rows not fitted and by relatives together."""
    if after.error > EXPLAINED and before.error - after.error < LARGE and not _costly(old):
        return False
    sides = 1 if before.far is None else 2
    gain = _mean(before) - _mean(after)
    return gain >= (-STABLE if _costly(old) else BETTER / sides)


def numbers(sets: Mapping[str, Constants], family: str) -> int:
    """How many numbers sets hold that are not at their default."""
    names = [*(free.name for free in FREE[family]), "overlap"]
    fields = type(next(iter(sets.values()))).model_fields
    return sum(getattr(one, name) != fields[name].default for one in sets.values() for name in names if name in fields)


def generation_of(chip: str) -> str:
    """The generation that a measured chip belongs to as a calibration knows it."""
    for generation, (own, relatives) in GENERATIONS.items():
        if chip in (own, *relatives):
            return generation
    return load_generation(chip_of(chip).generation.name).name
