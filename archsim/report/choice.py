"""What a mapper looked at, and why the chosen plan is the one."""

from archsim.explore.result import METRICS, objective
from archsim.report.point import Point, Proposal
from archsim.report.words import counted, shown, split_label, targets


def choice_sentences(point: Point) -> list[str]:
    """What the mapper looked at, and why the chosen plan; empty where the split was given or is the only one."""
    result = point.result
    if result.scenario.mapper is None or result.proposals == 1:
        return []
    return [looked_at(point), *([why_chosen(point)] if point.feasible else [])]


def looked_at(point: Point) -> str:
    """How many proposals of a mapper there are, and what its strategies considered besides."""
    scenario = point.result.scenario
    mapper, runtime = scenario.mapper, scenario.runtime
    if mapper is None:
        return ""
    said = mapper.looked_at(scenario.model, scenario.system.main)
    if any(text.startswith("context ranks") for text in said) and not runtime.shares_context(scenario.model):
        said = [text for text in said if not text.startswith("context ranks")]
        said.append(f"no context ranks: {runtime.name} has none for this model")
    text = f"{mapper.name} looked at {counted(point.result.proposals, 'split')}"
    text = f"{mapper.name}: {scenario.searched}" if scenario.searched else text
    return "; ".join([text[0].upper() + text[1:], *said]) + "."


def why_chosen(point: Point) -> str:
    """The objective of the chosen plan against the runner-up, and what is better but does not do."""
    name, sign = objective(point.result.scenario, point.mode)
    chosen, *others = point.proposals
    usable = sorted((p for p in others if not p.reason), key=lambda p: sign * p.metrics[name])
    fitting = f"{len(usable) + 1} of {len(others) + 1} fit" if len(usable) < len(others) else "all fit"
    if not usable:
        return "Only the chosen one fits."
    kept = [p for p in usable if not _missed(point, p)]
    missing = bool(_missed(point, chosen))
    rivals = usable if missing else kept
    goal = f"the {'lowest' if sign > 0 else 'highest'} {METRICS[name][1]}, {shown(name, chosen.metrics[name])}"
    scope = "of those that keep the SLO " if len(kept) < len(usable) and not missing else ""
    parts = [fitting[0].upper() + fitting[1:], *(["none keeps the SLO"] if missing else [])]
    parts.append(f"{scope}{split_label(chosen.degrees)} has {goal}")
    if rivals:
        parts.append(f"next is {split_label(rivals[0].degrees)} with {shown(name, rivals[0].metrics[name])}")
    better = [] if missing else [p for p in usable if sign * (p.metrics[name] - chosen.metrics[name]) < 0]
    better = [p for p in better if _missed(point, p)]
    if better:
        values = f"{split_label(better[0].degrees)} has {shown(name, better[0].metrics[name])}"
        parts.append(f"{values} but misses {', '.join(_missed(point, better[0]))}")
    return "; ".join(parts) + "."


def _missed(point: Point, proposal: Proposal) -> list[str]:
    """The targets of the SLO that a proposal misses."""
    found = targets(point.result.scenario.slo, proposal.metrics["tpot"], proposal.metrics["ttft"])
    return [target.name for target in found if not target.kept]
