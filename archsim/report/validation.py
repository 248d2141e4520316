"""How far off the models are: the sections of a validation in the terminal, as Markdown and as JSON."""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict

from rich.text import Text

from archsim import __version__
from archsim.report.document import clean
from archsim.report.tables import Table
from archsim.report.terminal import console, print_table
from archsim.validation.tables import EVERY, Left, Row, Section, Standing

MOST_REGIMES = 80  # rows up to which the terminal shows regimes too
HEAD = ("family", "chip", "stack", "format", "points", "MAPE", "median", "bias", "p90")


def print_validation(sections: Sequence[Section]) -> None:
    """Every section in the terminal: its gates, its errors, the rows left out with their reasons."""
    out = console()
    for section in sections:
        if not section.rows:
            continue
        out.print(Text(section.title, style="bold"))
        out.print(Text(section.text))
        tables = (
            gate_table(section.gates),
            error_table(section.rows),
            worst_table(section.rows),
            left_table(section.left),
        )
        for table in tables:
            print_table(out, table)
        for note in section.notes:
            out.print(Text(f"not predicted: {note}"))
        out.print()


def gate_table(gates: Sequence[Standing]) -> Table:
    """What each gate asks and what the rows it covers reach; those without a row are left out."""
    rows = tuple(_gate_row(item) for item in gates if item.rows)
    columns = ("what", "worst of its tables", "tables", "mean", "worst", "gate", "aim", "verdict")
    caption = (
        "MAPE in %. A gate is met when every table it covers is at or under it; the aim is where it should get to."
    )
    return Table("Gates", columns, rows, caption, texts=2, words=frozenset({7}))


def _gate_row(item: Standing) -> tuple[str, ...]:
    gate, worst = item.gate, item.worst
    where = "" if worst is None else _where(worst)
    largest = math.nan if worst is None else worst.errors.mape
    aim = "" if gate.aim is None else _one(gate.aim)
    return (gate.name, where, str(len(item.rows)), _one(item.mean), _one(largest), _one(gate.gate), aim, item.verdict)


def _where(row: Row) -> str:
    chip = row.chip.partition("/")[2] or row.chip
    return ", ".join(part for part in (chip, row.stack, row.format) if part)


def error_table(rows: Sequence[Row], most: int = MOST_REGIMES) -> Table:
    """Errors a family, chip, stack and format; by regime too where that is not too long."""
    detailed = len(rows) <= most and any(row.regime != EVERY for row in rows)
    shown = [row for row in rows if detailed or row.regime == EVERY]
    columns = (*HEAD, *(("regime",) if detailed else ()))
    cells = tuple((*_names(row), *_numbers(row), *((row.regime,) if detailed else ())) for row in shown)
    caption = "Errors of predicted over measured, in %, on points that no fit saw; bias is the median with its sign."
    return Table("Errors", columns, cells, caption, texts=4, words=frozenset({len(HEAD)}))


def worst_table(rows: Sequence[Row]) -> Table:
    """The points that are furthest off, one a family: the worst of the row with the largest p90."""
    families: dict[str, Row] = {}
    for row in rows:
        known = families.get(row.family)
        if row.worst and (known is None or row.errors.p90 > known.errors.p90):
            families[row.family] = row
    cells = tuple((*_names(row), row.worst) for row in families.values())
    return Table("Worst points", (*HEAD[:4], "point"), cells, texts=5)


def _names(row: Row) -> tuple[str, ...]:
    return (row.family, row.chip.partition("/")[2] or row.chip, row.stack, row.format)


def _numbers(row: Row) -> tuple[str, ...]:
    e = row.errors
    return (f"{e.points:,}", _one(e.mape), _one(e.median), _signed(e.bias), _one(e.p90))


