"""How unevenly expert ranks are loaded, and what redundant experts buy.

Without redundancy experts sit on ranks at random with respect to their popularity; with it, the hottest experts get
further copies and all copies are packed greedily, as expert-parallel load balancers do.
"""

from functools import lru_cache

import numpy as np

from archsim.arrays import Array

LIKELIEST = 0.95  # no expert is chosen by more than this share of tokens
SHUFFLES = 9  # fixed random placements, of which the median counts


def popularity(experts: int, top_k: int, skew: float) -> Array:
    """Share of tokens that choose each expert, the most popular first: a power law of its rank, summing to `top_k`."""
    weights = np.arange(1, experts + 1, dtype=np.float64) ** -skew
    share = weights / weights.sum() * top_k
    return np.asarray(np.minimum(share, LIKELIEST) if skew > 0 else share)


@lru_cache(maxsize=4096)
def busiest(experts: int, top_k: int, ranks: int, redundant: int, skew: float) -> float:
    """Load of the busiest expert rank over the mean of all; 1 where loads are even."""
    if ranks <= 1 or skew == 0.0 or experts % ranks:
        return 1.0
    share = popularity(experts, top_k, skew)
    if redundant == 0:
        generator = np.random.default_rng(0)
        loads = [generator.permutation(share).reshape(ranks, -1).sum(axis=1) for _ in range(SHUFFLES)]
        return float(np.median([load.max() / load.mean() for load in loads]))
    load = _packed(_copies(share, redundant), ranks)
    return float(load.max() / load.mean())


def _copies(share: Array, redundant: int) -> Array:
    """Load of every copy once each further copy has gone to the expert whose copies were hottest."""
    count = np.ones(share.size)
    for _ in range(redundant):
        count[np.argmax(share / count)] += 1
    return np.repeat(share / count, count.astype(np.int64))


def _packed(copies: Array, ranks: int) -> Array:
    """Loads of ranks with equal numbers of copies, the hottest copies placed first on the coolest rank with room."""
    room = np.full(ranks, -(-copies.size // ranks))
    load = np.zeros(ranks)
    for copy in np.sort(copies)[::-1]:
        rank = int(np.argmin(np.where(room > 0, load, np.inf)))
        load[rank] += copy
        room[rank] -= 1
    return load


def busiest_rank(experts: int, top_k: int, ranks: Array, redundant: int, skew: float) -> Array:
    """`busiest` for an array of expert ranks."""
    shape = np.asarray(ranks)
    values = [busiest(experts, top_k, int(value), redundant, skew) for value in shape.ravel()]
    return np.array(values).reshape(shape.shape)
