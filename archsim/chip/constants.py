"""The calibration constants of each kernel family: typed, with units, at most ten numbers a set.

A generation file holds `kernels: {<stack>: {<family>: {<format>: {...}}}}`; a set is one of the classes below. Times
are seconds, bandwidths bytes a second, efficiencies fractions of the peak of the format actually used.
"""

from typing import Annotated, Self

from pydantic import Field, model_validator

from archsim.catalog import FaultAt, StrictModel
from archsim.fields import Bandwidth, Count, Fraction, NonNegative, Positive, Seconds

TILES = ((16, 64), (64, 64), (64, 128), (128, 128), (128, 256))
SPLITS = (1, 2, 3, 4, 6, 8, 12, 16)
EXPERT_TILES = (8, 16, 32, 64, 128, 256)
ATTENTION_SPLITS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128)

Share = Annotated[Fraction, Field(ge=1e-4)]  #: of a peak rate that is sustained, by which times are divided


class Constants(StrictModel):
    """Where a set comes from and how far off it is."""

    fitted_on: str = Field(
        description="the chips, stacks and formats whose measurements it was fitted on, or what it is taken from"
    )
    error: NonNegative | None = Field(
        None,
        description="mean absolute error in % on measurements not used in the fit; of collectives, of the fit itself",
    )
    spread: NonNegative | None = Field(
        None,
        description="robust log-sigma of measured over predicted, on measurements not used in the fit: half the "
        "distance between the 16th and the 84th percentile",
    )
    sibling: NonNegative | None = Field(
        None, description="the same on chips of the generation that no fit saw; absent where no other was measured"
    )

    def known(self) -> Self:
        """The set, without a spread where it has no error: one that extends a measured set is not measured itself."""
        return self if self.error is not None else self.model_copy(update={"spread": None, "sibling": None})


class Gemm(Constants):
    """A matrix product in tiles over the cores, with split-K (`engine/gemm.py`)."""

    fixed: Seconds = Field(0.0, description="t0: launch and fill")
    matrix: Share = Field(1.0, description="eta: sustained share of the matrix peak")
    memory: Share = Field(1.0, description="eta_m: sustained share of the memory bandwidth")
    feed: Bandwidth | None = Field(None, description="bw_sm: operand bytes a core can take, at 1.83 GHz")
    epilogue: Seconds = Field(0.0, description="ep: writing a tile of 128 x 256")
    wave: Seconds = Field(0.0, description="wv: start of each wave of a kernel that is not persistent")
    depth: Seconds = Field(0.0, description="kpro: latency of each 64 of K that does not overlap")
    split: Seconds | None = Field(
        None, description="t_sk: joining the parts of split-K; absent where the library has none"
    )
    overlap: Positive = Field(4.0, description="exponent of the norm that joins compute and memory")
    tiles: tuple[tuple[int, int], ...] = Field(TILES, description="the tiles (rows, columns) the library chooses from")
    granule: int = Field(64, description="K is padded to a multiple of this")
    persistent: Fraction = Field(
        0.0, description="share of a last partial wave that is hidden: 0.9 for persistent kernels"
    )


class GenerationAttention(Constants):
    """Attention of one new token a sequence over its KV cache, split over thread blocks (`engine/attention.py`)."""

    fixed: Seconds = 0.0
    memory: Share = 1.0
    block: Seconds = Field(0.0, description="t_cta: fixed work of a thread block")
    query: Seconds = Field(0.0, description="t_g: work a query head of a group adds to a block")
    feed: Bandwidth | None = Field(None, description="bw_sm: KV bytes one core can stream")
    matrix: Share = Field(1.0, description="eta_c: share of the bf16 matrix peak of one core")
    combine: Seconds = Field(0.0, description="t_comb: joining the splits")
    combine_feed: Bandwidth | None = Field(None, description="bw_cb: bandwidth of the join")
    overlap: Positive = 4.0
    splits: int = Field(128, description="smax: the most splits of one sequence; 0 for no block structure at all")
    rows: int = Field(64, description="query rows a block holds (head tile)")
    least_rows: int = Field(64, description="rows the matrix unit computes at the least")
    swap: Seconds = Field(0.0, description="t_swap: transposed copies that FA2 makes for grouped heads")
    groups_only: bool = Field(False, description="only grouped heads are split (FA2)")
    unpacked_groups: Count | None = Field(
        None,
        description="groups of more query heads than this are not packed into blocks (TensorRT-LLM): one block a query "
        "head, and the set `<format>_unpacked` holds; absent: all are packed",
    )
    unpacked_single: bool = Field(False, description="nor are query heads with a KV head of their own")
    unpacked_work: NonNegative = Field(
        0.0, description="nor is what has fewer sequences x KV heads x cached tokens (128 of them at the least)"
    )


