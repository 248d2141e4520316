"""The files of chips and generations, and how they become a Chip."""

from functools import lru_cache
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, model_validator

from archsim.arrays import array
from archsim.catalog import CatalogError, Document, Fault, Mark, StrictModel, fetch, find, validate
from archsim.chip.constants import FAMILIES, Constants
from archsim.chip.memory import Technology, load_technology
from archsim.chip.model import Chip, Energy, Generation, Link, Memory, Power, Price
from archsim.fields import (
    Bandwidth,
    Bytes,
    Count,
    Dollars,
    DollarsPerHour,
    EnergyPerByte,
    EnergyPerFlop,
    FaultAt,
    Fraction,
    Hertz,
    Positive,
    Rate,
    Seconds,
    Watts,
)
from archsim.sources import SourceEntry, check_sources, sources_of
from archsim.yamlmarks import note, recording, shown

Kind = Literal["gpu", "near-memory", "lpu"]
MatrixFormat = Literal["bf16", "fp8", "fp4", "int8", "int4", "tf32", "fp32"]


PeakRate = Annotated[Rate, Field(gt=0.0)]


class MemoryFile(StrictModel):
    """Memory: technology, capacity, bandwidth."""

    technology: str
    timing: str | None = Field(None, description="a file of `chips/memory/`, whose timings tell what it sustains")
    capacity: Bytes = Field(gt=0.0)
    bandwidth: Bandwidth = Field(gt=0.0)


class ReachFile(StrictModel):
    """How far the chips of a group are apart."""

    chips: Count = Field(description="chips of a group at the most")
    latency: Seconds = Field(description="to the farthest of them")


class LinkFile(StrictModel):
    """A fabric; bandwidth is of one chip in one direction."""

    name: str = ""
    bandwidth: Bandwidth = Field(gt=0.0)
    latency: Seconds
    domain: Count = Field(1, description="chips it joins without leaving the fabric")
    switch: bool = Field(False, description="whether the fabric reduces in its switch")
    reach: tuple[ReachFile, ...] = Field(
        (), description="latency by the number of chips, where it grows with them; beyond, that of the most"
    )


class LinksFile(StrictModel):
    """Links of a chip."""

    scale_up: LinkFile | None = None
    scale_out: LinkFile | None = None
    host: LinkFile | None = None


class PowerFile(StrictModel):
    """Board power."""

    tdp: Watts = Field(gt=0.0)
    idle: Watts
    active: Watts = Field(description="floor while any kernel runs")
    cap: Fraction = Field(0.988, ge=0.01, description="share of the limit that sustained work reaches")


class EnergyFile(StrictModel):
    """Energy of doing."""

    byte: EnergyPerByte
    flop: dict[MatrixFormat, EnergyPerFlop]
    exponential: EnergyPerFlop

    @model_validator(mode="after")
    def _has_bf16(self) -> "EnergyFile":
        if "bf16" not in self.flop:
            raise FaultAt("the energy of a bf16 FLOP is needed: formats without one of their own take it", "flop")
        return self


class PriceFile(StrictModel):
    """Money, dated."""

    chip: Dollars | None = None
    system: Dollars | None = Field(None, description="all-in capital of a chip with its share of server and network")
    rent: DollarsPerHour | None = None
    as_of: str


class SramFile(StrictModel):
    """Memory on chip, private to a core."""

    per_core: Bytes


class CacheFile(StrictModel):
    """Cache shared by all cores."""

    capacity: Bytes
    partitioned: bool = False


class NetworkFile(StrictModel):
    """The network between the cores of a chip."""

    bandwidth: Bandwidth = Field(gt=0.0, description="what every core can take from it, all at once in a broadcast")


class ChipFile(StrictModel):
    """A file of `chips/`."""

    name: str
    kind: Kind
    generation: str
    clock: Hertz = Field(gt=0.0)
    cores: Count
    matrix: dict[MatrixFormat, PeakRate]
    vector: dict[MatrixFormat, PeakRate]
    exponentials: Positive
    sram: SramFile
    cache: CacheFile
    memory: MemoryFile
    backing: MemoryFile | None = Field(None, description="behind an LPU: where `placement.kv: backing` puts KV caches")
    network: NetworkFile | None = Field(None, description="between cores; none: never the limit")
    links: LinksFile
    power: PowerFile
    energy: EnergyFile
    price: PriceFile
    sources: tuple[SourceEntry, ...]


