"""Which chip would be best: a search over its parameters within budgets of area, power and price.

A file says what may vary; every combination is sketched (`economics/die.py`), what breaks a budget is left out with its
reason, and the rest runs a scenario, all designs of a memory technology at once. Where there are more than fit, optuna
proposes them.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from math import prod

import numpy as np
from pydantic import Field

from archsim.arrays import Array, array
from archsim.catalog import CatalogError, Document, StrictModel, did_you_mean, fetch, validate
from archsim.chip.memory import load_technology
from archsim.chip.model import Chip, Memory
from archsim.economics.die import MM2, Silicon, Sketch, load_silicon
from archsim.explore.deployments import tpot_limit
from archsim.explore.pools import chip_of
from archsim.explore.result import Result, objective
from archsim.explore.run import run
from archsim.explore.scenario import Scenario, load_scenario
from archsim.fields import Area, Bandwidth, Bytes, Count, Dollars, Fraction, Natural, Rate, Watts

Integers = np.typing.NDArray[np.intp]
REASONS = ("", "unit", "area", "edge", "power", "price", "memory", "slo")
LIMIT = 300_000  # designs up to which all of them are looked at
TOGETHER = 2048  # designs priced at once
OUTSIDE = 1e12  # above the value of any design that is not out
BATCHES = tuple(2**power for power in range(11))
NAMES = ("memory", "units", "unit_capacity", "peak", "sram", "link")


class ParametersFile(StrictModel):
    """What may vary."""

    memory: tuple[str, ...] = Field(min_length=1, description="technologies of the file of silicon")
    units: tuple[Count, ...] = Field(min_length=1, description="packages or stacks of memory")
    unit_capacity: tuple[Bytes, ...] = Field(min_length=1, description="of one unit")
    peak: tuple[Rate, ...] = Field(min_length=1, description="dense, in bf16; other formats as on the scenario's chip")
    sram: tuple[Bytes, ...] = Field(min_length=1, description="of the whole chip")
    link: tuple[Bandwidth, ...] = Field(min_length=1, description="of the scale-up fabric, in one direction")


class BudgetsFile(StrictModel):
    """What may not be exceeded."""

    area: Area | None = Field(None, description="of all dies of a chip")
    power: Watts | None = Field(None, description="board power with all units at work")
    price: Dollars | None = Field(None, description="of a card")


class DesignFile(StrictModel):
    """A file of `archsim design`."""

    scenario: str = Field(description="a scenario with one pool; its chip is what a design departs from")
    silicon: str = Field("estimates-2026", description="a file of `chips/silicon/`")
    process: str = "n4"
    parameters: ParametersFile
    budgets: BudgetsFile = BudgetsFile()
    margin: Fraction = Field(0.6, lt=1.0, description="share of the price that is not the cost to build")
    harvest: Fraction = Field(0.5, description="share of the compute area in which a defect does no harm")
    batch: tuple[Count, ...] = Field(
        BATCHES, description="sequences, or clients, from which each design takes its best"
    )
    trials: Count = Field(2000, description="designs that are looked at where there are more than are tried one by one")
    seed: Natural = 0


@dataclass(frozen=True, eq=False)
class Designs:
    """Designs along one axis: what they are, what they take, why they are out (index into REASONS), and their value.

    `value` is the objective of the scenario at the best batch (NaN where out), `metrics` are at that batch too.
    `excess` says how far a design is out: what it needs over the limit that it breaks, less 1.
    """

    file: DesignFile
    scenario: Scenario
    goal: str
    space: int
    exhaustive: bool
    columns: Mapping[str, Array]
    memory: tuple[str, ...]
    reason: Integers
    excess: Array
    value: Array
    metrics: Mapping[str, Array]
    silicon: Silicon

    @property
    def best(self) -> int | None:
        """Index of the best design; None where every one is out."""
        known = np.isfinite(self.value)
        sign = objective(self.scenario, _mode(self.scenario))[1]
        return int(np.nanargmin(self.value * sign)) if known.any() else None

    def order(self, most: int) -> Integers:
        """Indices of the best designs, best first."""
        sign = objective(self.scenario, _mode(self.scenario))[1]
        ranked = np.argsort(np.where(np.isfinite(self.value), self.value * sign, np.inf), kind="stable")
        return ranked[: min(most, int(np.isfinite(self.value).sum()))]

    def out(self) -> dict[str, int]:
        """How many designs are out, by reason."""
        return {
            name: int((self.reason == at).sum()) for at, name in enumerate(REASONS) if at and (self.reason == at).any()
        }


@dataclass(frozen=True, eq=False)
class Problem:
    """A file of a design with all that it names."""

    file: DesignFile
    scenario: Scenario
    silicon: Silicon

    def sketch(self, memory: str, values: Mapping[str, Array]) -> Sketch:
        """Designs with one technology of memory."""
        v = values
        own = v["peak"], v["sram"], v["link"], v["units"], v["unit_capacity"]
        return Sketch(self.silicon.file, self.file.process, memory, *own, self.file.harvest)

    def price(self, sketch: Sketch) -> Array:
        """USD a card is sold for: cost over what the margin leaves."""
        return sketch.cost / (1.0 - self.file.margin)

    def power(self, sketch: Sketch) -> Array:
        """Board power (W) with matrix units and memory at their peaks."""
        energy = self.scenario.chip.energy
        return sketch.watts(True) + sketch.bandwidth * sketch.byte + sketch.peak * energy.flop["bf16"]


def load_problem(name: str) -> Problem:
    """The problem of a path, or of a shipped example by name. Raises CatalogError with what is wrong in it."""
    document = fetch("examples/designs", name)
    file = validate(DesignFile, document)
    scenario = _scenario(file, document)
    silicon = load_silicon(file.silicon, document.mark("silicon") if "silicon" in document.data else None)
    faults = []
    if file.process not in silicon.file.processes:
        known = silicon.file.processes
        faults.append(document.mark("process").fault(f"unknown process {file.process!r}{_known(file.process, known)}"))
    for at, memory in enumerate(file.parameters.memory):
        if memory not in silicon.file.memories:
            where = document.mark("parameters", "memory", at)
            faults.append(where.fault(f"unknown memory {memory!r}{_known(memory, silicon.file.memories)}"))
    if scenario.partner is not None:
        faults.append(document.mark("scenario").fault("a design is searched for a scenario with one pool"))
    if faults:
        raise CatalogError(faults)
    return Problem(file, scenario, silicon)


def _scenario(file: DesignFile, document: Document) -> Scenario:
    """The scenario, relative to the file that names it; paid by capital, since a design has no rent."""
    near = document.path.parent / file.scenario
    scenario = load_scenario(str(near) if near.is_file() else file.scenario)
    return replace(scenario, terms=scenario.terms.model_copy(update={"by": "capital", "rent": None, "capital": None}))


def _known(word: str, options: Mapping[str, object]) -> str:
    return did_you_mean(word, options) or f"; known: {', '.join(options)}"


def design(problem: Problem, storage: str | None = None) -> Designs:
    """Looks at every design, or at those that optuna proposes where there are more than LIMIT.

    `storage` is a file in which such a search is kept, so that it can go on later. Raises ValueError without optuna.
    """
    p = problem.file.parameters
    lists = [np.arange(len(getattr(p, name))) for name in NAMES]
    space = prod(part.size for part in lists)
    if space <= LIMIT:
        grid = np.stack([axis.ravel() for axis in np.meshgrid(*lists, indexing="ij")])
        return _evaluated(problem, grid, space, True)
    from archsim.explore.ask import proposed

    rows = proposed(
        [part.size for part in lists],
        lambda grid: _signed(_evaluated(problem, grid, space, False)),
        problem.file.trials,
        problem.file.seed,
        storage,
    )
    return _evaluated(problem, rows, space, False)


def _signed(found: Designs) -> Array:
    """Lower is better. Designs that are out come last, by how far they are: that leads a search inwards.

    Those that break a budget are behind those that do not fit, and these behind those that miss the SLO.
    """
    memory = REASONS.index("memory")
    behind = np.select([found.reason < memory, found.reason == memory], [2e3, 1e3], 0.0)
    sign = objective(found.scenario, _mode(found.scenario))[1]
    outside = OUTSIDE * (1.0 + behind + np.minimum(found.excess, 999.0))
    return np.where(np.isfinite(found.value), found.value * sign, outside)


def _evaluated(problem: Problem, grid: "np.typing.NDArray[np.intp]", space: int, exhaustive: bool) -> Designs:
    """Designs of columns of indices into the lists of the file, in the order of NAMES."""
    p = problem.file.parameters
    columns = {
        name: np.array(getattr(p, name), dtype=np.float64)[grid[at]]
        for at, name in enumerate(NAMES)
        if name != "memory"
    }
    count = grid.shape[1]
    names = ("area", "power", "price", "bandwidth", "capacity")
    columns |= {name: np.full(count, np.nan) for name in names}
    reason, excess, value = np.zeros(count, np.intp), np.zeros(count), np.full(count, np.nan)
    metrics = {name: np.full(count, np.nan) for name in METRICS}
    for at, memory in enumerate(p.memory):
        index = np.flatnonzero(grid[0] == at)
        values = {name: column[index] for name, column in columns.items()}
        sketch = problem.sketch(memory, values)
        columns["area"][index], columns["power"][index] = sketch.area, problem.power(sketch)
        columns["price"][index], columns["bandwidth"][index] = problem.price(sketch), sketch.bandwidth
        columns["capacity"][index] = values["units"] * values["unit_capacity"]
        reason[index], excess[index] = _over(problem, sketch)
        fits = index[reason[index] == 0]
        for part in (fits[start : start + TOGETHER] for start in range(0, fits.size, TOGETHER)):
            found = _run(problem, memory, {name: column[part] for name, column in columns.items()})
            value[part], reason[part] = found.pop("value"), found.pop("reason").astype(np.intp)
            excess[part] = found.pop("excess")
            for name, numbers in found.items():
                metrics[name][part] = numbers
    goal = objective(problem.scenario, _mode(problem.scenario))[0]
    kinds = tuple(p.memory[at] for at in grid[0])
    return Designs(
        problem.file,
        problem.scenario,
        goal,
        space,
        exhaustive,
        columns,
        kinds,
        reason,
        excess,
        value,
        metrics,
        problem.silicon,
    )


METRICS = ("batch", "tpot", "ttft", "throughput", "cost_per_token", "power")


def _over(problem: Problem, sketch: Sketch) -> tuple[Integers, Array]:
    """The first budget that each design breaks, and by how much."""
    budgets = problem.file.budgets
    broken, excess = np.zeros(sketch.area.size, np.intp), np.zeros(sketch.area.size)
    made = np.isclose(sketch.unit_bytes[:, None], sketch.unit.sizes, rtol=1e-6).any(axis=1)
    checks = (
        ("unit", np.where(made, 0.0, 1.0), 0.5),
        ("area", sketch.area, budgets.area),
        ("edge", sketch.shore, problem.silicon.file.shore),
        ("power", problem.power(sketch), budgets.power),
        ("price", problem.price(sketch), budgets.price),
    )
    for name, needed, most in checks:
        if most is not None:
            over = (broken == 0) & (needed > most)
            broken = np.where(over, REASONS.index(name), broken)
            excess = np.where(over, needed / max(most, 1e-12) - 1.0, excess)
    return broken, excess


def fields(problem: Problem, memory: str, columns: Mapping[str, Array]) -> dict[str, Array]:
    """Designs as fields of the scenario's chip."""
    chip, sketch = problem.scenario.chip, problem.sketch(memory, columns)
    scale = columns["peak"] / chip.matrix["bf16"]
    power, server = problem.power(sketch), 0.0
    if chip.capital is not None and chip.price.chip is not None:
        server = float((chip.capital - chip.price.chip).max())
    found = {
        "chip.memory.bandwidth": sketch.bandwidth,
        "chip.memory.capacity": columns["units"] * columns["unit_capacity"],
        **{f"chip.matrix.{name}": rate * scale for name, rate in chip.matrix.items()},
        **{f"chip.vector.{name}": rate * scale for name, rate in chip.vector.items()},
        "chip.exponentials": chip.exponentials * scale,
        **_on_chip(chip, columns["sram"]),
        "chip.energy.byte": np.full_like(scale, sketch.byte),
        "chip.power.tdp": power,
        "chip.power.cap": power,
        "chip.power.sustained": power,
        "chip.power.active": sketch.watts(True),
        "chip.power.idle": sketch.watts(False),
        "chip.price.system": problem.price(sketch) + server,
    }
    if "scale_up" in chip.links:
        found["chip.links.scale_up.bandwidth"] = columns["link"]
    return found


