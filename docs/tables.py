"""Tables of the reference pages, read from the program: schemas, units, formats, metrics and constants."""

import textwrap
import types
from collections.abc import Iterable, Iterator
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from notes import NOTES
from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from archsim.catalog import find, names, read
from archsim.chip import constants as families_of
from archsim.chip import memory as memories
from archsim.chip import schema as chips
from archsim.economics.prices import Prices
from archsim.economics.terms import Terms
from archsim.engine.cost import ALL_PARTS
from archsim.explore import pools
from archsim.explore import scenario as scenarios
from archsim.explore.result import METRICS, PRICED
from archsim.fields import Count, FormatName, Fraction, Natural, NonNegative, Positive, Quantity
from archsim.mapping import mapper, options, roles, runtime
from archsim.serving import policy, returning
from archsim.sources import SourceEntry
from archsim.units import DIMENSIONS, FORMATS, show
from archsim.workload import agents, lengths, traffic
from archsim.workload import architecture as configurations
from archsim.workload import schema as workloads


def _classes() -> Iterator[type[BaseModel]]:
    """Every schema of a file or of a part of one."""
    machines = chips, memories, families_of
    own = pools, roles, options, mapper, runtime
    for module in (*machines, scenarios, policy, traffic, lengths, agents, returning, *own, workloads, configurations):
        for value in vars(module).values():
            own = isinstance(value, type) and issubclass(value, BaseModel) and value.__module__ == module.__name__
            if own:
                yield value
    yield from (Terms, Prices, SourceEntry)


CLASSES: dict[str, type[BaseModel]] = {model.__name__: model for model in _classes()}

_WORDS = {
    "Count": (Count, "a whole number from 1"),
    "Natural": (Natural, "a whole number from 0"),
    "Fraction": (Fraction, "a fraction from 0 to 1"),
    "Positive": (Positive, "a number above 0"),
    "NonNegative": (NonNegative, "a number from 0"),
    "FormatName": (FormatName, "a [number format](#number-formats)"),
}
_PLAIN = {str: "text", int: "a whole number", float: "a number", bool: "`true` or `false`", object: "anything"}


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """A Markdown table."""
    lines = [list(head), *(list(row) for row in rows)]
    lines.insert(1, ["---"] * len(lines[0]))
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


# Schemas


def own_fields(model: type[BaseModel]) -> dict[str, FieldInfo]:
    """The fields of a schema, without those that every set of constants has."""
    shared = families_of.Constants.model_fields if model is not families_of.Constants else {}
    common = shared if issubclass(model, families_of.Constants) else {}
    return {name: field for name, field in model.model_fields.items() if name not in common}


def fields(model: type[BaseModel]) -> str:
    """The keys of a mapping: what each holds, its default, and what it means."""
    rows = []
    for name, field in own_fields(model).items():
        holds = worded(field.annotation, field.metadata)
        rows.append([f"`{field.alias or name}`", holds, default(field), meaning(model, name)])
    return table(["key", "holds", "default", "meaning"], rows)


def meaning(model: type[BaseModel], name: str) -> str:
    """The description of a field: the schema's own, or the note that stands in for it."""
    return model.model_fields[name].description or NOTES.get(f"{model.__name__}.{name}", "")


def worded(annotation: Any, metadata: Iterable[Any] = ()) -> str:
    """A type in words."""
    for item in metadata:
        if isinstance(item, Quantity):
            known = DIMENSIONS[item.dimension]
            return f"{known.phrase}: `{known.example}`"
        for alias, words in _WORDS.values():
            if item in get_args(alias)[1:]:
                return words
    origin, inside = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return worded(inside[0], inside[1:])
    if origin in (Union, types.UnionType):
        return listed(dict.fromkeys(worded(part) for part in inside if part is not type(None)))
    if origin is Literal:
        return listed(f"`{value}`" for value in inside)
    return _compound(annotation, origin, inside)


def listed(words: Iterable[str]) -> str:
    """Alternatives: "a, b or c"."""
    *first, last = words
    return f"{', '.join(first)} or {last}" if first else last


def _compound(annotation: Any, origin: Any, inside: tuple[Any, ...]) -> str:
    if origin is tuple and inside[-1] is Ellipsis:
        return f"a list, each {worded(inside[0])}"
    if origin is tuple:
        return f"a list of {len(inside)}, each {worded(inside[0])}"
    if origin is dict:
        return f"a mapping from {worded(inside[0])} to {worded(inside[1])}"
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return f"[{annotation.__name__}](#{annotation.__name__.lower()})"
    return _PLAIN.get(annotation, str(annotation))


