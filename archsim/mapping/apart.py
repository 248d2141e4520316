"""Placement on two pools: operators of some roles run on the other pool, and activations travel there and back.

Every replica of the main pool sends its tokens in micro-batches. What the other pool runs of a layer is one run of
kernels between two transfers; what of the main pool does not need its results goes on meanwhile. Chips pinned to a
layer serve the replicas in turn.
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
ENTERS = ("tokens_gather", "dispatch")  # collectives that spread tokens inside the other pool


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
    sharing = d.split.data if partner.pinned else array(1.0)  # replicas take turns at pinned chips, else come together
    theirs = lower(d.model, step.divided(sharing * other.split.groups * batches), d.precision)
    placers = _placer(own, d), _placer(theirs, other)
    tokens = own.step.tokens * d.split.groups / sharing
    travel = _Travel(partner, d.split, tokens, d.model.hidden)
    blocks = {}
    for name in own.linked:
        tasks = _Block(*placers, partner, travel).tasks(name)
        blocks[name] = interleaved(tasks, int(batches.max()), _section)
    host = d.runtime.host
    rows = host.sequence * own.step.sequences + host.request * own.step.prefill_requests
    launch = host.launch if d.runtime.eager(step.prefills) else 0.0
    layers = sum(count for name, count in own.sequence if any(task.lane == "ffn" for task in blocks[name]))
    away = Away(partner.name, partner.chip, partner.runtime.stack, batches, partner.pinned, layers)
    boundary = own.step.tokens * d.model.hidden * WIDE
    return Plan(d.split, blocks, own.sequence, host.step + rows * batches, launch, boundary, away=away)


def _section(lane: str) -> str:
    """Lanes of one pool: a micro-batch goes through all of its part of a layer there before the next one comes."""
    return {"ffn_in": "ffn", "ffn_out": "ffn", "link": "compute"}.get(lane, lane)


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
    """The activations of one micro-batch on their way: `tokens` of all that come together, `hidden` wide."""

    partner: Partner
    split: Split
    tokens: Array
    hidden: int

    def kernel(self, name: str, wire: Wire, role: str, fmt: Format, copies: Array) -> Kernel:
        """A transfer: each chip at the narrower end carries its share."""
        other = self.split.partner
        senders = self.split.ranks if self.partner.pinned else self.split.chips
        receivers = array(1.0) if other is None else other.ranks * other.data
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

    `waiting` are operators of the other pool that are due, `passed` those of the main pool that need them and have no
    kernel; `last` is the last task of the main pool, `back` the way back that its next task waits for.
    """

    own: Placer
    other: Placer
    partner: Partner
    travel: _Travel
    made: list[Task] = field(default_factory=list)
    waiting: dict[str, Operator] = field(default_factory=dict)
    passed: set[str] = field(default_factory=set)
    last: tuple[int, ...] = ()
    back: int | None = None

    def tasks(self, name: str) -> Sequence[Task]:
        """All tasks, each with those it waits for."""
        final = ""
        for (operator, after), twin in zip(self.own.graph.linked[name], self.other.graph.operators(name), strict=True):
            if operator.role in self.partner.roles:
                self.waiting[operator.name] = twin
            else:
                self._local(operator, after)
                final = operator.name
        self._away()
        if final and final == self.own.graph.operators(name)[-1].name:
            for kernel in self.own.end(name, final):
                self._here(kernel)
        return self.made

    def _local(self, operator: Operator, after: tuple[str, ...]) -> None:
        """An operator of the main pool, after what it needs has come back."""
        kernels = self.own.kernels(operator)
        needs = any(name in self.waiting or name in self.passed for name in after)
        if not kernels:
            self.passed |= {operator.name} if needs else set()
        elif needs:
            self._away()
        for kernel in kernels:
            self._here(kernel)

    def _here(self, kernel: Kernel) -> None:
        """A kernel of the main pool, after the one before it and whatever has come back."""
        after = self.last if self.back is None else (*self.last, self.back)
        self.made.append(Task(kernel, "link" if kernel.kind in COLLECTIVES else "compute", after))
        self.last, self.back = (len(self.made) - 1,), None

    def _away(self) -> None:
        """The operators that wait for their turn on the other pool, between the ways there and back."""
        operators = list(self.waiting.values())
        self.waiting.clear()
        self.passed.clear()
        kernels = [(o, kernel) for o in operators for kernel in self.other.kernels(o) if _works(kernel)]
        if not kernels:
            return
        copies, share = self._reach(operators)
        routed = any(operator.kind == "experts" for operator in operators)
        role, split = operators[0].role, self.other.split
        fmt = self.other.input_format("experts" if routed else "weights")
        self.made.append(Task(self.travel.kernel("out", self.partner.out, role, fmt, copies), "to_ffn", self.last))
        size = self.other.graph.step.tokens * self.other.graph.model.hidden
        inside = [self.other.reduced("tokens_gather", role, size * fmt.bytes, split.tensor)]
        inside = [kernel for kernel in inside if _works(kernel)] + _shared_first(kernels)
        sent: int | None = None  # tokens on their way to their experts, while shared ones run
        met = False
        for kernel in (*inside, *self.other.end("", operators[-1].name)):
            lane, met = _lane(kernel, met), met or kernel.kind == "experts"
            after = len(self.made) - 1
            before = after - 1 if sent == after else after
            waits = (before,) if kernel.kind != "experts" or sent is None else tuple(dict.fromkeys((sent, after)))
            self.made.append(Task(self._theirs(kernel, share), lane, waits))
            sent = len(self.made) - 1 if kernel.name == "dispatch" else sent
        back = self.travel.kernel("back", self.partner.back, role, BF16, copies)
        self.made.append(Task(back, "from_ffn", (len(self.made) - 1,)))
        self.back = len(self.made) - 1
        gather = self.own.reduced(
            "rows_gather",
            "attention",
            self.own.graph.step.tokens * self.own.graph.model.hidden,
            self.own.split.tensor,
            EXCHANGE,
        )
        if _works(gather):
            self._here(gather)

    def _reach(self, operators: Sequence[Operator]) -> tuple[Array, Array]:
        """Copies of a token that go out, and the share of all tokens that come to one domain."""
        experts = [operator for operator in operators if operator.kind == "experts"]
        link = self.partner.chip.links.get("scale_up")
        top_k = experts[0].dims["top_k"] if experts else array(1.0)
        domains, copies = places(self.other.split, link.domain if link else 1, top_k, bool(experts))
        return copies, copies / domains

    def _theirs(self, kernel: Kernel, share: Array) -> Kernel:
        """A kernel of the other pool; its collectives stay inside a domain, with the tokens that come there.

        Tokens arrive, and results leave, parted among tensor ranks: a gather and a scatter, half an all-reduce each.
        """
        if id(kernel) not in self.other.marked:
            dims = dict(kernel.dims)
            if kernel.kind in COLLECTIVES:
                link = self.partner.chip.links.get("scale_up")
                dims["ranks"] = np.minimum(dims["ranks"], float(link.domain) if link else 1.0)
            if kernel.kind == "all_reduce":
                whole = self.other.split.attention_data > 1  # ranks with tokens of their own only gather already
                dims["bytes"] = dims["bytes"] * np.where(whole, 1.0, share / 2.0)
                dims |= EXCHANGE
            self.other.marked[id(kernel)] = replace(kernel, dims=dims, pool=self.partner.name)
        return self.other.marked[id(kernel)]


def _works(kernel: Kernel) -> bool:
    """Whether a kernel is one anywhere: a collective of one rank is none."""
    return kernel.kind not in COLLECTIVES or bool((kernel.dims["ranks"] > 1).any())


def _lane(kernel: Kernel, met: bool) -> str:
    """The lane of a kernel of the other pool: small kernels behind the experts are part of how results meet."""
    if kernel.kind in COLLECTIVES:
        return "ffn_in" if kernel.name in ENTERS else "ffn_out"
    return "ffn_out" if met and kernel.kind == "elementwise" else "ffn"


def _shared_first(kernels: list[tuple[Operator, Kernel]]) -> list[Kernel]:
    """Shared experts run while tokens travel to the routed ones."""
    early = [kernel for operator, kernel in kernels if operator.role == "shared" and operator.name != "shared_add"]
    late = [kernel for operator, kernel in kernels if operator.role != "shared" or operator.name == "shared_add"]
    place = next((index for index, kernel in enumerate(late) if kernel.kind == "experts"), None)
    return early + late if place is None else late[:place] + early + late[place:]
