"""The keys of Hugging Face configurations that shape the computation, for the families that archsim lowers.

A workload file's `architecture` is a `config.json` by its own key names, cut down to these. What a family implies
without a key (the norm of queries and keys in Qwen3, biases in OPT) stands in `archsim.workload.families`.
"""

from typing import Literal

from archsim.catalog import StrictModel
from archsim.fields import Count, Few, Natural

StateFormat = Literal["float32", "bfloat16", "float16"]
LayerType = Literal["sliding_attention", "full_attention", "linear_attention", "chunked_attention"]
Part = Literal["mamba", "moe", "attention", "mlp"]


class BlockAttention(StrictModel):
    """Attention of one layer of a searched architecture (Nemotron NAS)."""

    no_op: bool = False
    n_heads_in_group: Count | None = None


class BlockFfn(StrictModel):
    """Feed-forward network of one layer of a searched architecture: `ffn_mult` of the hidden width."""

    no_op: bool = False
    ffn_mult: float | None = None


class BlockConfig(StrictModel):
    """One layer of a searched architecture."""

    attention: BlockAttention
    ffn: BlockFfn


class Architecture(StrictModel):
    """A Hugging Face configuration; keys of one family are read wherever they stand, whatever `model_type` says."""

    model_type: str
    vocab_size: Count
    hidden_size: Count
    num_hidden_layers: Few
    max_position_embeddings: Count = 131072
    tie_word_embeddings: bool | None = None
    hidden_act: str = "silu"

    # attention
    num_attention_heads: Count
    num_key_value_heads: Count | tuple[Count, ...] | None = None
    head_dim: Count | None = None
    attention_head_dim: Count | None = None
    v_head_dim: Count | None = None
    attention_bias: bool = False
    qkv_bias: bool | None = None
    use_qk_norm: bool | None = None
    qk_norm_type: Literal["per_head", "per_layer"] | None = None
    attn_output_gate: bool | None = None
    sliding_window: Count | None = None
    use_sliding_window: bool | None = None
    sliding_window_pattern: Count | None = None
    layer_types: tuple[LayerType, ...] | None = None
    hybrid_layer_pattern: tuple[Natural, ...] | None = None
    swa_num_attention_heads: Count | None = None
    swa_num_key_value_heads: Count | None = None
    swa_head_dim: Count | None = None
    swa_v_head_dim: Count | None = None
    add_swa_attention_sink_bias: bool = False
    add_full_attention_sink_bias: bool = False
    attention_chunk_size: Count | None = None
    no_rope_layers: tuple[Natural, ...] | None = None
    no_rope_layer_interval: Count = 4
    global_head_dim: Count | None = None
    num_global_key_value_heads: Count | None = None
    attention_k_eq_v: bool = False
    share_q_dim: Count | None = None

    # latent and sparse attention
    q_lora_rank: Count | None = None
    kv_lora_rank: Count | None = None
    qk_nope_head_dim: Count | None = None
    qk_rope_head_dim: Count | None = None
    index_n_heads: Count | None = None
    index_head_dim: Count | None = None
    index_topk: Count | None = None
    indexer_types: tuple[Literal["full", "shared"], ...] | None = None

    # mixers with a constant state
    full_attention_interval: Count | None = None
    linear_num_key_heads: Count | None = None
    linear_num_value_heads: Count | None = None
    linear_key_head_dim: Count | None = None
    linear_value_head_dim: Count | None = None
    linear_conv_kernel_dim: Count | None = None
    mamba_ssm_dtype: StateFormat = "float32"
    hybrid_override_pattern: str | None = None
    layers_block_type: tuple[Part, ...] | None = None
    mamba_num_heads: Count | None = None
    mamba_head_dim: Count | None = None
    ssm_state_size: Count | None = None
    n_groups: Count = 1
    conv_kernel: Count = 4
    chunk_size: Count = 256
    use_conv_bias: bool = True
    use_bias: bool = False
    mamba_proj_bias: bool = False
    mamba_ssm_cache_dtype: StateFormat = "float32"
    attn_layer_period: Count | None = None
    attn_layer_offset: Natural = 0
    mamba_d_state: Count | None = None
    mamba_d_conv: Count = 4
    mamba_expand: Count = 2
    mamba_dt_rank: Count | None = None
    mamba_conv_bias: bool = True

    # feed-forward networks
    intermediate_size: Count | tuple[Count, ...] | None = None
    intermediate_size_mlp: Count | None = None
    ffn_dim: Count | None = None
    mlp_bias: bool = False
    num_local_experts: Count | None = None
    n_routed_experts: Count | None = None
    num_experts: Count | None = None
    num_experts_per_tok: Count | None = None
    top_k_experts: Count | None = None
    moe_intermediate_size: Count | None = None
    moe_latent_size: Count | None = None
    moe_layer_freq: Count | tuple[Natural, ...] = 1
    first_k_dense_replace: Natural = 0
    interleave_moe_layer_step: Count | None = None
    decoder_sparse_step: Count = 1
    mlp_only_layers: tuple[Natural, ...] = ()
    mlp_layer_types: tuple[Literal["dense", "sparse"], ...] | None = None
    expert_layer_period: Count | None = None
    expert_layer_offset: Natural = 0
    n_shared_experts: Natural = 0
    shared_expert_intermediate_size: Natural = 0
    moe_shared_expert_intermediate_size: Natural = 0
    share_expert_dim: Natural = 0
    n_group: Count | None = None
    topk_group: Count | None = None
    topk_method: str | None = None
    use_routing_bias: bool | None = None
    use_moe_router_bias: bool | None = None
    block_configs: tuple[BlockConfig, ...] | None = None

    # prediction of further tokens
    num_nextn_predict_layers: Natural = 0
    mtp_num_hidden_layers: Natural = 0
    num_mtp_modules: Natural = 0
    mtp_hybrid_override_pattern: str | None = None
    mtp_layers_block_type: tuple[Part, ...] | None = None

    @property
    def experts(self) -> int:
        """Routed experts of a layer that has any; 0 for a dense model."""
        return self.n_routed_experts or self.num_local_experts or self.num_experts or 0

    @property
    def chosen(self) -> int:
        """Experts a token is routed to."""
        return self.num_experts_per_tok or self.top_k_experts or 0

    @property
    def width(self) -> int:
        """Width of an attention head."""
        return self.head_dim or self.attention_head_dim or self.hidden_size // self.num_attention_heads

    @property
    def pattern(self) -> str | None:
        """One letter a layer where each has one part: M mamba, E experts, - dense, * attention."""
        if self.layers_block_type is not None:
            return "".join(LETTERS[part] for part in self.layers_block_type)
        return self.hybrid_override_pattern

    @property
    def mtp_pattern(self) -> str | None:
        """The same of one prediction module."""
        if self.mtp_layers_block_type is not None:
            return "".join(LETTERS[part] for part in self.mtp_layers_block_type)
        return self.mtp_hybrid_override_pattern


