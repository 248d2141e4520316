"""What every request of a replica holds of its KV memory: units of its own, and blocks of the prefix cache."""

from collections.abc import Sequence

from archsim.serving.pool import Pool
from archsim.workload.requests import Chains

NONE: list[int] = []


class Holdings:
    """Takes and gives memory for requests; `pool` counts it."""

    def __init__(self, pool: Pool, chains: Chains | None) -> None:
        self.pool, self._chains = pool, chains if pool.prefixes is not None else None
        self._shared: dict[int, Sequence[int]] = {}
        self._own: dict[int, int] = {}

    def take(self, request: int, tokens: int, final: int, kept: int) -> int:
        """Memory for a request of `tokens` that will have `final`, if `kept` units are left then.

        The tokens found in the prefix cache, of which the last one of the request is none; -1 where memory has no room.
        """
        pool = self.pool
        own = pool.layout.reserved(tokens, final)
        shared = NONE if self._chains is None else self._found(self._chains[request], tokens)
        cache = pool.prefixes
        if not shared or cache is None:
            if own + kept > pool.free:
                return -1
            pool.take(own)
            self._own[request] = own
            return 0
        own -= len(shared) * cache.unit
        if own + cache.idle_among(shared) + kept > pool.free:
            return -1
        cache.use(shared)
        pool.take(own)
        self._shared[request], self._own[request] = shared, own
        return len(shared) * cache.block

    def _found(self, chain: Sequence[int], tokens: int) -> Sequence[int]:
        """Leading blocks in the prefix cache; the block of the last token is computed anew as a whole."""
        cache = self.pool.prefixes
        if cache is None:
            return NONE
        return chain[: min(cache.lookup(chain), (tokens - 1) // cache.block)]

    def again(self, request: int, tokens: int, kept: int) -> bool:
        """Memory for a request that comes back from the host, and its next token, if `kept` units are left then."""
        units = self.pool.layout.units(tokens)
        if self.pool.layout.units(tokens + 1) + kept > self.pool.free:
            return False
        self.pool.take(units)
        self._own[request] = units
        return True

    def share(self, request: int, prompt: int) -> None:
        """The whole blocks of a prompt that is computed, or of it and its answer, go over to the prefix cache."""
        cache = self.pool.prefixes
        if cache is None or self._chains is None:
            return
        used = self._shared.get(request, NONE)
        added = cache.add(self._chains[request][len(used) : prompt // cache.block])
        if added:
            self._shared[request] = [*used, *added]
            self._own[request] -= len(added) * cache.unit

    def free(self, request: int, tokens: int) -> None:
        """A request that has so many tokens in memory gives back its own units and its use of shared blocks."""
        pool = self.pool
        own = self._own.pop(request)
        shared = self._shared.pop(request, NONE)
        if pool.layout.grows:
            own = pool.layout.units(tokens)
            if pool.prefixes:
                own -= len(shared) * pool.prefixes.unit
        pool.give(own)
        if shared and pool.prefixes:
            pool.prefixes.release(shared)
