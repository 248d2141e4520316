"""Parts of a block: attention, state-space mixers, feed-forward networks; and what each keeps of a sequence.

Shapes only, as whole numbers of elements; formats come with the precision. What is kept of a sequence is either a
cache that grows with its tokens or a state that does not.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass

from archsim.units import Format, format_named

FULL = float("inf")


class Chunk(float):
    """The clip of chunked attention (Llama 4): a token attends to its own chunk only, not to a window that slides.

    As a number it is the size of the chunk, which bounds what one token sees and what is cached; the mean over tokens
    past the first chunk is half of it (see `archsim.workload.step`).
    """


@dataclass(frozen=True)
class Attention:
    """Grouped-query attention (multi-head when `kv_heads == heads`, multi-query when it is 1).

    `norm` is a norm of queries and keys, of kind `head` (weights of one head, shared by all), `whole` (weights for the
    whole projection) or `bare` (no weights). `gated`: the query projection is doubled for a gate on the output.
    `value` is the width of a value where it differs from that of a key. `shared`: values are the keys before their
    norm and rotation, so there is no projection of their own (both are cached). `query_rank` > 0: queries come through
    a vector of that width, normed, that every head shares (multi-matrix factorisation, Step-3).
    """

    heads: int
    kv_heads: int
    width: int
    window: float = FULL
    bias: bool = False
    output_bias: bool = False
    norm: bool = False
    sinks: bool = False
    norm_kind: str = "head"
    gated: bool = False
    value: int = 0
    shared: bool = False
    query_rank: int = 0

    @property
    def value_width(self) -> int:
        """Elements of one value."""
        return self.value or self.width

    @property
    def kv_elements(self) -> int:
        """Elements a token and layer: keys and values of every KV head."""
        return self.kv_heads * (self.width + self.value_width)

    @property
    def norm_parameters(self) -> int:
        """Weights of the norm of queries and keys."""
        sizes = {"head": 2 * self.width, "whole": (self.heads + self.kv_heads) * self.width, "bare": 0}
        return sizes[self.norm_kind] if self.norm else 0

    @property
    def held(self) -> float:
        """Tokens of a sequence that stay cached: no more than the window or the chunk."""
        return float(self.window)

    def stored(self, kv: Format) -> Format:
        """The format of the cache under a KV precision: that one."""
        return kv


@dataclass(frozen=True)
class Indexer:
    """The indexer of sparse attention (DeepSeek-V3.2): small heads that score every cached token.

    It keeps keys of its own, of `width` fp8 elements with one 32-bit scale, whole on every tensor rank.
    """

    heads: int
    width: int

    @property
    def stored(self) -> Format:
        """fp8 with one 32-bit scale a key."""
        return Format("fp8", 8, scale_bits=32, group=self.width)

    @property
    def bytes(self) -> float:
        """Bytes a token and layer: 132 for a width of 128."""
        return self.width * self.stored.bytes


@dataclass(frozen=True)
class LatentAttention:
    """Multi-head latent attention (DeepSeek): one latent and one rotary key a token, shared by all heads.

    `query_rank` 0 means queries without a latent of their own. Sparse attention has a finite `window`, the top-k tokens
    that a query attends to, but keeps every token; `index` is the indexer that chooses them, absent on layers that take
    the choice of the layer before.
    """

    heads: int
    query_rank: int
    latent: int
    rope: int
    nope: int
    value: int
    window: float = FULL
    index: Indexer | None = None

    @property
    def kv_elements(self) -> int:
        """Elements a token and layer: latent and rotary key, held whole by every tensor rank."""
        return self.latent + self.rope

    @property
    def sparse(self) -> bool:
        """Whether a query attends to chosen tokens only."""
        return self.window != FULL

    @property
    def held(self) -> float:
        """Tokens of a sequence that stay cached: all of them, sparse or not."""
        return FULL

    def stored(self, kv: Format) -> Format:
        """The format of the cache under a KV precision.

        Sparse kernels pack an 8-bit cache as fp8 latents with one 32-bit scale per 128, and the rotary key in bf16:
        656 bytes for 512 + 64 elements.
        """
        if not self.sparse or kv.bits != 8:
            return kv
        scales = 32 * self.latent // 128 + 8 * self.rope
        return Format(kv.name, 8, scale_bits=scales, group=self.kv_elements)


@dataclass(frozen=True)
class Recurrent(ABC):
    """What mixers with a constant state share: state of `heads * elements`, and the last inputs of a convolution.

    `held` is 0: nothing grows with the context. `state` is the format of the recurrent state; the convolution keeps
    `kernel - 1` inputs in bf16. `groups` are projections that several heads share, replicated when tensor ranks
    outnumber them.
    """

    heads: int
    groups: int
    kernel: int
    state: str

    @property
    @abstractmethod
    def elements(self) -> int:
        """State elements of one head."""

    @property
    @abstractmethod
    def channels(self) -> tuple[int, int]:
        """Channels of the convolution: those that heads own, and those that groups share."""

    @property
    @abstractmethod
    def inner(self) -> int:
        """Channels that the output projection takes."""

    @property
    def store(self) -> Format:
        """The format of the recurrent state."""
        return format_named(self.state)

    @property
    def state_bytes(self) -> float:
        """Bytes of recurrent state a sequence and layer."""
        return self.heads * self.elements * self.store.bytes

    @property
    def conv_bytes(self) -> tuple[float, float]:
        """Bytes of convolution state a sequence and layer: of heads, and of groups."""
        own, shared = self.channels
        return 2.0 * own * (self.kernel - 1), 2.0 * shared * (self.kernel - 1)


@dataclass(frozen=True)
class Mamba2(Recurrent):
    """A Mamba-2 mixer: heads of `width` channels, each with `width * size` of state; B and C are shared in groups."""

    width: int
    size: int
    chunk: int = 256
    bias: bool = False
    conv_bias: bool = True

    @property
    def elements(self) -> int:
        """State elements of one head."""
        return self.width * self.size

    @property
    def channels(self) -> tuple[int, int]:
        """x of the heads; B and C of the groups."""
        return self.heads * self.width, 2 * self.groups * self.size

    @property
    def inner(self) -> int:
        """Channels of all heads."""
        return self.heads * self.width


@dataclass(frozen=True)
class Mamba1(Recurrent):
    """A Mamba-1 mixer: every channel is a head with `size` of state.

    B, C and the time step come from a small projection of `rank + 2 * size`; `norms`: Jamba normalises all three.
    """

    size: int
    rank: int
    norms: bool = False
    bias: bool = False
    conv_bias: bool = True

    @property
    def elements(self) -> int:
        """State elements of one channel."""
        return self.size

    @property
    def channels(self) -> tuple[int, int]:
        """x only."""
        return self.heads, 0

    @property
    def inner(self) -> int:
        """Channels."""
        return self.heads


@dataclass(frozen=True)
class DeltaNet(Recurrent):
    """A gated delta-rule mixer (Qwen3-Next): `heads` value heads share `groups` key heads.

    The state of a value head is a matrix of `key * value` elements.
    """

    key: int
    value: int

    @property
    def elements(self) -> int:
        """State elements of one value head."""
        return self.key * self.value

    @property
    def channels(self) -> tuple[int, int]:
        """Values of the heads; queries and keys of the key heads."""
        return self.heads * self.value, 2 * self.groups * self.key

    @property
    def inner(self) -> int:
        """Channels of all value heads."""
        return self.heads * self.value


@dataclass(frozen=True)
class Mlp:
    """Dense feed-forward network: three matrices when gated, else two."""

    width: int
    gated: bool = True
    bias: bool = False


@dataclass(frozen=True)
class Moe:
    """Routed experts with a router and, if `shared` > 0, a shared expert of that width.

    `shared_gate`: a gate of one column scales the shared expert. `latent` > 0: tokens are projected to that width for
    the routed experts, and back (Nemotron 3 Super).
    """

    experts: int
    top_k: int
    width: int
    shared: int = 0
    gated: bool = True
    bias: bool = False
    router_bias: bool = False
    shared_gate: bool = False
    latent: int = 0


Mixer = Attention | LatentAttention | Mamba2 | Mamba1 | DeltaNet


@dataclass(frozen=True)
class Block:
    """One layer: a mixer and a feed-forward network, or one of the two alone, each with a norm before it.

    `post_norms`: each has a norm behind it too (Gemma 3).
    """

    attention: Mixer | None
    ffn: Mlp | Moe | None
    post_norms: bool = False
