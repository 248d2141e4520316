"""What a calibration found, as tables: constants old and new, errors before and after."""

from collections import defaultdict
from collections.abc import Iterator, Sequence

from archsim.chip.constants import Constants
from archsim.report.tables import Table
from archsim.validation.calibrate import Outcome, Score, numbers
from archsim.validation.fit import FREE
from archsim.validation.rewrite import written

NONE = "-"


def constants_table(found: Sequence[Outcome]) -> Table:
    """Every set that changes, with its constants old and new."""
    rows = [(*_name(one), name, text) for one in found if not one.kept for name, text in _changes(one)]
    head = ("generation", "stack", "family", "set", "constants: old -> new")
    return Table("Constants that change", head, tuple(rows), texts=5)


def _name(one: Outcome) -> tuple[str, str, str]:
    return one.generation, one.stack, one.family


def _changes(one: Outcome) -> Iterator[tuple[str, str]]:
    for name, new in one.new.items():
        old = one.old[name]
        fields = [*(free.name for free in FREE[one.family]), "overlap"]
        texts = [_change(field, old, new) for field in fields if field in type(new).model_fields]
        yield name, ", ".join(text for text in texts if text) or "the same"


def _change(field: str, old: Constants, new: Constants) -> str:
    before, after = getattr(old, field), getattr(new, field)
    return "" if before == after else f"{field} {written(field, before)} -> {written(field, after)}"


def error_table(found: Sequence[Outcome]) -> Table:
    """Errors of every set, before and after, and what stands in the end."""
    rows = tuple(_errors(one) for one in found)
    names = ("generation", "stack", "family", "set")
    head = (*names, "shapes", "numbers", "error", "unseen chips", "spread", "sibling", "")
    caption = "Mean error in % on shapes not fitted, and on chips of the generation that no fit saw; log-sigma of both."
    return Table("Errors, before -> after", head, rows, caption=caption, texts=4, words=frozenset({10}))


def _errors(one: Outcome) -> tuple[str, ...]:
    counts = f"{numbers(one.old, one.family)} -> {numbers(one.new, one.family)}"
    far = NONE if one.before.far is None else f"{one.before.far:.2f} -> {one.after.far:.2f}"
    stands = one.score
    sibling = NONE if stands.sibling is None else f"{stands.sibling:.3f}"
    own = _own(one.before, one.after)
    names = "+".join(one.old)
    last = (f"{stands.spread:.3f}", sibling, "kept" if one.kept else "new")
    return (*_name(one), names, f"{one.shapes:,}", counts, own, far, *last)


def _own(before: Score, after: Score) -> str:
    return f"{before.error:.2f} -> {after.error:.2f}"


def totals(found: Sequence[Outcome]) -> str:
    """How many sets and numbers stand, and mean errors by family over them."""
    sets = sum(len(one.final) for one in found)
    count = sum(numbers(one.final, one.family) for one in found)
    families: dict[str, list[Outcome]] = defaultdict(list)
    for one in found:
        families[one.family].append(one)
    lines = [f"{sets} sets x {count / max(sets, 1):.1f} numbers = {count}"]
    for family, those in families.items():
        own = _mean([one.before.error for one in those]), _mean([one.score.error for one in those])
        far = [(one.before.far, one.score.far) for one in those if one.before.far is not None]
        text = f"{family}: {own[0]:.2f} -> {own[1]:.2f} % on shapes not fitted"
        if far:
            then, now = (_mean([pair[index] or 0.0 for pair in far]) for index in (0, 1))
            text += f", {then:.2f} -> {now:.2f} % on unseen chips"
        lines.append(text)
    return "\n".join(lines)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
