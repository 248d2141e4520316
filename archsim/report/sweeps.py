"""A sweep in the terminal: how many points there were, why some are infeasible, and the best."""

from typing import Any

from archsim.explore.sweep import Sweep
from archsim.explore.table import Summary
from archsim.report.tables import Table
from archsim.report.terminal import console, print_table
from archsim.report.words import number
from archsim.units import UnitError, parse, show

SHOWN = ("tpot", "ttft", "ttft_p90", "tpot_p90", "goodput", "throughput_per_chip", "cost_per_token")
REASONS = 8  # lines


def print_summary(sweep: Sweep, summary: Summary) -> None:
    """Counts, reasons and the best rows."""
    out = console()
    mode = {"step": "step", "steady": "steady state", "serve": "served requests"}[sweep.mode]
    kept = f", {summary.kept:,} keep the SLO" if summary.kept < summary.feasible else ""
    out.print(f"{summary.rows:,} point{'s' if summary.rows != 1 else ''} ({mode}): {summary.feasible:,} feasible{kept}")
    print_table(out, _reasons(summary))
    print_table(out, _best(sweep, summary))


def _reasons(summary: Summary) -> Table:
    """Why points are infeasible, the most frequent first."""
    found = sorted(summary.reasons.items(), key=lambda item: (-item[1], item[0]))
    rows = tuple((f"{count:,}", reason) for reason, count in found[:REASONS])
    more = f"and {len(found) - REASONS} other reasons" if len(found) > REASONS else ""
    return Table("Infeasible", ("points", "for want of"), rows, more, texts=0, words=frozenset({1}))


def _best(sweep: Sweep, summary: Summary) -> Table:
    """The best rows: what was varied, and what came of it."""
    varied = [name for name in sweep.axes if len({row[name] for row in summary.best}) > 1 or _wide(sweep, name)]
    metrics = [name for name in dict.fromkeys((summary.goal, *SHOWN)) if name in sweep.columns]
    if not summary.best or not metrics:
        return Table("", (), ())
    names = [*varied, *metrics]
    rows = tuple(tuple(_cell(row[name], sweep.units.get(name, "")) for name in names) for row in summary.best)
    text = frozenset(index for index, name in enumerate(names) if name in sweep.texts)
    order = "lowest" if summary.sign > 0 else "highest"
    outside = "" if all(row["meets_slo"] for row in summary.best) else "; rows outside the SLO come last"
    return Table(f"Best: {order} {summary.goal}{outside}", tuple(names), rows, texts=0, words=text)


def _wide(sweep: Sweep, name: str) -> bool:
    """Whether an axis has more than one value."""
    axes = [axis for grid in sweep.grids for group in grid.groups for axis in group.axes if axis.name == name]
    return name == "scenario" or any(len(axis) > 1 for axis in axes)


def _cell(value: Any, unit: str) -> str:
    """A value with its unit, in one that fits."""
    if not isinstance(value, float):
        return str(value)
    if not unit:
        return number(value)
    dimension = DIMENSIONS.get(unit)
    if dimension is None:
        return f"{number(value)} {unit}"
    try:
        return show(value * parse(f"1 {unit}", dimension), dimension)
    except UnitError:
        return f"{number(value)} {unit}"


DIMENSIONS = {
    "B": "bytes",
    "B/s": "bandwidth",
    "FLOP/s": "rate",
    "s": "time",
    "Hz": "frequency",
    "W": "power",
    "J": "energy",
    "J/B": "energy_per_byte",
    "J/FLOP": "energy_per_flop",
    "tok/s": "token_rate",
}
