"""An answer as data: versioned JSON with no NaN, keys in order, the same bytes for the same answer."""

import json
import math
from collections.abc import Iterable

import numpy as np

from archsim import __version__
from archsim.explore.band import SHARE, basis
from archsim.explore.evaluate import chip_rate
from archsim.explore.result import METRICS, Result, check_defined, metrics_of
from archsim.explore.scenario import Scenario
from archsim.mapping.plan import MemoryPlan
from archsim.report.choice import choice_sentences
from archsim.report.point import Point, Proposal, main_point, single
from archsim.report.prices import price_metrics
from archsim.report.rests import assumptions
from archsim.report.steps import KernelTime, StepTime, steps_of
from archsim.report.words import place, sentence, slo_sentence
from archsim.sources import Source
from archsim.workload.model import CLASSES, quality_risks

SCHEMA = 1
DIGITS = 12  # of a float: beyond them machines differ
UNITS = {
    "time": "s",
    "token_rate": "tok/s",
    "token_price": "USD/Mtok",
    "revenue": "USD/h",
    "power_revenue": "USD/(MW h)",
    "power": "W",
    "energy": "J",
    "bytes": "B",
    "": "1",
}

Json = object


def to_json(*results: Result) -> str:
    """Results of one scenario as JSON text.

    Numbers are SI, prices USD per million tokens. What is undefined is null: `reasons` says why, point by point, and
    `undefined` of a metric why it is so at points that are feasible. Arrays have the shape of `axes`, in the order of
    `axis_order`. Raises BrokenModel where a metric has no number at a feasible point and no reason.
    """
    data = {
        "archsim": SCHEMA,
        "version": __version__,
        "scenario": _scenario(results[0].scenario) if results else None,
        "answers": [_answer(result) for result in results],
    }
    return json.dumps(clean(data), sort_keys=True, indent=1, allow_nan=False) + "\n"


def clean(value: Json) -> Json:
    """Plain data: arrays as lists, floats rounded, and null for what is not finite."""
    if isinstance(value, dict):
        return {str(key): clean(item) for key, item in value.items()}
    if isinstance(value, np.ndarray):
        return clean(value.tolist())
    if isinstance(value, list | tuple):
        return [clean(item) for item in value]
    if isinstance(value, bool | np.bool_):
        return bool(value)
    if isinstance(value, int | float | np.number):
        return _number(float(value))
    return value


def _number(value: float) -> float | int | None:
    if not math.isfinite(value):
        return None
    rounded = float(f"{value:.{DIGITS}g}")
    return int(rounded) if rounded.is_integer() and abs(rounded) < 2**53 else rounded


def _scenario(scenario: Scenario) -> Json:
    precision = {name: getattr(scenario.precision, name).name for name in CLASSES}
    slo = {name: value for name, value in scenario.slo if value is not None}
    return {
        "name": scenario.name,
        "model": scenario.model.name,
        "chip": scenario.chip.name,
        "chips": scenario.chips.ravel(),
        **_pools(scenario),
        "runtime": {"name": scenario.runtime.name, "version": scenario.runtime.version},
        "mapper": None if scenario.mapper is None else scenario.mapper.name,
        "precision": precision,
        "quality_risks": quality_risks(scenario.model, scenario.precision),
        "traffic": None
        if scenario.input is None or scenario.output is None
        else {"input": scenario.input, "output": scenario.output, "cached": scenario.cached},
        "slo": slo,
        "objective": {name: value for name, value in scenario.objective if value is not None},
        "economics": dict(scenario.terms),
        "prices": None if scenario.prices is None else dict(scenario.prices),
        "placement": dict(scenario.options),
        "speculation": dict(scenario.speculation),
        "expert_skew": scenario.skew.ravel(),
    }


def _pools(scenario: Scenario) -> dict[str, Json]:
    """Both pools, where there are two."""
    partner = scenario.partner
    if partner is None:
        return {}
    pools = {
        name: {"chip": pool.chip.name, "count": pool.count.ravel()} for name, pool in scenario.system.pools.items()
    }
    return {"pools": pools, "partner": {"name": partner.name, "job": partner.job, "runs": sorted(partner.roles)}}


