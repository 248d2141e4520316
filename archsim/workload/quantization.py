"""Checkpoint formats: `quantization_config` of a Hugging Face configuration, as a native precision by class of tensor.

Read are fp8 (per tensor or in blocks), mxfp4, int8 and int4 (GPTQ, AWQ, compressed-tensors), nvfp4 and what modelopt
mixes. A checkpoint names modules and archsim knows classes, so the format of most modules of a class counts for it.
"""

import re
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from archsim.units import described, format_named
from archsim.workload.model import LatentAttention, Model, Moe
from archsim.workload.parts import Recurrent

HEAD = "lm_head"
Formats = Callable[[str], str]  # the format of the module of a name


class UnknownFormat(ValueError):
    """A quantisation that archsim does not know; the text names the key."""


def native_precision(model: Model, config: Mapping[str, Any]) -> dict[str, str]:
    """The classes that a checkpoint stores in another format than bf16.

    `config` is a `quantization_config`, or the content of a `hf_quant_config.json`. Raises UnknownFormat.
    """
    config = config.get("quantization", config)
    formats, inputs = _reader(config)
    found: dict[str, str] = {}
    for tensor, names in modules(model).items():
        votes = Counter(formats(name) for name in names)
        if votes:
            found[tensor] = votes.most_common(1)[0][0]
    kept = {tensor: fmt for tensor, fmt in found.items() if fmt != "bf16"}
    if kept:
        products = sorted(inputs & set(kept.values()), key=lambda fmt: format_named(fmt).bits)
        kept["activations"] = products[0] if products else "bf16"
    cache = _cache(config)
    return kept | ({"kv": cache} if cache else {})


def modules(model: Model) -> dict[str, list[str]]:
    """Names of the modules of each class, as Hugging Face checkpoints have them, layer by layer."""
    layers = [model.blocks[name] for name, count in model.sequence for _ in range(count)]
    found: dict[str, list[str]] = {"attention": [], "experts": [], "weights": [], "head": [HEAD]}
    for layer, block in enumerate(layers):
        alone = "mixer" if block.attention is None or block.ffn is None else ""
        attention, network = f"model.layers.{layer}.{alone or 'self_attn'}", f"model.layers.{layer}.{alone or 'mlp'}"
        if isinstance(block.attention, Recurrent):
            found["attention"].append(f"model.layers.{layer}.{alone or 'linear_attn'}.out_proj")
        elif block.attention is not None:
            query = "q_b_proj" if isinstance(block.attention, LatentAttention) else "q_proj"
            found["attention"] += [f"{attention}.{query}", f"{attention}.o_proj"]
        if isinstance(block.ffn, Moe):
            found["experts"].append(f"{network}.experts.0.down_proj")
            if block.ffn.shared:
                found["weights"].append(f"{network}.shared_experts.down_proj")
        elif block.ffn is not None:
            found["weights"].append(f"{network}.down_proj")
    return found


def _reader(config: Mapping[str, Any]) -> tuple[Formats, set[str]]:
    """The format of each module, and the formats whose products quantise their input to them."""
    method = str(config.get("quant_method") or config.get("quant_algo") or "").lower()
    if config.get("quantized_layers"):
        return _listed(config["quantized_layers"])
    if config.get("config_groups"):
        return _grouped(config)
    if method == "fp8":
        fmt = "fp8_block" if config.get("weight_block_size") else "fp8"
        return _except(config, fmt), {fmt}
    if method == "mxfp4":
        return _except(config, "mxfp4"), set()
    if method in ("gptq", "awq"):
        return _except(config, _integer(config)), set()
    if method in _ALGORITHMS:
        return _except(config, _ALGORITHMS[method]), _inputs({method})
    raise UnknownFormat(f"quantization_config: unknown method {described(method or None)}")


_ALGORITHMS = {
    "fp8": "fp8",
    "nvfp4": "nvfp4",
    "w4a16_nvfp4": "nvfp4",
    "w4a16_awq": "int4",
    "mxfp8": "mxfp8",
    "fp8_block_scaling": "fp8_block",
    "fp8_pb_wo": "fp8_block",
    "int8_sq": "int8",
}


def _inputs(algorithms: set[str]) -> set[str]:
    """The formats of algorithms that quantise activations too."""
    return {_ALGORITHMS[name] for name in algorithms if not name.startswith("w4a16")}


def _integer(config: Mapping[str, Any]) -> str:
    """int8, or int4 by the size of its groups: an fp16 scale for 32 or for 128."""
    bits, group = config.get("bits", config.get("num_bits")), config.get("group_size") or 128
    if bits == 8:
        return "int8"
    if bits != 4:
        raise UnknownFormat(f"quantization_config: unknown integers of {described(bits)} bits")
    return "int4_g32" if group <= 32 else "int4"


