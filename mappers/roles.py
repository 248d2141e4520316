"""The strategy of two pools: every pair of splits, every number of micro-batches, every number of replicas.

Replicas of the main pool that share pinned chips are its `data` degree; `attention_data` groups of one replica send
their tokens together. Chips pinned to a layer are as many as the pool has for each; what is left over stays idle.
"""

from collections.abc import Mapping
from itertools import product

from archsim.mapping.roles import Settings, Wanted
from archsim.mapping.system import Partner, Pool, divisors
from archsim.workload.model import Model, Moe

MOST = 3  # numbers of chips a layer that are tried where experts and widths must divide


def propose_pools(model: Model, main: Pool, partner: Partner, settings: Settings) -> list[dict[str, int]]:
    """Degrees of both pools, micro-batches and chips of every proposal."""
    routed = any(isinstance(block.ffn, Moe) for block in model.blocks.values())
    here = _main(main, partner, settings) if partner.job == "roles" else _alone(model, main, settings.main, routed)
    there = _partner(model, partner, settings, routed)
    chips = {"count": main.chips, "partner.count": int(partner.count.max())}
    batches = settings.micro_batches if partner.job == "roles" else (1,)
    return [
        {**own, **{f"partner.{name}": value for name, value in other.items()}, "micro_batches": most, **chips}
        for own, other, most in product(here, there, batches)
    ]


def _main(pool: Pool, partner: Partner, settings: Settings) -> list[dict[str, int]]:
    """Tensor ranks x synchronous groups x replicas that fill the pool."""
    if settings.replicas == "auto":
        replicas = divisors(pool.chips) if partner.pinned else [1]
    else:
        replicas = [settings.replicas]
    found = []
    for tensor, data in product(_values(settings.main.get("tensor", 1), pool.chips, pool.domain), replicas):
        groups, rest = divmod(pool.chips, tensor * data)
        if groups and not rest:
            expert = {} if "experts" in partner.roles else {"expert": tensor * groups}
            found.append({"tensor": tensor, "attention_data": groups, "data": data, **expert})
    return found


def _partner(model: Model, partner: Partner, settings: Settings, routed: bool) -> list[dict[str, int]]:
    """Ranks that share a layer, or the whole part of the model, and how many experts apart they hold."""
    count = int(partner.count.max())
    if partner.job != "roles":
        return _alone(model, Pool(partner.chip, partner.count), settings.partner, routed)
    if partner.pinned:
        ranks = _pinned(model, partner, count // settings.layers)
        stages = settings.layers
        sizes = [(size, 1) for size in ranks]
    else:
        stages = 1
        sizes = [(count // data, data) for data in _values(settings.partner.get("data", 1), count, count)]
    found = [
        {"tensor": size, "expert": expert, "data": data, "pipeline": stages}
        for size, data in sizes
        for expert in _values(settings.partner.get("expert", "any") if routed else 1, size, size)
    ]
    if routed and partner.chip.kind != "lpu":  # ranks that take whole tokens and send them on to their experts
        found += [
            {"tensor": tensor, "attention_data": size // tensor, "expert": size, "data": data, "pipeline": stages}
            for size, data in sizes
            for tensor in divisors(size)
            if tensor < size and tensor <= Pool(partner.chip, partner.count).domain
        ]
    return found


def _pinned(model: Model, partner: Partner, most: int) -> list[int]:
    """Chips of one layer: all there are on an LPU, which cuts anywhere; else the most among which experts divide."""
    if most < 1:
        return []
    experts = [block.ffn.experts for block in model.blocks.values() if isinstance(block.ffn, Moe)]
    if partner.chip.kind == "lpu" or not experts:
        return [most]
    return [size for size in range(most, 0, -1) if all(e % size == 0 or size % e == 0 for e in experts)][:MOST]


def _alone(model: Model, pool: Pool, wanted: Mapping[str, Wanted], routed: bool) -> list[dict[str, int]]:
    """Splits of a pool that runs a whole model; of LPUs in stages, as `layer-pipeline` has them."""
    if pool.chip.kind == "lpu":
        return _stages(model, pool, wanted)
    found = []
    for tensor in _values(wanted.get("tensor", "within_domain"), pool.chips, pool.domain):
        rest = pool.chips // tensor
        if tensor * rest != pool.chips:
            continue
        found.append({"tensor": tensor, "expert": tensor if routed else 1, "data": rest})
        if routed and rest > 1:
            found.append({"tensor": tensor, "attention_data": rest, "expert": pool.chips})
    return found


def _stages(model: Model, pool: Pool, wanted: Mapping[str, Wanted]) -> list[dict[str, int]]:
    """Every number of chips a stage and of stages, pinned layers in each; what is left over are replicas.

    Degrees that are words about a domain of fast links mean any: a stage of LPUs may be longer than one.
    """
    words = ("domain", "within_domain")
    ranks, stages = (
        _values("any" if wanted.get(name, "any") in words else wanted.get(name, "any"), pool.chips, pool.domain)
        for name in ("tensor", "pipeline")
    )
    return [
        {"tensor": tensor, "pipeline": count, "data": pool.chips // (tensor * count)}
        for tensor, count in product(ranks, stages)
        if count <= model.layers and pool.chips % (tensor * count) == 0
    ]


def _values(wanted: Wanted, chips: int, domain: int) -> list[int]:
    """Numbers to try."""
    if isinstance(wanted, int):
        return [wanted]
    if not isinstance(wanted, str):
        return list(wanted)
    inside = [value for value in divisors(chips) if value <= domain]
    words = {
        "any": divisors(chips),
        "domain": inside[-1:],
        "within_domain": inside,
        "rest": [chips],
        "replica": [chips],
    }
    if wanted not in words:
        raise ValueError(f"unknown degree {wanted!r}; known: {', '.join(words)}")
    return words[wanted]
