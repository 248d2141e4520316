"""Matrix products on a GPU: a short tile menu, split-K, waves over the cores, operand feed, memory.

One core computes a tile of `rows x columns` over `depth` of K; tiles come in waves over the cores. A library chooses
the tile and the number of K splits for each shape; here the fastest of the menu is taken, which emulates it. Compute
and memory overlap up to a soft maximum. Form and constants: `docs/models.md`. A dimension `resident`, the share of
the operands that the cache still holds, exists in micro-benchmarks only: no step of a model finds its weights there.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from archsim.arrays import Array, Inputs, blocked, cached, ceil_to, fastest, soft_maximum, where_positive
from archsim.chip.constants import SPLITS, Gemm
from archsim.chip.model import Chip
from archsim.engine.cost import chain
from archsim.mapping.plan import Kernel

Number = Array | float

FEED_CLOCK = 1.83e9  # Hz at which operand feed is quoted
EPILOGUE_TILE = 128 * 256
OUTPUT = 2.0  # bytes of a result
PARTIAL = 4.0  # bytes of a partial sum of split-K

LEVELS = ("compute", "memory", "quantization", "occupancy", "clock", "on_chip", "bandwidth", "overlap")


def gemm(kernel: Kernel, chip: Chip, constants: Gemm) -> tuple[Array, dict[str, Array]]:
    """Seconds and parts of `batch` products of (m x k) by (k x n). No rows take no time."""
    d = kernel.dims
    inputs = {
        "m": d["m"],
        "n": d["n"],
        "k": d["k"],
        "batch": d.get("batch", np.ones(1)),
        "peak": chip.matrix[kernel.compute],
        "bandwidth": chip.memory.bandwidth,
        "cores": chip.cores,
        "clock": chip.clock,
    }
    if "resident" in d:
        inputs["resident"] = d["resident"]
    shape = _Shape(constants, kernel.weight.bytes, kernel.input.bytes)
    seconds, *parts = blocked(shape.evaluate, inputs)
    return seconds, dict(zip((*LEVELS, "fixed"), parts, strict=True))


def gemm_bytes(kernel: Kernel) -> Array:
    """Bytes read and written once: weights, input, output."""
    d = kernel.dims
    weights = d["n"] * d["k"] * kernel.weight.bytes
    rows = d["m"] * (d["k"] * kernel.input.bytes + d["n"] * OUTPUT)
    return where_positive(d["m"], (weights + rows) * d.get("batch", 1.0))


@dataclass(frozen=True)
class _Shape:
    """The closed form for one set of constants and formats."""

    c: Gemm
    weight: float
    input: float

    def evaluate(self, x: Inputs) -> tuple[Array, ...]:
        """Seconds, then the parts in the order of LEVELS, then the fixed part."""
        core = _Core(self.c, x, self._operand())
        traffic = x["batch"] * (x["n"] * x["k"] * self.weight + x["m"] * (x["k"] * self.input + x["n"] * OUTPUT))
        if "resident" in x:
            traffic = cached(traffic, x["resident"])
        choice = self._choose(x, core, traffic)
        busy, fixed, levels = self._levels(x, core, traffic, *choice)
        parts = chain(levels, fixed)
        seconds = where_positive(x["m"], busy + fixed)
        return (seconds, *(where_positive(x["m"], part) for part in parts.values()))

    def _operand(self) -> float:
        """Bytes of an operand on its way into a core: weight-only formats arrive widened."""
        return max(self.weight, self.input)

    def _choose(self, x: Inputs, core: "_Core", traffic: Array) -> tuple[Array, Array, Array]:
        """Rows and columns of the fastest tile, and its K splits."""

        def time(rows: Number, columns: Number, splits: Number) -> Array:
            cores = core.waves(rows, columns, splits) * core.tile_time(rows, columns, core.depth(splits))
            return soft_maximum(cores, memory(splits), self.c.overlap) + self._overhead(x, core, splits)

        def memory(splits: Number) -> Array:
            return core.once("memory", splits, 0.0, lambda: self._memory(x, traffic, splits))

        rows, columns, splits = fastest(time, self.menu(), x)
        return rows, columns, splits

    def menu(self) -> list[tuple[float, float, float]]:
        """(rows, columns, K splits) a library chooses from."""
        splits = SPLITS if self.c.split is not None else (1,)
        return [(float(rows), float(columns), float(count)) for rows, columns in self.c.tiles for count in splits]

    def _memory(self, x: Inputs, traffic: Array, splits: Number) -> Array:
        """Sustained time of the traffic; partial sums of split-K, written and read, leave the cache by a quarter."""
        partial = 0.25 * 2.0 * PARTIAL * splits * np.greater(splits, 1.0)
        return (traffic + partial * (x["batch"] * x["m"] * x["n"])) / (x["bandwidth"] * self.c.memory)

    def _overhead(self, x: Inputs, core: "_Core", splits: Number) -> Array:
        """What K costs whatever overlaps: latency along its depth, and joining its splits."""
        joining = np.greater(splits, 1.0) * (self.c.split or 0.0)
        return core.depth(splits) * (self.c.depth / 64.0) + joining

    def _levels(
        self, x: Inputs, core: "_Core", traffic: Array, rows: Array, columns: Array, splits: Array
    ) -> tuple[Array, Array, dict[str, Array]]:
        """Time of cores and memory, the fixed rest, and the levels of the chain."""
        waves, depth = core.waves(rows, columns, splits), core.depth(splits)
        cores, memory = waves * core.tile_time(rows, columns, depth), self._memory(x, traffic, splits)
        busy = soft_maximum(cores, memory, self.c.overlap)
        work = 2.0 * rows * columns * depth / core.rate
        levels = {
            "compute": 2.0 * x["batch"] * x["m"] * x["n"] * x["k"] / x["peak"],
            "memory": traffic / x["bandwidth"],
            "quantization": core.tiles(rows, columns, splits) / x["cores"] * work,
            "occupancy": waves * work,
            "clock": waves * work / self.c.matrix,
            "on_chip": cores,
            "bandwidth": memory,
            "overlap": busy,
        }
        return busy, self.c.fixed + self._overhead(x, core, splits), levels


class _Core:
    """Tiles on cores; what a choice shares with others of its menu is worked out once."""

    def __init__(self, c: Gemm, x: Inputs, operand: float) -> None:
        self.c, self.x = c, x
        self.rate = x["peak"] / x["cores"]
        self.feed = x["clock"] * 0.0 if c.feed is None else operand * FEED_CLOCK / (c.feed * x["clock"])
        self._known: dict[tuple[str, float, float], Array] = {}

    def once(self, name: str, first: Number, second: Number, work: Callable[[], Array]) -> Array:
        """`work()`, remembered when its arguments are numbers of the menu."""
        if isinstance(first, np.ndarray) or isinstance(second, np.ndarray):
            return work()
        key = (name, first, second)
        if key not in self._known:
            self._known[key] = work()
        return self._known[key]

    def depth(self, splits: Number) -> Array:
        """K of one split, padded."""
        return self.once("depth", splits, 0.0, lambda: ceil_to(self.x["k"] / splits, self.c.granule))

    def tiles(self, rows: Number, columns: Number, splits: Number) -> Array:
        """Tiles of all splits and products."""
        across = self.once("rows", rows, 0.0, lambda: np.ceil(self.x["m"] / rows) * self.x["batch"])
        along = self.once("columns", columns, 0.0, lambda: np.ceil(self.x["n"] / columns))
        return self.once("tiles", rows, columns, lambda: across * along) * splits

    def waves(self, rows: Number, columns: Number, splits: Number) -> Array:
        """Waves of tiles over the cores: whole ones, less what a persistent kernel hides of the last."""
        waves = self.tiles(rows, columns, splits) / self.x["cores"]
        if self.c.persistent == 1.0:
            return np.maximum(waves, 1.0)
        whole = np.ceil(waves)
        if self.c.persistent == 0.0:
            return whole
        return np.asarray((1.0 - self.c.persistent) * whole + self.c.persistent * np.maximum(waves, 1.0))

    def tile_time(self, rows: Number, columns: Number, depth: Array) -> Array:
        """Time of one tile: matrix units or operand feed, then its epilogue."""
        step = self.once("step", rows, columns, lambda: self._step(rows, columns))
        return step * depth + (self.c.epilogue / EPILOGUE_TILE * rows * columns + self.c.wave)

    def _step(self, rows: Number, columns: Number) -> Array:
        """Seconds a tile takes for each element of K."""
        matrix = 2.0 * rows * columns / (self.rate * self.c.matrix)
        if self.c.feed is None:
            return matrix
        return np.maximum(matrix, (np.minimum(rows, self.x["m"]) + np.minimum(columns, self.x["n"])) * self.feed)