LETTERS = {"mamba": "M", "moe": "E", "mlp": "-", "attention": "*"}

LISTS = (
    "layer_types",
    "hybrid_layer_pattern",
    "no_rope_layers",
    "indexer_types",
    "layers_block_type",
    "mlp_layer_types",
    "block_configs",
    "num_key_value_heads",
    "intermediate_size",
    "moe_layer_freq",
)


def shape_faults(a: Architecture) -> list[tuple[str, str]]:
    """(key, what is wrong) for all that shapes need of one another."""
    return [*_list_faults(a), *_attention_faults(a), *_ffn_faults(a), *_state_faults(a)]


def _list_faults(a: Architecture) -> list[tuple[str, str]]:
    values = [(key, getattr(a, key)) for key in LISTS]
    if a.hybrid_override_pattern is not None:
        values.append(("hybrid_override_pattern", tuple(a.hybrid_override_pattern)))
    layers = a.num_hidden_layers
    faults = [
        (key, f"expected {layers} entries (num_hidden_layers), got {len(value)}")
        for key, value in values
        if isinstance(value, tuple) and len(value) != layers
    ]
    strange = {letter for text in (a.hybrid_override_pattern, a.mtp_hybrid_override_pattern) for letter in text or ""}
    if strange - set(LETTERS.values()):
        listed = ", ".join(repr(letter) for letter in sorted(strange - set(LETTERS.values())))
        faults.append(("hybrid_override_pattern", f"unknown letters {listed}; known are M, E, - and *"))
    return faults


