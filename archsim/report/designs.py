"""What a search over designs tells: a sentence, the best designs, and why the others are out; JSON."""

import json

from rich.text import Text

from archsim import __version__
from archsim.economics.die import MM2
from archsim.explore.design import Designs, rows
from archsim.explore.result import METRICS
from archsim.report.document import clean
from archsim.report.search import SCHEMA
from archsim.report.tables import Table
from archsim.report.terminal import console, print_table
from archsim.report.words import dollars, number, shown
from archsim.units import show

WHY = {
    "unit": "memory of a size that is not made",
    "area": "over the area budget",
    "edge": "more memory interfaces than the edge of the die has room for",
    "power": "over the power budget",
    "price": "over the price budget",
    "memory": "the model does not fit",
    "slo": "the SLO is not kept at any batch",
}


def print_designs(found: Designs, most: int) -> None:
    """The best designs, and what became of the others."""
    out, best = console(), found.best
    if best is None:
        out.print(Text("No design keeps the budgets and the SLO.", style="bold"))
        out.print(Text(f"What would help: {_help(found)}."))
    else:
        out.print(Text(_sentence(found, best), style="bold"))
    looked = found.value.size
    how = "all of them looked at" if found.exhaustive else f"{looked:,} of them looked at, as optuna proposed"
    out.print(Text(f"{found.space:,} designs, {how}. Out: {_out(found) or 'none'}."))
    print_table(out, design_table(found, most))
    if best is not None and (cheaper := _by_memory(found)):
        print_table(out, cheaper)
    guesses = [source for source in found.silicon.sources if source.kind == "assumption"]
    if guesses:
        out.print(Text(f"\nThe sketches rest on {len(guesses)} assumptions of {guesses[0].file}."))


def _sentence(found: Designs, best: int) -> str:
    c = {name: float(column[best]) for name, column in found.columns.items()}
    return (
        f"Best {METRICS[found.goal][1]}: {shown(found.goal, float(found.value[best]))} with {_memory(found, best)}, "
        f"{show(c['peak'], 'rate')} in bf16, {show(c['sram'], 'bytes')} of SRAM, {show(c['link'], 'bandwidth')} links: "
        f"{c['area'] / MM2:,.0f} mm2, {c['power']:,.0f} W, {dollars(c['price'])} a card."
    )


def _memory(found: Designs, at: int) -> str:
    c = {name: float(column[at]) for name, column in found.columns.items()}
    rate, size = show(c["bandwidth"], "bandwidth"), show(c["unit_capacity"], "bytes")
    return f"{number(c['units'])} x {size} of {found.memory[at]} ({rate})"


def _out(found: Designs) -> str:
    return ", ".join(f"{count:,} {WHY[name]}" for name, count in found.out().items())


def _help(found: Designs) -> str:
    """The reason that most designs are out for, turned round."""
    fixes = {
        "unit": "sizes of memory that are made",
        "area": "a larger area, or less peak and SRAM",
        "edge": "fewer units of memory",
        "power": "more power, or less peak and bandwidth",
        "price": "a higher price or a lower margin",
        "memory": "more units of memory or larger ones",
        "slo": "a looser SLO, more bandwidth or more batches",
    }
    ranked = sorted(found.out().items(), key=lambda item: -item[1])
    return "; ".join(fixes[name] for name, _ in ranked[:2])


def _row(found: Designs, at: int) -> tuple[str, ...]:
    c, m = found.columns, found.metrics
    return (
        _memory(found, at),
        show(float(c["peak"][at]), "rate"),
        show(float(c["sram"][at]), "bytes"),
        show(float(c["link"][at]), "bandwidth"),
        f"{float(c['area'][at]) / MM2:,.0f}",
        f"{float(c['power'][at]):,.0f} W",
        dollars(float(c["price"][at])),
        number(float(m["batch"][at])),
        number(1.0 / float(m["tpot"][at])),
        shown("cost_per_token", float(m["cost_per_token"][at])),
    )


HEADS = ("memory", "bf16", "SRAM", "link", "mm2", "power", "price", "batch", "tok/s/user", "$/Mtok")


def design_table(found: Designs, most: int) -> Table:
    """The best designs, best first."""
    return Table("The best designs", HEADS, tuple(_row(found, int(at)) for at in found.order(most)))


def _by_memory(found: Designs) -> Table | None:
    """The best design of each technology of memory, where there are several."""
    first: dict[str, int] = {}
    for at in found.order(found.value.size):
        first.setdefault(found.memory[at], int(at))
    if len(first) < 2:
        return None
    return Table("The best of each technology of memory", HEADS, tuple(_row(found, at) for at in first.values()))


def designs_json(found: Designs, most: int) -> str:
    """The best designs as JSON, in SI units."""
    data = {
        "schema": SCHEMA,
        "archsim": __version__,
        "command": "design",
        "objective": found.goal,
        "space": found.space,
        "exhaustive": found.exhaustive,
        "looked_at": found.value.size,
        "out": found.out(),
        "designs": list(rows(found, most)),
    }
    return json.dumps(clean(data), indent=2) + "\n"
