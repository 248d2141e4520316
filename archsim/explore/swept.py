"""Scenarios with numbers replaced by arrays: what a sweep varies."""

from collections.abc import Mapping
from dataclasses import replace

from archsim.arrays import Array
from archsim.chip.model import with_value
from archsim.explore.pools import chip_of, count_of, wires_of
from archsim.explore.scenario import Scenario

NUMBERS = ("batch", "context", "input", "output", "cached", "skew")


def with_fields(scenario: Scenario, fields: Mapping[str, Array]) -> Scenario:
    """A copy of a scenario with numbers replaced by arrays.

    Names are those of NUMBERS, `chips`, or `chip.` and `split.` followed by a field, such as
    `chip.memory.bandwidth` (SI units); of two pools also `pools.NAME.chip.` and so on, `links.latency` and
    `links.bandwidth`. Raises KeyError naming what exists.
    """
    for name, value in fields.items():
        head, _, rest = name.partition(".")
        if name in NUMBERS:
            scenario = with_value(scenario, (name,), value)
        elif name == "chips":
            scenario = replace(scenario, system=count_of(scenario.system, scenario.system.main_name, value))
        elif head == "chip" and rest:
            scenario = _with_chip(scenario, scenario.system.main_name, rest, value)
        elif head == "links" and rest:
            scenario = replace(scenario, system=wires_of(scenario.system, rest, value))
        elif head == "pools" and scenario.partner is not None and rest.partition(".")[0] in scenario.system.pools:
            pool, _, field = rest.partition(".")
            scenario = _with_pool(scenario, pool, field, value)
        elif head == "split" and rest:
            scenario = replace(scenario, split=with_value(scenario.split, (rest,), value))
        else:
            raise KeyError(f"no field {name!r}; there are {', '.join(NUMBERS)}, chips, chip.* and split.*")
    return scenario


def _with_chip(scenario: Scenario, pool: str, field: str, value: Array) -> Scenario:
    chip = replace(with_value(scenario.system.pools[pool].chip, tuple(field.split(".")), value), varied=True)
    return replace(scenario, system=chip_of(scenario.system, pool, chip))


def _with_pool(scenario: Scenario, pool: str, field: str, value: Array) -> Scenario:
    """A copy with `count` or `chip.*` of one pool replaced. Raises KeyError for any other field."""
    if field == "count":
        return replace(scenario, system=count_of(scenario.system, pool, value))
    if field.startswith("chip."):
        return _with_chip(scenario, pool, field.removeprefix("chip."), value)
    raise KeyError(f"no field 'pools.{pool}.{field}'; a pool has count and chip.*")
