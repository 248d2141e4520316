"""Step: what one forward pass processes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from archsim.arrays import Array, array
from archsim.workload.parts import FULL, Chunk

__all__ = ["FULL", "Step", "decode", "prefill", "seen"]


@dataclass(frozen=True, eq=False)
class Step:
    """Decoding sequences and prefilling requests of one forward pass; every field broadcasts.

    A ragged batch is described by sums at every clip level (a window, a top-k, or infinity for full attention), and is
    priced as equal sequences with the same sums: `context[clip]` = sum of min(length, clip) over decoding sequences,
    `prefill_pairs[clip]` = sum of min(position, clip) over the tokens of all chunks. A clip of type `Chunk` sums what
    tokens see of their own chunk instead (`seen`).
    """

    sequences: Array
    queries: Array
    context: Mapping[float, Array]
    prefill_requests: Array
    prefill_tokens: Array
    prefill_pairs: Mapping[float, Array]
    prefill_prefix: Array
    prefill_longest: Array
    sampled: Array
    decodes: bool = True
    prefills: bool = False
    lengths: Mapping[float, Array] = field(default_factory=dict)

    def length(self, clip: float) -> Array:
        """Mean of min(length, clip) over decoding sequences, without the axis of their number where that is known."""
        if clip in self.lengths:
            return self.lengths[clip]
        return self.context[clip] / np.maximum(self.sequences, 1.0)

    @property
    def tokens(self) -> Array:
        """Tokens that pass through every layer."""
        return self.sequences * self.queries + self.prefill_tokens

    def __add__(self, other: "Step") -> "Step":
        """Both in one pass (chunked prefill among decode)."""
        queries = np.where(self.sequences > 0, self.queries, other.queries)
        return Step(
            self.sequences + other.sequences,
            queries,
            {clip: value + other.context[clip] for clip, value in self.context.items()},
            self.prefill_requests + other.prefill_requests,
            self.prefill_tokens + other.prefill_tokens,
            {clip: value + other.prefill_pairs[clip] for clip, value in self.prefill_pairs.items()},
            self.prefill_prefix + other.prefill_prefix,
            np.maximum(self.prefill_longest, other.prefill_longest),
            self.sampled + other.sampled,
            self.decodes or other.decodes,
            self.prefills or other.prefills,
            {} if self.decodes and other.decodes else {**self.lengths, **other.lengths},
        )

    def divided(self, ranks: Array) -> "Step":
        """The share of the busiest of `ranks` data-parallel ranks.

        Sequences stay whole, and so does the one request of a step with fewer requests than ranks; one rank keeps
        the step bit for bit.
        """
        shared = ranks > 1
        sequences = np.where(shared, np.ceil(self.sequences / ranks), self.sequences)
        decode = np.where(shared, sequences / np.maximum(self.sequences, 1.0), 1.0)
        prefill = np.maximum(1.0 / ranks, np.minimum(1.0, 1.0 / np.maximum(self.prefill_requests, 1.0)))
        decoded = np.minimum(self.sampled, self.sequences * self.queries)
        return replace(
            self,
            sequences=sequences,
            context={clip: value * decode for clip, value in self.context.items()},
            prefill_requests=self.prefill_requests * prefill,
            prefill_tokens=self.prefill_tokens * prefill,
            prefill_pairs={clip: value * prefill for clip, value in self.prefill_pairs.items()},
            prefill_prefix=self.prefill_prefix * prefill,
            sampled=decoded * decode + (self.sampled - decoded) * prefill,
        )


def decode(batch: object, context: object, clips: Sequence[float] = (FULL,), queries: object = 1) -> Step:
    """`batch` sequences, each with `context` tokens in its cache, this step's included, and `queries` new tokens."""
    sequences, length, rows = array(batch), array(context), array(queries)
    zero = array(0.0)
    nothing = dict.fromkeys(clips, zero)
    lengths = {clip: seen(length, clip) for clip in clips}
    sums = {clip: sequences * mean for clip, mean in lengths.items()}
    return Step(sequences, rows, sums, zero, zero, nothing, zero, zero, sequences * rows, lengths=lengths)


def seen(length: Array, clip: float) -> Array:
    """Cached tokens that the newest token of a sequence attends to, itself included.

    In chunked attention that is its position in its own chunk. A mean length does not say where in their chunks the
    sequences of a batch stand, so past the first chunk every position counts as equally likely: (clip + 1) / 2.
    """
    if isinstance(clip, Chunk):
        return np.where(length <= clip, length, (clip + 1.0) / 2.0)
    return np.minimum(length, clip)


def prefill(tokens: object, prefix: object = 0, requests: object = 1, clips: Sequence[float] = (FULL,)) -> Step:
    """`requests` prompts of `tokens` new tokens each after `prefix` tokens already cached; each samples one token."""
    count, new, old = array(requests), array(tokens), array(prefix)
    zero = array(0.0)
    pairs = {clip: count * _pairs(new, old, clip) for clip in clips}
    nothing = dict.fromkeys(clips, zero)
    return Step(zero, array(1.0), nothing, count, count * new, pairs, count * old, new, count * (new > 0), False, True)


def _pairs(new: Array, old: Array, clip: float) -> Array:
    """Sum of min(position, clip) over positions old + 1 .. old + new; with a Chunk, of the positions inside chunks."""
    if isinstance(clip, Chunk):
        return _inside_chunks(old + new, clip) - _inside_chunks(old, clip)
    if clip == FULL:
        return new * old + new * (new + 1.0) / 2.0
    below = np.clip(clip - old, 0.0, new)
    return below * old + below * (below + 1.0) / 2.0 + (new - below) * clip


def _inside_chunks(length: Array, size: float) -> Array:
    """Sum over positions 1 .. length of the position inside its chunk: whole chunks, then the last one."""
    whole = np.floor(length / size)
    rest = length - whole * size
    return whole * size * (size + 1.0) / 2.0 + rest * (rest + 1.0) / 2.0
