"""Result: what a run answers, at every point of its axes, for the plan chosen there."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from archsim.arrays import Array, BrokenModel, array
from archsim.explore.band import band
from archsim.explore.bill import facility_power, mean_power
from archsim.explore.evaluate import Answer, cached_input_cost, margin_of, revenue_per_hour, revenue_per_megawatt
from archsim.explore.scenario import Scenario
from archsim.mapping.split import REASONS, Split
from archsim.sources import Source

Metric = Callable[[Answer], Array]

METRICS: dict[str, tuple[str, str, Metric]] = {
    "tpot": ("time", "time per output token", lambda a: a.tpot),
    "ttft": ("time", "time to first token", lambda a: a.ttft),
    "interactivity": ("token_rate", "tokens a second for one user", lambda a: 1.0 / a.tpot),
    "throughput": ("token_rate", "output tokens a second of the system", lambda a: a.output_rate),
    "throughput_per_chip": (
        "token_rate",
        "output tokens a second of one chip",
        lambda a: a.output_rate / a.scenario.all_chips,
    ),
    "input_throughput": ("token_rate", "prompt tokens a second of the system", lambda a: a.input_rate),
    "cost_per_token": ("token_price", "USD per million tokens", lambda a: a.cost()["cost_per_token"]),
    "output_cost": ("token_price", "USD per million output tokens", lambda a: a.cost()["output_cost"]),
    "input_cost": ("token_price", "USD per million input tokens", lambda a: a.cost()["input_cost"]),
    "power": ("power", "mean board power of a chip", mean_power),
    "energy_per_token": (
        "energy",
        "facility energy of an output token",
        lambda a: facility_power(a) / a.output_rate,
    ),
    "memory_needed": ("bytes", "memory in use on a chip", lambda a: a.memory.needed),
    "memory_utilization": ("", "share of the capacity in use", lambda a: a.memory.fullest),
}

# Those that need `prices` in the scenario, or tokens in the prefix cache: KeyError says what to add
PRICED: dict[str, tuple[str, str, Metric]] = {
    "revenue": ("revenue", "USD an hour that the system earns", revenue_per_hour),
    "margin": ("", "share of the revenue that is left", margin_of),
    "revenue_per_megawatt": ("power_revenue", "USD an hour for a megawatt of facility power", revenue_per_megawatt),
    "cached_input_cost": ("token_price", "USD per million cached input tokens, marginal", cached_input_cost),
}

ALIASES = {"cost_per_million_tokens": "cost_per_token"}


@dataclass(frozen=True, eq=False)
class Result:
    """Axes by name, the answer of every proposal, and the proposal chosen at each point.

    `feasible` is False where no proposal is legal and fits, and `reason` says why (an index into REASONS). Metrics are
    computed when asked for, at the chosen proposal, NaN where infeasible; `meets_slo` says where they keep the SLO.
    """

    scenario: Scenario
    axes: Mapping[str, Array]
    answer: Answer
    choice: "np.typing.NDArray[np.int64]"
    feasible: "np.typing.NDArray[np.bool_]"
    reason: "np.typing.NDArray[np.int64]"
    meets_slo: "np.typing.NDArray[np.bool_]"

    @property
    def mode(self) -> str:
        """`step` or `steady`."""
        return self.answer.mode

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of every metric."""
        return tuple(self.feasible.shape)

    def metric(self, name: str) -> Array:
        """A metric of METRICS or PRICED at every point; NaN where infeasible.

        Raises KeyError with the names there are, or with what a priced metric needs.
        """
        name = ALIASES.get(name, name)
        known = METRICS | PRICED
        if name not in known:
            raise KeyError(f"no metric {name!r}; there are {', '.join(known)}")
        value = self.pick(known[name][2](self.answer))
        return value if self.feasible.all() else np.where(self.feasible, value, np.nan)

    def band(self, name: str) -> tuple[Array, Array] | None:
        """Both ends between which four of five measurements of a metric lie, at every point; None where it has none."""
        found = band(self.scenario, ALIASES.get(name, name), self.mode)
        value = self.metric(name)
        return None if found is None else (value * found.low, value * found.high)

    def __getattr__(self, name: str) -> Array:
        """Metrics are attributes too: `result.tpot`."""
        if name in METRICS or name in PRICED or name in ALIASES:
            return self.metric(name)
        raise AttributeError(f"no metric or field {name!r}; metrics are {', '.join(METRICS)}")

    def pick(self, values: Array) -> Array:
        """Values of the chosen proposal, from an array over proposals and points."""
        full = np.broadcast_to(values, np.broadcast_shapes(values.shape, self.raw_shape))
        if self.raw_shape[0] == 1:
            return np.asarray(full[0]).reshape(self.shape)
        return np.take_along_axis(full, self.choice.reshape(1, *self.raw_shape[1:]), axis=0).reshape(self.shape)

    @property
    def raw_shape(self) -> tuple[int, ...]:
        """Shape over proposals and points, before the choice."""
        tail = (1,) if self.mode == "steady" else ()
        return (
            (self.proposals, *self.shape, *tail)
            if self.axes
            else (self.proposals, *(1,) * max(len(self.shape), 1), *tail)
        )

    @property
    def proposals(self) -> int:
        """Number of proposed splits."""
        return int(self.scenario.split.chips.shape[0]) if self.scenario.split.chips.ndim else 1

    def split_at(self, index: int) -> Split:
        """The chosen split at one point (flat index)."""
        return self.scenario.split.mapped(lambda _, value: self.at(value, index))

    def at(self, value: Array, index: int) -> Array:
        """A value of the chosen proposal at one point (flat index)."""
        return array(self.pick(value).ravel()[index])

    def point(self, index: int) -> dict[str, float]:
        """Values of the axes at one point (flat index)."""
        where = np.unravel_index(index, self.shape) if self.axes else ()
        return {name: float(values.ravel()[i]) for (name, values), i in zip(self.axes.items(), where, strict=True)}

    def best(self) -> int | None:
        """Flat index of the best point by the scenario's objective among those that are feasible and keep the SLO."""
        goal, sign = objective(self.scenario, self.mode)
        values = np.where(self.feasible, sign * self.metric(goal), np.inf)
        kept = np.where(self.meets_slo, values, np.inf)
        chosen = kept if np.isfinite(kept).any() else values
        return int(np.argmin(chosen)) if np.isfinite(chosen).any() else None

    def table(self) -> dict[str, Array]:
        """Axes, metrics and plan of every point as flat columns."""
        grid = np.meshgrid(*(values.ravel() for values in self.axes.values()), indexing="ij") if self.axes else []
        columns = {name: np.asarray(values).ravel() for name, values in zip(self.axes, grid, strict=True)}
        columns |= {name: self.metric(name).ravel() for name in metrics_of(self.scenario, self.mode)}
        for name, value in self.scenario.split.named().items():
            columns[f"split.{name}"] = self.pick(value).ravel()
        return columns

    @property
    def stalls(self) -> dict[str, dict[str, Array]]:
        """Seconds of every lane in a decode step, by part and by gap (`idle: ...`); they sum to its span."""
        account = {}
        for name, lane in self.answer.decode.schedule.lanes.items():
            spent = {**lane.parts, **{f"idle: {cause}": gap for cause, gap in lane.gaps.items()}}
            account[name] = {cause: self.pick(seconds) for cause, seconds in spent.items()}
        return account

    def figure(self, x: str = "interactivity", y: str = "throughput_per_chip") -> Any:
        """A plotly figure of one metric or axis against another, with the axes of each point on hover."""
        from plotly import graph_objects

        table = self.table()
        hover = [", ".join(f"{name} {table[name][i]:,.6g}" for name in self.axes) for i in range(table[x].size)]
        figure = graph_objects.Figure(graph_objects.Scatter(x=table[x], y=table[y], mode="markers", text=hover))
        names = {name: f"{METRICS[name][1]}" if name in METRICS else name for name in (x, y)}
        return figure.update_layout(xaxis_title=names[x], yaxis_title=names[y])

    def reason_at(self, index: int) -> str:
        """Why a point is infeasible; empty where it is not."""
        return REASONS[int(self.reason.ravel()[index])]

    @cached_property
    def assumptions(self) -> list[Source]:
        """Sources of kind `assumption` among the files the answer rests on."""
        partner, stacks = self.scenario.partner, {self.scenario.runtime.stack}
        if partner is not None:
            stacks.add(partner.runtime.stack)
        kept = (s for s in all_sources(self.scenario) if s.kind == "assumption")
        return [s for s in kept if any(_concerns(s, stack) for stack in stacks)]


