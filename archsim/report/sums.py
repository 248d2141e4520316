"""From kernels to layers, steps, tokens, dollars and memory: every sum with its numbers."""

from collections import Counter

from archsim.economics.money import Rate, wall_power
from archsim.economics.terms import HOUR, YEAR_HOURS, Terms, recovery_factor
from archsim.explore.bill import shares
from archsim.explore.evaluate import SteadyAnswer, StepAnswer, chip_rate
from archsim.report.formulas import CLOSE, Line, Term, checked, greatest, line, named, quantity, rounded_up, total
from archsim.report.point import Point, single
from archsim.report.steps import MIXED, PREFILL, KernelTime, StepTime
from archsim.serving.steady import expert_layers


def layer_lines(step: StepTime) -> list[Line]:
    """Kernels of each block summed up to one layer of it, less what micro-batches hide of one another."""
    lines = []
    for block, (period, _) in step.periods.items():
        own = [item for item in step.kernels if block in item.blocks and item.seconds]
        if own:
            lines.append(_layer_line(block, own, period))
    return lines


def _layer_line(block: str, items: list[KernelTime], period: float) -> Line:
    """One layer of a block; micro-batches run the same kernels, so that one of them is written out."""
    counts = Counter((item.label, item.seconds) for item in items)
    (times,) = set(counts.values()) if len(set(counts.values())) == 1 else (0,)
    terms = [named(name, seconds, "time") for name, seconds in (counts if times else counts.elements())]
    whole = named("micro-batches", times) * total(terms) if times > 1 else total(terms)
    hidden = whole.value - period
    overlapped = whole - named("overlapped", hidden, "time") if hidden > CLOSE * period else whole
    return checked(block, [whole, overlapped], period, "time")


def host_line(point: Point, step: StepTime) -> Line:
    """The host's share of a step before its kernels start."""
    if step.title == MIXED:
        return Line("host", None, step.host, "time", "interpolated, as all of this step")
    host = point.scenario.runtime.host
    term = named("step", host.step, "time")
    if step.title == PREFILL:
        term = term + named("request", host.request, "time") * 1
    else:
        rows = named("sequence", host.sequence, "time") * named("sequences", _sequences(point))
        batches = point.scenario.options.micro_batches
        if step.other is not None:
            batches = round(single(point.scenario.split.micro_batches))
        term = term + (rows * named("micro-batches", batches) if batches > 1 else rows)
    return checked("host", [term], step.host, "time", "before the first kernel of a step")


def _sequences(point: Point) -> float:
    """Sequences in decode on the busiest rank."""
    kernels = [item for block in point.alone.answer.decode.costs.values() for item, _ in block]
    found = next((kernel.dims["sequences"] for kernel in kernels if "sequences" in kernel.dims), None)
    return 0.0 if found is None else single(found)


def step_lines(point: Point, step: StepTime, name: str) -> list[Line]:
    """Host, blocks and layers summed up to the span of a step, and through pipeline stages to its turnaround."""
    host = host_line(point, step)
    terms = [named("host", step.host, "time")]
    for block, (period, layers) in step.periods.items():
        one = named(block, period, "time")
        terms.append(one * named("layers", layers) if layers > 1 else one)
    everything = total(terms)
    rest = step.span - everything.value
    if abs(rest) > 1e-9 * step.span:
        everything = everything + named("fill and waiting", rest, "time", 6)
    if step.other is not None and step.turnaround != step.span:
        note = "from one token to the next, when micro-batches roll from one step into the next"
        first = checked("one step", [everything], step.span, "time", "with filling and draining")
        return [host, first, Line(name, None, step.turnaround, "time", note)]
    if step.stages == 1:
        return [host, checked(name, [everything], step.span, "time")]
    return [host, checked("micro-batch", [everything], step.span, "time"), *_stage_lines(step, name)]


def _stage_lines(step: StepTime, name: str) -> list[Line]:
    """From one micro-batch to the time between two tokens, through pipeline stages."""
    stages = named("stages", step.stages)
    latency = named("micro-batch", step.span, "time") + (stages - 1) * named("hop", step.hop, "time")
    served = stages * named("slowest stage", step.stage, "time")
    longest = greatest(named("latency", step.latency, "time"), named("all micro-batches", served.value, "time"))
    return [
        checked("latency", [latency], step.latency, "time", "of one micro-batch through all stages"),
        line("all stages", served, "time", "micro-batches through the slowest stage"),
        checked(name, [longest], step.turnaround, "time", "from one token of a sequence to its next"),
    ]


