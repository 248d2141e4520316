"""Placement on two pools: operators of some roles run on the other pool, and activations travel there and back.

Every replica of the main pool sends its tokens in micro-batches. What the other pool runs of a layer is one run of
kernels between two transfers; what of the main pool does not need its results goes on meanwhile. Chips pinned to a layer
serve the replicas in turn.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from archsim.arrays import Array, array
from archsim.mapping.interleave import interleaved
from archsim.mapping.place import BF16, EXCHANGE, WIDE, Deployment, Placer
from archsim.mapping.plan import Away, Kernel, Plan, Task
from archsim.mapping.split import Split
from archsim.mapping.system import Partner, Wire
from archsim.units import Format
from archsim.workload.lowering import lower
from archsim.workload.operators import Operator, OpGraph
from archsim.workload.step import Step

COLLECTIVES = ("all_reduce", "all_to_all")


def partner_deployment(d: Deployment, partner: Partner) -> Deployment:
    """What the other pool deploys of the same model."""
    if d.split.partner is None:
        raise ValueError("a partner needs a split")
    return Deployment(d.model, d.precision, d.split.partner, partner.chip, partner.runtime, d.skew, d.options)


def place_apart(d: Deployment, step: Step, partner: Partner) -> Plan:
    """The plan of one forward pass on two pools, as the busiest rank of each sees it.

    Raises ValueError when a chip has no matrix format wide enough for a product.
    """
    other = partner_deployment(d, partner)
    batches = array(1.0) if step.prefills else d.split.micro_batches
    own = lower(d.model, step.divided(d.split.groups * batches), d.precision)
    theirs = lower(d.model, step.divided(d.split.data * other.split.data * batches), d.precision)
    placers = _placer(own, d), _placer(theirs, other)
    travel = _Travel(partner, d.split, own.step.tokens * d.split.attention_data, d.model.hidden)
    blocks = {}
    for name in own.linked:
        tasks = _Block(*placers, partner, travel).tasks(name)
        blocks[name] = interleaved(tasks, int(batches.max()))
    host = d.runtime.host
    rows = host.sequence * own.step.sequences + host.request * own.step.prefill_requests
    launch = host.launch if d.runtime.eager(step.prefills) else 0.0
    layers = sum(count for name, count in own.sequence if any(task.lane == "ffn" for task in blocks[name]))
    away = Away(partner.name, partner.chip, partner.runtime.stack, batches, partner.pinned, layers)
    boundary = own.step.tokens * d.model.hidden * WIDE
    return Plan(d.split, blocks, own.sequence, host.step + rows * batches, launch, boundary, away=away)


def _placer(graph: OpGraph, d: Deployment) -> Placer:
    return Placer(graph, d.split, d.chip, d.runtime, d.skew, d.options, 1)


def places(split: Split, domain: int, top_k: Array, routed: bool) -> tuple[Array, Array]:
    """Domains of fast links that an instance of the other pool spans, and how many of them a token has to reach.

    A token goes to the domains of its experts: n (1 - (1 - 1/n)^k) of n that hold different ones, and to all of those
    that share an expert.
    """
    domains = np.ceil(split.ranks / domain)
    different = np.minimum(domains, split.expert) if routed else array(1.0)
    reached = different * (1.0 - (1.0 - 1.0 / different) ** top_k)
    return domains, domains / different * reached


@dataclass(frozen=True, eq=False)
class _Travel:
    """The activations of one micro-batch of a replica on their way: `tokens` in all, `hidden` wide."""

    partner: Partner
    split: Split
    tokens: Array
    hidden: int

    def kernel(self, name: str, wire: Wire, role: str, fmt: Format, copies: Array) -> Kernel:
        """A transfer: each chip at the narrower end carries its share."""
        other = self.split.partner
        senders, receivers = self.split.ranks, array(1.0) if other is None else other.ranks * other.data
        if name == "back":
            senders, receivers = receivers, senders
        dims = {
            "bytes": self.tokens * self.hidden * fmt.bytes * copies,
            "copies": copies,
            "bandwidth": np.minimum(senders * wire.sender, receivers * wire.receiver),
            "latency": wire.latency,
        }
        return Kernel(name, "transfer", role, dims, BF16, fmt, "bf16", ())


@dataclass(eq=False)
class _Block:
    """The tasks of one block in the making.

    `waiting` are operators whose results are still with the other pool, `last` the last one it ran, `away` its last task,
    `here` the last task of the main pool, `back` the way back that its next task waits for.
    """

    own: Placer
    other: Placer
    partner: Partner
    travel: _Travel
    made: list[Task] = field(default_factory=list)
    waiting: set[str] = field(default_factory=set)
    here: tuple[int, ...] = ()
    away: int | None = None
    back: int | None = None
    copies: Array = field(default_factory=lambda: array(1.0))
    share: Array = field(default_factory=lambda: array(1.0))
    role: str = "ffn"
    last: str = ""

    def tasks(self, name: str) -> Sequence[Task]:
        """All tasks, each with those it waits for."""
        final = ""
        for (operator, after), twin in zip(self.own.graph.linked[name], self.other.graph.operators(name), strict=True):
            if operator.role in self.partner.roles:
                self._remote(twin)
            else:
                self._local(operator, after)
                final = operator.name
        self._finish()
        if final and final == self.own.graph.operators(name)[-1].name:
            for kernel in self.own.end(name, final):
                self._append(kernel, "link")
        return self.made

    def _local(self, operator: Operator, after: tuple[str, ...]) -> None:
        """An operator of the main pool, after what it needs has come back."""
        kernels = self.own.kernels(operator)
        needs = any(name in self.waiting for name in after)
        if not kernels:
            self.waiting |= {operator.name} if needs else set()
            return
        if needs:
            self._finish()
        for kernel in kernels:
            self._append(kernel, "link" if kernel.kind in COLLECTIVES else "compute")

    def _finish(self) -> None:
        """Sums of the other pool that are still open, the way back, and a gather among tensor ranks."""
        self.waiting.clear()
        if self.away is None:
            return
        for kernel in self.other.end("", self.last):
            self._append(self._theirs(kernel), "ffn_link")
        back = self.travel.kernel("back", self.partner.back, self.role, BF16, self.copies)
        self.made.append(Task(back, "from_ffn", (self.away,)))
        self.back, self.away = len(self.made) - 1, None
        if (self.own.split.tensor > 1).any():
            size = self.own.graph.step.tokens * self.own.graph.model.hidden * WIDE
            self._append(self.own.reduced("rows_gather", self.role, size / 2.0, self.own.split.tensor, EXCHANGE), "link")

    def _remote(self, operator: Operator) -> None:
        """An operator of the other pool, after the tokens have come."""
        kernels = [k for k in self.other.kernels(operator) if k.kind not in COLLECTIVES or (k.dims["ranks"] > 1).any()]
        self.waiting.add(operator.name)
        self.last = operator.name
        if kernels and self.away is None:
            self._leave(operator)
        for kernel in kernels:
            self._append(self._theirs(kernel), "ffn_link" if kernel.kind in COLLECTIVES else "ffn")

    def _leave(self, operator: Operator) -> None:
        """The tokens go out: to every domain that holds one of their experts."""
        block = [o for o in self.other.graph.everything() if o[0].kind == "experts" and o[0].role in self.partner.roles]
        routed = operator.role in ("router", "experts", "shared")
        top_k = block[0][0].dims["top_k"] if routed and block else array(1.0)
        link = self.partner.chip.links.get("scale_up")
        split = self.other.split
        domains, self.copies = places(split, link.domain if link else 1, top_k, routed and bool(block))
        self.role = "experts" if routed else operator.role
        fmt = self.other.input_format("experts" if routed and block else "weights")
        out = self.travel.kernel("out", self.partner.out, self.role, fmt, self.copies)
        self.share = self.copies / domains
        self.made.append(Task(out, "to_ffn", self.here))
        self.away = len(self.made) - 1

    def _append(self, kernel: Kernel, lane: str) -> None:
        if lane in ("ffn", "ffn_link"):
            if self.away is None:
                raise ValueError(f"{kernel.name} has no tokens")
            self.made.append(Task(kernel, lane, (self.away,)))
            self.away = len(self.made) - 1
            return
        after = self.here if self.back is None else (*self.here, self.back)
        self.made.append(Task(kernel, lane, after))
        self.here, self.back = (len(self.made) - 1,), None

    def _theirs(self, kernel: Kernel) -> Kernel:
        """A kernel of the other pool; its collectives stay inside a domain, with the tokens that come there."""
        key = id(kernel)
        if key not in self.other.marked:
            dims = dict(kernel.dims)
            if kernel.kind in COLLECTIVES:
                link = self.partner.chip.links.get("scale_up")
                dims["ranks"] = np.minimum(dims["ranks"], float(link.domain) if link else 1.0)
                dims["bytes"] = dims["bytes"] * self.share
            self.other.marked[key] = replace(kernel, dims=dims, pool=self.partner.name)
        return self.other.marked[key]
