"""Speculative decoding: tokens a step when drafts are accepted with some probability.

A step verifies K drafts of each sequence with one forward pass of K + 1 queries: what depends on tokens grows, weights
are read once. Drafts count up to the first that is refused, and the pass itself always gives one token.
"""

from collections.abc import Sequence

import numpy as np

from archsim.arrays import Array, array


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
