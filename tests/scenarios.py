"""What the tests share: the catalogue loaded once, scenarios from plain words, and kernels made by hand."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from archsim.arrays import Array, array
from archsim.catalog import read_text, validate
from archsim.chip.model import Chip
from archsim.chip.schema import load_chip
from archsim.engine.cost import Cost
from archsim.engine.gpu import price
from archsim.explore.scenario import Scenario, ScenarioFile, build
from archsim.mapping.place import Deployment
from archsim.mapping.plan import Kernel
from archsim.mapping.runtime import Runtime, load_runtime
from archsim.mapping.split import Split, split
from archsim.units import format_named
from archsim.workload.architecture import Architecture
from archsim.workload.huggingface import model_of
from archsim.workload.lowering import lower
from archsim.workload.model import WEIGHT_ONLY, Model, precision_of
from archsim.workload.operators import OpGraph
from archsim.workload.schema import load_model
from archsim.workload.step import FULL, Step, decode

CHIPS = tuple(f"nvidia/{name}" for name in ("a100-sxm-80gb", "h100-sxm", "h200-sxm", "b200-sxm"))
LLAMA_8B, LLAMA_70B = "meta/llama-3.1-8b", "meta/llama-3.1-70b"
DEEPSEEK, GPT_OSS = "deepseek/deepseek-v3", "openai/gpt-oss-120b"
MODELS = (LLAMA_8B, LLAMA_70B, DEEPSEEK, GPT_OSS)
STACKS = ("vllm", "ideal")

# Shapes of released models that the catalogue need not have, by the keys of their config.json
QWEN3_235B = {
    "model_type": "qwen3_moe",
    "vocab_size": 151936,
    "hidden_size": 4096,
    "num_hidden_layers": 94,
    "num_attention_heads": 64,
    "num_key_value_heads": 4,
    "head_dim": 128,
    "intermediate_size": 12288,
    "moe_intermediate_size": 1536,
    "num_experts": 128,
    "num_experts_per_tok": 8,
}
QWEN3_32B = {
    "model_type": "qwen3",
    "vocab_size": 151936,
    "hidden_size": 5120,
    "num_hidden_layers": 64,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "intermediate_size": 25600,
}
QWEN3_06B = {
    "model_type": "qwen3",
    "vocab_size": 151936,
    "hidden_size": 1024,
    "num_hidden_layers": 28,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "intermediate_size": 3072,
    "tie_word_embeddings": True,
}
MIXTRAL_8X7B = {
    "model_type": "mixtral",
    "vocab_size": 32000,
    "hidden_size": 4096,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "intermediate_size": 14336,
    "num_local_experts": 8,
    "num_experts_per_tok": 2,
}
TINY = {  # small numbers that a person can multiply
    "model_type": "llama",
    "vocab_size": 1024,
    "hidden_size": 256,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "intermediate_size": 512,
}


@cache
def model(name: str) -> Model:
    return load_model(name)


@cache
def chip(name: str) -> Chip:
    return load_chip(name)


@cache
def runtime(name: str) -> Runtime:
    return load_runtime(name)


def made(config: Mapping[str, Any], **changes: Any) -> Model:
    """The model of a config.json with some keys changed."""
    return model_of("made", Architecture.model_validate_json(json.dumps({**config, **changes})), {}, {})


def deployment(
    of: str | Model,
    on: str | Chip = "nvidia/h100-sxm",
    by: Split | None = None,
    under: str | Runtime = "vllm",
    skew: float = 1.2,
    **precision: str,
) -> Deployment:
    """A model (by name or made) on a chip, with its native precision unless one is given."""
    what = of if isinstance(of, Model) else model(of)
    where = on if isinstance(on, Chip) else chip(on)
    how = under if isinstance(under, Runtime) else runtime(under)
    return Deployment(what, precision_of(what, precision), by or split(), where, how, array(skew))


def graph(of: str | Model, step: Step | None = None, **precision: str) -> OpGraph:
    """A model lowered, for one decoding sequence unless a step is given."""
    what = of if isinstance(of, Model) else model(of)
    return lower(what, step or decode(1, 1, what.clips), precision_of(what, precision))


def scenario(of: str, on: str = "nvidia/h100-sxm", chips: int = 1, **keys: Any) -> Scenario:
    """A scenario by the keys of its file, built by the route of a file; the same one for the same keys."""
    return _scenario(json.dumps({"model": of, "pools": {"gpu": {"chip": on, "count": chips}}, **keys}))


@cache
def _scenario(text: str) -> Scenario:
    document = read_text(text, Path("scenario.yaml"))
    return build(validate(ScenarioFile, document), document)


# Kernels by hand


def kernel(
    kind: str, weight: str = "bf16", entry: str | None = None, on: str = "nvidia/h100-sxm", **dims: object
) -> Kernel:
    """A kernel of one rank; `entry` is the format of its other operand, by default what engines pair with `weight`."""
    fmt = format_named(weight)
    attention = kind.endswith(("generation", "context")) or "attention" in kind
    if entry is None:
        entry = "bf16" if attention or fmt.bits >= 16 or weight in WEIGHT_ONLY else weight
    other = format_named(entry)
    compute = chip(on).compute_format(fmt, other)
    if compute is None:
        raise ValueError(f"{on} computes nothing as wide as {weight} and {entry}")
    sizes = {name: array(value) for name, value in dims.items()}
    return Kernel(kind, kind, "ffn", sizes, fmt, other, compute, (kind,))


def gemm(m: object, n: object, k: object, weight: str = "bf16", on: str = "nvidia/h100-sxm", **dims: object) -> Kernel:
    return kernel("gemm", weight, on=on, m=m, n=n, k=k, **dims)


def generation(
    sequences: Any,
    context: Any,
    heads: Any,
    kv_heads: Any,
    width: Any = 128,
    queries: Any = 1,
    kv: str = "bf16",
    on: str = "nvidia/h100-sxm",
) -> Kernel:
    """Attention of decoding sequences, each over a cache of `context` tokens."""
    sizes = {"sequences": sequences, "queries": queries, "tokens": np.asarray(sequences) * np.asarray(context)}
    shape = {"heads": heads, "kv_heads": kv_heads, "width": width, "value": width}
    return kernel("generation_attention", kv, on=on, **sizes, **shape)


def latent_generation(
    sequences: Any, context: Any, heads: Any = 128, kv: str = "bf16", on: str = "nvidia/h100-sxm"
) -> Kernel:
    sizes = {"sequences": sequences, "queries": 1, "tokens": np.asarray(sequences) * np.asarray(context)}
    return kernel("mla_generation", kv, on=on, **sizes, heads=heads, width=576, value=512)


def prompt(
    requests: Any,
    tokens: Any,
    prefix: Any = 0,
    window: float = FULL,
    heads: Any = 32,
    kv_heads: Any = 8,
    width: Any = 128,
    kv: str = "bf16",
    on: str = "nvidia/h100-sxm",
    kind: str = "context_attention",
) -> Kernel:
    """Attention of `requests` prompts of `tokens` new tokens after `prefix` cached ones."""
    from archsim.workload.step import prefill

    step = prefill(tokens, prefix, requests, (window,))
    sizes = {"requests": step.prefill_requests, "tokens": step.prefill_tokens, "pairs": step.prefill_pairs[window]}
    rest = {"prefix": step.prefill_prefix, "window": min(window, 1e12)}
    return kernel(kind, kv, on=on, **sizes, **rest, heads=heads, kv_heads=kv_heads, width=width, value=width)


def routed(
    tokens: Any,
    experts: Any = 128,
    top_k: Any = 8,
    hidden: Any = 4096,
    width: Any = 1536,
    ranks: Any = 1,
    skew: Any = 1.2,
    weight: str = "bf16",
    on: str = "nvidia/h100-sxm",
    apart: Any = 1,
    matrices: Any = 3,
    hottest: Any = 1,
) -> Kernel:
    """The routed experts of a layer, `experts` in all over `ranks`; the hottest has `hottest` times the mean."""
    whole = {"tokens": tokens, "top_k": top_k, "hidden": hidden, "width": width, "matrices": matrices}
    own = {"experts": np.asarray(experts) / np.asarray(ranks), "all_experts": experts, "expert_ranks": ranks}
    return kernel("experts", weight, on=on, **whole, **own, skew=skew, apart=apart, hottest=hottest)


def collective(kind: str, size: Any, ranks: Any) -> Kernel:
    return kernel(kind, bytes=size, ranks=ranks)


def priced(of: Kernel, on: str | Chip = "nvidia/h100-sxm", stack: str = "vllm") -> Cost:
    return price(of, on if isinstance(on, Chip) else chip(on), stack)


def one(values: Array) -> float:
    """The single number of an array."""
    return float(np.asarray(values).reshape(()).item() if np.ndim(values) == 0 else np.asarray(values).item())


def same_bits(left: Array, right: Array) -> bool:
    """Equal to the last bit after broadcasting, NaN at the same places."""
    left, right = np.broadcast_arrays(np.asarray(left, np.float64), np.asarray(right, np.float64))
    return bool(np.array_equal(left, right, equal_nan=True))
