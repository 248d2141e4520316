"""Points of a sweep that serve requests one by one: each is a simulation, and a row of what it measured."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from math import nan
from typing import TYPE_CHECKING, Any

import numpy as np

from archsim.arrays import Array, array
from archsim.catalog import CatalogError
from archsim.explore.scenario import Scenario, with_fields
from archsim.explore.service import Asked, Refused, Service, serve
from archsim.workload.traffic import load_traffic

if TYPE_CHECKING:
    from archsim.explore.rows import Column, Group

PERCENTILES = ("p50", "p90", "p99")
COLUMNS = {
    **{f"{name}_{p}": "s" for name in ("ttft", "tpot", "itl", "e2e", "queue") for p in ("mean", *PERCENTILES)},
    "finished": "",
    "request_rate": "req/s",
    "output_rate": "tok/s",
    "input_rate": "tok/s",
    "goodput": "req/s",
    "slo_share": "",
    "cost_per_token": "USD/Mtok",
    "power": "W",
    "energy_per_token": "J",
    "chips": "",
}
OWN = ("rate", "seed", "requests")


def served_rows(
    scenario: Scenario, groups: "Sequence[Group]", columns: Sequence[str], asked: Mapping[str, Any]
) -> "Iterator[tuple[dict[str, Column], Sequence[str]]]":
    """A row for every combination of the values of the groups, with what its reason means."""
    sizes = [next(iter(group.values())).size for group in groups]
    for place in np.ndindex(*sizes):
        point = {
            name: float(values[index])
            for group, index in zip(groups, place, strict=True)
            for name, values in group.items()
        }
        found, kept, reason = _served(scenario, point, asked)
        row: dict[str, Column] = {name: np.array([found.get(name, nan)]) for name in columns}
        row |= {"feasible": np.array([not reason]), "meets_slo": np.array([kept])}
        yield {**row, "reason": np.array([int(bool(reason))], np.int32)}, ("", reason)


def _served(
    scenario: Scenario, point: Mapping[str, float], given: Mapping[str, Any]
) -> tuple[dict[str, float], bool, str]:
    """Measures of one simulation, whether it keeps the SLO, and why there are none."""
    fields: dict[str, Array] = {name: array(value) for name, value in point.items() if name not in OWN}
    try:
        changed = with_fields(scenario, fields)
        if any(name.startswith("split.") for name in fields):
            changed = replace(changed, mapper=None)
        service = serve(changed, _asked(point, given))
    except Refused as refused:
        return {}, False, refused.result.reason_at(0) or "memory"
    except CatalogError as error:
        return {}, False, error.faults[0].message
    except (KeyError, ValueError) as error:
        return {}, False, str(error.args[0])
    return measured(service), kept_slo(service), "" if service.measures.finished else "nothing finished"


def _asked(point: Mapping[str, float], given: Mapping[str, Any]) -> Asked:
    """What a simulation is asked at a point."""
    traffic, seconds = given.get("traffic"), given.get("seconds")
    count = point.get("requests", given.get("requests"))
    return Asked(
        traffic=None if traffic is None else load_traffic(traffic),
        trace=given.get("trace"),
        rate=point.get("rate", given.get("rate")),
        seconds=seconds,
        count=None if count is None else int(count),
        seed=int(point.get("seed", given.get("seed") or 0)),
    )


def measured(service: Service) -> dict[str, float]:
    """The columns of one simulation; NaN where undefined."""
    m = service.measures
    found: dict[str, float] = {}
    for name in ("ttft", "tpot", "itl", "e2e", "queue"):
        latency = m.latency(name)
        found |= {f"{name}_{p}": latency[p] for p in ("mean", *PERCENTILES)}
    found |= {
        "finished": float(m.finished),
        "request_rate": m.rate(float(m.finished)),
        "output_rate": m.output_rate,
        "input_rate": m.input_rate,
        "goodput": m.goodput(service.targets),
        "slo_share": m.share(service.targets),
        "cost_per_token": service.costs()["cost_per_token"],
        "power": service.power,
        "energy_per_token": service.energy_per_token,
        "chips": service.chips,
    }
    return found


def kept_slo(service: Service) -> bool:
    """Whether as many requests as must keep the SLO."""
    return service.measures.share(service.targets) >= service.targets.share
