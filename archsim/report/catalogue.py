"""Tables of the catalogue: what chips, workloads, mappers and runtimes there are, and what one of them says."""

from collections.abc import Callable, Mapping
from typing import TypeVar

import numpy as np

from archsim.arrays import array
from archsim.catalog import CatalogError, Document, Fault, fetch, names, validate
from archsim.chip.memory import load_technology
from archsim.chip.model import Chip, Link
from archsim.chip.schema import load_chip, load_generation
from archsim.mapping.mapper import MapperFile, load_mapper
from archsim.mapping.roles import DEGREES
from archsim.mapping.runtime import Runtime, load_runtime
from archsim.mapping.system import Pool
from archsim.report.bandwidth import bandwidth_table
from archsim.report.machines import machine_facts
from archsim.report.point import single
from archsim.report.tables import Table, source_rows
from archsim.report.words import counted, number, precision_label, split_label
from archsim.sources import Source, sources_of
from archsim.units import show
from archsim.workload.lowering import lower
from archsim.workload.model import (
    Block,
    Chunk,
    DeltaNet,
    LatentAttention,
    Mamba1,
    Mamba2,
    Model,
    Moe,
    Recurrent,
    precision_of,
)
from archsim.workload.schema import WorkloadFile, load_model
from archsim.workload.step import decode
from archsim.yamlmarks import shown

Loaded = TypeVar("Loaded")
KINDS = ("chips", "workloads", "mappers")


def _loaded(kind: str, load: Callable[[str], Loaded], faults: list[Fault]) -> dict[str, Loaded]:
    """Everything of a kind by name; the faults of broken files are added to `faults`."""
    found = {}
    for name in names(kind):
        try:
            found[name] = load(name)
        except CatalogError as error:
            faults.extend(error.faults)
    return found


def listing(kind: str) -> tuple[list[Table], list[Fault]]:
    """The tables of `archsim chips|workloads|mappers list`, and the faults of files that cannot be read."""
    faults: list[Fault] = []
    if kind == "chips":
        return [_chips(_loaded(kind, load_chip, faults))], faults
    if kind == "workloads":
        return [_models(_loaded(kind, load_model, faults))], faults
    mappers = _loaded(kind, lambda name: validate(MapperFile, fetch(kind, name)), faults)
    rows = tuple((name, file.describe) for name, file in mappers.items())
    runtimes = _loaded("mappers/runtimes", load_runtime, faults)
    software = tuple((name, item.name, item.version, item.stack) for name, item in runtimes.items())
    return [
        Table("Mappers propose how a model is split", ("name", "what it proposes"), rows, texts=2),
        Table(
            "Runtimes are the software it runs on", ("name", "runtime", "version", "kernel stack"), software, texts=4
        ),
    ], faults


def _chips(chips: Mapping[str, Chip]) -> Table:
    formats = [name for name in ("bf16", "fp8", "fp4") if any(name in chip.matrix for chip in chips.values())]
    rows = []
    for name, chip in chips.items():
        peaks = [show(single(chip.matrix[fmt]), "rate") if fmt in chip.matrix else "" for fmt in formats]
        memory = (show(single(chip.memory.capacity), "bytes"), show(single(chip.memory.bandwidth), "bandwidth"))
        rent = "" if chip.price.rent is None else f"{number(single(chip.price.rent))} USD/h"
        rows.append((name, chip.name, chip.kind, *memory, *peaks, rent))
    heads = ("name", "chip", "kind", "memory", "bandwidth", *(f"dense {fmt}" for fmt in formats), "rent")
    return Table("Chips", heads, tuple(rows), texts=3)


def _models(models: Mapping[str, Model]) -> Table:
    rows = []
    for name, model in models.items():
        total, active = parameters(model)
        native = precision_of(model, {})
        size = show(model.kv_elements_per_token() * native.kv.bytes, "bytes")
        rows.append(
            (name, model.name, _billions(total), _billions(active), number(model.layers), size, precision_label(native))
        )
    heads = ("name", "model", "parameters", "active", "layers", "KV a token", "native formats")
    return Table("Workloads", heads, tuple(rows), texts=2, words=frozenset({6}))