def rate_lines(point: Point) -> list[Line]:
    """From the step to what users and operators count."""
    answer = point.alone.answer
    return _step_rates(answer) if isinstance(answer, StepAnswer) else _steady_rates(answer)


def _step_rates(a: StepAnswer) -> list[Line]:
    tpot, batch = named("TPOT", single(a.tpot), "time"), named("sequences", single(a.batch))
    chunks = named("chunks", single(a.chunks))
    stage = named(
        "slowest stage" if single(a.deployment.split.pipeline) > 1 else "prefill step", single(a.prefill.stage), "time"
    )
    prompt = named("ranks", single(a.groups)) * named("tokens", single(a.context)) / (stage * chunks)
    chips = named("chips", single(a.scenario.all_chips))
    return [
        *_draft_lines(a),
        line("user", 1 / tpot, "token_rate", "interactivity"),
        checked("throughput", [batch / tpot], single(a.output_rate), "token_rate", "output tokens of the system"),
        line("a chip", named("throughput", single(a.output_rate), "token_rate") / chips, "token_rate"),
        checked("TTFT", [_first_token(a)], single(a.ttft), "time", "of a lone request"),
        checked("prompt", [prompt], single(a.input_rate), "token_rate", "prompt tokens, if the chips did nothing else"),
    ]


def _draft_lines(a: StepAnswer) -> list[Line]:
    """From the step to the time of a token, where drafts give several tokens a step."""
    speculation = a.scenario.speculation
    if speculation.drafts == 0:
        return []
    tokens = single(a.tokens_per_step)
    step = named("step", single(a.decode.turnaround), "time")
    told = speculation.acceptance
    note = f"{speculation.drafts} drafts, accepted with probability {told}; the step itself gives one token"
    return [
        Line("a step gives", None, tokens, "tokens", note),
        checked("TPOT", [step / named("tokens a step", tokens)], single(a.tpot), "time", "mean"),
    ]


def _first_token(a: StepAnswer) -> Term:
    """The chunks of a prompt, one after another, and the host."""
    host, chunks = a.deployment.runtime.host, single(a.chunks)
    first = named("prefill step", single(a.prefill.latency), "time")
    if chunks > 1:
        first = first + (named("chunks", chunks) - 1) * named("stage", single(a.prefill.stage), "time")
    first = first + named("arrival", host.arrival, "time")
    weighted = expert_layers(a.deployment)
    if weighted and host.expert_layer:
        first = first + named("expert layer", host.expert_layer, "time") * named("weighted expert layers", weighted)
    return first


def _steady_rates(a: SteadyAnswer) -> list[Line]:
    loop = a.loop
    plain = single(loop.decode.turnaround)
    step, tpot = named("decode step", plain, "time"), named("TPOT", single(a.tpot), "time")
    added = named("prefill of other requests", single(a.tpot) - plain, "time")
    ttft, output = named("TTFT", single(a.ttft), "time"), named("output", single(a.output))
    rate = single(loop.requests_per_second)
    requests = named("clients", single(a.batch)) / (ttft + output * tpot)
    rates = named("requests", rate, "requests/s")
    chips = named("chips", single(a.scenario.all_chips))
    return [
        line("TPOT", step + added, "time", "mean"),
        Line("TTFT", None, ttft.value, "time", "its own prefill, the queue before it and the host, as a fixed point"),
        line("user", 1 / tpot, "token_rate", "interactivity"),
        checked("requests", [requests], rate, "requests/s", "each client sends its next when it has its answer"),
        line("throughput", rates * output, "token_rate", "output tokens of the system"),
        line("a chip", named("throughput", single(a.output_rate), "token_rate") / chips, "token_rate"),
        line("prompt", rates * named("input", single(a.input)), "token_rate", "prompt tokens of the system"),
        Line("prefill", None, single(loop.prefill_share), "of the time", "share of the time that prefill adds"),
    ]


# Dollars


