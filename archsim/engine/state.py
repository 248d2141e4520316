"""Recurrent state and sparse attention's indexer on a GPU.

A new token reads and writes the whole state of its sequence: bytes decide. A prompt is scanned in chunks: products
inside a chunk, activations in and out, and, for the delta rule, a chain of chunks that wait for one another, one chain
for each sequence and head. The indexer streams its keys and writes a score for every pair. FLOPs of each are those of
`archsim.workload.mixers`; every time is the largest of its bounds. Form and constants: `docs/models.md`.
"""

from collections.abc import Callable

import numpy as np

from archsim.arrays import Array, Inputs, array, blocked, where_positive
from archsim.chip.constants import Indexer, StateScan, StateUpdate
from archsim.chip.model import Chip
from archsim.engine.cost import chain
from archsim.mapping.plan import Kernel
from archsim.workload.operators import indexer_flops, scan_flops, update_flops

LEVELS = ("compute", "memory", "occupancy", "clock", "on_chip", "bandwidth")
Levels = Callable[[Inputs], dict[str, Array]]


def state_update(kernel: Kernel, chip: Chip, c: StateUpdate) -> tuple[Array, dict[str, Array]]:
    """Seconds and parts of `queries` new tokens a sequence; the state is read and written once."""

    def levels(x: Inputs) -> dict[str, Array]:
        flops, moved = update_flops(x), _update_bytes(x, kernel.weight.bytes)
        exponentials = state_exponentials(x)
        vector = flops / (x["vector_peak"] * c.vector)
        return {
            "compute": flops / x["peak"],
            "memory": moved / x["bandwidth"],
            "clock": vector,
            "on_chip": np.maximum(vector, exponentials / x["exponential_rate"]),
            "bandwidth": moved / (x["bandwidth"] * c.memory),
        }

    return _priced(kernel, chip, "sequences", c.fixed, levels)


def state_update_bytes(kernel: Kernel) -> Array:
    """Bytes: the state in and out, and the inputs and outputs of the new tokens."""
    return _update_bytes(kernel.dims, kernel.weight.bytes)


def _update_bytes(x: Inputs, state: float) -> Array:
    each = 2.0 * x["elements"] * state + x["queries"] * x["bytes"]
    return np.asarray(x["sequences"] * x["heads"] * each)


def state_exponentials(d: Inputs) -> Array:
    """Decays: of a head and new token, or of every element of the state of a channel (Mamba-1)."""
    tokens = d["tokens"] if "tokens" in d else d["sequences"] * d["queries"]
    return np.asarray(tokens * d["heads"] * d["exponentials"])


def state_scan(kernel: Kernel, chip: Chip, c: StateScan) -> tuple[Array, dict[str, Array]]:
    """Seconds and parts of scanning prompts; each request writes its state, and reads it after a cached prefix."""

    def levels(x: Inputs) -> dict[str, Array]:
        flops, moved = scan_flops(x), _scan_bytes(x, kernel.weight.bytes)
        matrix = flops / (x["peak"] * c.matrix)
        rate = np.where(x["vector"] > 0, flops / (x["vector_peak"] * c.vector), matrix)
        exponentials = state_exponentials(x) / x["exponential_rate"]
        length = x["tokens"] / np.maximum(x["requests"], 1e-9)
        chains = np.maximum(x["requests"] * x["heads"] / x["cores"], 1.0)
        waiting = x["serial"] * c.chain * np.ceil(length / x["chunk"]) * chains
        return {
            "compute": flops / x["peak"],
            "memory": moved / x["bandwidth"],
            "occupancy": waiting,
            "clock": np.maximum(waiting, rate),
            "on_chip": np.maximum(rate, exponentials),
            "bandwidth": moved / (x["bandwidth"] * c.memory),
        }

    return _priced(kernel, chip, "tokens", c.fixed, levels)


def state_scan_bytes(kernel: Kernel) -> Array:
    """Bytes: activations in and out, the state of every request written, and read where a prefix came before."""
    return _scan_bytes(kernel.dims, kernel.weight.bytes)


def _scan_bytes(x: Inputs, state: float) -> Array:
    states = x["requests"] * x["elements"] * state * np.where(x["prefix"] > 0, 2.0, 1.0)
    moved = x["heads"] * (x["tokens"] * x["bytes"] + states)
    return where_positive(x["tokens"], np.asarray(moved))


def indexer(kernel: Kernel, chip: Chip, c: Indexer) -> tuple[Array, dict[str, Array]]:
    """Seconds and parts of scoring every pair of a query and a cached token, and of choosing the best."""

    def levels(x: Inputs) -> dict[str, Array]:
        flops, moved = indexer_flops(x), _indexer_bytes(x, kernel.weight.bytes)
        return {
            "compute": flops / x["peak"],
            "memory": moved / x["bandwidth"],
            "clock": flops / (x["peak"] * c.matrix),
            "bandwidth": (moved + c.logits * x["pairs"]) / (x["bandwidth"] * c.memory),
        }

    return _priced(kernel, chip, "rows", c.fixed, levels)


def indexer_bytes(kernel: Kernel) -> Array:
    """Bytes: every index key once, the queries, and the positions chosen (4 B each) are negligible beside them."""
    return _indexer_bytes(kernel.dims, kernel.weight.bytes)


def _indexer_bytes(x: Inputs, key: float) -> Array:
    moved = x["keys"] * x["width"] * key + x["rows"] * x["heads"] * x["width"]
    return where_positive(x["rows"], np.asarray(moved))


def _priced(kernel: Kernel, chip: Chip, present: str, fixed: float, levels: Levels) -> tuple[Array, dict[str, Array]]:
    """The largest of the levels, plus the fixed time; 0 where there is nothing of dimension `present`."""

    def evaluate(x: Inputs) -> tuple[Array, ...]:
        found = levels(x)
        longest = found["compute"]
        for level in found.values():
            longest = np.maximum(longest, level)
        parts = chain({name: found[name] for name in LEVELS if name in found}, array(fixed))
        filled = [parts.get(name, array(0.0)) for name in (*LEVELS, "fixed")]
        return tuple(where_positive(x[present], part) for part in (longest + fixed, *filled))

    seconds, *parts = blocked(evaluate, {**kernel.dims, **_chip(kernel, chip)})
    return seconds, dict(zip((*LEVELS, "fixed"), parts, strict=True))


def _chip(kernel: Kernel, chip: Chip) -> dict[str, Array]:
    return {
        "peak": chip.matrix[kernel.compute],
        "vector_peak": chip.vector["fp32"],
        "bandwidth": chip.memory.bandwidth,
        "cores": chip.cores,
        "exponential_rate": chip.exponentials * chip.clock * chip.cores,
    }
