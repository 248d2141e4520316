"""Schemas of files: the base model, its field types, and `validate`, which turns pydantic's errors into
faults.

A quantity is text with a unit in the file and a float in the model. Models are built by reading, so a bare
float is refused even in Python; to vary a value that was read, use `model_copy(update={...})` with the unit
named below.
"""

from __future__ import annotations

import json
import math
import re
import types
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    ValidationError,
)
from pydantic_core import CoreSchema, ErrorDetails, core_schema

from archsim.units import DIMENSIONS, UnitError, described, did_you_mean, format_named, parse
from archsim.yamlmarks import CatalogError, Document, Fault, Where

T = TypeVar("T", bound=BaseModel)
MAX_PROBLEMS = 200  # a fault costs time for its suggestion, and nobody reads more
_WHOLE = 2**53  # above it a float no longer holds every integer


@dataclass(frozen=True)
class Quantity:
    """Marks a float field as a quantity of a dimension, kept in `unit`, or in SI where none is named.

    Raises UnitError (a ValueError, so pydantic collects it) for what `archsim.units.parse` refuses.
    """

    dimension: str
    unit: str | None = None

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """Parse first, then let pydantic check the float."""
        return core_schema.no_info_before_validator_function(self.read, handler(source))

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        """What a file holds is text: reference pages show its wording and an example."""
        known = DIMENSIONS[self.dimension]
        return {"type": "string", "description": known.phrase, "examples": [known.example]}

    def read(self, value: object) -> float:
        """The value of a text such as "3.35 TB/s"."""
        return parse(value, self.dimension, self.unit)


Bytes = Annotated[float, Quantity("bytes")]  #: B
Bandwidth = Annotated[float, Quantity("bandwidth")]  #: B/s
Rate = Annotated[float, Quantity("rate")]  #: FLOP/s
Seconds = Annotated[float, Quantity("time")]  #: s
Hertz = Annotated[float, Quantity("frequency")]  #: Hz
Watts = Annotated[float, Quantity("power")]  #: W
Joules = Annotated[float, Quantity("energy")]  #: J
EnergyPerByte = Annotated[float, Quantity("energy_per_byte")]  #: J/B, also read from pJ/bit
EnergyPerFlop = Annotated[float, Quantity("energy_per_flop")]  #: J/FLOP
TokensPerSecond = Annotated[float, Quantity("token_rate")]  #: tok/s
Area = Annotated[float, Quantity("area")]  #: m2, also read from mm2
Dollars = Annotated[float, Quantity("money")]  #: USD
# Prices keep the unit that people quote, which their names say: hours, kWh, GB and million tokens, not SI.
DollarsPerHour = Annotated[float, Quantity("rent", "USD/h")]  #: USD/h
DollarsPerKWh = Annotated[float, Quantity("energy_price", "USD/kWh")]  #: USD/kWh
DollarsPerGB = Annotated[float, Quantity("byte_price", "USD/GB")]  #: USD per 1e9 B
DollarsPerMillionTokens = Annotated[float, Quantity("token_price", "USD/Mtok")]  #: USD per 1e6 tokens


