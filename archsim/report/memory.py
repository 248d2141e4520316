"""The memory plan line by line: weights by class, KV cache by layer, and the rest, with formulas."""

from collections.abc import Collection
from dataclasses import fields, replace

from archsim.explore.evaluate import SteadyAnswer
from archsim.explore.scenario import Scenario
from archsim.mapping.memory import STREAMED, weight_bytes, widest_of
from archsim.mapping.pipeline import stages
from archsim.report.formulas import Line, Term, checked, least, line, named, total
from archsim.report.point import Point, single
from archsim.report.sums import sequences_term
from archsim.report.words import number
from archsim.serving.steady import HELD
from archsim.units import Format, show
from archsim.workload.lowering import lower
from archsim.workload.model import LatentAttention, Moe, Precision, Recurrent
from archsim.workload.operators import ROLES, OpGraph
from archsim.workload.step import decode

NOTHING = Format("none", 0)
NAMES = {"kv": "KV cache"}  # of parts of the memory plan, where the plan's own word is short
MEANINGS = {
    "weights": "parameters of one rank",
    "kv": "keys and values of the sequences a rank holds",
    "state": "recurrent state of the sequences a rank holds, whatever their length",
    "activations": "transient tensors of the largest step",
    "buffers": "captured graphs and communication buffers of the runtime",
    "drafter": "what writes drafts: weights of one rank, and its cache",
    "reserve": "what the runtime leaves unused",
}


def memory_lines(point: Point) -> list[Line]:
    """What one chip holds: classes of weights, the KV cache, the rest, and the sum against the capacity."""
    plan = point.alone.answer.memory
    parts = {name: single(value) for name, value in plan.parts.items()}
    weights = weight_lines(point.scenario)
    lines = [*weights, _sum("weights", weights, parts["weights"], _stage(point)), *_kv_lines(point, parts["kv"])]
    lines += _state_lines(point, parts["state"])
    lines.append(checked("activations", [_activations(point)], parts["activations"], "bytes", MEANINGS["activations"]))
    lines.append(Line("buffers", None, parts["buffers"], "bytes", MEANINGS["buffers"]))
    lines.append(checked("reserve", _reserve(point, parts), parts["reserve"], "bytes", MEANINGS["reserve"]))
    if "drafter" in parts:
        lines.append(Line("drafter", None, parts["drafter"], "bytes", MEANINGS["drafter"]))
    held = {name: size for name, size in parts.items() if size or name != "state"}
    needed = total([named(NAMES.get(name, name), size, "bytes") for name, size in held.items()])
    capacity = single(plan.capacity)
    free = capacity - needed.value
    whole, used = named("capacity", capacity, "bytes", 7), named("in all", needed.value, "bytes", 7)
    left = line("free", whole - used, "bytes") if free >= 0 else line("missing", used - whole, "bytes")
    return [*lines, line("in all", needed, "bytes"), left]


def _sum(name: str, lines: list[Line], value: float, stage: str) -> Line:
    if not lines:
        return Line(name, None, value, "bytes", f"parameters of one rank of {stage}")
    return checked(
        name, [total([named(item.name, item.value, "bytes") for item in lines])], value, "bytes", MEANINGS[name]
    )


def weight_lines(scenario: Scenario) -> list[Line]:
    """Bytes of each class of weights on one rank: parameters x bytes x the share of a rank.

    With pipeline stages the fullest one decides; its weights are not told apart.
    """
    model, precision, split = scenario.model, scenario.precision, scenario.split
    if single(split.pipeline) > 1:
        return []
    graph = lower(model, decode(1, 1, model.clips), precision)
    partner = scenario.partner
    away = partner.roles if partner is not None and partner.job == "roles" else frozenset()
    roles = frozenset(ROLES) - away
    counts = graph.parameters() if not away else _counted(graph, roles)
    only = {item.name: NOTHING for item in fields(Precision)}
    router = single(weight_bytes(model, Precision(**only), split, roles=roles))
    copies = _copies(scenario)
    lines = []
    for tensor, count in counts.items():
        fmt = precision.of(tensor)
        alone = replace(Precision(**only), **({} if tensor == "router" else {tensor: fmt}))
        size = single(weight_bytes(model, alone, split, copies.value, roles)) - (0.0 if tensor == "router" else router)
        whole = named("parameters", count) * named(fmt.name, fmt.bytes, "bytes")
        whole = whole * copies if tensor == "experts" and copies.value > 1 else whole
        name = "other weights" if tensor == "weights" else tensor
        lines.append(checked(name, [_shared(whole, size)], size, "bytes"))
    return lines


