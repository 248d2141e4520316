"""The file of a scenario: one model, pools of chips, a mapper, a runtime, and a question."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, TypeVar

import numpy as np
from pydantic import Field, model_validator

from archsim.arrays import Array, array
from archsim.catalog import CatalogError, Document, Fault, Mark, StrictModel, fetch, validate
from archsim.chip.model import Chip, with_value
from archsim.chip.schema import load_chip
from archsim.economics.prices import Prices
from archsim.economics.terms import Terms
from archsim.fields import (
    Count,
    FaultAt,
    Few,
    FormatName,
    Fraction,
    Natural,
    NonNegative,
    Seconds,
    TokensPerSecond,
    Watts,
)
from archsim.mapping.mapper import Mapper, load_mapper
from archsim.mapping.options import Options
from archsim.mapping.runtime import Runtime, load_runtime
from archsim.mapping.split import Split
from archsim.mapping.split import split as split_of
from archsim.mapping.system import Pool, System
from archsim.serving.policy import ServingFile
from archsim.units import UnitError
from archsim.workload.model import Model, Precision, precision_of
from archsim.workload.schema import PrecisionClass, load_model
from archsim.workload.traffic import TrafficFile, load_traffic
from archsim.yamlmarks import shown

Loaded = TypeVar("Loaded")

NUMBERS = ("batch", "context", "input", "output", "cached", "skew")
EXPERT_SKEW = 1.2  # exponent of expert popularity that explains measured decode of five MoE families


class PoolFile(StrictModel):
    """Chips of one kind."""

    chip: str
    count: Few


class SloFile(StrictModel):
    """What users must feel."""

    ttft: Seconds | None = None
    tpot: Seconds | None = None
    interactivity: TokensPerSecond | None = None
    share: Fraction = Field(0.9, description="of requests that must keep all of it, where they are served one by one")


class SplitFile(StrictModel):
    """A split given instead of asked for."""

    tensor: Few = 1
    attention_data: Few = 1
    expert: Few = 1
    data: Few = 1
    pipeline: Few = 1
    context: Few = Field(1, description="ranks of a tensor group that share the tokens of a KV cache")


class SpeculationFile(StrictModel):
    """Drafts verified by each decode step of the step answer, at no cost of their own (n-grams)."""

    drafts: Natural = Field(0, description="draft tokens of a sequence that a step verifies")
    acceptance: Fraction | tuple[Fraction, ...] = Field(
        0.8, description="probability that a draft is accepted once all before it were, or a profile by position"
    )

    @model_validator(mode="after")
    def _long_enough(self) -> "SpeculationFile":
        if isinstance(self.acceptance, tuple) and len(self.acceptance) < self.drafts:
            raise FaultAt(
                f"a profile of {len(self.acceptance)} positions is too short for {self.drafts} drafts", "acceptance"
            )
        return self


class RoutingFile(StrictModel):
    """How unevenly tokens choose experts."""

    skew: NonNegative = Field(
        EXPERT_SKEW, le=10.0, description="exponent of the power law by which tokens repeat experts; 0: uniform"
    )


Metric = Literal["cost_per_token", "tpot", "ttft", "throughput", "energy_per_token"]


class ObjectiveFile(StrictModel):
    """What the best plan is best at."""

    minimize: Literal["cost_per_token", "tpot", "ttft", "energy_per_token"] | None = None
    maximize: Literal["throughput", "interactivity"] | None = None


class ScenarioFile(StrictModel):
    """A scenario. `batch` and `context` ask for the step answer, `traffic` for the steady one; both may be asked."""

    name: str | None = None
    model: str
    pools: dict[str, PoolFile]
    precision: dict[PrecisionClass, FormatName] = Field({})
    runtime: str = "vllm"
    mapper: str = "auto"
    split: SplitFile | None = None
    placement: Options = Options()
    power_cap: Watts | None = Field(None, description="board power of a chip at the most; default: its own limit")
    batch: Count | tuple[Count, ...] | None = None
    context: Count | tuple[Count, ...] | None = None
    traffic: TrafficFile | str | None = Field(
        None, description="requests, or the name of a traffic file; asks for the steady answer"
    )
    trace: str | None = Field(None, description="a file of requests to serve, relative to this one")
    serving: ServingFile = ServingFile()
    slo: SloFile = SloFile()
    objective: ObjectiveFile = ObjectiveFile()
    routing: RoutingFile = RoutingFile()
    speculation: SpeculationFile = Field(SpeculationFile(), description="drafts that a decode step verifies")
    economics: Terms = Terms()
    prices: Prices | None = Field(None, description="what tokens are sold for; gives revenue and margin")


@dataclass(frozen=True, eq=False)
class Scenario:
    """A scenario with everything it names loaded. Arrays may be swept; the rest is structure."""

    name: str
    file: str
    model: Model
    precision: Precision
    system: System
    runtime: Runtime
    mapper: Mapper | None
    split: Split
    batch: Array | None
    context: Array | None
    input: Array | None
    output: Array | None
    cached: Array
    slo: SloFile
    objective: ObjectiveFile
    skew: Array
    options: Options
    speculation: SpeculationFile
    terms: Terms
    prices: Prices | None = None
    traffic: TrafficFile | None = None
    trace: str | None = None
    serving: ServingFile = field(default_factory=ServingFile)
    marks: Document | None = None

    def mark(self, *where: str | int) -> Mark | None:
        """Where the scenario's file says something; None for one without a file."""
        return None if self.marks is None else self.marks.mark(*where)

    @property
    def chip(self) -> Chip:
        """The chip of the main pool."""
        return self.system.main.chip

    @property
    def chips(self) -> Array:
        """Chips of the main pool."""
        return self.system.main.count


