"""The part of a scenario that says how requests are served: scheduler, batch, KV memory, preemption, routing."""

from typing import Literal

from pydantic import Field, model_validator

from archsim.catalog import StrictModel
from archsim.fields import Count, FaultAt, Fraction, Natural


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
    router: Literal["round-robin", "least-loaded", "prefix-affine", "session-affine"] = Field(
        "least-loaded", description="how requests are dealt to replicas"
    )
    disaggregation: DisaggregationFile = Field(DisaggregationFile(), description="of prefill and decode")
