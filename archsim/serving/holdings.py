"""What every request of a replica holds of its KV memory: units of its own, and blocks of the prefix cache."""

from collections.abc import Sequence

from archsim.serving.pool import Pool
from archsim.serving.returning import Returns
from archsim.serving.tiers import Load, Tiered
from archsim.workload.requests import Chains

NONE: list[int] = []
NO_ROOM, LOADING = -1, -2


class Holdings:
    """Takes and gives memory for requests; `pool` counts it. `returns` says whose blocks should stay."""

    def __init__(self, pool: Pool, chains: Chains | None, returns: Returns | None = None) -> None:
        self.pool, self._chains = pool, chains if pool.prefixes is not None else None
        self._returns = returns
        self.tiers = pool.prefixes if isinstance(pool.prefixes, Tiered) else None
        self._loads: dict[int, Load] = {}
        self._preempted: set[int] = set()  # whose hits were counted before
        self._shared: dict[int, Sequence[int]] = {}
        self._open: dict[int, Sequence[int]] = {}  # chains of those that are here or were looked up, made once
        self._reserved: dict[int, int] = {}  # units, where memory is contiguous

    def loading(self, request: int) -> bool:
        """Whether blocks are loaded for a request that has not started."""
        return request in self._loads

    def ready(self, request: int) -> float:
        """When its blocks are there."""
        return self._loads[request].done

    def take(self, request: int, tokens: int, final: int, kept: int) -> int:
        """Memory for a request of `tokens` that will have `final`, if `kept` units are left then.

        The tokens found in the prefix cache or loaded, of which the last one of the request is none; NO_ROOM where
        memory has none, LOADING where more is worth being loaded first.
        """
        pool = self.pool
        layout = pool.layout
        own = layout.units(tokens) if layout.grows else layout.reserved(tokens, final)
        cache = pool.prefixes
        if cache is None:
            if own + kept > pool.free:
                return NO_ROOM
            pool.take(own)
            if not layout.grows:
                self._reserved[request] = own
            return 0
        chain = self._chain(request)
        shared = chain[: min(cache.lookup(chain), (tokens - 1) // cache.block)]  # the last token is computed anew
        own -= len(shared) * cache.unit
        if own + cache.idle_among(shared) + kept > pool.free:
            return NO_ROOM
        self._settle()
        found = len(shared)
        if self.tiers is not None and self._chains is not None:
            load = self._loads.pop(request, None)
            if load is not None:
                found += self.tiers.credit(load, found, request not in self._preempted)
            elif (load := self.tiers.fetch(chain, tokens, found)) is not None:
                self._loads[request] = load
                return LOADING
        if shared:
            cache.use(shared)
            self._shared[request] = shared
        pool.take(own)
        if not layout.grows:
            self._reserved[request] = own
        return found * cache.block

    def _settle(self) -> None:
        """What has grown too old goes, before anything else happens to the cache."""
        cache = self.pool.prefixes
        if cache is not None:
            given = cache.settle()
            if given:
                self.pool.give(given)

    def _chain(self, request: int) -> Sequence[int]:
        """The blocks of a prompt."""
        found = self._open.get(request)
        if found is None:
            self._open[request] = found = NONE if self._chains is None else self._chains[request]
        return found

    def again(self, request: int, tokens: int, kept: int) -> bool:
        """Memory for a request that comes back from the host, and its next token, if `kept` units are left then."""
        units = self.pool.layout.units(tokens)
        if self.pool.layout.units(tokens + 1) + kept > self.pool.free:
            return False
        self.pool.take(units)
        if not self.pool.layout.grows:
            self._reserved[request] = units
        return True

    def share(self, request: int, prompt: int) -> None:
        """The whole blocks of a prompt that is computed, or of it and its answer, go over to the prefix cache."""
        cache = self.pool.prefixes
        if cache is None or self._chains is None:
            return
        self._settle()
        used = self._shared.get(request, NONE)
        added = cache.add(self._chain(request)[len(used) : prompt // cache.block])
        if added:
            self._shared[request] = [*used, *added]
            if not self.pool.layout.grows:
                self._reserved[request] -= len(added) * cache.unit

    def free(self, request: int, tokens: int, over: bool = False) -> None:
        """A request that has so many tokens in memory gives back its own units and its use of shared blocks.

        One that is over may be said not to come back.
        """
        pool = self.pool
        if not over and self.tiers is not None:
            self._preempted.add(request)
        self._settle()
        shared = self._shared.pop(request, NONE)
        self._open.pop(request, None)
        if not pool.layout.grows:
            own = self._reserved.pop(request)
        elif pool.prefixes is None:
            own = pool.layout.units(tokens)
        else:
            own = pool.layout.units(tokens) - len(shared) * pool.prefixes.unit
        pool.give(own)
        if shared and pool.prefixes is not None:
            away = over and self._returns is not None and not self._returns.stays(request, pool.prefixes.clock())
            pool.prefixes.release(shared, away)
