"""Collectives: all-reduce inside a link domain and across nodes, and the all-to-all of experts.

Bytes are of one rank. A group of one costs exactly nothing. Form and constants: `docs/models.md`.
"""

import numpy as np

from archsim.arrays import Array, array
from archsim.chip.constants import AllReduce, AllToAll
from archsim.chip.model import Chip, Link
from archsim.mapping.plan import Kernel

Flags = np.typing.NDArray[np.bool_]

BOTH = array(2.0)  # phases of an all-reduce: reduce-scatter, all-gather
NOWHERE = Link("none", array(1e-30), array(0.0), 1)


def all_reduce(kernel: Kernel, chip: Chip, constants: AllReduce) -> tuple[Array, dict[str, Array]]:
    """Seconds and parts of an all-reduce of `bytes` over `ranks`.

    Inside a domain: the fastest of one-shot, two-shot, ring and in-switch reduction. Across domains: reduce-scatter
    inside, ring between nodes over every rank's share, all-gather inside. With `phases` 1 it is an all-gather or a
    reduce-scatter of `bytes`: one of the two phases, so half the steps and bytes, and nothing for a switch to reduce.
    """
    size, ranks, phases = kernel.dims["bytes"], kernel.dims["ranks"], kernel.dims.get("phases", BOTH)
    up, out = chip.links.get("scale_up", NOWHERE), chip.links.get("scale_out", NOWHERE)
    inside = np.minimum(ranks, up.domain)
    nodes = np.ceil(ranks / up.domain)
    seconds, wire = _inside(size, inside, phases, up, constants)
    across = np.where(nodes > 1, phases * (nodes - 1.0) / nodes * size / inside / out.bandwidth, 0.0)
    latency = np.where(nodes > 1, phases * (nodes - 1.0) * out.latency, 0.0)
    active = (ranks > 1) & (size > 0)
    return _parts(active, seconds + across + latency, wire + across)


def beyond(kernel: Kernel, constants: AllReduce) -> Flags:
    """Where an engine's own all-reduce does not reach, and NCCL takes over."""
    return kernel.dims["ranks"] > constants.ranks


def _inside(size: Array, ranks: Array, phases: Array, link: Link, c: AllReduce) -> tuple[Array, Array]:
    """Fastest algorithm inside a domain, and the least time of its bytes on the wire."""
    others = ranks - 1.0
    steps = others * (phases / 2.0)
    twice = phases * others / ranks * size
    direct = others * np.where(phases > 1.0, size, size / ranks)
    wire = np.minimum(twice, direct)
    options = []
    if c.one_shot is not None:
        options.append((c.one_shot + c.rank * steps) * c.skew + direct / (link.bandwidth * c.one_shot_link))
    if c.two_shot is not None:
        options.append((c.two_shot + c.rank * steps) * c.skew + twice / (link.bandwidth * c.two_shot_link))
    if c.ring is not None:
        options.append((c.ring + c.ring_rank * steps) * c.skew + twice / (link.bandwidth * c.ring_link))
    if c.ring is not None and c.switch_link is not None and link.switch:
        through = (1.0 + 1.0 / ranks) * size
        switched = c.ring * c.skew + through / (link.bandwidth * c.switch_link)
        reduced = (ranks > 2) & (phases > 1.0)
        options.append(np.where(reduced, switched, np.inf))
        wire = np.where(reduced, np.minimum(wire, through), wire)
    fastest = options[0]
    for option in options[1:]:
        fastest = np.minimum(fastest, option)
    latency = np.where(ranks > 1, link.latency, 0.0) if c.one_shot == 0.0 else 0.0
    return np.where(ranks > 1, fastest + latency, 0.0), np.where(ranks > 1, wire / link.bandwidth, 0.0)


def all_to_all(kernel: Kernel, chip: Chip, constants: AllToAll) -> tuple[Array, dict[str, Array]]:
    """Seconds and parts of sending `bytes` to `ranks`, evenly; what leaves the domain takes the network card."""
    size, ranks = kernel.dims["bytes"], kernel.dims["ranks"]
    up, out = chip.links.get("scale_up", NOWHERE), chip.links.get("scale_out", NOWHERE)
    local, remote = _sent(kernel, np.minimum(ranks, up.domain), constants.once)
    far = ranks > up.domain
    wire = np.maximum(local / up.bandwidth, remote / out.bandwidth)
    near_time = constants.local + up.latency * (constants.local == 0.0) + local / (up.bandwidth * constants.local_link)
    if constants.low is not None:
        near_time = np.minimum(near_time, constants.low + local / (up.bandwidth * constants.low_link))
    far_time = (
        constants.remote + out.latency * (constants.remote == 0.0) + remote / (out.bandwidth * constants.remote_link)
    )
    active = (ranks > 1) & (size > 0)
    return _parts(active, np.where(far, np.maximum(near_time, far_time), near_time), wire)


def _sent(kernel: Kernel, inside: Array, once: bool) -> tuple[Array, Array]:
    """Bytes that a rank sends inside its domain and beyond, all copies of a token apart, or `once` to each place.

    Then a copy crosses once to every other domain that has any of its experts and is handed on inside to every rank
    that has: R (1 - (1 - 1/R)^k) of R places are met by k experts at random.
    """
    size, ranks = kernel.dims["bytes"], kernel.dims["ranks"]
    if not once or "copies" not in kernel.dims:
        return size * (inside - 1.0) / ranks, size * (ranks - inside) / ranks
    copies = kernel.dims["copies"]
    each, domains = size / copies, np.maximum(ranks / inside, 1.0)
    met = ranks * (1.0 - (1.0 - 1.0 / ranks) ** copies)
    crossed = domains * (1.0 - (1.0 - 1.0 / domains) ** copies)
    return each * met * (inside - 1.0) / inside, each * crossed * (domains - 1.0) / domains


def _parts(active: Flags, seconds: Array, wire: Array) -> tuple[Array, dict[str, Array]]:
    """Splits the time of a collective into bytes at the peak of the wire, and the rest."""
    seconds = np.where(active, seconds, 0.0)
    link = np.where(active, np.minimum(wire, seconds), 0.0)
    return seconds, {"link": link, "link_latency": seconds - link}


def link_bytes(kernel: Kernel) -> Array:
    """Bytes a rank sends, whatever the algorithm: of an all-reduce twice its share of the rest, else all but its
    own."""
    size, ranks = kernel.dims["bytes"], kernel.dims["ranks"]
    once = (ranks - 1.0) / ranks * size
    return kernel.dims.get("phases", BOTH) * once if kernel.kind == "all_reduce" else once