def load_scenario(name: str) -> Scenario:
    """The scenario of a path, or of a shipped example by name. Raises CatalogError with every fault of the file."""
    document = fetch("examples", name)
    return build(validate(ScenarioFile, document), document)


def scenario_of(data: dict[str, Any]) -> Scenario:
    """The scenario that a file with these data would describe. Raises CatalogError with every fault."""
    document = Document(Path("scenario"), data, {})
    return build(validate(ScenarioFile, document), document)


def build(file: ScenarioFile, document: Document) -> Scenario:
    """Loads what a scenario names. Every fault of every file it names is raised together."""
    loader = _Loader()
    model = loader.load(load_model, file.model, document.mark("model"))
    chips = {
        name: loader.load(load_chip, pool.chip, document.mark("pools", name, "chip"))
        for name, pool in file.pools.items()
    }
    runtime = loader.load(load_runtime, file.runtime, document.mark("runtime"))
    mapper = loader.load(load_mapper, file.mapper, document.mark("mapper"))
    traffic = file.traffic
    if isinstance(traffic, str):
        traffic = loader.load(load_traffic, traffic, document.mark("traffic"))
    faults = [*loader.faults, *_check(file, document)]
    if faults or model is None or runtime is None or mapper is None or None in chips.values():
        raise CatalogError(faults)
    pools = {
        name: Pool(_capped(chip, file.power_cap), array(file.pools[name].count))
        for name, chip in chips.items()
        if chip is not None
    }
    system = System(pools)
    given = None if file.split is None else split_of(**file.split.model_dump())
    try:
        proposed = given or mapper.propose(model, system.main)
    except ValueError as error:
        raise CatalogError([document.mark("mapper").fault(str(error))]) from error
    try:
        precision = precision_of(model, {str(name): fmt for name, fmt in file.precision.items()})
    except UnitError as error:
        raise CatalogError([document.mark("precision").fault(str(error))]) from error
    return Scenario(
        name=file.name or document.path.stem,
        file=shown(document.path),
        model=model,
        precision=precision,
        system=system,
        runtime=runtime,
        mapper=None if given is not None else mapper,
        split=proposed,
        batch=_numbers(file.batch),
        context=_numbers(file.context),
        input=None if traffic is None else array(traffic.mean_input),
        output=None if traffic is None else array(traffic.mean_output),
        cached=array(0.0 if traffic is None else traffic.cached),
        slo=file.slo,
        objective=file.objective,
        skew=array(file.routing.skew),
        options=file.placement,
        speculation=file.speculation,
        terms=file.economics,
        prices=file.prices,
        traffic=traffic,
        trace=None if file.trace is None else str(_trace_of(document, file.trace)),
        serving=file.serving,
        marks=document,
    )


def _trace_of(document: Document, name: str) -> Path:
    """The file of a trace, relative to the scenario's."""
    return (document.path.parent / Path(name).expanduser()).resolve()


def _capped(chip: Chip, cap: float | None) -> Chip:
    """The chip under a power cap, if it is below its own."""
    return chip if cap is None else with_value(chip, ("power", "cap"), np.minimum(array(cap), chip.power.sustained))


class _Loader:
    """Loads named parts and keeps their faults until all are known."""

    def __init__(self) -> None:
        self.faults: list[Fault] = []

    def load(self, load: Callable[[str, Mark], Loaded], name: str, mark: Mark) -> Loaded | None:
        """What `load` gives, or None with its faults kept."""
        try:
            return load(name, mark)
        except CatalogError as error:
            self.faults.extend(error.faults)
            return None


def _check(file: ScenarioFile, document: Document) -> list[Fault]:
    faults = []
    if len(file.pools) != 1:
        faults.append(document.mark("pools").fault(f"expected one pool, got {len(file.pools)}"))
    if file.batch is None and file.context is None and file.traffic is None and file.trace is None:
        faults.append(document.mark().fault("nothing is asked: give `batch` and `context`, or `traffic`"))
    if file.trace is not None and not _trace_of(document, file.trace).is_file():
        faults.append(document.mark("trace").fault(f"no such file {file.trace!r}"))
    if (file.batch is None) != (file.context is None) and file.traffic is None:
        faults.append(document.mark().fault("the step answer needs both `batch` and `context`"))
    if file.objective.minimize and file.objective.maximize:
        faults.append(document.mark("objective").fault("give `minimize` or `maximize`, not both"))
    return faults


def _numbers(value: int | tuple[int, ...] | None) -> Array | None:
    return None if value is None else array(np.asarray(value, dtype=np.float64))


def with_fields(scenario: Scenario, fields: Mapping[str, Array]) -> Scenario:
    """A copy of a scenario with numbers replaced by arrays.

    Names are those of NUMBERS, `chips`, or `chip.` and `split.` followed by a field, such as
    `chip.memory.bandwidth` (SI units). Raises KeyError naming what exists.
    """
    for name, value in fields.items():
        head, _, rest = name.partition(".")
        if name in NUMBERS:
            scenario = with_value(scenario, (name,), value)
        elif name == "chips":
            scenario = replace(scenario, system=_pool(scenario, Pool(scenario.chip, value)))
        elif head == "chip" and rest:
            chip = with_value(scenario.chip, tuple(rest.split(".")), value)
            scenario = replace(scenario, system=_pool(scenario, Pool(chip, scenario.chips)))
        elif head == "split" and rest:
            scenario = replace(scenario, split=with_value(scenario.split, (rest,), value))
        else:
            raise KeyError(f"no field {name!r}; there are {', '.join(NUMBERS)}, chips, chip.* and split.*")
    return scenario


def _pool(scenario: Scenario, pool: Pool) -> System:
    (name,) = scenario.system.pools
    return System({name: pool})
