"""The steady answer where one pool prefills and another decodes: a closed loop through both.

A request queues for the prefill pool, is prefilled, hands its KV cache over, and decodes among all that run. Prefill is
a queue with a constant service time (M/D/1) whose load is that of the loop; decode takes what comes. Form:
`docs/models.md`.
"""

from dataclasses import dataclass

import numpy as np

from archsim.arrays import Array, array
from archsim.engine.step import PricedStep, run_step
from archsim.mapping.memory import memory_plan
from archsim.mapping.place import Deployment, place
from archsim.serving.speculation import Speculation
from archsim.serving.steady import HELD, Steady, expert_layers, pace_of
from archsim.workload.step import decode, prefill

PASSES = 4  # of pricing decode again for the sequences that turn out to run
ROUNDS = 60  # halvings of the rate


@dataclass(frozen=True, eq=False)
class Prefilling:
    """The prefill of a request: the priced chunk, its seconds alone and in a row, and how many run at once."""

    step: PricedStep
    alone: Array
    each: Array
    groups: Array

    @property
    def most(self) -> Array:
        """Requests a second that the pool takes at the most."""
        return self.groups / self.each


def prefilling(d: Deployment, prompt: Array, cached: Array) -> Prefilling:
    """The prefill of the fresh tokens of one prompt on every data-parallel rank of a pool."""
    fresh = prompt - np.minimum(cached, prompt - 1.0)
    chunks = np.ceil(fresh / d.runtime.chunk)
    tokens = fresh / chunks
    step = prefill(tokens, prompt - fresh + (fresh - tokens) / 2.0, d.split.groups, d.model.clips)
    priced = run_step(place(d, step), d.chip, d.runtime.stack)
    alone = priced.latency + (chunks - 1.0) * priced.stage
    return Prefilling(priced, alone, priced.stage * chunks, d.split.groups)


def disaggregated(
    d: Deployment,
    first: Prefilling,
    exposed: Array,
    clients: Array,
    prompt: Array,
    output: Array,
    speculation: Speculation | None = None,
) -> Steady:
    """The closed loop of `clients` in all; `exposed` seconds pass between a prefill and its first token."""
    memory = memory_plan(d, clients, prompt + HELD * output)
    room = np.floor(np.maximum(memory.free_for_kv, 0.0) / memory.per_sequence) * d.split.groups
    running = np.maximum(np.minimum(clients, room), 1.0)
    decoding, context = running, prompt + output / 2.0
    host = d.runtime.host.arrival + d.runtime.host.expert_layer * expert_layers(d)
    for _ in range(PASSES):
        pace = pace_of(d, speculation, decoding, context)
        queries = array(1.0) if pace is None else pace.queries
        plain = run_step(place(d, decode(decoding, context, d.model.clips, queries)), d.chip, d.runtime.stack)
        tpot = plain.turnaround if pace is None else (plain.turnaround + pace.seconds) / pace.tokens
        rate = _rate(clients, running, first, first.alone + exposed + host, output * tpot)
        decoding = np.clip(rate * output * tpot, 1.0, running)
    nothing = array(0.0)
    ttft = clients / rate - output * tpot  # Little's law
    load = rate / first.most
    return Steady(
        ttft,
        tpot,
        running,
        rate,
        array(1.0),
        load,
        plain,
        first.step,
        first.step.turnaround,
        nothing,
        nothing,
        array(1.0),
        memory,
        pace,
    )


def _rate(clients: Array, running: Array, first: Prefilling, service: Array, decoding: Array) -> Array:
    """Requests a second at which all clients are somewhere: in the queue, in prefill, or in decode.

    Decode holds no more than `running` of them.
    """
    shape = np.broadcast_shapes(clients.shape, running.shape, first.each.shape, service.shape, decoding.shape)
    top = np.minimum(first.most * (1.0 - 1e-9), running / decoding)
    low, high = np.zeros(shape), np.broadcast_to(top, shape).copy()
    for _ in range(ROUNDS):
        middle = (low + high) / 2.0
        load = middle / first.most
        wait = load * first.each / (2.0 * (1.0 - load))
        fewer = middle * (wait + service + decoding) < clients
        low, high = np.where(fewer, middle, low), np.where(fewer, high, middle)
    return high
