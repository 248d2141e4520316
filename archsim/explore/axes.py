"""The fields of a scenario that arrays can carry: their names, units and limits."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import inf

import numpy as np

from archsim.arrays import Array
from archsim.chip.model import Chip
from archsim.explore.scenario import Scenario
from archsim.mapping.roles import DEGREES
from archsim.units import DIMENSIONS


@dataclass(frozen=True)
class Field:
    """A field: its name as `run` takes it, its dimension ("" for none) and unit, its limits and its value now."""

    name: str
    dimension: str = ""
    unit: str = ""
    whole: bool = False
    least: float = 0.0
    most: float = inf
    now: float | None = None

    @property
    def parse_unit(self) -> str | None:
        """The unit that `archsim.units.parse` gives the value in; None: SI."""
        return self.unit if self.dimension in KEPT else None

    @property
    def example(self) -> str:
        """What a value looks like."""
        if self.dimension:
            known = DIMENSIONS[self.dimension]
            return f"{known.phrase} such as '{known.example}'"
        return "a whole number such as 8" if self.whole else "a number such as 0.5"


KEPT = {"rent": "USD/h", "energy_price": "USD/kWh", "token_price": "USD/Mtok"}  # not in SI, as files keep them
SI = {
    "bytes": "B",
    "bandwidth": "B/s",
    "rate": "FLOP/s",
    "time": "s",
    "frequency": "Hz",
    "power": "W",
    "money": "USD",
    "energy": "J",
    "energy_per_byte": "J/B",
    "energy_per_flop": "J/FLOP",
    "token_rate": "tok/s",
    **KEPT,
}

# Fields of a chip; a star stands for what the chip has there. The second name is that of the chip's file.
CHIP = (
    ("clock", "frequency"),
    ("cores", "whole"),
    ("matrix.*", "rate"),
    ("vector.*", "rate"),
    ("exponentials", ""),
    ("sram", "bytes"),
    ("cache", "bytes"),
    ("memory.capacity", "bytes"),
    ("memory.bandwidth", "bandwidth"),
    ("backing.capacity", "bytes"),
    ("backing.bandwidth", "bandwidth"),
    ("links.*.bandwidth", "bandwidth"),
    ("links.*.latency", "time"),
    ("network", "bandwidth"),
    ("power.tdp", "power"),
    ("power.idle", "power"),
    ("power.active", "power"),
    ("power.cap", "power"),
    ("energy.byte", "energy_per_byte"),
    ("energy.flop.*", "energy_per_flop"),
    ("energy.exponential", "energy_per_flop"),
    ("price.chip", "money"),
    ("price.system", "money"),
    ("price.rent", "rent"),
)
FILE_NAMES = {"sram.per_core": "sram", "cache.capacity": "cache", "network.bandwidth": "network"}
POSITIVE = frozenset({"frequency", "whole", "rate", "bytes", "bandwidth"})  # zero of these has no meaning

NUMBERS = ("batch", "context", "input", "output", "cached")
TERMS = {
    "rent": ("rent", 0.0, inf),
    "capital": ("money", 0.0, inf),
    "years": ("", 0.1, 100.0),
    "interest": ("", 0.0, 10.0),
    "operation": ("", 0.0, inf),
    "electricity": ("energy_price", 0.0, inf),
    "pue": ("", 1e-9, inf),
    "overhead": ("power", 0.0, inf),
    "utilization": ("", 0.001, 1.0),
}
PRICES = ("input", "output", "cached_input")
SLO = {"ttft": "time", "tpot": "time", "interactivity": "token_rate"}

# What else a scenario's file says: structure, built anew for every value
STRUCTURE = (
    "model",
    "chip",
    "pools",
    "links",
    "precision",
    "runtime",
    "mapper",
    "split",
    "placement",
    "power_cap",
    "traffic",
    "trace",
    "serving",
    "slo",
    "objective",
    "routing",
    "speculation",
    "economics",
    "prices",
    "batch",
    "context",
)


SERVED = {
    "rate": Field("rate", least=1e-9),
    "seed": Field("seed", whole=True),
    "requests": Field("requests", whole=True, least=1.0),
}


def heads_of(scenario: Scenario) -> list[str]:
    """What the names of structure axes may begin with."""
    return [name for name in STRUCTURE if name != "chip" or scenario.partner is None]


def fields_of(scenario: Scenario, serving: bool = False) -> dict[str, Field]:
    """Every field that arrays can carry in this scenario, by every name it has.

    Where requests are served one by one (`serving`), also what is asked of traffic; its sizes are then structure.
    """
    if serving:
        own = {field.name: field for field in _all(scenario) if field.name not in (*NUMBERS, "skew")}
        return {**own, **SERVED, **{name: own[of] for name, of in _aliases(scenario, own).items() if of in own}}
    found = {field.name: field for field in _all(scenario)}
    for name, other in _aliases(scenario, found).items():
        if other in found:
            found[name] = found[other]
    return found


def _all(scenario: Scenario) -> Iterator[Field]:
    system = scenario.system
    for name in NUMBERS:
        least = 0.0 if name == "cached" else 1.0
        yield Field(name, whole=name in ("batch", "context"), least=least, now=_one(getattr(scenario, name)))
    yield Field("skew", most=10.0, now=_one(scenario.skew))
    if scenario.partner is None:
        yield Field("chips", whole=True, least=1.0, now=_one(system.main.count))
        yield from chip_fields(system.main.chip, "chip.")
    else:
        yield Field("links.latency", "time", "s", now=_one(scenario.partner.out.latency))
        yield Field("links.bandwidth", "bandwidth", "B/s", least=1.0, now=_one(scenario.partner.out.receiver))
        for pool in system.pools:
            yield Field(f"pools.{pool}.count", whole=True, least=1.0, now=_one(system.pools[pool].count))
            yield from chip_fields(system.pools[pool].chip, f"pools.{pool}.chip.")
    for degree in DEGREES:
        yield Field(f"split.{degree}", whole=True, least=1.0)
    yield from _money(scenario)
    for name, dimension in SLO.items():
        yield _quantity(f"slo.{name}", dimension, getattr(scenario.slo, name), least=1e-12)


def _money(scenario: Scenario) -> Iterator[Field]:
    chip = scenario.chip
    for name, (dimension, least, most) in TERMS.items():
        now = getattr(scenario.terms, name)
        if now is None and name in ("rent", "capital"):
            now = chip.price.rent if name == "rent" else chip.capital
        yield _quantity(f"economics.{name}", dimension, now, least, most)
    if scenario.prices is not None:
        for name in PRICES:
            yield _quantity(f"prices.{name}", "token_price", getattr(scenario.prices, name))


def chip_fields(chip: Chip, prefix: str) -> Iterator[Field]:
    """The numbers of a chip, with what it has in place of a star."""
    for pattern, dimension in CHIP:
        for path in _expanded(chip, pattern.split(".")):
            least = 1e-24 if dimension in POSITIVE else 0.0
            now = _at(chip, path)
            name = prefix + ".".join(path)
            if dimension == "whole":
                yield Field(name, whole=True, least=1.0, now=_one(now))
            else:
                yield _quantity(name, dimension, now, least)


def _expanded(part: object, pattern: list[str]) -> Iterator[list[str]]:
    """The paths of a pattern in a tree of dataclasses and mappings."""
    if not pattern:
        yield []
        return
    head, rest = pattern[0], pattern[1:]
    names = list(part) if head == "*" and isinstance(part, Mapping) else [head]
    for name in names:
        inner = part.get(name) if isinstance(part, Mapping) else getattr(part, name, None)
        if inner is not None or not rest:
            yield from ([name, *path] for path in _expanded(inner, rest))


def _at(part: object, path: list[str]) -> object:
    for name in path:
        part = part.get(name) if isinstance(part, Mapping) else getattr(part, name, None)
    return part


def _quantity(name: str, dimension: str, now: object, least: float = 0.0, most: float = inf) -> Field:
    return Field(name, dimension, SI.get(dimension, ""), least=least, most=most, now=_one(now))


def _one(value: object) -> float | None:
    """The value of a field that has one."""
    if value is None:
        return None
    values: Array = np.asarray(value, dtype=np.float64).ravel()
    return float(values[0]) if values.size == 1 else None


def _aliases(scenario: Scenario, found: Mapping[str, Field]) -> dict[str, str]:
    """Other names of fields: those of files, and of the only pool."""
    other = {"routing.skew": "skew", "traffic.input": "input", "traffic.output": "output", "traffic.cached": "cached"}
    for name in list(found):
        for file, own in FILE_NAMES.items():
            if name.endswith(f"chip.{own}"):
                other[name.removesuffix(own) + file] = name
    if scenario.partner is None:
        pool = scenario.system.main_name
        other[f"pools.{pool}.count"] = "chips"
        names = [*found, *other]
        other |= {f"pools.{pool}.{name}": other.get(name, name) for name in names if name.startswith("chip.")}
    return other
