"""The memory plan: what each chip holds, whether it fits, and how many sequences would."""

import functools
from collections.abc import Collection
from dataclasses import replace

import numpy as np

from archsim.arrays import Array, array
from archsim.mapping.pipeline import largest
from archsim.mapping.place import BACKING, Deployment, divide
from archsim.mapping.plan import MemoryPlan
from archsim.mapping.split import Split
from archsim.mapping.system import Partner
from archsim.workload.lowering import lower, lower_mtp
from archsim.workload.model import Attention, LatentAttention, Mixer, Model, Moe, Precision, Recurrent
from archsim.workload.operators import ROLES, Operator, OpGraph
from archsim.workload.step import decode

STREAMED = 64  # tokens whose activations are on an LPU at once: they stream from chip to chip


def memory_plan(d: Deployment, batch: Array, context: Array) -> MemoryPlan:
    """What a chip holds when `batch` sequences of `context` tokens run on the whole system.

    Of two pools that share a model this is the plan of the main one, with that of the other as its `partner`.
    """
    if d.partner is not None and d.partner.job == "roles":
        return _apart(d, d.partner, batch, context)
    return _whole(d, batch, context)


def _apart(d: Deployment, partner: Partner, batch: Array, context: Array) -> MemoryPlan:
    """Weights where their operators run; caches and states with attention."""
    own = _whole(d, batch, context, frozenset(ROLES) - partner.roles)
    other = _whole(replace(d, split=partner_split(d), chip=partner.chip, runtime=partner.runtime), batch, context)
    nothing = array(0.0)
    weights = weight_bytes(d.model, d.precision, partner_split(d), _copies(d), partner.roles, partner.pinned)
    parts = {**other.parts, "weights": weights, "kv": nothing, "state": nothing}
    theirs = replace(other, parts=parts, kv_per_sequence=nothing, sequences=nothing, state_per_sequence=nothing)
    return replace(own, partner=theirs)


def partner_split(d: Deployment) -> Split:
    """The split of the other pool. Raises ValueError where there is none."""
    if d.split.partner is None:
        raise ValueError("a partner needs a split")
    return d.split.partner


def _copies(d: Deployment) -> float:
    """Copies of an expert, redundant ones included."""
    return 1.0 + d.options.redundant_experts / max(_experts(d.model), 1)


def _whole(d: Deployment, batch: Array, context: Array, roles: Collection[str] = ROLES) -> MemoryPlan:
    """What a chip of one pool holds, with the weights of some roles."""
    model, precision, split, chip, runtime = d.model, d.precision, d.split, d.chip, d.runtime
    sequences = np.ceil(batch / split.groups)
    cut, stages = _cut(d)
    kv, state = kv_bytes(model, precision, cut, context) / stages, state_bytes(model, cut) / stages
    activations = _activations(model, split, STREAMED if chip.kind == "lpu" else runtime.chunk)
    buffers = array(runtime.buffers)
    capacity = chip.memory.capacity
    weights = weight_bytes(model, precision, cut, _copies(d), roles) / stages
    if runtime.of_free:
        reserve = (1.0 - runtime.utilization) * np.maximum(capacity - weights - activations - buffers, 0.0)
    else:
        reserve = np.maximum((1.0 - runtime.utilization) * capacity - activations - buffers, 0.0)
    parts = {
        "weights": weights,
        "activations": activations,
        "buffers": buffers,
        "reserve": reserve,
        "kv": kv * sequences,
        "state": state * sequences,
    }
    backing = chip.backing.capacity if d.options.kv == BACKING and chip.backing is not None else None
    if backing is not None:
        parts["kv"] = 0.0 * parts["kv"]
    return MemoryPlan(parts, capacity, kv, sequences, state, backing)


def _cut(d: Deployment) -> tuple[Split, Array]:
    """The split whose fullest stage counts, and the stages that share it evenly.

    The compiler of an LPU cuts anywhere, also inside a layer, so that every stage holds the same.
    """
    one = np.ones_like(d.split.pipeline)
    return (replace(d.split, pipeline=one), d.split.pipeline) if d.chip.kind == "lpu" else (d.split, one)


def kv_bytes(model: Model, precision: Precision, split: Split, context: Array) -> Array:
    """KV-cache bytes of one sequence on one chip of the fullest pipeline stage, index keys included.

    Windowed and chunked layers hold no more than their window or chunk, sparse ones every token; context ranks hold a
    share of the tokens each.
    """
    sizes = {name: _cached(block.attention, precision, split, context) for name, block in model.blocks.items()}
    return largest(model.sequence, sizes, split.pipeline)


