"""What the files of generations say after a calibration: new numbers in place, and what is known of all of them."""

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from archsim.catalog import find
from archsim.chip.constants import Constants
from archsim.chip.model import Generation
from archsim.chip.schema import load_generation
from archsim.validation.calibrate import GENERATIONS, WEIGHT_ONLY, Outcome
from archsim.validation.database import STACKS
from archsim.validation.fit import FREE, inherited
from archsim.validation.rewrite import NULL, Flow, Values, changed, flows, owner, rewritten
from archsim.yamlmarks import Where

# Generations that extend a fitted one with shares of their own, and the chips that their errors are of.
EXTENDING: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "blackwell-ultra": ("blackwell", ("nvidia/b300-sxm", "nvidia/gb300"))
}
# What a text said of how an earlier fit was made, which a new one makes untrue.
STALE = re.compile(
    r"[;,] (fitted anew with this exponent|fitted anew in this form|fitted with this exponent|fitted in this form|"
    r"memory fitted as [^;\"]*|matrix fitted as [^;\"]*|memory set so [^;\"]*|half of [\d,]+ shapes)"
)
Kernels = dict[str, dict[str, dict[str, Constants]]]


def updated(found: Sequence[Outcome]) -> dict[str, tuple[Path, str]]:
    """The files that change: path and new text, by generation."""
    update = _Update()
    for generation in GENERATIONS:
        own = [outcome for outcome in found if outcome.generation == generation]
        if own:
            update.fit(generation, own)
    for generation, (parent, chips) in EXTENDING.items():
        update.extend(generation, parent, chips, [outcome for outcome in found if outcome.generation == parent])
    return update.files()


class _Update:
    """Files on their way to their new texts; generations that others extend come first."""

    def __init__(self) -> None:
        self.texts: dict[str, tuple[Path, str, str]] = {}
        self.now: dict[str, Kernels] = {}

    def files(self) -> dict[str, tuple[Path, str]]:
        """What differs from what was read."""
        return {name: (path, text) for name, (path, old, text) in self.texts.items() if text != old}

    def fit(self, generation: str, found: Sequence[Outcome]) -> None:
        """Writes the outcomes of one generation, and what was borrowed from them."""
        path, text = _read(generation)
        marks = flows(text)
        parent = self._parent(text)
        before = load_generation(generation)
        kernels = _copied(before)
        chosen = _chosen(found, marks)
        for where, (outcome, name) in chosen.items():
            for other in _sharing(marks, where):
                kernels[other[0]][other[1]][other[2]] = outcome.final[name]
        changes: dict[Where, Values] = {}
        for where, (outcome, name) in chosen.items():
            _, stack, family, fmt = map(str, where)
            below = parent.get(stack, {}).get(family, {}).get(fmt)
            pairs = marks[where].pairs
            numbers = changed(outcome.final[name], below, pairs, _names(family))
            changes[where] = numbers | _known(outcome, pairs)
        for where, outcome, constants in _borrowed(before, marks, chosen):
            _, stack, family, fmt = map(str, where)
            below = parent.get(stack, {}).get(family, {}).get(fmt)
            pairs = marks[where].pairs
            known = _known(outcome, pairs) if "error" in pairs and pairs["error"] != NULL else {}
            changes[where] = changed(constants, below, pairs, _names(family)) | known
            for other in _sharing(marks, where):
                kernels[other[0]][other[1]][other[2]] = constants
        self.texts[generation] = (path, text, rewritten(text, changes))
        self.now[generation] = kernels

    def extend(self, generation: str, parent: str, chips: Sequence[str], found: Sequence[Outcome]) -> None:
        """Shares of the matrix peak that a generation scales from its parent's, and its errors."""
        if parent not in self.now:
            return
        path, text = _read(generation)
        before, old, new = load_generation(generation), load_generation(parent), self.now[parent]
        scores = {(o.stack, o.family, name): o.score for o in found for name in o.final}
        changes: dict[Where, Values] = {}
        for where, flow in flows(text).items():
            _, stack, family, fmt = map(str, where)
            own = before.kernels[stack][family][fmt]
            values: dict[str, str | None] = {}
            if "matrix" in flow.pairs:
                scaled = inherited(own, old.kernels[stack][family][fmt], new[stack][family][fmt])
                values = changed(scaled, None, {}, ["matrix"])
            score = scores.get((stack, family, fmt))
            if score is not None and "error" in flow.pairs:
                far = [score.relatives[chip] for chip in chips if chip in score.relatives]
                values |= {"error": _percent(sum(far) / len(far))} if far else {}
            changes[where] = values
        self.texts[generation] = (path, text, rewritten(text, changes))

    def _parent(self, text: str) -> Kernels:
        match = re.search(r"^extends: *(\S+)", text, re.MULTILINE)
        if match is None:
            return {}
        return self.now.get(match[1]) or _copied(load_generation(match[1]))


