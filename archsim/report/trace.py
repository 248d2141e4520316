"""A trace of one step for Perfetto: every kernel and transfer of every layer on its lane.

Chrome's trace event format (JSON), which https://ui.perfetto.dev opens: complete events in microseconds.
"""

import json
from pathlib import Path
from typing import Any

from archsim.engine.lanes import timeline
from archsim.engine.step import PricedStep, lanes_of

LANES = ("host", "compute", "link")


def trace_of(step: PricedStep, name: str, process: int = 1) -> list[dict[str, Any]]:
    """Trace events of one step at one point."""
    events: list[dict[str, Any]] = [{"ph": "M", "pid": process, "name": "process_name", "args": {"name": name}}]
    played = timeline(*lanes_of(step.plan, step.costs))
    lanes = [*LANES, *dict.fromkeys(event.lane for event in played if event.lane not in LANES)]
    for thread, lane in enumerate(lanes):
        events.append({"ph": "M", "pid": process, "tid": thread, "name": "thread_name", "args": {"name": lane}})
    host = float(step.plan.host.ravel()[0])
    if host > 0.0:
        events.append(_event("step", "host", (process, 0), 0.0, host, {}))
    for event in played:
        details = {"block": event.block, "layer": event.layer}
        where = process, lanes.index(event.lane)
        events.append(_event(event.name, event.lane, where, event.start, event.seconds, details))
    return events


def _event(
    name: str, lane: str, where: tuple[int, int], start: float, seconds: float, details: dict[str, Any]
) -> dict[str, Any]:
    return {
        "ph": "X",
        "name": name,
        "cat": lane,
        "pid": where[0],
        "tid": where[1],
        "ts": round(start * 1e6, 4),
        "dur": round(seconds * 1e6, 4),
        "args": details,
    }


def write_trace(path: Path, steps: dict[str, PricedStep]) -> None:
    """Writes a file that Perfetto opens, a process for each step."""
    events = [event for number, (name, step) in enumerate(steps.items(), 1) for event in trace_of(step, name, number)]
    path.write_text(
        json.dumps({"displayTimeUnit": "ns", "traceEvents": events}, separators=(",", ":")), encoding="utf-8"
    )
