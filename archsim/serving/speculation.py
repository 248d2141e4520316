"""Speculative decoding: tokens a step when drafts are accepted with some probability.

A step verifies K drafts of each sequence with one forward pass of K + 1 queries: what depends on tokens grows, weights
are read once. Drafts count up to the first that is refused, and the pass itself always gives one token.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from archsim.arrays import Array, array
from archsim.engine.step import PricedStep, run_step
from archsim.mapping.memory import kv_bytes, module_bytes, weight_bytes
from archsim.mapping.place import Deployment, place, place_module
from archsim.workload.step import Step, decode, prefill


def expected_tokens(acceptance: float | Array | Sequence[float], drafts: int) -> Array:
    """Tokens a sequence gets from one step with `drafts` drafts.

    `acceptance` is the probability that a draft is accepted once all before it were, (1 - a^(K+1)) / (1 - a) in all, or
    a profile of such probabilities by position. No drafts give exactly 1. Raises ValueError for a profile too short or
    for probabilities outside 0 to 1.
    """
    if isinstance(acceptance, Sequence):
        if len(acceptance) < drafts:
            raise ValueError(f"an acceptance profile of {len(acceptance)} positions is too short for {drafts} drafts")
        profile = [array(value) for value in acceptance[:drafts]]
    else:
        profile = [array(acceptance)] * drafts
    if any(np.any((value < 0.0) | (value > 1.0)) for value in profile):
        raise ValueError("acceptance is a probability, from 0 to 1")
    total = reached = array(1.0)
    for value in profile:
        reached = reached * value
        total = total + reached
    return total


@dataclass(frozen=True, eq=False)
class Writer:
    """What writes drafts on the chips that verify them: a model of its own, or a prediction module (MTP) of the model.

    A draft is a pass of it over all sequences. Passes follow one another within a step, so that the host schedules
    once, for all; the first pass of a module reads what was verified before.
    """

    d: Deployment
    module: bool = False

    def passes(self, step: Step) -> PricedStep:
        """One pass, without scheduling."""
        plan = (place_module if self.module else place)(self.d, step)
        return run_step(replace(plan, host=array(0.0)), self.d.chip, self.d.runtime.stack)

    def writing(self, drafts: int, batch: Array, context: Array) -> list[tuple[PricedStep, int]]:
        """The passes of a step that verifies so many drafts, each with how often it is done."""
        if not drafts:
            return []
        clips = self.d.model.clips
        one = self.passes(decode(batch, context, clips))
        if not self.module:
            return [(one, drafts)]
        return [(self.passes(decode(batch, context, clips, 1 + drafts)), 1), (one, drafts - 1)]

    def seconds(self, drafts: int, batch: Array, context: Array) -> Array:
        """Seconds to write the drafts of a step."""
        return sum((one.latency * count for one, count in self.writing(drafts, batch, context)), array(0.0))

    def joules(self, drafts: int, batch: Array, context: Array) -> Array:
        """Energy of a chip meanwhile (J)."""
        passes = self.writing(drafts, batch, context)
        return sum((self._energy(one) * count for one, count in passes), array(0.0))

    def _energy(self, one: PricedStep) -> Array:
        done = one.total()
        return done.energy + self.d.chip.power.idle * (one.latency - done.seconds)

    def reading(self, tokens: Array, requests: Array) -> Array:
        """Seconds to read prompts, of so many tokens each."""
        return self.passes(prefill(tokens, 0, requests, self.d.model.clips)).latency

    def reading_joules(self, tokens: Array, requests: Array) -> Array:
        """Energy of a chip meanwhile (J)."""
        return self._energy(self.passes(prefill(tokens, 0, requests, self.d.model.clips)))

    @cached_property
    def held(self) -> tuple[Array, Array]:
        """Bytes on a chip: weights, and the cache of a token."""
        d = self.d
        if self.module:
            return module_bytes(d.model, d.precision, d.split)
        return weight_bytes(d.model, d.precision, d.split), kv_bytes(d.model, d.precision, d.split, array(1.0))


@dataclass(frozen=True, eq=False)
class Speculation:
    """Drafts in every decode step: how many, how often they are accepted, and what writes them (None: n-grams).

    `always`: also where a token takes longer with them than without.
    """

    drafts: int
    acceptance: float | tuple[float, ...]
    writer: Writer | None = None
    always: bool = False

    @property
    def held(self) -> tuple[Array, Array]:
        """Bytes on a chip of what writes drafts: weights, and the cache of a token."""
        return (array(0.0), array(0.0)) if self.writer is None else self.writer.held

    @cached_property
    def tokens(self) -> Array:
        """Tokens that a sequence gets from a step, in the mean."""
        return expected_tokens(self.acceptance, self.drafts)
