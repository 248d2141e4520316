"""Every kernel explained: FLOPs, bytes, and each part of its time with its numbers."""

from collections.abc import Callable
from dataclasses import dataclass
from math import ceil

from archsim.arrays import array
from archsim.chip.constants import Constants, Elementwise, Gemm, Indexer, Machine, StateScan, StateUpdate
from archsim.chip.model import Chip
from archsim.engine.experts import load
from archsim.mapping.plan import Kernel
from archsim.report.formulas import Line, Term, checked, least, line, named, quantity, total
from archsim.report.machines import bandwidth_terms, fixed_terms, latency_terms
from archsim.report.point import single
from archsim.report.rests import constants_of
from archsim.report.steps import KernelTime
from archsim.report.words import percent

SENT = {"all_reduce", "all_to_all"}


@dataclass(frozen=True, eq=False)
class KernelLines:
    """The explanation of one kernel: a heading and its lines."""

    item: KernelTime
    heading: str
    lines: tuple[Line, ...]


def explain_kernel(item: KernelTime, chip: Chip, stack: str, span: float) -> KernelLines:
    """FLOPs, bytes, the parts in the order in which they count, and the time of one run and of all."""
    kernel = item.kernel
    constants = constants_of(kernel, chip, stack)
    lines = _work(item)
    for part, seconds in item.parts.items():
        lines.append(_part(part, seconds, item, chip, constants))
    lines += _sums(item, span)
    formats = f"{kernel.weight.name} {_holds(kernel)}, {kernel.input.name} input, computed in {kernel.compute}"
    words = [kernel.kind.replace("_", " "), *([formats] if item.flops else []), _runs(item)]
    return KernelLines(item, f"{item.label}: {'; '.join(words)}", tuple(lines))


def _runs(item: KernelTime) -> str:
    """How often it runs: "once", "80 runs", "61 runs (dense, moe)"."""
    blocks = f" ({', '.join(item.blocks)})" if len(item.blocks) > 1 else ""
    return "once" if item.runs == 1 else f"{item.runs} runs{blocks}"


def _holds(kernel: Kernel) -> str:
    if kernel.kind in ("state_update", "state_scan"):
        return "state"
    if kernel.kind == "indexer":
        return "index keys"
    return "KV cache" if "generation" in kernel.kind else "keys and values" if "context" in kernel.kind else "weights"


def _work(item: KernelTime) -> list[Line]:
    lines = []
    if item.flops:
        lines.append(checked("FLOP", [FLOPS[item.kernel.kind](item.kernel)], item.flops, "flops"))
    if item.kernel.kind == "transfer":
        lines.append(checked("bytes sent", [_travels(item.kernel)], item.link_bytes, "bytes", "of all chips together"))
    elif item.kernel.kind in SENT:
        lines.append(checked("bytes sent", [_sent(item.kernel)], item.link_bytes, "bytes", "each rank"))
    elif item.bytes:
        lines.append(checked("bytes", [BYTES[item.kernel.kind](item.kernel)], item.bytes, "bytes"))
    return lines


def _sums(item: KernelTime, span: float) -> list[Line]:
    parts = total([named(name, seconds, "time") for name, seconds in item.parts.items()])
    rates = [quantity(item.flops / item.seconds, "rate")] if item.flops else []
    rates += [quantity(item.bytes / item.seconds, "bandwidth")] if item.bytes else []
    note = "; ".join((f"{percent(item.total / span)} of the step", *rates))
    whole = named("one run", item.seconds, "time") * named("runs", item.runs)
    one = Line("one run", parts, item.seconds, "time")
    return (
        [one, line("all runs", whole, "time", note)]
        if item.runs > 1
        else [Line("time", parts, item.seconds, "time", note)]
    )


def _part(part: str, seconds: float, item: KernelTime, chip: Chip, constants: Constants | None) -> Line:
    """A part of the time, with its formula where it has a short one that gives it."""
    if part == "link":
        return checked("link", _wires(item.kernel, chip), seconds, "time")
    if part == "link_latency":
        return checked("link_latency", latency_terms(item.kernel, chip), seconds, "time")
    if part == "fixed":
        return checked("fixed", _fixed(item.kernel, constants), seconds, "time")
    names = list(item.parts)
    level = sum(item.parts[name] for name in names[: names.index(part) + 1])
    above = "" if names.index(part) == 0 else f"{quantity(seconds, 'time')} more than what stands above"
    found = checked(part, _levels(part, item, chip, constants), level, "time", above)
    return found if found.term else Line(part, None, seconds, "time")


