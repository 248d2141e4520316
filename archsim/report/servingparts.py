"""Parts of a service that not every one has: drafts, sessions, two pools."""

import numpy as np

from archsim.explore.service import Service
from archsim.report.words import counted, dollars, number, percent
from archsim.units import show


def draft_rows(service: Service) -> list[tuple[str, str]]:
    """(name, value) of speculative decoding; none without drafts."""
    drafted, asked, m = service.server.surface.drafted, service.scenario.speculation, service.measures
    if drafted is None:
        return []
    told = asked.acceptance
    accepted = percent(told) if isinstance(told, float) else ", ".join(percent(part) for part in told)
    lost = service.played.outcome.discarded
    return [
        ("drafts a step", f"{drafted.drafts} {writer_of(service)}, accepted {accepted}: {number(drafted.gain)} tokens"),
        ("steps that verify drafts", f"{percent(m.drafted)}; {number(m.tokens_per_step)} tokens a step in the mean"),
        ("discarded beyond the ends", counted(lost, "token")),
    ]


def writer_of(service: Service) -> str:
    """What writes drafts: "of n-grams"."""
    if service.scenario.speculation.mtp:
        return "of the prediction module"
    drafter = service.scenario.drafter
    return "of n-grams" if drafter is None else f"of {drafter.name}"


def session_rows(service: Service) -> list[tuple[str, str]]:
    """Sessions as wholes: how many ended, their time and their cost."""
    found = service.sessions
    if found is None:
        return []
    cost, spent, served = found.costs(service.dollars), found.time(), found.time("served")
    rows = [("sessions", f"{found.finished:,} of {found.count:,} finished, {number(found.mean_steps)} steps each")]
    if found.finished:
        times = f"{show(spent['mean'], 'time')} in the mean, {show(spent['p90'], 'time')} at p90"
        rows.append(("time of a session", f"{times}; {show(served['mean'], 'time')} of it served"))
    return [*rows, ("cost of a session, of a step", f"{dollars(cost['session'])}, {dollars(cost['step'])}")]


def pool_rows(service: Service) -> list[tuple[str, str]]:
    """(name, value) of each of two pools, and what went from one to the other; nothing of one pool."""
    if service.server.prefill is None:
        return []
    rows = []
    for part in service.parts:
        many = counted(part.server.replicas, "replica")
        mean, most = part.measures.occupancy
        memory = f"KV memory {percent(mean)} in the mean, {percent(most)} at the most"
        rows.append((f"pool {part.name}", f"{many}, {percent(part.busy)} busy, {memory}, {show(part.power, 'power')}"))
    out = service.played.outcome
    each = show(out.sent / out.handed, "bytes") if out.handed else "nothing"
    started = int(np.isfinite(service.played.first).sum())
    rows.append(("handed over", f"{out.handed:,} of {counted(started, 'prompt')}, {each} each"))
    return rows


def drafts_json(service: Service) -> dict[str, object] | None:
    """Speculative decoding; None without drafts."""
    drafted, m = service.server.surface.drafted, service.measures
    if drafted is None:
        return None
    told = service.scenario.speculation.acceptance
    lost = service.played.outcome.discarded
    found = {"drafts": drafted.drafts, "acceptance": told, "tokens": drafted.gain, "discarded_tokens": lost}
    return {**found, "steps_with_drafts": m.drafted, "tokens_per_step": m.tokens_per_step}


def sessions_json(service: Service) -> dict[str, object] | None:
    """Sessions as wholes; None where there are none."""
    found = service.sessions
    if found is None:
        return None
    counts = {"count": found.count, "finished": found.finished, "steps": found.steps, "mean_steps": found.mean_steps}
    return {**counts, "time": found.time(), "served": found.time("served"), "cost": found.costs(service.dollars)}


def pools_json(service: Service) -> dict[str, object] | None:
    """Each of two pools, and what went from one to the other."""
    if service.server.prefill is None:
        return None
    found: dict[str, object] = {
        part.name: {
            "replicas": part.server.replicas,
            "chips": part.chips,
            "busy": part.busy,
            "kv_mean": part.measures.occupancy[0],
            "kv_most": part.measures.occupancy[1],
            "power": part.power,
            "cost": part.dollars,
        }
        for part in service.parts
    }
    out = service.played.outcome
    return {"pools": found, "handed_over": out.handed, "bytes": out.sent}