class ContextAttention(Constants):
    """Causal attention of a prompt (`engine/attention.py`)."""

    fixed: Seconds = 0.0
    matrix: Share = Field(1.0, description="eta_c: share of the bf16 matrix peak")
    exponential: Positive | None = Field(
        None, description="eta_x: share of the exponential rate; absent: never the limit"
    )
    block: Seconds = Field(0.0, description="t_cta: fixed work of a tile of rows")
    tail: NonNegative = Field(0.0, description="share of the longest tile that shows at the end")
    queries: NonNegative = Field(1.0, description="io: passes over queries and outputs")
    keys: NonNegative = Field(1.0, description="iokv: passes over keys and values")
    overlap: Positive = 4.0
    rows: int = Field(128, description="Mt: query rows of a tile; 0 for no tiles at all")
    memory: Share = Field(0.85, description="sustained share of the bandwidth for these passes")
    edge: int = Field(0, description="keys a tile computes beyond a window, whose two ends fall inside blocks of keys")


class Experts(Constants):
    """Routed experts of a layer: two grouped GEMMs with what goes between (`engine/experts.py`)."""

    fixed: Seconds = 0.0
    routing: Seconds = Field(0.0, description="t_r: for each doubling of routed tokens")
    matrix: Share = 1.0
    memory: Share = 1.0
    feed: Bandwidth | None = None
    wave: Seconds = 0.0
    depth: Seconds = 0.0
    activation: NonNegative = Field(0.0, description="act: passes over the activations of routed rows")
    tokens: NonNegative = Field(0.0, description="t_tok: passes over the tokens")
    overlap: Positive = 2.0
    walks_all: bool = Field(
        False, description="token passes cover every routed row of the group (Triton), not the tokens present"
    )
    tiled: bool = Field(True, description="whether rows and columns are padded to tiles")


class Elementwise(Constants):
    """A small kernel: norm, rope and KV write, activation, quantiser, router, top-k."""

    fixed: Seconds = Field(
        0.0, description="what one more kernel in a layer costs an engine, gaps between kernels included"
    )
    memory: Share = 1.0


class StateUpdate(Constants):
    """One new token a sequence through its recurrent state (`engine/state.py`)."""

    fixed: Seconds = 0.0
    memory: Share = Field(1.0, description="sustained share of the bandwidth for reading and writing the state")
    vector: Share = Field(1.0, description="sustained share of the fp32 vector peak")


class StateScan(Constants):
    """The scan of a prompt in chunks (`engine/state.py`)."""

    fixed: Seconds = 0.0
    matrix: Share = Field(1.0, description="sustained share of the bf16 matrix peak")
    memory: Share = Field(1.0, description="sustained share of the bandwidth for activations and states")
    vector: Share = Field(1.0, description="sustained share of the fp32 vector peak, for scans without products")
    chain: Seconds = Field(
        0.0, description="one step of a chain of chunks that wait for one another, of a sequence and head"
    )


class Indexer(Constants):
    """Scores of the indexer of sparse attention, and the choice of the best (`engine/state.py`)."""

    fixed: Seconds = Field(0.0, description="two launches: scores, choice")
    matrix: Share = Field(1.0, description="sustained share of the matrix peak")
    memory: Share = 1.0
    logits: NonNegative = Field(0.0, description="bytes of a score that goes through memory between the two kernels")


