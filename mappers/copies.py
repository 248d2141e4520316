"""Context ranks, where tensor ranks would otherwise hold copies of the same KV heads.

They share the tokens of a sequence instead, all that hold the same heads. Beside each tensor group there are replicas,
or in a model with experts groups with sequences of their own that share the experts.
"""

from collections.abc import Mapping

import numpy as np

from archsim.arrays import array
from archsim.mapping.mapper import Degree
from archsim.mapping.split import kv_copies, legality, split
from archsim.mapping.system import Pool
from archsim.workload.model import Model, Moe


def propose(model: Model, pool: Pool, degrees: Mapping[str, Degree]) -> list[dict[str, int]]:
    """Legal splits with as many context ranks as there are copies; none where there are no copies."""
    routed = any(isinstance(block.ffn, Moe) for block in model.blocks.values())
    found = []
    for tensor in pool.within_domain():
        copies, groups = kv_copies(model, tensor), pool.chips // tensor
        if copies > 1:
            whole = {"tensor": tensor, "context": copies}
            found.append({**whole, "data": groups, "expert": tensor if routed else 1})
            if routed:
                found.append({**whole, "attention_data": groups, "expert": pool.chips})
    return [one for one in found if np.all(legality(model, split(**one), array(pool.chips)) == 0)]


def looked_at(model: Model, pool: Pool, degrees: Mapping[str, Degree]) -> str:
    """For what there are context ranks, or why there are none."""
    found = propose(model, pool, degrees)
    if not found:
        return "no context ranks: no tensor rank would hold a copy of another one's KV heads"
    return f"context ranks where tensor ranks would hold copies of KV heads, from TP{found[0]['tensor']}"