def _number(value: object, expected: str) -> float:
    """A finite float from an int or float; booleans and text are refused, as YAML tells them apart."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise _refused(value, expected)
    try:
        number = float(value)
    except OverflowError:
        raise _refused(value, expected) from None
    if not math.isfinite(number):
        raise _refused(value, expected)
    return number


def _refused(value: object, expected: str) -> UnitError:
    return UnitError(f"expected {expected}, got {described(value)}")


def _fraction(value: object) -> float:
    expected = "a fraction between 0 and 1"
    number = _number(value, expected)
    if not 0 <= number <= 1:
        raise _refused(value, expected)
    return number


def _positive(value: object) -> float:
    expected = "a number above 0"
    number = _number(value, expected)
    if number <= 0:
        raise _refused(value, expected)
    return number


def _not_negative(value: object) -> float:
    expected = "a number of at least 0"
    number = _number(value, expected)
    if number < 0:
        raise _refused(value, expected)
    return number


def _whole(value: object, least: int) -> int:
    expected = f"a whole number of at least {least}"
    number = _number(value, expected)
    # 1e9 is a float in YAML and a fine count; beyond 2**53 a float is no exact count any more
    if number < least or not number.is_integer() or (isinstance(value, float) and number > _WHOLE):
        raise _refused(value, expected)
    return int(value)  # type: ignore[call-overload, no-any-return]  # _number has refused all but int and float


MOST, LARGEST = 10**6, 10**15  # of what is walked one by one; of what products of a few can still hold


def _count(value: object) -> int:
    return _at_most(_whole(value, 1), LARGEST, value)


def _few(value: object) -> int:
    return _at_most(_whole(value, 1), MOST, value)


def _at_most(count: int, most: int, value: object) -> int:
    if count > most:
        raise UnitError(f"expected at most {most:,}, got {described(value)}")
    return count


def _natural(value: object) -> int:
    return _at_most(_whole(value, 0), LARGEST, value)


def _format_name(value: object) -> str:
    return format_named(value).name


Fraction = Annotated[float, BeforeValidator(_fraction)]  #: 0 to 1, both included
Positive = Annotated[float, BeforeValidator(_positive)]  #: finite and above 0
NonNegative = Annotated[float, BeforeValidator(_not_negative)]  #: finite and at least 0
Count = Annotated[int, BeforeValidator(_count)]  #: whole and at least 1; 1e9 counts as whole
Few = Annotated[int, BeforeValidator(_few)]  #: whole, at least 1 and at most a million: what is walked one by one
Natural = Annotated[int, BeforeValidator(_natural)]  #: whole and at least 0
FormatName = Annotated[str, BeforeValidator(_format_name)]  #: a key of `archsim.units.FORMATS`


# Models


class StrictModel(BaseModel):
    """The base of every schema: unknown keys are errors, nothing is converted, instances are frozen.

    A field whose key is a Python keyword takes an alias: `source: str = Field(alias="from")`. Lists in a file
    may fill tuple fields. Validators raise ValueError with a whole sentence, or FaultAt to point inside.
    """

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        strict=True,
        allow_inf_nan=False,
        arbitrary_types_allowed=True,
        populate_by_name=True,
    )


class FaultAt(ValueError):
    """For a validator of a model to point inside it: raise FaultAt("no such link", "links", "up")."""

    def __init__(self, message: str, *where: str | int) -> None:
        super().__init__(message, *where)
        self.message = message
        self.where: Where = where

    def __str__(self) -> str:
        """The message."""
        return self.message


def validate(model: type[T], document: Document) -> T:
    """Build a model from a document. Raises CatalogError with a fault for each mistake, up to 200, in place.

    A missing key is reported at the key of the mapping that lacks it, an unknown key at itself, and anything
    else at the value.
    """
    try:
        # as JSON, where strictness still takes a list for a tuple and text for an enum, as files must
        return model.model_validate_json(json.dumps(document.data))
    except ValidationError as error:
        errors = error.errors(include_url=False)[:MAX_PROBLEMS]
        # a list of which items are wrong counts as too short too
        told = [e for e in errors if e["type"] != "too_short" or len(e["input"]) < e["ctx"]["min_length"]]
        found = [_problem(details, model, document) for details in told]
        raise CatalogError(_fault(problem, document) for problem in _united(found)) from None


@dataclass(frozen=True)
class _Problem:
    """One error: where in the data, at the key or the value, and whether it is of one branch of a union."""

    where: Where
    message: str
    on_key: bool = False
    branch: bool = False

    @property
    def mismatch(self) -> bool:
        """Whether a branch of a union just was not meant: the value is of another kind."""
        return self.branch and not self.on_key and self.message.startswith("expected ")


def _fault(problem: _Problem, document: Document) -> Fault:
    mark = document.mark(*problem.where)
    message = problem.message
    if not mark.line and problem.where:  # data without a file: the path has to say where
        message = f"{'.'.join(map(str, problem.where))}: {message}"
    return mark.key_fault(message) if problem.on_key else mark.fault(message)


def _problem(details: ErrorDetails, model: type[BaseModel], document: Document) -> _Problem:
    kind, loc = details["type"], details["loc"]
    if kind == "missing":
        where, branch = _walked(document.data, loc[:-1])
        return _Problem(where, f"missing key {str(loc[-1])!r}", True, branch)
    where, branch = _walked(document.data, loc)
    if kind == "extra_forbidden":
        known = _keys(model, document.data, where[:-1])
        return _Problem(where, _unknown_key(str(loc[-1]), known), True, branch)
    context = details.get("ctx", {})
    if kind == "union_tag_not_found":
        return _Problem(where, f"missing key {context['discriminator']}", True, branch)
    if kind == "union_tag_invalid":
        tag, key = str(context["tag"]), str(context["discriminator"]).strip("'")
        return _Problem((*where, key), _unlisted(str(context["expected_tags"]), tag), False, branch)
    error = context.get("error")
    if isinstance(error, FaultAt):
        return _Problem(where + error.where, error.message, False, branch)
    if isinstance(error, Exception):
        return _Problem(where, str(error) or "this value is not allowed", False, branch)
    return _Problem(where, _worded(details), loc[-1:] == ("[key]",), branch)


def _walked(data: Any, loc: Iterable[str | int]) -> tuple[Where, bool]:
    """The path in the data that a pydantic loc means, and whether it names a branch of a union too."""
    where: list[str | int] = []
    skipped = False
    for part in loc:
        inside = isinstance(data, dict) and part in data
        if inside or (isinstance(data, list) and isinstance(part, int) and 0 <= part < len(data)):
            data = data[part]
            where.append(part)
        else:
            skipped = True
    return tuple(where), skipped


def _unknown_key(key: str, known: list[str]) -> str:
    listed = f"; known keys: {', '.join(known)}" if known else ""
    return f"unknown key {described(key)}{did_you_mean(key, known) or listed}"


def _unlisted(expected: str, value: object) -> str:
    """A value outside a list, which pydantic words as "'gpu', 'lpu' or 3"."""
    hint = did_you_mean(value, re.findall("'([^']*)'", expected)) if isinstance(value, str) else ""
    return f"expected {expected.replace(', ', ' or ')}, got {described(value)}{hint}"


_EXPECTED = {
    "int": "a whole number",
    "float": "a number",
    "finite_number": "a finite number",
    "bool": "true or false",
    "string": "text",
    "list": "a list",
    "tuple": "a list",
    "set": "a list",
    "frozen_set": "a list",
    "iterable": "a list",
    "dict": "a mapping",
    "mapping": "a mapping",
    "model": "a mapping",
    "model_attributes": "a mapping",
    "dataclass": "a mapping",
    "none_required": "nothing",
    "greater_than": "a number above {gt}",
    "greater_than_equal": "a number of at least {ge}",
    "less_than": "a number below {lt}",
    "less_than_equal": "a number of at most {le}",
    "too_short": "at least {min_length} items",
    "too_long": "at most {max_length} items",
    "string_too_short": "text of at least {min_length} characters",
    "string_too_long": "text of at most {max_length} characters",
}


def _worded(details: ErrorDetails) -> str:
    """The message for an error of pydantic's own, without its jargon."""
    kind, value, context = details["type"], details["input"], details.get("ctx", {})
    if kind in ("literal_error", "enum"):
        return _unlisted(str(context["expected"]), value)
    stem = kind.removesuffix("_type").removesuffix("_parsing").removesuffix("_from_float")
    expected = _EXPECTED.get(stem)
    if expected is None:
        return details["msg"].replace("Input should be", "expected").replace("Input", "the value")
    quotes = " (write it in quotes)" if stem == "string" and isinstance(value, (bool, int, float)) else ""
    return f"expected {expected.format(**context)}, got {described(value)}{quotes}"


