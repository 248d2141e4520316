"""The answer in the terminal: one sentence first, then tables."""

import os
import sys
import textwrap

from rich import box
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from archsim.explore.band import basis
from archsim.explore.result import Result
from archsim.report.launch import launch_command
from archsim.report.point import Point, main_point
from archsim.report.prices import price_rows
from archsim.report.rests import assumptions
from archsim.report.steps import steps_of
from archsim.report.tables import (
    Table,
    answer_rows,
    kernel_table,
    memory_table,
    partner_memory_table,
    proposal_table,
    source_rows,
    sweep_table,
    time_table,
)
from archsim.report.words import question_label, sentence, slo_sentence, split_of, system_label, why
from archsim.sources import Source
from archsim.workload.model import quality_risks

PIPED = 140  # columns where the output is not a terminal and says no width
MAIN = 4  # assumptions shown
LEAST = 140  # columns of a table; a narrower terminal wraps its lines rather than lose digits
BAR = " █│"  # what bars are drawn with, which make no sense when broken
GAP = 4  # columns between two, at the most
NAME = 36  # characters up to which a first column is never broken


def console(error: bool = False) -> Console:
    """A console for plain text: names from files are never taken for markup."""
    stream = sys.stderr if error else sys.stdout
    width = None if stream.isatty() else int(os.environ.get("COLUMNS") or PIPED)
    return Console(file=stream, markup=False, highlight=False, emoji=False, width=width)


def print_table(out: Console, table: Table) -> None:
    """One table with its title above and its caption below."""
    if not table.rows:
        return
    rich = RichTable(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, show_header=any(table.columns))
    for index, column in enumerate(table.columns):
        words = table.is_text(index)
        short = index == 0 and all(len(row[0]) <= NAME for row in table.rows)  # names are there to be copied
        drawn = all(set(row[index]) <= set(BAR) for row in table.rows)
        whole = short or drawn or not words
        width = max(cell_len(text) for text in (column, *(row[index] for row in table.rows))) if whole else None
        rich.add_column(Text(column), justify="left" if words else "right", overflow="fold", no_wrap=whole, width=width)
    wide = max(out.width, LEAST)
    for cells in _rows(table, wide):
        rich.add_row(*cells)
    if table.title:
        out.print(Text(f"\n{table.title}", style="bold"))
    width, out.width = out.width, wide
    out.print(rich)
    out.width = width
    if table.caption:
        out.print(Text(table.caption, style="dim"))


def _rows(table: Table, width: int) -> list[list[Text]]:
    """The cells of a table, row by row; where no line is broken, as one row of many lines, which is drawn faster."""
    styles = ["bold" if index in table.marked else "" for index in range(len(table.rows))]
    cells = [[Text(cell, style=style) for cell in row] for row, style in zip(table.rows, styles, strict=True)]
    columns = list(zip(*table.rows, strict=True))
    needed = [
        max(cell_len(text) for text in (head, *column)) for head, column in zip(table.columns, columns, strict=True)
    ]
    if sum(needed) + GAP * len(needed) > width:
        return cells
    return [[Text("\n").join(column) for column in zip(*cells, strict=True)]]


def print_answer(out: Console, result: Result) -> None:
    """The whole answer of a result at its best point, or the refusal where nothing is feasible."""
    point = main_point(result)
    if not point.feasible:
        print_refusal(out, point)
        return
    _paragraph(out, sentence(point), "bold")
    if note := slo_sentence(result):
        _paragraph(out, note)
    steps = steps_of(point)
    for note in (*(why(step) for step in steps), *notes(point)):
        _paragraph(out, note)
    out.print()
    for name, value in (*answer_rows(point), *price_rows(point)):
        out.print(Text(f"  {name:<38}{value}"))
    out.print(Text(f"  {basis(point.scenario)}", style="dim"))
    if result.axes:
        print_table(out, sweep_table(result, point.index))
    if len(point.proposals) > 1:
        print_table(out, proposal_table(point))
    for step in steps:
        print_table(out, time_table(step))
        print_table(out, kernel_table(step))
    _memory(out, point)
    if command := launch_command(point.scenario, point.scenario.split):
        out.print(Text("\nTo launch this plan", style="bold"))
        out.print(Text(command), soft_wrap=True)
    _assumptions(out, assumptions([point]))


def print_refusal(out: Console, point: Point) -> None:
    """Why a point is infeasible and what would help."""
    for text in refusal_lines(point):
        _paragraph(out, text)
    _memory(out, point)


def _memory(out: Console, point: Point) -> None:
    print_table(out, memory_table(point))
    if (other := partner_memory_table(point)) is not None:
        print_table(out, other)


def refusal_lines(point: Point) -> list[str]:
    """The refusal of an infeasible point, line by line."""
    claim, reason, fixes = refusal(point)
    helps = (
        [f"What would help: {fixes[0]}."]
        if len(fixes) == 1
        else ["What would help:", *(f"  - {fix}" for fix in fixes)]
        if fixes
        else []
    )
    return [claim, reason, *helps]


def refusal(point: Point) -> tuple[str, str, list[str]]:
    """The refusal of an infeasible point: what cannot run, why, and what would help."""
    found = point.diagnosis
    plan = split_of(point.scenario.split)
    scope = "" if point.result.proposals == 1 else f", the nearest of {point.result.proposals} proposals"
    claim = f"{system_label(point.scenario)} cannot run {question_label(point)} ({plan}{scope})."
    if found is None:
        return claim, "", []
    return claim, f"{found.reason[0].upper()}{found.reason[1:]}.", list(found.fixes)


def notes(point: Point) -> list[str]:
    """What a reader should know beside the numbers."""
    scenario, context = point.scenario, point.scenario.context
    found = []
    if point.mode == "step" and context is not None and float(context.max()) > scenario.model.max_context:
        found.append(
            f"Note: {scenario.model.name} is made for contexts of at most {scenario.model.max_context:,} tokens."
        )
    if risks := quality_risks(scenario.model, scenario.precision):
        told = [text.removesuffix(".") for text in risks]
        found.append(f"Risks to quality, the most sensitive first, not measured here: {'; '.join(told)}.")
    infeasible = int((~point.result.feasible).sum())
    if infeasible:
        found.append(f"{infeasible} of the {point.result.feasible.size} points are infeasible.")
    return found


def _paragraph(out: Console, text: str, style: str = "") -> None:
    out.print(Text(text, style=style))


def _assumptions(out: Console, found: list[Source]) -> None:
    """How many sources of the answer are assumptions, and the first few."""
    if not found:
        return
    out.print(
        Text(f"\nThe answer rests on {len(found)} assumption{'s' if len(found) > 1 else ''} of its files", style="bold")
    )
    for fields, _, reference, file in source_rows(found[:MAIN]):
        what = textwrap.shorten(fields, 60, placeholder=" ...")
        out.print(Text(f"  {what}: {textwrap.shorten(reference, 160, placeholder=' ...')} ({file})"))
    if len(found) > MAIN:
        out.print(Text(f"  and {len(found) - MAIN} more: `--html` lists all with their sources"))
