"""What searches over deployments and sizes tell: a sentence and tables, and JSON."""

import json
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from rich.text import Text

from archsim import __version__
from archsim.arrays import array
from archsim.explore.deployments import Deployments, Found
from archsim.explore.deployments import tpot_limit as limit_of
from archsim.explore.played import Proposal, Trial
from archsim.explore.replicas import COARSE, FINE
from archsim.explore.size import Sized
from archsim.mapping.split import Split
from archsim.report.document import clean
from archsim.report.launch import launch_command
from archsim.report.tables import Table
from archsim.report.terminal import console, print_table
from archsim.report.words import abbreviations, counted, dollars, number, precision_label, split_of, token_rate
from archsim.units import show

SCHEMA = 1
BATCHES = f"at every batch to {FINE} sequences a rank and {COARSE} beyond"


def label(one: Found) -> str:
    """A deployment in words: "TP8, EP8, 7 replicas", "decode TP8 on 56, prefill TP4, EP4 on 8"."""
    other = one.split.partner
    if other is None:
        return split_of(one.split)
    own = split_of(replace(one.split, partner=None))
    return f"decode {own} on {one.chips - one.prefill_chips}; prefill {split_of(other)} on {one.prefill_chips}"


def looked_at(found: Deployments) -> str:
    """How many deployments a search looked at."""
    return (
        f"Looked at {counted(found.points, 'point')}: {found.aggregated:,} aggregated and {found.disaggregated:,} "
        f"disaggregated deployments that are legal and fit, each {BATCHES}. Priced: "
        f"{found.priced:,} decode, {found.mixed:,} mixed and {found.prefills:,} prefill steps; what was not priced is "
        "bounded by those. The search is exhaustive: no other deployment of this space is better."
    )


def print_deployments(found: Deployments) -> None:
    """The list of a search, or why it is empty."""
    out, scenario = console(), found.scenario
    system = f"{scenario.model.name} in {precision_label(scenario.precision)} on {found.chips} x {scenario.chip.name}"
    if not found.found:
        out.print(Text(f"No deployment of {system} keeps the SLO.", style="bold"))
        out.print(Text(_nearest(found)))
    else:
        best = found.found[0]
        out.print(
            Text(
                f"{system}: {token_rate(best.per_chip)} a chip with {label(best)}; {token_rate(1.0 / best.tpot)} a "
                f"user, first token after {show(best.ttft, 'time')}.",
                style="bold",
            )
        )
        if line := _against(found):
            out.print(Text(line))
    out.print(Text(looked_at(found)))
    print_table(out, deployment_table(found))


def _nearest(found: Deployments) -> str:
    tpot, ttft = found.fastest
    asked, slo = limit_of(found.scenario.slo), found.scenario.slo
    if not found.priced:
        return (
            "No legal split has memory for the weights and one request; what would help: more chips, narrower weights."
        )
    if tpot > asked:
        return (
            f"The least time of a token of any split is {show(tpot, 'time')}, {show(asked, 'time')} are asked; what "
            f"would help: at most {token_rate(1.0 / tpot)} a user, or chips with more bandwidth."
        )
    first = f"the least TTFT of a pool that prefills is {show(ttft, 'time')}"
    asked_first = "" if slo.ttft is None else f", {show(slo.ttft, 'time')} are asked"
    return (
        f"No deployment keeps TTFT and TPOT at once; {first}{asked_first}; what would help: a looser SLO, more chips."
    )


def _against(found: Deployments) -> str:
    """The best of both kinds beside each other."""
    apart, together = found.best(True), found.best(False)
    if apart is None or together is None:
        kind = "disaggregated" if apart is None else "aggregated"
        return f"No {kind} deployment keeps the SLO."
    ratio = apart.throughput / together.throughput
    return (
        f"The best disaggregated deployment gives {number(ratio)} x the best aggregated one: {label(together)} with "
        f"{token_rate(together.per_chip)} a chip."
    )


def deployment_table(found: Deployments) -> Table:
    """The best of both kinds, best first."""
    heads = ("deployment", "tok/s a chip", "tok/s/user", "TPOT", "TTFT", "in decode", "clients")
    rows = tuple(
        (
            label(one),
            number(one.per_chip),
            number(1.0 / one.tpot),
            show(one.tpot, "time"),
            show(one.ttft, "time"),
            f"{one.batch:,.0f}",
            f"{one.clients:,.0f}",
        )
        for one in found.found
    )
    caption = abbreviations(row[0] for row in rows)
    return Table("The best of both kinds at their best batch", heads, rows, caption, 1, frozenset({0}))


def deployments_json(found: Deployments) -> str:
    """The list of a search as JSON."""
    return _json(
        {
            "command": "deployments",
            "model": found.scenario.model.name,
            "chip": found.scenario.chip.name,
            "chips": found.chips,
            "looked_at": {
                "aggregated": found.aggregated,
                "disaggregated": found.disaggregated,
                "points": found.points,
                "decode_steps": found.priced,
                "mixed_steps": found.mixed,
                "prefill_steps": found.prefills,
            },
            "deployments": [
                {
                    "label": label(one),
                    "disaggregated": one.disaggregated,
                    "prefill_chips": one.prefill_chips,
                    "split": _degrees(one.split),
                    "decoding": one.batch,
                    "clients": one.clients,
                    "tpot": one.tpot,
                    "ttft": one.ttft,
                    "throughput": one.throughput,
                    "throughput_per_chip": one.per_chip,
                }
                for one in found.found
            ],
        }
    )


