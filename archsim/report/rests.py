"""What an answer rests on: the constants its kernels take, their measurements, and the assumptions behind it."""

from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from typing import TypeVar

from archsim.chip.constants import Constants
from archsim.chip.model import Chip, Generation
from archsim.engine.step import KINDS
from archsim.mapping.plan import Kernel
from archsim.report.point import Point
from archsim.report.steps import steps_of
from archsim.report.tables import Table
from archsim.sources import Source

FamilySet = TypeVar("FamilySet", bound=Constants)


@dataclass(frozen=True)
class Heard:
    """Constants that the engine took: the field of the generation's file, and the set itself."""

    name: str
    constants: Constants


@dataclass(frozen=True)
class _Listener(Generation):
    """A generation that remembers which constants were asked for."""

    heard: list[Heard] = field(default_factory=list)

    def constants(self, stack: str, family: str, formats: tuple[str, ...], as_class: type[FamilySet]) -> FamilySet:
        """The constants of the generation, remembered."""
        found = super().constants(stack, family, formats, as_class)
        self._remember(stack, family, found)
        return found

    def variant(self, stack: str, family: str, formats: tuple[str, ...], name: str) -> Constants | None:
        """The constants of another kernel that the library picks instead, remembered."""
        found = super().variant(stack, family, formats, name)
        if found is not None:
            self._remember(stack, family, found)
        return found

    def _remember(self, stack: str, family: str, found: Constants) -> None:
        sets = self.kernels.get(stack, {}).get(family, {})
        key = next((name for name, own in sets.items() if own is found), "any")
        self.heard.append(Heard(f"kernels.{stack}.{family}.{key}", found))


def heard(kernel: Kernel, chip: Chip, stack: str) -> Heard | None:
    """The constants that the engine takes for a kernel: the engine is asked, so that both never differ."""
    own = {item.name: getattr(chip.generation, item.name) for item in fields(Generation)}
    listener = _Listener(**own)
    if kernel.kind == "transfer":
        return None
    KINDS[chip.kind](kernel, replace(chip, generation=listener), stack)
    return listener.heard[-1] if listener.heard else None


def constants_of(kernel: Kernel, chip: Chip, stack: str) -> Constants | None:
    """The constants of a kernel; None where its kind of machine has none."""
    found = heard(kernel, chip, stack)
    return None if found is None else found.constants


def machine_of(point: Point, kernel: Kernel) -> tuple[Chip, str]:
    """The chip and the kernel stack that a kernel of a point runs on."""
    scenario, partner = point.scenario, point.scenario.partner
    if partner is not None and kernel.pool == partner.name:
        return partner.chip, partner.runtime.stack
    return scenario.chip, scenario.runtime.stack


def _used(point: Point) -> list[tuple[Kernel, Heard]]:
    """Every kernel of a point with its constants."""
    kernels = [item.kernel for step in steps_of(point) for item in step.by_name]
    pairs = [(kernel, heard(kernel, *machine_of(point, kernel))) for kernel in kernels]
    return [(kernel, found) for kernel, found in pairs if found is not None]


def calibration(points: Sequence[Point]) -> Table | None:
    """What the kernel times of feasible points were fitted on, and the error that the fits leave."""
    rows: dict[tuple[str, ...], None] = {}
    for point in points:
        for kernel, found in _used(point):
            own = found.constants
            error = "" if own.error is None else f"{own.error:g} %"
            key = found.name.rpartition(".")[2]
            rows[kernel.kind.replace("_", " "), "" if key == "any" else key, error, own.fitted_on] = None
    heads = ("kernel family", "format", "mean error", "fitted on")
    return Table("", heads, tuple(sorted(rows)), texts=2, words=frozenset({3})) if rows else None


def assumptions(points: Sequence[Point]) -> list[Source]:
    """Sources of kind `assumption` behind points of one scenario.

    Those about kernel constants only count where a kernel takes them; an infeasible point counts all of its stack.
    """
    taken = {found.name for point in points if point.feasible for _, found in _used(point)}
    everything = not all(point.feasible for point in points)
    return [source for source in points[0].result.assumptions if everything or _concerns(source, taken)]


def _concerns(source: Source, taken: set[str]) -> bool:
    """Whether a source says something about what was taken: a field covers all below it."""
    if not all(name.startswith("kernels.") for name in source.of):
        return True
    return any(name == of or name.startswith(f"{of}.") for name in taken for of in source.of)
