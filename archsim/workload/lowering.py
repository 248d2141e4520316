"""Lowering: a model, a step and a precision become a dataflow graph of operators.

Lowering knows no runtime and no split: it says what has to be computed. Fusion, quantisers and collectives are
placed later. Parts of a block are lowered in `attention`, `mixers` and `ffn`.
"""

from dataclasses import replace

from archsim.arrays import array
from archsim.workload.attention import grouped, latent
from archsim.workload.build import WIDE, Linked, chain, elementwise, gemm, norm_of
from archsim.workload.ffn import mlp, moe
from archsim.workload.mixers import delta, mamba1, mamba2
from archsim.workload.model import (
    Attention,
    Block,
    DeltaNet,
    LatentAttention,
    Mamba1,
    Mixer,
    Mlp,
    Model,
    Moe,
    Precision,
)
from archsim.workload.model import precision_of as _precision_of
from archsim.workload.operators import Operator, OpGraph
from archsim.workload.step import Step, decode


def lower(model: Model, step: Step, precision: Precision) -> OpGraph:
    """The dataflow graph of one forward pass over `step`, without prediction modules.

    Raises KeyError when the step lacks sums for one of the model's clips (see `Model.clips`).
    """
    blocks: dict[str, Linked] = {"embedding": _embedding(model, step)}
    layers = _Layers(model, step, precision)
    for name, block in model.blocks.items():
        blocks[name] = layers.layer(block)
    blocks["head"] = _head(model, step)
    return OpGraph(model, step, precision, blocks, (("embedding", 1), *model.sequence, ("head", 1)))


def lower_mtp(model: Model, step: Step, precision: Precision) -> OpGraph:
    """The dataflow graph of the model's prediction modules (MTP), one after the other, with a pass of the head each.

    A module norms the hidden state and the embedding of the next token, joins them in one projection, and runs its
    blocks; embedding and head are those of the model, so their parameters do not count again. Raises KeyError as
    `lower`.
    """
    alone = replace(model, blocks={name: model.blocks[name] for name in model.mtp}, positions=0)
    whole = lower(alone, step, precision)
    first = chain(
        [
            norm_of("embedding_norm", step.tokens, model),
            norm_of("hidden_norm", step.tokens, model),
            gemm("mtp_proj", "ffn", step.tokens, model.hidden, 2 * model.hidden, "weights"),
        ]
    )
    head = [(replace(o, parameters={}) if o.name == "head" else o, after) for o, after in _head(model, step)]
    blocks = {"mtp": first, **{name: whole.linked[name] for name in model.mtp}, "head": head}
    once = [("mtp", 1), *((name, 1) for name in model.mtp), ("head", 1)]
    return OpGraph(alone, step, precision, blocks, tuple(once * model.mtp_layers))


def mtp_parameters(model: Model) -> float:
    """Parameters of the prediction modules alone, which `OpGraph.parameters` of `lower` leaves out; 0 without any."""
    if not model.mtp_layers:
        return 0.0
    graph = lower_mtp(model, decode(1, 1, model.clips), _precision_of(model, {}))
    return sum(graph.parameters().values())


def _embedding(model: Model, step: Step) -> Linked:
    lookup = elementwise("embedding", "embedding", step.tokens, 2 * WIDE * model.hidden)
    dims = dict(lookup.dims) | {"vocab": array(model.vocab)}
    parameters = {"embedding": float(model.vocab * model.hidden)}
    rules = {"vocab": "vocabulary"}
    found = [Operator("embedding", "elementwise", "embedding", dims, rules, "embedding", parameters)]
    if model.positions:
        sizes = elementwise("positions", "embedding", step.tokens, 3 * WIDE * model.hidden).dims
        learned = {"embedding": float(model.positions * model.hidden)}
        found.append(Operator("positions", "elementwise", "embedding", sizes, {}, "embedding", learned))
    return chain(found)


def _head(model: Model, step: Step) -> Linked:
    norm = norm_of("final_norm", step.sampled, model)
    dims = {"m": step.sampled, "n": array(model.vocab), "k": array(model.hidden)}
    parameters = {} if model.tied else {"head": float(model.vocab * model.hidden)}
    head = Operator("head", "gemm", "head", dims, {"n": "vocabulary"}, "head", parameters)
    sampling = elementwise("sampling", "head", step.sampled, 2 * 4.0 * model.vocab)
    return chain([norm, head, sampling])


class _Layers:
    """Layers of a step; attention and feed-forward parts that blocks have in common are lowered once."""

    def __init__(self, model: Model, step: Step, precision: Precision) -> None:
        self.model, self.step, self.precision = model, step, precision
        self.norms: dict[str, Operator] = {}
        self.parts: dict[Mixer | Mlp | Moe, Linked] = {}

    def layer(self, block: Block) -> Linked:
        """Norm and mixer, norm and feed-forward network, or one pair of the two."""
        linked: Linked = []
        for place, part in (("attention", block.attention), ("ffn", block.ffn)):
            if part is None:
                continue
            linked.append((self._norm(f"{place}_norm"), (linked[-1][0].name,) if linked else ()))
            linked += self._part(part)
            if block.post_norms:
                linked.append((self._norm(f"{place}_post_norm"), (linked[-1][0].name,)))
        return linked

    def _norm(self, name: str) -> Operator:
        if name not in self.norms:
            self.norms[name] = norm_of(name, self.step.tokens, self.model)
        return self.norms[name]

    def _part(self, part: Mixer | Mlp | Moe) -> Linked:
        if part not in self.parts:
            self.parts[part] = self._lowered(part)
        return self.parts[part]

    def _lowered(self, part: Mixer | Mlp | Moe) -> Linked:
        model, step = self.model, self.step
        match part:
            case Attention():
                return grouped(model, part, step, self.precision)
            case LatentAttention():
                return latent(model, part, step, self.precision)
            case DeltaNet():
                return delta(model, part, step)
            case Mamba1():
                return mamba1(model, part, step)
            case Mlp():
                return mlp(model, part, step)
            case Moe():
                return moe(model, part, step)
            case _:
                return mamba2(model, part, step)
