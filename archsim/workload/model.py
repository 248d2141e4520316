"""Model: the shapes of a transformer, block by block, and what they imply for its KV cache."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from archsim.units import Format, format_named
from archsim.workload.parts import (
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
    Moe,
    Recurrent,
)

__all__ = [
    "CLASSES",
    "FULL",
    "WEIGHT_ONLY",
    "Attention",
    "Block",
    "Chunk",
    "DeltaNet",
    "Indexer",
    "LatentAttention",
    "Mamba1",
    "Mamba2",
    "Mixer",
    "Mlp",
    "Model",
    "Moe",
    "Precision",
    "Recurrent",
    "precision_of",
    "quality_risks",
]


@dataclass(frozen=True)
class Model:
    """A decoder-only transformer; `sequence` is run-length: ((block, count), ...) in order of execution.

    `positions` are learned position embeddings, `norm_bias` says that norms have a bias beside their weight.
    `mtp_layers` prediction modules (MTP) consist of the blocks `mtp` each; they are neither counted nor lowered unless
    asked for (`archsim.workload.lowering.lower_mtp`, `mtp_parameters`). `repository` is that of its checkpoint on the
    Hugging Face Hub.
    """

    name: str
    hidden: int
    vocab: int
    tied: bool
    blocks: Mapping[str, Block]
    sequence: tuple[tuple[str, int], ...]
    max_context: int
    mtp_layers: int = 0
    declared: Mapping[str, int] = field(default_factory=dict)
    native: Mapping[str, str] = field(default_factory=dict)
    positions: int = 0
    norm_bias: bool = False
    mtp: tuple[str, ...] = ()
    repository: str = ""

    @property
    def layers(self) -> int:
        """Number of transformer layers."""
        return sum(count for _, count in self.sequence)

    def counted(self) -> Iterator[tuple[Block, int]]:
        """Every kind of block with the number of its layers."""
        totals: dict[str, int] = {}
        for name, count in self.sequence:
            totals[name] = totals.get(name, 0) + count
        for name, count in totals.items():
            yield self.blocks[name], count

    @property
    def clips(self) -> tuple[float, ...]:
        """The context lengths at which layers stop growing: windows, chunks, top-k; infinity for full attention."""
        found: set[float] = set()
        for block in self.blocks.values():
            if isinstance(block.attention, Attention | LatentAttention):
                found.add(block.attention.window)
            if isinstance(block.attention, LatentAttention) and block.attention.index:
                found.add(FULL)  # the indexer scores every token
        return tuple(sorted(found))

    def kv_elements_per_token(self) -> int:
        """KV-cache elements a token over all layers, every layer counted as full and every head once."""
        attention = [(block.attention, count) for block, count in self.counted()]
        return sum(a.kv_elements * count for a, count in attention if isinstance(a, Attention | LatentAttention))


CLASSES = ("weights", "embedding", "head", "attention", "kv", "activations", "experts")
WEIGHT_ONLY = {"int4", "int4_g32", "mxfp4", "q8_0", "q4_0"}


@dataclass(frozen=True)
class Precision:
    """The format of every class of tensor.

    `attention` is the projections of attention, `experts` the routed experts, `weights` the rest (norms included);
    `activations` are the inputs of matrix products. Routers stay in bf16, as in every released checkpoint.
    """

    weights: Format
    embedding: Format
    head: Format
    attention: Format
    kv: Format
    activations: Format
    experts: Format

    def of(self, tensor: str) -> Format:
        """The format of a class of tensor; `router` is always bf16."""
        return format_named("bf16") if tensor == "router" else getattr(self, tensor)

    def input_to(self, tensor: str) -> Format:
        """The format in which a product with weights of this class takes its other operand.

        Quantised activations meet quantised weights only: bf16 weights take bf16 activations, and weight-only
        formats (WEIGHT_ONLY) are up-converted to meet bf16 activations unless activations say otherwise.
        """
        weight = self.of(tensor)
        return format_named("bf16") if weight.bits >= 16 else self.activations


def precision_of(model: Model, chosen: Mapping[str, str]) -> Precision:
    """The model's native precision with a user's choices over it.

    A choice of `weights` also sets attention and experts unless those are chosen too. Activations, unless chosen,
    follow the narrowest weights that are not weight-only. Raises UnitError for an unknown format.
    """
    names = dict.fromkeys(CLASSES, "bf16") | dict(model.native)
    if "weights" in chosen:
        names |= dict.fromkeys(("attention", "experts"), chosen["weights"])
    names |= dict(chosen)
    follows = chosen.keys() & {"weights", "attention", "experts"} or "activations" not in model.native
    if follows and "activations" not in chosen:
        names["activations"] = _activations(names)
    return Precision(**{name: format_named(names[name]) for name in CLASSES})


def _activations(names: Mapping[str, str]) -> str:
    products = [names[name] for name in ("weights", "attention", "experts") if names[name] not in WEIGHT_ONLY]
    formats = sorted((format_named(name) for name in products), key=lambda item: item.bits)
    return formats[0].name if formats and formats[0].bits < 16 else "bf16"


RISKS: tuple[tuple[str, int, str], ...] = (
    (
        "attention",
        8,
        "attention projections in {format}: most released 4-bit models leave these wider",
    ),
    (
        "kv",
        16,
        "KV cache in {format}: errors stay with a sequence and add up over its context",
    ),
    (
        "activations",
        16,
        "activations quantised to {format}: channels with outliers lose most",
    ),
    ("head", 16, "output head in {format}: it decides every token directly"),
    ("embedding", 16, "embedding in {format}: it saves little, because a step reads few of its rows"),
    ("experts", 8, "routed experts in {format}: rarely chosen experts see little calibration data"),
    ("weights", 8, "dense weights in {format}: usual with calibration or training for it; check long outputs"),
)


def quality_risks(model: Model, precision: Precision) -> list[str]:
    """What a precision may cost in quality, the most sensitive class first, one sentence each; empty if nothing.

    A class counts where its format is narrower than the model was released in and narrower than what usually does no
    harm (8 bits for weights, 16 for the rest). A warning and no measurement: archsim models time, not accuracy.
    """
    native = precision_of(model, {})
    present = {
        "experts": any(isinstance(block.ffn, Moe) for block in model.blocks.values()),
        "attention": any(block.attention is not None for block in model.blocks.values()),
        "kv": bool(model.clips),
    }
    found = []
    for tensor, harmless, text in RISKS:
        chosen, released = precision.of(tensor), native.of(tensor)
        if present.get(tensor, True) and chosen.bits < min(harmless, released.bits):
            found.append(f"{text.format(format=chosen.name)} (released in {released.name}).")
    return found
