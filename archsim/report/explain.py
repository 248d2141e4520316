"""Where every millisecond and dollar goes: kernels, layers, step, tokens, dollars and memory, with their formulas."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import get_args

from pydantic import BaseModel

from archsim.chip.constants import AllReduce, AllToAll
from archsim.engine.cost import ALL_PARTS
from archsim.fields import Quantity
from archsim.report.choice import choice_sentences
from archsim.report.formulas import Line, quantity
from archsim.report.kernels import KernelLines, explain_kernel
from archsim.report.memory import memory_lines, partner_memory_lines
from archsim.report.point import Point
from archsim.report.prices import price_lines
from archsim.report.rests import constants_of, machine_of
from archsim.report.steps import DECODE, MIXED, KernelTime, StepTime, steps_of
from archsim.report.sums import dollar_lines, energy_line, layer_lines, rate_lines, step_lines
from archsim.report.words import percent, sentence
from archsim.units import did_you_mean


@dataclass(frozen=True, eq=False)
class Section:
    """A part of an explanation: a title, a remark, and lines, those of kernels under headings of their own."""

    title: str
    note: str = ""
    texts: tuple[str, ...] = ()
    lines: tuple[Line, ...] = ()
    kernels: tuple[KernelLines, ...] = ()

    def every_line(self) -> Iterator[Line]:
        """All lines, those of kernels too."""
        yield from self.lines
        for kernel in self.kernels:
            yield from kernel.lines


def explain(point: Point) -> list[Section]:
    """The whole explanation of a feasible point, from kernels to dollars."""
    steps = steps_of(point)
    sections = [_legend(steps)]
    for step in steps:
        sections += _step(point, step)
    sections.append(Section("Rates", lines=tuple(rate_lines(point))))
    sections.append(Section("Dollars", lines=(*dollar_lines(point), energy_line(point), *price_lines(point))))
    return [*sections, *memory_sections(point)]


def _legend(steps: Sequence[StepTime], kernel: str = "") -> Section:
    """What the parts of a time mean: those that occur, in one kernel where it is named."""
    used = {part for step in steps for item in step.by_name for part in item.parts if kernel in ("", item.name)}
    lines = tuple(f"{part:<15}{meaning}" for part, meaning in ALL_PARTS.items() if part in used)
    return Section("Parts of a time, in the order in which they count", texts=lines)


def memory_section(point: Point) -> Section:
    """What one chip holds, of two pools one of the main pool."""
    system = point.scenario.system
    where = "" if system.partner is None else f" of pool {system.main_name}"
    return Section(f"Memory of one chip{where}", lines=tuple(memory_lines(point)))


def memory_sections(point: Point) -> list[Section]:
    """What one chip of each pool holds; the only part of an explanation that an infeasible point has."""
    partner, lines = point.scenario.partner, tuple(partner_memory_lines(point))
    other = (
        [Section(f"Memory of one chip of pool {partner.name}", lines=lines)] if partner is not None and lines else []
    )
    return [memory_section(point), *other]


def _step(point: Point, step: StepTime) -> list[Section]:
    mixed = step.title == MIXED
    drafts = point.scenario.speculation.drafts
    name = "TPOT" if step.title == DECODE and point.mode == "step" and drafts == 0 else "step"
    lower = step.title[0].lower() + step.title[1:]
    if mixed:  # its numbers are interpolated between numbers of requests, so that no product of sizes gives them
        note = f"{step.detail}; interpolated between whole numbers of requests"
        kernels = Section(f"{step.title}: kernels of one rank, longest first", note, lines=_times(step))
    else:
        lines = tuple(_kernels(point, step, step.by_name))
        kernels = Section(f"{step.title}: kernels of one rank, longest first", step.detail, kernels=lines)
    sums = step_lines(point, step, name)
    return [
        kernels,
        Section(f"One layer of the {lower}", lines=tuple(layer_lines(step))),
        Section(f"The {lower}", lines=tuple(sums)),
    ]


def _kernels(point: Point, step: StepTime, items: list[KernelTime]) -> Iterator[KernelLines]:
    for item in items:
        yield explain_kernel(item, *machine_of(point, item.kernel), step.span)


def _times(step: StepTime) -> tuple[Line, ...]:
    return tuple(
        Line(
            item.label,
            None,
            item.total,
            "time",
            f"{quantity(item.seconds, 'time')} x {item.runs}, {percent(item.total / step.span)}",
        )
        for item in step.by_name
    )


def explain_one(point: Point, name: str) -> list[Section]:
    """One kernel in every step that runs it, with its constants. Raises ValueError, with near matches, for another."""
    steps = steps_of(point)
    known = {item.name for step in steps for item in step.by_name}
    if name not in known:
        raise ValueError(
            f"no kernel {name!r} runs here{did_you_mean(name, known) or '; there are ' + ', '.join(sorted(known))}"
        )
    sections = [_legend(steps, name)]
    for step in steps:
        items = [item for item in step.by_name if item.name == name]
        if items and step.title == MIXED:
            found = tuple(line for line, item in zip(_times(step), step.by_name, strict=True) if item.name == name)
            sections.append(Section(step.title, "interpolated between whole numbers of requests", lines=found))
        elif items:
            sections.append(Section(step.title, kernels=tuple(_kernels(point, step, items))))
            sections += [_constants(point, step, items[0])]
    return sections


def _constants(point: Point, step: StepTime, item: KernelTime) -> Section:
    """The calibration constants of a kernel, with what they were fitted on and what error the fit leaves."""
    chip, stack = machine_of(point, item.kernel)
    found = constants_of(item.kernel, chip, stack)
    if found is None:
        return Section("Constants", "none")
    of = "of the fit itself" if isinstance(found, AllReduce | AllToAll) else "on measurements not used in the fit"
    error = "" if found.error is None else f"; mean error {found.error:g} % {of}"
    note = f"{chip.generation.name}, {stack}: {found.fitted_on}{error}"
    units = _units(type(found))
    lines = [
        Line(name, None, float(value), units.get(name, ""), type(found).model_fields[name].description or "")
        for name, value in found
        if name not in ("error", "fitted_on") and isinstance(value, int | float) and not isinstance(value, bool)
    ]
    return Section(f"Constants of {item.name} ({step.title.lower()})", note, lines=tuple(lines))


def _units(family: type[BaseModel]) -> dict[str, str]:
    """The dimension of each field of a family of constants, as its annotation says."""
    found = {}
    for name, field in family.model_fields.items():
        inside = [mark for part in get_args(field.annotation) for mark in getattr(part, "__metadata__", ())]
        for mark in (*field.metadata, *inside):
            if isinstance(mark, Quantity):
                found[name] = mark.dimension
    return found


def as_text(point: Point, sections: list[Section]) -> str:
    """An explanation as text for the terminal."""
    head = [sentence(point), *choice_sentences(point)] if point.feasible else []
    return "\n".join([*head, *(_section(section) for section in sections)])


def _section(section: Section) -> str:
    lines = ["", section.title, *([f"  {section.note}"] if section.note else [])]
    width = max((len(item.name) for item in section.lines), default=10)
    lines += [f"  {text}" for text in section.texts]
    lines += [item.text("  ", min(width, 20)) for item in section.lines]
    for kernel in section.kernels:
        lines += ["", f"  {kernel.heading}", *(item.text() for item in kernel.lines)]
    return "\n".join(lines)
