"""Runtime: the software that turns operators into kernels, and the host time it takes."""

from dataclasses import dataclass
from typing import Literal

from pydantic import Field

from archsim.catalog import Mark, StrictModel, fetch, validate
from archsim.fields import Bytes, Count, Fraction, Seconds
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


class MemoryPolicy(StrictModel):
    """How much of the memory is used, and for what besides weights and KV cache."""

    utilization: Fraction = Field(
        1.0, description="share of the capacity the engine takes; the rest covers activations and buffers"
    )
    of_free: bool = Field(False, description="it is a share of what weights, activations and buffers leave free")
    buffers: Bytes = Field(0.0, description="captured graphs and communication buffers")


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
    graphed: Literal["decode", "all", "none"] = "all"
    all_reduce: Literal["custom", "nccl"] = Field("custom", description="own kernels as far as they reach, or NCCL")
    context_ranks: Literal["any", "latent", "none"] = Field(
        "any", description="attention whose KV cache ranks may share in decode; mappers' proposals keep to it"
    )
    host: HostFile = HostFile()
    prefill: PrefillFile = PrefillFile()
    memory: MemoryPolicy = MemoryPolicy()
    sources: tuple[SourceEntry, ...] = ()


@dataclass(frozen=True)
class Runtime:
    """The software stack of a deployment."""

    name: str
    version: str
    stack: str
    fuses: tuple[str, ...]
    quantizers: dict[str, tuple[str, ...]]
    graphed: str
    all_reduce: str
    context_ranks: str
    host: HostFile
    chunk: int
    utilization: float
    of_free: bool
    buffers: float
    sources: tuple[Source, ...]

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
        graphed=file.graphed,
        all_reduce=file.all_reduce,
        context_ranks=file.context_ranks,
        host=file.host,
        chunk=file.prefill.chunk,
        utilization=file.memory.utilization,
        of_free=file.memory.of_free,
        buffers=file.memory.buffers,
        sources=sources_of(file.sources, shown(document.path)),
    )