def default(field: FieldInfo) -> str:
    """The default of a field, as a file would say it."""
    value = field.default
    if value is PydanticUndefined or field.is_required():
        return "**required**"
    if value is None:
        return "none"
    if isinstance(value, BaseModel):
        return "its defaults"
    for item in field.metadata:
        if isinstance(item, Quantity):
            known = DIMENSIONS[item.dimension]
            return f"`{_trimmed(show(value * (known.units[item.unit] if item.unit else 1.0), item.dimension))}`"
    return f"`{_yaml(value)}`"


def _trimmed(text: str) -> str:
    number, _, unit = text.partition(" ")
    return f"{number.rstrip('0').rstrip('.') if '.' in number else number} {unit}".strip()


def _yaml(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(_yaml(item) for item in value)}]"
    return f"{value:g}" if isinstance(value, float) else "{}" if value == {} else str(value)


# What the program knows


def quantities() -> str:
    """Every kind of quantity with units it takes."""
    rows = []
    for known in DIMENSIONS.values():
        rows.append([known.phrase, f"`{known.example}`", ", ".join(f"`{unit}`" for unit in known.ladder)])
    return table(["quantity", "example", "units, among others"], rows)


def formats() -> str:
    """The formats of numbers."""
    rows = [
        [
            f"`{f.name}`",
            f"{f.bits:g}",
            f"{f.scale_bits:g} a {f.group}" if f.scale_bits else "",
            f"{f.bytes:.5g}",
            f"`{f.base}`",
        ]
        for f in FORMATS.values()
    ]
    return table(["format", "bits", "bits of scale", "bytes an element", "matrix rate used"], rows)


def parts() -> str:
    """The parts of a cost, in the order of the chain."""
    return table(["part", "what it is"], ([f"`{name}`", text] for name, text in ALL_PARTS.items()))


def metrics() -> str:
    """The metrics of a result."""
    units = {
        "token_price": "USD/Mtok",
        "token_rate": "tok/s",
        "time": "s",
        "power": "W",
        "energy": "J",
        "bytes": "B",
        "revenue": "USD/h",
        "power_revenue": "USD/(MW h)",
        "": "1",
    }
    known = METRICS | PRICED
    return table(["metric", "unit", "what it is"], ([f"`{n}`", units[d], text] for n, (d, text, _) in known.items()))


def families() -> str:
    """The kernel families and the class of their constants."""
    rows = []
    for name, model in families_of.FAMILIES.items():
        about = (model.__doc__ or "").splitlines()[0].replace("`", "")
        rows.append([f"`{name}`", f"[{model.__name__}](#{model.__name__.lower()})", about])
    return table(["family", "constants", "what it prices"], rows)


def errors() -> str:
    """The mean absolute errors that the files of generations state, by family: the range over formats.

    What a generation takes over from another with `extends` is not its own and does not count.
    """
    own = {name: read(find("chips/generations", name)).data["kernels"] for name in names("chips/generations")}
    sets = {name: stacks["vllm"] for name, stacks in own.items() if _stated(stacks.get("vllm", {}).values())}
    kernels = [family for family, of in families_of.FAMILIES.items() if not issubclass(of, families_of.Machine)]
    rows = [[f"`{family}`", *(_range(of.get(family, {})) for of in sets.values())] for family in kernels]
    return table(["kernel family", *sets], rows)


def _stated(formats: Iterable[dict[str, Any]]) -> list[float]:
    """The errors that the sets of some families state, from the lowest."""
    return sorted({found["error"] for sets in formats for found in sets.values() if found.get("error")})


def _range(formats: dict[str, Any]) -> str:
    known = _stated([formats])
    if not known:
        return "not stated"
    return f"{known[0]:.1f} %" if len(known) == 1 else f"{known[0]:.1f} to {known[-1]:.1f} %"


def shipped() -> str:
    """What ships, by kind and folder."""
    kinds = {"Chips": "chips", "Models": "workloads", "Runtimes": "mappers/runtimes", "Mappers": "mappers"}
    kinds["Scenarios"] = "examples"
    return "".join(_item(f"{title}: {', '.join(f'`{name}`' for name in names(kind))}") for title, kind in kinds.items())


def _item(text: str) -> str:
    return textwrap.fill(f"- {text}", 120, subsequent_indent="  ", break_on_hyphens=False) + "\n"
