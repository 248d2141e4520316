"""Hugging Face configurations: from the `architecture` of a workload file to a Model, layer by layer."""

from collections.abc import Mapping
from itertools import groupby

from archsim.workload.architecture import Architecture
from archsim.workload.families import Family, family_of
from archsim.workload.model import (
    FULL,
    Attention,
    Block,
    Chunk,
    DeltaNet,
    Indexer,
    LatentAttention,
    Mamba1,
    Mamba2,
    Mixer,
    Mlp,
    Model,
    Moe,
    Recurrent,
)

STATES = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}
MULTIPLE = 256  # to which Nemotron NAS rounds up the widths that it states as multiples of the hidden width


def model_of(name: str, a: Architecture, declared: Mapping[str, int], native: Mapping[str, str]) -> Model:
    """The model a configuration describes. Its shapes must have passed `architecture.shape_faults`."""
    family = family_of(a.model_type)
    layers = [_block(a, family, layer) for layer in range(a.num_hidden_layers)]
    names = _names(layers)
    runs = [(names[block], len(list(run))) for block, run in groupby(layers)]
    return Model(
        name=name,
        hidden=a.hidden_size,
        vocab=a.vocab_size,
        tied=family.tied if a.tie_word_embeddings is None else a.tie_word_embeddings,
        blocks={names[block]: block for block in names},
        sequence=tuple(runs),
        max_context=a.max_position_embeddings,
        mtp_layers=a.num_nextn_predict_layers or a.mtp_num_hidden_layers or a.num_mtp_modules,
        declared=declared,
        native=native,
        positions=0 if family.positions is None else a.max_position_embeddings + family.positions,
        norm_bias=family.layer_norm,
        mtp=_prediction(a, family, layers, names),
    )


def _names(layers: list[Block]) -> dict[Block, str]:
    """A name for every kind of block, in order of first appearance."""
    names: dict[Block, str] = {}
    for block in dict.fromkeys(layers):
        name = _name(block)
        same = sum(1 for other in names.values() if other == name or other.rpartition("_")[0] == name)
        names[block] = f"{name}_{same + 1}" if same else name
    return names


def _name(block: Block) -> str:
    mixer, ffn = block.attention, block.ffn
    kind = ""
    if isinstance(mixer, DeltaNet):
        kind = "delta"
    elif isinstance(mixer, Recurrent):
        kind = "mamba"
    elif mixer is not None and mixer.window != FULL:
        kind = "chunked" if isinstance(mixer.window, Chunk) else "windowed"
    if isinstance(mixer, LatentAttention) and mixer.sparse:
        kind = "sparse" if mixer.index else "sparse_shared"
    if ffn is None:
        return kind or "attention"
    network = "moe" if isinstance(ffn, Moe) else "dense"
    if mixer is None:
        return f"{network}_alone"
    return f"{kind}_{network}" if kind else network


def _prediction(a: Architecture, family: Family, layers: list[Block], names: dict[Block, str]) -> tuple[str, ...]:
    """The blocks of one prediction module: as its pattern says, else one like the last with attention."""
    if a.mtp_pattern:
        wanted = [_alone(a, family, letter) for letter in a.mtp_pattern]
        return tuple(names[block] for block in wanted if block in names)
    growing = [block for block in layers if block.attention and not isinstance(block.attention, Recurrent)]
    return (names[growing[-1]],) if growing else ()


def _block(a: Architecture, family: Family, layer: int) -> Block:
    if a.pattern is not None:
        return _alone(a, family, a.pattern[layer])
    mixer: Mixer | None = _mixer(a, family, layer)
    ffn: Mlp | Moe | None = _moe(a, family, layer) if _routed(a, layer) else _mlp(a, family, layer)
    if a.block_configs is not None:
        found = a.block_configs[layer]
        mixer = None if found.attention.no_op else mixer
        ffn = None if found.ffn.no_op else ffn
    return Block(mixer, ffn, family.post_norms)


def _alone(a: Architecture, family: Family, letter: str) -> Block:
    """A layer with one part and one norm (Nemotron-H)."""
    if letter == "M":
        return Block(_mamba2(a), None)
    if letter == "*":
        return Block(_grouped(a, family, FULL, a.num_attention_heads, _kv_heads(a, 0), a.width), None)
    return Block(None, _moe(a, family, 0) if letter == "E" else _mlp(a, family, 0))