class AllReduce(Constants):
    """One-shot, two-shot, ring and in-switch all-reduce; the fastest is taken (`engine/collective.py`).

    An engine has its own kernels (the set `any`), and beyond `ranks` or by choice of the runtime those of NCCL
    (`nccl`), whose protocols LL, Simple and NVLS take the form of two-shot, ring and in-switch. An algorithm without
    its fixed time is absent.
    """

    one_shot: Seconds | None = Field(None, description="a1: everyone sends all to everyone")
    rank: Seconds = Field(0.0, description="g: for each further rank, of one-shot and two-shot")
    one_shot_link: Share = Field(1.0, description="e1: share of the link bandwidth")
    two_shot: Seconds | None = Field(None, description="a2: everyone reduces a share, then gathers (NCCL: LL)")
    two_shot_link: Share = Field(1.0, description="e2")
    ring: Seconds | None = Field(None, description="a3: around a ring, or in the switch (NCCL: Simple, NVLS)")
    ring_rank: Seconds = Field(0.0, description="g3")
    ring_link: Share = Field(1.0, description="e3")
    switch_link: Share | None = Field(None, description="e4: reduction in the switch; absent without it")
    skew: Positive = Field(1.0, description="ranks arrive apart: factor on the fixed times in a running engine")
    ranks: Count = Field(8, description="most ranks of an engine's own kernels: a node, more with multi-node NVLink")

    @model_validator(mode="after")
    def _some_algorithm(self) -> Self:
        if self.one_shot is None and self.two_shot is None and self.ring is None:
            raise FaultAt("an all-reduce needs an algorithm: one_shot, two_shot or ring")
        return self


class AllToAll(Constants):
    """Dispatch of tokens to experts and their return, inside a node and across nodes.

    The set `any` is that of decode (DeepEP's low-latency kernels); `normal` are its kernels for prompts, `nccl` is
    NCCL's all-to-all.
    """

    local: Seconds = Field(0.0, description="fixed time inside a link domain")
    local_link: Share = 1.0
    low: Seconds | None = Field(
        None, description="fixed time of a protocol for small messages (NCCL's LL), where there is one"
    )
    low_link: Share = Field(1.0, description="share of the link bandwidth of that protocol")
    remote: Seconds = Field(0.0, description="fixed time across nodes")
    remote_link: Share = 1.0
    once: bool = Field(
        False, description="a token goes once to a rank, and once to a node, however many of its experts are there"
    )


class Machine(Constants):
    """What machines without kernels have in common: a fixed time of a layer, and sustained shares."""

    dependent_time: Seconds = Field(
        0.0,
        description="t_dep: what of a layer waits for one another on chip whatever its size, half at the end of "
        "attention and half at the end of the feed-forward part",
    )
    routed_time: Seconds = Field(0.0, description="what routed experts add to that of a layer")
    memory: Fraction = Field(
        1.0,
        description="sustained share of the bandwidth for weights; of what the timings of the DRAM allow, where the "
        "chip names them",
    )
    matrix: Fraction = Field(1.0, description="sustained share of the matrix peak")


class NearMemory(Machine):
    """Every kernel of cores that own a slice of memory each (`engine/near_memory.py`)."""

    outputs: Count = Field(1, description="l: results a core works on at once, its MAC trees")
    inputs: Count = Field(1, description="v: operands of one result that a tree takes at once")
    page: Count = Field(16, description="tokens of a page of the KV cache, which lies in one slice")
    chunks: Count = Field(
        1, description="column chunks of a product; the link carries one while the next is worked out, the last shows"
    )


class Lpu(Machine):
    """Every kernel of chips with pinned weights and a fixed schedule (`engine/lpu.py`)."""

    stream: Fraction = Field(1.0, description="sustained share of the bandwidth for the KV cache and activations")
    tile: Count = Field(1, description="rows and columns of weights that a matrix unit holds")
    reuse: bool = Field(True, description="whether tokens that choose the same expert share one pass over its weights")
    period: Seconds = Field(0.0, description="what a layer takes at the least: the period of the schedule's stages")
    routed_period: Seconds = Field(0.0, description="the same of a layer with routed experts")


FAMILIES: dict[str, type[Constants]] = {
    "gemm": Gemm,
    "generation_attention": GenerationAttention,
    "context_attention": ContextAttention,
    "mla_generation": GenerationAttention,
    "mla_context": ContextAttention,
    "experts": Experts,
    "elementwise": Elementwise,
    "state_update": StateUpdate,
    "state_scan": StateScan,
    "indexer": Indexer,
    "all_reduce": AllReduce,
    "all_to_all": AllToAll,
    "near_memory": NearMemory,
    "lpu": Lpu,
}
