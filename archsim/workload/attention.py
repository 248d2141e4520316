"""Lowering of attention: grouped-query, windowed, chunked, latent, and sparse with an indexer."""

from archsim.arrays import Array, array
from archsim.workload.build import WIDE, Linked, chain, elementwise, gemm, shared_columns
from archsim.workload.model import Attention, Indexer, LatentAttention, Model, Precision
from archsim.workload.operators import Operator
from archsim.workload.parts import FULL
from archsim.workload.step import Step

FIRST = ("attention_norm",)


def grouped(model: Model, a: Attention, step: Step, precision: Precision) -> Linked:
    """Projections, norm of queries and keys, rotation with the write of the cache, attention, gate, output."""
    n, queries = step.tokens, a.heads * a.width
    keys, values = a.kv_heads * a.width, a.kv_heads * a.value_width
    projected = keys if a.shared else keys + values
    wide = (2 if a.gated else 1) * queries
    before = _grouped_projections(model, a, n, wide, projected)
    if a.norm:
        name = "whole_norm" if a.norm_kind == "whole" else "qk_norm"
        before.append(elementwise(name, "attention", n, 2 * WIDE * (queries + keys), True, a.norm_parameters))
    rotated = 2 * WIDE * (queries + keys) + (keys + values) * precision.kv.bytes + WIDE * values
    before.append(elementwise("rope_kv", "attention", n, rotated, True, a.heads if a.sinks else 0))
    width = a.heads * a.value_width
    after = [elementwise("output_gate", "attention", n, 3 * WIDE * width, True)] if a.gated else []
    after.append(gemm("o", "attention", n, model.hidden, width, "attention", "rows", a.output_bias))
    return joined(before, _cores(a, step), after)


def _grouped_projections(model: Model, a: Attention, n: Array, queries: float, projected: float) -> list[Operator]:
    """Queries, keys and values in one product; or queries in two, the first of which is whole on every tensor rank."""
    if not a.query_rank:
        bias = queries + projected if a.bias else 0
        return [shared_columns("qkv", n, queries, projected, a.kv_heads, model.hidden, bias)]
    return [
        gemm("qkv_a", "attention", n, a.query_rank + projected, model.hidden, "attention"),
        elementwise("q_norm", "attention", n, 2 * WIDE * a.query_rank, norm=a.query_rank),
        gemm("q_b", "attention", n, queries, a.query_rank, "attention", "columns"),
    ]


def joined(before: list[Operator], cores: list[Operator], after: list[Operator]) -> Linked:
    """`before` in a row, then every core beside the others, then `after`."""
    last = (before[-1].name,)
    linked = chain(before, FIRST)
    linked += [(core, last) for core in cores]
    return [*linked, *chain(after, tuple(core.name for core in cores))]


def _cores(a: Attention, step: Step) -> list[Operator]:
    """Attention over the cache for decoding sequences, and over the prompt for prefilling ones."""
    sizes = {
        "heads": array(a.heads),
        "kv_heads": array(a.kv_heads),
        "width": array(a.width),
        "value": array(a.value_width),
    }
    rules = {"heads": "tensor", "kv_heads": "kv_heads"}
    cores = []
    if step.decodes:
        dims = _decoded(step, a.window) | sizes
        cores.append(Operator("attention", "generation_attention", "attention", dims, rules))
    if step.prefills:
        dims = _prompt(step, a.window) | sizes
        cores.append(Operator("prefill_attention", "context_attention", "attention", dims, rules))
    return cores


def _decoded(step: Step, window: float) -> dict[str, Array]:
    return {
        "sequences": step.sequences,
        "queries": step.queries,
        "tokens": step.context[window],
        "length": step.length(window),
    }


def _prompt(step: Step, window: float) -> dict[str, Array]:
    return {
        "requests": step.prefill_requests,
        "tokens": step.prefill_tokens,
        "pairs": step.prefill_pairs[window],
        "prefix": step.prefill_prefix,
        "window": array(min(window, 1e12)),
    }


def latent(model: Model, a: LatentAttention, step: Step, precision: Precision) -> Linked:
    """Latents down and up, rotation with the write of the cache, index, attention, output."""
    n = step.tokens
    before = [*_projections(model, a, n), *_rotation(a, n, precision)]
    if a.index:
        before += _index(model, a, a.index, step)
    linked = chain(before, FIRST)
    ends = []
    for path in (_absorbed(a, step, precision) if step.decodes else [], _prefilled(a, step) if step.prefills else []):
        if path:
            linked += chain(path, (before[-1].name,))
            ends.append(path[-1].name)
    gather = elementwise("attention_copy", "attention", n, 2 * WIDE * a.heads * a.value, True)
    output = gemm("o", "attention", n, model.hidden, a.heads * a.value, "attention", "rows")
    return _count_kv_b([*linked, (gather, tuple(ends)), (output, (gather.name,))], a)


def _projections(model: Model, a: LatentAttention, n: Array) -> list[Operator]:
    """Queries and the latent; the way down is whole on every tensor rank."""
    head = a.nope + a.rope
    kv_norm = elementwise("kv_norm", "attention", n, 2 * WIDE * a.latent, norm=a.latent)
    if not a.query_rank:
        queries = gemm("q", "attention", n, a.heads * head, model.hidden, "attention", "columns")
        return [queries, gemm("kv_a", "attention", n, a.latent + a.rope, model.hidden, "attention"), kv_norm]
    down = a.query_rank + a.latent + a.rope
    return [
        gemm("qkv_a", "attention", n, down, model.hidden, "attention"),
        elementwise("q_norm", "attention", n, 2 * WIDE * a.query_rank, norm=a.query_rank),
        kv_norm,
        gemm("q_b", "attention", n, a.heads * head, a.query_rank, "attention", "columns"),
    ]


