"""JSON Schemas of the files, for editors: made from the models that read them, so that both always agree.

A file that `extends` another gives only what differs: with that key nothing else is required, at any depth.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from archsim.catalog import names
from archsim.chip.constants import FAMILIES
from archsim.chip.memory import TechnologyFile
from archsim.chip.schema import ChipFile, GenerationFile
from archsim.economics.die import SiliconFile
from archsim.explore.design import DesignFile
from archsim.explore.scenario import ScenarioFile
from archsim.mapping.mapper import MapperFile
from archsim.mapping.runtime import RuntimeFile
from archsim.report.output import check_place, write_text
from archsim.serving.returning import ReturnsFile
from archsim.units import FORMATS, did_you_mean
from archsim.workload.schema import WorkloadFile
from archsim.workload.traffic import TrafficFile

Schema = dict[str, Any]

DIALECT = "https://json-schema.org/draft/2020-12/schema"
QUANTITY = r"^\s*\+?(\d[\d_]*\.?[\d_]*|\.\d+)([eE][+-]?\d+)?\s*[A-Za-zµμ/].*$"
PARTIAL = "Partial"
MODELS: dict[str, type[BaseModel]] = {
    "scenario": ScenarioFile,
    "chip": ChipFile,
    "workload": WorkloadFile,
    "mapper": MapperFile,
    "runtime": RuntimeFile,
    "generation": GenerationFile,
    "memory": TechnologyFile,
    "traffic": TrafficFile,
    "returns": ReturnsFile,
    "design": DesignFile,
    "silicon": SiliconFile,
}


def schema_of(kind: str) -> Schema:
    """The JSON Schema of a kind of file. Raises ValueError with the kinds there are."""
    if kind not in MODELS:
        raise ValueError(f"no schema of {kind!r}{did_you_mean(kind, MODELS) or '; there are ' + ', '.join(MODELS)}")
    whole = MODELS[kind].model_json_schema(ref_template="#/$defs/{model}")
    defs = whole.pop("$defs", {})
    _fill(kind, whole, defs)
    whole["properties"] |= {
        "extends": {"type": "string", "description": "the file whose values this one has unless it gives others"},
        "set": {"type": "object", "description": "values at dotted paths, such as memory.bandwidth, put last"},
    }
    defs["Whole"] = whole
    defs |= {f"{PARTIAL}{name}": _partial(item) for name, item in defs.items()}
    root: Schema = {"$schema": DIALECT, "title": f"archsim {kind}", "type": "object"}
    root |= {"if": {"required": ["extends"]}, "then": _ref(f"{PARTIAL}Whole"), "else": _ref("Whole")}
    found = _walked(root | {"$defs": defs}, _quantity)
    return found if isinstance(found, dict) else {}


def _ref(name: str) -> Schema:
    return {"$ref": f"#/$defs/{name}"}


def _fill(kind: str, whole: Schema, defs: Schema) -> None:
    """Names of the catalogue to choose from, formats, and the families of a generation's constants."""
    own = whole["properties"]
    if kind == "scenario":
        catalogues = {"model": "workloads", "runtime": "mappers/runtimes", "mapper": "mappers"}
        for key, catalogue in catalogues.items():
            own[key]["examples"] = names(catalogue)
        defs["PoolFile"]["properties"]["chip"]["examples"] = names("chips")
    if kind == "chip":
        own["generation"]["examples"] = names("chips/generations")
        defs["MemoryFile"]["properties"]["timing"]["examples"] = names("chips/memory")
    if kind in ("scenario", "workload"):
        own["precision"]["additionalProperties"]["examples"] = list(FORMATS)
    if kind == "generation":
        for family, model in FAMILIES.items():
            found = model.model_json_schema(ref_template="#/$defs/{model}")
            defs |= found.pop("$defs", {})
            defs[family] = found
        stack = {family: {"type": "object", "additionalProperties": _ref(family)} for family in FAMILIES}
        own["kernels"]["additionalProperties"] = {
            "type": "object",
            "properties": stack,
            "additionalProperties": False,
        }


def _walked(value: object, change: Callable[[Schema], Schema]) -> object:
    """A copy with every mapping changed, inner ones first."""
    if isinstance(value, dict):
        return change({key: _walked(item, change) for key, item in value.items()})
    return [_walked(item, change) for item in value] if isinstance(value, list) else value


def _quantity(schema: Schema) -> Schema:
    """A pattern for texts that are quantities, which are those with one example of a number and a unit."""
    examples = schema.get("examples")
    if schema.get("type") != "string" or not isinstance(examples, list) or len(examples) != 1:
        return schema
    return schema | {"pattern": QUANTITY} if examples[0][:1].isdigit() else schema


def _partial(schema: Schema) -> object:
    """A schema that requires nothing, and neither does what it refers to."""

    def change(inner: Schema) -> Schema:
        kept = {key: value for key, value in inner.items() if key != "required" or not isinstance(value, list)}
        if isinstance(kept.get("$ref"), str):
            kept["$ref"] = kept["$ref"].replace("#/$defs/", f"#/$defs/{PARTIAL}")
        return kept

    return _walked(schema, change)


def print_schemas(kind: str | None, out: Path | None) -> None:
    """Prints the schema of one kind, or writes it, or those of all kinds, to files of a folder."""
    if kind is None and out is None:
        raise ValueError(f"which one: {', '.join(MODELS)}? Or all of them with --out DIR")
    if out is None:
        write_text(_text(str(kind)), "-")
        return
    check_place(out / "schemas" if out.is_dir() else out)
    out.mkdir(exist_ok=True)
    for name in MODELS if kind is None else [kind]:
        write_text(_text(name), str(out / f"{name}.schema.json"))


def _text(kind: str) -> str:
    return json.dumps(schema_of(kind), indent=1, ensure_ascii=False) + "\n"
