"""What users hold: `archsim.run`, and the types of what it gives."""

from collections.abc import Mapping, Sequence
from concurrent.futures import Executor
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from archsim.explore.result import Result
from archsim.explore.run import run as run_scenario
from archsim.explore.scenario import Scenario, load_scenario, scenario_of
from archsim.workload.requests import Requests
from archsim.workload.traffic import load_traffic

if TYPE_CHECKING:
    from archsim.explore.service import Service
    from archsim.explore.table import Table


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


def sweep(
    scenario: str | Path | Scenario | Sequence[str | Path | Scenario],
    vary: Mapping[str, object] | Sequence[str],
    *,
    zipped: Sequence[str] | Sequence[Sequence[str]] = (),
    overrides: Mapping[str, Mapping[str, object]] | None = None,
    mode: str | None = None,
    columns: Sequence[str] = (),
    served: Mapping[str, object] | None = None,
    executor: Executor | None = None,
    workers: int = 0,
    dask: str | None = None,
    journal: str | Path | None = None,
    resume: bool = False,
    csv: str | Path | None = None,
    parquet: str | Path | None = None,
    json: str | Path | None = None,
    keep: bool = True,
) -> "Table":
    """All combinations of the values of some fields: `sweep("llama-70b-on-h100", {"batch": range(1, 65)})["tpot"]`.

    `vary` gives values by field (numbers in SI, or what a file would say), or texts as `archsim sweep --vary` takes
    them. `zipped` axes go together: names, or several lists of names. `overrides` are named sets of changes, an axis of
    their own. `served` plays requests at every point: `requests`, `rate`, `seconds`, `seed`, `traffic`, `trace`.

    The work is done here, by any `executor`, by so many processes as `workers`, or by a cluster (`dask`). With a
    `journal` a sweep that was interrupted goes on where it stopped (`resume`). `keep=False` leaves the rows to the
    files and returns their summary only. Raises ValueError and CatalogError for mistakes.
    """
    from archsim.explore import executors
    from archsim.explore.journal import Journal
    from archsim.explore.running import Outputs, tabled
    from archsim.explore.specify import specify

    names = [scenario] if isinstance(scenario, str | Path | Scenario) else scenario
    loaded = [item if isinstance(item, Scenario) else load(item) for item in names]
    single = any(isinstance(item, str) for item in zipped)
    zips = [list(zipped)] if single else [list(names) for names in zipped]
    spec = specify(
        loaded,
        vary,
        zips=zips,  # type: ignore[arg-type]  # names, or lists of them
        overrides=overrides or {},
        mode=mode,
        columns=columns,
        served=served,
    )
    outputs = Outputs(*(None if path is None else str(path) for path in (csv, parquet, json)))
    with ExitStack() as stack:
        pool = None if executor is None else stack.enter_context(executors.given(executor))
        if workers > 0:
            pool = stack.enter_context(executors.processes(workers))
        if dask is not None:
            pool = stack.enter_context(executors.dask(dask))
        book = None if journal is None else Journal(Path(journal), spec, resume)
        if book is not None:
            stack.callback(book.close)
        return tabled(spec, pool, book, outputs, keep)
