"""Routed experts on a GPU: two grouped matrix products, with routing, activation and the movement of rows between.

At small batch few experts are touched, and each touched one is read whole; at large batch the rows of the busiest
rank decide. Popularity follows a power law. Form and constants: `docs/models.md`.
"""

from dataclasses import dataclass

import numpy as np

from archsim.arrays import Array, Inputs, array, blocked, cached, fastest, soft_maximum, where_positive
from archsim.chip.constants import EXPERT_TILES, Experts
from archsim.chip.model import Chip
from archsim.engine.cost import chain
from archsim.mapping.plan import Kernel

QUANTILES = 24  # of the popularity law
ROUNDS = 8  # of handing on what the cap on popularity takes
LIKELIEST = 0.95  # no expert is chosen by more than this share of tokens
COLUMNS = 128.0  # tile columns
SUSTAINED = 0.85  # of the bandwidth, for passes over activations
WIDE = 2.0  # bytes of an activation

JOINED = 2  # of what `_product` gives
LEVELS = ("compute", "memory", "quantization", "occupancy", "imbalance", "clock", "on_chip", "bandwidth", "overlap")


def distinct_experts(tokens: Array, experts: Array, top_k: Array, skew: Array) -> Array:
    """Expected number of experts that at least one of `tokens` chooses.

    Popularity of the expert of rank r is proportional to r ** -skew; uniform popularity (skew 0) gives
    N (1 - (1 - k/N) ** tokens).
    """
    chosen = _shares(experts, top_k, skew)
    total = array(0.0)
    for share in chosen:
        total = total + (1.0 - (1.0 - share) ** tokens)
    return total / QUANTILES * experts


def _shares(experts: Array, top_k: Array, skew: Array) -> list[Array]:
    """Share of tokens that choose an expert of each quantile of popularity; they average to k/N.

    What the cap of LIKELIEST takes from the most popular goes to the others in proportion.
    """
    ranks = (np.arange(QUANTILES) + 0.5) / QUANTILES
    most = np.maximum(np.where(skew > 0, LIKELIEST, 1.0), top_k / experts)
    weights = [(rank * experts + 0.5) ** -skew for rank in ranks]
    mean = sum(weights[1:], weights[0]) / QUANTILES
    shares = [np.minimum(top_k / experts * weight / mean, most) for weight in weights]
    for _ in range(ROUNDS):
        missing = top_k / experts - sum(shares[1:], shares[0]) / QUANTILES
        free = sum((np.where(share < most, share, 0.0) for share in shares), array(0.0)) / QUANTILES
        grow = 1.0 + missing / np.maximum(free, np.finfo(np.float64).tiny)
        shares = [np.where(share < most, np.minimum(share * grow, most), share) for share in shares]
    return shares


def imbalance(rows: Array, ranks: Array) -> Array:
    """Rows of the busiest of `ranks` over the mean: random choices, the mean plus its spread, at most twice it."""
    spread = np.sqrt(2.0 * np.log(ranks) / np.maximum(rows / ranks, 1e-9))
    return np.where(ranks > 1, np.minimum(1.0 + spread, np.minimum(ranks, 2.0)), 1.0)


def load(dims: Inputs) -> dict[str, Array]:
    """What the busiest rank has to do: rows, their mean over ranks, touched experts, and tokens present.

    Where a routing is known (a benchmark draws its own), `known_rows` and `known_touched` are the first and third.
    """
    rows = dims["tokens"] * dims["top_k"]
    ranks = dims["expert_ranks"]
    if "known_rows" in dims:
        known = {"rows": dims["known_rows"], "touched": dims["known_touched"]}
        return {**known, "mean_rows": np.minimum(rows / ranks, known["rows"]), "present": dims["tokens"]}
    factor = np.minimum(imbalance(rows, ranks) * dims["hottest"], ranks)
    touched = distinct_experts(dims["tokens"], dims["all_experts"], dims["top_k"], dims["skew"]) / ranks
    busiest = np.minimum(touched * np.minimum(factor, 1.3), dims["experts"])
    reached = dims["tokens"] * (1.0 - (1.0 - 1.0 / ranks) ** dims["top_k"])
    present = np.where(dims["apart"] > 1, reached, dims["tokens"])
    return {"rows": rows / ranks * factor, "mean_rows": rows / ranks, "touched": busiest, "present": present}


def experts(kernel: Kernel, chip: Chip, constants: Experts) -> tuple[Array, dict[str, Array]]:
    """Seconds and parts of the routed experts of one layer on the busiest rank."""
    d = kernel.dims
    now = load(d)
    everywhere = d["tokens"] * d["top_k"]
    inputs = now | {
        "routed": np.where(d["apart"] > 1, now["rows"], everywhere),  # sent to their ranks, others never arrive
        "hidden": d["hidden"],
        "width": d["width"],
        "matrices": d["matrices"],
        "peak": chip.matrix[kernel.compute],
        "bandwidth": chip.memory.bandwidth,
        "cores": chip.cores,
    }
    if "resident" in d:
        inputs["resident"] = d["resident"]
    form = _Experts(constants, kernel.weight.bytes, max(kernel.weight.bytes, kernel.input.bytes))
    seconds, *parts = blocked(form.evaluate, inputs)
    return seconds, dict(zip((*LEVELS, "fixed"), parts, strict=True))