def _answer(result: Result) -> Json:
    point = main_point(result)
    plan = {name: result.pick(value) for name, value in result.scenario.split.named().items()}
    reasons = np.array([result.reason_at(index) for index in range(result.feasible.size)], dtype=object)
    return {
        "mode": result.mode,
        "axes": {name: values.ravel() for name, values in result.axes.items()},
        "axis_order": list(result.axes),
        "metrics": {name: _metric(result, name) for name in metrics_of(result.scenario, result.mode)},
        "plan": plan,
        "proposals": result.proposals,
        "feasible": result.feasible,
        "reasons": reasons.reshape(result.shape),
        "meets_slo": result.meets_slo,
        "best": _best(point) if point.feasible else None,
        "refusal": None if point.feasible else _refusal(point),
        "assumptions": [_source(source) for source in assumptions([point])],
    }


def _metric(result: Result, name: str) -> Json:
    dimension, meaning, _ = metrics_of(result.scenario, result.mode)[name]
    values = result.metric(name)
    reason = check_defined(result, name, values)
    ends = result.band(name)
    return (
        {"unit": UNITS[dimension], "meaning": meaning, "values": values}
        | ({} if ends is None else {"band": {"low": ends[0], "high": ends[1], "share": SHARE}})
        | ({"undefined": reason} if reason else {})
    )


def _source(source: Source) -> Json:
    return {"of": source.of, "kind": source.kind, "ref": source.ref, "file": place(source.file)}


def _best(point: Point) -> Json:
    """The point a report is about, taken apart: time, memory, money, and the alternatives."""
    rate = chip_rate(point.alone.answer)
    plan = point.alone.answer.memory
    return {
        "index": point.index,
        "at": point.result.point(point.index),
        "sentence": sentence(point),
        "slo": slo_sentence(point.result) or None,
        "choice": choice_sentences(point),
        "bands": basis(point.scenario),
        "metrics": {name: point.metric(name) for name in METRICS} | price_metrics(point),
        "steps": [_step(step) for step in steps_of(point)],
        "memory": _memory(plan) | _partner_memory(point),
        "chip_hour": {
            "by": rate.by,
            "parts": {name: single(value) for name, value in rate.parts.items()},
            "unit": "USD/h",
        },
        "proposals": [_proposal(proposal) for proposal in point.proposals],
    }


def _memory(plan: MemoryPlan) -> dict[str, Json]:
    """What one chip holds."""
    parts = {name: single(value) for name, value in plan.parts.items()}
    return {"parts": parts, "needed": single(plan.needed), "capacity": single(plan.capacity)}


def _partner_memory(point: Point) -> dict[str, Json]:
    """The same of the pools by their names, where there are two."""
    system, plan = point.scenario.system, point.alone.answer.memory
    if system.partner is None or plan.partner is None:
        return {}
    return {"pools": {system.main_name: _memory(plan), system.partner.name: _memory(plan.partner)}}


def _proposal(proposal: Proposal) -> Json:
    """A proposal; where it is not usable its speed and cost are undefined, and `reason` says why."""
    memory = ("memory_needed", "memory_utilization")
    metrics = {
        name: None if proposal.reason and name not in memory else value for name, value in proposal.metrics.items()
    }
    return {**proposal.degrees, "chosen": proposal.chosen, "reason": proposal.reason, "metrics": metrics}


def _step(step: StepTime) -> Json:
    return {
        "title": step.title,
        "detail": step.detail,
        "span": step.span,
        "lanes": {lane.name: {"parts": lane.parts, "gaps": lane.gaps} for lane in step.lanes},
        "kernels": _kernels(step.by_name),
        "utilization": {"compute": step.compute_share, "memory": step.memory_share, "links": step.link_share},
    }


def _kernels(items: Iterable[KernelTime]) -> Json:
    return [
        {
            "name": item.name,
            "kind": item.kernel.kind,
            "role": item.kernel.role,
            **({"pool": item.kernel.pool} if item.kernel.pool else {}),
            "blocks": item.blocks,
            "runs": item.runs,
            "seconds": item.seconds,
            "parts": item.parts,
            "flops": item.flops,
            "bytes": item.bytes,
            "link_bytes": item.link_bytes,
            "limit": item.limit,
        }
        for item in items
    ]


def _refusal(point: Point) -> Json:
    found = point.diagnosis
    if found is None:
        return {"reason": point.result.reason_at(point.index)}
    return {
        "at": point.result.point(point.index),
        "reason": found.reason,
        "resource": found.resource,
        "needed": found.needed,
        "available": found.available,
        "parts": dict(found.parts),
        "fixes": list(found.fixes),
    }
