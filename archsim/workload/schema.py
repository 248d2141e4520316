"""The files of models, and how they become a Model."""

from dataclasses import replace
from typing import Literal

from pydantic import Field

from archsim.catalog import CatalogError, Document, Fault, Mark, StrictModel, fetch, validate
from archsim.fields import Count, FormatName
from archsim.sources import SourceEntry, check_sources
from archsim.workload.architecture import Architecture, shape_faults
from archsim.workload.huggingface import model_of
from archsim.workload.lowering import lower
from archsim.workload.model import Model, precision_of
from archsim.workload.step import decode

TOLERANCE = 1e-3  # of a declared parameter count


class ParametersFile(StrictModel):
    """Published counts, checked against the lowered graph."""

    total: Count
    active: Count | None = None


PrecisionClass = Literal["weights", "embedding", "head", "attention", "kv", "activations", "experts"]


class WorkloadFile(StrictModel):
    """A file of `workloads/`."""

    name: str
    hf_repo: str | None = Field(None, description="repository of its checkpoint on the Hugging Face Hub")
    architecture: Architecture
    precision: dict[PrecisionClass, FormatName] = Field(
        {}, description="the model's native formats where they are not bf16"
    )
    parameters: ParametersFile
    sources: tuple[SourceEntry, ...]


def load_model(name: str, mark: Mark | None = None) -> Model:
    """The model of a name or path, its parameter count checked. Raises CatalogError with every fault of its file."""
    document = fetch("workloads", name, mark)
    file = validate(WorkloadFile, document)
    check_sources(document, file.sources, skip=("name", "hf_repo"))
    _check_shapes(document, file.architecture)
    declared = {"total": file.parameters.total, "active": file.parameters.active or 0}
    native = {str(tensor): fmt for tensor, fmt in file.precision.items()}
    model = replace(model_of(file.name, file.architecture, declared, native), repository=file.hf_repo or "")
    _check_count(document, model)
    return model


def _check_shapes(document: Document, a: Architecture) -> None:
    """What shapes need of one another."""
    faults = shape_faults(a)
    if faults:
        raise CatalogError([document.mark("architecture", key).fault(text) for key, text in faults])


def _check_count(document: Document, model: Model) -> None:
    graph = lower(model, decode(1, 1, model.clips), precision_of(model, {}))
    counts = {"total": sum(graph.parameters().values()), "active": graph.active_parameters()}
    faults: list[Fault] = []
    for key, declared in model.declared.items():
        if declared and abs(counts[key] / declared - 1) > TOLERANCE:
            text = f"{declared:,} is declared, but the architecture has {counts[key]:,.0f} parameters ({key})"
            faults.append(document.mark("parameters", key).fault(text))
    if faults:
        raise CatalogError(faults)
