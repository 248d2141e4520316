"""Rows of a sweep for a page: all of a small one, every so many of a large one."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from archsim.explore.pareto import Objective
from archsim.explore.rows import Column
from archsim.explore.sweep import Sweep
from archsim.explore.table import Summary
from archsim.report.exploring import to_html

MOST = 50_000  # rows on a page


@dataclass
class Sampled:
    """Takes the rows of a sweep and keeps every `stride`-th."""

    stride: int
    seen: int = 0
    parts: list[dict[str, Column]] = field(default_factory=list)

    def add(self, columns: Mapping[str, Column]) -> None:
        """Takes a chunk."""
        count = len(columns["feasible"])
        first = -self.seen % self.stride
        self.parts.append({name: np.array(column[first :: self.stride]) for name, column in columns.items()})
        self.seen += count

    def close(self) -> None:
        """Nothing is left to do."""

    def abandon(self) -> None:
        """Nothing is left to do."""

    def columns(self) -> dict[str, Column]:
        """The kept rows."""
        return {name: np.concatenate([part[name] for part in self.parts]) for name in self.parts[0]}


def sampled(sweep: Sweep) -> Sampled:
    """What keeps as many rows of a sweep as a page has room for."""
    return Sampled(max(-(-sweep.rows // MOST), 1))


def sweep_page(sweep: Sweep, rows: Sampled, summary: Summary, command: str) -> str:
    """A sweep as one page."""
    goal = Objective(*sweep.objective)
    title = " and ".join(grid.origin.name for grid in sweep.grids)
    left_out = f"Every {rows.stride}th of {summary.rows:,} rows is on this page." if rows.stride > 1 else ""
    return to_html(rows.columns(), sweep.axes, goal, command, title, sweep.units, left_out)
