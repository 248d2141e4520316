"""Placement: operators of a step become kernels on lanes, under a split and a runtime.

Data parallelism divides the step; tensor and expert parallelism divide operators. Collectives stand where their
results are needed, and cost nothing where the split makes them a group of one.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from archsim.arrays import Array, array, ceil_to
from archsim.chip.model import FORMAT_BITS, Chip, Unsuited
from archsim.mapping.balance import busiest_rank
from archsim.mapping.interleave import interleaved
from archsim.mapping.options import Options
from archsim.mapping.plan import Kernel, Plan, Task
from archsim.mapping.runtime import Runtime
from archsim.mapping.split import Split
from archsim.mapping.system import Partner
from archsim.units import Format, format_named
from archsim.workload.lowering import lower, lower_mtp
from archsim.workload.model import Model, Precision
from archsim.workload.operators import Operator, OpGraph
from archsim.workload.step import Step

BF16 = format_named("bf16")
FP8 = format_named("fp8")
STATE = ("state_update", "state_scan")
REDUCED = ("o", "down", "out_proj", "x_proj", "embedding")  # operators that leave partial sums on tensor ranks
JOINS = "shared_add"
WHOLE_NORM = "whole_norm"  # of queries and keys over all heads: tensor ranks add up their squares
SUMS = 2 * 4.0  # bytes of these sums, one of the queries and one of the keys, of a token
GENERATION = ("generation_attention", "mla_generation")
VOCABULARY_PADDING = 64  # engines pad the vocabulary to this before they divide it
WIDE = 2.0  # bytes of an activation on a link
CACHED = (*GENERATION, "context_attention", "mla_context")
BACKING = "backing"  # the memory behind an LPU, and the `library` of kernels that read it
NONE: Mapping[str, Array] = {}
EXCHANGE = {"exchanges": array(1.0)}  # gathering or scattering, half of an all-reduce


@dataclass(frozen=True, eq=False)
class Deployment:
    """A model in a precision on chips of one kind, under a split and a runtime.

    `skew` is the exponent of the power law by which tokens repeat experts (0: uniform): it decides how many distinct
    experts a step reads.
    """

    model: Model
    precision: Precision
    split: Split
    chip: Chip
    runtime: Runtime
    skew: Array
    options: Options = field(default_factory=Options)
    partner: Partner | None = None

    def micro_batches(self, step: Step) -> int:
        """Micro-batches of a step on one pool; steps with prefill run whole."""
        return 1 if step.prefills else self.options.micro_batches


def place(d: Deployment, step: Step) -> Plan:
    """The plan of one forward pass, as the busiest of the data-parallel ranks sees it.

    Raises Unsuited when the chip has no matrix format wide enough for a product.
    """
    if d.partner is not None and d.partner.job == "roles":
        from archsim.mapping.apart import place_apart  # it places by means of this module

        return place_apart(d, step, d.partner)
    batches = d.micro_batches(step)
    return _placed(d, step, lower(d.model, step.divided(d.split.groups * d.split.pipeline * batches), d.precision))


def place_module(d: Deployment, step: Step) -> Plan:
    """The plan of a pass through one prediction module (MTP) of the model, its head included; see `place`.

    All ranks of a replica share it, so that it runs as one stage. Raises ValueError for a model without one.
    """
    if not d.model.mtp_layers:
        raise ValueError(f"{d.model.name} has no prediction modules (MTP)")
    whole, options = replace(d.split, pipeline=array(1.0)), d.options.model_copy(update={"micro_batches": 1})
    one = replace(d.model, mtp_layers=1)
    graph = lower_mtp(one, step.divided(d.split.groups), d.precision)
    return _placed(replace(d, split=whole, options=options), step, graph)


def _placed(d: Deployment, step: Step, graph: OpGraph) -> Plan:
    """The plan of a graph that is one rank's share of a step."""
    batches = d.micro_batches(step)
    placer = Placer(graph, d.split, d.chip, d.runtime, d.skew, d.options, batches)
    runtime = d.runtime
    blocks = {name: placer.block(name) for name in graph.linked}
    rows = runtime.host.sequence * graph.step.sequences + runtime.host.request * graph.step.prefill_requests
    host = runtime.host.step + rows * batches
    launch = runtime.host.launch if runtime.eager(step.prefills) else 0.0
    boundary = graph.step.tokens * d.model.hidden * WIDE
    return Plan(d.split, blocks, graph.sequence, host, launch, boundary, _flight(d, step))


def _flight(d: Deployment, step: Step) -> Array | None:
    """Micro-batches on their way through stages: an LPU has no more of them than sequences to serve."""
    if d.chip.kind != "lpu":
        return None
    waiting = np.ceil((step.sequences + step.prefill_requests) / d.split.groups)
    return np.minimum(d.split.pipeline, np.maximum(waiting, 1.0))


