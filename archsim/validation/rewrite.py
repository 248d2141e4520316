"""Rewrites sets of constants in a generation's file in place: comments, anchors, order and layout stay.

Only the text of the flow mappings that change is replaced; YAML's own marks say where each begins and ends.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from archsim.chip.constants import Constants
from archsim.yamlmarks import Where

WIDTH = 120
TIMES = {
    "fixed", "block", "query", "combine", "swap", "split", "epilogue", "wave", "routing", "chain", "one_shot", "rank",
    "two_shot", "ring", "ring_rank", "local", "low", "remote",
}  # fmt: skip
NANO = {"depth"}  # short times that are written in nanoseconds
BANDWIDTHS = {"feed", "combine_feed"}
LAST = ("error", "spread", "sibling", "fitted_on")  # these stand at the end, in this order
NULL = "null"

Values = Mapping[str, str | None]


@dataclass(frozen=True)
class Flow:
    """A flow mapping in a file: where its text is, and its pairs as they are written."""

    start: int
    end: int
    pairs: dict[str, str]


def flows(text: str) -> dict[Where, Flow]:
    """Every flow mapping below `kernels` by its path; where an alias repeats it, under each path."""
    import yaml

    root = yaml.compose(text, Loader=yaml.SafeLoader)
    return dict(_flows(root, (), text)) if isinstance(root, yaml.MappingNode) else {}


def _flows(node: Any, path: Where, text: str) -> Iterator[tuple[Where, Flow]]:
    for key, value in node.value:
        where = (*path, str(key.value))
        if where[0] != "kernels" or not isinstance(value.value, list) or value.id != "mapping":
            continue
        if value.flow_style:
            pairs = {str(name.value): _written(text, inner) for name, inner in value.value}
            begin = text.index("{", value.start_mark.index)  # the mark is of the anchor where there is one
            yield where, Flow(begin, value.end_mark.index, pairs)
        else:
            yield from _flows(value, where, text)


def _written(text: str, node: Any) -> str:
    return re.sub(r"\s*\n\s*", " ", text[node.start_mark.index : node.end_mark.index])


def owner(found: Mapping[Where, Flow], where: Where) -> Where | None:
    """The path under which the text of the set at `where` stands first: its own, or that of its anchor."""
    if where not in found:
        return None
    return next(path for path, flow in found.items() if flow.start == found[where].start)


def rewritten(text: str, changes: Mapping[Where, Values]) -> str:
    """The text with some values of some sets replaced; a value None takes its key out. Raises KeyError for a path
    that has no flow mapping."""
    found = flows(text)
    edits = {}
    for where, values in changes.items():
        flow = found[where]
        pairs = _merged(flow.pairs, values)
        if pairs != flow.pairs:
            edits[flow.start] = (flow, pairs)
    for start in sorted(edits, reverse=True):
        text = _replaced(text, *edits[start])
    return text


def _merged(pairs: Mapping[str, str], values: Values) -> dict[str, str]:
    """Old pairs in their order with their new values; new numbers after the old ones; what is known of them last."""
    result = {name: values.get(name, old) for name, old in pairs.items()}
    result |= {name: value for name, value in values.items() if name not in result}
    ordered = [name for name in result if name not in LAST] + [name for name in LAST if name in result]
    return {name: value for name in ordered if (value := result[name]) is not None}


def _replaced(text: str, flow: Flow, pairs: Mapping[str, str]) -> str:
    begin = text.rfind("\n", 0, flow.start) + 1
    before = text[begin : flow.start]
    items = [f"{name}: {value}" for name, value in pairs.items()]
    line = "{" + ", ".join(items) + "}"
    if before.strip() and len(before) + len(line) <= WIDTH:
        return text[: flow.start] + line + text[flow.end :]
    if before.strip():  # it stood beside its key, and has grown
        indent = len(before) - len(before.lstrip()) + 2
        return text[:begin] + before.rstrip() + "\n" + " " * indent + laid(pairs, indent) + text[flow.end :]
    return text[: flow.start] + laid(pairs, len(before)) + text[flow.end :]


def laid(pairs: Mapping[str, str], indent: int) -> str:
    """A flow mapping on lines of its own: numbers fill lines, where they come from starts one."""
    numbers = [f"{name}: {value}" for name, value in pairs.items() if name != "fitted_on"]
    origin = f"fitted_on: {pairs['fitted_on']}" if "fitted_on" in pairs else None
    lines = _filled([f"{item}," for item in numbers], indent + 1)
    if origin is not None:
        first, *rest = _filled(origin.split(" "), indent + 1, indent + 3)
        lines += [first, *rest]
    elif lines:
        lines[-1] = lines[-1].removesuffix(",")
    return "{" + "\n".join(lines).lstrip(" ") + "}"


def _filled(words: Iterable[str], first: int, other: int | None = None) -> list[str]:
    """Words on as few lines as hold them, the first indented by `first`, the others by `other`. The last keeps room
    for a brace."""
    lines: list[str] = []
    for word in words:
        if lines and len(lines[-1]) + 1 + len(word) < WIDTH:
            lines[-1] += f" {word}"
        else:
            lines.append(" " * (first if not lines or other is None else other) + word)
    return lines


def written(name: str, value: float | None) -> str:
    """A constant as a file writes it: three digits with its unit."""
    if value is None:
        return NULL
    if name in NANO:
        return f"{_digits(value * 1e9)} ns"
    if name in BANDWIDTHS:
        return f"{_digits(value / 1e9)} GB/s"
    return f"{_digits(value * 1e6)} us" if name in TIMES else _digits(value)


def _digits(value: float) -> str:
    return f"{float(f'{value:.3g}'):g}"


def changed(
    new: Constants, parent: Constants | None, pairs: Mapping[str, str], names: Iterable[str]
) -> dict[str, str | None]:
    """The numbers `names` of a set as its file has to write them: those that differ from what it extends, or from the
    defaults where it extends nothing; a number that falls back to that is taken out."""
    values: dict[str, str | None] = {}
    fields = type(new).model_fields
    for name in names:
        if name not in fields:
            continue
        value = getattr(new, name)
        if value != (getattr(parent, name) if parent is not None else fields[name].default):
            values[name] = written(name, value)
        elif name in pairs:
            values[name] = None
    return values