def _degrees(split: Split) -> dict[str, int]:
    return {name: int(value.max()) for name, value in split.named().items()}


def _json(data: dict[str, Any]) -> str:
    return json.dumps(clean({"schema": SCHEMA, "archsim": __version__, **data}), indent=2) + "\n"


# Sizes


def demand_label(found: Sized) -> str:
    """What is asked: "20 requests/s", "1,000 sessions"."""
    demand = found.demand
    return f"{number(demand.rate)} requests/s" if demand.rate is not None else f"{demand.amount:,.0f} sessions"


def print_sized(found: Sized) -> None:
    """The answer of a size, what was played, and what was looked at; or why there is none and what would help."""
    out = console()
    if found.answer is None:
        out.print(Text(f"No answer for {demand_label(found)} of {found.scenario.model.name}.", style="bold"))
        out.print(Text(f"{found.reason[0].upper()}{found.reason[1:]}."))
        out.print(Text(f"What would help: {'; '.join(found.helps)}."))
    else:
        out.print(Text(_sentence(found, found.answer), style="bold"))
        out.print(Text(_second(found.answer)))
    out.print(Text(_counts(found)))
    print_table(out, trial_table(found))
    if found.answer is not None and (command := launch_command(*_launched(found.answer.proposal))):
        out.print(Text("\nTo launch one replica", style="bold"))
        out.print(Text(command), soft_wrap=True)


def _launched(one: Proposal) -> tuple[Any, Split]:
    alone = one.times(1).system
    return alone, replace(alone.split, data=array(1.0))


def _sentence(found: Sized, answer: Trial) -> str:
    one, best = answer.proposal, {"chips": "fewest", "cost": "cheapest", "power": "least hungry"}
    return (
        f"{demand_label(found)} of {one.scenario.model.name} need {counted(one.chips, 'chip')}, the "
        f"{best[found.demand.objective]} that keep the SLO: {one.chips} x {one.scenario.chip.name}, "
        f"{split_of(one.system.split)}."
    )


def _second(answer: Trial) -> str:
    one, served = answer.proposal, answer.service
    how = f"mapper {one.mapper}" if one.mapper else "a split to be given"
    hour = served.dollars / served.measures.span * 3600.0
    return (
        f"Up to {one.batch:,.0f} sequences in decode of each replica ({how}); {dollars(hour)} an hour, "
        f"{show(one.watts, 'power')} of facility power at that load."
    )


def _counts(found: Sized) -> str:
    text = (
        f"Looked at {found.points:,} points: {found.splits:,} legal splits of a replica, of which {found.fitting:,} "
        f"fit, each {BATCHES}"
    )
    text += f"; {found.proposals:,} keep the SLO in closed form as far as the search went"
    if found.foreseen:
        text += f", {found.foreseen:,} of them no quicker than what failed"
    text += f". Played: {len(found.trials)}."
    if found.left:
        text += f" Put off and not played: {counted(found.left, 'replica')} that might do with fewer (--tries)."
    return text


def trial_table(found: Sized) -> Table:
    """What was played, in order."""
    name = f"p{found.percentile:g}"
    heads = ("proposal", "verdict", "chips", "$/h", f"{name} TTFT", f"{name} TPOT", "mean TPOT foreseen", "requests")
    rows = tuple(
        (
            f"{one.proposal.chips} x {one.proposal.scenario.chip.name}, {split_of(one.proposal.system.split)}",
            "keeps the SLO" if one.passes else one.why,
            f"{one.proposal.chips:,}",
            number(one.proposal.hourly),
            show(one.ttft, "time"),
            show(one.tpot, "time"),
            show(one.proposal.tpot, "time"),
            f"{len(one.service.requests):,}",
        )
        for one in found.trials
    )
    chosen = frozenset(at for at, one in enumerate(found.trials) if one is found.answer)
    return Table("Played one by one, in order of the objective", heads, rows, _caption(rows), 2, chosen)


def _caption(rows: Iterable[tuple[str, ...]]) -> str:
    return abbreviations(row[0] for row in rows)


def sized_json(found: Sized) -> str:
    """The answer of a size as JSON."""
    return _json(
        {
            "command": "size",
            "model": found.scenario.model.name,
            "rate": found.demand.rate,
            "sessions": found.demand.sessions,
            "objective": found.demand.objective,
            "percentile": found.percentile,
            "answer": None if found.answer is None else _trial(found.answer),
            "reason": found.reason or None,
            "helps": list(found.helps),
            "looked_at": {
                "splits": found.splits,
                "fitting": found.fitting,
                "points": found.points,
                "proposals": found.proposals,
                "foreseen": found.foreseen,
                "left": found.left,
            },
            "played": [_trial(one) for one in found.trials],
        }
    )


def _trial(one: Trial) -> dict[str, Any]:
    p = one.proposal
    return {
        "chip": p.scenario.chip.name,
        "chips": p.chips,
        "split": _degrees(p.system.split),
        "mapper": p.mapper or None,
        "batch": p.batch,
        "dollars_per_hour": p.hourly,
        "facility_power": p.watts,
        "ttft": one.ttft,
        "tpot": one.tpot,
        "passes": one.passes,
        "why": one.why or None,
    }
