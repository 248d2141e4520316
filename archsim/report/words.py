"""Words for people: values with units, names of plans and precisions, and the answer in a sentence."""

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from archsim.arrays import Array
from archsim.catalog import roots
from archsim.explore.result import METRICS, Result
from archsim.explore.scenario import Scenario, SloFile
from archsim.mapping.split import Split
from archsim.report.point import Point
from archsim.report.steps import StepTime, summary
from archsim.units import show
from archsim.workload.model import Precision


def number(value: float, digits: int = 3) -> str:
    """A plain number with thousands parted: "8,192", "0.0312", "1.5"; "n/a" where it is not finite."""
    if not math.isfinite(value):
        return "n/a"
    if value == round(value) and abs(value) < 1e15:
        return f"{int(value):,}"
    size = abs(value)
    if size < 1e-4 or size >= 1e15:
        return f"{value:.{digits - 1}e}"
    decimals = max(digits - 1 - math.floor(math.log10(size)), 0)
    return f"{value:,.{decimals}f}"


def percent(share: float) -> str:
    """A share of 1: "14 %", "3.2 %", "<0.1 %"."""
    if not math.isfinite(share):
        return "n/a"
    value = 100.0 * share
    if 0 < value < 0.095:
        return "<0.1 %"
    return f"{value:.0f} %" if value >= 9.95 or value == 0 else f"{value:.1f} %"


def dollars(value: float) -> str:
    """An amount of money: "$1.93", "$0.0412", "$23,600"."""
    if not math.isfinite(value):
        return "n/a"
    if value >= 1000:
        return f"${value:,.0f}"
    return f"${value:,.2f}" if value >= 1 or value == 0 else f"${number(value)}"


def token_rate(value: float) -> str:
    """Tokens a second: "3,398 tok/s", "53.1 tok/s"."""
    return f"{number(round(value) if value >= 1000 else value)} tok/s" if math.isfinite(value) else "n/a"


def counted(value: float, noun: str, plural: str = "s") -> str:
    """A number with its noun: "1 chip", "8 chips"."""
    return f"{number(value)} {noun}" if value == 1 else f"{number(value)} {noun}{plural}"


def shown(name: str, value: float) -> str:
    """A metric of METRICS with its unit."""
    dimension = METRICS[name][0]
    if dimension == "token_price":
        return dollars(value)
    if dimension == "token_rate":
        return token_rate(value)
    return show(value, dimension) if dimension else percent(value)


def precision_label(precision: Precision) -> str:
    """Formats of the weights, and of the KV cache where that differs: "fp8", "mxfp4 with bf16 KV cache"."""
    weights = "/".join(dict.fromkeys((precision.weights.name, precision.attention.name, precision.experts.name)))
    return weights if precision.kv.name == weights else f"{weights} with {precision.kv.name} KV cache"


KINDS = {
    "attention_data": "attention DP{:.0f}",
    "expert": "EP{:.0f}",
    "pipeline": "PP{:.0f}",
    "context": "CP{:.0f}",
    "data": "{:.0f} replicas",
}


ABBREVIATIONS = {
    "TP": "tensor parallelism: ranks share heads and widths",
    "attention DP": "groups of ranks that hold different sequences and share the experts",
    "EP": "expert parallelism: ranks hold different experts",
    "PP": "pipeline stages: groups of ranks hold different layers",
    "CP": "ranks that share the tokens of a KV cache",
    "replicas": "whole copies that share nothing",
}


def abbreviations(labels: Iterable[str]) -> str:
    """What the words of some split labels mean, as a caption."""
    words = {part for label in labels for part in re.findall(r"attention DP|[A-Z]P|replicas", label)}
    return " ".join(f"{word}: {meaning}." for word, meaning in ABBREVIATIONS.items() if word in words)


