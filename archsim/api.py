"""What users hold: `archsim.run`, and the types of what it gives."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from archsim.explore.result import Result
from archsim.explore.run import run as run_scenario
from archsim.explore.scenario import Scenario, load_scenario, scenario_of
from archsim.workload.requests import Requests
from archsim.workload.traffic import load_traffic

if TYPE_CHECKING:
    from archsim.explore.service import Service


def load(scenario: str | Path) -> Scenario:
    """The scenario of a file, or of a shipped example by name. Raises CatalogError with every fault of its files."""
    return load_scenario(str(scenario))


def scenario(**keys: object) -> Scenario:
    """A scenario from the keys of a scenario file, as Python values.

    `scenario(model="meta/llama-3.1-8b", pools={"gpu": {"chip": "nvidia/h100-sxm", "count": 1}}, batch=8,
    context=2048)`.
    Raises CatalogError with every fault.
    """
    return scenario_of(dict(keys))


def run(
    scenario: str | Path | Scenario,
    *,
    mode: str | None = None,
    over: Mapping[str, object] | None = None,
    zipped: bool = False,
    **fields: object,
) -> Result:
    """Arrays in, arrays out: `run("examples/llama-70b-on-h100.yaml", batch=range(1, 513), context=8192)`.

    `fields` replace `batch`, `context`, `input`, `output`, `skew` or `chips`; `over` takes dotted names such as
    `chip.memory.bandwidth` or `split.tensor` (SI units). Every array gets its own axis, in order; `zipped` ones
    share one.
    `mode` is `step` (the default where batch and context are known) or `steady`.
    """
    loaded = scenario if isinstance(scenario, Scenario) else load(scenario)
    values = {
        name: list(value) if isinstance(value, range) else value for name, value in {**fields, **(over or {})}.items()
    }
    known = {name for name in ("batch", "context") if name in values or getattr(loaded, name) is not None}
    chosen = mode or ("step" if known == {"batch", "context"} else "steady")
    return run_scenario(loaded, chosen, values, zipped)


def serve(
    scenario: str | Path | Scenario,
    *,
    traffic: str | None = None,
    trace: str | Path | None = None,
    requests: Requests | int | None = None,
    rate: float | None = None,
    seconds: float | None = None,
    seed: int = 0,
    plain: bool = False,
    skip_bad: bool = False,
) -> "Service":
    """Requests played one by one: `serve("llama-70b-on-h100", traffic="chat", rate=8).measures.latency("ttft")`.

    `traffic` names a traffic file and `trace` a file of requests, instead of those of the scenario; `requests` are
    given ones, or how many. `rate` is in requests a second. Raises CatalogError for mistakes in files, ValueError
    where nothing is asked, and `explore.service.Refused` (a ValueError) where no plan fits.
    """
    from archsim.explore.service import Asked
    from archsim.explore.service import serve as serve_scenario

    loaded = scenario if isinstance(scenario, Scenario) else load(scenario)
    drawn = None if traffic is None else load_traffic(traffic)
    given = requests if isinstance(requests, Requests) else None
    count = None if isinstance(requests, Requests) else requests
    asked = Asked(drawn, None if trace is None else str(trace), rate, seconds, count, plain, seed, skip_bad)
    return serve_scenario(loaded, asked, given)
