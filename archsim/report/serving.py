"""What a served scenario tells: a sentence and tables, an HTML page, JSON, a trace for Perfetto."""

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from archsim import __version__
from archsim.arrays import Array
from archsim.explore.rates import Ratio
from archsim.explore.service import Service
from archsim.report.document import clean
from archsim.report.figures import INK, MUTED, PARTS, Figure, axis, figure, layout
from archsim.report.keeping import keeping_json, keeping_notes, keeping_table
from archsim.report.page import Figures, environment
from archsim.report.ratios import ratio_data, ratio_table, too_few
from archsim.report.servingparts import draft_rows, drafts_json, pool_rows, pools_json, session_rows, sessions_json
from archsim.report.tables import Table
from archsim.report.terminal import console, print_table
from archsim.report.words import counted, dollars, number, percent, split_of, system_label, token_rate
from archsim.serving.goodput import Largest
from archsim.serving.measures import LATENCIES, QUANTILES
from archsim.serving.simulate import uncached
from archsim.units import show

SCHEMA = 1
REASONS = 3  # different reasons of refused requests that are shown
FEW = 40  # requests below which it is not said whether they are served as fast as they come
CURVE = 200  # points of a distribution
MOST_TRACED = 5000  # requests in a trace
COLORS = {"ttft": PARTS["compute"], "tpot": PARTS["memory"], "itl": PARTS["link"], "e2e": PARTS["on_chip"]}


def sentence(service: Service) -> str:
    """The answer in a sentence; with its reason where nothing came of it."""
    m, r = service.measures, service.requests
    system = system_label(service.scenario)
    if not len(r):
        return f"{system}: there are no requests to serve."
    if not m.finished:
        why = reasons(service)
        return f"{system} finished 0 of {counted(len(r), 'request')}: {why[0] if why else 'there was no time'}."
    what = "requests" if r.after is None else "sessions"
    load = f"{r.clients} clients" if r.clients else f"{number(r.rate)} {what}/s"
    load = load if r.clients or r.rate else counted(r.sessions or len(r), "session" if r.after else "request")
    interactive = 1.0 / m.latency("tpot")["mean"]
    user = f"{token_rate(interactive)} a user, " if math.isfinite(interactive) else ""  # undefined for one token
    return (
        f"{system} serves {load} of {r.name}: {user}first token after "
        f"{show(m.latency('ttft')['mean'], 'time')} in the mean, {token_rate(m.output_rate)} in all."
    )


def reasons(service: Service) -> list[str]:
    """Why requests did not finish, most frequent first."""
    found: dict[str, int] = {}
    for reason in service.played.outcome.refused.values():
        found[reason] = found.get(reason, 0) + 1
    ordered = sorted(found.items(), key=lambda item: -item[1])
    lines = [f"{counted(count, 'request')} refused: {reason}" for reason, count in ordered[:REASONS]]
    if len(ordered) > REASONS:
        rest = sum(count for _, count in ordered[REASONS:])
        lines.append(f"{counted(rest, 'request')} refused for reasons of the same kind")
    if service.played.outcome.stopped:
        lines.append(service.played.outcome.stopped)
    return lines


def notes(service: Service) -> list[str]:
    """What a reader should know beside the numbers."""
    found = [f"{service.measures.finished:,} of {counted(len(service.requests), 'request')} finished."]
    found += [f"{reason[0].upper()}{reason[1:]}." for reason in reasons(service)]
    if _falls_behind(service):
        found.append("Requests come in faster than they are served: with more of them waits would be longer still.")
    why = uncached(service.requests, service.server) if service.requests.chains is not None else ""
    if why:
        found.append(f"No prefix is found again: {why}.")
    skipped = service.requests.skipped
    if skipped:
        found.append(f"{counted(len(skipped), 'row')} left out: {skipped[0]}{' ...' if len(skipped) > 1 else ''}")
    found += keeping_notes(service)
    for part in service.parts:
        if part.only or part is service.parts[0]:
            whose = f" of pool {part.name}" if service.server.prefill is not None else ""
            found.append(f"Step times{whose} against the exact path: {part.server.surface.guard}.")
    return found