def _united(problems: list[_Problem]) -> Iterator[_Problem]:
    """One problem per mistake: pydantic reports each branch of a union on its own.

    Where a branch fits well enough for a fault inside it, the others were not meant; where none does, what
    all of them expected is one sentence.
    """
    mismatches: dict[Where, list[_Problem]] = {}
    for problem in problems:
        if not problem.mismatch:
            yield problem
        else:
            mismatches.setdefault(problem.where, []).append(problem)
    for where, group in mismatches.items():
        inner = any(other.where[: len(where)] == where for other in problems if other not in group)
        if inner:
            continue
        expected = dict.fromkeys(p.message.removeprefix("expected ").partition(", got ")[0] for p in group)
        tail = group[0].message.partition(", got ")[2]
        yield _Problem(where, f"expected {' or '.join(expected)}, got {tail}")


# What keys a mapping may have: the models at a path, found by walking annotations beside the data


def _keys(model: type[BaseModel], data: Any, where: Where) -> list[str]:
    """The keys that the models at a path know, by alias where there is one."""
    meant = _fitting([model], data)
    for part in where:
        data = data[part]
        meant = _fitting((inner for outer in meant for inner in _inside(outer, part)), data)
    fields = [(name, field) for leaf in meant if _is_model(leaf) for name, field in leaf.model_fields.items()]
    return list(dict.fromkeys(field.alias or name for name, field in fields))


def _fitting(annotations: Iterable[Any], data: Any) -> list[Any]:
    """The annotations without unions and wrappers, less models whose literal fields (`kind`) disagree."""
    leaves = [leaf for annotation in annotations for leaf in _leaves(annotation)]
    return [leaf for leaf in leaves if not _is_model(leaf) or _agrees(leaf, data)] or leaves


def _is_model(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, BaseModel)


def _leaves(annotation: Any) -> Iterator[Any]:
    annotation = getattr(annotation, "__value__", annotation)  # of a named type alias
    origin = get_origin(annotation)
    if origin is Annotated:
        yield from _leaves(get_args(annotation)[0])
    elif origin is Union or origin is types.UnionType:
        for part in get_args(annotation):
            yield from _leaves(part)
    else:
        yield annotation


def _agrees(model: type[BaseModel], data: Any) -> bool:
    if not isinstance(data, Mapping):
        return False
    fields = model.model_fields.items()
    literals = {name: get_args(field.annotation) for name, field in fields if _is_literal(field.annotation)}
    return all(data[name] in options for name, options in literals.items() if name in data)


def _is_literal(annotation: Any) -> bool:
    return get_origin(annotation) is Literal


def _inside(annotation: Any, part: str | int) -> tuple[Any, ...]:
    """The annotations that a value at `part` of something so annotated may have."""
    if _is_model(annotation):
        fields = annotation.model_fields.items()
        return tuple(field.annotation for name, field in fields if part in (name, field.alias))
    arguments = tuple(argument for argument in get_args(annotation) if argument is not Ellipsis)
    return arguments[-1:] if isinstance(part, str) else arguments
