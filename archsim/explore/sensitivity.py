"""What an answer hangs on: elasticities of a metric to every number of the chips, and what more of each is worth.

An elasticity is d ln(metric) / d ln(field), by central differences. Times are minima over tiles, plans and whole
numbers of clients, which are kinked: a side that would cost may have a use that the other has not, so both are kept.

All variants are priced in one run, once at the plan that is best now and once with the plan chosen anew.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from archsim.arrays import Array, array
from archsim.economics.terms import HOUR, YEAR_HOURS, Terms, recovery_factor
from archsim.explore.axes import Field, fields_of
from archsim.explore.resources import Resource, changed_values, chip_fields, resources
from archsim.explore.result import ALIASES, METRICS, objective
from archsim.explore.scenario import Scenario
from archsim.explore.variants import Answers, answers, fixed
from archsim.explore.vary import Axis, VaryError, read_axes
from archsim.units import did_you_mean

STEP = 0.05  # share by which fields change to either side
MORE = 0.10  # share of a resource that is added
RATES = ("cost_per_token", "throughput", "input_throughput")
NOTHING = 1e-9  # relative changes below are rounding


class Nothing(ValueError):
    """A scenario of which no plan fits, so that there is nothing to vary."""


@dataclass(frozen=True)
class Sides:
    """A metric with less and with more of a field, and the elasticity on either side and across.

    NaN where nothing fits.
    """

    low: float
    high: float
    below: float
    above: float
    central: float

    @property
    def moves(self) -> bool:
        """Whether the metric changes on either side."""
        return not (abs(self.below) < NOTHING and abs(self.above) < NOTHING)


@dataclass(frozen=True)
class Elasticity:
    """How a metric moves with one field: at the plan that is best now, and with the plan chosen anew."""

    field: Field
    fixed: Sides
    chosen: Sides


@dataclass(frozen=True)
class Gain:
    """What more of a resource does: the metric then, and what it is worth for one chip.

    `rent` (USD/h) or `capital` (USD, the all-in price that comes to as much over the life of a chip), paid on top for
    each chip, leave the cost per token as it was. `kept`: the SLO holds.
    """

    value: float
    kept: bool
    rent: float
    capital: float


@dataclass(frozen=True)
class Worth:
    """More of one resource: what it gives at the plan that is best now, and with the plan chosen anew.

    That plan has these `degrees`, `replanned` where they are others than before, and a `batch`.
    """

    resource: Resource
    factor: float
    fixed: Gain
    chosen: Gain
    degrees: Mapping[str, float]
    replanned: bool
    batch: float


@dataclass(frozen=True, eq=False)
class Sensitivity:
    """A metric of a scenario, and how it moves with each number of its chips. `kept`: its best plan keeps the SLO."""

    scenario: Scenario
    best: Scenario
    mode: str
    output: str
    value: float
    kept: bool
    step: float
    more: float
    rows: tuple[Elasticity, ...]
    worths: tuple[Worth, ...]

    @property
    def moving(self) -> list[Elasticity]:
        """Rows that change the metric, the strongest first."""
        found = [row for row in self.rows if row.fixed.moves or row.chosen.moves]
        return sorted(found, key=lambda row: -_strength(row))

    @property
    def still(self) -> list[str]:
        """Fields that do not, either way."""
        return [row.field.name for row in self.rows if not (row.fixed.moves or row.chosen.moves)]


def _strength(row: Elasticity) -> float:
    known = [abs(value) for side in (row.fixed, row.chosen) for value in (side.below, side.above) if value == value]
    return max(known, default=np.inf)


def sensitivity(
    scenario: Scenario, mode: str, output: str | None = None, step: float = STEP, more: float = MORE
) -> Sensitivity:
    """Elasticities of a metric to every number of the chips, and the worth of `more` (a share) of each resource.

    `output` is a metric of METRICS; the scenario's objective where it is not given. Raises Nothing where no plan fits,
    KeyError for an unknown metric.
    """
    output = metric_name(output or objective(scenario, mode)[0])
    best = fixed(scenario, mode)
    if best is None:
        raise Nothing("no plan fits, so there is nothing to vary")
    known, wanted = chip_fields(scenario), resources(scenario)
    names = list(known)
    sides = [((name,), 1.0 + sign * step) for name in names for sign in (-1.0, 1.0)]
    grown = [(item.fields, 1.0 / (1.0 + more) if item.less else 1.0 + more) for item in wanted]
    values = changed_values(known, [*sides, *grown])
    metrics = tuple(dict.fromkeys((output, *RATES)))
    own = answers(best, mode, {**values, "batch": best_batch(best)}, metrics)
    anew = answers(scenario, mode, values, metrics)
    lows = np.arange(1, len(sides), 2)
    rows = [
        Elasticity(known[name], *(_sides(found, output, values[name], int(low)) for found in (own, anew)))
        for name, low in zip(names, lows, strict=True)
    ]
    first = 1 + len(sides)
    worths = [
        _worth(own, anew, output, best, item, row, factor, mode)
        for row, (item, (_, factor)) in enumerate(zip(wanted, grown, strict=True), first)
    ]
    base = float(own.metrics[output][0])
    kept = bool(own.kept[0])
    return Sensitivity(scenario, best, mode, output, base, kept, step, more, tuple(rows), tuple(worths))


def best_batch(best: Scenario) -> Array:
    """The batch of a scenario whose plan and batch are given."""
    if best.batch is None:
        raise ValueError("the plan has no batch")
    return best.batch.ravel()


def metric_name(name: str) -> str:
    """A metric by its name or alias. Raises KeyError with the names there are."""
    name = ALIASES.get(name, name)
    if name not in METRICS:
        raise KeyError(f"no metric {name!r}; there are {', '.join(METRICS)}")
    return name


def _values(found: Answers, name: str) -> Array:
    """A metric of every variant, NaN where none fits; and, with the plan chosen anew, where no plan keeps an SLO that
    the scenario keeps as it is. A plan that is given is followed also beyond the SLO.
    """
    if found.anew and found.kept[0]:
        return found.usable(name)
    return np.where(found.feasible, found.metrics[name], np.nan)


def _sides(found: Answers, output: str, values: Array, low: int) -> Sides:
    """The sides of a field that is less in row `low` and more in the next."""
    metric = _values(found, output)
    before, now, after = float(metric[low]), float(metric[0]), float(metric[low + 1])
    x = np.log(values[[low, 0, low + 1]])
    return Sides(
        before,
        after,
        _slope(now, before, x[1] - x[0]),
        _slope(after, now, x[2] - x[1]),
        _slope(after, before, x[2] - x[0]),
    )


def _slope(after: float, before: float, distance: float) -> float:
    """ln(after / before) over a distance in logarithms; NaN where either is, or the field did not move."""
    if not (after > 0 and before > 0) or not distance:
        return float("nan")
    return float(np.log(after / before) / distance)


def _worth(
    own: Answers, anew: Answers, output: str, best: Scenario, item: Resource, row: int, factor: float, mode: str
) -> Worth:
    """The worth of a resource that is more in a row."""
    gains = [_gain(found, output, best, item, row, mode) for found in (own, anew)]
    return Worth(item, factor, gains[0], gains[1], *_choice(anew, row))


def _gain(found: Answers, output: str, best: Scenario, resource: Resource, row: int, mode: str) -> Gain:
    """What a variant gives, and what that is worth for one chip of the resource's pool."""
    value, cost = (float(_values(found, name)[row]) for name in (output, "cost_per_token"))
    rates = ("throughput",) if mode == "step" else ("throughput", "input_throughput")
    tokens = sum(float(found.metrics[name][row]) for name in rates)
    chips, terms = _pool(best, resource)
    slack = (float(found.metrics["cost_per_token"][0]) - cost) / 1e6 * tokens * HOUR / chips
    rent = slack * float(array(terms.utilization).ravel()[0])
    return Gain(value, bool(found.kept[row]), rent, rent / yearly_share(terms))


