"""Lowering: a model, a step and a precision become a dataflow graph of operators.

Lowering knows no runtime and no split: it says what has to be computed. Fusion, quantisers and collectives are
placed later.
"""

import networkx as nx

from archsim.arrays import Array, array
from archsim.workload.model import Attention, Block, LatentAttention, Mlp, Model, Moe, Precision
from archsim.workload.operators import Operator, OpGraph
from archsim.workload.step import Step

Linked = list[tuple[Operator, tuple[str, ...]]]

WIDE = 2.0  # bytes of an activation between kernels


def lower(model: Model, step: Step, precision: Precision) -> OpGraph:
    """The dataflow graph of one forward pass over `step`.

    Raises KeyError when the step lacks sums for one of the model's clips (see `Model.clips`).
    """
    blocks = {"embedding": _graph(_embedding(model, step))}
    layers = _Layers(model, step, precision)
    for name, block in model.blocks.items():
        blocks[name] = _graph(layers.layer(block))
    blocks["head"] = _graph(_head(model, step))
    return OpGraph(model, step, precision, blocks, (("embedding", 1), *model.sequence, ("head", 1)))


def _graph(operators: Linked) -> "nx.DiGraph[str]":
    graph: nx.DiGraph[str] = nx.DiGraph()
    for operator, after in operators:
        graph.add_node(operator.name, operator=operator)
        graph.add_edges_from((name, operator.name) for name in after)
    return graph


def _chain(operators: list[Operator], after: tuple[str, ...] = ()) -> Linked:
    linked: Linked = []
    for operator in operators:
        linked.append((operator, after))
        after = (operator.name,)
    return linked


def _elementwise(name: str, role: str, tokens: Array, per_token: float, divided: bool = False, norm: float = 0.0) -> Operator:
    """A small kernel that moves `per_token` bytes a token."""
    rules = {"bytes": "tensor"} if divided else {}
    return Operator(
        name,
        "elementwise",
        role,
        {"tokens": tokens, "bytes": array(per_token)},
        rules,
        "weights",
        {"weights": norm} if norm else {},
    )


def _norm(name: str, tokens: Array, hidden: int) -> Operator:
    """Residual add and norm: both read, both written."""
    return _elementwise(name, "norm", tokens, 4 * WIDE * hidden, norm=hidden)


def _gemm(name: str, role: str, m: Array, n: float, k: float, tensor: str, rule: str = "", bias: bool = False) -> Operator:
    """A projection with its weights; `rule` is `columns`, `rows` or nothing (whole on every rank)."""
    divided = {"columns": {"n": "tensor"}, "rows": {"k": "tensor"}}.get(rule, {})
    count = {tensor: n * k}
    if bias:
        count["weights"] = count.get("weights", 0.0) + n
    return Operator(name, "gemm", role, {"m": m, "n": array(n), "k": array(k)}, divided, tensor, count, rule == "rows")


def _embedding(model: Model, step: Step) -> Linked:
    lookup = _elementwise("embedding", "embedding", step.tokens, 2 * WIDE * model.hidden)
    dims = dict(lookup.dims) | {"vocab": array(model.vocab)}
    parameters = {"embedding": float(model.vocab * model.hidden)}
    return [(Operator("embedding", "elementwise", "embedding", dims, {"vocab": "vocabulary"}, "embedding", parameters), ())]


def _head(model: Model, step: Step) -> Linked:
    norm = _norm("final_norm", step.sampled, model.hidden)
    dims = {"m": step.sampled, "n": array(model.vocab), "k": array(model.hidden)}
    parameters = {} if model.tied else {"head": float(model.vocab * model.hidden)}
    head = Operator("head", "gemm", "head", dims, {"n": "vocabulary"}, "head", parameters)
    sampling = _elementwise("sampling", "head", step.sampled, 2 * 4.0 * model.vocab)
    return _chain([norm, head, sampling])


class _Layers:
    """Layers of a step; attention and feed-forward parts that blocks have in common are lowered once."""

    def __init__(self, model: Model, step: Step, precision: Precision) -> None:
        self.model, self.step, self.precision = model, step, precision
        self.norms = [_norm(name, step.tokens, model.hidden) for name in ("attention_norm", "ffn_norm")]
        self.parts: dict[Attention | LatentAttention | Mlp | Moe, Linked] = {}

    def layer(self, block: Block) -> Linked:
        """Norm, attention, norm, feed-forward."""
        attention, ffn = self._part(block.attention), self._part(block.ffn)
        last = attention[-1][0].name
        start: Linked = [(self.norms[0], ())]
        return [*start, *attention, (self.norms[1], (last,)), *ffn]

    def _part(self, part: Attention | LatentAttention | Mlp | Moe) -> Linked:
        if part not in self.parts:
            self.parts[part] = self._lowered(part)
        return self.parts[part]

    def _lowered(self, part: Attention | LatentAttention | Mlp | Moe) -> Linked:
        if isinstance(part, LatentAttention):
            return _latent(self.model, part, self.step, self.precision)
        if isinstance(part, Attention):
            return _grouped(self.model, part, self.step, self.precision)
        return _moe(self.model, part, self.step) if isinstance(part, Moe) else _mlp(self.model, part, self.step)


