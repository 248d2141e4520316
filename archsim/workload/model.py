"""Model: the shapes of a transformer, block by block, and what they imply for its KV cache."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from archsim.units import Format, format_named

FULL = float("inf")


@dataclass(frozen=True)
class Attention:
    """Grouped-query attention (multi-head when `kv_heads == heads`, multi-query when it is 1)."""

    heads: int
    kv_heads: int
    width: int
    window: float = FULL
    bias: bool = False
    output_bias: bool = False
    norm: bool = False
    sinks: bool = False

    @property
    def kv_elements(self) -> int:
        """Elements a token and layer: keys and values of every KV head."""
        return 2 * self.kv_heads * self.width


@dataclass(frozen=True)
class LatentAttention:
    """Multi-head latent attention (DeepSeek): one latent and one rotary key a token, shared by all heads."""

    heads: int
    query_rank: int
    latent: int
    rope: int
    nope: int
    value: int
    window: float = FULL

    @property
    def kv_elements(self) -> int:
        """Elements a token and layer: latent and rotary key, held whole by every tensor rank."""
        return self.latent + self.rope


@dataclass(frozen=True)
class Mlp:
    """Dense feed-forward network: three matrices when gated, else two."""

    width: int
    gated: bool = True
    bias: bool = False


@dataclass(frozen=True)
class Moe:
    """Routed experts with a router and, if `shared` > 0, a shared expert of that width."""

    experts: int
    top_k: int
    width: int
    shared: int = 0
    gated: bool = True
    bias: bool = False
    router_bias: bool = False


@dataclass(frozen=True)
class Block:
    """One transformer layer."""

    attention: Attention | LatentAttention
    ffn: Mlp | Moe


@dataclass(frozen=True)
class Model:
    """A decoder-only transformer; `sequence` is run-length: ((block, count), ...) in order of execution."""

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
        """The context lengths at which layers stop growing: windows, and infinity for full attention."""
        return tuple(sorted({block.attention.window for block in self.blocks.values()}))

    def kv_elements_per_token(self) -> int:
        """KV-cache elements a token over all layers, every layer counted as full and every head once."""
        return sum(block.attention.kv_elements * count for block, count in self.counted())


CLASSES = ("weights", "embedding", "head", "attention", "kv", "activations", "experts")
WEIGHT_ONLY = {"int4", "mxfp4", "q8_0", "q4_0"}


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
