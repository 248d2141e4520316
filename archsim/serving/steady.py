"""The steady answer: a closed loop of clients, prefill among decode, as a fixed point.

Every client sends its next request when it has its answer. New prompts join steps that also decode; between two
tokens of a sequence lies one decode step, plus its share of the prefill of all others. Form: `docs/models.md`.
"""

from dataclasses import dataclass

import numpy as np

from archsim.arrays import Array
from archsim.engine.step import PricedStep, run_step
from archsim.mapping.memory import memory_plan
from archsim.mapping.place import Deployment, place
from archsim.mapping.plan import MemoryPlan
from archsim.workload.model import LatentAttention, Moe
from archsim.workload.step import decode, prefill

ROUNDS = 30  # halvings of the logarithm of the requests that join a step
KNOTS = 9  # numbers of requests a step at which mixed steps are priced
HELD = 0.6  # share of its output that a running sequence holds on average, with headroom against preemption


@dataclass(frozen=True, eq=False)
class Steady:
    """Times (s) and rates of the closed loop; shapes broadcast over splits and clients.

    `running` are sequences in decode at once (the rest waits for memory), `decode` the plain step, `mixed` the step with
    prefill, `joined` the requests such a step takes, `prefill_share` the share of time that prefill adds.
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
    knots: Array
    memory: MemoryPlan

    def at_joined(self, values: Array) -> Array:
        """Of `values` at every knot, the one where the loop settled."""
        return _interpolate(np.log(self.joined), np.log(self.knots), values)


def steady(d: Deployment, clients: Array, prompt: Array, output: Array, cached: Array) -> Steady:
    """The closed loop of `clients` in all, each request with `prompt` tokens in and `output` tokens out.

    `cached` tokens of each prompt are found in the prefix cache, and at least the last one is computed. The last axis of every swept array must have length 1: mixed steps are priced along it.
    """
    groups = d.split.groups
    memory = memory_plan(d, clients, prompt + HELD * output)
    room = np.floor(np.maximum(memory.free_for_kv, 0.0) / memory.per_sequence) * groups
    running = np.maximum(np.minimum(clients, room), 1.0)
    plain = run_step(place(d, decode(running, prompt + output / 2.0, d.model.clips)), d.chip, d.runtime.stack)
    loop = _Loop(d, clients, running, prompt, output, np.minimum(cached, prompt - 1.0), plain.turnaround)
    mixed = loop.mixed_steps()
    joined, seconds, ttft, tpot = loop.settle(_with_prefill(plain, mixed))
    rate = clients / (ttft + output * tpot)
    share = np.minimum(rate * loop.each(joined, seconds), 1.0)
    mixed_time = np.minimum(rate / joined * loop.chunks * seconds, 1.0)
    return Steady(ttft, tpot, running, rate, joined, share, plain, mixed, seconds, mixed_time, loop.knots(), memory)


@dataclass(frozen=True, eq=False)
class _Loop:
    """What the rounds of the fixed point share."""

    d: Deployment
    clients: Array
    running: Array
    prompt: Array
    output: Array
    cached: Array
    plain: Array

    @property
    def fresh(self) -> Array:
        """Tokens of a prompt that are computed."""
        return self.prompt - self.cached

    @property
    def chunk(self) -> float:
        """Prefill tokens a rank takes in a step."""
        return float(self.d.runtime.chunk)

    @property
    def chunks(self) -> Array:
        """Steps one prompt needs."""
        return np.ceil(self.fresh / self.chunk)

    @property
    def most(self) -> Array:
        """Requests that fit into one step of all ranks."""
        return self.d.split.groups * np.maximum(np.floor(self.chunk / self.fresh), 1.0)

    def knots(self) -> Array:
        """Numbers of requests a step, from 1 to the most, along the last axis."""
        return self.most ** np.linspace(0.0, 1.0, KNOTS)

    def mixed_steps(self) -> PricedStep:
        """Decode of all running sequences with a chunk of prefill, at every knot."""
        tokens = self.fresh / self.chunks
        prefix = self.cached + (self.fresh - tokens) / 2.0
        clips = self.d.model.clips
        context = self.prompt + self.output / 2.0
        step = decode(self.running, context, clips) + prefill(tokens, prefix, self.knots(), clips)
        return run_step(place(self.d, step), self.d.chip, self.d.runtime.stack)

    def settle(self, mixed: Array) -> tuple[Array, Array, Array, Array]:
        """Requests a mixed step, its seconds, TTFT and TPOT, where as many join as arrive meanwhile; by bisection."""
        knots, most = np.log(self.knots()), np.log(self.most)
        low, high = np.zeros((*mixed.shape[:-1], 1)), np.broadcast_to(most, (*mixed.shape[:-1], 1))
        for _ in range(ROUNDS):
            middle = (low + high) / 2.0
            seconds = _interpolate(middle, knots, mixed)
            ttft, tpot = self._times(np.exp(middle), seconds)
            arriving = self.clients / (ttft + self.output * tpot) * seconds
            more = np.log(arriving) > middle
            low, high = np.where(more, middle, low), np.where(more, high, middle)
        seconds = _interpolate(high, knots, mixed)
        return np.exp(high), seconds, *self._times(np.exp(high), seconds)

    def each(self, joined: Array, seconds: Array) -> Array:
        """Seconds that the prefill of one request adds to the steps it shares."""
        return np.maximum(seconds - self.plain, 0.0) * self.chunks / joined

    def _times(self, joined: Array, seconds: Array) -> tuple[Array, Array]:
        """TTFT and TPOT if mixed steps take `joined` requests each in `seconds`.

        A token waits for its step and for what prefill of the others falls on it; a first token for its own prefill,
        the queue of prefills before it, half a step, the host, and for memory where not all clients fit.
        """
        each = self.each(joined, seconds)
        own = seconds * self.chunks + self.d.runtime.host.arrival + self.d.runtime.host.expert_layer * expert_layers(self.d)
        added = (self.running - 1.0) * each
        tpot = self.plain + added / self.output
        decoding = self.output * tpot / (own + self.output * tpot)
        tpot = self.plain + added / self.output * decoding
        load = np.minimum(self.running * each / (own + self.output * tpot), 0.98)
        first = own + load / (2.0 * (1.0 - load)) * seconds + tpot / 2.0
        waiting = np.maximum(self.clients - self.running, 0.0) / self.running * (first + self.output * tpot)
        return first + waiting, tpot


def _with_prefill(plain: PricedStep, mixed: PricedStep) -> Array:
    """Seconds between two tokens when prefill joins one of the micro-batches on their way."""
    stages = plain.plan.split.pipeline
    return np.where(stages > 1, np.maximum(mixed.latency, (stages - 1.0) * plain.stage + mixed.stage), mixed.span)


def expert_layers(d: Deployment) -> float:
    """Layers with routed experts, those with latent attention counted three times: more host work before a first token."""
    weights = [3.0 if isinstance(block.attention, LatentAttention) else 1.0 for block, _ in d.model.counted()]
    layers = [count if isinstance(block.ffn, Moe) else 0 for block, count in d.model.counted()]
    return float(sum(weight * count for weight, count in zip(weights, layers, strict=True)))


def _interpolate(at: Array, knots: Array, values: Array) -> Array:
    """Piecewise linear interpolation along the last axis, at one point of each row."""
    shape = np.broadcast_shapes(at.shape[:-1], values.shape[:-1])
    values, knots = (np.broadcast_to(item, (*shape, KNOTS)) for item in (values, knots))
    right = np.clip((knots < at).sum(axis=-1, keepdims=True), 1, KNOTS - 1)
    x0, x1, y0, y1 = (np.take_along_axis(item, right + shift, -1) for item in (knots, values) for shift in (-1, 0))
    share = np.where(x1 > x0, (at - x0) / np.where(x1 > x0, x1 - x0, 1.0), 1.0)
    return np.asarray(y0 + np.clip(share, 0.0, 1.0) * (y1 - y0))