def _grouped(model: Model, a: Attention, step: Step, precision: Precision) -> Linked:
    queries, keys = a.heads * a.width, 2 * a.kv_heads * a.width
    bias = {"weights": float(queries + keys)} if a.bias else {}
    dims = {"m": step.tokens, "n": array(queries), "n_kv": array(keys), "k": array(model.hidden), "kv_heads": array(a.kv_heads)}
    parameters = _merge({"attention": float((queries + keys) * model.hidden)}, bias)
    rules = {"n": "tensor", "n_kv": "kv_heads"}
    projections = [Operator("qkv", "gemm", "attention", dims, rules, "attention", parameters)]
    if a.norm:
        projections.append(_elementwise("qk_norm", "attention", step.tokens, 2 * WIDE * (queries + keys / 2), True, 2 * a.width))
    rope = 2 * WIDE * (queries + keys / 2) + keys * precision.kv.bytes + WIDE * keys / 2
    projections.append(_elementwise("rope_kv", "attention", step.tokens, rope, True, a.heads if a.sinks else 0))
    output = _gemm("o", "attention", step.tokens, model.hidden, queries, "attention", "rows", a.output_bias)
    return _join(projections, _cores(a, step), output)


def _cores(a: Attention, step: Step) -> list[Operator]:
    """Attention over the cache for decoding sequences, and over the prompt for prefilling ones."""
    sizes = {"heads": array(a.heads), "kv_heads": array(a.kv_heads), "width": array(a.width), "value": array(a.width)}
    rules = {"heads": "tensor", "kv_heads": "kv_heads"}
    cores = []
    if step.decodes:
        dims = {"sequences": step.sequences, "queries": step.queries, "tokens": step.context[a.window], **sizes}
        cores.append(Operator("attention", "generation_attention", "attention", dims, rules))
    if step.prefills:
        cores.append(Operator("prefill_attention", "context_attention", "attention", _prompt(step, a.window) | sizes, rules))
    return cores


def _prompt(step: Step, window: float) -> dict[str, Array]:
    return {
        "requests": step.prefill_requests,
        "tokens": step.prefill_tokens,
        "pairs": step.prefill_pairs[window],
        "prefix": step.prefill_prefix,
        "window": array(min(window, 1e12)),
    }


def _join(before: list[Operator], cores: list[Operator], after: Operator) -> Linked:
    """`before` in a row, then every core beside the others, then `after`."""
    last = (before[-1].name,)
    linked = _chain(before, ("attention_norm",))
    linked += [(core, last) for core in cores]
    return [*linked, (after, tuple(core.name for core in cores))]


def _latent(model: Model, a: LatentAttention, step: Step, precision: Precision) -> Linked:
    n = step.tokens
    head = a.nope + a.rope
    down = a.query_rank + a.latent + a.rope
    before = [
        _gemm("qkv_a", "attention", n, down, model.hidden, "attention"),
        _elementwise("q_norm", "attention", n, 2 * WIDE * a.query_rank, norm=a.query_rank),
        _elementwise("kv_norm", "attention", n, 2 * WIDE * a.latent, norm=a.latent),
        _gemm("q_b", "attention", n, a.heads * head, a.query_rank, "attention", "columns"),
        _elementwise("rope_kv", "attention", n, 2 * WIDE * a.heads * a.rope + WIDE * a.latent + a.kv_elements * precision.kv.bytes, True),
        _elementwise("q_concat", "attention", n, 2 * WIDE * a.heads * (a.latent + a.rope), True),
    ]
    linked = _chain(before, ("attention_norm",))
    ends = []
    for path in (_absorbed(a, step) if step.decodes else [], _expanded(a, step) if step.prefills else []):
        if path:
            linked += _chain(path, (before[-1].name,))
            ends.append(path[-1].name)
    gather = _elementwise("attention_copy", "attention", n, 2 * WIDE * a.heads * a.value, True)
    output = _gemm("o", "attention", n, model.hidden, a.heads * a.value, "attention", "rows")
    return _count_kv_b([*linked, (gather, tuple(ends)), (output, (gather.name,))], a)