def _falls_behind(service: Service) -> bool:
    """Whether the last quarter of the requests waits thrice as long for a token as the first, and not for a moment."""
    if service.requests.clients or service.requests.after is not None or service.measures.finished < FEW:
        return False
    m = service.measures
    order = np.argsort(service.played.arrived, kind="stable")
    waits = m.ttft[order][np.isfinite(m.ttft[order])]
    quarter = len(waits) // 4
    first, last = (float(part.mean()) for part in (waits[:quarter], waits[-quarter:]))
    return last > 3.0 * first and last > 0.25 * m.latency("e2e")["mean"]


def latency_table(service: Service) -> Table:
    """Mean and percentiles of every latency."""
    rows = []
    for name, meaning in LATENCIES.items():
        found = service.measures.latency(name)
        shown = [show(found[key], "time") for key in ("mean", *(f"p{q}" for q in QUANTILES))]
        rows.append((name.upper() if name != "queue" else name, meaning, *shown))
    heads = ("", "", "mean", *(f"p{q}" for q in QUANTILES))
    return Table("Latency", heads, tuple(rows), texts=2)


def load_rows(service: Service) -> list[tuple[str, str]]:
    """(name, value) of throughput, occupancy and money."""
    m, out = service.measures, service.played.outcome
    mean, most = m.occupancy
    cost = service.costs()
    rows = [
        ("output", f"{token_rate(m.output_rate)}, {token_rate(m.output_rate / service.chips)} a chip"),
        ("prompts", token_rate(m.input_rate)),
        ("requests", f"{number(m.rate(m.finished))}/s over {show(m.span, 'time')}"),
        ("replicas busy", percent(m.busy)),
        ("sequences in a decode step", number(m.batch)),
        ("KV memory in use", f"{percent(mean)} in the mean, {percent(most)} at the most"),
        ("preempted", f"{out.preempted:,}, {counted(out.recomputed, 'token')} computed again"),
    ]
    rows += draft_rows(service)
    rows += pool_rows(service)
    if service.requests.chains is not None:
        rows.append(("prompt tokens from the prefix cache", percent(m.hit_rate)))
    rows += [
        ("cost per million tokens", dollars(cost["cost_per_token"])),
        ("of output, fresh input", f"{dollars(cost['output_cost'])}, {dollars(cost['input_cost'])}"),
    ]
    if math.isfinite(cost["cached_input_cost"]):
        rows.append(("of cached input", dollars(cost["cached_input_cost"])))
    rows += session_rows(service)
    power = show(service.power, "power")
    rows.append(("board power of a chip", f"{power}; {show(service.energy_per_token, 'energy')} an output token"))
    return rows


def slo_rows(service: Service, largest: Largest | None) -> list[tuple[str, str]]:
    """Goodput, and the largest rate that keeps the SLO."""
    targets = service.targets
    if not targets.any:
        return []
    asked = [
        f"{name} {show(value, 'time')}" for name, value in (("TTFT", targets.ttft), ("TPOT", targets.tpot)) if value
    ]
    m = service.measures
    met = f"{percent(m.share(targets))} of requests ({percent(targets.share)} must)"
    rows = [("SLO", " and ".join(asked)), ("kept by", met), ("goodput", f"{number(m.goodput(targets))} requests/s")]
    if largest is not None:
        interval = f" ± {number(largest.width, 2)}" if math.isfinite(largest.width) else ""
        value = f"{number(largest.rate)}{interval} requests/s" if not largest.reason else f"n/a: {largest.reason}"
        few = too_few(len(service.requests), largest.rate, m.latency("e2e")["mean"]) if not largest.reason else ""
        rows.append(("largest rate that keeps it", f"{value}; {few}" if few else value))
    return rows


def print_service(service: Service, largest: Largest | None = None, ratios: Sequence[Ratio] = ()) -> None:
    """The answer in the terminal."""
    from rich.text import Text

    out = console()
    out.print(Text(sentence(service), style="bold"))
    out.print(Text(f"Plan: {split_of(service.scenario.split)}, {policy_label(service)}."))
    for note in notes(service):
        out.print(Text(note))
    if not service.measures.finished:
        return
    print_table(out, latency_table(service))
    kept = keeping_table(service)
    if kept.rows:
        print_table(out, kept)
    out.print()
    for name, value in (*load_rows(service), *slo_rows(service, largest)):
        out.print(Text(f"  {name:<38}{value}"))
    if ratios:
        out.print()
        print_table(out, ratio_table(ratios, len(service.requests), service.measures.latency("e2e")["mean"]))


