"""Runtime: the software that turns operators into kernels, and the host time it takes."""

from dataclasses import dataclass
from typing import Literal

from pydantic import Field

from archsim.catalog import Mark, StrictModel, fetch, validate
from archsim.fields import Bytes, Count, Fraction, Positive, Seconds
from archsim.sources import Source, SourceEntry, check_sources, sources_of
from archsim.workload.model import LatentAttention, Model, Recurrent
from archsim.yamlmarks import shown


class HostFile(StrictModel):
    """Host time that shows on the clock."""

    step: Seconds = Field(0.0, description="scheduling and sampling of one step")
    sequence: Seconds = Field(0.0, description="for each running sequence of a step")
    launch: Seconds = Field(0.0, description="to launch one kernel of a step that is not a captured graph")
    request: Seconds = Field(0.0, description="for each request prefilled in a step")
    arrival: Seconds = Field(0.0, description="from the client to the scheduler and back, once a request")
    expert_layer: Seconds = Field(0.0, description="first-token time that each layer with routed experts adds")


class PrefillFile(StrictModel):
    """How prompts are scheduled among decoding sequences."""

    chunk: Count = Field(8192, description="prefill tokens of a step at the most")
    together: bool = Field(
        False, description="ranks with attention of their own wait until each has a prompt, and prefill in one step"
    )


class MemoryPolicy(StrictModel):
    """How much of the memory is used, and for what besides weights and KV cache."""

    utilization: Fraction = Field(
        1.0, description="share of the capacity the engine takes; the rest covers activations and buffers"
    )
    of_free: bool = Field(False, description="it is a share of what weights, activations and buffers leave free")
    buffers: Bytes = Field(0.0, description="captured graphs and communication buffers")


Factors = tuple[Positive, Positive]


class DistanceFile(StrictModel):
    """Ends of the 80 % band, measured over predicted, by distance from chips whose serving runs were fitted."""

    fitted: Factors = Field(description="chips whose runs were fitted, other models")
    sibling: Factors = Field(description="other chips of their generations")
    other: Factors = Field(description="generations without a serving run in the fit")


class KindsFile(StrictModel):
    """Bands of models without and with routed experts."""

    dense: DistanceFile = Field(description="models whose layers are all dense")
    experts: DistanceFile = Field(description="models with routed experts")


class SpreadFile(StrictModel):
    """How far serving runs lie from the steady answer."""

    chips: tuple[str, ...] = Field((), description="names of the chips whose runs were fitted")
    generations: tuple[str, ...] = Field((), description="generations of which chips were measured")
    tpot: KindsFile = Field(description="of the time between tokens")
    ttft: KindsFile = Field(description="of the time to the first token")


class RuntimeFile(StrictModel):
    """A file of `mappers/runtimes/`."""

    name: str
    version: str
    stack: str = Field(description="the kernel stack of the generation files")
    fuses: tuple[str, ...] = Field(
        (), description="elementwise operators that become part of another kernel; '*' for all"
    )
    quantizers: dict[str, tuple[str, ...]] = Field(
        {}, description="by format: the products whose input a kernel of its own quantises"
    )
    taken: dict[str, dict[str, str]] = Field(
        {}, description="kernels that it takes from another stack's constants: family, format of weights, stack"
    )
    beside: tuple[Literal["shared"], ...] = Field(
        (), description="roles whose kernels run on a stream of their own beside the routed experts"
    )
    shown: dict[str, Fraction] = Field(
        {}, description="by kind of kernel: share of the fixed time of one timed alone that shows in a running engine"
    )
    graphed: Literal["decode", "all", "none"] = "all"
    all_reduce: Literal["custom", "nccl"] = Field("custom", description="own kernels as far as they reach, or NCCL")
    context_ranks: Literal["any", "latent", "none"] = Field(
        "any", description="attention whose KV cache ranks may share in decode; mappers' proposals keep to it"
    )
    host: HostFile = HostFile()
    prefill: PrefillFile = PrefillFile()
    memory: MemoryPolicy = MemoryPolicy()
    spread: SpreadFile | None = Field(None, description="the 80 % band of serving runs about their prediction")
    sources: tuple[SourceEntry, ...] = ()


@dataclass(frozen=True)
class Runtime:
    """The software stack of a deployment."""

    name: str
    version: str
    stack: str
    fuses: tuple[str, ...]
    quantizers: dict[str, tuple[str, ...]]
    taken: dict[str, dict[str, str]]
    beside: tuple[str, ...]
    shown: dict[str, float]
    graphed: str
    all_reduce: str
    context_ranks: str
    host: HostFile
    chunk: int
    together: bool
    utilization: float
    of_free: bool
    buffers: float
    sources: tuple[Source, ...]
    spread: SpreadFile | None = None

    def fused(self, operator: str) -> bool:
        """Whether an elementwise operator is part of its neighbour."""
        return "*" in self.fuses or operator in self.fuses

    def shares_context(self, model: Model) -> bool:
        """Whether it has context ranks for every layer of a model that caches keys and values."""
        mixers = [block.attention for block in model.blocks.values()]
        cached = [mixer for mixer in mixers if mixer is not None and not isinstance(mixer, Recurrent)]
        latent = all(isinstance(mixer, LatentAttention) for mixer in cached)
        return self.context_ranks == "any" or (self.context_ranks == "latent" and latent)

    def eager(self, prefills: bool) -> bool:
        """Whether a step is launched kernel by kernel."""
        return self.graphed == "none" or (self.graphed == "decode" and prefills)


def load_runtime(name: str, mark: Mark | None = None) -> Runtime:
    """The runtime of a name or path. Raises CatalogError with every fault of its file."""
    document = fetch("mappers/runtimes", name, mark)
    file = validate(RuntimeFile, document)
    check_sources(document, file.sources, skip=("name", "version", "stack"))
    return Runtime(
        name=file.name,
        version=file.version,
        stack=file.stack,
        fuses=file.fuses,
        quantizers=file.quantizers,
        taken=file.taken,
        beside=file.beside,
        shown=file.shown,
        graphed=file.graphed,
        all_reduce=file.all_reduce,
        context_ranks=file.context_ranks,
        host=file.host,
        chunk=file.prefill.chunk,
        together=file.prefill.together,
        utilization=file.memory.utilization,
        of_free=file.memory.of_free,
        buffers=file.memory.buffers,
        sources=sources_of(file.sources, shown(document.path)),
        spread=file.spread,
    )