def parameters(model: Model) -> tuple[float, float]:
    """All parameters of a model, and those that one token touches."""
    graph = lower(model, decode(1, 1, model.clips), precision_of(model, {}))
    return sum(graph.parameters().values()), graph.active_parameters()


def _billions(count: float) -> str:
    return f"{count / 1e9:,.1f} billion"


# One of them


def shown_tables(kind: str, name: str, model: str, chip: str, count: int) -> list[Table]:
    """The tables of `show NAME`; a mapper is shown with what it proposes for a model on `count` chips."""
    if kind == "chips":
        return chip_tables(load_chip(name))
    if kind == "workloads":
        return _model_tables(name)
    if name in names("mappers/runtimes") and name not in names("mappers"):
        return _runtime_tables(load_runtime(name))
    return _mapper_tables(name, model, chip, count)


def _facts(title: str, facts: list[tuple[str, str]]) -> Table:
    return Table(title, ("", ""), tuple(fact for fact in facts if fact[1]), texts=2)


def _sources(sources: tuple[Source, ...]) -> Table:
    rows = tuple((fields, kind, ref) for fields, kind, ref, _ in source_rows(list(sources)))
    return Table("Sources", ("of", "kind", "reference"), rows, texts=3)


def chip_tables(chip: Chip) -> list[Table]:
    """A chip: its size, peaks with ridge points, links, price, and where every number comes from."""
    size = [
        ("kind", chip.kind),
        ("generation", f"{chip.generation.name} (calibrated stacks: {', '.join(chip.generation.kernels)})"),
        ("cores", f"{number(single(chip.cores))} at {show(single(chip.clock), 'frequency')}"),
        ("memory", f"{show(single(chip.memory.capacity), 'bytes')} of {chip.memory.technology}"),
        ("memory bandwidth", show(single(chip.memory.bandwidth), "bandwidth")),
        (
            "network on chip",
            "" if chip.network is None else f"{show(single(chip.network), 'bandwidth')} into each core",
        ),
        ("cache", show(single(chip.cache), "bytes")),
        ("SRAM a core", show(single(chip.sram), "bytes")),
        ("exponentials", f"{number(single(chip.exponentials))} a clock and core"),
        (
            "board power",
            f"{show(single(chip.power.tdp), 'power')} at most, {show(single(chip.power.idle), 'power')} idle",
        ),
        ("energy of memory", show(single(chip.energy.byte), "energy_per_byte")),
    ]
    bandwidth = bandwidth_table(chip)
    tables = [_facts(chip.name, size + machine_facts(chip) + _price(chip)), _peaks(chip)]
    tables += [] if bandwidth is None else [bandwidth]
    return [*tables, _links(chip.links), _sources(chip.sources)]


def _price(chip: Chip) -> list[tuple[str, str]]:
    price, facts = chip.price, []
    for name, value, unit in (
        ("price of the chip", price.chip, "USD"),
        ("price with its system", chip.capital, "USD"),
        ("of that, memory", price.memory if price.system is None else None, "USD/GB"),
        ("rent", price.rent, "USD/h"),
    ):
        facts.append((name, "" if value is None else f"{number(single(value))} {unit}, as of {price.as_of}"))
    return facts


def _peaks(chip: Chip) -> Table:
    rows = []
    for fmt, rate in chip.matrix.items():
        energy = chip.energy.flop.get(fmt)
        joules = "" if energy is None else show(single(energy), "energy_per_flop")
        rows.append((fmt, show(single(rate), "rate"), f"{number(single(chip.ridge(fmt)))} FLOP/B", joules))
    caption = "Ridge point: the arithmetic intensity at which compute and memory take equally long."
    return Table("Matrix formats, dense", ("format", "peak", "ridge point", "energy"), tuple(rows), caption)


def _links(links: Mapping[str, Link]) -> Table:
    rows = tuple(
        (
            kind.replace("_", " "),
            link.name,
            show(single(link.bandwidth), "bandwidth"),
            show(single(link.latency), "time"),
            counted(link.domain, "chip"),
            "reduces in its switch" if link.switch else "",
        )
        for kind, link in links.items()
    )
    heads = ("link", "name", "bandwidth, one way", "latency", "joins", "")
    return Table("Links", heads, rows, texts=2, words=frozenset({5}))