def all_sources(scenario: Scenario) -> list[Source]:
    """Sources of the chips and runtimes of all pools, each once."""
    chip, partner = scenario.chip, scenario.partner
    found = [*chip.sources, *chip.generation.sources, *scenario.runtime.sources]
    if partner is not None:
        found += [*partner.chip.sources, *partner.chip.generation.sources, *partner.runtime.sources]
    return list(dict.fromkeys(found)) if partner is not None else found


def _concerns(source: Source, stack: str) -> bool:
    kernels = [field for field in source.of if field.startswith("kernels.")]
    return not kernels or any(field.startswith(f"kernels.{stack}") for field in kernels)


def metrics_of(scenario: Scenario, mode: str) -> dict[str, tuple[str, str, Metric]]:
    """The metrics that a scenario has: METRICS, and those of PRICED for which it says enough."""
    cached = mode == "steady" and bool((scenario.cached > 0).any())
    unknown = {"cached_input_cost"} if scenario.prices is not None and not cached else set()
    return METRICS | ({} if scenario.prices is None else {name: PRICED[name] for name in PRICED if name not in unknown})


def why_undefined(scenario: Scenario, name: str) -> str:
    """Why a metric may be undefined at a feasible point; empty for one that never is."""
    if name in ("cost_per_token", "output_cost", "input_cost", "margin") and not _priced(scenario):
        return "no price is known of the chip; give `economics: {rent: 3 USD/h}`"
    if name == "cached_input_cost" and not (scenario.cached > 0).all():
        return "nothing is cached"
    return "no price is known of the chip" if name == "cached_input_cost" and not _priced(scenario) else ""


