"""The tiers that a policy names, for a deployment: what their media are like, and how long a block takes to move."""

from dataclasses import dataclass, replace
from math import inf

from archsim.arrays import array
from archsim.catalog import Mark
from archsim.mapping.memory import kv_bytes
from archsim.mapping.place import Deployment
from archsim.mapping.split import Split
from archsim.serving.eviction import Eviction
from archsim.serving.policy import EvictionFile, ServingFile, TierFile
from archsim.serving.pool import Layout
from archsim.serving.returning import Oracle, load_returns
from archsim.serving.tiers import Level

HOST_LINK = 25e9  # B/s to the host where the chip file has no link: PCIe 4 x16, less protocol
SCALE_OUT = 12.5e9  # B/s of a chip's network where its file has none: 100 Gb/s
OF_NETWORK = (
    0.5  # of it that a store reaches: 190 GB/s of 8 x 400 Gb/s (Mooncake's transfer engine, 2024), 87 of 4 x 200
)


@dataclass(frozen=True)
class Medium:
    """What a tier is like where a policy does not say: B/s a chip each way, s, USD/GB. No speed: that of its links."""

    read: float | None
    write: float | None
    latency: float
    price: float
    shared: bool = False


MEDIA = {
    # 10 us more than the copy itself, as for the host link of chip files; DDR5 at 10 USD/GB (an assumption: prices
    # doubled to 13.5 on the spot market by the end of 2025)
    "cpu": Medium(None, None, 10e-6, 10.0),
    # A drive for each chip, of 6.5 GB/s read and 3.5 GB/s written (Samsung PM9A3 as announced in 2020); 0.1 ms to the
    # first byte and 0.15 USD/GB are assumptions
    "ssd": Medium(6.5e9, 3.5e9, 100e-6, 0.15),
    # Network storage on flash: 1 ms to look up and reach another node, and three copies, both assumptions
    "remote": Medium(None, None, 1e-3, 0.45, shared=True),
}


def host_link(d: Deployment) -> float:
    """B/s between a chip and its host, each way."""
    link = d.chip.links.get("host")
    return float(link.bandwidth.min()) if link is not None else HOST_LINK


def levels_of(d: Deployment, policy: ServingFile, layout: Layout, unit: float, block: int) -> tuple[Level, ...]:
    """The tiers of a policy for a replica, for blocks of `block` tokens; `unit` are the bytes of a unit on a rank.

    Through a host link a block takes the time of the rank that moves most of it; SSD and network move it whole, once.
    """
    if not policy.kv.tiers or not block:
        return ()
    rank = block / layout.block * layout.levels[-1] * unit
    whole = rank * _copies(d)
    return tuple(_level(d, tier, rank, whole) for tier in policy.kv.tiers)


def _copies(d: Deployment) -> float:
    """Bytes of a sequence's KV cache over those on the rank that holds most of it, copies counted once."""
    one = array(1.0)
    far = array(float(1 << 30))  # beyond any window

    def size(split: Split) -> float:
        near = kv_bytes(d.model, d.precision, split, far)
        return float((kv_bytes(d.model, d.precision, split, far * 2.0) - near).max())

    alone = replace(d.split, tensor=one, context=one, pipeline=one)
    return size(alone) / size(d.split) if size(d.split) > 0 else 1.0


def _level(d: Deployment, tier: TierFile, rank: float, whole: float) -> Level:
    medium = MEDIA[tier.medium]
    chips = float(d.split.ranks.max()) * float(d.split.pipeline.max())
    link = d.chip.links.get("scale_out")
    network = (float(link.bandwidth.min()) if link is not None else SCALE_OUT) * OF_NETWORK
    base = host_link(d) if tier.medium == "cpu" else network
    together = 1.0 if tier.medium == "cpu" else chips
    read = tier.read or (medium.read or base) * together
    write = tier.write or (medium.write or base) * together
    moved, lanes = (rank, int(d.split.groups.max())) if tier.medium == "cpu" else (whole, 1)
    return Level(
        tier.medium,
        inf if tier.capacity is None else tier.capacity // whole,
        moved / read,
        moved / write,
        medium.latency if tier.latency is None else tier.latency,
        lanes,
        tier.backlog,
        medium.shared if tier.shared is None else tier.shared,
        inf if tier.ttl is None else tier.ttl,
        whole,
        medium.price if tier.price is None else tier.price,
    )


def eviction_of(file: EvictionFile, seed: int = 0, mark: Mark | None = None) -> Eviction:
    """The eviction policy of a file. Raises CatalogError, at `mark` where given, for a predictor that is not there."""
    ttl = inf if file.ttl is None else file.ttl
    if file.policy != "return":
        return Eviction(ttl)
    linger = inf if file.linger is None else file.linger
    if file.predictor == "oracle":
        return Eviction(ttl, Oracle(file.precision, file.recall, seed, file.horizon), linger=linger)
    return Eviction(ttl, load_returns(file.predictor, mark), file.threshold, linger)
