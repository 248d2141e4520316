"""What the prefix cache and the tiers below it did: hits, loads, writes, and what was held for how long."""

from dataclasses import dataclass

import numpy as np

from archsim.arrays import Array
from archsim.serving.pool import Prefixes
from archsim.serving.simulate import Played
from archsim.serving.tiers import Recompute, Tier, Tiered

CHIPS = "chips"  # the name of the memory of the chips


@dataclass(frozen=True, eq=False)
class Use:
    """One memory of all replicas together.

    `hits` are tokens found, `share` that of all prompt tokens of started requests; `saved` seconds of one replica that
    computing them would have taken, alone. `loaded` and `written` are bytes; `refused` blocks came when too many writes
    waited. `waits` are the seconds of each load. `held` are byte-seconds of blocks that nobody used; below the chips of
    all that was there. `price` is USD per 1e9 B.
    """

    name: str
    hits: float
    share: float
    saved: float
    held: float
    loaded: float = 0.0
    written: float = 0.0
    refused: int = 0
    price: float = 0.0
    waits: Array | None = None

    @property
    def wait(self) -> float:
        """Mean seconds of a load; NaN without one."""
        return float(self.waits.mean()) if self.waits is not None and len(self.waits) else float("nan")


def uses(played: Played) -> tuple[Use, ...]:
    """The memory of the chips first."""
    caches = [pool.prefixes for pool in played.pools if pool.prefixes is not None]
    if not caches:
        return ()
    asked, server, end = played.requests, played.server, played.seconds
    begun = np.isfinite(played.begun)
    total = max(float(asked.input[begun].sum()), 1.0)
    tiers = _tiers(caches)
    below = [_use(found, asked.block, total, end) for found in tiers]
    recompute = Recompute(server.surface, server.scheduler.max_tokens)
    cached = played.cached[begun].astype(np.int64).tolist()
    hits = float(sum(cached)) - sum(use.hits for use in below)
    saved = sum([recompute(0, tokens) for tokens in cached]) - sum(use.saved for use in below)
    held = sum(cache.order.until(end) * cache.unit for cache in caches) * server.unit
    return (Use(CHIPS, hits, hits / total, max(saved, 0.0), held), *below)


def _tiers(caches: list[Prefixes]) -> list[list[Tier]]:
    """The tiers of all replicas, level by level, a shared one once."""
    stacks = [cache.below for cache in caches if isinstance(cache, Tiered)]
    return [list(dict.fromkeys(level)) for level in zip(*stacks, strict=True)]


def _use(tiers: list[Tier], block: int, total: float, end: float) -> Use:
    level = tiers[0].level
    hits = float(sum(tier.hits for tier in tiers)) * block
    return Use(
        level.name,
        hits,
        hits / total,
        sum(tier.saved for tier in tiers),
        sum(tier.order.until(end) for tier in tiers) * level.size,
        sum(tier.loaded for tier in tiers) * level.size,
        sum(tier.written for tier in tiers) * level.size,
        sum(tier.refused for tier in tiers),
        level.price,
        np.array([wait for tier in tiers for wait in tier.waits]),
    )
