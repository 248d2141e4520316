"""The file of a scenario: one model, pools of chips, a mapper, a runtime, and a question."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from pydantic import Field, model_validator

from archsim.arrays import Array, array
from archsim.catalog import CatalogError, Document, Mark, StrictModel, fetch, validate
from archsim.chip.model import Chip, with_value
from archsim.economics.prices import Prices
from archsim.economics.terms import Terms
from archsim.explore.loading import Named, loaded, trace_of
from archsim.explore.pools import PoolFile, Pools, WayFile, changed, paired, runtime_of
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
from archsim.mapping.mapper import Mapper
from archsim.mapping.options import Options
from archsim.mapping.roles import Space
from archsim.mapping.runtime import Runtime
from archsim.mapping.split import Split
from archsim.mapping.split import split as split_of
from archsim.mapping.system import Partner, Pool, System
from archsim.serving.policy import ServingFile
from archsim.units import UnitError
from archsim.workload.model import Model, Precision, precision_of
from archsim.workload.schema import PrecisionClass
from archsim.workload.traffic import TrafficFile
from archsim.yamlmarks import shown

NUMBERS = ("batch", "context", "input", "output", "cached", "skew")
PARTS = {"economics": "terms", "prices": "prices", "slo": "slo"}  # what else has numbers that arrays may replace
MOST_SKEW = 10.0
EXPERT_SKEW = 1.2  # exponent of expert popularity that explains measured decode of five MoE families


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
    micro_batches: Few = Field(1, le=16, description="that travel between two pools in turn")
    partner: "SplitFile | None" = Field(None, description="the split of the other pool")

    def split(self) -> Split:
        """The degrees as arrays."""
        other = None if self.partner is None else self.partner.split()
        own = self.model_dump(exclude={"micro_batches", "partner"})
        return replace(split_of(**own), micro_batches=array(self.micro_batches), partner=other)


class SpeculationFile(StrictModel):
    """Drafts that each decode step verifies: those of n-grams cost nothing, those of a model its passes."""

    drafts: Natural = Field(0, description="draft tokens of a sequence that a step verifies")
    model: str | None = Field(
        None, description="the model that writes drafts: on the same chips, or on a pool of its own (draft-verify)"
    )
    mtp: bool = Field(False, description="the model's own prediction module (MTP) writes drafts, pass by pass")
    when: Literal["pays", "always"] = Field(
        "pays", description="serving and the steady answer verify drafts: where these save time, or always"
    )
    acceptance: Fraction | tuple[Fraction, ...] = Field(
        0.8, description="probability that a draft is accepted once all before it were, or a profile by position"
    )

    @model_validator(mode="after")
    def _one_writer(self) -> "SpeculationFile":
        if self.mtp and self.model is not None:
            raise FaultAt("either `model` or `mtp` writes drafts", "mtp")
        return self

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
        EXPERT_SKEW, le=MOST_SKEW, description="exponent of the power law by which tokens repeat experts; 0: uniform"
    )
    over_time: tuple[tuple[NonNegative, NonNegative], ...] = Field(
        (), description="(second, skew): the skew from then on, of requests that are served one by one"
    )

    @model_validator(mode="after")
    def _in_order(self) -> "RoutingFile":
        times = [time for time, _ in self.over_time]
        if times != sorted(set(times)):
            raise FaultAt("the seconds have to grow", "over_time")
        if any(skew > MOST_SKEW for _, skew in self.over_time):
            raise FaultAt(f"a skew is {MOST_SKEW:g} at the most", "over_time")
        return self


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
    links: dict[str, WayFile] = Field(
        {}, description="between two pools, as `A-to-B`; default: the scale_out of their chips"
    )
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
    partner_terms: Terms = field(default_factory=Terms)
    drafter: Model | None = None
    chip_mark: Mark | None = None
    traffic: TrafficFile | None = None
    trace: str | None = None
    serving: ServingFile = field(default_factory=ServingFile)
    skews: tuple[tuple[float, float], ...] = ()
    marks: Document | None = None
    space: Space | None = None  # pairs of pools that are too many to propose them all
    searched: str = ""  # how they were searched

    @property
    def partner(self) -> Partner | None:
        """What a second pool does for the main one."""
        return self.system.partner

    @property
    def all_chips(self) -> Array:
        """Chips of all pools."""
        return self.system.chips

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
    """A scenario with all that it names. Every fault of every file it names is raised together."""
    named = loaded(file, document)
    if file.speculation.mtp and not named.model.mtp_layers:
        text = f"{named.model.name} has no prediction module (MTP); name a `model` that drafts, or neither: n-grams"
        raise CatalogError([document.mark("speculation", "mtp").fault(text)])
    pools, runtime = _placed(file, document, named)
    traffic = named.traffic
    return Scenario(
        name=file.name or document.path.stem,
        file=shown(document.path),
        model=named.model,
        precision=_precision(file, document, named.model),
        system=pools.system,
        runtime=runtime,
        mapper=None if file.split is not None else named.mapper,
        split=pools.split,
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
        terms=file.pools[pools.system.main_name].economics or file.economics,
        prices=file.prices,
        partner_terms=pools.terms,
        drafter=named.drafter,
        chip_mark=next(document.mark("pools", name, "chip") for name in file.pools),
        traffic=traffic,
        trace=None if file.trace is None else str(trace_of(document, file.trace)),
        serving=file.serving,
        skews=file.routing.over_time,
        marks=document,
        space=pools.space,
    )


def _precision(file: ScenarioFile, document: Document, model: Model) -> Precision:
    try:
        return precision_of(model, {str(name): fmt for name, fmt in file.precision.items()})
    except UnitError as error:
        raise CatalogError([document.mark("precision").fault(str(error))]) from error


def _placed(file: ScenarioFile, document: Document, named: Named) -> tuple[Pools, Runtime]:
    """The pools with their splits, and the runtime of the main one."""
    chips = {name: _capped(chip, file.power_cap) for name, chip in named.chips.items()}
    pools = _pools(file, document, named.model, named.mapper, chips, named.runtime)
    roles = named.mapper.roles
    if roles is None:
        return pools, named.runtime
    if roles.job == "draft" and (named.drafter is None or not file.speculation.drafts):
        text = "drafts need a model: add `speculation: {model: meta/llama-3.1-8b, drafts: 4, acceptance: 0.8}`"
        raise CatalogError([document.mark().fault(text)])
    return pools, runtime_of(file.pools[roles.main], chips[roles.main], named.runtime, document, roles.main)


def _pools(
    file: ScenarioFile, document: Document, model: Model, mapper: Mapper, chips: Mapping[str, Chip], runtime: Runtime
) -> Pools:
    """The pools with the splits that are given or proposed."""
    if mapper.roles is not None:
        return paired(file, document, model, mapper.roles, chips, runtime)
    ((name, chip),) = chips.items()
    system = System({name: Pool(chip, array(file.pools[name].count))})
    if file.split is not None:
        return Pools(system, file.split.split(), file.economics)
    try:
        return Pools(system, runnable(runtime, model, mapper.propose(model, system.main)), file.economics)
    except ValueError as error:
        raise CatalogError([document.mark("mapper").fault(str(error))]) from error


def runnable(runtime: Runtime, model: Model, proposed: Split) -> Split:
    """The proposals that a runtime can run. Raises ValueError where there are none."""
    if runtime.shares_context(model):
        return proposed
    kept = proposed.context == 1
    if not kept.any():
        raise ValueError(f"{runtime.name} has no context ranks for {model.name}, and nothing else is proposed")
    return proposed.mapped(lambda _, value: value if value.size < kept.size else value[kept])


def _capped(chip: Chip, cap: float | None) -> Chip:
    """The chip under a power cap, if it is below its own."""
    if cap is None:
        return chip
    return replace(with_value(chip, ("power", "cap"), np.minimum(array(cap), chip.power.sustained)), varied=True)


def _numbers(value: int | tuple[int, ...] | None) -> Array | None:
    return None if value is None else array(np.asarray(value, dtype=np.float64))


def with_fields(scenario: Scenario, fields: Mapping[str, Array]) -> Scenario:
    """A copy of a scenario with numbers replaced by arrays.

    Names are those of NUMBERS, `chips`, or `chip.`, `split.`, `economics.`, `prices.` and `slo.` followed by a field,
    such as `chip.memory.bandwidth` (SI units, but prices as files keep them: USD/h, USD/kWh, USD/Mtok); of two pools
    also `pools.NAME.chip.` and so on, `links.latency` and `links.bandwidth`. Raises KeyError naming what exists.
    """
    for name, value in fields.items():
        head, _, rest = name.partition(".")
        if name in NUMBERS:
            scenario = with_value(scenario, (name,), value)
        elif name == "chips" or (rest and head in ("chip", "links", "pools")):
            scenario = replace(scenario, system=changed(scenario.system, name, value))
        elif head == "split" and rest:
            scenario = replace(scenario, split=with_value(scenario.split, (rest,), value))
        elif head in PARTS:
            scenario = _with_part(scenario, head, rest, value)
        else:
            known = ", ".join((*NUMBERS, "chips", "chip.*", "split.*", *(f"{part}.*" for part in PARTS)))
            raise KeyError(f"no field {name!r}; there are {known}")
    return scenario


def _with_part(scenario: Scenario, head: str, name: str, value: Array) -> Scenario:
    """A copy with a number of `economics`, `prices` or `slo` replaced; one that has no value keeps its type."""
    part = getattr(scenario, PARTS[head])
    if part is None or name not in type(part).model_fields:
        have = f"there are {', '.join(type(part).model_fields)}" if part is not None else f"the scenario has no {head}"
        raise KeyError(f"no field '{head}.{name}'; {have}")
    new: object = float(value.ravel()[0]) if value.size == 1 else value
    changes: dict[str, Any] = {PARTS[head]: part.model_copy(update={name: new})}
    if head == "economics" and not _own_terms(scenario, name):
        changes["partner_terms"] = scenario.partner_terms.model_copy(update={name: new})
    return replace(scenario, **changes)


def _own_terms(scenario: Scenario, name: str) -> bool:
    """Whether the other pool is paid for on terms of its own, which a change of the scenario's leaves alone."""
    if scenario.partner is None or name in ("rent", "capital"):
        return True
    data = {} if scenario.marks is None else scenario.marks.data.get("pools", {}).get(scenario.partner.name, {})
    return data.get("economics") is not None
