"""Pipeline stages, where one stage cannot take all chips: beyond a domain of fast links, or where heads do not divide.

A stage is as many chips as tensor ranks can share inside the fast links; in a model with experts also as many
data-parallel ranks that share the experts. What the stages leave is replicas. `degrees: {pipeline: ...}` is the most
stages tried, where fewer than all are enough.
"""

from collections.abc import Mapping

import numpy as np

from archsim.arrays import array
from archsim.mapping.mapper import Degree
from archsim.mapping.split import legality, split
from archsim.mapping.system import Pool, divisors
from archsim.workload.model import Model, Moe


def propose(model: Model, pool: Pool, degrees: Mapping[str, Degree]) -> list[dict[str, int]]:
    """Splits in stages; none where a single stage can be all chips."""
    found = []
    for kind, ranks in _stages(model, pool).items():
        groups = pool.chips // ranks
        counts = [count for count in divisors(groups) if 1 < count <= model.layers]
        most = degrees.get("pipeline", 8)
        few = [count for count in counts if isinstance(most, int) and count <= most]
        for count in few or counts[-1:]:
            found.append({kind: ranks, "expert": _experts(model, ranks), "pipeline": count, "data": groups // count})
    return found


def looked_at(model: Model, pool: Pool, degrees: Mapping[str, Degree]) -> str:
    """Why there are pipeline stages or why there are none."""
    ranks = _stages(model, pool)["tensor"]
    if ranks == pool.chips:
        return f"no pipeline stages: TP{ranks} spans all chips inside the fast links"
    if pool.chips > pool.domain:
        return f"pipeline stages of TP{ranks}, since {pool.chips} chips are more than a domain of {pool.domain}"
    return f"pipeline stages of TP{ranks}, since no more ranks can share the heads"


def _stages(model: Model, pool: Pool) -> dict[str, int]:
    """The most chips of a stage that share heads, and in a model with experts of one that shares those only."""
    kinds = ("tensor", "attention_data") if _experts(model, 2) == 2 else ("tensor",)
    return {kind: max(ranks for ranks in pool.within_domain() if _legal(model, kind, ranks)) for kind in kinds}


def _legal(model: Model, kind: str, ranks: int) -> bool:
    """Whether so many ranks of a kind may share a stage."""
    one = split(**{kind: ranks, "expert": _experts(model, ranks)})
    return bool(np.all(legality(model, one, array(ranks)) == 0))


def _experts(model: Model, ranks: int) -> int:
    """Expert ranks of a stage: all of its ranks, if there are experts."""
    return ranks if any(isinstance(block.ffn, Moe) for block in model.blocks.values()) else 1
