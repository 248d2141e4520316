"""Fits the constants of one set to measured times: least squares on log error, bounded to what is physical.

Predictions are the engine's own (`archsim.validation.predict.predicted`) with the set replaced, so that what is fitted
is what runs. The exponent of overlap comes from a short menu whose powers are products and roots; a constant that
does not earn its place is dropped. Nothing here draws random numbers: same rows, same constants.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from zlib import crc32

import numpy as np

from archsim.arrays import Array
from archsim.chip.constants import Constants
from archsim.chip.model import Chip, Generation
from archsim.validation.errors import errors
from archsim.validation.measured import Flags, Measured
from archsim.validation.predict import predicted

OVERLAPS = (1.0, 2.0, 4.0, 8.0, 16.0)  # exponents whose powers are products and roots; from 16 on the plain maximum
ROWS = 1500  # rows that a fit sees at the most
TRIES, RETRIES = 30, 8  # evaluations with derivatives: of a set, and of one that has lost a constant
JUDGED = 4000  # rows that judge whether a constant earns its place
HOPELESS = 8.0  # % of mean error that no other constant makes up for
EARNED = 0.2  # % of mean error that a constant must be worth
SOFT = 0.1  # log error from which a row counts linearly, so that odd kernels do not lead
STEP = 2e-3  # relative step of a derivative
DIGITS = 3  # of a constant in a file

Sets = Mapping[str, Constants]


@dataclass(frozen=True)
class Free:
    """A constant that a fit may choose, in its bounds. `start` is where it starts when a set has none yet.

    `default` is what the engine takes where it is absent; without `droppable` it always stays.
    """

    name: str
    least: float
    most: float
    start: float
    default: float | None = 0.0
    droppable: bool = True


def _time(name: str, most: float, start: float = 1e-6) -> Free:
    return Free(name, 1e-9, most, start, 0.0)


def _launch(name: str, most: float, start: float) -> Free:
    """The fixed time of a kernel that the library has: none takes less than a microsecond, and it stays."""
    return Free(name, 1e-6, most, start, 0.0, False)


def _share(name: str, most: float = 1.0, droppable: bool = False) -> Free:
    return Free(name, 0.01, most, 0.7, 1.0, droppable)


_FEED = Free("feed", 5e9, 4e12, 3e11, None)
_ATTENTION = (
    _launch("fixed", 1e-4, 5e-6),
    _share("memory"),
    _time("block", 2e-5),
    _time("query", 1e-6, 2e-8),
    _FEED,
    _share("matrix", droppable=True),
    _time("combine", 5e-5),
    Free("combine_feed", 5e9, 5e12, 5e11, None),
)
_PROMPT = (
    _launch("fixed", 1e-4, 5e-6),
    _share("matrix"),
    Free("exponential", 0.02, 1.0, 0.7, None),
    _time("block", 2e-5),
    Free("tail", 0.01, 2.0, 0.5, 0.0),
    Free("queries", 0.1, 10.0, 1.0, 1.0),
    Free("keys", 0.1, 20.0, 1.0, 1.0),
)
FREE: Mapping[str, tuple[Free, ...]] = {
    "gemm": (
        _launch("fixed", 1e-4, 2e-6),
        _share("matrix"),
        _share("memory"),
        _FEED,
        _launch("split", 5e-5, 2e-6),
        _time("depth", 1e-6, 3e-8),
        _time("epilogue", 1e-5),
        _time("wave", 1e-5),
    ),
    "generation_attention": (*_ATTENTION, _launch("swap", 3e-5, 5e-6)),
    "mla_generation": tuple(replace(free, most=0.95) if free.name == "memory" else free for free in _ATTENTION),
    "context_attention": _PROMPT,
    "mla_context": _PROMPT,
    "experts": (
        _launch("fixed", 2e-4, 1e-5),
        _time("routing", 2e-5),
        _share("matrix", 0.9),
        _share("memory", 0.95),
        _FEED,
        _time("wave", 2e-5),
        _time("depth", 2e-6, 1e-7),
        Free("activation", 0.02, 10.0, 1.0, 0.0),
        Free("tokens", 0.02, 20.0, 2.0, 0.0),
    ),
    "state_update": (_launch("fixed", 1e-4, 4e-6), _share("memory")),
    "state_scan": (
        _launch("fixed", 1e-4, 1e-5),
        _share("matrix"),
        _share("memory"),
        _time("chain", 1e-4, 3e-6),
    ),
    "all_reduce": (
        _launch("one_shot", 1e-3, 5e-6),
        _time("rank", 5e-5),
        _share("one_shot_link"),
        _launch("two_shot", 1e-3, 1e-5),
        _share("two_shot_link"),
        _launch("ring", 1e-3, 5e-5),
        _time("ring_rank", 1e-4),
        _share("ring_link"),
        _share("switch_link"),
    ),
    "all_to_all": (_launch("local", 1e-3, 1e-5), _share("local_link")),
}
# Constants that exist only where the library has what they are of: a fit neither adds nor drops them.
OPTIONAL = ("split", "swap", "one_shot", "two_shot", "ring", "switch_link", "wave")
TIED = {"mla_context": {"keys": "queries"}}  # one number for both: queries, keys, values have the same number of heads
OF_PACKED = ("memory", "combine", "combine_feed")  # what an unpacked kernel shares with the packed one
LINKS = {"one_shot_link": "one_shot", "two_shot_link": "two_shot", "ring_link": "ring", "ring_rank": "ring"}


@dataclass(frozen=True)
class Parameter:
    """A free constant of one of the sets that are fitted together."""

    set: str
    free: Free

    @property
    def key(self) -> tuple[str, str]:
        """Set and field."""
        return self.set, self.free.name


@dataclass(frozen=True, eq=False)
class Relative:
    """A chip of the same generation that no fit sees: its own sets, which may scale those fitted, and its tables."""

    name: str
    chip: Chip
    sets: Sets
    tables: tuple[Measured, ...]


@dataclass(frozen=True, eq=False)
class Problem:
    """What a fit works on: sets of one family and stack, and the tables that their chip was measured in.

    `frozen` are fields that the fit leaves alone, such as the launch time of quantised products, which is that of bf16.
    `start` replaces values before the fit begins. `relatives` judge, with the unfitted rows, what a constant is worth.
    """

    family: str
    stack: str
    sets: Sets
    chip: Chip
    tables: tuple[Measured, ...]
    frozen: tuple[str, ...] = ()
    relatives: tuple[Relative, ...] = ()
    start: Mapping[str, float] = field(default_factory=dict)

    def seconds(self, sets: Sets, tables: Sequence[Measured]) -> Array:
        """Predicted seconds of all rows of `tables`, one after the other."""
        return self._seconds(self.chip, sets, tables)

    def relative(self, sets: Sets, one: Relative, tables: Sequence[Measured]) -> Array:
        """The same on a relative."""
        inherit = {name: inherited(one.sets[name], old, sets[name]) for name, old in self.sets.items()}
        return self._seconds(one.chip, inherit, tables)

    def _seconds(self, chip: Chip, sets: Sets, tables: Sequence[Measured]) -> Array:
        only = with_sets(chip, self.stack, self.family, sets)
        return np.concatenate([predicted(table, only) for table in tables])


def inherited(child: Constants, old: Constants, new: Constants) -> Constants:
    """A set that extends another, after a change of that other: what was the same stays the same, and a share of the
    matrix peak of its own keeps its ratio, up to 1."""
    update: dict[str, object] = {}
    for name in type(child).model_fields:
        own, before, after = getattr(child, name), getattr(old, name), getattr(new, name)
        if name in Constants.model_fields or before == after:
            continue
        if own == before:
            update[name] = after
        elif name == "matrix":
            update[name] = min(1.0, float(f"{own * after / before:.{DIGITS}g}"))
    return child.model_copy(update=update)


def with_sets(chip: Chip, stack: str, family: str, sets: Sets) -> Chip:
    """The chip with nothing but these sets for its kernels: all that a prediction of one family needs."""
    generation = chip.generation
    return replace(chip, generation=Generation(generation.name, generation.matrix_style, {stack: {family: dict(sets)}}))


def sample(tables: Sequence[Measured], most: int, salt: str) -> list[Measured]:
    """At most `most` rows of some tables, always the same ones: those whose sizes have the smallest CRC-32."""
    total = sum(table.seconds.size for table in tables)
    if total <= most:
        return list(tables)
    marks = [_marks(table, salt) for table in tables]
    limit = np.sort(np.concatenate(marks))[most - 1]
    cut = [table.where(mark <= limit) for table, mark in zip(tables, marks, strict=True)]
    return [table for table in cut if table.seconds.size]


def _marks(table: Measured, salt: str) -> Array:
    columns = [np.asarray(values, np.int64).tolist() for values in table.shape.values()]
    rows = [f"{salt}|{'|'.join(map(str, row))}".encode() for row in zip(*columns, strict=True)]
    return np.array([crc32(row) for row in rows], dtype=np.float64)


def parameters(problem: Problem) -> list[Parameter]:
    """The constants that are free in a problem."""
    found = []
    for name, constants in problem.sets.items():
        for free in FREE[problem.family]:
            value = getattr(constants, free.name)
            missing = free.name in OPTIONAL and not value
            parent = LINKS.get(free.name)
            missing = missing or (parent is not None and getattr(constants, parent) is None)
            tied = name.endswith("_unpacked") and free.name in OF_PACKED
            single = getattr(constants, "splits", 2) == 1 and free.name.startswith("combine")
            other = free.name == "keys" and problem.family in TIED
            if not (missing or tied or single or other or free.name in problem.frozen):
                found.append(Parameter(name, free))
    return found


def replaced(problem: Problem, sets: Sets, values: Mapping[tuple[str, str], float | None]) -> dict[str, Constants]:
    """The sets with other values, and with what is tied to them."""
    result = {}
    for name, constants in sets.items():
        update: dict[str, object] = {own: value for (owner, own), value in values.items() if owner == name}
        for follower, leader in TIED.get(problem.family, {}).items():
            if leader in update:
                update[follower] = update[leader]
        if name.endswith("_unpacked"):
            packed = name.removesuffix("_unpacked")
            update |= {own: value for (owner, own), value in values.items() if owner == packed and own in OF_PACKED}
        result[name] = constants.model_copy(update=update) if update else constants
    return result


def fitted(problem: Problem, sets: Sets, free: Sequence[Parameter], rows: Sequence[Measured], tries: int) -> Sets:
    """The sets with the `free` constants that fit `rows` best, from where they stand. `tries`: of least squares."""
    from scipy.optimize import least_squares  # only those who calibrate pay for it

    lower = np.log([one.free.least for one in free])
    upper = np.log([one.free.most for one in free])
    start = np.clip(np.log([_start(sets, one) for one in free]), lower + 1e-6, upper - 1e-6)
    measured = np.log(_measured(rows))

    def residuals(point: Array) -> Array:
        values = {one.key: math.exp(value) for one, value in zip(free, point.tolist(), strict=True)}
        return np.asarray(np.log(problem.seconds(replaced(problem, sets, values), rows)) - measured)

    found = least_squares(
        residuals,
        start,
        jac=_slopes(residuals, upper),
        bounds=(lower, upper),
        loss="soft_l1",
        f_scale=SOFT,
        max_nfev=tries,
        xtol=1e-4,
        ftol=1e-5,
    )
    return replaced(
        problem, sets, {one.key: math.exp(value) for one, value in zip(free, found.x.tolist(), strict=True)}
    )


def _start(sets: Sets, one: Parameter) -> float:
    value = getattr(sets[one.set], one.free.name)
    return float(value) if value else one.free.start


def _slopes(residuals: Callable[[Array], Array], upper: Array) -> Callable[[Array], Array]:
    """Derivatives by steps of STEP, backwards at the upper bound."""

    def slopes(point: Array) -> Array:
        here = residuals(point)
        columns = []
        for index in range(point.size):
            step = STEP if point[index] + STEP <= upper[index] else -STEP
            moved = point.copy()
            moved[index] += step
            columns.append((residuals(moved) - here) / step)
        return np.array(columns).T

    return slopes


def mean_error(problem: Problem, sets: Sets, tables: Sequence[Measured]) -> float:
    """Mean absolute error in %."""
    return errors(problem.seconds(sets, tables), _measured(tables)).mape


def rounded(family: str, sets: Sets) -> dict[str, Constants]:
    """The sets with three digits a free constant, as files write them."""
    names = {free.name for free in FREE[family]}
    return {name: one.model_copy(update=_digits(one, names)) for name, one in sets.items()}


def _digits(constants: Constants, names: set[str]) -> dict[str, float]:
    values = {name: getattr(constants, name) for name in names}
    return {name: float(f"{value:.{DIGITS}g}") for name, value in values.items() if value is not None}


def usable(table: Measured) -> Flags:
    """The rows that a fit sees: its half, without windows, whose ends fill a block of keys that no constant is for."""
    windows = table.family == "generation attention"
    return np.asarray(table.fitted & (table.regime != "window") if windows else table.fitted)


def judging(table: Measured) -> Measured:
    """The rows that judge a fit: those it does not see, or all where there are too few to leave any out."""
    return table.where(~table.fitted) if not table.fitted.all() else table


def fit(problem: Problem) -> dict[str, Constants]:
    """The best constants of a problem: those of the best exponent, from where they stand and from a start that knows
    nothing, without what is not earned."""
    fitting = [table.where(used) for table in problem.tables if (used := usable(table)).any()]
    rows = sample(fitting, ROWS, "fit")
    free = parameters(problem)
    best = _best(problem, [fitted(problem, sets, free, rows, TRIES) for sets in _exponents(problem)], rows)
    afresh = replaced(problem, best, {one.key: one.free.start for one in free})
    best = _best(problem, [best, fitted(problem, afresh, free, rows, TRIES)], rows)
    return rounded(problem.family, _lean(problem, best, free, rows))


def _best(problem: Problem, tried: Sequence[Sets], rows: Sequence[Measured]) -> Sets:
    """Those of the least mean error, of equals the first."""
    return min(tried, key=lambda sets: mean_error(problem, sets, rows))


def _exponents(problem: Problem) -> list[Sets]:
    """The sets with each exponent of the menu; a family without one as it is."""
    sets = {name: one.model_copy(update=dict(problem.start)) for name, one in problem.sets.items()}
    if not any("overlap" in type(one).model_fields for one in sets.values()):
        return [sets]
    return [{name: one.model_copy(update={"overlap": overlap}) for name, one in sets.items()} for overlap in OVERLAPS]


def _lean(problem: Problem, sets: Sets, free: list[Parameter], rows: Sequence[Measured]) -> Sets:
    """The sets without the constants that are not worth EARNED: each is left out in turn, the least missed first."""
    loss = _judge(problem, sets)
    missed = []
    for one in free:
        if one.free.droppable:
            without = replaced(problem, sets, {one.key: one.free.default})
            missed.append((loss(without), one.key, one))
    for before, _, one in sorted(missed, key=lambda item: item[:2]):
        if before > HOPELESS:
            continue
        rest = [other for other in free if other.key != one.key]
        without = replaced(problem, sets, {one.key: one.free.default})
        if before > EARNED / 10.0:
            without = dict(fitted(problem, without, rest, rows, RETRIES))
        if loss(without) < EARNED:
            sets, free = without, rest
    return sets


def _judge(problem: Problem, full: Sets) -> Callable[[Sets], float]:
    """How much worse other sets are than `full`, in % of mean error: on rows not fitted or on relatives, the larger."""
    own = sample([judging(table) for table in problem.tables], JUDGED, "judge")
    others = [(one, sample(one.tables, JUDGED // 2, "judge")) for one in problem.relatives]

    def judged(sets: Sets) -> list[float]:
        far = [errors(problem.relative(sets, one, rows), _measured(rows)).mape for one, rows in others]
        return [mean_error(problem, sets, own), float(np.mean(far)) if far else 0.0]

    best = judged(full)
    return lambda sets: max(now - then for now, then in zip(judged(sets), best, strict=True))


def _measured(tables: Sequence[Measured]) -> Array:
    return np.concatenate([table.seconds for table in tables])
