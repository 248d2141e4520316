"""The built-in strategy: every combination of degrees of parallelism that fills the pool.

A degree is a number, a list of numbers, or a word: `any` (every divisor of the pool), `domain` (the largest divisor
that stays inside the fast links), `within_domain` (every divisor up to it), `replica` (all ranks of a replica),
`rest` (what the other degrees leave). `expert` and `context` take no chips of their own.
"""

from collections.abc import Mapping
from itertools import product

from archsim.mapping.mapper import Degree
from archsim.mapping.system import Pool, divisors
from archsim.workload.model import Model, Moe

CHIPS = ("tensor", "attention_data", "pipeline", "data")


def propose(model: Model, pool: Pool, degrees: Mapping[str, Degree]) -> list[dict[str, int]]:
    """Splits whose tensor, attention-data, pipeline and data degrees multiply to the pool's chips."""
    chips = pool.chips
    wanted: dict[str, Degree] = {**dict.fromkeys((*CHIPS, "expert", "context"), 1), **degrees}
    routed = any(isinstance(block.ffn, Moe) for block in model.blocks.values())
    if not routed and wanted["data"] == 1:  # without experts to share, data-parallel attention is nothing but replicas
        wanted |= {"data": wanted["attention_data"], "attention_data": 1}
    found = []
    for picked in product(*(_choices(wanted[name], chips, pool) for name in CHIPS)):
        split = _fill(dict(zip(CHIPS, picked, strict=True)), chips)
        if split:
            ranks = split["tensor"] * split["attention_data"]
            experts = _choices(wanted["expert"], ranks, pool) if routed else [1]
            contexts = _choices(wanted["context"], split["tensor"], pool)
            found += [{**split, "expert": e or ranks, "context": c or 1} for e in experts for c in contexts]
    return found


def _choices(wanted: Degree, chips: int, pool: Pool) -> list[int]:
    """Numbers to try; 0 stands for what the others leave."""
    if isinstance(wanted, int):
        return [wanted]
    if not isinstance(wanted, str):
        return list(wanted)
    inside = [value for value in divisors(chips) if value <= pool.domain]
    words = {"any": divisors(chips), "domain": inside[-1:], "within_domain": inside, "replica": [0], "rest": [0]}
    if wanted not in words:
        raise ValueError(f"unknown degree {wanted!r}; known: {', '.join(words)}")
    return words[wanted]


def _fill(split: dict[str, int], chips: int) -> dict[str, int] | None:
    """Replaces a 0 by what is left; None where the degrees do not multiply to the chips."""
    fixed = 1
    for value in split.values():
        fixed *= value or 1
    open_degrees = [name for name, value in split.items() if value == 0]
    if open_degrees and chips % fixed == 0:
        split[open_degrees[0]] = chips // fixed
        fixed = chips
    return {name: value or 1 for name, value in split.items()} if fixed == chips else None
