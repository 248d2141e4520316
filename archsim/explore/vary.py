"""Axes of a sweep: `--vary FIELD=VALUES` read into a name and values, for one scenario.

`VALUES` is a list, a range, or both mixed: `1,8,64`, `1..512` (every whole number), `2..8TB/s:25` (25 values, evenly),
`1..1024:11log` (11 values, evenly over their logarithm), `0.5x..2x:7` (times what the scenario has). A unit is
mandatory where the field has one, and one unit at the end counts for numbers without before it.

A field that arrays can carry (`kind` value) is a number, in the unit of `Axis.unit`; every other field of a scenario,
and of the chip, model, mapper, runtime or traffic that it names, takes values as its file would (a structure axis).
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from archsim.arrays import Array, array
from archsim.catalog import CatalogError, read_text
from archsim.explore.axes import Field, fields_of, heads_of
from archsim.explore.scenario import Scenario
from archsim.units import UnitError, described, did_you_mean, parse

DEFAULT_COUNT = 11  # values of a range of quantities that gives no number
MOST_VALUES = 10_000_000  # of one axis


class VaryError(ValueError):
    """An axis that cannot be read; the text says what was expected."""


@dataclass(frozen=True)
class Setting:
    """One value of a structure axis: how it is called, and what it changes in the scenario's data, by dotted path."""

    label: str
    changes: Mapping[str, object]

    @property
    def number(self) -> float | None:
        """Its value, if it is one number."""
        values = list(self.changes.values())
        one = values[0] if len(values) == 1 and self.label[:1].isdigit() else None
        return float(one) if isinstance(one, int | float) and not isinstance(one, bool) else None


@dataclass(frozen=True, eq=False)
class Axis:
    """A field and its values.

    `name` is the column and, of a value axis, what `run` takes. `numbers` are those of a value axis, in `unit` (SI, and
    for prices the unit that files keep: USD/h, USD/kWh, USD/Mtok); None for a structure axis, which has `settings`.
    """

    name: str
    unit: str = ""
    dimension: str = ""
    numbers: Array | None = None
    settings: tuple[Setting, ...] = field(default=())

    def __len__(self) -> int:
        """How many values it has."""
        return len(self.settings) if self.numbers is None else int(self.numbers.size)

    @property
    def structure(self) -> bool:
        """Whether its values change what has to be built."""
        return self.numbers is None

    @property
    def labels(self) -> list[str]:
        """Its values as text."""
        if self.numbers is None:
            return [setting.label for setting in self.settings]
        return [f"{value:.15g}" for value in self.numbers]

    @property
    def text(self) -> bool:
        """Whether its column is of text: some value is no number."""
        return self.numbers is None and any(setting.number is None for setting in self.settings)

    def column(self) -> "np.typing.NDArray[np.generic]":
        """Its values as an array: numbers, or text."""
        if self.numbers is not None:
            return self.numbers
        return np.array(self.labels) if self.text else np.array([setting.number for setting in self.settings])

    def built(self, path: str) -> "Axis":
        """The same values as those of a structure axis, which sets whole numbers at a path."""
        numbers = [] if self.numbers is None else self.numbers.tolist()
        return Axis(self.name, settings=tuple(Setting(f"{value:.0f}", {path: int(value)}) for value in numbers))


def read_axes(texts: Sequence[str], scenario: Scenario, serving: bool = False) -> list[Axis]:
    """The axes of several `FIELD=VALUES`. Raises VaryError with every fault, and for a field that is given twice.

    Where requests are served one by one (`serving`), `rate`, `seed` and `requests` are fields too.
    """
    found: list[Axis] = []
    faults: list[str] = []
    for text in texts:
        try:
            axis = read_axis(text, scenario, serving)
        except VaryError as error:
            faults.append(str(error))
            continue
        if axis.name in (other.name for other in found):
            faults.append(f"--vary {text}: {axis.name!r} is varied twice")
        found.append(axis)
    if faults:
        raise VaryError("\n".join(faults))
    return found


def read_axis(text: str, scenario: Scenario, serving: bool = False) -> Axis:
    """The axis of `FIELD=VALUES`. Raises VaryError, with near names for an unknown field."""
    name, equals, spec = text.partition("=")
    name = name.strip()
    if not equals or not name or not spec.strip():
        raise VaryError(
            f"--vary {text}: expected FIELD=VALUES such as batch=1,8,64 or chip.memory.bandwidth=2..8TB/s:25"
        )
    try:
        return axis_of(name, spec, scenario, serving)
    except (VaryError, UnitError) as error:
        raise VaryError(f"--vary {text}: {error}") from None


