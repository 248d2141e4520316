"""The memory plan: what each chip holds, whether it fits, and how many sequences would."""

import numpy as np

from archsim.arrays import Array, array
from archsim.mapping.place import Deployment, divide
from archsim.mapping.plan import MemoryPlan
from archsim.mapping.runtime import Runtime
from archsim.mapping.split import Split
from archsim.workload.lowering import lower
from archsim.workload.model import Attention, Model, Precision
from archsim.workload.operators import Operator
from archsim.workload.step import decode


def memory_plan(d: Deployment, batch: Array, context: Array) -> MemoryPlan:
    """What a chip holds when `batch` sequences of `context` tokens run on the whole system."""
    model, precision, split, chip, runtime = d.model, d.precision, d.split, d.chip, d.runtime
    sequences = np.ceil(batch / (split.data * split.attention_data))
    per_sequence = kv_bytes(model, precision, split, context)
    activations = _activations(model, split, runtime)
    buffers = array(runtime.buffers)
    capacity = chip.memory.capacity
    reserve = np.maximum((1.0 - runtime.utilization) * capacity - activations - buffers, 0.0)
    parts = {
        "weights": weight_bytes(model, precision, split),
        "activations": activations,
        "buffers": buffers,
        "reserve": reserve,
        "kv": per_sequence * sequences,
    }
    return MemoryPlan(parts, capacity, per_sequence, sequences)


def kv_bytes(model: Model, precision: Precision, split: Split, context: Array) -> Array:
    """KV-cache bytes of one sequence on one of its ranks; windowed layers hold no more than their window."""
    total = array(0.0)
    for block, count in model.counted():
        attention = block.attention
        elements = array(float(attention.kv_elements))
        if isinstance(attention, Attention):
            elements = elements / np.minimum(split.tensor, attention.kv_heads)
        total = total + elements * precision.kv.bytes * count * np.minimum(context, attention.window)
    return total


def longest_context(model: Model, precision: Precision, split: Split, room: float) -> int:
    """The longest context of which one sequence's KV cache fits in `room` bytes of a rank (0: none does)."""
    low, high = 0, 1
    while high < 1 << 40 and float(kv_bytes(model, precision, split, array(high)).max()) <= room:
        low, high = high, high * 2
    while high - low > 1:
        middle = (low + high) // 2
        fits = float(kv_bytes(model, precision, split, array(middle)).max()) <= room
        low, high = (middle, high) if fits else (low, middle)
    return low


def weight_bytes(model: Model, precision: Precision, split: Split) -> Array:
    """Bytes of weights on one rank, scales and padding included."""
    graph = lower(model, decode(1, 1, model.clips), precision)
    total = array(0.0)
    for operator, count in graph.everything():
        size = sum(number * precision.of(tensor).bytes for tensor, number in operator.parameters.items())
        if size:
            total = total + size * count * _share(operator, split)
    return total


def _share(operator: Operator, split: Split) -> Array:
    """The share of an operator's weights on one rank."""
    dims, rules = operator.dims, operator.divided
    if "n_kv" in dims:
        columns = divide(dims, "n", rules["n"], split) + divide(dims, "n_kv", rules["n_kv"], split)
        return columns / (dims["n"] + dims["n_kv"])
    share = array(1.0)
    for name, rule in rules.items():
        share = share * divide(dims, name, rule, split) / dims[name]
    return share


def _activations(model: Model, split: Split, runtime: Runtime) -> Array:
    """Transient tensors of the largest step: residual stream and the widest projection, two bytes an element."""
    widest = 0.0
    for block in model.blocks.values():
        ffn = block.ffn
        widest = max(widest, 2.0 * getattr(ffn, "top_k", 1) * ffn.width)
    return runtime.chunk * 2.0 * (4.0 * model.hidden + widest / split.tensor)
