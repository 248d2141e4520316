"""The server that a policy makes of a deployment."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import inf

import numpy as np

from archsim.arrays import Array, array
from archsim.catalog import Mark
from archsim.mapping.place import Deployment
from archsim.mapping.system import Wire
from archsim.serving.energies import Energies
from archsim.serving.halves import Prefill
from archsim.serving.handover import Way
from archsim.serving.media import eviction_of, host_link, levels_of
from archsim.serving.outcome import Swap
from archsim.serving.policy import DisaggregationFile, ServingFile
from archsim.serving.pool import held_bytes, layout_of
from archsim.serving.schedulers import scheduler
from archsim.serving.simulate import Server
from archsim.serving.speculation import Speculation
from archsim.serving.surface import Surface, surface
from archsim.workload.requests import Requests


def server_of(
    d: Deployment,
    policy: ServingFile,
    requests: Requests,
    mark: Mark | None = None,
    seed: int = 0,
    speculation: Speculation | None = None,
    returns_mark: Mark | None = None,
    skews: Sequence[tuple[float, float]] = (),
) -> Server:
    """The server of a deployment with one split; its data-parallel replicas are routed to.

    `skews` are (s, skew): from when on tokens choose experts otherwise.
    Raises CatalogError for a scheduler or a predictor that is not there, at their marks, and ValueError where memory
    has no room for any block.
    """
    replicas = int(d.split.data.max())
    one = replace(d, split=replace(d.split, data=array(1.0)))
    ranks = int(one.split.groups.max())
    reserve = (policy.kv.reserve or 0) if policy.kv.allocation == "contiguous" else None
    layout, units, unit = layout_of(one, policy.kv.block, reserve, speculation)
    if units < 1:
        raise ValueError("memory: the weights leave no room for a KV cache; see `archsim run` for what would help")
    tokens = policy.max_tokens or d.runtime.chunk * ranks
    shortest = layout.units(1)
    most = min(policy.max_batch, max(units // max(shortest, 1), 1), max(len(requests), 1))
    found = scheduler(policy.scheduler, most, tokens, mark)
    longest = tokens if policy.scheduler == "chunked" else max(tokens, int(requests.input.max(initial=1)))
    paired = d.partner is not None and d.partner.job == "roles"

    def priced(skew: Array) -> Surface:
        own = replace(d if paired else one, skew=skew)
        return surface(own, most, _contexts(requests), -(-longest // ranks), seed, speculation)

    made = priced(d.skew)
    others = {skew: priced(array(skew)) for skew in dict.fromkeys(skew for _, skew in skews)}
    shifts = tuple((time, others[skew]) for time, skew in skews)
    swap = Swap(unit / host_link(d)) if policy.preemption == "swap" else None
    router = policy.router or ("session-affine" if requests.after else "least-loaded")
    base = Server(made, layout, units, found, unit, replicas, router, policy.prefix_cache, swap, policy.watermark)
    tiers = levels_of(one, policy, layout, unit, requests.block)
    return replace(base, tiers=tiers, eviction=eviction_of(policy.kv.eviction, seed, returns_mark), shifts=shifts)


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


def decode_seconds(server: Server, log: Mapping[str, Array]) -> Array:
    """Seconds that the decoding sequences of every stretch take for a step alone."""
    sums, size = context_sums(server, log["decoding"], log["context"]), log["decoding"].astype(np.intp)
    found = _lines(server.surface, size, sums)
    if server.surface.drafted is not None:
        found = np.where(log["drafted"] > 0, _lines(server.surface.drafted.surface, size, sums), found)
    return np.where(size > 0, found, 0.0)


def _lines(surface: Surface, size: "np.typing.NDArray[np.intp]", sums: Array) -> Array:
    total = np.array(surface.fixed)[size]
    for slope, row in zip(surface.slope, sums, strict=True):
        total = total + np.array(slope)[size] * row
    return np.asarray(total)


def decode_joules(server: Server, log: Mapping[str, Array], energy: Energies) -> Array:
    """Joules of a chip for the decode steps of every stretch, whose contexts grow; `energy` is that of its pool."""
    surface, steps = server.surface, np.maximum(log["steps"], 1.0)
    later = log["decoding"] * log["tokens"] * (1.0 - 1.0 / steps) / 2.0
    sums = context_sums(server, log["decoding"], log["context"]) + later
    each = energy.decode(log["decoding"], sums)
    if surface.drafted is not None:
        found = surface.drafted.surface.energy if energy is surface.energy else surface.drafted.surface.away
        each = each if found is None else np.where(log["drafted"] > 0, found.decode(log["decoding"], sums), each)
    return np.asarray(each * log["steps"])


def context_sums(
    server: Server, decoding: "np.typing.NDArray[np.float64]", context: object
) -> "np.typing.NDArray[np.float64]":
    """Clipped context sums of equal sequences with a total context: shape (clips, stretches)."""
    total = np.asarray(context, dtype=np.float64)
    mean = total / np.maximum(decoding, 1.0)
    rows = [decoding * (mean if clip == inf else np.minimum(mean, clip)) for clip in server.surface.clips]
    return np.stack(rows) if rows else np.zeros((0, len(decoding)))