def axis_of(name: str, values: "str | Sequence[object] | Array", scenario: Scenario, serving: bool = False) -> Axis:
    """The axis of a field with values: as text, or from Python as numbers in SI or a list of what a file would say.

    Raises VaryError, with near names for an unknown field.
    """
    known = fields_of(scenario, serving)
    asked = known.get(name)
    if asked is not None:
        return _value_axis(asked, values)
    _check_name(name, known, scenario)
    items = _items(values) if isinstance(values, str) else list(values)
    found: list[object] = []
    for item in items:
        found.extend(_plain(item) if isinstance(item, str) and isinstance(values, str) else [item])
    if not found:
        raise VaryError("give at least one value")
    path = path_of(name, scenario)
    return Axis(name, settings=tuple(Setting(_label(value), {path: value}) for value in found))


def _value_axis(asked: Field, values: "str | Sequence[object] | Array") -> Axis:
    """An axis of numbers, checked."""
    if isinstance(values, str):
        numbers = np.concatenate([_numbers(item, asked) for item in _shared_unit(_items(values))])
    else:
        numbers = array(list(values) if isinstance(values, range) else values).ravel()
    if not numbers.size:
        raise VaryError("give at least one value")
    if not np.isfinite(numbers).all() or (numbers < 0).any():
        raise VaryError("values must be finite and not negative")
    if asked.whole and ((numbers != np.round(numbers)).any() or (numbers < asked.least).any()):
        raise VaryError(f"{asked.name} takes whole numbers from {asked.least:.0f}")
    if (numbers < asked.least).any() or (numbers > asked.most).any():
        raise VaryError(f"{asked.name} takes values {_limits(asked)}")
    return Axis(asked.name, asked.unit, asked.dimension, numbers)


def _limits(asked: Field) -> str:
    """The limits of a field in words; the least number that is no zero reads as such."""
    least = "above 0" if 0 < asked.least < 1e-12 else f"from {asked.least:.6g}"
    return least if np.isinf(asked.most) else f"{least} to {asked.most:.6g}"


def _check_name(name: str, known: Mapping[str, Field], scenario: Scenario) -> None:
    """Raises VaryError for what is neither a number that arrays carry nor a place in the files."""
    if name.startswith("chip.") and scenario.partner is not None:
        pools = " or ".join(f"pools.{pool}.{name}" for pool in scenario.system.pools)
        raise VaryError(f"there are two pools: write {pools}")
    heads = heads_of(scenario)
    head = name.partition(".")[0]
    parts = name.split(".")
    if head == "pools" and len(parts) > 1 and parts[1] not in scenario.system.pools:
        near = did_you_mean(parts[1], scenario.system.pools) or f"; there are {', '.join(scenario.system.pools)}"
        raise VaryError(f"no pool {parts[1]!r}{near}")
    if head not in heads or any(not part for part in parts):
        near = did_you_mean(name, [*known, *heads]) or f"; fields begin with {', '.join(heads)}"
        raise VaryError(f"no field {name!r}{near}")


def path_of(name: str, scenario: Scenario) -> str:
    """The dotted path of a field in the data of a scenario: `chip` is that of the only pool."""
    if name in ("chips", "skew"):
        return "routing.skew" if name == "skew" else f"pools.{scenario.system.main_name}.count"
    head, dot, rest = name.partition(".")
    return f"pools.{scenario.system.main_name}.chip{dot}{rest}" if head == "chip" else name


# Values


_OPEN, _CLOSE = "[{(", "]})"


def _items(text: str) -> list[str]:
    """The parts of a list, split at commas outside of brackets and quotes."""
    parts, depth, quote = [""], 0, ""
    for letter in text:
        if quote:
            quote = "" if letter == quote else quote
        elif letter in "'\"":
            quote = letter
        elif letter in _OPEN:
            depth += 1
        elif letter in _CLOSE:
            depth -= 1
        if letter == "," and depth == 0 and not quote:
            parts.append("")
        else:
            parts[-1] += letter
    found = [part.strip() for part in parts]
    if not all(found):
        raise VaryError("a value is missing between two commas, or after the last")
    return found


_PART = re.compile(r"\s*([+-]?(?:\d[\d_]*\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)\s*([^\s\d.:+-][^:]*?)?\s*")
_COUNT = re.compile(r"\s*(\d[\d_]*)\s*(log|lin)?\s*")