def experts_bytes(kernel: Kernel) -> Array:
    """Bytes: every touched expert once, the tokens in and out."""
    d = kernel.dims
    now = load(d)
    return where_positive(
        d["tokens"], _traffic(now | {name: d[name] for name in ("hidden", "width", "matrices")}, kernel.weight.bytes)
    )


def _traffic(x: Inputs, weight: float) -> Array:
    weights = x["touched"] * x["matrices"] * x["hidden"] * x["width"] * weight
    return _from_memory(x, weights) + _in_and_out(x)


def _from_memory(x: Inputs, weights: Array) -> Array:
    """Bytes of weights as memory sees them; a micro-benchmark finds a share `resident` of them in the cache."""
    return cached(weights, x["resident"]) if "resident" in x else weights


def _in_and_out(x: Inputs) -> Array:
    """Bytes of the tokens present, read and written once."""
    return 2.0 * WIDE * x["present"] * x["hidden"]


@dataclass(frozen=True)
class _Experts:
    """The closed form for one set of constants and formats."""

    c: Experts
    weight: float
    operand: float

    def evaluate(self, x: Inputs) -> tuple[Array, ...]:
        """Seconds, then the parts in the order of LEVELS, then the fixed part."""
        levels, fixed = self._levels(x)
        parts = chain(levels, fixed)
        seconds = where_positive(x["routed"], levels["overlap"] + fixed)
        return (seconds, *(where_positive(x["routed"], part) for part in parts.values()))

    def _products(self, x: Inputs) -> list[tuple[Array, Array]]:
        """(columns, depth) of the two grouped products."""
        return [((x["matrices"] - 1.0) * x["width"], x["hidden"]), (x["hidden"], x["width"])]

    def _levels(self, x: Inputs) -> tuple[dict[str, Array], Array]:
        mean_flops = 2.0 * x["mean_rows"] * x["matrices"] * x["hidden"] * x["width"]
        passes = self._passes(x)
        cores, memory, joined, padded, spread, depth = self._best(x)
        compute = mean_flops / x["peak"]
        excess = np.where(x["mean_rows"] > 0, x["rows"] / np.maximum(x["mean_rows"], 1e-30), 1.0)
        levels = {
            "compute": compute,
            "memory": _traffic(x, self.weight) / x["bandwidth"],
            "quantization": padded / excess,
            "occupancy": spread / excess,
            "imbalance": spread,
            "clock": spread / self.c.matrix,
            "on_chip": cores,
            "bandwidth": np.maximum(memory, cores) + passes,
            "overlap": joined + passes,
        }
        return levels, self.c.fixed + self.c.routing * np.log2(1.0 + x["routed"]) + depth

    def _passes(self, x: Inputs) -> Array:
        """Time of the passes over the activations of routed rows and over the tokens; one in and one out at the
        least."""
        rows = self.c.activation * x["rows"] * (4.0 * x["hidden"] + 6.0 * x["width"])
        walked = x["routed"] * (x["hidden"] + x["width"]) if self.c.walks_all else x["present"] * x["hidden"]
        passes = np.maximum(rows + self.c.tokens * WIDE * walked, _in_and_out(x))
        return passes / (x["bandwidth"] * (SUSTAINED if self.c.tiled else 1.0))

    def _best(self, x: Inputs) -> tuple[Array, ...]:
        """The best row tile for both products together: cores, memory, joined, padded, spread, depth (s)."""
        if not self.c.tiled:
            return self._smooth(x)

        def both(tile: Array | float) -> list[Array]:
            pair = [self._product(x, tile, *shape) for shape in self._products(x)]
            return [first + second for first, second in zip(*pair, strict=True)]

        (tile,) = fastest(lambda tile: both(tile)[JOINED], [(float(rows),) for rows in EXPERT_TILES], x)
        return tuple(both(tile))

    def _smooth(self, x: Inputs) -> tuple[Array, ...]:
        flops = 2.0 * x["rows"] * x["matrices"] * x["hidden"] * x["width"]
        cores = flops / x["peak"]
        memory = x["touched"] * x["matrices"] * x["hidden"] * x["width"] * self.weight / x["bandwidth"]
        return cores, memory, np.maximum(cores, memory), cores, cores, array(0.0)

    def _product(self, x: Inputs, tile: Array | float, columns: Array, depth: Array) -> tuple[Array, ...]:
        """One grouped product in row tiles of `tile`: cores, memory, joined, padded, spread, depth (s)."""
        each = x["rows"] / np.maximum(x["touched"], 1e-30)
        tiles = x["touched"] * np.maximum(each / tile + 0.5, 1.0) * np.ceil(columns / COLUMNS)
        rate = x["peak"] / x["cores"]
        work = 2.0 * np.maximum(tile, 16.0) * COLUMNS * depth / rate
        waves = np.maximum(tiles / x["cores"], 1.0)
        step = work / self.c.matrix
        if self.c.feed is not None:
            step = np.maximum(step, (np.minimum(tile, each) + COLUMNS) * depth * self.operand / self.c.feed)
        cores = waves * step + (waves - 1.0) * self.c.wave
        memory = _from_memory(x, x["touched"] * columns * depth * self.weight) / (x["bandwidth"] * self.c.memory)
        joined = soft_maximum(cores, memory, self.c.overlap)
        return cores, memory, joined, tiles / x["cores"] * work, waves * work, self.c.depth * depth / 64.0