class GenerationFile(StrictModel):
    """A file of `chips/generations/`."""

    name: str
    matrix_style: str = Field(description="instruction family of the matrix units: mma, wgmma, tcgen05")
    kernels: dict[str, dict[str, dict[str, dict[str, object]]]]
    sources: tuple[SourceEntry, ...] = ()


def load_chip(name: str, mark: Mark | None = None) -> Chip:
    """The chip of a name or path. Raises CatalogError with every fault of its file."""
    document = fetch("chips", name, mark)
    file = validate(ChipFile, document)
    check_sources(document, file.sources, skip=("name", "kind", "generation"))
    generation = load_generation(file.generation, document.mark("generation"))
    timing = file.memory.timing
    dram = None if timing is None else load_technology(timing, document.mark("memory", "timing"))
    return _chip(file, generation, dram, shown(document.path))


def load_generation(name: str, mark: Mark | None = None) -> Generation:
    """The calibration constants of a generation, each set checked against its family."""
    path = find("chips/generations", name, mark)
    with recording() as files:
        generation = _generation(name, mark, path, path.stat().st_mtime_ns)
    if files:
        _FILES[path] = files
    note(*_FILES.get(path, ()))
    return generation


_FILES: dict[Path, set[Path]] = {}  # read for a generation, its parents included


@lru_cache(maxsize=64)
def _generation(name: str, mark: Mark | None, path: Path, changed: int) -> Generation:
    """A generation's file, read once as long as it does not change."""
    document = fetch("chips/generations", str(path), mark)
    file = validate(GenerationFile, document)
    check_sources(document, file.sources, skip=("name", "matrix_style"))
    return Generation(file.name, file.matrix_style, _sets(document), sources_of(file.sources, shown(document.path)))


def _sets(document: Document) -> dict[str, dict[str, dict[str, Constants]]]:
    faults: list[Fault] = []
    stacks: dict[str, dict[str, dict[str, Constants]]] = {}
    for stack, families in document.data["kernels"].items():
        below = document.at("kernels", stack)  # in steps, since each looks through all marks that are left
        for family, formats in families.items():
            if family not in FAMILIES:
                faults.append(
                    document.mark("kernels", stack, family).key_fault(
                        f"unknown kernel family {family!r}; known: {', '.join(FAMILIES)}"
                    )
                )
                continue
            sets = below.at(family)
            for fmt in formats:
                try:
                    found = validate(FAMILIES[family], sets.at(fmt)).known()
                    stacks.setdefault(stack, {}).setdefault(family, {})[fmt] = found
                except CatalogError as error:
                    faults.extend(error.faults)
    if faults:
        raise CatalogError(faults)
    return stacks


def _link(file: LinkFile, fallback: str) -> Link:
    reach = {item.chips: array(item.latency) for item in file.reach}
    return Link(file.name or fallback, array(file.bandwidth), array(file.latency), file.domain, file.switch, reach)


def _memory(file: MemoryFile, dram: Technology | None = None) -> Memory:
    return Memory(file.technology, array(file.capacity), array(file.bandwidth), dram)


def _price(file: PriceFile) -> Price:
    chip, system, rent = (None if item is None else array(item) for item in (file.chip, file.system, file.rent))
    return Price(chip, system, rent, file.as_of)


def _chip(file: ChipFile, generation: Generation, dram: Technology | None, path: str) -> Chip:
    power = file.power
    links = {name: _link(link, name) for name, link in file.links if link is not None}
    return Chip(
        name=file.name,
        kind=file.kind,
        clock=array(file.clock),
        cores=array(file.cores),
        matrix={fmt: array(rate) for fmt, rate in file.matrix.items()},
        vector={fmt: array(rate) for fmt, rate in file.vector.items()},
        exponentials=array(file.exponentials),
        sram=array(file.sram.per_core),
        cache=array(file.cache.capacity),
        memory=_memory(file.memory, dram),
        backing=None if file.backing is None else _memory(file.backing),
        links=links,
        power=Power(array(power.tdp), array(power.idle), array(power.active), *[array(power.cap * power.tdp)] * 2),
        energy=Energy(
            array(file.energy.byte), {f: array(e) for f, e in file.energy.flop.items()}, array(file.energy.exponential)
        ),
        price=_price(file.price),
        generation=generation,
        sources=(*sources_of(file.sources, path), *(() if dram is None else dram.sources)),
        partitioned=file.cache.partitioned,
        network=None if file.network is None else array(file.network.bandwidth),
    )