def check_defined(result: Result, name: str, values: Array) -> str:
    """Why a metric is undefined at some feasible point, if it is and may be; values have the result's shape.

    Raises BrokenModel, with the metric and the point, where it is undefined and must not be.
    """
    missing = result.feasible & ~np.isfinite(values)
    if not missing.any():
        return ""
    reason = why_undefined(result.scenario, name)
    if not reason:
        index = int(np.argmax(missing))
        asked = {
            axis: float(getattr(result.answer, axis).ravel()[0])
            for axis in ("batch", "context", "input", "output")
            if hasattr(result.answer, axis)
        }
        at = ", ".join(f"{axis} {value:.15g}" for axis, value in (asked | result.point(index)).items())
        raise BrokenModel(f"{name} is {values.ravel()[index]} at {at} of {result.scenario.name!r} ({result.mode})")
    return reason


def objective(scenario: Scenario, mode: str) -> tuple[str, float]:
    """The metric to choose by and its sign (1 to minimise). Default: tpot of a step; cost of the steady answer, or its
    throughput where no price is known.
    """
    if scenario.objective.maximize:
        return scenario.objective.maximize, -1.0
    if scenario.objective.minimize:
        return scenario.objective.minimize, 1.0
    if mode == "step":
        return "tpot", 1.0
    return ("cost_per_token", 1.0) if _priced(scenario) else ("throughput", -1.0)


def _priced(scenario: Scenario) -> bool:
    """Whether a cost is known."""
    chip, terms = scenario.chip, scenario.terms
    return any(item is not None for item in (chip.price.rent, chip.capital, terms.rent, terms.capital))


def scalar_scenario(result: Result, index: int) -> Scenario:
    """The scenario of one point of a result, with its chosen split given."""
    from archsim.explore.pools import count_of
    from archsim.explore.scenario import with_fields

    fields = {name: array(value) for name, value in result.point(index).items()}
    alone = with_fields(result.scenario, fields)
    system = alone.system
    for name, pool in system.pools.items():
        if pool.count.size > 1:
            system = count_of(system, name, result.at(pool.count, index))
    return replace(alone, split=result.split_at(index), system=system, mapper=None)