def _counted(graph: OpGraph, roles: Collection[str]) -> dict[str, float]:
    """Parameters by class of the operators of some roles."""
    found: dict[str, float] = {}
    for operator, count in graph.everything():
        for tensor, size in operator.parameters.items() if operator.role in roles else ():
            found[tensor] = found.get(tensor, 0.0) + size * count
    return found


def partner_memory_lines(point: Point) -> list[Line]:
    """What one chip of another pool holds, part by part, against its capacity."""
    plan = point.alone.answer.memory.partner
    if plan is None:
        return []
    parts = {name: single(value) for name, value in plan.parts.items() if single(value)}
    lines = [Line(NAMES.get(name, name), None, size, "bytes", MEANINGS.get(name, "")) for name, size in parts.items()]
    needed = total([named(NAMES.get(name, name), size, "bytes") for name, size in parts.items()])
    whole, used = named("capacity", single(plan.capacity), "bytes", 7), named("in all", needed.value, "bytes", 7)
    left = line("free", whole - used, "bytes") if whole.value >= used.value else line("missing", used - whole, "bytes")
    return [*lines, line("in all", needed, "bytes"), left]


def _copies(scenario: Scenario) -> Term:
    """Copies of an expert, the redundant ones shared among all."""
    experts = max(
        (block.ffn.experts for block in scenario.model.blocks.values() if isinstance(block.ffn, Moe)), default=0
    )
    redundant = scenario.options.redundant_experts
    return (
        1 + named("redundant", redundant) / named("experts", experts) if redundant and experts else named("copies", 1.0)
    )


def _shared(whole: Term, size: float) -> Term:
    """The part of one rank: a whole number of ranks where they share evenly."""
    ratio = whole.value / size if size else 1.0
    share = size / whole.value if whole.value else 1.0
    even = abs(ratio - round(ratio)) < 1e-9 * ratio
    return whole / named("ranks", round(ratio)) if even else whole * Term(share, "share of a rank", number(share, 6))


def _kv_lines(point: Point, kv: float) -> list[Line]:
    """KV bytes of a token, of a sequence, and of all sequences of a rank, on the fullest pipeline stage."""
    context = _context(point)
    counts = _counts(point, context)
    found = [_block(point, name, count, context) for name, count in counts.items()]
    blocks = [pair for pairs in found for pair in pairs]
    if not blocks:
        return [Line("KV cache", None, kv, "bytes", "no layer caches tokens")]
    split = point.scenario.split
    per_sequence = single(point.alone.answer.memory.kv_per_sequence)
    where = "on one rank" if single(split.pipeline) == 1 else f"on one rank of {_stage(point)}"
    lines = [line("KV a token", total([term for term, _ in blocks]), "bytes", where)]
    if isinstance(point.alone.answer, SteadyAnswer):
        lines.append(_held(point, context))
    held = total([term * tokens for term, tokens in blocks])
    lines.append(checked("KV a sequence", [held], per_sequence, "bytes"))
    rank = sequences_term(point)
    term = named("KV a sequence", per_sequence, "bytes") * rank
    behind = point.alone.answer.memory.backing
    if behind is not None:
        note = f"of {show(single(behind), 'bytes')} behind the chip, none of it on the chip"
        lines.append(line("KV behind it", term, "bytes", note))
    lines.append(checked("KV cache", [term], kv, "bytes", MEANINGS["kv"]))
    return lines


def _stage(point: Point) -> str:
    """Which pipeline stage is meant: an LPU's are equally full."""
    return "any stage" if point.scenario.chip.kind == "lpu" else "the fullest stage"