def _on_chip(chip: Chip, sram: Array) -> dict[str, Array]:
    """SRAM where the kind of chip has it: private to cores, or the cache of a GPU beside what is private."""
    if chip.kind == "gpu":
        return {"chip.cache": np.maximum(sram - float((chip.sram * chip.cores).max()), 1e6)}
    return {"chip.sram": sram / chip.cores}


def _run(problem: Problem, memory: str, columns: Mapping[str, Array]) -> dict[str, Array]:
    """The objective and the metrics of designs at the batch that is best for each."""
    scenario, mode = _with_memory(problem, memory), _mode(problem.scenario)
    goal, sign = objective(scenario, mode)
    swept = fields(problem, memory, columns)
    count = columns["peak"].size
    best = {name: np.full(count, np.nan) for name in METRICS}
    value, fits = np.full(count, np.inf), np.zeros(count, bool)
    missed, full = np.full(count, np.inf), np.full(count, np.inf)
    for batch in problem.file.batch:
        result = run(scenario, mode, {**swept, "batch": np.full(count, float(batch))}, zipped=True)
        kept = (result.feasible & result.meets_slo).reshape(count)
        fits |= result.feasible.reshape(count)
        missed = np.fmin(missed, _missed(scenario, result).reshape(count))
        full = np.fmin(full, result.pick(result.answer.memory.fullest).reshape(count))
        now = np.where(kept, sign * result.metric(goal).reshape(count), np.inf)
        better = now < value
        value = np.where(better, now, value)
        for name in METRICS:
            numbers = np.full(count, float(batch)) if name == "batch" else result.metric(name).reshape(count)
            best[name] = np.where(better, numbers, best[name])
    reason = np.where(np.isfinite(value), 0, np.where(fits, REASONS.index("slo"), REASONS.index("memory")))
    excess = np.select([np.isfinite(value), fits], [0.0, missed - 1.0], full - 1.0)
    known = np.where(np.isfinite(value), value * sign, np.nan)
    return {**best, "value": known, "reason": reason.astype(np.float64), "excess": np.maximum(excess, 0.0)}