def yearly_share(terms: Terms) -> float:
    """USD an hour, at full use, that a dollar of all-in price costs: its capital recovery and operation."""
    yearly = recovery_factor(terms.interest, terms.years) + terms.operation
    return float(array(yearly).ravel()[0]) / YEAR_HOURS


def _pool(scenario: Scenario, resource: Resource) -> tuple[float, Terms]:
    """Chips of the pool that a resource belongs to, and how they are paid for."""
    partner, field = scenario.partner, resource.fields[0]
    if partner is not None and field.startswith((f"pools.{partner.name}.", "links.")):
        return float(partner.count.ravel()[0]), scenario.partner_terms
    return float(scenario.chips.ravel()[0]), scenario.terms


def _choice(found: Answers, row: int) -> tuple[Mapping[str, float], bool, float]:
    """The plan of a variant, whether it is another than that of the scenario as it is, and its batch."""
    degrees = {name: float(degree[row]) for name, degree in found.plan.items()}
    replanned = any(degrees[name] != degree[0] for name, degree in found.plan.items())
    return degrees, replanned, float(found.batch[row])


def tornado(scenario: Scenario, mode: str, output: str, axes: Sequence[Axis]) -> Array:
    """A metric at the least and the most value of each axis, all else as it is: shape (axes, 2).

    The plan is chosen anew; NaN where none fits, or keeps an SLO that the scenario keeps as it is.
    """
    promised = bool(answers(scenario, mode, {}).kept[0])
    rows = []
    for axis in axes:
        found = answers(scenario, mode, {axis.name: array(ends_of(axis))}, (output,))
        rows.append(found.usable(output) if promised else np.where(found.feasible, found.metrics[output], np.nan))
    return np.stack([np.broadcast_to(row, (2,)) for row in rows])


def number_axes(texts: Sequence[str], scenario: Scenario) -> list[Axis]:
    """Ranges of numbers as `--vary` has them. Raises VaryError for what cannot be read or is no number of arrays."""
    found = read_axes(texts, scenario)
    known = fields_of(scenario)
    for axis in found:
        if axis.numbers is None:
            near = did_you_mean(axis.name, known) or ": the scenario would have to be built anew for each value"
            raise VaryError(f"no number {axis.name!r} that can be varied{near}")
    return found


def ends_of(axis: Axis) -> tuple[float, float]:
    """The least and the most of an axis of numbers."""
    numbers = array(axis.numbers)
    return float(numbers.min()), float(numbers.max())
