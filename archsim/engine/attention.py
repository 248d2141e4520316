"""Attention on a GPU: one new token over its cache, split over thread blocks; and the causal attention of a prompt.

Generation: the cache of every sequence and KV head is read once; it is cut into splits so that all cores have work,
and the splits are joined afterwards. Latent attention is the same with one shared KV head. Prompt: tiles of query
rows walk over the keys they see; the exponentials of the softmax are a resource of their own. Form and constants:
`docs/models.md`.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from archsim.arrays import Array, Inputs, array, blocked, cached, ceil_to, fastest, soft_maximum, where_positive
from archsim.chip.constants import ATTENTION_SPLITS, ContextAttention, GenerationAttention
from archsim.chip.model import Chip
from archsim.engine.cost import chain
from archsim.mapping.plan import Kernel

Number = Array | float
Flags = np.typing.NDArray[np.bool_]

IO = 2.0  # bytes of a query or an output element
PARTIAL = 4.0  # bytes of an element of a split's result
KEYS = 64.0  # keys a block takes at once
LEAST_WORK = 128.0  # cached tokens that the choice between kernels counts at the least

GENERATION = ("compute", "memory", "occupancy", "clock", "on_chip", "bandwidth", "overlap")
CONTEXT = ("compute", "memory", "quantization", "occupancy", "clock", "on_chip", "bandwidth")


def generation(kernel: Kernel, chip: Chip, constants: GenerationAttention) -> tuple[Array, dict[str, Array]]:
    """Seconds and parts of attention of `queries` tokens a sequence over `tokens` cached in all."""
    names = ("sequences", "queries", "tokens", "length", "heads", "width", "value", "resident")
    inputs = _chip(chip, kernel) | {name: kernel.dims[name] for name in names if name in kernel.dims}
    shared = kernel.kind == "mla_generation"
    inputs["kv_heads"] = array(1.0) if shared else kernel.dims["kv_heads"]
    kv = kernel.weight.bytes
    seconds, *parts = blocked(lambda x: _Generation(constants, kv, shared, x).evaluate(), inputs)
    return seconds, dict(zip((*GENERATION, "fixed"), parts, strict=True))


def unpacked(kernel: Kernel, constants: GenerationAttention) -> Flags:
    """Where query heads are not packed into blocks by their group: each takes a block of its own.

    TensorRT-LLM decides so between two kernels; the rule was read off measured times. Several queries a sequence are
    always packed.
    """
    d = kernel.dims
    if constants.unpacked_groups is None:
        return np.zeros(1, np.bool_)
    group = d["heads"] / d["kv_heads"]
    apart = group > constants.unpacked_groups
    if constants.unpacked_single:
        apart = apart | (group <= 1.0)
    if constants.unpacked_work:
        length = np.maximum(d["tokens"] / np.maximum(d["sequences"], 1.0), LEAST_WORK)
        apart = apart | (d["sequences"] * d["kv_heads"] * length < constants.unpacked_work)
    return apart & (d["queries"] <= 1.0)


def generation_bytes(kernel: Kernel) -> Array:
    """Bytes: the cache once, queries and outputs once."""
    d = kernel.dims
    shared = kernel.kind == "mla_generation"
    elements = d["width"] if shared else d["kv_heads"] * (d["width"] + d["value"])
    return d["tokens"] * elements * kernel.weight.bytes + IO * d["sequences"] * d["queries"] * d["heads"] * (
        d["width"] + d["value"]
    )


def context(kernel: Kernel, chip: Chip, constants: ContextAttention) -> tuple[Array, dict[str, Array]]:
    """Seconds and parts of the causal attention of prompts."""
    names = ("requests", "tokens", "pairs", "prefix", "window", "heads", "kv_heads", "width", "value")
    inputs = _chip(chip, kernel) | {name: kernel.dims[name] for name in names}
    seconds, *parts = blocked(_Context(constants).evaluate, inputs)
    return seconds, dict(zip((*CONTEXT, "fixed"), parts, strict=True))


def context_bytes(kernel: Kernel) -> Array:
    """Bytes: queries and outputs of the new tokens, keys and values of all that a chunk sees."""
    d = kernel.dims
    width = d["width"] + d["value"]
    seen = d["tokens"] + np.minimum(d["prefix"], d["requests"] * d["window"])
    return where_positive(d["tokens"], IO * width * (d["tokens"] * d["heads"] + seen * d["kv_heads"]))


def _chip(chip: Chip, kernel: Kernel) -> dict[str, Array]:
    return {
        "peak": chip.matrix[kernel.compute],
        "bandwidth": chip.memory.bandwidth,
        "cores": chip.cores,
        "exponentials": chip.exponentials * chip.clock,
    }


class _Generation:
    """The closed form at one block of points; what all numbers of splits share is worked out once."""

    def __init__(self, c: GenerationAttention, kv: float, shared: bool, x: Inputs) -> None:
        self.c, self.kv, self.shared, self.x = c, kv, shared, x
        self.length = x["length"] if "length" in x else x["tokens"] / np.maximum(x["sequences"], 1.0)
        self.group = x["heads"] / x["kv_heads"] * x["queries"]  # query rows that share one KV head
        self.rows = np.minimum(self.group, c.rows)
        self.blocks = x["sequences"] * x["kv_heads"] * np.ceil(self.group / c.rows)
        self.elements = x["width"] if shared else x["width"] + x["value"]  # KV elements a token, of one head
        self.outputs = x["sequences"] * x["queries"] * x["heads"]
        self.compute = x["tokens"] * (2.0 * x["queries"] * x["heads"] * (x["width"] + x["value"]) / x["peak"])
        small = IO * self.outputs * (x["width"] + x["value"])
        cache = x["tokens"] * (self.elements * x["kv_heads"] * kv)
        self.traffic = (cached(cache, x["resident"]) if "resident" in x else cache) + small

    def evaluate(self) -> tuple[Array, ...]:
        """Seconds, then the parts in the order of GENERATION, then the fixed part."""
        busy, fixed, levels = self._levels(self._choose())
        parts = chain(levels, fixed)
        sequences = self.x["sequences"]
        return tuple(where_positive(sequences, time) for time in (busy + fixed, *parts.values()))

    def _choose(self) -> Array | float:
        """The fastest number of splits of a sequence; a split takes the time of a whole block of keys at the least."""
        counts = self._candidates()
        if len(counts) == 1:
            return counts[0]
        (choice,) = fastest(self._time, [(count,) for count in counts], self.x)
        return choice

    def _candidates(self) -> list[float]:
        """Numbers of splits that can be the fastest somewhere in the block.

        Waves that need not be whole gain nothing from more splits once the cores are full, but for what the last keys
        of each split are padded by.
        """
        counts = [1.0, *(float(count) for count in ATTENTION_SPLITS if 1 < count <= self.c.splits)]
        block = float(np.min(self._block))
        if self.shared or block <= 0.0:
            return counts
        full = float((self.x["cores"] / np.maximum(self.blocks, 1e-9)).max())
        enough = next((count for count in counts if count >= full), np.inf)
        if enough == 1.0:
            return counts[:1]
        return [count for count in counts if count <= enough * (1.0 + KEYS * float(np.max(self._pace)) / block)]

    @cached_property
    def _streaming(self) -> Array:
        """Sustained time of the traffic."""
        return self.traffic / (self.x["bandwidth"] * self.c.memory)

    def _time(self, splits: Number) -> Array:
        memory = self._streaming + self._partial(splits) / (self.x["bandwidth"] * self.c.memory)
        time = soft_maximum(memory, self._cores(splits), self.c.overlap) + self._join(splits)
        if not self.c.groups_only:
            return time
        return np.where((self.group <= self.x["queries"]) & np.greater(splits, 1.0), np.inf, time)

    def _waves(self, splits: Number) -> Array:
        waves = self.blocks * splits / self.x["cores"]
        return np.maximum(np.ceil(waves) if self.shared else waves, 1.0)

    def _cores(self, splits: Number) -> Array:
        """Time of the cores: waves of blocks, each with fixed work, then its keys at the pace of feed or matrix."""
        if not self.c.splits:
            return self.compute
        keys = ceil_to(self.length / splits, KEYS)
        return self._waves(splits) * (self._block + self._pace * keys)

    @cached_property
    def _block(self) -> Array:
        """Fixed work of one block."""
        return self.c.block + self.c.query * self.rows

    @cached_property
    def _pace(self) -> Array:
        """Seconds a key in one block."""
        x = self.x
        rows = np.maximum(ceil_to(self.rows, 16.0), self.c.least_rows)
        matrix = 2.0 * rows * (x["width"] + x["value"]) / (x["peak"] / x["cores"] * self.c.matrix)
        return matrix if self.c.feed is None else np.maximum(matrix, self.elements * self.kv / self.c.feed)

    def _partial(self, splits: Number) -> Array:
        """Bytes of the results of splits."""
        return PARTIAL * splits * np.greater(splits, 1.0) * self._results

    @cached_property
    def _results(self) -> Array:
        """Elements of the result."""
        return self.outputs * self.x["value"]

    def _join(self, splits: Number) -> Array:
        """Joining the splits: fixed, and every split's rows through one block."""
        feed = np.inf if self.c.combine_feed is None else self.c.combine_feed
        rows = self.rows * self.x["value"] * PARTIAL / feed
        return np.greater(splits, 1.0) * (self.c.combine + splits * rows)

    def _swap(self) -> Array:
        """Transposed copies that FA2 makes of grouped queries of several sequences and heads."""
        if not self.c.swap:
            return array(0.0)
        x = self.x
        return np.where((self.group > x["queries"]) & (x["sequences"] > 1) & (x["kv_heads"] > 1), self.c.swap, 0.0)

    def _levels(self, splits: Number) -> tuple[Array, Array, dict[str, Array]]:
        """Time of cores and memory, the fixed rest, and the levels of the chain."""
        bandwidth = self.x["bandwidth"]
        cores, memory = self._cores(splits), (self.traffic + self._partial(splits)) / (bandwidth * self.c.memory)
        busy = soft_maximum(memory, cores, self.c.overlap)
        used = np.minimum(np.maximum(self.blocks * splits, 1.0) / self.x["cores"], 1.0) if self.c.splits else 1.0
        occupied = self.compute / used
        levels = {
            "compute": self.compute,
            "memory": self.traffic / bandwidth,
            "occupancy": np.minimum(occupied, cores),
            "clock": np.minimum(occupied / self.c.matrix, cores),
            "on_chip": cores,
            "bandwidth": memory,
            "overlap": busy,
        }
        return busy, self.c.fixed + self._join(splits) + self._swap(), levels