def policy_label(service: Service) -> str:
    """Scheduler, memory and router: "chunked scheduler, paged KV in blocks of 16, least-loaded router"."""
    policy, server = service.scenario.serving, service.server
    kv = f"paged KV in blocks of {policy.kv.block}" if policy.kv.allocation == "paged" else "contiguous KV"
    several = f", {server.router} router" if server.replicas > 1 else ""
    if server.prefill is not None:
        ahead = counted(server.prefill.server.replicas, "replica")
        skip = server.prefill.skip
        kept = "" if skip is None else ", auto" if skip == "auto" else f", up to {counted(skip, 'fresh token')}"
        several = f", {counted(server.replicas, 'replica')} behind {ahead} that prefill ({server.router})"
        several += f"{kept} prefilled where they decode" if kept else ""
    return f"{policy.scheduler} scheduler, {kv}{several}"


# Files


def to_json(service: Service, largest: Largest | None = None, ratios: Sequence[Ratio] = ()) -> str:
    """The answer as JSON: SI units, USD per million tokens, null for what is undefined."""
    m, out, r = service.measures, service.played.outcome, service.requests
    targets = service.targets
    data = {
        "archsim": SCHEMA,
        "version": __version__,
        "sentence": sentence(service),
        "notes": notes(service),
        "scenario": service.scenario.name,
        "seed": service.asked.seed,
        "requests": {"name": r.name, "count": len(r), "rate": r.rate or None, "clients": r.clients or None},
        "finished": m.finished,
        "span": m.span,
        "latency": {name: m.latency(name) for name in LATENCIES},
        "throughput": {"output": m.output_rate, "input": m.input_rate, "requests": m.rate(m.finished)},
        "interactivity": 1.0 / m.latency("tpot")["mean"],
        "utilization": {"busy": m.busy, "batch": m.batch, "kv_mean": m.occupancy[0], "kv_most": m.occupancy[1]},
        "speculation": drafts_json(service),
        "prefix_hits": m.hit_rate if r.chains is not None else None,
        "kv": keeping_json(service),
        "counts": {
            "preempted": out.preempted,
            "recomputed_tokens": out.recomputed,
            "prefilled_tokens": out.prefilled,
            "generated_tokens": out.generated,
            "refused": len(out.refused),
            "skipped_rows": len(r.skipped),
        },
        "pools": pools_json(service),
        "ratios": ratio_data(ratios) or None,
        "stopped": out.stopped or None,
        "cost": service.costs(),
        "sessions": sessions_json(service),
        "power": service.power,
        "energy_per_token": service.energy_per_token,
        "slo": {"ttft": targets.ttft, "tpot": targets.tpot, "share": targets.share, "kept": m.share(targets)},
        "goodput": m.goodput(targets) if targets.any else None,
        "largest_rate": None if largest is None else _largest(largest),
        "guard": {"decode": service.server.surface.guard.decode, "mixed": service.server.surface.guard.mixed},
    }
    return json.dumps(clean(data), sort_keys=True, indent=1, allow_nan=False) + "\n"


def _largest(found: Largest) -> dict[str, object]:
    return {"rate": found.rate, "width": found.width, "rates": list(found.rates), "reason": found.reason or None}


def write_trace(service: Service, target: Path) -> None:
    """Requests on lanes and the batch over time, for https://ui.perfetto.dev; the first few thousand requests."""
    played = service.played
    events: list[dict[str, Any]] = [{"ph": "M", "pid": 1, "name": "process_name", "args": {"name": "requests"}}]
    free: list[float] = []
    for index in np.flatnonzero(played.finished)[:MOST_TRACED].tolist():
        start, end = float(played.arrived[index]), float(played.end[index])
        lane = next((place for place, until in enumerate(free) if until <= start), len(free))
        free[lane : lane + 1] = [end]
        stages = (("queue", start, played.begun[index]), ("prefill", played.begun[index], played.first[index]))
        for name, begin, until in (*stages, ("decode", played.first[index], end)):
            if until > begin:
                events.append(_span(name, 1, lane, float(begin), float(until), {"request": index}))
    ahead = played.server.prefill.server.replicas if played.server.prefill is not None else 0
    for replica, log in enumerate(played.logs, 2):
        name = f"replica {replica - 1}{', prefill' if replica - 2 < ahead else ''}"
        events.append({"ph": "M", "pid": replica, "name": "process_name", "args": {"name": name}})
        for start, running, waiting in zip(
            *(log[name].tolist() for name in ("start", "running", "waiting")), strict=True
        ):
            args = {"running": running, "waiting": waiting}
            events.append({"ph": "C", "pid": replica, "name": "sequences", "ts": round(start * 1e6, 3), "args": args})
    text = json.dumps({"displayTimeUnit": "ms", "traceEvents": events}, separators=(",", ":"))
    target.write_text(text, encoding="utf-8")


