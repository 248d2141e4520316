"""Mappers propose splits and never price them.

A mapper file names a strategy: a Python file of the catalogue with a function
`propose(model, pool, degrees) -> list[dict[str, int]]`, and if it likes `looked_at(model, pool, degrees) -> str`, which
says in words what was considered and why. One of two pools has `propose_pools` (`roles`). Built-in strategies and a
user's load by this one route.
"""

import importlib.util
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import Field

from archsim.arrays import array
from archsim.catalog import CatalogError, Document, Mark, fetch, roots, validate
from archsim.mapping.roles import DEGREES, PoolsFile, Roles, faults_of, roles_of
from archsim.mapping.split import Split, legality
from archsim.mapping.split import split as split_of
from archsim.mapping.system import Pool
from archsim.workload.model import Model
from archsim.yamlmarks import note

Degree = int | str | tuple[int, ...]
Propose = Callable[[Model, Pool, Mapping[str, Degree]], list[dict[str, int]]]
LookedAt = Callable[[Model, Pool, Mapping[str, Degree]], str]


class MapperFile(PoolsFile):
    """A file of `mappers/`; with `pools` it is about two of them."""

    name: str
    describe: str
    strategy: str = Field("degrees", description="the Python file, without .py, that proposes")
    degrees: dict[str, Degree] = Field({}, description="what the strategy may choose for each degree of parallelism")
    union: tuple[str, ...] = Field((), description="other mappers whose proposals are added")


@dataclass(frozen=True)
class Strategy:
    """What one mapper file proposes by, and how it puts that in words."""

    propose: Propose
    looked_at: LookedAt | None
    degrees: Mapping[str, Degree]


@dataclass(frozen=True)
class Mapper:
    """A named source of proposals."""

    name: str
    describe: str
    strategies: tuple[Strategy, ...]
    roles: Roles | None = None

    def looked_at(self, model: Model, pool: Pool) -> list[str]:
        """What its strategies say that they considered, and why; each once."""
        said = [s.looked_at(model, pool, s.degrees) for s in self.strategies if s.looked_at is not None]
        return list(dict.fromkeys(text for text in said if text))

    def propose(self, model: Model, pool: Pool) -> Split:
        """Every proposed split, once, along axis 0 of its arrays; legal ones only if there are any."""
        found: dict[tuple[int, ...], None] = {}
        for strategy in self.strategies:
            for split in strategy.propose(model, pool, strategy.degrees):
                found[tuple(int(split.get(degree, 1)) for degree in DEGREES)] = None
        if not found:
            raise ValueError(
                f"mapper {self.name!r} proposes no split of {int(pool.count.max())} chips; see its `degrees`"
            )
        columns = np.array(list(found), dtype=np.float64).reshape(-1, len(DEGREES))
        proposed = split_of(**dict(zip(DEGREES, columns.T, strict=True)))
        legal = legality(model, proposed, array(float(pool.count.max()))) == 0
        keep = legal if legal.any() else np.ones_like(legal)
        return proposed.mapped(lambda _, value: value[keep] if value.size == keep.size else value)


def load_mapper(name: str, mark: Mark | None = None) -> Mapper:
    """The mapper of a name or path. Raises CatalogError with every fault of its files."""
    document = fetch("mappers", name, mark)
    file = validate(MapperFile, document)
    unknown = [key for key in file.degrees if key not in DEGREES]
    if unknown:
        raise CatalogError(
            [
                document.mark("degrees", key).key_fault(f"unknown degree {key!r}; known: {', '.join(DEGREES)}")
                for key in unknown
            ]
        )
    wrong = faults_of(file)
    if wrong:
        raise CatalogError([document.mark(*place).fault(text) for place, text in wrong])
    if file.pools:
        strategy = _module(document, file.strategy, "propose_pools").propose_pools
        return Mapper(file.name, file.describe, (), roles_of(file, strategy))
    strategies: list[Strategy] = []
    for other in file.union:
        strategies.extend(load_mapper(other, document.mark("union")).strategies)
    if file.degrees or not file.union:
        module = _module(document, file.strategy, "propose")
        strategies.append(Strategy(module.propose, getattr(module, "looked_at", None), file.degrees))
    return Mapper(file.name, file.describe, tuple(strategies))


def _module(document: Document, name: str, function: str) -> Any:
    """Loads the Python file beside the one that names it, or of the catalogue, which has a function of some name."""
    source = Path(document.mark("strategy").file).parent / f"{name}.py"
    folders = [document.path.parent, *roots("mappers")]
    source = next((path for path in (source, *(folder / f"{name}.py" for folder in folders)) if path.is_file()), source)
    if not source.is_file():
        raise CatalogError(
            [
                document.mark("strategy").fault(
                    f"no strategy file {source.name!r} beside {document.path.name!r} or in the catalogue"
                )
            ]
        )
    note(source)
    spec = importlib.util.spec_from_file_location(f"archsim_mapper_{name}", source)
    if spec is None or spec.loader is None:
        raise CatalogError([document.mark("strategy").fault(f"cannot load {source.name!r}")])
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
        getattr(module, function)
    except Exception as error:  # a user's file may fail in any way; it is refused with its reason
        raise CatalogError(
            [document.mark("strategy").fault(f"{source.name}: {type(error).__name__}: {error}")]
        ) from error
    return module