def _model_tables(name: str) -> list[Table]:
    model = load_model(name)
    document = fetch("workloads", name)
    total, active = parameters(model)
    native = precision_of(model, {})
    kv = model.kv_elements_per_token()
    facts = [
        ("parameters", f"{total:,.0f} ({_billions(total)})"),
        ("active a token", f"{active:,.0f} ({_billions(active)})" if active != total else ""),
        ("layers", f"{model.layers}: {', '.join(f'{count} {block}' for block, count in _merged(model))}"),
        ("hidden size", number(model.hidden)),
        ("vocabulary", f"{number(model.vocab)}{', tied with the head' if model.tied else ''}"),
        ("longest context", f"{model.max_context:,} tokens"),
        ("KV cache a token", f"{number(kv)} elements: {show(kv * native.kv.bytes, 'bytes')} in {native.kv.name}"),
        ("native formats", precision_label(native)),
    ]
    blocks = tuple((block, _attention(model.blocks[block]), _ffn(model.blocks[block])) for block in model.blocks)
    sources = sources_of(validate(WorkloadFile, document).sources, shown(document.path))
    return [
        _facts(model.name, facts),
        Table("Kinds of layer", ("block", "attention", "feed-forward"), blocks, texts=3),
        _sources(sources),
    ]


def _merged(model: Model) -> list[tuple[str, int]]:
    counts: dict[str, int] = {}
    for block, count in model.sequence:
        counts[block] = counts.get(block, 0) + count
    return list(counts.items())


def _attention(block: Block) -> str:
    a = block.attention
    if a is None:
        return "none"
    if isinstance(a, Recurrent):
        return _mixer(a)
    word = "chunks" if isinstance(a.window, Chunk) else "window"
    window = f", {word} of {number(a.window)}" if a.window != float("inf") else ""
    if isinstance(a, LatentAttention):
        window = f", {number(a.window)} tokens chosen by an indexer" if a.sparse else ""
        return f"MLA: {a.heads} heads, latent {a.latent} + {a.rope} rotary{window}"
    kind = "MHA" if a.kv_heads == a.heads else "MQA" if a.kv_heads == 1 else "GQA"
    return f"{kind}: {a.heads} heads, {a.kv_heads} KV heads of width {a.width}{window}"


def _mixer(a: Recurrent) -> str:
    """A mixer with a constant state, and what that takes of memory a sequence and layer."""
    kind = {DeltaNet: "gated delta rule", Mamba2: "Mamba-2", Mamba1: "Mamba-1"}[type(a)]
    state = show(a.state_bytes + sum(a.conv_bytes), "bytes")
    heads = "channels" if isinstance(a, Mamba1) else "heads"
    return f"{kind}: {number(a.heads)} {heads}, state of {state}"


def _ffn(block: Block) -> str:
    f = block.ffn
    if f is None:
        return "none"
    if not isinstance(f, Moe):
        return f"dense, width {number(f.width)}"
    shared = f", shared expert of width {number(f.shared)}" if f.shared else ""
    return f"MoE: {f.top_k} of {f.experts} experts of width {number(f.width)}{shared}"


RULES = {
    "any": "every divisor of the pool",
    "domain": "the largest divisor inside the fast links",
    "within_domain": "every divisor up to the size of the fast links",
    "replica": "all ranks of a replica",
    "rest": "what the other degrees leave",
}


def _mapper_tables(name: str, model: str, chip: str, count: int) -> list[Table]:
    document = fetch("mappers", name)
    file = validate(MapperFile, document)
    if file.pools:
        return _pools_tables(file)
    rules = tuple((degree.replace("_", " "), RULES.get(str(rule), str(rule))) for degree, rule in file.degrees.items())
    loaded, machine, mapper = load_model(model), load_chip(chip), load_mapper(name)
    pool = Pool(machine, array(count))
    facts = [
        ("what it proposes", file.describe),
        ("strategy", f"{file.strategy}.py"),
        ("adds those of", ", ".join(file.union)),
        ("here", "; ".join(mapper.looked_at(loaded, pool))),
    ]
    split = mapper.propose(loaded, pool)
    count_of = {name: np.broadcast_to(getattr(split, name), split.chips.shape) for name in DEGREES}
    plans = tuple(
        (split_label({name: float(own[index]) for name, own in count_of.items()}),) for index in range(split.chips.size)
    )
    title = f"Proposals for {loaded.name} on {count} x {machine.name}: {len(plans)}"
    return [
        _facts(file.name, facts),
        Table("Degrees", ("degree", "values"), rules, texts=2),
        Table(title, ("plan",), plans),
    ]