def left_table(left: Sequence[Left]) -> Table:
    """Rows that count in no mean, or that are named because they stay wrong: how many, why, how far off."""
    groups: dict[tuple[str, str, str, bool], list[Left]] = {}
    for item in left:
        groups.setdefault((item.flag, item.family, item.reason, item.dropped), []).append(item)
    rows = [
        (flag, family, f"{sum(i.errors.points for i in items):,}", _weighted(items), "no" if out else "yes", reason)
        for (flag, family, reason, out), items in groups.items()
    ]
    columns = ("flag", "family", "points", "MAPE", "counted", "why")
    return Table("Named rows", columns, tuple(rows), texts=2, words=frozenset({4, 5}))


def _weighted(items: Iterable[Left]) -> str:
    known = list(items)
    total = sum(item.errors.points for item in known)
    return _one(sum(item.errors.mape * item.errors.points for item in known) / total)


def _one(value: float) -> str:
    return f"{value:.1f}" if math.isfinite(value) else "n/a"


def _signed(value: float) -> str:
    return f"{value:+.1f}" if math.isfinite(value) else "n/a"


# Markdown


def to_markdown(sections: Sequence[Section], command: str) -> str:
    """The whole validation as a page; `command` is how to make it again."""
    parts = [
        "# How far off the models are",
        f"Written by `{command}` (archsim {__version__}). Errors are of predicted over measured, in %.",
    ]
    for section in sections:
        if section.rows:
            parts += _chapter(section)
    return "\n\n".join(parts) + "\n"


def _chapter(section: Section) -> list[str]:
    found = [f"## {section.title}", section.text]
    gates = gate_table(section.gates)
    if gates.rows:
        found += ["### Gates", gates.caption, _markdown(gates)]
    for family in dict.fromkeys(row.family for row in section.rows):
        found += [f"### {family}", _markdown(_family_table([row for row in section.rows if row.family == family]))]
    named = left_table(section.left)
    if named.rows:
        found += ["### Named rows", "Left out of the means, or counted and known to stay wrong.", _markdown(named)]
    if section.notes:
        found += ["### Notes", "\n".join(f"- {note}" for note in section.notes)]
    return found


def _family_table(rows: Sequence[Row]) -> Table:
    """The rows over all regimes of one family, with the MAPE of each regime beside."""
    regimes: dict[tuple[str, str, str], list[str]] = {}
    for row in rows:
        if row.regime != EVERY:
            regimes.setdefault(_key(row), []).append(f"{row.regime}: {_one(row.errors.mape)}")
    cells = [
        (row.chip, row.stack, row.format, *_numbers(row), "; ".join(regimes.get(_key(row), ())), row.worst)
        for row in rows
        if row.regime == EVERY
    ]
    columns = (*HEAD[1:], "MAPE by regime", "worst point")
    return Table("", columns, tuple(cells), texts=3, words=frozenset({8, 9}))


def _key(row: Row) -> tuple[str, str, str]:
    return (row.chip, row.stack, row.format)


def _markdown(table: Table) -> str:
    rule = ["---" if table.is_text(index) else "---:" for index in range(len(table.columns))]
    lines = [table.columns, rule, *table.rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


# JSON


def to_json(sections: Sequence[Section]) -> str:
    """The whole validation as JSON: rows, gates and named rows of every section."""
    data = {"version": __version__, "sections": [_document(section) for section in sections]}
    return json.dumps(clean(data), sort_keys=True, indent=1, allow_nan=False) + "\n"


def _document(section: Section) -> Mapping[str, object]:
    gates = [
        {**asdict(item.gate), "mean": item.mean, "verdict": item.verdict, "tables": [_flat(row) for row in item.rows]}
        for item in section.gates
    ]
    return {
        "title": section.title,
        "text": section.text,
        "rows": [_flat(row) for row in section.rows],
        "gates": gates,
        "left": [asdict(item) for item in section.left],
        "notes": list(section.notes),
    }


def _flat(row: Row) -> Mapping[str, object]:
    return asdict(row)
