"""What users hold: `archsim.run`, and the types of what it gives."""

from collections.abc import Mapping
from pathlib import Path

from archsim.explore.result import Result
from archsim.explore.run import run as run_scenario
from archsim.explore.scenario import Scenario, load_scenario, scenario_of


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