def _mixer(a: Architecture, family: Family, layer: int) -> Mixer:
    if a.kv_lora_rank:
        return _latent(a, layer)
    if _linear(a, layer):
        return _delta(a)
    if a.attn_layer_period and layer % a.attn_layer_period != a.attn_layer_offset:
        return _mamba1(a)
    window = _window(a, family, layer)
    if window != FULL and a.hybrid_layer_pattern is not None:
        return _windowed(a, family, window)
    heads, kv_heads, width = a.num_attention_heads, _kv_heads(a, layer), a.width
    if window == FULL and a.global_head_dim:
        kv_heads, width = a.num_global_key_value_heads or kv_heads, a.global_head_dim
    return _grouped(a, family, window, heads, kv_heads, width)


def _kv_heads(a: Architecture, layer: int) -> int:
    if a.block_configs is not None:
        return a.num_attention_heads // (a.block_configs[layer].attention.n_heads_in_group or 1)
    given = a.num_key_value_heads
    return (given[layer] if isinstance(given, tuple) else given) or a.num_attention_heads


def _linear(a: Architecture, layer: int) -> bool:
    if a.layer_types is not None:
        return a.layer_types[layer] == "linear_attention"
    return bool(a.full_attention_interval and (layer + 1) % a.full_attention_interval)


def _window(a: Architecture, family: Family, layer: int) -> float:
    """What a layer's attention sees: a window, a chunk, or everything."""
    if a.layer_types is not None:
        kind = a.layer_types[layer]
        if kind == "chunked_attention":
            return Chunk(a.attention_chunk_size or FULL)
        return float(a.sliding_window or FULL) if kind == "sliding_attention" else FULL
    if a.sliding_window is None and a.attention_chunk_size:
        roped = a.no_rope_layers[layer] if a.no_rope_layers else (layer + 1) % a.no_rope_layer_interval
        return Chunk(a.attention_chunk_size) if roped else FULL
    if a.sliding_window is None or a.use_sliding_window is False:
        return FULL
    pattern = a.sliding_window_pattern or family.pattern
    if a.hybrid_layer_pattern is not None:
        return float(a.sliding_window) if a.hybrid_layer_pattern[layer] else FULL
    return FULL if pattern and (layer + 1) % pattern == 0 else float(a.sliding_window)


def _grouped(a: Architecture, family: Family, window: float, heads: int, kv_heads: int, width: int) -> Attention:
    kind = {"per_layer": "whole", "per_head": "head"}.get(a.qk_norm_type or "", family.norm or "head")
    norm = bool(family.norm) if a.use_qk_norm is None else a.use_qk_norm
    if family.norm == "bare":  # Llama 4 normalises where it rotates, and only if it says so
        norm = bool(a.use_qk_norm) and window != FULL
    full_sinks = a.add_full_attention_sink_bias and window == FULL
    return Attention(
        heads=heads,
        kv_heads=kv_heads,
        width=width,
        window=window,
        bias=_bias(a, family),
        output_bias=family.output_bias and (a.attention_bias or bool(family.qkv_bias)),
        norm=norm,
        sinks=family.sinks or full_sinks,
        norm_kind=kind if norm else "head",
        gated=family.gate if a.attn_output_gate is None else a.attn_output_gate,
        value=a.v_head_dim if a.v_head_dim and a.v_head_dim != width else 0,
        shared=a.attention_k_eq_v and window == FULL,
        query_rank=a.share_q_dim or 0,
    )


def _bias(a: Architecture, family: Family) -> bool:
    given = a.attention_bias if a.qkv_bias is None else a.qkv_bias
    return given if family.qkv_bias is None else family.qkv_bias


def _windowed(a: Architecture, family: Family, window: float) -> Attention:
    """Windowed layers with heads of their own (MiMo-V2)."""
    heads = a.swa_num_attention_heads or a.num_attention_heads
    width, value = a.swa_head_dim or a.width, a.swa_v_head_dim or a.v_head_dim
    kv_heads = a.swa_num_key_value_heads or _kv_heads(a, 0)
    bias = _bias(a, family)
    sinks, kept = a.add_swa_attention_sink_bias, value if value and value != width else 0
    return Attention(heads, kv_heads, width, window, bias, bias and family.output_bias, sinks=sinks, value=kept)


