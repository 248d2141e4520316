"""Split: how many ways each kind of parallelism divides the work, and which splits a model allows."""

from collections.abc import Callable, Collection
from dataclasses import dataclass, field, fields, replace
from math import gcd
from typing import TYPE_CHECKING

import numpy as np

from archsim.arrays import Array, array
from archsim.workload.model import Attention, Mixer, Mlp, Model, Moe, Recurrent
from archsim.workload.operators import ROLES

if TYPE_CHECKING:
    from archsim.mapping.system import Partner

REASONS = (
    "",
    "memory",
    "query heads",
    "KV heads",
    "feed-forward width",
    "experts",
    "expert width",
    "chips",
    "layers",
    "context ranks",
    "state heads",
    "feed-forward width of the other pool",
    "experts of the other pool",
    "chips of the other pool",
)


def one() -> Array:
    """The degree that costs nothing."""
    return array(1.0)


@dataclass(frozen=True, eq=False)
class Split:
    """Degrees of parallelism; every field is an array, and 1 costs nothing.

    `tensor` ranks share attention heads and dense feed-forward widths; `attention_data` groups of them hold different
    sequences but share the experts; `expert` ranks hold different experts, and what is left of the
    `tensor * attention_data` ranks of a stage divides each expert's width. `pipeline` stages hold different layers, and
    as many micro-batches are on their way; `data` replicas share nothing. `context` ranks of a tensor group hold
    different tokens of the KV cache instead of copies of the same heads: they take no further chips.

    Of two pools this is the split of the main one. `partner` is that of the other; pinned to layers, its pipeline
    stages are the layers it serves. `micro_batches` travel between them, of each replica.
    """

    tensor: Array
    attention_data: Array
    expert: Array
    data: Array
    pipeline: Array = field(default_factory=one)
    context: Array = field(default_factory=one)
    micro_batches: Array = field(default_factory=one)
    partner: "Split | None" = None

    def mapped(self, change: "Callable[[str, Array], Array]") -> "Split":
        """The split with each degree changed, those of the partner too, as `partner.tensor` and so on."""
        own = {
            item.name: change(item.name, getattr(self, item.name)) for item in fields(self) if item.name != "partner"
        }
        other = (
            None if self.partner is None else self.partner.mapped(lambda name, value: change(f"partner.{name}", value))
        )
        return Split(**own, partner=other)

    def named(self) -> dict[str, Array]:
        """Every degree by its name; of two pools also `micro_batches` and those of the partner."""
        found: dict[str, Array] = {}
        self.mapped(lambda name, value: found.setdefault(name, value))
        alone = {name for name in found if name.endswith("micro_batches") and (self.partner is None or "." in name)}
        return {name: value for name, value in found.items() if name not in alone}

    @property
    def ranks(self) -> Array:
        """Chips of one stage of one replica."""
        return self.tensor * self.attention_data

    @property
    def groups(self) -> Array:
        """Data-parallel ranks: groups of chips with sequences of their own."""
        return self.data * self.attention_data

    @property
    def chips(self) -> Array:
        """Chips in all."""
        return self.ranks * self.pipeline * self.data

    @property
    def expert_tensor(self) -> Array:
        """Ranks that share one expert's width."""
        return self.ranks / self.expert


def split(
    tensor: object = 1,
    attention_data: object = 1,
    expert: object = 1,
    data: object = 1,
    pipeline: object = 1,
    context: object = 1,
) -> Split:
    """A split from plain numbers or arrays."""
    ranks = array(tensor), array(attention_data), array(expert), array(data)
    return Split(*ranks, array(pipeline), array(context))


def legality(model: Model, s: Split, chips: Array, roles: Collection[str] = ROLES) -> Array:
    """Index into REASONS of the first rule a split breaks; 0 where the model allows it. Only `roles` count.

    Query and state heads divide evenly; KV heads, and groups that state heads share, divide evenly or are replicated
    evenly; widths divide evenly; experts divide evenly among expert ranks, and expert ranks among the ranks of a stage;
    every stage has a layer; context ranks divide the copies of a KV head.
    """
    broken = np.zeros(np.broadcast_shapes(s.chips.shape, s.expert.shape, s.context.shape, chips.shape))
    for block in model.blocks.values():
        if "attention" in roles:
            broken = _mixer(broken, block.attention, s)
        if isinstance(block.ffn, Mlp) and "ffn" in roles:
            broken = _first(broken, block.ffn.width % s.tensor != 0, 4)
        elif isinstance(block.ffn, Moe):
            if "experts" in roles:
                broken = _first(broken, (s.ranks % s.expert != 0) | (block.ffn.experts % s.expert != 0), 5)
                broken = _first(broken, block.ffn.width % np.maximum(s.expert_tensor, 1.0) != 0, 6)
            if "shared" in roles:
                broken = _first(broken, (block.ffn.shared % s.tensor != 0), 4)
        copies = s.tensor / np.minimum(s.tensor, getattr(block.attention, "kv_heads", 1))
        broken = _first(broken, copies % s.context != 0, 9)
    broken = _first(broken, s.pipeline > model.layers, 8)
    return _first(broken, s.chips != chips, 7)


OTHER = {4: 11, 5: 12, 6: 12, 7: 13}  # reasons of the main pool, of the other


def partner_legality(model: Model, s: Split, partner: "Partner", chips: Array) -> Array:
    """Index into REASONS of the first rule that the split of another pool breaks.

    Chips may be left over. The compiler of an LPU cuts anywhere, so nothing need divide evenly there.
    """
    broken = np.where(s.chips > chips, float(OTHER[7]), 0.0)
    if partner.chip.kind == "lpu":
        return broken
    own = legality(model, replace(s, pipeline=np.ones_like(s.pipeline)), s.ranks * s.data, partner.roles)
    for rule, reason in OTHER.items():
        broken = _first(broken, own == rule, reason)
    return broken


def kv_copies(model: Model, tensor: int) -> int:
    """Tensor ranks that hold the same KV heads in every layer that has a KV cache: the most context ranks."""
    heads = [
        getattr(block.attention, "kv_heads", 1)
        for block in model.blocks.values()
        if block.attention is not None and not isinstance(block.attention, Recurrent)
    ]
    return gcd(*(tensor // min(tensor, kv) for kv in heads)) if heads else 1


def _mixer(broken: Array, mixer: Mixer | None, s: Split) -> Array:
    """The rules of attention heads and state heads."""
    if mixer is None:
        return broken
    if isinstance(mixer, Recurrent):
        uneven = (mixer.groups % s.tensor != 0) & (s.tensor % mixer.groups != 0)
        return _first(broken, (mixer.heads % s.tensor != 0) | uneven, 10)
    broken = _first(broken, mixer.heads % s.tensor != 0, 2)
    if isinstance(mixer, Attention):
        kv = mixer.kv_heads
        broken = _first(broken, (kv % s.tensor != 0) & (s.tensor % kv != 0), 3)
    return broken


def _first(broken: Array, now: "np.typing.NDArray[np.bool_]", reason: int) -> Array:
    return np.where((broken == 0) & now, float(reason), broken)