@dataclass(frozen=True)
class _Context:
    """The closed form for one set of constants."""

    c: ContextAttention

    def evaluate(self, x: Inputs) -> tuple[Array, ...]:
        """Seconds, then the parts in the order of CONTEXT, then the fixed part."""
        levels = self._levels(x) if self.c.rows else self._ideal(x)
        fixed = array(self.c.fixed)
        parts = chain(levels, fixed)
        seconds = where_positive(x["tokens"], levels["bandwidth"] + fixed)
        return (seconds, *(where_positive(x["tokens"], part) for part in parts.values()))

    def _roofline(self, x: Inputs) -> tuple[Array, Array, Array]:
        """Compute and memory at their peaks, and the sustained time of the passes over memory, one at the least."""
        width = x["width"] + x["value"]
        seen = x["tokens"] + np.minimum(x["prefix"], x["requests"] * x["window"])
        compute = 2.0 * x["pairs"] * x["heads"] * width / x["peak"]
        memory = IO * width * (x["tokens"] * x["heads"] + seen * x["kv_heads"]) / x["bandwidth"]
        passes = x["tokens"] * x["heads"] * self.c.queries + seen * x["kv_heads"] * self.c.keys
        return compute, memory, np.maximum(IO * width * passes / (self.c.memory * x["bandwidth"]), memory)

    def _ideal(self, x: Inputs) -> dict[str, Array]:
        compute, memory, _ = self._roofline(x)
        return {name: memory if name == "memory" else compute for name in CONTEXT[:-1]} | {
            "bandwidth": np.maximum(compute, memory)
        }

    def _levels(self, x: Inputs) -> dict[str, Array]:
        """Tiles of rows walk their keys; the longest tile of the last wave shows; passes over memory add.

        `keys` are key columns of all tiles of one head, with the half tiles at the diagonal, and at the trailing
        edge of a window with a whole block more, that are computed and thrown away.
        """
        requests = np.maximum(x["requests"], 1e-9)
        length = x["tokens"] / requests
        rows = np.minimum(self.c.rows, np.maximum(ceil_to(length, 64.0), 64.0))
        tiles = np.ceil(length / self.c.rows)
        trailing = np.maximum(tiles - np.ceil(x["window"] / rows), 0.0)
        keys = x["pairs"] / requests / rows + (tiles + trailing) * (rows - 1.0) / 2.0 + trailing * self.c.edge
        windowed = x["window"] + (self.c.rows + self.c.edge)
        longest = np.minimum(ceil_to(length + x["prefix"] / requests, 64.0), windowed)
        heads = x["requests"] * x["heads"]
        column = 2.0 * rows * (x["width"] + x["value"]) / (x["peak"] / x["cores"])
        pace = self._pace(x, rows, column)
        compute, memory, passes = self._roofline(x)
        spread = np.maximum(heads * keys / x["cores"], longest)
        cores = np.maximum(heads * (keys * pace + tiles * self.c.block) / x["cores"], longest * pace + self.c.block)
        on_chip = cores + self.c.tail * (longest * pace + self.c.block)
        return {
            "compute": compute,
            "memory": memory,
            "quantization": heads * keys * column / x["cores"],
            "occupancy": (spread + self.c.tail * longest) * column,
            "clock": (spread + self.c.tail * longest) * column / self.c.matrix,
            "on_chip": on_chip,
            "bandwidth": on_chip + passes,
        }

    def _pace(self, x: Inputs, rows: Array, column: Array) -> Array:
        """Seconds a key column of a tile: matrix units and exponentials, joined."""
        matrix = column / self.c.matrix
        if self.c.exponential is None:
            return matrix
        return soft_maximum(matrix, rows / (x["exponentials"] * self.c.exponential), self.c.overlap)