@dataclass(frozen=True, eq=False)
class Placer:
    """What placing the blocks of one step shares."""

    graph: OpGraph
    split: Split
    chip: Chip
    runtime: Runtime
    skew: Array
    options: Options
    batches: int
    placed: dict[int, list[Kernel]] = field(default_factory=dict)
    marked: dict[int, Kernel] = field(default_factory=dict)  # kernels of another pool, by those they are made of

    def block(self, name: str) -> tuple[Task, ...]:
        """The tasks of a block in lane order: kernels as their operators come, collectives where they are due."""
        tasks: list[Task] = []
        last = ""
        for operator in self.graph.operators(name):
            last = operator.name
            for kernel in self.kernels(operator):
                self._append(tasks, kernel)
        for kernel in self.end(name, last):
            self._append(tasks, kernel)
        return interleaved(tasks, self.batches)

    def kernels(self, operator: Operator) -> list[Kernel]:
        """The kernels of an operator, the same objects wherever it stands, so that they are priced once."""
        if id(operator) not in self.placed:
            kernels = (self._quantizer(operator), self._before(operator), self._kernel(operator), self._after(operator))
            self.placed[id(operator)] = [kernel for group in kernels for kernel in group]
        return self.placed[id(operator)]

    def _append(self, tasks: list[Task], kernel: Kernel) -> None:
        lane = "link" if kernel.kind in ("all_reduce", "all_to_all") else "compute"
        tasks.append(Task(kernel, lane, (len(tasks) - 1,) if tasks else (), 0))

    def _kernel(self, operator: Operator) -> list[Kernel]:
        if operator.kind == "elementwise" and self.runtime.fused(operator.name):
            return []
        weight, entry = self._formats(operator)
        # a recurrent state is kept wider than it is multiplied
        compute = self.chip.compute_format(BF16 if operator.kind in STATE else weight, entry)
        if compute is None:
            raise Unsuited(
                f"{self.chip.name} has no matrix format for {operator.name}: "
                f"{weight.name} weights with {entry.name} activations"
            )
        dims = self._dims(operator)
        stack = self.runtime.taken.get(operator.kind, {}).get(weight.name, "")
        shown = self._shown(operator, operator.kind)
        names = (operator.name,)
        kind, role = operator.kind, operator.role
        where = BACKING if self.options.kv == BACKING and kind in CACHED else ""
        return [Kernel(operator.name, kind, role, dims, weight, entry, compute, names, where, stack, shown)]

    def _shown(self, operator: Operator, kind: str) -> float:
        """Share of a kernel's fixed time that shows: none beside the routed experts, until both meet."""
        if operator.role in self.runtime.beside and operator.name != JOINS:
            return 0.0
        return self.runtime.shown.get(kind, 1.0)

    def _formats(self, operator: Operator) -> tuple[Format, Format]:
        """Formats of the weights (or the cache or state) and of the other operand.

        Index keys meet index queries of their own width. Products without a class of their own, such as the per-head
        ones of absorbed latent attention, stay in bf16,
        as engines keep them.
        """
        precision = self.graph.precision
        if operator.store is not None:
            return operator.store, FP8 if operator.kind == "indexer" else BF16
        if not operator.tensor:
            return (BF16 if operator.kind == "gemm" else precision.kv), BF16
        if operator.kind == "elementwise":
            return precision.of(operator.tensor), BF16
        return precision.of(operator.tensor), self.input_format(operator.tensor)

    def input_format(self, tensor: str) -> Format:
        """The format of a product's input: as narrow as the precision says if the chip multiplies that format, else
        bf16."""
        wanted = self.graph.precision.input_to(tensor)
        compute = self.chip.compute_format(self.graph.precision.of(tensor), wanted)
        return wanted if compute is not None and FORMAT_BITS[compute] <= wanted.bits else BF16

    def _quantizer(self, operator: Operator) -> list[Kernel]:
        """The kernel that quantises the input of a product, where the runtime has one apart."""
        if operator.kind != "gemm" or not operator.tensor:
            return []
        fmt = self.input_format(operator.tensor)
        if operator.name not in self.runtime.quantizers.get(fmt.name, ()):
            return []
        dims = self._dims(operator)
        sizes = {"tokens": dims["m"], "bytes": dims["k"] * (2.0 + fmt.bytes)}
        name, shown = f"{operator.name}_quantizer", self._shown(operator, "elementwise")
        return [Kernel(name, "elementwise", operator.role, sizes, BF16, fmt, "bf16", (), shown=shown)]

    def _dims(self, operator: Operator) -> dict[str, Array]:
        dims = {name: divide(operator.dims, name, rule, self.split) for name, rule in _rules(operator)}
        if operator.kind == "gemm" and "n_kv" in dims:
            dims["n"] = dims["n"] + dims.pop("n_kv")
            dims.pop("kv_heads")
        if operator.kind in GENERATION:
            shared = {name: dims[name] / self.split.context for name in ("tokens", "length")}
            dims |= shared | {"heads": dims["heads"] * self.split.context}
        if operator.role == "norm" and self.options.sequence_parallel:
            dims["tokens"] = dims["tokens"] / self.split.tensor
        if operator.kind == "experts":
            dims |= {"skew": self.skew, "all_experts": operator.dims["experts"], "expert_ranks": self.split.expert}
            dims["experts"] = dims["experts"] + self.options.redundant_experts / self.split.expert
            dims["hottest"] = self._hottest(operator)
            dims["tokens"] = dims["tokens"] * self.split.attention_data
            dims["apart"] = self.split.attention_data
        return dims

    def _hottest(self, operator: Operator) -> Array:
        """Load of the busiest expert rank over the mean, from popularity alone."""
        experts, top_k = int(operator.dims["experts"].max()), int(operator.dims["top_k"].max())
        options = self.options
        return busiest_rank(experts, top_k, self.split.expert, options.redundant_experts, options.imbalance)

    def _before(self, operator: Operator) -> list[Kernel]:
        """Dispatch of tokens to the ranks of their experts; gathering of queries where ranks share a sequence's
        tokens."""
        if operator.kind in GENERATION:
            return [self._over_context("context_gather", operator, "width")]
        if operator.kind != "experts":
            return []
        return [self._all_to_all("dispatch", operator, self.input_format("experts"))]

    def _over_context(self, name: str, operator: Operator, width: str) -> Kernel:
        """Queries gathered, or partial results summed and scattered: half the bytes of an all-reduce of all heads."""
        d, ranks = operator.dims, self.split.context
        rows = d["sequences"] * d["queries"] * d["heads"] / self.split.tensor * ranks
        size = rows * d[width] * WIDE / 2.0
        return self.reduced(name, "attention", size, ranks, EXCHANGE)

    def _after(self, operator: Operator) -> list[Kernel]:
        if operator.kind == "experts":
            return [self._all_to_all("return", operator, BF16)]
        if operator.kind in GENERATION:
            return [self._over_context("context_reduce", operator, "value")]
        if operator.name in REDUCED:
            columns = operator.dims.get("n", array(self.graph.model.hidden))
            tokens = operator.dims.get("m", operator.dims.get("tokens", array(0.0)))
            return [self._all_reduce(f"{operator.name}_all_reduce", operator.role, tokens * columns * WIDE)]
        if operator.name == WHOLE_NORM:
            return [self._all_reduce("norm_all_reduce", operator.role, operator.dims["tokens"] * SUMS)]
        if operator.name == "head":
            logits = operator.dims["m"] * self.graph.model.vocab * WIDE
            return [self.reduced("logits_gather", "head", logits / 2.0, self.split.tensor, EXCHANGE)]
        return []

    def end(self, block: str, last: str) -> list[Kernel]:
        """Partial sums of routed and shared experts meet at the end of their layer.

        Where attention is data-parallel, experts have already returned whole rows, and only a gather among the
        tensor ranks is left, which moves half the bytes of an all-reduce.
        """
        if last not in ("combine", "latent_out", "shared_add"):
            return []
        size = self.graph.step.tokens * self.graph.model.hidden * WIDE
        return [
            self._all_reduce("experts_all_reduce", "experts", np.where(self.split.attention_data > 1, size / 2.0, size))
        ]

    def _all_reduce(self, name: str, role: str, size: Array) -> Kernel:
        return self.reduced(name, role, size, self.split.tensor)

    def reduced(self, name: str, role: str, size: Array, ranks: Array, part: Mapping[str, Array] = NONE) -> Kernel:
        """An all-reduce of `size` bytes over `ranks`, or the `part` of one: a gather, a scatter."""
        dims = {"bytes": size, "ranks": ranks, **part}
        return Kernel(name, "all_reduce", role, dims, BF16, BF16, "bf16", (), self.runtime.all_reduce)

    def _all_to_all(self, name: str, operator: Operator, fmt: Format) -> Kernel:
        """Every token of this rank goes to its experts, to every slice of them; tensor ranks send a share each."""
        split, top_k = self.split, operator.dims["top_k"]
        copies = np.where(split.expert_tensor > 1, np.minimum(top_k * split.expert_tensor, split.ranks), top_k)
        size = operator.dims["tokens"] / split.tensor * copies * operator.dims["hidden"] * fmt.bytes
        ranks = np.where(split.attention_data > 1, split.ranks, 1.0)
        dims = {"bytes": size, "ranks": ranks, "copies": copies, "prompt": self.graph.step.prefill_tokens}
        return Kernel(name, "all_to_all", "experts", dims, BF16, fmt, "bf16", ())


def _rules(operator: Operator) -> list[tuple[str, str]]:
    return [(name, operator.divided.get(name, "")) for name in operator.dims]


def divide(dims: Mapping[str, Array], name: str, rule: str, split: Split) -> Array:
    """The size of one rank: its share of dimension `name` under a rule of `Operator.divided`."""
    value = dims[name]
    if rule == "tensor":
        return value / split.tensor
    if rule == "kv_heads":
        return value / np.minimum(split.tensor, dims["kv_heads"])
    if rule == "vocabulary":
        return np.ceil(np.where(split.tensor > 1, ceil_to(value, VOCABULARY_PADDING), value) / split.tensor)
    if rule == "expert":
        return value / split.expert
    if rule == "expert_tensor":
        return value / split.expert_tensor
    return value
