"""The steady answer: a closed loop of clients, prefill among decode, as a fixed point.

Every client sends its next request when it has its answer. New prompts join steps that also decode; between two
tokens of a sequence lies one decode step, plus its share of the prefill of all others. Form: `docs/models.md`.
"""

from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from archsim.arrays import Array, array
from archsim.engine.step import PricedStep, run_step
from archsim.mapping.memory import memory_plan
from archsim.mapping.place import Deployment, place
from archsim.mapping.plan import MemoryPlan
from archsim.serving.speculation import Speculation, Writer
from archsim.workload.model import LatentAttention, Moe
from archsim.workload.step import decode, prefill

ROUNDS = 40  # halvings of the path
PASSES = 1  # of pricing the steps again for the sequences that turn out to decode
KNOTS = 9  # numbers of requests a step at which mixed steps are priced
HELD = 0.6  # share of its output that a running sequence holds on average, with headroom against preemption


@dataclass(frozen=True, eq=False)
class Steady:
    """Times (s) and rates of the closed loop; shapes broadcast over splits and clients.

    `running` are sequences in decode at once (the rest waits for memory), `decode` the plain step, `mixed` the step
    with prefill, `joined` the requests such a step takes, `place` where that lies among the KNOTS at which mixed steps
    are priced, `most` the requests that one step can take, `prefill_share` the share of time that prefill adds.
    """

    ttft: Array
    tpot: Array
    running: Array
    requests_per_second: Array
    joined: Array
    prefill_share: Array
    decode: PricedStep
    mixed: PricedStep
    mixed_seconds: Array
    mixed_time: Array
    place: Array
    most: Array
    memory: MemoryPlan
    pace: "Pace | None" = None

    @property
    def cycle(self) -> Array:
        """Seconds of a plain decode step, the writing of drafts included."""
        return self.decode.turnaround if self.pace is None else self.decode.turnaround + self.pace.seconds

    @property
    def tokens(self) -> Array:
        """Tokens that a sequence gets from a step: 1 without drafts."""
        return array(1.0) if self.pace is None else self.pace.tokens

    def at_joined(self, values: Array) -> Array:
        """Of `values` at every knot, the one where the loop settled."""
        return _interpolate(self.place, values)


@dataclass(frozen=True, eq=False)
class Pace:
    """How drafts change the steps of a loop: queries and tokens of a sequence, seconds and joules to write drafts.

    `reading_joules` are what a model that drafts takes to read the prompts of a mixed step, at every knot.
    Where drafts do not pay these are 1, 1, 0 and 0.
    """

    queries: Array
    tokens: Array
    seconds: Array
    joules: Array
    writer: Writer | None
    reading_joules: Array = field(default_factory=lambda: array(0.0))


def pace_of(d: Deployment, speculation: Speculation | None, batch: Array, context: Array) -> Pace | None:
    """The pace of decode steps of `batch` sequences of `context` tokens; None without drafts."""
    if speculation is None:
        return None
    drafts, writer = speculation.drafts, speculation.writer
    queries = array(1.0 + drafts)
    seconds, joules = (
        (array(0.0), array(0.0))
        if writer is None
        else (writer.seconds(drafts, batch, context), writer.joules(drafts, batch, context))
    )
    tokens = speculation.tokens
    if speculation.always:
        return Pace(queries, tokens, seconds, joules, writer)
    clips, stack = d.model.clips, d.runtime.stack
    plain, drafted = (
        run_step(place(d, decode(batch, context, clips, rows)), d.chip, stack).turnaround for rows in (1, queries)
    )
    pays = drafted + seconds < tokens * plain
    queries, tokens = np.where(pays, queries, 1.0), np.where(pays, tokens, 1.0)
    return Pace(queries, tokens, np.where(pays, seconds, 0.0), np.where(pays, joules, 0.0), writer)


