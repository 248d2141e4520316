"""Options of a placement that any split can take."""

from typing import Literal

from pydantic import Field

from archsim.catalog import StrictModel
from archsim.fields import Few, Natural, NonNegative


class Options(StrictModel):
    """How work is arranged beyond the degrees of a split; the defaults change nothing."""

    micro_batches: Few = Field(
        1,
        le=16,
        description="a step's sequences in this many parts, so that transfers of one hide behind kernels of another",
    )
    sequence_parallel: bool = Field(False, description="norms work on a share of the tokens of each tensor rank")
    redundant_experts: Natural = Field(
        0, le=4096, description="further copies of the most popular experts of a layer, over all ranks"
    )
    imbalance: NonNegative = Field(
        0.0, description="exponent of expert popularity that loads ranks unevenly; 0: trained to balance"
    )
    kv: Literal["chip", "backing"] = Field(
        "chip", description="the memory that holds KV caches: the chip's own, or the one behind an LPU"
    )
