"""Pipeline stages: where the layers are cut, and how long a token takes to come round.

Layers are cut evenly in number; what is left over goes to the first stages, since the last also holds the head. As
many micro-batches as stages are on their way: a sequence gets its next token when its micro-batch has passed all
stages,
and not before the slowest stage has served every micro-batch.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from archsim.arrays import Array, array

Cut = list[dict[str, int]]


def stages(sequence: Sequence[tuple[str, int]], count: int) -> Cut:
    """Blocks and their number of layers in each of `count` stages; `embedding` goes first and `head` last."""
    layers = [block for block, times in sequence for _ in range(times) if block not in ("embedding", "head")]
    each, more = divmod(len(layers), count)
    cut: Cut = []
    start = 0
    for stage in range(count):
        size = each + (1 if stage < more else 0)
        held = {"embedding": 1} if stage == 0 else {}
        for block in layers[start : start + size]:
            held[block] = held.get(block, 0) + 1
        cut.append(held)
        start += size
    cut[-1]["head"] = 1
    return cut


def largest(sequence: Sequence[tuple[str, int]], sizes: Mapping[str, Array], count: Array) -> Array:
    """The sum of `sizes` (per block) over the largest stage, for an array of stage counts."""
    found = array(0.0)
    layers = sum(times for block, times in sequence if block not in ("embedding", "head"))
    for value in np.unique(count):
        most = array(0.0)
        for held in stages(sequence, min(int(value), max(layers, 1))):
            most = np.maximum(
                most, sum((sizes[block] * layers for block, layers in held.items() if block in sizes), array(0.0))
            )
        found = np.where(count == value, most, found)
    return found