def steady(
    d: Deployment,
    clients: Array,
    prompt: Array,
    output: Array,
    cached: Array,
    speculation: Speculation | None = None,
) -> Steady:
    """The closed loop of `clients` in all, each request with `prompt` tokens in and `output` tokens out.

    `cached` tokens of each prompt are found in the prefix cache, and at least the last one is computed. Steps verify
    the drafts of `speculation` where that pays. Replicas share the clients and know nothing of each other's prefill.
    The last axis of every swept array must have length 1: mixed steps are priced along it.
    """
    if d.partner is not None or float(d.split.data.max()) == 1.0:
        return _looped(d, clients, prompt, output, cached, speculation)
    busy = np.minimum(d.split.data, np.maximum(clients, 1.0))
    one, share = replace(d, split=replace(d.split, data=array(1.0))), clients / busy
    loop = _looped(one, share, prompt, output, cached, speculation)
    running = np.where(loop.running >= share, clients, loop.running * busy)
    return replace(loop, running=running, requests_per_second=loop.requests_per_second * busy)


def _looped(
    d: Deployment, clients: Array, prompt: Array, output: Array, cached: Array, speculation: Speculation | None
) -> Steady:
    """The loop of one replica, or of all that share another pool."""
    groups = d.split.groups
    memory = memory_plan(d, clients, prompt + HELD * output)
    weights, each = (array(0.0),) * 2 if speculation is None else speculation.held
    held = memory.per_sequence + each * (prompt + HELD * output)
    room = np.floor(np.maximum(memory.free_for_kv - weights, 0.0) / held) * groups
    running = np.maximum(np.minimum(clients, room), 1.0)
    loop, plain, mixed, state = _settled(d, running, running, prompt, output, cached, speculation)
    for _ in range(PASSES):
        decoding = np.clip(state.rate * output * state.tpot, 1.0, running)
        loop, plain, mixed, state = _settled(d, running, decoding, prompt, output, cached, speculation)
    ttft = clients / state.rate - output * state.tpot  # Little's law, waiting for memory included
    return _told(loop, state, plain, mixed, running, ttft, memory)


def _settled(
    d: Deployment,
    running: Array,
    decoding: Array,
    prompt: Array,
    output: Array,
    cached: Array,
    speculation: Speculation | None,
) -> tuple["_Loop", PricedStep, PricedStep, "_State"]:
    """The loop with its steps priced for so many decoding sequences; the others are in prefill or wait for it."""
    context = prompt + output / 2.0
    pace = pace_of(d, speculation, decoding, context)
    queries = array(1.0) if pace is None else pace.queries
    plain = run_step(place(d, decode(decoding, context, d.model.clips, queries)), d.chip, d.runtime.stack)
    cycle = plain.turnaround if pace is None else plain.turnaround + pace.seconds
    loop = _Loop(d, running, decoding, prompt, output, np.minimum(cached, prompt - 1.0), cycle, pace)
    mixed = loop.mixed_steps(queries)
    return loop, plain, mixed, loop.settle(with_prefill(plain, mixed) + loop.writing())


@dataclass(frozen=True, eq=False)
class _State:
    """A closed loop in which a share `mixed` of the steps takes `joined` requests each, at a `place` among the knots.

    Seconds of a mixed step, of the mean step and between tokens of a sequence; requests a second; sequences that it
    keeps
    running.
    """

    place: Array
    joined: Array
    mixed: Array
    seconds: Array
    mean: Array
    tpot: Array
    rate: Array
    running: Array