def _read(generation: str) -> tuple[Path, str]:
    path = find("chips/generations", generation)
    return path, path.read_text(encoding="utf-8")


def _copied(generation: Generation) -> Kernels:
    return {
        stack: {family: dict(sets) for family, sets in families.items()}
        for stack, families in generation.kernels.items()
    }


def _names(family: str) -> list[str]:
    return [*(free.name for free in FREE[family]), "overlap"]


def _chosen(found: Sequence[Outcome], marks: Mapping[Where, Flow]) -> dict[Where, tuple[Outcome, str]]:
    """The outcome of each set by where its text stands; of stacks that share one the first that was measured."""
    chosen: dict[Where, tuple[Outcome, str]] = {}
    for outcome in sorted(found, key=lambda one: STACKS.index(one.stack)):
        for name in outcome.final:
            where = owner(marks, ("kernels", outcome.stack, outcome.family, name))
            if where is not None:
                chosen.setdefault(where, (outcome, name))
    return chosen


def _sharing(marks: Mapping[Where, Flow], where: Where) -> list[tuple[str, str, str]]:
    """Stack, family and name of every set that has the text at `where`."""
    start = marks[where].start
    return [(str(p[1]), str(p[2]), str(p[3])) for p, flow in marks.items() if flow.start == start]


def _borrowed(
    before: Generation, marks: Mapping[Where, Flow], chosen: Mapping[Where, tuple[Outcome, str]]
) -> Iterator[tuple[Where, Outcome, Constants]]:
    """Sets that were copies of one that was fitted: they stay copies, and one with an error is of the same rows."""
    for where, flow in marks.items():
        _, stack, family, fmt = map(str, where)
        if where in chosen or owner(marks, where) != where or fmt in WEIGHT_ONLY or family not in FREE:
            continue
        own = _values(before.kernels[stack][family][fmt])
        for outcome, name in chosen.values():
            copied = outcome.family == family and _values(outcome.old[name]) == own
            if copied and len(flow.pairs) > 2:
                own_set = before.kernels[stack][family][fmt]
                yield where, outcome, own_set.model_copy(update=_values(outcome.final[name]))
                break


def _values(constants: Constants) -> dict[str, object]:
    fields = type(constants).model_fields
    return {name: getattr(constants, name) for name in fields if name not in Constants.model_fields}


def _known(outcome: Outcome, pairs: Mapping[str, str]) -> dict[str, str | None]:
    """What is known of a set: its errors, and for a new one how many shapes it was fitted on."""
    score = outcome.score
    values: dict[str, str | None] = {
        "error": _percent(score.error),
        "spread": _sigma(score.spread),
        "sibling": None if score.sibling is None else _sigma(score.sibling),
    }
    if not outcome.kept:
        text = STALE.sub("", pairs.get("fitted_on", NULL).strip('"'))
        values["fitted_on"] = f'"{text}; half of {outcome.shapes:,} shapes"'
    return {name: value for name, value in values.items() if value is not None or name in pairs}


def _sigma(value: float) -> str:
    return f"{float(f'{value:.3f}'):g}"


def _percent(error: float) -> str:
    return f"{float(f'{error:.1f}'):g}"
