"""Hugging Face configurations: the `architecture` of a workload file is a `config.json`, by its own key names."""

from collections.abc import Mapping
from itertools import groupby
from typing import Any

from archsim.workload.model import FULL, Attention, Block, LatentAttention, Mlp, Model, Moe


def blocks_of(config: Mapping[str, Any]) -> tuple[dict[str, Block], tuple[tuple[str, int], ...]]:
    """The kinds of block and their run-length sequence."""
    kinds = [_kind(config, layer) for layer in range(config["num_hidden_layers"])]
    blocks = {_name(kind): _block(config, kind) for kind in dict.fromkeys(kinds)}
    runs = [(_name(kind), len(list(run))) for kind, run in groupby(kinds)]
    return blocks, tuple(runs)


def model_of(name: str, config: Mapping[str, Any], declared: Mapping[str, int], native: Mapping[str, str]) -> Model:
    """The model a configuration describes."""
    blocks, sequence = blocks_of(config)
    return Model(
        name=name,
        hidden=config["hidden_size"],
        vocab=config["vocab_size"],
        tied=bool(config.get("tie_word_embeddings", False)),
        blocks=blocks,
        sequence=sequence,
        max_context=config.get("max_position_embeddings", 131072),
        mtp_layers=config.get("num_nextn_predict_layers", 0),
        declared=declared,
        native=native,
    )


Kind = tuple[bool, bool]  # (windowed attention, routed experts)


def _name(kind: Kind) -> str:
    windowed, routed = kind
    return ("windowed_" if windowed else "") + ("moe" if routed else "dense")


def _kind(config: Mapping[str, Any], layer: int) -> Kind:
    types = config.get("layer_types") or []
    windowed = types[layer] == "sliding_attention" if types else bool(config.get("sliding_window"))
    return windowed, _routed(config, layer)


def _experts(config: Mapping[str, Any]) -> int:
    for key in ("n_routed_experts", "num_local_experts", "num_experts"):
        if config.get(key):
            return int(config[key])
    return 0


def _routed(config: Mapping[str, Any], layer: int) -> bool:
    if not _experts(config) or layer < config.get("first_k_dense_replace", 0):
        return False
    return layer % int(config.get("moe_layer_freq", 1)) == 0


def _block(config: Mapping[str, Any], kind: Kind) -> Block:
    windowed, routed = kind
    window = float(config["sliding_window"]) if windowed else FULL
    attention = _latent(config) if config.get("kv_lora_rank") else _grouped(config, window)
    return Block(attention, _moe(config) if routed else _mlp(config))


def _latent(config: Mapping[str, Any]) -> LatentAttention:
    return LatentAttention(
        heads=config["num_attention_heads"],
        query_rank=config["q_lora_rank"],
        latent=config["kv_lora_rank"],
        rope=config["qk_rope_head_dim"],
        nope=config["qk_nope_head_dim"],
        value=config["v_head_dim"],
    )


def _grouped(config: Mapping[str, Any], window: float) -> Attention:
    heads = config["num_attention_heads"]
    bias = bool(config.get("attention_bias", False))
    return Attention(
        heads=heads,
        kv_heads=config.get("num_key_value_heads") or heads,
        width=config.get("head_dim") or config["hidden_size"] // heads,
        window=window,
        bias=bias,
        output_bias=bias,
        norm=str(config.get("model_type", "")).startswith("qwen3"),
        sinks=config.get("model_type") == "gpt_oss",
    )


def _mlp(config: Mapping[str, Any]) -> Mlp:
    return Mlp(config["intermediate_size"], bias=bool(config.get("mlp_bias", False)))


def _moe(config: Mapping[str, Any]) -> Moe:
    width = config.get("moe_intermediate_size") or config["intermediate_size"]
    oss = config.get("model_type") == "gpt_oss"
    return Moe(
        experts=_experts(config),
        top_k=config["num_experts_per_tok"],
        width=width,
        shared=width * config.get("n_shared_experts", 0),
        bias=oss,
        router_bias=oss or config.get("topk_method") == "noaux_tc",
    )
