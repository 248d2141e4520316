"""The part of a scenario that says how requests are served: scheduler, batch, KV memory, preemption, routing."""

from dataclasses import replace
from math import inf
from typing import Literal

import numpy as np
from pydantic import Field, model_validator

from archsim.arrays import array
from archsim.catalog import Mark, StrictModel
from archsim.fields import Count, FaultAt, Fraction
from archsim.mapping.place import Deployment
from archsim.serving.engine import Swap
from archsim.serving.pool import layout_of
from archsim.serving.schedulers import scheduler
from archsim.serving.simulate import Server
from archsim.serving.surface import surface
from archsim.workload.requests import Requests

HOST_LINK = 25e9  # B/s to the host where the chip file has no link: PCIe 4 x16, less protocol


class KvFile(StrictModel):
    """How the KV cache lies in memory."""

    allocation: Literal["paged", "contiguous"] = "paged"
    block: Count = Field(16, description="tokens of a block")
    reserve: Count | None = Field(
        None, description="tokens that each sequence reserves when contiguous; default: its own final length"
    )

    @model_validator(mode="after")
    def _consistent(self) -> "KvFile":
        if self.reserve is not None and self.allocation == "paged":
            raise FaultAt("paged memory reserves nothing; say `allocation: contiguous`", "reserve")
        return self


class ServingFile(StrictModel):
    """How requests are served."""

    scheduler: str = Field(
        "chunked", description="chunked, continuous, prefill-first, decode-first, static, or a Python file"
    )
    max_batch: Count = Field(1024, description="sequences of a replica that run at once, at the most")
    max_tokens: Count | None = Field(None, description="tokens of a step, at the most; default: the runtime's chunk")
    kv: KvFile = KvFile()
    prefix_cache: bool = Field(True, description="keep blocks of prompts for others that begin alike")
    preemption: Literal["recompute", "swap"] = Field("recompute", description="what happens to a sequence without room")
    watermark: Fraction = Field(0.01, description="share of the KV memory that an admission leaves free")
    router: Literal["round-robin", "least-loaded", "prefix-affine"] = Field(
        "least-loaded", description="how requests are dealt to replicas"
    )


def server_of(
    d: Deployment, policy: ServingFile, requests: Requests, mark: Mark | None = None, seed: int = 0
) -> Server:
    """The server of a deployment with one split; its data-parallel replicas are routed to.

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
    made = surface(one, most, _contexts(requests), -(-longest // ranks), seed)
    swap = Swap(unit / _host_link(d)) if policy.preemption == "swap" else None
    return Server(
        made, layout, units, found, unit, replicas, policy.router, policy.prefix_cache, swap, policy.watermark
    )


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
