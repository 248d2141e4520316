"""From what a user asks to a sweep: axes checked against every scenario, columns with their units."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from archsim.catalog import CatalogError, Document, find, read_text, validate
from archsim.explore.axes import SI, fields_of
from archsim.explore.result import ALIASES, METRICS, PRICED, metrics_of, objective
from archsim.explore.scenario import Scenario, ScenarioFile
from archsim.explore.structure import IN_POOL, NAMED, built, changed_data, origin_of
from archsim.explore.sweep import Grid, Sweep, folders, grid_of
from archsim.explore.vary import Axis, Setting, VaryError, axis_of, path_of, read_axes
from archsim.units import did_you_mean
from archsim.yamlmarks import Mark

UNITS = {**SI, "revenue": "USD/h", "power_revenue": "USD/h/MW", "": ""}
# What an answer does not depend on, and what to do instead
OTHERS: Mapping[str, Mapping[str, str]] = {
    "step": dict.fromkeys(("input", "output", "cached"), "; vary `batch` and `context`, or add --mode steady"),
    "steady": {"context": "; vary `input` and `output`, or add --mode step"},
    "serve": {},
}
LESS = ("tpot", "ttft", "cost_per_token", "output_cost", "input_cost", "energy_per_token", "ttft_p90", "tpot_p90")
MORE = (
    "throughput_per_chip",
    "throughput",
    "interactivity",
    "goodput",
    "output_rate",
    "margin",
    "revenue_per_megawatt",
)
BETTER = {**dict.fromkeys(LESS, 1.0), **dict.fromkeys(MORE, -1.0)}
Vary = Sequence[str] | Mapping[str, Any]
Overrides = Sequence[str] | Mapping[str, Any]  # texts `NAME: {FIELD: VALUE}`, or such mappings


def specify(
    scenarios: Sequence[Scenario],
    vary: Vary,
    *,
    zips: Sequence[Sequence[str]] = (),
    overrides: Overrides = (),
    mode: str | None = None,
    columns: Sequence[str] = (),
    served: Mapping[str, Any] | None = None,
) -> Sweep:
    """The sweep of some scenarios.

    `vary` are texts `FIELD=VALUES`, or values by field; `zips` names of axes that go together, `overrides` texts
    `NAME: {FIELD: VALUE, ...}`. Raises ValueError for what cannot be read, CatalogError for mistakes in files.
    """
    if not scenarios:
        raise ValueError("give at least one scenario")
    chosen = "serve" if served is not None else mode or _mode(scenarios[0], vary)
    grids = [_grid(scenario, vary, zips, overrides, chosen) for scenario in scenarios]
    names = {axis.name for grid in grids for group in grid.groups for axis in group.axes}
    if chosen == "serve":
        from archsim.explore.served import COLUMNS as known
    else:
        known = _known(scenarios, chosen, names)
    wanted = _wanted(columns, known, names)
    units = {axis.name: axis.unit for grid in grids for group in grid.groups for axis in group.axes}
    units |= {name: known[name] for name in wanted}
    return Sweep(chosen, tuple(grids), wanted, units, _goal(scenarios[0], chosen, wanted), folders(), served or {})


def _goal(scenario: Scenario, mode: str, columns: Sequence[str]) -> tuple[str, float]:
    """What the best rows are best at: the objective, or else the first column of which more or less is better."""
    goal = ("cost_per_token", 1.0) if mode == "serve" else objective(scenario, mode)
    if goal[0] in columns:
        return goal
    return next(((name, BETTER[name]) for name in columns if name in BETTER), goal)


def _mode(scenario: Scenario, vary: Vary) -> str:
    """The step answer where batch and context are known, else the steady one."""
    varied = {text.partition("=")[0].strip() for text in vary}
    known = {name for name in ("batch", "context") if name in varied or getattr(scenario, name) is not None}
    return "step" if known == {"batch", "context"} else "steady"


def _grid(scenario: Scenario, vary: Vary, zips: Sequence[Sequence[str]], overrides: Overrides, mode: str) -> Grid:
    """The grid of one scenario, with every setting checked."""
    serving = mode == "serve"
    if isinstance(vary, Mapping):
        axes = [axis_of(name, values, scenario, serving) for name, values in vary.items()]
    else:
        axes = read_axes(vary, scenario, serving)
    axes = [_proposed(axis, scenario) for axis in axes]
    axes += [_override(overrides, scenario)] if overrides else []
    for axis in axes:
        _check(scenario, axis)
    given = {axis.name for axis in axes}
    for name in OTHERS[mode]:
        if name in given:
            raise VaryError(f"--vary {name}: the {mode} answer does not depend on it{OTHERS[mode][name]}")
    asked = [getattr(scenario, name) for name in ("batch", "context")]
    if mode == "step":
        for name, values in zip(("batch", "context"), asked, strict=True):
            if name not in given and values is None:
                raise VaryError(f"the step answer needs `{name}`: give it in the scenario or --vary {name}=...")
            axes += [Axis(name, numbers=values)] if name not in given else []
    elif mode == "steady" and scenario.input is None and not {"input", "output"} <= given:
        raise VaryError("the steady answer needs `traffic` in the scenario")
    known = fields_of(scenario, serving)
    named = [[known[name].name if name in known else name for name in names] for names in zips]
    together = [[axis.name for axis in axes if axis.name in given] if names == ["all"] else names for names in named]
    return grid_of(origin_of(scenario), axes, together)


def _proposed(axis: Axis, scenario: Scenario) -> Axis:
    """Numbers of chips are structure where a mapper proposes splits for them."""
    counts = axis.name == "chips" or (axis.name.startswith("pools.") and axis.name.endswith(".count"))
    if not counts or scenario.mapper is None or axis.structure:
        return axis
    return axis.built(path_of(axis.name, scenario))


def _override(given: Overrides, scenario: Scenario) -> Axis:
    """The axis of named overrides: each sets several fields."""
    named = [given] if isinstance(given, Mapping) else [_read_override(text) for text in given]
    settings: dict[str, Setting] = {}
    for data in named:
        for name, changes in data.items():
            if not isinstance(changes, Mapping) or not changes:
                raise VaryError(f"--override {name}: expected NAME: {{FIELD: VALUE, ...}}")
            if name in settings:
                raise VaryError(f"--override {name}: it is given twice")
            settings[name] = Setting(name, {path_of(field, scenario): value for field, value in changes.items()})
    return Axis("override", settings=tuple(settings.values()))


def _read_override(text: str) -> Mapping[str, Any]:
    """Named changes from a text `NAME: {FIELD: VALUE, ...}`."""
    try:
        return read_text(text, Path("--override")).data
    except CatalogError as error:
        raise VaryError(f"--override {text}: {error.faults[0].message}") from None


def _check(scenario: Scenario, axis: Axis) -> None:
    """Tries every setting of a structure axis alone. Raises VaryError for one that names what is not there."""
    document = scenario.marks
    if document is None:
        return
    for setting in axis.settings:
        try:
            _try(scenario, document, setting)
        except CatalogError as error:
            raise VaryError(f"--vary {axis.name}={setting.label}: {error.faults[0].message}") from None


def _try(scenario: Scenario, document: Document, setting: Setting) -> None:
    """Raises CatalogError where a setting is no legal value there, or names a file that does not exist or is wrong."""
    data = changed_data(document, setting.changes)
    validate(ScenarioFile, Document(document.path, data, document.marks))
    mark = Mark(str(document.path), 0, 0, 0, 0)
    for dotted, value in setting.changes.items():
        parts = dotted.split(".")
        kind = NAMED.get(dotted) or (IN_POOL.get(parts[2]) if parts[0] == "pools" and len(parts) == 3 else None)
        if kind and isinstance(value, str):
            find(kind, value, mark)
        elif any(dotted.startswith(f"{name}.") for name in NAMED) or (parts[0] == "pools" and len(parts) > 3):
            built(origin_of(scenario), setting.changes, document)


def _known(scenarios: Sequence[Scenario], mode: str, axes: set[str]) -> dict[str, str]:
    """Units of the columns that a row can have."""
    found: dict[str, str] = {"batch": ""} if mode == "steady" else {}
    for scenario in scenarios:
        found |= {name: UNITS[entry[0]] for name, entry in metrics_of(scenario, mode).items()}
    found["chips"] = ""
    for scenario in scenarios:
        found |= {f"split.{name}": "" for name in scenario.split.named()}
    return {name: unit for name, unit in found.items() if name not in axes}


def _wanted(columns: Sequence[str], known: Mapping[str, str], axes: set[str]) -> tuple[str, ...]:
    """The columns that are asked for, all without any. Raises ValueError for an unknown one."""
    named = [ALIASES.get(name, name) for name in columns]
    for name in named:
        if name not in known and name not in axes:
            if name in METRICS or name in PRICED:
                raise ValueError(f"--columns: {name!r} needs `prices` in the scenario, or another mode")
            near = did_you_mean(name, known) or f"; there are {', '.join(known)}"
            raise ValueError(f"--columns: no column {name!r}{near}")
    return tuple(name for name in dict.fromkeys(named) if name in known) or tuple(known)