@dataclass(frozen=True, eq=False)
class _Loop:
    """What the rounds of the fixed point share."""

    d: Deployment
    running: Array
    decoding: Array
    prompt: Array
    output: Array
    cached: Array
    plain: Array
    pace: Pace | None = None

    @property
    def others(self) -> Array:
        """The share of the running sequences that any one of them meets."""
        return (self.running - 1.0) / self.running

    @cached_property
    def fresh(self) -> Array:
        """Tokens of a prompt that are computed."""
        return self.prompt - self.cached

    @property
    def chunk(self) -> float:
        """Prefill tokens a rank takes in a step."""
        return float(self.d.runtime.chunk)

    @cached_property
    def chunks(self) -> Array:
        """Steps one prompt needs."""
        return np.ceil(self.fresh / self.chunk)

    @cached_property
    def most(self) -> Array:
        """Requests that fit into one step of all ranks."""
        return self.d.split.groups * np.maximum(np.floor(self.chunk / self.fresh), 1.0)

    @cached_property
    def host(self) -> float:
        """Seconds of the host before a first token."""
        return self.d.runtime.host.arrival + self.d.runtime.host.expert_layer * expert_layers(self.d)

    @cached_property
    def least(self) -> Array:
        """Requests that a step with prefill waits for: one, or one a rank, as far as there are clients."""
        if not self.d.runtime.together:
            return np.ones(1)
        return np.maximum(np.minimum(self.d.split.attention_data, self.running), 1.0)

    def joined(self, place: Array) -> Array:
        """Requests of a step between the least (0) and the most (1)."""
        return self.least * (self.most / self.least) ** place

    def knots(self) -> Array:
        """Numbers of requests a step, from the least to the most, along the last axis, even in their logarithm."""
        return self.joined(np.linspace(0.0, 1.0, KNOTS))

    def writing(self) -> Array:
        """Seconds that what writes drafts adds to mixed steps: to write them, and to read the prompts."""
        pace = self.pace
        if pace is None:
            return array(0.0)
        read = array(0.0) if pace.writer is None else pace.writer.reading(self.fresh / self.chunks, self.knots())
        return self.others * pace.seconds + read

    def drafting(self) -> Pace | None:
        """The pace with the energy of reading prompts, at every knot."""
        if self.pace is None or self.pace.writer is None:
            return self.pace
        joules = self.pace.writer.reading_joules(self.fresh / self.chunks, self.knots())
        return replace(self.pace, reading_joules=joules)

    def mixed_steps(self, queries: Array) -> PricedStep:
        """Decode of all running sequences with a chunk of prefill, at every knot."""
        tokens = self.fresh / self.chunks
        prefix = self.cached + (self.fresh - tokens) / 2.0
        clips = self.d.model.clips
        context = self.prompt + self.output / 2.0
        step = decode(self.decoding, context, clips, queries) + prefill(tokens, prefix, self.knots(), clips)
        return run_step(place(self.d, step), self.d.chip, self.d.runtime.stack)

    def settle(self, spans: Array) -> _State:
        """The state that keeps exactly the running sequences busy, by bisection along one path.

        The path first makes more and more steps take one request, then takes more of them in every step; the sequences
        that it keeps running grow along it. At its end prefill is saturated, and what is left over waits for it.
        """
        shape = np.broadcast_shapes(self.running.shape, (*spans.shape[:-1], 1))
        low, high = np.zeros(shape), np.full(shape, 2.0)
        for _ in range(ROUNDS):
            middle = (low + high) / 2.0
            fewer = self._state(middle, spans).running < self.running
            low, high = np.where(fewer, middle, low), np.where(fewer, high, middle)
        return self._state(high, spans)

    def keeping(self, spans: Array) -> _State:
        """The state that keeps exactly the decoding sequences in decode, by bisection along the path of `settle`."""
        shape = np.broadcast_shapes(self.decoding.shape, (*spans.shape[:-1], 1))
        low, high = np.zeros(shape), np.full(shape, 2.0)
        for _ in range(ROUNDS):
            middle = (low + high) / 2.0
            state = self._state(middle, spans)
            fewer = state.rate * self.output * state.tpot < self.decoding
            low, high = np.where(fewer, middle, low), np.where(fewer, high, middle)
        return self._state(high, spans)

    def _state(self, path: Array, spans: Array) -> _State:
        """The loop at a place of the path: 0 to 1 is the share of mixed steps, 1 to 2 the requests they take.

        A sequence waits for the prefill of others, not for its own; a first token for its own prefill, half a step
        of the
        others, and the host.
        """
        mixed = np.minimum(path, 1.0)
        place = np.maximum(path - 1.0, 0.0)
        joined = self.joined(place)
        seconds = np.maximum(_interpolate(place, spans), self.plain)
        mean = self.plain + mixed * (seconds - self.plain)
        others = self.others
        tpot = self.plain + mixed * others * (seconds - self.plain)
        tpot = tpot if self.pace is None else tpot / self.pace.tokens
        rate = mixed * joined / (self.chunks * mean)
        first = self.chunks * seconds + self.host + others * mean / 2.0
        return _State(place, joined, mixed, seconds, mean, tpot, rate, rate * (self.output * tpot + first))