@dataclass(frozen=True)
class _Range:
    """The ends of a range as (number, unit), how many values, and whether evenly over their logarithm."""

    low: tuple[str, str]
    high: tuple[str, str]
    count: int | None
    log: bool


def _range(item: str) -> _Range | None:
    """A range; None for a single value. Raises VaryError for one that is malformed."""
    low, dots, rest = item.partition("..")
    if not dots:
        return None
    high, colon, count = rest.partition(":")
    ends = [_PART.fullmatch(end) for end in (low, high)]
    many = _COUNT.fullmatch(count) if colon else None
    first, last = ends
    if first is None or last is None or (colon and many is None):
        raise VaryError(f"expected a range such as 1..512, 2..8TB/s:25 or 1..1024:11log, got {described(item)}")
    number = None if many is None else int(many[1].replace("_", ""))
    if number is not None and not 1 <= number <= MOST_VALUES:
        raise VaryError(f"a range has 1 to {MOST_VALUES:,} values, got {number}")
    units = first[2] or last[2] or "", last[2] or first[2] or ""
    return _Range((first[1], units[0]), (last[1], units[1]), number, many is not None and many[2] == "log")


def _shared_unit(items: list[str]) -> list[str]:
    """A number without a unit takes that of the next item that has one: `1,2,4 TB/s`."""
    unit, found = "", []
    for item in reversed(items):
        part = _PART.fullmatch(item)
        if part is not None and part[2]:
            unit = part[2]
        elif part is not None and unit:
            item = f"{item} {unit}"
        elif part is None and ".." in item:
            between = _range(item)
            unit = unit if between is None else between.high[1]
        found.append(item)
    return found[::-1]


def _numbers(item: str, asked: Field) -> Array:
    """The numbers of one item of a list, in the field's unit. Raises VaryError or UnitError."""
    between = _range(item)
    if between is None:
        part = _PART.fullmatch(item)
        if part is None:
            raise VaryError(f"expected {asked.example}, got {described(item)}")
        return array(_number(part[1], part[2] or "", asked))
    low, high = (_number(*end, asked) for end in (between.low, between.high))
    if high < low:
        raise VaryError(f"{item!r} runs backwards")
    if between.count is None and asked.whole:
        if high - low >= MOST_VALUES:
            raise VaryError(f"more than {MOST_VALUES:,} values")
        return np.arange(np.ceil(low), np.floor(high) + 1.0)
    count = DEFAULT_COUNT if between.count is None else between.count
    if between.log and low <= 0:
        raise VaryError("a range over logarithms starts above 0")
    spread = np.geomspace(low, high, count) if between.log else np.linspace(low, high, count)
    if not asked.whole:
        return spread
    return np.unique(np.round(spread))


def _number(text: str, unit: str, asked: Field) -> float:
    """A number with its unit, or a multiple of what the scenario has (`1.5x`)."""
    if unit == "x":
        if asked.now is None:
            raise VaryError(f"the scenario has no {asked.name} to multiply")
        return float(text) * asked.now
    if not asked.dimension:
        if unit:
            raise VaryError(f"{asked.name} has no unit, got {unit!r}")
        return float(text.replace("_", ""))
    return parse(f"{text} {unit}".strip(), asked.dimension, asked.parse_unit)


def _plain(item: str) -> list[object]:
    """Values of one item of a list as a file would say them; a range gives text with the unit, or numbers."""
    try:
        between = _range(item)
    except VaryError:
        between = None
    if between is not None:
        return _between(item, between)
    try:
        return [read_text(f"value: {item}", Path("--vary")).data["value"]]
    except CatalogError as error:
        raise VaryError(error.faults[0].message) from None


def _between(item: str, between: _Range) -> list[object]:
    """The values of a range in a file."""
    (first, unit), (second, other) = between.low, between.high
    if unit != other:
        raise VaryError(f"both ends of {item!r} need the same unit")
    low, high = float(first), float(second)
    if high < low:
        raise VaryError(f"{item!r} runs backwards")
    whole = not unit and low.is_integer() and high.is_integer()
    if between.count is None and whole:
        return [*range(int(low), int(high) + 1)]
    count = between.count or DEFAULT_COUNT
    spread = np.geomspace(low, high, count) if between.log and low > 0 else np.linspace(low, high, count)
    if unit:
        return [f"{value:.15g} {unit}" for value in spread.tolist()]
    return [int(value) for value in np.unique(np.round(spread))] if whole else spread.tolist()


def _label(value: object) -> str:
    """A value of a structure axis as a table shows it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key}: {_label(inner)}" for key, inner in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_label, value)) + "]"
    return "null" if value is None else str(value)
