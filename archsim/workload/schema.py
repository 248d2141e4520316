"""The files of models, and how they become a Model."""

from typing import Literal

from pydantic import Field

from archsim.catalog import CatalogError, Document, Fault, Mark, StrictModel, fetch, validate
from archsim.fields import Count, FormatName
from archsim.sources import SourceEntry, check_sources
from archsim.workload.huggingface import model_of
from archsim.workload.lowering import lower
from archsim.workload.model import Model, precision_of
from archsim.workload.step import decode

TOLERANCE = 1e-3  # of a declared parameter count


class Architecture(StrictModel):
    """The keys of a Hugging Face configuration that shape the computation."""

    model_type: str
    vocab_size: Count
    hidden_size: Count
    num_hidden_layers: Count
    num_attention_heads: Count
    num_key_value_heads: Count | None = None
    head_dim: Count | None = None
    intermediate_size: Count
    max_position_embeddings: Count = 131072
    tie_word_embeddings: bool = False
    attention_bias: bool = False
    mlp_bias: bool = False
    hidden_act: str = "silu"
    sliding_window: Count | None = None
    layer_types: tuple[Literal["sliding_attention", "full_attention"], ...] | None = None
    num_local_experts: Count | None = None
    n_routed_experts: Count | None = None
    num_experts: Count | None = None
    num_experts_per_tok: Count | None = None
    moe_intermediate_size: Count | None = None
    moe_layer_freq: Count = 1
    first_k_dense_replace: int = 0
    n_shared_experts: int = 0
    n_group: Count | None = None
    topk_group: Count | None = None
    topk_method: str | None = None
    q_lora_rank: Count | None = None
    kv_lora_rank: Count | None = None
    qk_nope_head_dim: Count | None = None
    qk_rope_head_dim: Count | None = None
    v_head_dim: Count | None = None
    num_nextn_predict_layers: int = 0


class ParametersFile(StrictModel):
    """Published counts, checked against the lowered graph."""

    total: Count
    active: Count | None = None


PrecisionClass = Literal["weights", "embedding", "head", "attention", "kv", "activations", "experts"]


class WorkloadFile(StrictModel):
    """A file of `workloads/`."""

    name: str
    architecture: Architecture
    precision: dict[PrecisionClass, FormatName] = Field({}, description="the model's native formats where they are not bf16")
    parameters: ParametersFile
    sources: tuple[SourceEntry, ...]


def load_model(name: str, mark: Mark | None = None) -> Model:
    """The model of a name or path, its parameter count checked. Raises CatalogError with every fault of its file."""
    document = fetch("workloads", name, mark)
    file = validate(WorkloadFile, document)
    check_sources(document, file.sources, skip=("name",))
    _check_shapes(document, file.architecture)
    declared = {"total": file.parameters.total, "active": file.parameters.active or 0}
    model = model_of(file.name, file.architecture.model_dump(), declared, {str(tensor): fmt for tensor, fmt in file.precision.items()})
    _check_count(document, model)
    return model


def _check_shapes(document: Document, a: Architecture) -> None:
    """What shapes need of one another."""
    faults: list[tuple[str, str]] = []
    if a.layer_types is not None and len(a.layer_types) != a.num_hidden_layers:
        faults.append(("layer_types", f"expected {a.num_hidden_layers} entries (num_hidden_layers), got {len(a.layer_types)}"))
    if a.layer_types is not None and "sliding_attention" in a.layer_types and a.sliding_window is None:
        faults.append(("layer_types", "sliding_attention needs `sliding_window`"))
    if (a.num_local_experts or a.n_routed_experts or a.num_experts) and not a.num_experts_per_tok:
        faults.append(("num_hidden_layers", "routed experts need `num_experts_per_tok`"))
    if a.head_dim is None and a.hidden_size % a.num_attention_heads:
        faults.append(("num_attention_heads", "does not divide hidden_size; give `head_dim`"))
    if a.kv_lora_rank is not None:
        needed = ("q_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
        faults += [("kv_lora_rank", f"latent attention needs `{key}`") for key in needed if getattr(a, key) is None]
    elif a.num_attention_heads % (a.num_key_value_heads or a.num_attention_heads):
        faults.append(("num_key_value_heads", f"{a.num_attention_heads} query heads are not a multiple of it"))
    if faults:
        raise CatalogError([document.mark("architecture", key).fault(text) for key, text in faults])


def _check_count(document: Document, model: Model) -> None:
    graph = lower(model, decode(1, 1, model.clips), precision_of(model, {}))
    counts = {"total": sum(graph.parameters().values()), "active": graph.active_parameters()}
    faults: list[Fault] = []
    for key, declared in model.declared.items():
        if declared and abs(counts[key] / declared - 1) > TOLERANCE:
            text = f"{declared:,} is declared, but the architecture has {counts[key]:,.0f} parameters ({key})"
            faults.append(document.mark("parameters", key).fault(text))
    if faults:
        raise CatalogError(faults)
