"""The surface of a pair of pools of which one runs operators of every step of the other.

All replicas of the main pool decode alike, as in the steps that are priced: chips that are pinned to a layer serve them
in turn. A step with prefill travels whole, in one micro-batch, so that its kernels follow one another. Kernels of the
main pool know the tokens of their rank, those of the other pool the tokens of all; waiting for it counts there.
"""

from dataclasses import replace

import numpy as np

from archsim.arrays import Array, array
from archsim.engine.step import PricedStep, run_step
from archsim.mapping.place import Deployment, place
from archsim.serving.curves import Curve
from archsim.serving.energies import Energies
from archsim.serving.surface import Builder
from archsim.workload.step import Step, decode, prefill


class Paired(Builder):
    """Prices steps of all replicas, tabulated by what one of them has."""

    def __init__(self, d: Deployment, most: int, contexts: tuple[float, float], longest: int) -> None:
        self.all, self.replicas = d, float(d.split.data.max())
        super().__init__(replace(d, split=replace(d.split, data=array(1.0))), most, contexts, longest)

    def price(self, step: Step) -> PricedStep:
        """The exact path."""
        return self._priced(self.all, step)

    def whole(self, step: Step) -> PricedStep:
        """A decode step as it is beside prefill: in one micro-batch."""
        return self._priced(replace(self.all, split=replace(self.all.split, micro_batches=array(1.0))), step)

    def beside(self, batch: Array) -> PricedStep:
        """All decode steps that are tabulated, likewise."""
        return self.whole(decode(batch, self.lengths[None, :], self.clips))

    def _priced(self, d: Deployment, step: Step) -> PricedStep:
        return run_step(place(d, times(step, self.replicas)), d.chip, d.runtime.stack)

    def _layers(self, filled: PricedStep) -> Array:
        """Kernels of the main pool that know tokens only, and the ways."""
        total = array(0.0)
        for block, kernel, cost, count in filled.kernels():
            if not kernel.pool and self._shared(block, kernel.name):
                total = total + cost.seconds * count
        return total

    def total(self) -> Curve:
        """The other pool by the tokens of all ranks: what is left of a step."""
        tokens = Curve.knots((self.longest + self.most) * self.ranks)
        runtime = self.all.runtime
        captured = replace(self.all, runtime=replace(runtime, host=runtime.host.model_copy(update={"launch": 0.0})))
        filled = self._priced(captured, prefill(tokens / self.ranks, 0, self.ranks, self.clips))
        apart = self._sum(filled, self._only(self.filled, self.names))
        head = self._sum(filled, lambda block, _: block == "head")
        left = filled.span - filled.plan.host - apart - head - self._layers(filled)
        return Curve.of(tokens, np.broadcast_to(left, tokens.shape))

    def away(self) -> Energies | None:
        """Energies of a chip of the other pool."""
        partner, other = self.all.partner, self.all.split.partner
        if partner is None or other is None:
            return None
        idle, share = partner.chip.power.idle, np.minimum(other.chips / partner.count, 1.0)

        def joules(step: PricedStep) -> Array:
            work = step.away()
            own = work.energy + idle * np.maximum(step.turnaround - work.seconds, 0.0)
            return np.asarray(share * own + (1.0 - share) * idle * step.turnaround)

        fixed, slope = self._lines(joules(self.decoded))
        tokens = np.unique(np.round(np.geomspace(1, self.longest, 48)))
        filled = joules(self.price(prefill(tokens / self.ranks, 0, self.ranks, self.clips)))
        rows = np.broadcast_to(filled, tokens.shape)
        return Energies(np.array(fixed), np.array(slope), tokens, rows, float(idle.max()))


def times(step: Step, replicas: float) -> Step:
    """The step of so many replicas that do the same."""
    return replace(
        step,
        sequences=step.sequences * replicas,
        context={clip: value * replicas for clip, value in step.context.items()},
        prefill_requests=step.prefill_requests * replicas,
        prefill_tokens=step.prefill_tokens * replicas,
        prefill_pairs={clip: value * replicas for clip, value in step.prefill_pairs.items()},
        prefill_prefix=step.prefill_prefix * replicas,
        sampled=step.sampled * replicas,
    )
