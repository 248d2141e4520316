"""Serving runs, predicted: the steady answer of every run, and from it the statistic that its harness reported.

The steady answer is that of a loop which has settled. A harness starts all clients at once, sends a few prompts each
and reports the mean over all of them, the first burst included; `harness.yaml` says what that adds. It is no part of
the answer that users get.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from pathlib import Path

import numpy as np
from pydantic import Field

from archsim.arrays import Array, array
from archsim.catalog import Document, StrictModel, fetch, validate
from archsim.chip.model import with_value
from archsim.engine.step import run_step
from archsim.fields import Count, Fraction, NonNegative, Seconds
from archsim.mapping.memory import memory_plan
from archsim.mapping.place import Deployment, place
from archsim.serving.steady import Steady, expert_layers, steady
from archsim.sources import SourceEntry, check_sources
from archsim.validation.deployments import STACKS, Batch, batches, column, runtime_of
from archsim.validation.rows import Run
from archsim.workload.step import decode

BOUNDLESS = 1e15  # bytes
ACCEPTANCE = 0.8  # of a draft, the default of a scenario
Deploy = Callable[[Batch, str], Deployment]


class StackHarness(StrictModel):
    """What measuring adds with one stack.

    `queue` prompts ahead of one's own, `burst` the share of the start-up burst that the mean shows, `lab` what the
    client of a lab adds. `polled` names chip and models whose recipes look for new prompts every few steps only.
    On chips of `lockstep` the runs of a lab start, decode and end together. With
    `lets_wait` prompts wait for those ahead of them and for the next look also where every prompt is played.
    """

    queue: NonNegative
    burst: NonNegative
    lab: Seconds
    polled: dict[str, tuple[str, ...]] = Field({})
    lockstep: tuple[str, ...] = ()
    lets_wait: bool = False


class HarnessFile(StrictModel):
    """`harness.yaml`: the difference between a settled loop and what was reported."""

    followers: Fraction
    patience: NonNegative
    poll_few: NonNegative
    poll_many: NonNegative
    many: Count
    stacks: dict[str, StackHarness]
    sources: tuple[SourceEntry, ...]


@dataclass(frozen=True, eq=False)
class Predicted:
    """What the steady answers say of runs, each (runs,), in the order of the runs; seconds and requests.

    `plain` and `mixed` are the steps without and with prefill, `prompt` what one prompt adds to a mixed step, `burst`
    the same where steps are full; `share` is the time that prefill adds, `waiting` the clients that memory keeps out.
    """

    tpot: Array
    ttft: Array
    plain: Array
    mixed: Array
    prompt: Array
    burst: Array
    share: Array
    clients: Array
    waiting: Array
    ranks: Array
    layers: Array


@lru_cache(maxsize=1)
def harness() -> HarnessFile:
    """The shipped constants of the harnesses."""
    path = Path(__file__).parent / "harness.yaml"
    document: Document = fetch("validation", str(path))
    file = validate(HarnessFile, document)
    check_sources(document, file.sources, skip=())
    return file


def shipped(batch: Batch, pool: str) -> Deployment:
    """The deployment of a batch with the constants of the catalogue."""
    return batch.deployment(pool)


def predict(runs: Sequence[Run], deploy: Deploy = shipped) -> Predicted:
    """The steady answers of aggregated runs."""
    names = [item.name for item in fields(Predicted)]
    found = {name: np.full(len(runs), np.nan) for name in names}
    for batch in batches(runs):
        for name, values in zip(names, _settled(batch, deploy(batch, "decode")), strict=True):
            found[name][list(batch.places)] = np.broadcast_to(values, (len(batch.runs), 1)).ravel()
    return Predicted(**found)


def clients_of(run: Run) -> float:
    """Clients of one replica of a run: in a lab, where replicas may share them, the batch of all ranks."""
    batch = run.decode.batch * run.decode.data
    return (batch or run.clients or 1.0) if not run.burst else (run.clients or batch or 1.0)


def _settled(batch: Batch, d: Deployment) -> tuple[Array, ...]:
    """The fields of Predicted for one batch, (runs, 1) each."""
    prompt, output = batch.lengths()
    clients = column(clients_of(run) for run in batch.runs)
    found = np.where(column("cached" in run.flags for run in batch.runs) > 0, prompt, 0.0)
    s: Steady = steady(with_room(d, prompt + output), clients, prompt, output, found)
    plain, chunks = s.decode.turnaround, np.ceil(prompt / d.runtime.chunk)
    full = s.mixed.turnaround[..., -1:] - plain
    most = s.most
    faster = _drafted(batch, d, s.running, prompt + output / 2.0, plain)
    return (
        s.tpot * faster,
        s.ttft,
        plain * faster,
        s.mixed_seconds,
        (s.mixed_seconds - plain) * chunks / s.joined,
        full * chunks / most,
        s.prefill_share,
        clients,
        clients - s.running,
        d.split.attention_data,
        array(expert_layers(d)),
    )


def _drafted(batch: Batch, d: Deployment, running: Array, context: Array, plain: Array) -> Array:
    """Factor on the time between tokens of runs that drafted: three tokens a step with tensor parallelism, one with
    data-parallel attention, as the recipes have it, accepted as archsim assumes unless told otherwise."""
    flagged = column("drafts" in run.flags for run in batch.runs)
    if not flagged.any():
        return np.ones_like(flagged)
    drafts = flagged * np.where(d.split.attention_data > 1, 1.0, 3.0)
    step = run_step(place(d, decode(running, context, d.model.clips, 1.0 + drafts)), d.chip, d.runtime.stack)
    tokens = (1.0 - ACCEPTANCE ** (drafts + 1.0)) / (1.0 - ACCEPTANCE)
    return np.where(flagged > 0, step.turnaround / plain / tokens, 1.0)


def with_room(d: Deployment, context: Array) -> Deployment:
    """The deployment with memory for its sequences where the plan has none for a single one: the run did fit."""
    plan = memory_plan(d, array(1.0), context)
    capacity = np.where(plan.fits, d.chip.memory.capacity, BOUNDLESS)
    return replace(d, chip=with_value(d.chip, ("memory", "capacity"), capacity))


def tpot(runs: Sequence[Run], p: Predicted, h: HarnessFile) -> Array:
    """Mean seconds between tokens as the harness reports them.

    The last wave of prompts has no followers whose prefill would delay it. Where all lengths are equal and prompts go
    first, all clients start, decode and end together, and each waits for half of the others' prefill.
    """
    output = np.array([run.output for run in runs])
    spread = p.plain + h.followers * (p.tpot - p.plain)
    together = p.plain + 0.5 * (p.clients - 1.0) * p.burst / output
    return np.where(_lockstep(runs, h), together, spread)


def ttft(runs: Sequence[Run], p: Predicted, h: HarnessFile) -> Array:
    """Mean seconds to the first token as the harness reports them: the settled loop's, and what starting it adds."""
    stacks = [h.stacks[run.stack] for run in runs]
    lab = np.array([0.0 if run.burst else one.lab for run, one in zip(runs, stacks, strict=True)])
    weight = np.where(_lockstep(runs, h), 1.0, [one.burst for one in stacks])
    queue = np.array([one.queue for one in stacks]) * p.prompt
    started = weight * (p.clients - 1.0) / 2.0 * p.burst
    balanced = np.array([runtime_of(STACKS[run.stack]).together for run in runs]) & (p.ranks > 1)
    return np.asarray(
        p.ttft + lab + queue + started + polled(runs, p, h) + np.where(balanced, h.patience, 0.0) * p.plain
    )


def polled(runs: Sequence[Run], p: Predicted, h: HarnessFile) -> Array:
    """Seconds until a stack looks for new prompts, in recipes that do so every few steps only."""
    steps = np.where(p.clients < h.many, h.poll_few, h.poll_many) / 2.0
    return np.where([_polled(run, h.stacks[run.stack]) for run in runs], steps, 0.0) * p.plain


def _polled(run: Run, one: StackHarness) -> bool:
    return run.burst and any(name in run.model for name in one.polled.get(run.chip, ()))


def _lockstep(runs: Iterable[Run], h: HarnessFile) -> Array:
    return np.array([run.chip in h.stacks[run.stack].lockstep and not run.burst for run in runs])
