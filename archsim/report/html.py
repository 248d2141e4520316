"""One self-contained HTML file: the answer, why, and what it rests on. Works offline and prints."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from markupsafe import Markup

from archsim import __version__
from archsim.explore.band import basis
from archsim.explore.result import METRICS, Result, all_sources
from archsim.explore.scenario import Scenario
from archsim.report import figures as draw
from archsim.report import tradeoff
from archsim.report.compare import Compared, sections
from archsim.report.explain import memory_section, memory_sections
from archsim.report.launch import launch_command
from archsim.report.page import Figures, environment
from archsim.report.point import Point, main_point, single
from archsim.report.prices import price_lines
from archsim.report.rests import assumptions, calibration
from archsim.report.roofline import roofline
from archsim.report.steps import StepTime, steps_of
from archsim.report.sums import dollar_lines, energy_line, rate_lines
from archsim.report.tables import (
    economics_table,
    ends,
    kernel_table,
    memory_table,
    proposal_table,
    source_rows,
    sweep_table,
)
from archsim.report.terminal import notes, refusal
from archsim.report.words import (
    abbreviations,
    percent,
    place,
    question_label,
    sentence,
    shown,
    slo_label,
    slo_sentence,
    split_label,
    system_label,
    targets,
    why,
)
from archsim.units import show

EVERY_KERNEL = 200
MOST_TEXT = 20_000  # characters of a scenario file that are shown


def to_html(*results: Result, command: str = "", beside: Sequence[Compared] = ()) -> str:
    """Results of one scenario as one HTML page, and a comparison of others after them.

    `command` is how to make it again.
    """
    from plotly.offline import get_plotlyjs

    figures = Figures()
    chapters = [_chapter(main_point(result), figures) for result in results]
    scenario = results[0].scenario
    page = environment().get_template("report.html")
    return page.render(
        scenario=scenario,
        system=system_label(scenario),
        chapters=chapters,
        compared=sections(beside, figures) if beside else None,
        assumptions=source_rows(assumptions([chapter["point"] for chapter in chapters])),
        sources=source_rows(all_sources(scenario)),
        calibration=calibration([chapter["point"] for chapter in chapters if chapter["feasible"]]),
        command=command or f"archsim run {place(scenario.file)} --html report.html",
        file=place(scenario.file),
        text=_text(scenario),
        version=__version__,
        figures=figures.as_json(),
        plotly=Markup(get_plotlyjs()),
    )


def _text(scenario: Scenario) -> str:
    """The scenario's file as it stands; empty where it cannot be read any more."""
    try:
        return Path(scenario.file).read_text(encoding="utf-8")[:MOST_TEXT]
    except (OSError, UnicodeDecodeError):
        return ""


def _chapter(point: Point, figures: Figures) -> dict[str, Any]:
    """One answer: what the template needs of it."""
    steady = point.mode == "steady"
    base = {
        "point": point,
        "feasible": point.feasible,
        "name": "Steady state" if steady else "One decode step",
        "anchor": point.mode,
        "question": question_label(point),
        "plan": proposal_table(point),
        "abbreviations": abbreviations(split_label(proposal.degrees) for proposal in point.proposals),
        "memory": figures.add(draw.memory(point)),
        "memory_table": memory_table(point),
        "memory_lines": memory_section(point).lines,
        "memory_where": memory_section(point).title,
        "memories": memory_sections(point)[1:],
        "sweep": sweep_table(point.result, point.index if point.feasible else None) if point.result.axes else None,
    }
    return base | (_answered(point, figures) if point.feasible else {"refusal": refusal(point)})


def _answered(point: Point, figures: Figures) -> dict[str, Any]:
    steps = steps_of(point)
    curve = tradeoff.curve(point)
    metric = point.metric
    return {
        "sentence": sentence(point),
        "slo": slo_sentence(point.result, spelled=False),
        "targets": targets(point.result.scenario.slo, metric("tpot"), metric("ttft")),
        "notes": notes(point),
        "tiles": _tiles(point),
        "basis": basis(point.scenario),
        "launch": launch_command(point.scenario, point.scenario.split),
        "throughput": None if curve is None else figures.add(tradeoff.throughput(curve, point)),
        "cost": None if curve is None else figures.add(tradeoff.cost(curve, point)),
        "promised": bool(slo_label(point.result.scenario.slo)),
        "along": "What more clients buy" if point.mode == "steady" else "What a larger batch buys",
        "numbers": "clients" if point.mode == "steady" else "batch sizes",
        "steps": [_step(step, figures) for step in steps],
        "legend": draw.legend(steps),
        "rooflines": _rooflines(point, steps, figures),
        "economics": economics_table(point),
        "money": (*rate_lines(point), *dollar_lines(point), energy_line(point), *price_lines(point)),
    }


def _rooflines(point: Point, steps: Sequence[StepTime], figures: Figures) -> list[tuple[str, dict[str, object]]]:
    """A roofline for each pool with work that has FLOPs: where it is, and the figure."""
    system = point.scenario.system
    if system.partner is None:
        return [("Roofline", figures.add(roofline(steps)))]
    found = []
    for name, pool in ((system.main_name, ""), (system.partner.name, system.partner.name)):
        own = [step.pool(pool) for step in steps]
        if any(item.flops and item.bytes for step in own for item in step.by_name):
            found.append((f"Roofline of pool {name}", figures.add(roofline(own))))
    return found


def _step(step: StepTime, figures: Figures) -> dict[str, Any]:
    shares = [("compute", step.compute_share), ("memory", step.memory_share), ("links", step.link_share)]
    meanings = {
        "compute": "FLOPs over what the matrix units could do at the peak of each format (MFU)",
        "memory": "bytes over what the memory could move (MBU)",
        "links": "the least time of the bytes on the wire over that of the step",
    }
    return {
        "title": step.title,
        "full_title": step.full_title,
        "span": show(step.span, "time"),
        "why": why(step),
        "operators": figures.add(draw.operators(step)),
        "lanes": figures.add(draw.lanes(step)),
        "shares": [(name, 100 * min(share, 1.0), percent(share), meanings[name]) for name, share in shares],
        "kernels": kernel_table(step, EVERY_KERNEL),
    }


def _tiles(point: Point) -> list[tuple[str, str, str, str]]:
    """(value, name, remark, ends of the band) of the main figures."""
    steady = point.mode == "steady"
    told = {name: shown(name, point.metric(name)) for name in METRICS}
    within = {name: ends(point, name) for name in METRICS}
    first = "mean, queue included" if steady else "of a lone request"
    cost = "cost_per_token" if steady else "output_cost"
    what = "per million tokens, in and out" if steady else "per million output tokens"
    prices = f"output {told['output_cost']}, input {told['input_cost']}"
    capacity = show(single(point.alone.answer.memory.capacity), "bytes")
    energy = f"{told['energy_per_token']} of facility energy an output token"
    return [
        (f"{told['interactivity']}/user", "interactivity", f"TPOT {told['tpot']}", within["interactivity"]),
        (told["ttft"], "time to first token", first, within["ttft"]),
        (told["throughput"], "output of the system", f"{told['throughput_per_chip']} a chip", within["throughput"]),
        (told[cost], what, prices if steady else f"prompt tokens {told['input_cost']}", within[cost]),
        (told["power"], "board power of a chip", energy, within["power"]),
        (told["memory_needed"], "memory of a chip in use", f"{told['memory_utilization']} of {capacity}", ""),
    ]
