"""The server that a policy makes of a deployment."""

from collections.abc import Sequence
from dataclasses import replace
from math import inf

import numpy as np

from archsim.arrays import Array, array
from archsim.catalog import Mark
from archsim.mapping.place import Deployment
from archsim.mapping.system import Wire
from archsim.serving.halves import Prefill
from archsim.serving.handover import Way
from archsim.serving.outcome import Swap
from archsim.serving.policy import DisaggregationFile, ServingFile
from archsim.serving.pool import held_bytes, layout_of
from archsim.serving.schedulers import scheduler
from archsim.serving.simulate import Server
from archsim.serving.surface import Surface, surface
from archsim.workload.requests import Requests

HOST_LINK = 25e9  # B/s to the host where the chip file has no link: PCIe 4 x16, less protocol


def server_of(
    d: Deployment,
    policy: ServingFile,
    requests: Requests,
    mark: Mark | None = None,
    seed: int = 0,
    skews: Sequence[tuple[float, float]] = (),
) -> Server:
    """The server of a deployment with one split; its data-parallel replicas are routed to.

    `skews` are (s, skew): from when on tokens choose experts otherwise.
    Raises CatalogError for a scheduler that is not there and ValueError where memory has no room for any block.
    """
    replicas = int(d.split.data.max())
    one = replace(d, split=replace(d.split, data=array(1.0)))
    ranks = int(one.split.groups.max())
    reserve = (policy.kv.reserve or 0) if policy.kv.allocation == "contiguous" else None
    layout, units, unit = layout_of(one, policy.kv.block, reserve)
    if units < 1:
        raise ValueError("memory: the weights leave no room for a KV cache; see `archsim run` for what would help")
    tokens = policy.max_tokens or d.runtime.chunk * ranks
    shortest = layout.units(1)
    most = min(policy.max_batch, max(units // max(shortest, 1), 1), max(len(requests), 1))
    found = scheduler(policy.scheduler, most, tokens, mark)
    longest = tokens if policy.scheduler == "chunked" else max(tokens, int(requests.input.max(initial=1)))
    paired = d.partner is not None and d.partner.job == "roles"

    def priced(skew: Array) -> Surface:
        return surface(replace(d if paired else one, skew=skew), most, _contexts(requests), -(-longest // ranks), seed)

    made = priced(d.skew)
    others = {skew: priced(array(skew)) for skew in dict.fromkeys(skew for _, skew in skews)}
    shifts = tuple((time, others[skew]) for time, skew in skews)
    swap = Swap(unit / _host_link(d)) if policy.preemption == "swap" else None
    server = Server(
        made, layout, units, found, unit, replicas, policy.router, policy.prefix_cache, swap, policy.watermark
    )
    return replace(server, shifts=shifts)


def apart(
    own: Server, d: Deployment, ahead: Server, other: Deployment, wire: Wire, policy: DisaggregationFile
) -> Server:
    """The server that decodes with one that prefills for it; each rank of attention sends or takes on its own lane."""
    rate = np.minimum(other.split.tensor * wire.sender, d.split.tensor * wire.receiver)
    held, state = held_bytes(d.model, d.precision)
    lanes = int(other.split.attention_data.max()), int(d.split.attention_data.max())
    way = Way(held, float(rate.min()), float(wire.latency.max()), d.model.layers, state, lanes, policy.overlap)
    return replace(own, prefill=Prefill(ahead, way, policy.skip_below))


def _contexts(requests: Requests) -> tuple[float, float]:
    """The mean contexts that batches may have: from short requests at their start to long ones at their end."""
    if not len(requests):
        return 64.0, 4096.0
    low, high = np.percentile(requests.input, 5), np.percentile(requests.input + requests.output, 99)
    return max(float(low), 32.0), max(float(high), 64.0)


def _host_link(d: Deployment) -> float:
    link = d.chip.links.get("host")
    return float(link.bandwidth.min()) if link is not None else HOST_LINK


def context_sums(
    server: Server, decoding: "np.typing.NDArray[np.float64]", context: object
) -> "np.typing.NDArray[np.float64]":
    """Clipped context sums of equal sequences with a total context: shape (clips, stretches)."""
    total = np.asarray(context, dtype=np.float64)
    mean = total / np.maximum(decoding, 1.0)
    rows = [decoding * (mean if clip == inf else np.minimum(mean, clip)) for clip in server.surface.clips]
    return np.stack(rows) if rows else np.zeros((0, len(decoding)))
