"""What writes the drafts of a scenario on the chips that verify them, and what that takes of their memory."""

from dataclasses import replace

import numpy as np

from archsim.arrays import Array, array
from archsim.engine.step import PricedStep
from archsim.explore.scenario import Scenario
from archsim.explore.second import draft_seconds
from archsim.mapping.place import Deployment
from archsim.mapping.plan import MemoryPlan
from archsim.mapping.split import Split, legality
from archsim.serving.speculation import Speculation, Writer
from archsim.workload.model import Model


def speculation_of(scenario: Scenario, d: Deployment) -> Speculation | None:
    """The drafts of a scenario; None without any. A pool of its own that drafts is not among their writers."""
    asked = scenario.speculation
    if not asked.drafts:
        return None
    return Speculation(asked.drafts, asked.acceptance, _writer(scenario, d), asked.when == "always")


def _writer(scenario: Scenario, d: Deployment) -> Writer | None:
    """A module of the model or a model of its own; None for n-grams and for a pool that drafts."""
    alone = replace(d, partner=None)
    if scenario.speculation.mtp:
        return Writer(alone, module=True)
    drafter, partner = scenario.drafter, scenario.partner
    if drafter is None or (partner is not None and partner.job == "draft"):
        return None
    return Writer(replace(alone, model=drafter, split=_beside(drafter, d.split)))


def _beside(drafter: Model, split: Split) -> Split:
    """The split of a model that drafts on the same chips: the tensor ranks that divide it, and no further ranks."""
    one = array(1.0)
    own = replace(split, expert=one, pipeline=one, context=one, partner=None)
    allowed = {}
    for degree in np.unique(split.tensor).tolist():
        whole = int(degree)
        degrees = [count for count in range(1, whole + 1) if whole % count == 0]
        allowed[degree] = max(count for count in degrees if count == 1 or _divides(drafter, own, float(count)))
    return replace(own, tensor=np.vectorize(allowed.__getitem__, otypes=[np.float64])(split.tensor))


def _divides(drafter: Model, split: Split, tensor: float) -> bool:
    """Whether so many tensor ranks share a model evenly."""
    tried = replace(split, tensor=array(tensor))
    return not legality(drafter, tried, tried.chips).any()


def written(
    scenario: Scenario, d: Deployment, draft: PricedStep | None, batch: Array, context: Array
) -> tuple[Array, Array]:
    """Seconds to write the drafts of a decode step, and joules of a chip that verifies meanwhile.

    `draft` is the step of a pool that drafts, for which the chips wait.
    """
    if draft is not None:
        seconds = draft_seconds(scenario, draft)
        return seconds, d.chip.power.idle * seconds
    speculation = speculation_of(scenario, d)
    if speculation is None or speculation.writer is None:
        return array(0.0), array(0.0)
    writer, drafts = speculation.writer, speculation.drafts
    return writer.seconds(drafts, batch, context), writer.joules(drafts, batch, context)


def reading(scenario: Scenario, d: Deployment, context: Array, chunks: Array) -> Array:
    """Seconds that what drafts takes to read a lone prompt of `context` tokens, in as many chunks as the model."""
    speculation = speculation_of(scenario, d)
    if speculation is None or speculation.writer is None:
        return array(0.0)
    return speculation.writer.reading(context / chunks, array(1.0)) * chunks


def with_drafter(speculation: Speculation | None, memory: MemoryPlan, context: Array) -> MemoryPlan:
    """A memory plan with what writes drafts: its weights, and its cache of sequences of `context` tokens."""
    if speculation is None or speculation.writer is None:
        return memory
    weights, cached = speculation.writer.held
    held = weights + cached * (context + speculation.drafts) * memory.sequences
    return replace(memory, parts={**memory.parts, "drafter": held})