def split_label(degrees: Mapping[str, float]) -> str:
    """A split in the usual words: "TP8", "attention DP64, EP64", "TP4, PP2", "TP4, 2 replicas".

    Of two pools: "attention DP8; other pool TP8, EP8; 3 micro-batches".
    """
    own = {name: value for name, value in degrees.items() if "." not in name}
    other = {name.removeprefix("partner."): value for name, value in degrees.items() if name.startswith("partner.")}
    if other:
        batches = own.get("micro_batches", 1.0)
        turns = f"; {batches:.0f} micro-batches" if batches > 1 else ""
        layers = other.get("pipeline", 1.0)
        pinned = f" for each of {layers:.0f} layers" if layers > 1 else ""
        return f"{split_label(own)}; other pool {split_label({**other, 'pipeline': 1.0})}{pinned}{turns}"
    parts = [words.format(degrees[name]) for name, words in KINDS.items() if degrees.get(name, 1.0) > 1]
    tensor = degrees.get("tensor", 1.0)
    return ", ".join([*([f"TP{tensor:.0f}"] if tensor > 1 or not parts else []), *parts])


def place(file: str) -> str:
    """A file of the catalogue as it is called anywhere: "chips/nvidia/h100-sxm.yaml"; any other as it is."""
    path = Path(file).absolute()
    for kind in ("chips", "workloads", "mappers", "examples"):
        for root in roots(kind):
            if path.is_relative_to(root):
                return f"{kind}/{path.relative_to(root).as_posix()}"
    return file


def split_of(split: Split) -> str:
    """The label of a split of single numbers."""
    return split_label({name: _one(value) for name, value in split.named().items()})


def options_label(scenario: Scenario) -> str:
    """What of the placement is not as by default: "2 micro-batches, sequence parallel"; often empty."""
    options = scenario.options
    words = [counted(options.micro_batches, "micro-batch", "es")] if options.micro_batches > 1 else []
    words += ["sequence parallel norms"] if options.sequence_parallel else []
    words += [counted(options.redundant_experts, "redundant expert")] if options.redundant_experts else []
    words += [f"expert imbalance {number(options.imbalance)}"] if options.imbalance else []
    return ", ".join(words)


def _one(value: Array) -> float:
    return float(value.ravel()[0])


def system_label(scenario: Scenario) -> str:
    """What is deployed: "Llama 3.1 70B in fp8 on 8 x NVIDIA H100 SXM5 80GB with vLLM"; or on both pools."""
    chips = number(float(scenario.chips.ravel()[0]))
    model = f"{scenario.model.name} in {precision_label(scenario.precision)}"
    partner = scenario.partner
    if partner is None:
        return f"{model} on {chips} x {scenario.chip.name} with {scenario.runtime.name}"
    pools = f"{chips} x {scenario.chip.name} ({scenario.system.main_name})"
    other = f"{number(float(partner.count.ravel()[0]))} x {partner.chip.name} ({partner.name})"
    runtimes = " and ".join(dict.fromkeys((scenario.runtime.name, partner.runtime.name)))
    return f"{model} on {pools} and {other} with {runtimes}"


def question_label(point: Point) -> str:
    """What is asked at a point: "64 sequences of 8,192 tokens", "67 clients, 1,155 tokens in and 211 out"."""
    scenario = point.scenario
    batch = _one(point.alone.answer.batch)
    if point.mode == "step" and scenario.context is not None:
        drafts = scenario.speculation.drafts
        drafted = f" with {counted(drafts, 'draft')} a step" if drafts else ""
        return f"{counted(batch, 'sequence')} of {counted(_one(scenario.context), 'token')}{drafted}"
    if scenario.input is None or scenario.output is None:
        return counted(batch, "client")
    cached = f" ({number(_one(scenario.cached))} of them cached)" if _one(scenario.cached) else ""
    sizes = f"{number(_one(scenario.input))} tokens in{cached} and {number(_one(scenario.output))} out"
    return f"{counted(batch, 'client')}, {sizes}"


