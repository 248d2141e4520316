"""JSON Schemas for editors agree with the reader: shipped files pass, and mistakes that the reader refuses fail."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from archsim.catalog import find, names, read
from archsim.cli import app
from archsim.report.schemas import MODELS, QUANTITY, schema_of

FOLDERS = {
    "scenario": "examples",
    "chip": "chips",
    "workload": "workloads",
    "mapper": "mappers",
    "runtime": "mappers/runtimes",
    "generation": "chips/generations",
    "memory": "chips/memory",
    "traffic": "workloads/traffic",
    "returns": "workloads/returns",
    "design": "examples/designs",
    "silicon": "chips/silicon",
}
TYPES: dict[str, type | tuple[type, ...]] = {
    "object": dict,
    "array": list,
    "string": str,
    "boolean": bool,
    "number": (int, float),
    "null": type(None),
}
SCENARIO = {"model": "m", "pools": {"gpu": {"chip": "c", "count": 1}}, "batch": 1, "context": 10}


def is_of(value: Any, kind: str) -> bool:
    if kind == "integer":
        return isinstance(value, int | float) and not isinstance(value, bool) and float(value).is_integer()
    if isinstance(value, bool) and kind != "boolean":
        return False
    return isinstance(value, TYPES[kind])


def errors(value: Any, schema: dict[str, Any] | bool, root: dict[str, Any], at: str = "") -> list[str]:
    """What of JSON Schema these schemas use."""
    if isinstance(schema, bool):
        return [] if schema else [f"{at}: not allowed"]
    found: list[str] = []
    if "$ref" in schema:
        found += errors(value, root["$defs"][schema["$ref"].rpartition("/")[2]], root, at)
    if "type" in schema and not is_of(value, schema["type"]):
        return [*found, f"{at}: no {schema['type']}"]
    if "enum" in schema and value not in schema["enum"]:
        found.append(f"{at}: none of {schema['enum']}")
    if "const" in schema and value != schema["const"]:
        found.append(f"{at}: not {schema['const']}")
    if "pattern" in schema and isinstance(value, str) and not re.search(schema["pattern"], value):
        found.append(f"{at}: no such pattern")
    if "anyOf" in schema and all(errors(value, option, root, at) for option in schema["anyOf"]):
        found.append(f"{at}: none of the alternatives")
    if "if" in schema:
        chosen = "else" if errors(value, schema["if"], root, at) else "then"
        found += errors(value, schema[chosen], root, at)
    if isinstance(value, dict):
        found += of_mapping(value, schema, root, at)
    if isinstance(value, list):
        items = [*schema.get("prefixItems", []), *[schema.get("items", True)] * len(value)]
        found += [e for i, item in enumerate(value) for e in errors(item, items[i], root, f"{at}.{i}")]
    return found


def of_mapping(value: dict[str, Any], schema: dict[str, Any], root: dict[str, Any], at: str) -> list[str]:
    known = schema.get("properties", {})
    found = [f"{at}: lacks {key}" for key in schema.get("required", []) if key not in value]
    for key, item in value.items():
        found += errors(item, known.get(key, schema.get("additionalProperties", True)), root, f"{at}.{key}")
        found += errors(key, schema.get("propertyNames", True), root, f"{at}.{key}")
    return found


def wrong(kind: str, data: Any) -> list[str]:
    schema = schema_of(kind)
    return errors(data, schema, schema)


@pytest.mark.parametrize("kind", MODELS)
def test_every_shipped_file_passes(kind: str) -> None:
    schema = schema_of(kind)
    files = names(FOLDERS[kind])
    assert files
    found = {name: errors(read(find(FOLDERS[kind], name)).data, schema, schema) for name in files}
    assert not {name: problems for name, problems in found.items() if problems}


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"batsh": 3}, "batsh: not allowed"),
        ({"batch": "many"}, "batch: none of the alternatives"),
        ({"power_cap": 500}, "power_cap"),
        ({"power_cap": "500"}, "power_cap"),
        ({"pools": {"gpu": {"chip": "c"}}}, "lacks count"),
        ({"objective": {"minimize": "speed"}}, "minimize"),
        ({"prices": {"input": "1 USD/Mtok"}}, "prices"),
        ({"precision": {"weight": "fp8"}}, "precision.weight"),
    ],
)
def test_what_the_reader_refuses_is_marked(change: dict[str, Any], says: str) -> None:
    assert wrong("scenario", SCENARIO) == []
    assert says in " ".join(wrong("scenario", {**SCENARIO, **change}))


def test_only_a_file_that_extends_another_may_leave_things_out() -> None:
    assert wrong("chip", {"name": "mine", "price": {"rent": "2 USD/h"}})
    changed = {"price": {"rent": "2 USD/h"}, "set": {"memory.bandwidth": "4 TB/s"}}
    assert wrong("chip", {"extends": "h100-sxm", **changed}) == []
    assert wrong("chip", {"extends": "h100-sxm", "price": {"rant": "2 USD/h"}})


def test_constants_are_checked_by_their_family() -> None:
    def generation(family: str, **constants: Any) -> dict[str, Any]:
        return {"extends": "hopper", "kernels": {"vllm": {family: {"bf16": constants}}}}

    assert wrong("generation", generation("gemm", fixed="2 us")) == []
    assert wrong("generation", generation("gemm", fixd="2 us"))
    assert wrong("generation", generation("gem", fixed="2 us"))


@pytest.mark.parametrize("text", ["3.35 TB/s", "25_000 USD", "1e3 s", ".5 us", "80GB", "2 USD/h"])
def test_the_pattern_takes_quantities(text: str) -> None:
    assert re.search(QUANTITY, text)


@pytest.mark.parametrize("text", ["450", "fast", "-1 s", "", "1.2.3"])
def test_the_pattern_refuses_what_has_no_number_or_no_unit(text: str) -> None:
    assert not re.search(QUANTITY, text)


def test_a_scenario_offers_the_names_of_the_catalogue() -> None:
    own = schema_of("scenario")["$defs"]
    assert "meta/llama-3.1-8b" in own["Whole"]["properties"]["model"]["examples"]
    assert "nvidia/h100-sxm" in own["PoolFile"]["properties"]["chip"]["examples"]


def test_the_command(tmp_path: Path) -> None:
    runner = CliRunner()
    printed = runner.invoke(app, ["schema", "chip"])
    assert json.loads(printed.stdout)["title"] == "archsim chip"
    assert runner.invoke(app, ["schema", "--out", str(tmp_path / "new")]).exit_code == 0
    assert {path.name for path in (tmp_path / "new").iterdir()} == {f"{kind}.schema.json" for kind in MODELS}
    for arguments, says in ((["schema"], "which one"), (["schema", "chp"], "did you mean 'chip'")):
        refused = runner.invoke(app, arguments)
        assert refused.exit_code == 2 and says in refused.stderr