def _pools_tables(file: MapperFile) -> list[Table]:
    """A mapper of two pools: what each runs, and what may be chosen."""
    batches = file.micro_batches if isinstance(file.micro_batches, tuple) else (file.micro_batches,)
    facts = [
        ("what it proposes", file.describe),
        ("strategy", f"{file.strategy}.py"),
        ("micro-batches in turn", ", ".join(str(number) for number in batches)),
        ("replicas", str(file.replicas)),
        ("pinned to layers", str(file.pinned).lower()),
    ]
    rows = tuple(
        (
            name,
            ", ".join(pool.runs),
            "; ".join(f"{degree} {RULES.get(str(v), str(v))}" for degree, v in pool.split.items()),
        )
        for name, pool in file.pools.items()
    )
    return [_facts(file.name, facts), Table("Pools", ("pool", "runs", "degrees"), rows, texts=3)]


def _memory_used(runtime: Runtime) -> str:
    buffers = show(runtime.buffers, "bytes")
    if runtime.of_free:
        return f"{100 * runtime.utilization:g} % of what weights, activations and {buffers} of buffers leave free"
    return f"{100 * runtime.utilization:g} %, {buffers} of it for buffers"


def _runtime_tables(runtime: Runtime) -> list[Table]:
    facts = [
        ("version", runtime.version),
        ("kernel stack", runtime.stack),
        ("captured graphs", {"decode": "decode steps only", "all": "every step", "none": "none"}[runtime.graphed]),
        ("fuses", "every small kernel" if "*" in runtime.fuses else ", ".join(runtime.fuses)),
        ("prefill chunk", f"{runtime.chunk:,} tokens of a step at the most"),
        ("all-reduce", "NCCL" if runtime.all_reduce == "nccl" else "its own kernels as far as they reach, then NCCL"),
        (
            "context ranks",
            {"any": "for any attention", "latent": "for latent attention", "none": ""}[runtime.context_ranks],
        ),
        ("memory used", _memory_used(runtime)),
    ]
    host = tuple(
        (name, show(value, "time"), type(runtime.host).model_fields[name].description or "")
        for name, value in runtime.host
        if value
    )
    quantizers = tuple((fmt, ", ".join(products)) for fmt, products in runtime.quantizers.items())
    return [
        _facts(f"{runtime.name} {runtime.version}", facts),
        Table("Host time", ("what", "time", ""), host, words=frozenset({2})),
        Table("Quantising kernels of their own", ("format", "before"), quantizers, texts=2),
        _sources(runtime.sources),
    ]


# Checking a file


def check(kind: str, name: str) -> str:
    """Validates a file of a kind, generations, memories and runtimes too; gives its path as shown.

    Raises CatalogError with every fault.
    """
    inner: dict[str, tuple[tuple[str, str, Callable[[str], object]], ...]] = {
        "chips": (("chips/generations", "kernels", load_generation), ("chips/memory", "channel", load_technology)),
        "mappers": (("mappers/runtimes", "stack", load_runtime),),
    }
    for folder, key, load in inner.get(kind, ()):
        if _is_inner(kind, folder, key, name):
            document = fetch(folder, name)
            load(name)
            return shown(document.path)
    document = fetch(kind, name)
    loads: dict[str, Callable[[str], object]] = {"chips": load_chip, "workloads": load_model, "mappers": load_mapper}
    loads[kind](name)
    return shown(document.path)


def _is_inner(kind: str, folder: str, key: str, name: str) -> bool:
    """Whether a name or file means the kind below: by its name, its folder, or a key that only those files have."""
    if name in names(folder) and name not in names(kind):
        return True
    try:
        document: Document = fetch(kind, name)
    except CatalogError:
        return f"/{folder.rpartition('/')[2]}/" in f"/{name}"
    return key in document.data or folder.rpartition("/")[2] == document.path.parent.name
