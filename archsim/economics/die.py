"""What a chip takes to make: area from its parts, dies from a wafer, yield, cost, price.

A sketch of a chip that does not exist: parts have an area a unit, and nothing is placed. Every number comes from a file
of `chips/silicon/`. Everything broadcasts. Formulas: `docs/sizing.md`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
from pydantic import Field

from archsim.arrays import Array, array
from archsim.catalog import Mark, StrictModel, fetch, validate
from archsim.fields import Area, Bandwidth, Bytes, Dollars, DollarsPerGB, EnergyPerByte, Fraction, Positive
from archsim.sources import Source, SourceEntry, check_sources, sources_of
from archsim.yamlmarks import shown

MM2, CM2 = 1e-6, 1e-4  # m2

Yield = Literal["negative-binomial", "murphy", "poisson"]


class ProcessFile(StrictModel):
    """A process: what a wafer costs, how many defects it has, and what parts take."""

    wafer: Dollars
    defects: Positive = Field(description="a cm2")
    clustering: Positive = Field(description="of defects, the alpha of the negative binomial yield")
    sram: Area = Field(description="of a megabyte, with what surrounds its cells")
    compute: Area = Field(description="of a TFLOP/s in bf16: matrix units with all of their core but its SRAM")
    link: Area = Field(description="of a GB/s of links, in one direction")
    rest: Area = Field(description="of what every chip has")
    active: Positive = Field(description="W a mm2 while anything runs, beyond what work takes")
    idle: Positive = Field(description="W a mm2 while nothing runs")


class UnitFile(StrictModel):
    """A unit of memory: a package of LPDDR, a stack of HBM."""

    technology: str
    timing: str = Field(description="a file of `chips/memory/`")
    bandwidth: Bandwidth
    sizes: tuple[Bytes, ...] = Field(description="capacities that are made")
    phy: Area = Field(description="interface and controller on the die")
    edge: Positive = Field(description="mm of die edge that the interface takes")
    energy: EnergyPerByte = Field(description="DRAM and interface")
    price: DollarsPerGB
    package: Dollars = Field(description="assembly of one unit")


class SiliconFile(StrictModel):
    """A file of `chips/silicon/`."""

    name: str
    wafer: Area
    reticle: Area = Field(description="the largest die; larger chips are several dies")
    processes: dict[str, ProcessFile]
    memories: dict[str, UnitFile]
    on_chip: EnergyPerByte = Field(description="of a byte on its way through the chip")
    board: Dollars
    test: Dollars
    shore: Fraction = Field(description="share of the die's edge that memory may take")
    sources: tuple[SourceEntry, ...]


@dataclass(frozen=True, eq=False)
class Silicon:
    """A file of silicon with its sources."""

    file: SiliconFile
    sources: tuple[Source, ...]


def load_silicon(name: str, mark: Mark | None = None) -> Silicon:
    """The file of silicon of a name or path. Raises CatalogError with every fault."""
    document = fetch("chips/silicon", name, mark)
    file = validate(SiliconFile, document)
    check_sources(document, file.sources, skip=("name",))
    return Silicon(file, sources_of(file.sources, shown(document.path)))


def dies_per_wafer(area: Array, wafer: float) -> Array:
    """Whole dies of an area on a round wafer of an area (both m2): W / A - pi d / sqrt(2 A), d its diameter.

    The second term are the dies that the edge cuts (de Vries, 2005, has this form among others). Never below 0.
    """
    diameter = 2.0 * np.sqrt(wafer / np.pi)
    return np.asarray(np.maximum(np.floor(wafer / area - np.pi * diameter / np.sqrt(2.0 * area)), 0.0))


def good_share(area: Array, defects: Array, clustering: Array, form: Yield = "negative-binomial") -> Array:
    """The share of dies without a defect; `area` in m2, `defects` a cm2.

    Negative binomial (1 + A D / alpha)^-alpha (Stapper 1973), Murphy ((1 - e^-AD) / AD)^2 (1964), Poisson e^-AD.
    """
    expected = area / CM2 * defects
    if form == "poisson":
        return np.asarray(np.exp(-expected))
    if form == "murphy":
        return np.asarray((-np.expm1(-expected) / expected) ** 2)
    return np.asarray((1.0 + expected / clustering) ** -clustering)


@dataclass(frozen=True, eq=False)
class Sketch:
    """A chip that could be: peak in bf16 (FLOP/s), SRAM (B), links (B/s, one way), units of memory of so many bytes.

    `harvest` is the share of the compute area in which a defect does no harm, since cores are spare.
    """

    silicon: SiliconFile
    process: str
    memory: str
    peak: Array
    sram: Array
    link: Array
    units: Array
    unit_bytes: Array
    harvest: float = 0.0

    @property
    def made(self) -> ProcessFile:
        """Its process."""
        return self.silicon.processes[self.process]

    @property
    def unit(self) -> UnitFile:
        """Its memory."""
        return self.silicon.memories[self.memory]

    @property
    def parts(self) -> Mapping[str, Array]:
        """Area (m2) by part."""
        p = self.made
        return {
            "compute": self.peak / 1e12 * p.compute,
            "SRAM": self.sram / 1e6 * p.sram,
            "memory interfaces": self.units * self.unit.phy,
            "links": self.link / 1e9 * p.link,
            "rest": array(p.rest),
        }

    @property
    def area(self) -> Array:
        """Area (m2) of all dies."""
        total = array(0.0)
        for part in self.parts.values():
            total = total + part
        return total

    @property
    def dies(self) -> Array:
        """Dies: as many as the reticle asks for."""
        return np.ceil(self.area / self.silicon.reticle)

    @property
    def shore(self) -> Array:
        """Share of the dies' outer edge that memory takes: the dies in a row, each a square of its area."""
        side = np.sqrt(self.area / self.dies) * 1e3  # mm
        return np.asarray(self.units * self.unit.edge / (side * (2.0 * self.dies + 2.0)))

    @property
    def good(self) -> Array:
        """Share of dies that can be sold."""
        p = self.made
        open_to_harm = (self.area - self.harvest * self.parts["compute"]) / self.dies
        return good_share(open_to_harm, array(p.defects), array(p.clustering))

    @property
    def die_cost(self) -> Array:
        """USD of all dies that work."""
        each = dies_per_wafer(self.area / self.dies, self.silicon.wafer)
        with np.errstate(divide="ignore"):
            return np.asarray(self.dies * self.made.wafer / (each * self.good))

    @property
    def memory_cost(self) -> Array:
        """USD of the memory and its assembly."""
        return np.asarray(self.units * (self.unit_bytes / 1e9 * self.unit.price + self.unit.package))

    @property
    def cost(self) -> Array:
        """USD to build a card."""
        return self.die_cost + self.memory_cost + self.silicon.test + self.silicon.board

    @property
    def bandwidth(self) -> Array:
        """Memory bandwidth (B/s)."""
        return self.units * self.unit.bandwidth

    @property
    def byte(self) -> float:
        """Energy (J) of a byte from memory to where it is used."""
        return self.unit.energy + self.silicon.on_chip

    def watts(self, active: bool) -> Array:
        """Power (W) of the silicon without its work: while anything runs, or idle."""
        return self.area / MM2 * (self.made.active if active else self.made.idle)