def _told(
    loop: _Loop, state: _State, plain: PricedStep, mixed: PricedStep, running: Array, ttft: Array, memory: MemoryPlan
) -> Steady:
    """The answer of a loop that has settled."""
    return Steady(
        ttft,
        state.tpot,
        running,
        state.rate,
        state.joined,
        state.mixed * (state.seconds - loop.plain) / state.mean,
        plain,
        mixed,
        state.seconds,
        np.minimum(state.mixed * state.seconds / state.mean, 1.0),
        state.place,
        loop.most,
        memory,
        loop.drafting(),
    )


def with_prefill(plain: PricedStep, mixed: PricedStep) -> Array:
    """Seconds between two tokens when prefill joins one of the micro-batches on their way."""
    stages = plain.plan.split.pipeline
    return np.where(stages > 1, np.maximum(mixed.latency, (stages - 1.0) * plain.stage + mixed.stage), mixed.span)


def expert_layers(d: Deployment) -> float:
    """Layers with routed experts: host work before a first token. Those whose latent attention expands keys and values
    of the prompt to heads count three times; sparse attention does not expand them."""
    mixers = [block.attention for block, _ in d.model.counted()]
    weights = [3.0 if isinstance(mixer, LatentAttention) and not mixer.index else 1.0 for mixer in mixers]
    layers = [count if isinstance(block.ffn, Moe) else 0 for block, count in d.model.counted()]
    return float(sum(weight * count for weight, count in zip(weights, layers, strict=True)))


def _interpolate(place: Array, values: Array) -> Array:
    """Piecewise linear interpolation at one place of each row, from 0 at the first of the KNOTS to 1 at the last."""
    if values.shape[-1] == 1:
        return values
    shape = np.broadcast_shapes(place.shape[:-1], values.shape[:-1])
    at = np.broadcast_to(place * (KNOTS - 1.0), (*shape, 1))
    left = np.minimum(at.astype(np.intp), KNOTS - 2)
    rows = np.broadcast_to(values, (*shape, KNOTS))
    low, high = (np.take_along_axis(rows, left + shift, -1) for shift in (0, 1))
    return np.asarray(low + (at - left) * (high - low))


def sustaining(d: Deployment, decoding: Array, prompt: Array, output: Array, cached: Array) -> Steady:
    """The closed loop that keeps `decoding` sequences in decode, with as many clients as that takes.

    The same equations as `steady`, solved from the other end: the steps are priced once, for a number of sequences that
    is given. Where prefill cannot feed so many, the time to the first token is infinite. The last axis of every array
    has length 1.
    """
    step = decode(decoding, prompt + output / 2.0, d.model.clips)
    plain = run_step(place(d, step), d.chip, d.runtime.stack)
    loop = _Loop(d, decoding, decoding, prompt, output, np.minimum(cached, prompt - 1.0), plain.turnaround)
    mixed = loop.mixed_steps(array(1.0))
    spans = with_prefill(plain, mixed)
    for _ in range(PASSES + 1):
        state = loop.keeping(spans)
        loop = replace(loop, running=np.maximum(state.running, 1.0))
    fed = state.rate * output * state.tpot > decoding * (1.0 - 1e-6)
    ttft = np.where(fed, state.running / state.rate - output * state.tpot, np.inf)
    memory = memory_plan(d, loop.running, prompt + HELD * output)
    return _told(loop, state, plain, mixed, loop.running, ttft, memory)