def _missed(scenario: Scenario, result: Result) -> Array:
    """Times over what the SLO allows, the larger of both; NaN where infeasible."""
    first = np.inf if scenario.slo.ttft is None else scenario.slo.ttft
    return np.maximum(result.tpot / tpot_limit(scenario.slo), result.ttft / first)


def _with_memory(problem: Problem, memory: str) -> Scenario:
    """The scenario with its chip on another technology of memory."""
    scenario, unit = problem.scenario, problem.silicon.file.memories[memory]
    timed = scenario.chip.memory.dram is not None
    technology = load_technology(unit.timing) if timed else None
    own = Memory(unit.technology, array(1.0), array(1.0), technology)
    chip = replace(scenario.chip, memory=own, varied=True, name=f"design on {scenario.chip.name}")
    return replace(scenario, system=chip_of(scenario.system, scenario.system.main_name, chip))


def _mode(scenario: Scenario) -> str:
    """What the scenario asks: the steady answer where it has traffic."""
    return "steady" if scenario.input is not None else "step"


def rows(found: Designs, most: int) -> Iterator[dict[str, object]]:
    """The best designs with all that is known of them, in SI units."""
    for at in found.order(most):
        yield {
            "memory": found.memory[at],
            **{name: float(column[at]) for name, column in found.columns.items()},
            "area_mm2": float(found.columns["area"][at]) / MM2,
            found.goal: float(found.value[at]),
            **{name: float(numbers[at]) for name, numbers in found.metrics.items() if name != "power"},
            "mean_power": float(found.metrics["power"][at]),
        }
