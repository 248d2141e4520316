"""The part of a scenario that says how requests are served: scheduler, batch, KV memory, preemption, routing."""

from typing import Literal

from pydantic import Field, model_validator

from archsim.catalog import StrictModel
from archsim.fields import Bandwidth, Bytes, Count, DollarsPerGB, FaultAt, Fraction, Natural, Seconds


class TierFile(StrictModel):
    """A memory below that of the chips, which takes what they evict. Defaults are those of its medium."""

    medium: Literal["cpu", "ssd", "remote"]
    capacity: Bytes | None = Field(
        None, gt=0, description="of each replica, of all together where it is shared; default: no limit"
    )
    read: Bandwidth | None = Field(
        None, gt=0, description="to the chips of a replica (cpu: to one chip); default: that of the medium"
    )
    write: Bandwidth | None = Field(None, gt=0, description="from the chips likewise; default: that of the medium")
    latency: Seconds | None = Field(None, ge=0, description="of a transfer; default: that of the medium")
    backlog: Seconds = Field(1.0, ge=0, description="of writes that may wait; a block beyond them is not kept")
    shared: bool | None = Field(None, description="by all replicas; default: true for remote, else false")
    ttl: Seconds | None = Field(None, gt=0, description="after which a block that is not used goes; default: never")
    price: DollarsPerGB | None = Field(None, ge=0, description="of its memory; default: that of the medium")


class EvictionFile(StrictModel):
    """Which idle blocks leave the chips' memory first."""

    policy: Literal["lru", "ttl", "return"] = Field(
        "lru", description="the least recently used; also those older than `ttl`; first those of agents who leave"
    )
    ttl: Seconds | None = Field(None, gt=0, description="of `ttl`; of `return` too, if given, for all that stay")
    predictor: str = Field(
        "oracle", description="of `return`: `oracle`, which errs as told, or a file of `workloads/returns/`"
    )
    precision: Fraction = Field(1.0, gt=0, description="of those an oracle names, the share that leaves")
    recall: Fraction = Field(1.0, description="of those who leave, the share that an oracle names")
    linger: Seconds | None = Field(
        None, ge=0, description="after which blocks of those named go; default: when memory is needed"
    )
    horizon: Seconds = Field(600.0, gt=0, description="to an oracle, who comes later than this, or never, leaves")
    threshold: Fraction = Field(0.1, gt=0, description="chance to leave from which one from a file names")

    @property
    def told(self) -> bool:
        """Whether it is anything but the least recently used."""
        return self.policy != "lru"

    @model_validator(mode="after")
    def _consistent(self) -> "EvictionFile":
        if self.policy == "ttl" and self.ttl is None:
            raise FaultAt("`policy: ttl` needs a `ttl`, such as 10 min", "policy")
        if self.policy == "lru" and self.ttl is not None:
            raise FaultAt("`ttl` takes `policy: ttl` or `policy: return`", "ttl")
        return self


class KvFile(StrictModel):
    """How the KV cache lies in memory."""

    allocation: Literal["paged", "contiguous"] = "paged"
    block: Count = Field(16, description="tokens of a block")
    reserve: Count | None = Field(
        None, description="tokens that each sequence reserves when contiguous; default: its own final length"
    )
    tiers: tuple[TierFile, ...] = Field((), max_length=8, description="memories below, the fastest first")
    eviction: EvictionFile = EvictionFile()

    @model_validator(mode="after")
    def _consistent(self) -> "KvFile":
        if self.reserve is not None and self.allocation == "paged":
            raise FaultAt("paged memory reserves nothing; say `allocation: contiguous`", "reserve")
        if self.tiers and self.allocation == "contiguous":
            raise FaultAt("contiguous memory shares no blocks that a tier could keep; leave `allocation` out", "tiers")
        return self


class DisaggregationFile(StrictModel):
    """How a pool that prefills (mapper prefill-decode) works for the one that decodes."""

    skip_below: Natural | Literal["auto"] | None = Field(
        None,
        description="tokens left to compute up to which a prompt is prefilled where it decodes; auto: where its first "
        "token comes sooner; default: never",
    )
    overlap: bool = Field(True, description="send a KV cache layer by layer while its prompt is worked out")
    scheduler: str | None = Field(None, description="of the replicas that prefill; default: as of those that decode")
    max_tokens: Count | None = Field(None, description="tokens of a step that prefills, at the most")

    @property
    def given(self) -> bool:
        """Whether a file says anything of it."""
        return bool(self.model_fields_set)


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
    router: Literal["round-robin", "least-loaded", "prefix-affine", "session-affine"] | None = Field(
        None, description="how requests are dealt to replicas; default: session-affine for sessions, else least-loaded"
    )
    disaggregation: DisaggregationFile = Field(DisaggregationFile(), description="of prefill and decode")
