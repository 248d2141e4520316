"""Why a point is infeasible, by how much, and the nearest change that makes it feasible."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np

from archsim.arrays import Array, array
from archsim.explore.evaluate import memory_of
from archsim.explore.pool_fixes import main_fixes, partner_fixes, partner_reason
from archsim.explore.result import Result, scalar_scenario
from archsim.explore.scenario import Scenario
from archsim.mapping.memory import longest_context
from archsim.mapping.plan import MemoryPlan
from archsim.mapping.split import Split, legality
from archsim.serving.steady import HELD
from archsim.units import format_named, show


@dataclass(frozen=True)
class Diagnosis:
    """A refusal: a sentence, the resource that falls short (B) and what makes it up (B), and what would help."""

    reason: str
    resource: str
    needed: float
    available: float
    parts: Mapping[str, float]
    fixes: tuple[str, ...]


def diagnose(result: Result, index: int) -> Diagnosis | None:
    """The refusal of one point (flat index); None where the point is feasible."""
    if bool(result.feasible.ravel()[index]):
        return None
    scenario = scalar_scenario(result, index)
    rule = result.reason_at(index)
    if rule != "memory":
        return _shape(scenario, rule)
    return _memory(scenario, *_load(scenario, result.mode))


def _load(scenario: Scenario, mode: str) -> tuple[float, float]:
    """Sequences and the tokens each holds."""
    batch = 1.0 if scenario.batch is None else float(scenario.batch.max())
    if mode == "step" and scenario.context is not None:
        return batch, float(scenario.context.max())
    if scenario.input is None or scenario.output is None:
        raise ValueError("neither a context nor traffic is known")
    return batch, float((scenario.input + HELD * scenario.output).max())


def _plan(scenario: Scenario, batch: float, context: float) -> MemoryPlan:
    return memory_of(scenario, array(batch), array(context))


def _memory(scenario: Scenario, batch: float, context: float) -> Diagnosis:
    plan = _plan(scenario, batch, context)
    partner, other = scenario.partner, plan.partner
    if partner is not None and other is not None and not bool(other.fits.all()):
        reason, held = partner_reason(partner, other), {name: float(part.max()) for name, part in other.parts.items()}
        helps = tuple(partner_fixes(scenario, partner, batch, context))
        return Diagnosis(reason, "memory", float(other.needed.max()), float(other.capacity.max()), held, helps)
    needed, capacity = float(plan.needed.max()), float(plan.capacity.max())
    parts = {name: float(part.max()) for name, part in plan.parts.items()}
    largest = ", ".join(f"{show(size, 'bytes')} {name}" for name, size in parts.items() if size)
    room = float(plan.free_for_kv.max())
    chip = scenario.chip.name
    reason = f"memory: each {chip} would need {show(needed, 'bytes')} ({largest}) of {show(capacity, 'bytes')}"
    if plan.backing is not None and needed <= capacity:
        needed, capacity = float((plan.per_sequence * plan.sequences).max()), float(plan.backing.max())
        reason = f"memory: KV caches would need {show(needed, 'bytes')} of {show(capacity, 'bytes')} behind each {chip}"
    elif room <= 0:
        reason += "; the weights alone leave no room for a KV cache"
    fixes = tuple(_fixes(scenario, batch, context, room))
    return Diagnosis(reason, "memory", needed, capacity, parts, fixes)


def _fixes(scenario: Scenario, batch: float, context: float, room: float) -> Iterator[str]:
    """Nearest changes, each checked against the memory plan: shorter, fewer, narrower, more chips."""
    sequences = max(float(_plan(scenario, batch, context).sequences.max()), 1.0)
    if room > 0:
        longest = _longest(scenario, room / sequences)
        if longest:
            yield f"a context of {longest:,} tokens fits at this batch"
        held = float(_plan(scenario, 1.0, context).per_sequence.max())
        most = int(room // held) * int(scenario.split.groups.max())
        if most:
            yield f"a batch of {most:,} fits at this context"
    yield from _narrower(scenario, batch, context, sequences)
    partner, staged = scenario.partner, scenario.chip.kind == "lpu"
    if partner is not None and (partner.job == "roles" or not staged):
        yield from main_fixes(scenario, batch, context)
        return
    yield from (_more_stages if staged else _more_chips)(scenario, batch, context)


def _longest(scenario: Scenario, room: float) -> int:
    return longest_context(scenario.model, scenario.precision, scenario.split, room)


def _narrower(scenario: Scenario, batch: float, context: float, sequences: float) -> Iterator[str]:
    """Half the bits for the KV cache, and for the weights."""
    for tensor, names in (("kv", ("kv",)), ("weights", ("weights", "attention", "experts"))):
        if min(getattr(scenario.precision, name).bits for name in names) <= 8:
            continue
        fp8 = {name: format_named("fp8") for name in names}
        other = replace(scenario, precision=replace(scenario.precision, **fp8))
        plan = _plan(other, batch, context)
        room = float((plan.free_for_kv).max())
        if bool(plan.fits.all()):
            yield f"{tensor} in fp8 fits"
        elif room > 0 and _longest(other, room / sequences):
            yield f"{tensor} in fp8 holds a context of {_longest(other, room / sequences):,} tokens"


def _more_chips(scenario: Scenario, batch: float, context: float) -> Iterator[str]:
    """The fewest chips that hold it: at a legal tensor degree, with replicas, or in pipeline stages."""
    link = scenario.chip.links.get("scale_up")
    chips = int(scenario.chips.max())
    counts = {chips * factor for factor in range(1, 17)} | {2**power for power in range(11)}
    for count in sorted(count for count in counts if count >= chips):
        degrees = np.array([float(d) for d in range(1, min(count, link.domain if link else 1) + 1) if count % d == 0])
        tried = _tensor(scenario, degrees, count)
        legal = legality(scenario.model, tried, array(count)) == 0
        plan = _plan(replace(scenario, split=tried), batch, context)
        good = legal & plan.fits
        if good.any() and (count > chips or scenario.mapper is None):
            replicas = f" with {int(count / degrees[good][0])} replicas" if count > degrees[good][0] else ""
            yield f"{count} chips at TP{int(degrees[good][0])}{replicas} hold it"
            return
        stages = count / degrees[-1]
        if stages > 1 and _holds(scenario, batch, context, count, _staged(scenario, degrees[-1:], stages)):
            yield f"{count} chips at TP{int(degrees[-1])} in {int(stages)} pipeline stages hold it"
            return


def _more_stages(scenario: Scenario, batch: float, context: float) -> Iterator[str]:
    """The fewest LPUs that hold it: stages of equally many chips, a layer each at the least, in one replica."""
    degrees, stages = np.arange(1.0, 257.0), np.arange(1.0, scenario.model.layers + 1.0)
    tensor, pipeline = (grid.ravel() for grid in np.meshgrid(degrees, stages, indexing="ij"))
    one = np.ones_like(tensor)
    tried = Split(tensor, one, one, one, pipeline, partner=scenario.split.partner)
    fits = _plan(replace(scenario, split=tried), batch, context).fits
    good = np.flatnonzero(fits & (legality(scenario.model, tried, tensor * pipeline) == 0))
    if good.size:
        best = good[np.argmin((tensor * pipeline)[good])]
        chips, degree = int((tensor * pipeline)[best]), int(tensor[best])
        job = "" if scenario.partner is None else scenario.partner.job
        mapper = {"prefill": "prefill-decode", "draft": "draft-verify"}.get(job, "layer-pipeline")
        where = f" in pool {scenario.system.main_name!r}" if job else ""
        how = f"; the mapper {mapper} looks for such" if chips <= int(scenario.chips.max()) else ""
        yield f"{chips:,} chips{where} at TP{degree} in {int(pipeline[best])} pipeline stages hold it{how}"


def _holds(scenario: Scenario, batch: float, context: float, count: int, split: Split) -> bool:
    """Whether a split of so many chips is legal and fits."""
    legal = legality(scenario.model, split, array(count)) == 0
    return bool((legal & _plan(replace(scenario, split=split), batch, context).fits).all())


def _staged(scenario: Scenario, degree: Array, stages: float) -> Split:
    """Tensor parallelism inside the fast links and pipeline stages beyond."""
    routed = float(scenario.split.expert.max()) > 1
    one = np.ones_like(degree)
    return Split(degree, one, degree if routed else one, one, pipeline=one * stages)


def _tensor(scenario: Scenario, degrees: Array, count: int) -> Split:
    """Tensor parallelism at several degrees, experts inside the tensor group, replicas for the rest."""
    routed = float(scenario.split.expert.max()) > 1
    return Split(degrees, np.ones_like(degrees), degrees if routed else np.ones_like(degrees), count / degrees)


def _shape(scenario: Scenario, rule: str) -> Diagnosis:
    """A split that the model's shape, or the number of chips, forbids."""
    split, chips = scenario.split, int(scenario.chips.max())
    used = int(split.chips.max())
    asked = f"TP{int(split.tensor.max())}, attention DP{int(split.attention_data.max())}, EP{int(split.expert.max())}"
    if rule == "chips":
        reason = f"chips: the split uses {used} chips, the pool has {chips}"
        return Diagnosis(
            reason,
            rule,
            used,
            chips,
            {},
            (f"a pool of {used} chips", "another split, or none for the mapper to choose"),
        )
    degrees = np.arange(1.0, 129.0)
    tried = Split(degrees, np.ones_like(degrees), np.ones_like(degrees), np.ones_like(degrees))
    fine = degrees[legality(scenario.model, tried, degrees) == 0]
    listed = ", ".join(f"TP{int(value)}" for value in fine[:12])
    return Diagnosis(
        f"shape: {rule} do not divide under {asked}", rule, used, chips, {}, (f"degrees the model allows: {listed}",)
    )
