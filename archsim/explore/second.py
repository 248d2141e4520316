"""A second pool that prefills for the first, or drafts for it: what it deploys, how long it takes, what it holds."""

from dataclasses import replace

import numpy as np

from archsim.arrays import Array, array
from archsim.engine.step import PricedStep, run_step
from archsim.explore.scenario import Scenario
from archsim.mapping.memory import kv_bytes, memory_plan
from archsim.mapping.place import Deployment, place
from archsim.mapping.plan import MemoryPlan
from archsim.mapping.split import split
from archsim.workload.step import decode


def job_of(scenario: Scenario) -> str:
    """What the second pool does: `roles`, `prefill`, `draft`; empty where there is none."""
    return "" if scenario.partner is None else scenario.partner.job


def second_deployment(scenario: Scenario) -> Deployment:
    """What a pool that prefills or drafts deploys: the model, or the one that writes drafts.

    Raises ValueError where there is no such pool.
    """
    s, partner = scenario, scenario.partner
    if partner is None or s.split.partner is None:
        raise ValueError("there is no second pool")
    model = s.drafter if partner.job == "draft" and s.drafter is not None else s.model
    return Deployment(model, s.precision, s.split.partner, partner.chip, partner.runtime, s.skew, s.options)


def with_second(scenario: Scenario, memory: MemoryPlan, batch: Array, context: Array) -> MemoryPlan:
    """The memory plan of the main pool with that of a pool that drafts for all its sequences, or prefills."""
    job = job_of(scenario)
    if job not in ("prefill", "draft"):
        return memory
    d = second_deployment(scenario)
    return replace(memory, partner=memory_plan(d, batch if job == "draft" else d.split.groups, context))


def handover(scenario: Scenario, context: Array, prefill: Array) -> Array:
    """Seconds that a KV cache arrives later than the end of its prefill, which takes `prefill` seconds.

    Each layer's part travels while the next layer is worked out: of L layers, p/L + (L - 1) max(p, t)/L + t/L in all,
    p being the prefill and t the transfer.
    """
    partner, other = scenario.partner, scenario.split.partner
    if partner is None or other is None or partner.job != "prefill":
        return array(0.0)
    size = kv_bytes(scenario.model, scenario.precision, split(), context)
    wire = partner.back
    rate = np.minimum(other.tensor * wire.sender, scenario.split.tensor * wire.receiver)
    layers = float(scenario.model.layers)
    transfer = size / rate
    whole = (prefill + transfer) / layers + (layers - 1.0) * np.maximum(prefill, transfer) / layers
    return whole - prefill + wire.latency


def drafting(scenario: Scenario, batch: Array, context: Array) -> PricedStep | None:
    """One step of the model that writes drafts; None where no pool does."""
    if job_of(scenario) != "draft":
        return None
    d = second_deployment(scenario)
    return run_step(place(d, decode(batch, context, d.model.clips)), d.chip, d.runtime.stack)


def draft_seconds(scenario: Scenario, step: PricedStep | None) -> Array:
    """Seconds from the end of one verification to the beginning of the next: the drafts, and the way there and back."""
    partner = scenario.partner
    if step is None or partner is None:
        return array(0.0)
    return scenario.speculation.drafts * step.turnaround + partner.out.latency + partner.back.latency
