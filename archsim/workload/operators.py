"""Operators of the dataflow graph: logical and whole, before any split or fusion."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from archsim.arrays import Array
from archsim.units import Format
from archsim.workload.model import Model, Precision
from archsim.workload.step import Step

if TYPE_CHECKING:
    from networkx import DiGraph

ROLES = ("embedding", "norm", "attention", "ffn", "router", "experts", "shared", "head")


@dataclass(frozen=True, eq=False)
class Operator:
    """One operator of one layer.

    `dims` are its sizes by name (arrays); `divided` says which of them a split divides and by what rule: `tensor`
    (evenly), `kv_heads` (evenly, then replicated), `vocabulary` (padded), `expert`, `expert_tensor`. `tensor` is the
    class of its weights in the precision, `parameters` counts them by class. `store` is the format of the cache or
    state it reads where that is not the KV format of the precision.
    """

    name: str
    kind: str
    role: str
    dims: Mapping[str, Array]
    divided: Mapping[str, str] = field(default_factory=dict)
    tensor: str = ""
    parameters: Mapping[str, float] = field(default_factory=dict)
    store: Format | None = None

    @property
    def flops(self) -> Array:
        """FLOPs of the whole operator, two a multiply-add."""
        return FLOPS[self.kind](self.dims)


def gemm_flops(d: Mapping[str, Array]) -> Array:
    """2 m n k, of every product of a batch."""
    return 2.0 * d["m"] * (d["n"] + d.get("n_kv", 0.0)) * d["k"] * d.get("batch", 1.0)


def generation_flops(d: Mapping[str, Array]) -> Array:
    """Scores and values of every query against every cached token its layer sees."""
    return 2.0 * d["tokens"] * d["queries"] * d["heads"] * (d["width"] + d["value"])


def context_flops(d: Mapping[str, Array]) -> Array:
    """Scores and values of the causal half."""
    return 2.0 * d["pairs"] * d["heads"] * (d["width"] + d["value"])


def experts_flops(d: Mapping[str, Array]) -> Array:
    """The routed rows through their experts' matrices."""
    return 2.0 * d["tokens"] * d["top_k"] * d["hidden"] * d["width"] * d["matrices"]


def update_flops(d: Mapping[str, Array]) -> Array:
    """`work` for every new token and head: decay, update and read-out of its state."""
    return d["sequences"] * d["queries"] * d["heads"] * d["work"]


def scan_flops(d: Mapping[str, Array]) -> Array:
    """`work` for every token and head of a prompt, its share of the products of a chunk included."""
    return d["tokens"] * d["heads"] * d["work"]


def indexer_flops(d: Mapping[str, Array]) -> Array:
    """Scores of every index head over every pair of a query and a token before it."""
    return 2.0 * d["pairs"] * d["heads"] * d["width"]


def no_flops(d: Mapping[str, Array]) -> Array:
    """Elementwise work counts as bytes."""
    return np.zeros_like(d["tokens"])


FLOPS = {
    "gemm": gemm_flops,
    "generation_attention": generation_flops,
    "mla_generation": generation_flops,
    "context_attention": context_flops,
    "mla_context": context_flops,
    "experts": experts_flops,
    "elementwise": no_flops,
    "state_update": update_flops,
    "state_scan": scan_flops,
    "indexer": indexer_flops,
}


@dataclass(frozen=True, eq=False)
class OpGraph:
    """The lowered step: per block its operators with the names of those they wait for, and the run-length sequence.

    `blocks` gives the same as networkx graphs.
    """

    model: Model
    step: Step
    precision: Precision
    linked: Mapping[str, Sequence[tuple[Operator, tuple[str, ...]]]]
    sequence: tuple[tuple[str, int], ...]

    def operators(self, block: str) -> list[Operator]:
        """The operators of a block in the order in which lowering wrote them, which is a topological one."""
        return [operator for operator, _ in self.linked[block]]

    @cached_property
    def blocks(self) -> dict[str, "DiGraph[str]"]:
        """The dataflow graph of every block: nodes are names with their `operator`, edges run from producer on."""
        import networkx  # only those who ask for a graph pay for it

        graphs: dict[str, DiGraph[str]] = {}
        for block, linked in self.linked.items():
            graphs[block] = networkx.DiGraph()
            for operator, after in linked:
                graphs[block].add_node(operator.name, operator=operator)
                graphs[block].add_edges_from((name, operator.name) for name in after)
        return graphs

    def everything(self) -> Iterator[tuple[Operator, int]]:
        """Every operator with the number of layers it stands in."""
        for block, count in self.sequence:
            for operator in self.operators(block):
                yield operator, count

    def flops(self) -> Array:
        """FLOPs of the whole step."""
        result = np.zeros(1)
        for operator, count in self.everything():
            result = result + operator.flops * count
        return result

    def parameters(self) -> dict[str, float]:
        """Parameters by class of tensor; a tied head is counted once."""
        totals: dict[str, float] = {}
        for operator, count in self.everything():
            for tensor, number in operator.parameters.items():
                totals[tensor] = totals.get(tensor, 0.0) + number * count
        return totals

    def active_parameters(self) -> float:
        """Parameters one token touches: of the routed experts only its top k."""
        result = 0.0
        for operator, count in self.everything():
            share = (
                float((operator.dims["top_k"] / operator.dims["experts"]).max()) if operator.kind == "experts" else 1.0
            )
            result += share * sum(operator.parameters.values()) * count
        return result
