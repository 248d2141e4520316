"""What a family of models implies without a key in its configuration, read from the code that each was released with.

Sizes never come from here: they are read from keys, so that a model under another name keeps its shapes.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Family:
    """Traits of a `model_type`.

    `norm` of queries and keys: "" none, `head`, `bare` (see `archsim.workload.parts.Attention`). `qkv_bias`: None
    follows `attention_bias`. `output_bias`: whether `attention_bias` reaches the output projection. `gate`: attention
    with a gate on its output. `gated`: networks of three matrices. `layer_norm`: norms have biases. `positions`:
    learned position embeddings beyond `max_position_embeddings`, None without any. `post_norms`: norms behind each part
    too. `tied`: embedding and head are one unless a key says otherwise. `shared`: shared experts that no key counts.
    `pattern`: every how many layers one attends to everything.
    """

    norm: str = ""
    qkv_bias: bool | None = None
    output_bias: bool = True
    sinks: bool = False
    gate: bool = False
    gated: bool = True
    mlp_bias: bool = False
    layer_norm: bool = False
    positions: int | None = None
    post_norms: bool = False
    tied: bool = False
    shared: int = 0
    router_bias: bool = False
    expert_bias: bool = False
    pattern: int | None = None


QWEN3 = Family(norm="head")
QWEN3_HYBRID = Family(norm="head", gate=True)
GEMMA = Family(norm="head", post_norms=True, tied=True)
OPT = Family(gated=False, mlp_bias=True, qkv_bias=True, layer_norm=True, tied=True)

FAMILIES = {
    "llama": Family(),
    "mistral": Family(),
    "mixtral": Family(),
    "nemotron-nas": Family(),
    "llama4_text": Family(norm="bare", shared=1),
    "qwen2": Family(qkv_bias=True, output_bias=False),
    "mimo": Family(qkv_bias=True, output_bias=False),
    "mimo_v2_flash": Family(),
    "qwen3": QWEN3,
    "qwen3_moe": QWEN3,
    "qwen3_vl_text": QWEN3,
    "qwen3_vl_moe_text": QWEN3,
    "qwen3_next": QWEN3_HYBRID,
    "qwen3_5_text": QWEN3_HYBRID,
    "qwen3_5_moe_text": QWEN3_HYBRID,
    "deepseek_v2": Family(),
    "deepseek_v3": Family(),
    "deepseek_v32": Family(),
    "kimi_k2": Family(),
    "glm_moe_dsa": Family(),
    "glm4_moe": Family(output_bias=False, router_bias=True),
    "gpt_oss": Family(sinks=True, router_bias=True, expert_bias=True),
    "minimax_m2": Family(),
    "step3_text": Family(),
    "gemma3_text": Family(norm="head", post_norms=True, tied=True, pattern=6),
    "gemma4_text": GEMMA,
    "nemotron_h": Family(gated=False, router_bias=True),
    "jamba": Family(),
    "opt": Family(**{**OPT.__dict__, "positions": 2}),
    "gpt3": Family(**{**OPT.__dict__, "positions": 0}),
}


def family_of(model_type: str) -> Family:
    """The traits of a `model_type`; those of a plain transformer (Llama) for one that is not known."""
    return FAMILIES.get(model_type, Family())
