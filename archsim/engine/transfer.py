"""Activations between two pools, and how long tokens queue for chips that several groups share.

A transfer takes the latency of the way and its bytes at what the narrower end can carry. Chips that are pinned to a
layer serve the replicas of the other pool in turn: a queue with Poisson arrivals and a constant service time (M/D/1),
at a utilisation that depends on the period, which depends on the wait.
"""

import numpy as np

from archsim.arrays import Array, array, where_positive
from archsim.engine.cost import Cost
from archsim.mapping.plan import Kernel

ROUNDS = 60  # halvings of the period


def price(kernel: Kernel) -> Cost:
    """The cost of a transfer; nothing where there is nothing to send."""
    size = kernel.dims["bytes"]
    parts = {
        "link": size / kernel.dims["bandwidth"],
        "link_latency": where_positive(size, kernel.dims["latency"] + 0.0 * size),
    }
    return Cost(parts["link"] + parts["link_latency"], parts, link_bytes=size)


def queue(attention: Array, stations: tuple[Array, ...], batches: Array, replicas: Array, layers: float) -> Array:
    """Seconds that a micro-batch queues in one layer, over the `stations` it passes (links and chips, s each).

    `replicas` of the main pool come by in turn, each with so many micro-batches a layer, to chips pinned to `layers`
    layers. Of stations in a row with constant times the wait is that of the slowest, T, alone (H. D. Friedman, 1965),
    and others load it for rho = (replicas - 1) x batches x T / (layers x period) of the time: rho T / (2 (1 - rho)),
    and never less than keeps the slowest station from doing more than it can. Alone, a replica waits for nobody.
    """
    serial = attention
    for time in stations:
        serial = serial + time
    slowest = stations[0]
    for time in stations:
        slowest = np.maximum(slowest, time)
    own = np.maximum(attention + (batches - 1.0) * np.maximum(attention, slowest), serial)
    load = np.maximum(replicas - 1.0, 0.0) * batches * slowest / layers
    floor = replicas * batches * slowest / layers
    low, high = np.maximum(own, floor), 1.5 * own + 2.0 * floor
    for _ in range(ROUNDS):
        middle = (low + high) / 2.0
        more = np.maximum(own, serial + _wait(slowest, load, middle)) > middle
        low, high = np.where(more, middle, low), np.where(more, high, middle)
    return np.where(replicas > 1, np.maximum(_wait(slowest, load, high), floor - serial), array(0.0))


def _wait(time: Array, load: Array, period: Array) -> Array:
    """The mean wait of M/D/1."""
    rho = np.minimum(load / np.maximum(period, np.finfo(np.float64).tiny), 1.0 - 1e-12)
    return rho * time / (2.0 * (1.0 - rho))