def _levels(part: str, item: KernelTime, chip: Chip, constants: Constants | None) -> list[Term]:
    """Formulas that a level of the chain of parts may have."""
    flops, moved = named("FLOP", item.flops, "flops"), named("bytes", item.bytes, "bytes")
    bandwidth = named("bandwidth", single(chip.memory.bandwidth), "bandwidth")
    if part == "compute":
        peak = single(chip.matrix[item.kernel.compute])
        return [flops / named(f"{item.kernel.compute} peak", peak, "rate")]
    if part == "memory":
        return [moved / bandwidth]
    if part == "bandwidth" and isinstance(constants, Machine):
        return bandwidth_terms(item.kernel, chip, constants, moved, bandwidth)
    sustained = getattr(constants, "memory", None)
    if part == "bandwidth" and sustained:
        return [moved / (bandwidth * named("sustained share", sustained))]
    return []


def _fixed(kernel: Kernel, constants: Constants | None) -> list[Term]:
    if isinstance(constants, Elementwise | StateUpdate | StateScan | Indexer):
        return [named("fixed", constants.fixed, "time")]
    if not isinstance(constants, Gemm):
        return fixed_terms(kernel, constants)
    start = named("t0", constants.fixed, "time")
    k = single(kernel.dims["k"])
    deep = named("k", ceil(k / constants.granule) * constants.granule) / 64 * named("depth", constants.depth, "time")
    return [start + deep] if constants.depth else [start]


# FLOPs and bytes, as the engine counts them


def _dims(kernel: Kernel, *names: str) -> list[Term]:
    return [named(name.replace("_", " "), single(kernel.dims[name])) for name in names]


def _size(name: str, value: float) -> Term:
    return named(name, value, "bytes")


def _gemm_flops(kernel: Kernel) -> Term:
    m, n, k = _dims(kernel, "m", "n", "k")
    return 2 * m * n * k * _dims(kernel, "batch")[0] if "batch" in kernel.dims else 2 * m * n * k


def _gemm_bytes(kernel: Kernel) -> Term:
    m, n, k = _dims(kernel, "m", "n", "k")
    weight, entry, out = _size("weight", kernel.weight.bytes), _size("input", kernel.input.bytes), _size("output", 2.0)
    moved = n * k * weight + m * (k * entry + n * out)
    return _dims(kernel, "batch")[0] * moved if "batch" in kernel.dims else moved


def _generation_flops(kernel: Kernel) -> Term:
    tokens, queries, heads, width, value = _dims(kernel, "tokens", "queries", "heads", "width", "value")
    return 2 * tokens * queries * heads * (width + value)


def _generation_bytes(kernel: Kernel) -> Term:
    sequences, queries, tokens, heads, width, value = _dims(
        kernel, "sequences", "queries", "tokens", "heads", "width", "value"
    )
    cache = _size("KV", kernel.weight.bytes)
    elements = width if kernel.kind == "mla_generation" else _dims(kernel, "kv_heads")[0] * (width + value)
    return tokens * elements * cache + sequences * queries * heads * (width + value) * _size("in and out", 2.0)


def _context_flops(kernel: Kernel) -> Term:
    pairs, heads, width, value = _dims(kernel, "pairs", "heads", "width", "value")
    return 2 * pairs * heads * (width + value)


def _context_bytes(kernel: Kernel) -> Term:
    tokens, prefix, heads, kv_heads, width, value = _dims(
        kernel, "tokens", "prefix", "heads", "kv_heads", "width", "value"
    )
    requests, window = _dims(kernel, "requests", "window")
    seen = prefix if prefix.value <= requests.value * window.value else least(prefix, requests * window)
    return (tokens * heads + (tokens + seen) * kv_heads) * (width + value) * _size("in and out", 2.0)


def _experts_flops(kernel: Kernel) -> Term:
    tokens, top_k, hidden, width, matrices, ranks = _dims(
        kernel, "tokens", "top_k", "hidden", "width", "matrices", "expert_ranks"
    )
    return 2 * tokens * top_k * hidden * width * matrices / ranks


def _experts_bytes(kernel: Kernel) -> Term:
    hidden, width, matrices = _dims(kernel, "hidden", "width", "matrices")
    now = load(kernel.dims)
    touched, present = (
        named(f"{name} {noun}", single(now[name])) for name, noun in (("touched", "experts"), ("present", "tokens"))
    )
    weights = touched * matrices * hidden * width * _size("weight", kernel.weight.bytes)
    return weights + 2 * present * hidden * _size("in and out", 2.0)


def _moved(kernel: Kernel) -> Term:
    return _dims(kernel, "tokens")[0] * _size("bytes a token", single(kernel.dims["bytes"]))


def _state_flops(kernel: Kernel) -> Term:
    if kernel.kind == "state_scan":
        tokens, heads, work = _dims(kernel, "tokens", "heads", "work")
        return tokens * heads * work
    sequences, queries, heads, work = _dims(kernel, "sequences", "queries", "heads", "work")
    return sequences * queries * heads * work


