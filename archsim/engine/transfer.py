"""Activations between two pools, and how long tokens queue for chips that several groups share.

A transfer takes the latency of the way and its bytes at what the narrower end can carry. Chips that are pinned to a
layer serve the replicas of the other pool in turn: a closed network, in which a replica that waits sends nothing.
"""

import numpy as np

from archsim.arrays import Array, array, soft_maximum, where_positive
from archsim.engine.cost import Cost
from archsim.mapping.plan import Kernel

KNEE = 8.0  # exponent where a replica's own time and the slices' load meet: as played with times that vary by a fifth


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
    layers. A closed network has two bounds (R. R. Muntz and J. W. Wong, 1974): a layer takes no less than it does a
    replica alone, and no less than the slowest station, of time T, is busy: replicas x batches x T / layers. Times
    that never vary reach the larger of them, since replicas that once met keep the distance that they got; where times
    vary, replicas meet anew near the knee, for which the maximum is soft. Alone, a replica waits for nobody.
    """
    serial, slowest = attention, stations[0]
    for time in stations:
        serial, slowest = serial + time, np.maximum(slowest, time)
    alone = np.maximum(attention + (batches - 1.0) * np.maximum(attention, slowest), serial)
    period = soft_maximum(alone, replicas * batches * slowest / layers, KNEE)
    return np.where(replicas > 1, np.maximum(period - serial, 0.0), array(0.0))
