"""Constants fitted to a user's own benchmark, and the generation file that holds them."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from archsim.catalog import fetch
from archsim.chip.constants import Constants
from archsim.chip.model import Chip
from archsim.chip.schema import load_chip
from archsim.units import did_you_mean
from archsim.validation.bench import Bench
from archsim.validation.calibrate import Outcome, halved, outcome
from archsim.validation.families import LOADERS
from archsim.validation.fit import FREE, Problem, parameters
from archsim.validation.measured import Measured
from archsim.validation.rewrite import LAST, laid, written

ENOUGH = 40  # rows from which half are kept to judge
EACH = 3  # rows that a free constant needs


def fitted_to(bench: Bench, chip_name: str, stack: str, like: str) -> list[Outcome]:
    """Fits the sets of a stack to a file, from those of the stack `like` where it has none. Raises ValueError where a
    family has fewer rows than constants."""
    chip = load_chip(chip_name)
    found = []
    for family in dict.fromkeys(row.family for row in bench.rows):
        loader, _ = LOADERS[family]
        for table in loader(bench, chip_name, stack, None):
            found.append(outcome(chip.generation.name, _problem(chip, stack, like, table)))
    return found


def _problem(chip: Chip, stack: str, like: str, table: Measured) -> Problem:
    """The problem of one table: its product alone, no flags, half of the rows to judge where there are enough."""
    kernel = table.kernels[0]
    cut = halved(replace(table, kernels=(kernel,), flags={}))
    if cut.seconds.size < ENOUGH or not cut.fitted.any():
        cut = replace(cut, fitted=np.ones(cut.seconds.shape, np.bool_))
    kernels = chip.generation.kernels
    sets = kernels.get(stack, {}).get(kernel.kind) or kernels.get(like, {}).get(kernel.kind)
    if not sets:
        raise ValueError(f"{chip.name} has no constants of {kernel.kind} to start from{did_you_mean(like, kernels)}")
    name = "any" if "any" in sets else kernel.weight.name
    start = sets.get(name) or next(iter(sets.values()))
    problem = Problem(kernel.kind, stack, {name: start}, chip, (cut,))
    rows = int(cut.fitted.sum())
    if rows < EACH * len(parameters(problem)):
        loose = tuple(free.name for free in FREE[kernel.kind] if free.droppable)
        problem = replace(problem, frozen=loose)
    least = len(parameters(problem))
    if rows < least:
        raise ValueError(f"{table.family} in {table.format} has {rows} rows, fewer than its {least} constants")
    return problem


def generation_text(found: Sequence[Outcome], chip_name: str, name: str, bench: str, stack: str, like: str) -> str:
    """The file of a generation that extends the chip's with the sets that were fitted.

    A stack that the chip's generation does not know has the sets of `like` for all that was not measured.
    """
    chip = load_chip(chip_name)
    kernels = chip.generation.kernels
    rest = {} if stack in kernels else kernels[like]
    own = {(one.family, fmt): _noted(one, fmt) for one in found for fmt in one.final}
    base = fetch("chips", chip_name).data["generation"]
    lines = [f"# Constants of the stack {stack} on {chip.name}, fitted to {bench} by archsim calibrate.",
             f"name: {name}", f"extends: {base}", f"matrix_style: {chip.generation.matrix_style}", "kernels:",
             f"  {stack}:"]  # fmt: skip
    for family in dict.fromkeys([*rest, *(family for family, _ in own)]):
        lines.append(f"    {family}:")
        sets = {fmt: _pairs(one, f"those of {like}") for fmt, one in rest.get(family, {}).items()}
        sets |= {fmt: dict(pairs) for (other, fmt), pairs in own.items() if other == family}
        for fmt, pairs in sets.items():
            lines += [f"      {fmt}:", " " * 8 + laid(pairs, 8)]
    return "\n".join([*lines, *_sources(own, rest, stack, bench, like)]) + "\n"


def _noted(one: Outcome, name: str) -> Mapping[str, str]:
    """A fitted set as it is written, with its error where rows were left to judge it."""
    pairs = dict(_pairs(one.final[name], f"{one.rows:,} of {one.shapes:,} rows"))
    origin = pairs.pop("fitted_on")
    if one.rows < one.shapes:
        pairs |= {"error": f"{one.score.error:.1f}", "spread": f"{one.score.spread:.2g}"}
    return pairs | {"fitted_on": origin}


def _pairs(constants: Constants, origin: str) -> dict[str, str]:
    """Every number that is not at its default, as text."""
    pairs = {}
    for name, field in type(constants).model_fields.items():
        value = getattr(constants, name)
        if name in LAST or value == field.default:
            continue
        if isinstance(value, bool):
            pairs[name] = str(value).lower()
        elif isinstance(value, tuple):
            pairs[name] = str([list(pair) for pair in value])
        else:
            pairs[name] = str(value) if isinstance(value, int) else written(name, value)
    return pairs | {"fitted_on": f'"{origin}"'}


def _sources(
    own: Mapping[tuple[str, str], object], rest: Mapping[str, object], stack: str, bench: str, like: str
) -> list[str]:
    fitted = ", ".join(f"kernels.{stack}.{family}.{fmt}" for family, fmt in own)
    lines = ["sources:", f"  - of: [{fitted}]", "    kind: measured", f'    ref: "{bench}"']
    if rest:
        taken = ", ".join(f"kernels.{stack}.{family}" for family in rest)
        lines += [f"  - of: [{taken}]", "    kind: assumption", f'    ref: "those of the stack {like}"']
    return lines
