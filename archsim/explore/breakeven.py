"""Where two designs change places: every value of a number at which the better one becomes the other.

Both are priced along the range at once, each at its best plan. Between every two values at which they stand
differently, closer values are priced, until the ends are a millionth apart, or neighbours among whole numbers.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from archsim.arrays import Array, array
from archsim.explore.axes import Field, fields_of
from archsim.explore.result import METRICS
from archsim.explore.scenario import Scenario
from archsim.explore.sensitivity import ends_of, metric_name, number_axes
from archsim.explore.variants import Answers, answers
from archsim.units import did_you_mean

SCAN = 65  # values of the first look, where the range does not say how many
CLOSER = 17  # values of each look into a bracket
TOLERANCE = 1e-6  # of a value, at which a bracket is narrow enough
FIRST, SECOND, TIE, ONLY_FIRST, ONLY_SECOND, NEITHER = range(6)
STANDINGS = (
    "first is better",
    "second is better",
    "a tie",
    "only the first is usable",
    "only the second is usable",
    "none is usable",
)
ALL_OF_A_DESIGN = ("chip", "pools", "links", "split", "economics", "chips")  # fields of one design rather than of both
BETTER_MORE = frozenset({"interactivity", "throughput", "throughput_per_chip", "input_throughput"})


@dataclass(frozen=True)
class Crossing:
    """Between two values, how the designs stand below and above, and their metrics at either end.

    `value` is where they are equal, by a line through both ends; where one jumps past the other, or one no longer
    fits, the middle. `jumps` says that they do not meet there.
    """

    low: float
    high: float
    value: float
    below: int
    above: int
    first: tuple[float, float]
    second: tuple[float, float]
    jumps: bool


@dataclass(frozen=True, eq=False)
class Breakeven:
    """Two designs along a number: what was priced, in order, and every crossing.

    `standings` are indices into STANDINGS. `reasons` say why a design does not fit, where it does not.
    """

    first: Scenario
    second: Scenario
    field: Field
    varied: str
    output: str
    mode: str
    values: Array
    outputs: tuple[Array, Array]
    standings: npt.NDArray[np.int64]
    crossings: tuple[Crossing, ...]
    reasons: tuple[tuple[str, ...], tuple[str, ...]]

    @property
    def usable(self) -> bool:
        """Whether either design is usable anywhere in the range."""
        return bool((self.standings != NEITHER).any())

    @property
    def ratio(self) -> Array:
        """The metric of the second design over that of the first; NaN where one does not fit."""
        return np.asarray(self.outputs[1] / self.outputs[0])


def field_of(first: Scenario, second: Scenario, name: str, varied: str) -> Field:
    """The field of the designs that it is varied in. Raises ValueError with near names for an unknown one."""
    asked = {"first": [first], "second": [second], "both": [first, second]}[varied]
    for scenario in asked:
        known = fields_of(scenario)
        if name not in known:
            hint = did_you_mean(name, known) or f"; there are {', '.join(list(known)[:8])} and others"
            raise ValueError(f"{scenario.name!r} has no number {name!r} that can be varied{hint}")
    return fields_of(asked[0])[name]


def varied_in(name: str) -> str:
    """In which designs a field is varied unless it is said: one of chips or money in the first, others in both."""
    return "first" if name.partition(".")[0] in ALL_OF_A_DESIGN else "both"


def looked_at(text: str, scenario: Scenario) -> tuple[str, Array]:
    """The field of `FIELD=LOW..HIGH` and the values of the first look, as many as it says or SCAN.

    Raises VaryError for what cannot be read, ValueError for what is no range of numbers.
    """
    (axis,) = number_axes([text], scenario)
    low, high = ends_of(axis)
    numbers = array(axis.numbers)
    if not low < high:
        raise ValueError(f"--vary {text}: give a range, such as {axis.name}=LOW..HIGH")
    if ":" in text or (numbers.size > 2 and numbers.size <= 2 * SCAN and "," in text):
        return axis.name, numbers
    spread = np.geomspace(low, high, SCAN) if low > 0 and high >= 50 * low else np.linspace(low, high, SCAN)
    return axis.name, np.unique(np.round(spread)) if fields_of(scenario)[axis.name].whole else spread


def breakeven(
    first: Scenario,
    second: Scenario,
    mode: str,
    name: str,
    values: Array,
    output: str = "cost_per_token",
    varied: str | None = None,
) -> Breakeven:
    """Where two designs change places along a field, looked for between all neighbours of `values`.

    `varied` is `first`, `second` or `both`; where it is not given, `varied_in` decides. Raises ValueError for a field
    that the designs do not have, KeyError for an unknown metric.
    """
    output, varied = metric_name(output), varied or varied_in(name)
    field = field_of(first, second, name, varied)
    looked = _Looked(first, second, mode, field, output, varied)
    points = looked.at(np.unique(values))
    brackets = points.brackets()
    while True:
        wide = [pair for pair in brackets if not _narrow(points.values[pair], points.values[pair + 1], field.whole)]
        if not wide:
            break
        points = points.joined(looked.at(_inside(points.values, wide, field.whole)))
        brackets = points.brackets()
    crossings = tuple(points.crossing(pair) for pair in brackets)
    return Breakeven(
        first,
        second,
        field,
        varied,
        output,
        mode,
        points.values,
        (points.first, points.second),
        points.standings,
        crossings,
        points.reasons,
    )


def _narrow(low: float, high: float, whole: bool) -> bool:
    return high - low <= 1.0 if whole else high - low <= TOLERANCE * max(abs(low), abs(high))


def _inside(values: Array, brackets: list[int], whole: bool) -> Array:
    """Values within brackets, evenly; at most so many a bracket."""
    found = np.concatenate([np.linspace(values[pair], values[pair + 1], CLOSER)[1:-1] for pair in brackets])
    return np.setdiff1d(np.round(found) if whole else found, values)


@dataclass(frozen=True)
class _Looked:
    """How both designs are priced."""

    first: Scenario
    second: Scenario
    mode: str
    field: Field
    output: str
    varied: str

    def at(self, values: Array) -> "_Points":
        """Both designs at values of the field."""
        first, second = (
            self._design(item, side, values) for item, side in ((self.first, "first"), (self.second, "second"))
        )
        outputs = [np.broadcast_to(found.usable(self.output), values.shape) for found in (first, second)]
        reasons = tuple(_reasons(found, values.size) for found in (first, second))
        standings = _standings(outputs[0], outputs[1], self.output in BETTER_MORE)
        return _Points(values, outputs[0], outputs[1], standings, (reasons[0], reasons[1]))

    def _design(self, scenario: Scenario, side: str, values: Array) -> Answers:
        fields: Mapping[str, Array] = {self.field.name: values} if self.varied in (side, "both") else {}
        return answers(scenario, self.mode, fields, (self.output,))


def _reasons(found: Answers, size: int) -> tuple[str, ...]:
    texts = [text or ("" if kept else "SLO") for text, kept in zip(found.reason, found.kept, strict=True)]
    return tuple(texts * size if len(texts) == 1 else texts)


def _standings(first: Array, second: Array, more: bool) -> npt.NDArray[np.int64]:
    one, two = np.isfinite(first), np.isfinite(second)
    ahead = first > second if more else first < second
    both = np.where(first == second, TIE, np.where(ahead, FIRST, SECOND))
    single = np.where(one, ONLY_FIRST, np.where(two, ONLY_SECOND, NEITHER))
    return np.where(one & two, both, single).astype(np.int64)


@dataclass(frozen=True, eq=False)
class _Points:
    """Both designs at sorted values."""

    values: Array
    first: Array
    second: Array
    standings: npt.NDArray[np.int64]
    reasons: tuple[tuple[str, ...], tuple[str, ...]]

    def joined(self, other: "_Points") -> "_Points":
        """These points and others, sorted."""
        values = np.concatenate([self.values, other.values])
        order = np.argsort(values, kind="stable")
        columns = [np.concatenate(pair)[order] for pair in ((self.first, other.first), (self.second, other.second))]
        reasons = [[*mine, *theirs] for mine, theirs in zip(self.reasons, other.reasons, strict=True)]
        sorted_reasons = tuple(tuple(texts[i] for i in order) for texts in reasons)
        standings = np.concatenate([self.standings, other.standings])[order]
        return _Points(values[order], columns[0], columns[1], standings, (sorted_reasons[0], sorted_reasons[1]))

    def brackets(self) -> list[int]:
        """Indices of the lower ends of neighbours at which the designs stand differently."""
        return np.flatnonzero(self.standings[1:] != self.standings[:-1]).tolist()

    def crossing(self, pair: int) -> Crossing:
        """The crossing between a value and the next."""
        low, high = float(self.values[pair]), float(self.values[pair + 1])
        first = (float(self.first[pair]), float(self.first[pair + 1]))
        second = (float(self.second[pair]), float(self.second[pair + 1]))
        gaps = first[0] - second[0], first[1] - second[1]
        value, jumps = (low + high) / 2.0, True
        if np.isfinite(gaps).all() and gaps[0] != gaps[1]:
            value = low + (high - low) * gaps[0] / (gaps[0] - gaps[1])
            jumps = min(abs(gaps[0]), abs(gaps[1])) > 1e-3 * abs(first[0])
        return Crossing(
            low, high, value, int(self.standings[pair]), int(self.standings[pair + 1]), first, second, jumps
        )


def settled(found: Breakeven) -> str:
    """Why the designs never change places, in a sentence; empty where they do."""
    if found.crossings:
        return ""
    standing = int(found.standings[0])
    if standing in (ONLY_FIRST, ONLY_SECOND, NEITHER):
        return f"{STANDINGS[standing]} anywhere in the range"
    if standing == TIE:
        return "they tie everywhere in the range"
    ratio = found.ratio
    if np.ptp(ratio) < 1e-12 * ratio[0]:
        return f"{STANDINGS[standing]}, and {found.field.name} changes nothing: a ratio of {ratio[0]:.4g} throughout"
    nearest = int(np.argmin(np.abs(np.log(ratio))))
    at, least = found.values[nearest], ratio[nearest]
    return f"{STANDINGS[standing]} everywhere in the range; nearest at {at:.6g}, a ratio of {least:.4g}"


def check_output(name: str) -> None:
    """Refuses a metric of which neither more nor less is better."""
    if METRICS[metric_name(name)][0] == "":
        raise ValueError(f"of {name} neither more nor less is better; take cost_per_token, tpot or throughput_per_chip")
