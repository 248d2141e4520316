"""What a scenario names, loaded and checked: every fault of every file is found before any is raised."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from archsim.catalog import CatalogError, Document, Fault, Mark
from archsim.chip.model import Chip
from archsim.chip.schema import load_chip
from archsim.explore.pools import check_pools
from archsim.mapping.mapper import Mapper, load_mapper
from archsim.mapping.runtime import Runtime, load_runtime
from archsim.workload.model import Model
from archsim.workload.schema import load_model
from archsim.workload.traffic import TrafficFile, load_traffic

if TYPE_CHECKING:
    from archsim.explore.scenario import ScenarioFile

Loaded = TypeVar("Loaded")


@dataclass(frozen=True, eq=False)
class Named:
    """The files that a scenario names: chips by pool, and a model that drafts if there is one."""

    model: Model
    chips: Mapping[str, Chip]
    runtime: Runtime
    mapper: Mapper
    drafter: Model | None
    traffic: TrafficFile | None


def loaded(file: "ScenarioFile", document: Document) -> Named:
    """What a scenario names. Raises CatalogError with the faults of all its files and its own."""
    loader = _Loader()
    model = loader.load(load_model, file.model, document.mark("model"))
    found = [
        (name, loader.load(load_chip, pool.chip, document.mark("pools", name, "chip")))
        for name, pool in file.pools.items()
    ]
    chips = {name: chip for name, chip in found if chip is not None}
    runtime = loader.load(load_runtime, file.runtime, document.mark("runtime"))
    mapper = loader.load(load_mapper, file.mapper, document.mark("mapper"))
    drafter = loader.load(load_model, file.speculation.model, document.mark("speculation", "model"))
    traffic = file.traffic
    if isinstance(traffic, str):
        traffic = loader.load(load_traffic, traffic, document.mark("traffic"))
    own = [*_check(file, document), *check_pools(file, document, mapper), *_chip_faults(file, document, chips.values())]
    faults = [*loader.faults, *own]
    if faults or model is None or runtime is None or mapper is None:
        raise CatalogError(faults)
    return Named(model, chips, runtime, mapper, drafter, traffic)


def trace_of(document: Document, name: str) -> Path:
    """The file of a trace, relative to the scenario's."""
    return (document.path.parent / Path(name).expanduser()).resolve()


class _Loader:
    """Loads named parts and keeps their faults until all are known."""

    def __init__(self) -> None:
        self.faults: list[Fault] = []

    def load(self, load: Callable[[str, Mark], Loaded], name: str | None, mark: Mark) -> Loaded | None:
        """What `load` gives; None where nothing is named, and with the faults kept where it is refused."""
        if name is None:
            return None
        try:
            return load(name, mark)
        except CatalogError as error:
            self.faults.extend(error.faults)
            return None


def _check(file: "ScenarioFile", document: Document) -> list[Fault]:
    empty = [("batch",), ("context",), *(("pools", name, "count") for name in file.pools)]
    faults = [document.mark(*where).fault("give at least one number") for where in empty if _at(file, where) == ()]
    if file.batch is None and file.context is None and file.traffic is None and file.trace is None:
        faults.append(document.mark().fault("nothing is asked: give `batch` and `context`, or `traffic`"))
    if file.trace is not None and not trace_of(document, file.trace).exists():
        faults.append(document.mark("trace").fault(f"no such file {file.trace!r}"))
    if (file.batch is None) != (file.context is None) and file.traffic is None:
        faults.append(document.mark().fault("the step answer needs both `batch` and `context`"))
    if file.objective.minimize and file.objective.maximize:
        faults.append(document.mark("objective").fault("give `minimize` or `maximize`, not both"))
    return faults


def _chip_faults(file: "ScenarioFile", document: Document, chips: Iterable[Chip]) -> list[Fault]:
    """What is asked of chips that they do not have: a price, memory behind them."""
    known = list(chips)
    faults = _unpriced(file, document, known)
    if file.placement.kv == "backing":
        bare = [chip for chip in known if chip.backing is None or chip.kind != "lpu"]
        texts = [f"{chip.name} has no memory behind it; write `kv: chip`" for chip in bare]
        faults += [document.mark("placement", "kv").fault(text) for text in texts]
    return faults


def _unpriced(file: "ScenarioFile", document: Document, chips: Iterable[Chip]) -> list[Fault]:
    """A way of paying that was asked for, and for which neither a chip nor the scenario has a price."""
    by, terms = file.economics.by, file.economics
    found = []
    for chip in chips:
        if by == "rent" and terms.rent is None and chip.price.rent is None:
            found.append(f"{chip.name} has no rent; give `rent: 3 USD/h` beside it, or `by: capital`")
        if by == "capital" and terms.capital is None and chip.price.system is None:
            found.append(f"{chip.name} has no all-in price; give `capital: 50000 USD` beside it, or `by: rent`")
    return [document.mark("economics", "by").fault(text) for text in found]


def _at(file: "ScenarioFile", where: tuple[str, ...]) -> object:
    """What a file says at a place."""
    value: object = file
    for name in where:
        value = value[name] if isinstance(value, Mapping) else getattr(value, name)
    return value