@dataclass(frozen=True)
class Target:
    """One target of the SLO: what must hold, what is, and whether it does."""

    name: str
    wanted: str
    found: str
    kept: bool

    @property
    def phrase(self) -> str:
        """The target as part of a sentence: "TTFT at most 2.00 s"."""
        return f"{self.name} {self.wanted}"


def targets(slo: SloFile, tpot: float, ttft: float) -> list[Target]:
    """The targets of a scenario against a point's TPOT and TTFT (s)."""
    found = []
    if slo.ttft is not None:
        found.append(Target("TTFT", f"at most {show(slo.ttft, 'time')}", show(ttft, "time"), ttft <= slo.ttft))
    if slo.tpot is not None:
        found.append(Target("TPOT", f"at most {show(slo.tpot, 'time')}", show(tpot, "time"), tpot <= slo.tpot))
    if slo.interactivity is not None:
        wanted = f"at least {token_rate(slo.interactivity)}/user"
        kept = tpot * slo.interactivity <= 1.0
        found.append(Target("interactivity", wanted, f"{token_rate(1.0 / tpot)}/user", kept))
    return found


def slo_label(slo: SloFile) -> str:
    """The SLO as part of a sentence, empty where there is none."""
    return ", ".join(target.phrase for target in targets(slo, 1.0, 1.0))


def slo_sentence(result: Result, spelled: bool = True) -> str:
    """Where the SLO is kept; empty where there is none or nothing is feasible. `spelled` adds its targets."""
    label = slo_label(result.scenario.slo)
    if not label or not result.feasible.any():
        return ""
    label = f" ({label})" if spelled else ""
    kept, points = int(result.meets_slo.sum()), result.meets_slo.size
    if kept == 0:
        if points == 1:
            return f"It misses the SLO{label}."
        what = "numbers of clients" if result.mode == "steady" else "points"
        return f"Every one of the {points} {what} misses the SLO{label}; shown is the best one without it."
    if points == 1:
        return f"It keeps the SLO{label}."
    if result.mode == "steady":
        return f"{kept} of the {points} numbers of clients priced keep the SLO{label}."
    return f"{kept} of the {points} points keep the SLO{label}."


def sentence(point: Point) -> str:
    """The answer of a feasible point in one sentence."""
    metric = point.metric
    user = f"{token_rate(metric('interactivity'))}/user"
    label, question = system_label(point.scenario), question_label(point)
    if point.mode == "step":
        cost = f"{dollars(metric('output_cost'))} per million output tokens"
        text = f"{label} decodes {question} at {user}: TPOT {shown('tpot', metric('tpot'))}"
    else:
        cost = f"{dollars(metric('cost_per_token'))} per million tokens, in and out together"
        text = f"{label} serves {question}, at {user}: TTFT {shown('ttft', metric('ttft'))}"
    return f"{text}, {token_rate(metric('throughput'))} of output, {cost}; {choice_label(point)}."


def why(step: StepTime) -> str:
    """Where the time of a step goes, in one sentence."""
    shares = ", ".join(f"{percent(share)} {name}" for name, share in summary(step) if share >= 0.005)
    part = f"{show(step.span, 'time')} of one micro-batch" if step.stages > 1 else show(step.span, "time")
    if step.other is not None and step.turnaround < step.span:
        part += f" with filling and draining, {show(step.turnaround, 'time')} when steps roll"
    return f"{step.full_title}, {part}: {shares}."


def choice_label(point: Point) -> str:
    """The plan and where it comes from: "chosen: TP8 among 7 proposals"."""
    options = options_label(point.scenario)
    plan = split_of(point.scenario.split) + (f" with {options}" if options else "")
    count = point.result.proposals
    if point.result.scenario.mapper is None:
        return f"the split given: {plan}"
    return f"chosen: {plan} among {count} proposals" if count > 1 else f"{plan}, the only proposal"