def _counts(point: Point, context: float) -> dict[str, float]:
    """Layers of each kind on the pipeline stage that holds most of the KV cache; an LPU's stages share evenly."""
    model, count = point.scenario.model, single(point.scenario.split.pipeline)
    if point.scenario.chip.kind == "lpu":
        (whole,) = stages(model.sequence, 1)
        return {name: layers / count for name, layers in whole.items() if name in model.blocks}
    cut = stages(model.sequence, round(count))
    layers = [{name: float(number) for name, number in held.items() if name in model.blocks} for held in cut]
    return max(layers, key=lambda held: sum(_bytes_held(point, name, context) * count for name, count in held.items()))


def _bytes_held(point: Point, name: str, context: float) -> float:
    return sum(term.value * tokens.value for term, tokens in _block(point, name, 1, context))


def _context(point: Point) -> float:
    """Tokens a sequence holds; in the steady answer the whole prompt and part of the output."""
    scenario = point.scenario
    if point.mode == "step" and scenario.context is not None:
        return single(scenario.context)
    if scenario.input is None or scenario.output is None:
        return 0.0
    return single(scenario.input) + HELD * single(scenario.output)


def _held(point: Point, context: float) -> Line:
    scenario = point.scenario
    if scenario.input is None or scenario.output is None:
        return Line("context", None, context, "tokens")
    term = named("input", single(scenario.input)) + named("held", HELD) * named("output", single(scenario.output))
    return line("context", term, "tokens", "that a running sequence holds on average, with headroom")


def _block(point: Point, name: str, count: float, context: float) -> list[tuple[Term, Term]]:
    """KV bytes a token of all layers of one kind with the tokens that such a layer holds; index keys apart."""
    attention = point.scenario.model.blocks[name].attention
    if attention is None or isinstance(attention, Recurrent):
        return []
    stored = attention.stored(point.scenario.precision.kv)
    size, layers = named("KV", stored.bytes, "bytes"), named("layers", count)
    tokens = named("context", context)
    if attention.held < context:
        tokens = least(tokens, named("window", attention.held))
    ranks = single(point.scenario.split.context)
    if isinstance(attention, LatentAttention):
        latent = (named("latent", attention.latent) + named("rope", attention.rope)) * size * layers
        index = attention.index
        keys = [(named("index key", index.bytes, "bytes") * layers, tokens)] if index else []
        return [(latent / named("CP", ranks) if ranks > 1 else latent, tokens), *keys]
    heads, tensor = named("KV heads", attention.kv_heads), named("TP", single(point.scenario.split.tensor))
    if tensor.value > attention.kv_heads:
        tensor = least(tensor, heads)
    shared = heads / tensor if tensor.value > 1 else heads
    width = 2 * named("width", attention.width)
    if attention.value_width != attention.width:
        width = named("key width", attention.width) + named("value width", attention.value_width)
    term = shared * width * size * layers
    return [(term / named("CP", ranks) if ranks > 1 else term, tokens)]


def _state_lines(point: Point, state: float) -> list[Line]:
    """The constant state of all sequences of a rank, if the model has any."""
    if not state:
        return []
    each = named("state a sequence", single(point.alone.answer.memory.state_per_sequence), "bytes")
    return [
        Line("state a sequence", None, each.value, "bytes", "recurrent and convolution state on one rank"),
        checked("state", [each * sequences_term(point)], state, "bytes", MEANINGS["state"]),
    ]


def _activations(point: Point) -> Term:
    model, runtime = point.scenario.model, point.scenario.runtime
    widest = widest_of(model)
    hidden = 4 * named("hidden", model.hidden)
    own = named("widest", widest) / named("TP", single(point.scenario.split.tensor))
    streamed = point.scenario.chip.kind == "lpu"
    rows = named("tokens on chip", STREAMED) if streamed else named("chunk", runtime.chunk)
    return rows * named("activation", 2.0, "bytes") * (hidden + own)


def _reserve(point: Point, parts: dict[str, float]) -> list[Term]:
    used = named("utilization", point.scenario.runtime.utilization)
    capacity = named("capacity", single(point.alone.answer.memory.capacity), "bytes")
    rest = named("activations", parts["activations"], "bytes") + named("buffers", parts["buffers"], "bytes")
    return [(1 - used) * capacity - rest]