def _update_bytes(kernel: Kernel) -> Term:
    sequences, queries, heads, elements = _dims(kernel, "sequences", "queries", "heads", "elements")
    moved = _size("in and out", single(kernel.dims["bytes"]))
    return sequences * heads * (2 * elements * _size("state", kernel.weight.bytes) + queries * moved)


def _scan_bytes(kernel: Kernel) -> Term:
    requests, tokens, heads, elements = _dims(kernel, "requests", "tokens", "heads", "elements")
    state = requests * elements * _size("state", kernel.weight.bytes)
    states = 2 * state if single(kernel.dims["prefix"]) > 0 else state
    return heads * (tokens * _size("in and out", single(kernel.dims["bytes"])) + states)


def _indexer_flops(kernel: Kernel) -> Term:
    pairs, heads, width = _dims(kernel, "pairs", "heads", "width")
    return 2 * pairs * heads * width


def _indexer_bytes(kernel: Kernel) -> Term:
    keys, rows, heads, width = _dims(kernel, "keys", "rows", "heads", "width")
    return keys * width * _size("index key", kernel.weight.bytes) + rows * heads * width


def _sent(kernel: Kernel) -> Term:
    ranks, size = _dims(kernel, "ranks")[0], _size("message", single(kernel.dims["bytes"]))
    once = (ranks - 1) / ranks * size
    return 2 * once if kernel.kind == "all_reduce" else once


FLOPS: dict[str, Callable[[Kernel], Term]] = {
    "gemm": _gemm_flops,
    "generation_attention": _generation_flops,
    "mla_generation": _generation_flops,
    "context_attention": _context_flops,
    "mla_context": _context_flops,
    "experts": _experts_flops,
    "state_update": _state_flops,
    "state_scan": _state_flops,
    "indexer": _indexer_flops,
}

BYTES: dict[str, Callable[[Kernel], Term]] = {
    "gemm": _gemm_bytes,
    "generation_attention": _generation_bytes,
    "mla_generation": _generation_bytes,
    "context_attention": _context_bytes,
    "mla_context": _context_bytes,
    "experts": _experts_bytes,
    "elementwise": _moved,
    "state_update": _update_bytes,
    "state_scan": _scan_bytes,
    "indexer": _indexer_bytes,
}


def _travels(kernel: Kernel) -> Term:
    copies = named("copies", single(kernel.dims["copies"]))
    return copies * _size("activations", single(kernel.dims["bytes"]) / copies.value)


def _exchanges(kernel: Kernel, ranks: float, inside: Term, size: Term, chip: Chip) -> list[Term]:
    """All copies of a token apart, or once to each rank and each domain that has any of its experts."""
    everyone, copies = named("ranks", ranks), single(kernel.dims.get("copies", array(1.0)))
    link, out = named("link", single(chip.links["scale_up"].bandwidth), "bandwidth"), chip.links.get("scale_out")
    each = size / named("copies", copies)
    met = named("ranks met", ranks * (1.0 - (1.0 - 1.0 / ranks) ** copies))
    ways = [(inside - 1) / everyone * size / link, met * (inside - 1) / inside * each / link]
    if out is None or ranks <= inside.value:
        return ways
    network = named("network", single(out.bandwidth), "bandwidth")
    many = ranks / inside.value
    domains, crossed = named("domains", many), named("domains met", many * (1.0 - (1.0 - 1.0 / many) ** copies))
    return [
        *ways,
        (everyone - inside) / everyone * size / network,
        crossed * (domains - 1) / domains * each / network,
    ]


def _wires(kernel: Kernel, chip: Chip) -> list[Term]:
    """What the least time of a collective's bytes may be: all at once, in two halves, or through the switch."""
    up, out = chip.links.get("scale_up"), chip.links.get("scale_out")
    if up is None:
        return []
    if kernel.kind == "transfer":
        return [_travels(kernel) / named("narrower end", single(kernel.dims["bandwidth"]), "bandwidth")]
    ranks, size = single(kernel.dims["ranks"]), _size("message", single(kernel.dims["bytes"]))
    inside = named("ranks", min(ranks, up.domain))
    link = named("link", single(up.bandwidth), "bandwidth")
    if kernel.kind == "all_to_all":
        return _exchanges(kernel, ranks, named("domain", inside.value), size, chip)
    ways = [(inside - 1) * size / link, 2 * (inside - 1) / inside * size / link, (1 + 1 / inside) * size / link]
    if out is None or ranks <= up.domain:
        return ways
    nodes = named("nodes", ceil(ranks / up.domain))
    across = 2 * (nodes - 1) / nodes * size / inside / named("network", single(out.bandwidth), "bandwidth")
    return [way + across for way in ways]