def dollar_lines(point: Point) -> list[Line]:
    """From the price of a chip to that of a token."""
    answer, terms = point.alone.answer, point.scenario.terms
    rate = chip_rate(answer)
    hour = single(rate.hourly)
    chips = single(point.scenario.chips)
    system: Term = named("chips", chips) * named("chip", hour, "USD/h")
    lines = [*_chip_lines(point, rate, terms)]
    for pool in shares(answer)[1:]:
        note = f"of pool {pool.pool}, by {pool.rate.by}"
        lines.append(Line("other chip", None, single(pool.rate.hourly), "USD/h", note))
        other = named("chips", single(pool.count)) * named("other chip", single(pool.rate.hourly), "USD/h")
        system = system + other
    lines.append(line("system", system, "USD/h"))
    second = named("system", system.value, "USD/h") / named("hour", HOUR, "s")
    million = named("million", 1e6)
    out = named("output", single(answer.output_rate), "token_rate")
    prompt = named("input", single(answer.input_rate), "token_rate")
    if isinstance(answer, StepAnswer):
        lines.append(
            checked("output", [second / out * million], point.metric("output_cost"), "USD", "per million output tokens")
        )
        lines.append(
            checked(
                "input", [second / prompt * million], point.metric("input_cost"), "USD", "per million prompt tokens"
            )
        )
        return lines
    share = named("prefill share", single(answer.loop.prefill_share))
    lines.append(line("blended", second / (prompt + out) * million, "USD", "per million tokens, in and out"))
    lines.append(line("output", second * (1 - share) / out * million, "USD", "per million output tokens"))
    lines.append(line("input", second * share / prompt * million, "USD", "per million prompt tokens"))
    return lines


def _chip_lines(point: Point, rate: Rate, terms: Terms) -> list[Line]:
    """What one chip costs an hour, by rent or by capital."""
    price = point.scenario.chip.price
    used = named("utilization", terms.utilization)
    if rate.by == "rent":
        rent = terms.rent if terms.rent is not None else single(price.rent) if price.rent is not None else 0.0
        origin = "the scenario's" if terms.rent is not None else f"the chip's own, as of {price.as_of}"
        return [
            checked("chip", [named("rent", rent, "USD/h") / used], single(rate.hourly), "USD/h", f"rent is {origin}")
        ]
    capital = terms.capital if terms.capital is not None else single(price.system) if price.system is not None else 0.0
    yearly = named("capital", capital, "USD") / (named("hours a year", YEAR_HOURS) * used)
    factor = named("recovery", single(recovery_factor(terms.interest, terms.years)))
    watts = (
        named("board", single(point.alone.answer.power), "power") + named("overhead", terms.overhead, "power")
    ) * named("PUE", terms.pue)
    facility = single(wall_power(point.alone.answer.power, terms))
    energy = named("wall power", facility / 1e3, "kW") * named("electricity", terms.electricity, "USD/kWh")
    parts = {name: single(value) for name, value in rate.parts.items()}
    note = f"{quantity(terms.years, 'years')} at {100 * terms.interest:g} % a year: r / (1 - (1 + r)^-n)"
    return [
        checked("capital", [yearly * factor], parts["capital"], "USD/h", note),
        checked("operation", [yearly * named("operation", terms.operation)], parts["operation"], "USD/h"),
        checked("wall power", [watts], facility, "power"),
        checked("power", [energy], parts["power"], "USD/h"),
        line("chip", total([named(name, value, "USD/h") for name, value in parts.items()]), "USD/h"),
    ]


def energy_line(point: Point) -> Line:
    """Facility energy of an output token."""
    answer, terms = point.alone.answer, point.scenario.terms
    watts = (named("board", single(answer.power), "power") + named("overhead", terms.overhead, "power")) * named(
        "PUE", terms.pue
    )
    chips = named("chips", single(point.scenario.chips))
    power: Term = watts * chips
    for share in shares(answer)[1:]:
        other = named(f"board of {share.pool}", single(share.watts), "power")
        own = other + named("overhead", share.terms.overhead, "power")
        power = power + own * named("PUE", share.terms.pue) * named("chips", single(share.count))
    joules: Term = power / named("throughput", single(answer.output_rate), "token_rate")
    return checked("energy", [joules], point.metric("energy_per_token"), "energy", "per output token, of the facility")


def sequences_term(point: Point) -> Term:
    """Sequences that the busiest rank holds: ceil(batch / ranks)."""
    split = point.scenario.split
    groups = named("ranks", single(split.groups))
    return rounded_up(named("batch", single(point.alone.answer.batch)) / groups)