def _span(name: str, process: int, lane: int, start: float, end: float, args: dict[str, Any]) -> dict[str, Any]:
    place = {"ph": "X", "name": name, "pid": process, "tid": lane}
    return {**place, "ts": round(start * 1e6, 3), "dur": round((end - start) * 1e6, 3), "args": args}


def to_html(service: Service, largest: Largest | None = None, command: str = "", ratios: Sequence[Ratio] = ()) -> str:
    """The answer as one self-contained page; `command` is how to make it again."""
    from markupsafe import Markup
    from plotly.offline import get_plotlyjs

    figures = Figures()
    finished = service.measures.finished > 0
    rows = (*load_rows(service), *slo_rows(service, largest)) if finished else ()
    return (
        environment()
        .get_template("serving.html")
        .render(
            title=service.scenario.name,
            system=system_label(service.scenario),
            question=f"{service.requests.name}; {split_of(service.scenario.split)}, {policy_label(service)}",
            sentence=sentence(service),
            notes=notes(service),
            latency=latency_table(service) if finished else None,
            table=Table("", ("", ""), rows, texts=2),
            keeping=keeping_table(service) if finished else None,
            ratios=ratio_table(ratios, len(service.requests), service.measures.latency("e2e")["mean"]),
            distributions=figures.add(distributions(service)) if finished else None,
            series=[(name, figures.add(item)) for name, item in _series(service)] if finished else [],
            command=command,
            version=__version__,
            figures=figures.as_json(),
            plotly=Markup(get_plotlyjs()),
        )
    )


def distributions(service: Service) -> Figure:
    """Share of requests (of tokens, for ITL) that wait no longer than a time."""
    traces = []
    for name, color in COLORS.items():
        values, weights = _weighted(service, name)
        if len(values):
            order = np.argsort(values)
            share = np.cumsum(weights[order]) / weights.sum()
            picked = np.unique(np.searchsorted(share, np.linspace(0, 1, CURVE)).clip(0, len(values) - 1))
            line = {"x": values[order][picked], "y": share[picked], "type": "scatter", "mode": "lines"}
            traces.append({**line, "name": name.upper(), "line": {"color": color, "width": 2}})
    shape = layout(
        360,
        xaxis=axis("seconds", type="log"),
        yaxis=axis("share", range=[0, 1], tickformat=".0%"),
        showlegend=True,
        legend={"orientation": "h", "y": 1.05, "yanchor": "bottom", "x": 0},
    )
    return figure(traces, shape)


def _weighted(service: Service, name: str) -> tuple[Array, Array]:
    values, weights = service.measures.gaps if name == "itl" else (getattr(service.measures, name), np.ones(0))
    weights = weights if name == "itl" else np.ones(len(values))
    kept = np.isfinite(values) & (values > 0)
    return values[kept], weights[kept]


def _series(service: Service) -> list[tuple[str, Figure]]:
    """Sequences and KV memory over time."""
    found: Mapping[str, Array] = service.measures.series()
    time = found["time"]
    units = found["units"] / sum(pool.capacity for pool in service.played.pools)
    sequences = [
        _line(time, found["decoding"], "decoding", PARTS["compute"]),
        _line(time, found["waiting"], "waiting", MUTED),
    ]
    legend = {"orientation": "h", "y": 1.05, "yanchor": "bottom", "x": 0}
    first = layout(
        300, xaxis=axis("seconds"), yaxis=axis("sequences", rangemode="tozero"), showlegend=True, legend=legend
    )
    second = layout(300, xaxis=axis("seconds"), yaxis=axis("KV memory in use", range=[0, 1.02], tickformat=".0%"))
    return [
        ("Sequences over time", figure(sequences, first)),
        ("KV memory over time", figure([_line(time, units, "in use", PARTS["memory"])], second)),
    ]


def _line(x: Array, y: Array, name: str, color: str = INK) -> Figure:
    return {"x": x, "y": y, "type": "scatter", "mode": "lines", "name": name, "line": {"color": color, "width": 1.5}}