def _absorbed(a: LatentAttention, step: Step) -> list[Operator]:
    """Decode: queries are carried into the latent space, so that the cache is read as it is."""
    m = step.sequences * step.queries
    heads = {"heads": array(a.heads), "width": array(a.latent + a.rope), "value": array(a.latent)}
    dims = {"sequences": step.sequences, "queries": step.queries, "tokens": step.context[a.window], **heads}
    return [
        _per_head("absorb_k", m, a.latent, a.nope, a.heads),
        Operator("attention", "mla_generation", "attention", dims, {"heads": "tensor"}),
        _per_head("absorb_v", m, a.value, a.latent, a.heads),
    ]


def _expanded(a: LatentAttention, step: Step) -> list[Operator]:
    """Prefill: keys and values are expanded for every head, also those of a cached prefix."""
    expand = _gemm("kv_b", "attention", step.prefill_tokens + step.prefill_prefix, a.heads * (a.nope + a.value), a.latent, "attention", "columns")
    sizes = {"heads": array(a.heads), "kv_heads": array(a.heads), "width": array(a.nope + a.rope), "value": array(a.value)}
    core = Operator("prefill_attention", "mla_context", "attention", _prompt(step, a.window) | sizes, {"heads": "tensor", "kv_heads": "tensor"})
    return [expand, core]


def _per_head(name: str, m: Array, n: int, k: int, heads: int) -> Operator:
    dims = {"m": m, "n": array(n), "k": array(k), "batch": array(heads)}
    return Operator(name, "gemm", "attention", dims, {"batch": "tensor"})


def _count_kv_b(linked: Linked, a: LatentAttention) -> Linked:
    """Counts the matrix that absorbed and expanded attention share once, on the first operator that reads it."""
    count = {"attention": float(a.heads * (a.nope + a.value) * a.latent)}
    seen = False
    result = []
    for operator, after in linked:
        if operator.name in ("absorb_k", "absorb_v", "kv_b"):
            operator = Operator(
                operator.name, operator.kind, operator.role, operator.dims, operator.divided, operator.tensor, {} if seen else count
            )
            seen = True
        result.append((operator, after))
    return result


def _mlp(model: Model, f: Mlp, step: Step, role: str = "ffn", prefix: str = "", width: int = 0) -> Linked:
    width = width or f.width
    up = (2 if f.gated else 1) * width
    return _chain(
        [
            _gemm(f"{prefix}up", role, step.tokens, up, model.hidden, "weights", "columns", f.bias),
            _elementwise(f"{prefix}activation", role, step.tokens, WIDE * (up + width), True),
            _gemm(f"{prefix}down", role, step.tokens, model.hidden, width, "weights", "rows", f.bias),
        ],
        ("ffn_norm",),
    )


def _moe(model: Model, f: Moe, step: Step) -> Linked:
    n, h = step.tokens, model.hidden
    matrices = 3 if f.gated else 2
    dims = {"tokens": n, "experts": array(f.experts), "top_k": array(f.top_k), "hidden": array(h), "width": array(f.width), "matrices": array(matrices)}
    bias = float(f.experts * ((matrices - 1) * f.width + h)) if f.bias else 0.0
    parameters = _merge({"experts": float(f.experts * matrices * h * f.width)}, {"weights": bias} if bias else {})
    router = _gemm("router", "router", n, f.experts, h, "router")
    if f.router_bias:
        router = Operator(router.name, router.kind, router.role, router.dims, {}, "router", {"router": float(f.experts * (h + 1))})
    routed = [
        router,
        _elementwise("top_k", "router", n, 2 * 4.0 * f.experts),
        _elementwise("permute", "router", n, 2 * 4.0 * f.top_k),
        Operator("experts", "experts", "experts", dims, {"experts": "expert", "width": "expert_tensor"}, "experts", parameters),
        _elementwise("combine", "experts", n, WIDE * h * 2),
    ]
    linked = _chain(routed, ("ffn_norm",))
    if not f.shared:
        return linked
    shared = _mlp(model, Mlp(f.shared, f.gated), step, "shared", "shared_")
    add = _elementwise("shared_add", "shared", n, 3 * WIDE * h)
    return [*linked, *shared, (add, ("combine", "shared_down"))]


def _merge(left: dict[str, float], right: dict[str, float]) -> dict[str, float]:
    return left | {name: left.get(name, 0.0) + value for name, value in right.items()}