def _needs(a: Architecture, key: str, what: str, needed: tuple[str, ...]) -> list[tuple[str, str]]:
    return [(key, f"{what} needs `{name}`") for name in needed if getattr(a, name) is None]


def _attention_faults(a: Architecture) -> list[tuple[str, str]]:
    faults: list[tuple[str, str]] = []
    if "sliding_attention" in (a.layer_types or ()) and a.sliding_window is None:
        faults.append(("layer_types", "sliding_attention needs `sliding_window`"))
    if a.head_dim is None and a.attention_head_dim is None and a.hidden_size % a.num_attention_heads:
        faults.append(("num_attention_heads", "does not divide hidden_size; give `head_dim`"))
    if a.kv_lora_rank is not None:
        needed = ("qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
        faults += _needs(a, "kv_lora_rank", "latent attention", needed)
        if a.attention_bias:
            faults.append(("attention_bias", "latent attention with biases is not modelled"))
        if a.index_topk is not None:
            faults += _needs(a, "index_topk", "sparse attention", ("index_n_heads", "index_head_dim"))
        return faults
    if a.index_topk is not None:
        faults.append(("index_topk", "sparse attention is modelled with latent attention only (`kv_lora_rank`)"))
    for heads in a.num_key_value_heads if isinstance(a.num_key_value_heads, tuple) else (a.num_key_value_heads or 1,):
        if a.num_attention_heads % heads:
            faults.append(("num_key_value_heads", f"{a.num_attention_heads} query heads are not a multiple of {heads}"))
    return faults


def _ffn_faults(a: Architecture) -> list[tuple[str, str]]:
    faults: list[tuple[str, str]] = []
    if a.experts and not a.chosen:
        faults.append(("num_hidden_layers", "routed experts need `num_experts_per_tok`"))
    if a.experts and a.chosen > a.experts:
        faults.append(("num_experts_per_tok", f"more than the {a.experts} experts there are"))
    sized = a.intermediate_size or a.ffn_dim or a.moe_intermediate_size or a.block_configs
    if not sized:
        faults.append(("num_hidden_layers", "a feed-forward network needs `intermediate_size`"))
    return faults


def _state_faults(a: Architecture) -> list[tuple[str, str]]:
    faults: list[tuple[str, str]] = []
    linear = tuple(f"linear_{name}" for name in ("num_key_heads", "num_value_heads", "key_head_dim", "value_head_dim"))
    if "linear_attention" in (a.layer_types or ()):
        faults += _needs(a, "layer_types", "linear_attention", (*linear, "linear_conv_kernel_dim"))
    elif a.full_attention_interval:
        faults += _needs(a, "full_attention_interval", "linear attention", (*linear, "linear_conv_kernel_dim"))
    if "M" in (a.pattern or ""):
        key = "hybrid_override_pattern" if a.hybrid_override_pattern else "layers_block_type"
        faults += _needs(a, key, "a Mamba-2 mixer", ("mamba_num_heads", "mamba_head_dim", "ssm_state_size"))
    if a.attn_layer_period:
        faults += _needs(a, "attn_layer_period", "a Mamba mixer", ("mamba_d_state", "mamba_dt_rank"))
    return faults