def _except(config: Mapping[str, Any], fmt: str) -> Formats:
    """One format for every module but those that are left out; the head only where that is said."""
    keys = ("modules_to_not_convert", "ignore", "exclude_modules")
    patterns = [pattern for key in keys for pattern in config.get(key) or ()]
    patterns += [] if config.get("lm_head") is True else [HEAD]
    left_out = re.compile("|".join(map(expression, patterns)) or "(?!)")
    return lambda name: "bf16" if left_out.search(name) else fmt


def expression(pattern: str) -> str:
    """The regular expression, to be searched for, of a checkpoint's pattern: a glob, `re:` and one, or part of a name.

    Prefixes of the language model inside a larger one are ignored, and so are the names that families give to one
    thing (`block_sparse_moe`, `shared_expert`, `backbone`).
    """
    if pattern.startswith("re:"):
        return f"(?:{pattern[3:]})"
    for old, new in _ALIASES:
        pattern = pattern.replace(old, new)
    wanted = re.escape(pattern).replace(r"\*", ".*").replace(r"\?", ".")
    return rf"(?:(?:^|\.){wanted}(?:\.|$))"


_ALIASES = (
    ("language_model.", ""),
    ("model.model.", "model."),
    ("backbone.", "model."),
    ("block_sparse_moe", "mlp"),
    ("shared_expert.", "shared_experts."),
    ("shared_expert*", "shared_experts*"),
)


def _grouped(config: Mapping[str, Any]) -> tuple[Formats, set[str]]:
    """compressed-tensors and modelopt: groups of modules with weights and inputs of one kind each."""
    groups = list(config["config_groups"].values())
    formats = [_of_group(group["weights"]) for group in groups]
    quantized = {fmt for fmt, group in zip(formats, groups, strict=True) if group.get("input_activations")}
    if len(groups) == 1:
        return _except(config, formats[0]), quantized
    pairs = [(target, fmt) for group, fmt in zip(groups, formats, strict=True) for target in group.get("targets", ())]
    return _targets(pairs), quantized


def _of_group(weights: Mapping[str, Any]) -> str:
    bits, kind, group = weights.get("num_bits"), weights.get("type"), weights.get("group_size")
    if kind == "int":
        return _integer(weights)
    if (kind, bits) == ("float", 8):
        return "fp8_block" if weights.get("strategy") == "block" else "fp8"
    if (kind, bits) == ("float", 4):
        return "mxfp4" if group == 32 else "nvfp4"
    raise UnknownFormat(f"quantization_config: unknown weights of {described(bits)} bits, type {described(kind)}")


def _listed(layers: Mapping[str, Mapping[str, Any]]) -> tuple[Formats, set[str]]:
    """modelopt's mixed precision: an algorithm for every module that is quantised."""
    unknown = {str(layer.get("quant_algo")).lower() for layer in layers.values()} - set(_ALGORITHMS)
    if unknown:
        raise UnknownFormat(f"quantized_layers: unknown algorithm {described(sorted(unknown)[0])}")
    algorithms = {name: str(layer["quant_algo"]).lower() for name, layer in layers.items()}
    pairs = [(name, _ALGORITHMS[algorithm]) for name, algorithm in algorithms.items()]
    return _targets(pairs), _inputs(set(algorithms.values()))


def _targets(pairs: list[tuple[str, str]]) -> Formats:
    """Formats of modules that are named one by one: by class of module, because names differ among families."""
    votes: dict[str, Counter[str]] = {}
    for name, fmt in pairs:
        votes.setdefault(_sort(name), Counter())[fmt] += 1
    common = {sort: counter.most_common(1)[0][0] for sort, counter in votes.items()}
    return lambda name: common.get(_sort(name), "bf16")


def _sort(name: str) -> str:
    """The class that a module belongs to, from its name."""
    if "lm_head" in name:
        return "head"
    if ".experts" in name:
        return "experts"
    if re.search(r"attn|mixer\.(in|out|q|k|v|o)_proj", name):
        return "attention"
    return "weights"


def _cache(config: Mapping[str, Any]) -> str | None:
    """The format of the KV cache that a checkpoint asks for."""
    scheme = config.get("kv_cache_quant_algo") or config.get("kv_cache_scheme")
    if not scheme:
        return None
    if isinstance(scheme, Mapping):
        return {8: "fp8", 4: "nvfp4"}.get(int(scheme.get("num_bits", 16)))
    known = {"FP8": "fp8", "NVFP4": "nvfp4", "INT8": "int8"}
    if scheme not in known:
        raise UnknownFormat(f"kv_cache_quant_algo: unknown format {described(scheme)}")
    return known[scheme]