def _rotation(a: LatentAttention, n: Array, precision: Precision) -> list[Operator]:
    cached = a.kv_elements * a.stored(precision.kv).bytes
    written = 2 * WIDE * a.heads * a.rope + WIDE * a.latent + cached
    return [
        elementwise("rope_kv", "attention", n, written, True),
        elementwise("q_concat", "attention", n, 2 * WIDE * a.heads * (a.latent + a.rope), True),
    ]


def _absorbed(a: LatentAttention, step: Step, precision: Precision) -> list[Operator]:
    """Decode: queries are carried into the latent space, so that the cache is read as it is."""
    m = step.sequences * step.queries
    heads = {"heads": array(a.heads), "width": array(a.latent + a.rope), "value": array(a.latent)}
    dims = _decoded(step, a.window) | heads
    stored = a.stored(precision.kv)
    packed = None if stored == precision.kv else stored
    return [
        _per_head("absorb_k", m, a.latent, a.nope, a.heads),
        Operator("attention", "mla_generation", "attention", dims, {"heads": "tensor"}, store=packed),
        _per_head("absorb_v", m, a.value, a.latent, a.heads),
    ]


def _prefilled(a: LatentAttention, step: Step) -> list[Operator]:
    """Prefill: keys and values are expanded for every head, also those of a cached prefix.

    Sparse attention stays absorbed: tokens chosen for each query apart cannot share expanded keys, so its kernels read
    the latent itself, with its 3.4 times more FLOPs a pair.
    """
    n, rules = step.prefill_tokens, {"heads": "tensor"}
    if a.sparse:
        absorbed = {"kv_heads": array(1.0), "width": array(a.latent + a.rope), "value": array(a.latent)}
        dims = _prompt(step, a.window) | {"heads": array(a.heads)} | absorbed
        return [
            _per_head("prefill_absorb_k", n, a.latent, a.nope, a.heads),
            Operator("prefill_attention", "mla_context", "attention", dims, rules),
            _per_head("prefill_absorb_v", n, a.value, a.latent, a.heads),
        ]
    columns = a.heads * (a.nope + a.value)
    expand = gemm("kv_b", "attention", n + step.prefill_prefix, columns, a.latent, "attention", "columns")
    sizes = {"heads": array(a.heads), "kv_heads": array(a.heads)}
    dims = _prompt(step, a.window) | sizes | {"width": array(a.nope + a.rope), "value": array(a.value)}
    rules = {"heads": "tensor", "kv_heads": "tensor"}
    return [expand, Operator("prefill_attention", "mla_context", "attention", dims, rules)]


def _per_head(name: str, m: Array, n: int, k: int, heads: int) -> Operator:
    dims = {"m": m, "n": array(n), "k": array(k), "batch": array(heads)}
    return Operator(name, "gemm", "attention", dims, {"batch": "tensor"})


def _count_kv_b(linked: Linked, a: LatentAttention) -> Linked:
    """Counts the matrix that absorbed and expanded attention share once, on the first operator that reads it."""
    count = {"attention": float(a.heads * (a.nope + a.value) * a.latent)}
    seen = False
    result = []
    for o, after in linked:
        if o.name.removeprefix("prefill_") in ("absorb_k", "absorb_v", "kv_b"):
            o = Operator(o.name, o.kind, o.role, o.dims, o.divided, o.tensor, {} if seen else count)
            seen = True
        result.append((o, after))
    return result


def _index(model: Model, a: LatentAttention, index: Indexer, step: Step) -> list[Operator]:
    """The indexer: its projections and small kernels, and the scores with the choice of the best.

    Everything is whole on every tensor rank, as engines keep it: index heads share one key and one choice.
    """
    n, queries = step.tokens, index.heads * index.width
    source = a.query_rank or model.hidden
    small = {
        "index_norm": 2 * WIDE * index.width,
        "index_rope": 2 * WIDE * (queries + index.width),
        "index_rotate": 2 * WIDE * queries,  # a Hadamard transform, so that fp8 loses less
        "index_quantize": (WIDE + 1.0) * queries,
        "index_write": WIDE * index.width + index.bytes,
        "index_weights": 2 * 4.0 * index.heads,
    }
    kernels = [
        gemm("index_q", "attention", n, queries, source, "attention"),
        gemm("index_k", "attention", n, index.width + index.heads, model.hidden, "attention"),
        *(elementwise(name, "attention", n, size) for name, size in small.items()),
    ]
    norm = elementwise("index_norm", "attention", n, small["index_norm"], norm=2 * index.width)
    kernels = [norm if kernel.name == "index_norm" else kernel for kernel in kernels]
    return [*kernels, *_scores(index, step)]


def _scores(index: Indexer, step: Step) -> list[Operator]:
    """Every query against every index key before it: over the cache in decode, over the prompt in prefill."""
    heads = {"heads": array(index.heads), "width": array(index.width)}
    found = []
    if step.decodes:
        tokens, rows = step.context[FULL], step.sequences * step.queries
        dims = {"rows": rows, "pairs": tokens * step.queries, "keys": tokens, **heads}
        found.append(Operator("indexer", "indexer", "attention", dims, store=index.stored))
    if step.prefills:
        keys = step.prefill_tokens + step.prefill_prefix
        dims = {"rows": step.prefill_tokens, "pairs": step.prefill_pairs[FULL], "keys": keys, **heads}
        found.append(Operator("prefill_indexer", "indexer", "attention", dims, store=index.stored))
    return found