def _latent(a: Architecture, layer: int) -> LatentAttention:
    index = None
    if a.index_topk and (a.indexer_types is None or a.indexer_types[layer] == "full"):
        index = Indexer(a.index_n_heads or 0, a.index_head_dim or 0)
    return LatentAttention(
        heads=a.num_attention_heads,
        query_rank=a.q_lora_rank or 0,
        latent=a.kv_lora_rank or 0,
        rope=a.qk_rope_head_dim or 0,
        nope=a.qk_nope_head_dim or 0,
        value=a.v_head_dim or 0,
        window=float(a.index_topk) if a.index_topk else FULL,
        index=index,
    )


def _delta(a: Architecture) -> DeltaNet:
    return DeltaNet(
        heads=a.linear_num_value_heads or 0,
        groups=a.linear_num_key_heads or 0,
        kernel=a.linear_conv_kernel_dim or 1,
        state=STATES[a.mamba_ssm_dtype],
        key=a.linear_key_head_dim or 0,
        value=a.linear_value_head_dim or 0,
    )


def _mamba2(a: Architecture) -> Mamba2:
    return Mamba2(
        heads=a.mamba_num_heads or 0,
        groups=a.n_groups,
        kernel=a.conv_kernel,
        state=STATES[a.mamba_ssm_cache_dtype],
        width=a.mamba_head_dim or 0,
        size=a.ssm_state_size or 0,
        chunk=a.chunk_size,
        bias=a.mamba_proj_bias or a.use_bias,
        conv_bias=a.use_conv_bias,
    )


def _mamba1(a: Architecture) -> Mamba1:
    inner = a.mamba_expand * a.hidden_size
    return Mamba1(
        heads=inner,
        groups=1,
        kernel=a.mamba_d_conv,
        state=STATES[a.mamba_ssm_cache_dtype],
        size=a.mamba_d_state or 0,
        rank=a.mamba_dt_rank or 0,
        norms=a.model_type == "jamba",
        bias=a.mamba_proj_bias,
        conv_bias=a.mamba_conv_bias,
    )


def _routed(a: Architecture, layer: int) -> bool:
    """Whether a layer has routed experts."""
    if not a.experts or layer < a.first_k_dense_replace or layer in a.mlp_only_layers:
        return False
    if a.mlp_layer_types is not None:
        return a.mlp_layer_types[layer] == "sparse"
    if isinstance(a.moe_layer_freq, tuple):
        return bool(a.moe_layer_freq[layer])
    if a.expert_layer_period:
        return layer % a.expert_layer_period == a.expert_layer_offset
    if a.interleave_moe_layer_step:
        return (layer + 1) % a.interleave_moe_layer_step == 0
    return layer % a.moe_layer_freq == 0 and (layer + 1) % a.decoder_sparse_step == 0


def _mlp(a: Architecture, family: Family, layer: int) -> Mlp:
    return Mlp(_width(a, layer), family.gated, a.mlp_bias or family.mlp_bias)


def _width(a: Architecture, layer: int) -> int:
    if a.block_configs is not None:
        wanted = int(2 * (a.block_configs[layer].ffn.ffn_mult or 0.0) * a.hidden_size / 3)
        return -(-wanted // MULTIPLE) * MULTIPLE
    given = a.intermediate_size_mlp or a.intermediate_size or a.ffn_dim
    return (given[layer] if isinstance(given, tuple) else given) or 0


def _moe(a: Architecture, family: Family, layer: int) -> Moe:
    given = a.intermediate_size
    width = a.moe_intermediate_size or (given[layer] if isinstance(given, tuple) else given) or 0
    each = a.moe_shared_expert_intermediate_size or a.share_expert_dim or width
    shared = a.shared_expert_intermediate_size or each * (a.n_shared_experts or family.shared)
    said = a.use_routing_bias or a.use_moe_router_bias or a.topk_method == "noaux_tc"
    return Moe(
        experts=a.experts,
        top_k=a.chosen,
        width=width,
        shared=shared,
        gated=family.gated,
        bias=family.expert_bias,
        router_bias=bool(said) or family.router_bias,
        shared_gate=bool(a.shared_expert_intermediate_size),
        latent=a.moe_latent_size or 0,
    )