def _cached(mixer: Mixer | None, precision: Precision, split: Split, context: Array) -> Array:
    """What a layer caches of one sequence on one chip."""
    if mixer is None or isinstance(mixer, Recurrent):
        return array(0.0)
    elements = array(float(mixer.kv_elements))
    if isinstance(mixer, Attention):
        elements = elements / np.minimum(split.tensor, mixer.kv_heads)
    size = elements * mixer.stored(precision.kv).bytes * np.minimum(context, mixer.held) / split.context
    if isinstance(mixer, LatentAttention) and mixer.index:
        size = size + mixer.index.bytes * context / split.context
    return size


def state_bytes(model: Model, split: Split) -> Array:
    """Bytes of recurrent and convolution state of one sequence on one chip of the stage that holds most.

    Its length does not matter. Heads divide among tensor ranks; what groups share is replicated where ranks outnumber
    them.
    """
    sizes = {}
    for name, block in model.blocks.items():
        mixer = block.attention
        if isinstance(mixer, Recurrent):
            own, shared = mixer.conv_bytes
            sizes[name] = (mixer.state_bytes + own) / split.tensor + shared / np.minimum(split.tensor, mixer.groups)
    return largest(model.sequence, sizes, split.pipeline) if sizes else array(0.0)


def longest_context(model: Model, precision: Precision, split: Split, room: float) -> int:
    """The longest context of which one sequence's KV cache and state fit in `room` bytes of a rank (0: none does).

    Where nothing grows with the context, the longest the model was made for.
    """
    room -= float(state_bytes(model, split).max())
    if not model.clips:
        return model.max_context if room >= 0 else 0
    low, high = 0, 1
    while high < 1 << 40 and float(kv_bytes(model, precision, split, array(high)).max()) <= room:
        low, high = high, high * 2
    while high - low > 1:
        middle = (low + high) // 2
        fits = float(kv_bytes(model, precision, split, array(middle)).max()) <= room
        low, high = (middle, high) if fits else (low, middle)
    return low


def weight_bytes(
    model: Model,
    precision: Precision,
    split: Split,
    copies: float = 1.0,
    roles: Collection[str] = ROLES,
    pinned: bool = False,
) -> Array:
    """Bytes of weights on one chip of the fullest pipeline stage, scales and padding included.

    `copies` is the number of copies of an expert, redundant ones included. Only operators of `roles` count; chips that
    are `pinned` hold one layer each.
    """
    graph = lower(model, decode(1, 1, model.clips), precision)
    sizes = _block_bytes(graph, precision, split, copies, roles)
    if pinned:
        return np.asarray(functools.reduce(np.maximum, sizes.values()))
    return largest(graph.sequence, sizes, split.pipeline)


def module_bytes(model: Model, precision: Precision, split: Split) -> tuple[Array, Array]:
    """Bytes of the prediction modules (MTP) on one chip: weights, and the KV cache of a token."""
    graph = lower_mtp(model, decode(1, 1, model.clips), precision)
    sizes = _block_bytes(graph, precision, split)
    weights = sum((sizes[name] for name, _ in graph.sequence if name != "head"), array(0.0))
    cached = [_cached(model.blocks[name].attention, precision, split, array(1.0)) for name in model.mtp]
    return weights, model.mtp_layers * sum(cached, array(0.0))


def _block_bytes(
    graph: OpGraph, precision: Precision, split: Split, copies: float = 1.0, roles: Collection[str] = ROLES
) -> dict[str, Array]:
    """Bytes of weights of every block on one chip."""
    sizes: dict[str, Array] = {}
    for block in graph.linked:
        sizes[block] = array(0.0)
        for operator in graph.operators(block):
            if operator.role not in roles:
                continue
            size = sum(number * precision.of(tensor).bytes for tensor, number in operator.parameters.items())
            if size:
                size *= copies if operator.kind == "experts" else 1.0
                sizes[block] = sizes[block] + size * _share(operator, split)
    return sizes


def _experts(model: Model) -> int:
    """Routed experts of a layer; 0 where there are none."""
    return max((block.ffn.experts for block in model.blocks.values() if isinstance(block.ffn, Moe)), default=0)


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


def widest_of(model: Model) -> float:
    """Elements a token of the widest intermediate tensor: twice a feed-forward width, or a mixer's channels."""
    widest = 0.0
    for block in model.blocks.values():
        if block.ffn is not None:
            widest = max(widest, 2.0 * getattr(block.ffn, "top_k", 1) * block.ffn.width)
        if isinstance(block.attention, Recurrent):
            widest = max(widest, 2.0 * block.attention.inner)
    return widest


def _activations(model: Model, split: Split, rows: int) -> Array:
    """Transient tensors of so many tokens: residual stream and the widest projection, two bytes an element."""
    return rows * 2.0 * (4.0 * model.hidden + widest_of(model) / split.tensor)
