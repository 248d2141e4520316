"""The KV cache of a served scenario by memory: hits, transfers, and the dollars of holding against those saved."""

import math

from archsim.economics.terms import HOUR
from archsim.explore.keeping import Kept, keeping
from archsim.explore.service import Service
from archsim.report.tables import Table
from archsim.report.words import dollars, percent
from archsim.units import show

HEADS = ("memory", "hits", "loaded", "written", "load", "saved", "held", "a GB-hour", "worth keeping")


def told(service: Service) -> bool:
    """Whether there is more to tell than the hits of one memory."""
    return bool(service.measures.tiers) and bool(service.server.tiers or service.scenario.serving.kv.eviction.told)


def keeping_table(service: Service) -> Table:
    """A row for each memory."""
    rows = tuple(_row(kept) for kept in keeping(service)) if told(service) else ()
    return Table("KV cache by memory", HEADS, rows)


def _row(kept: Kept) -> tuple[str, ...]:
    use = kept.use
    wait = "n/a" if math.isnan(use.wait) else show(use.wait, "time")
    moved = [show(size, "bytes") if use.waits is not None else "" for size in (use.loaded, use.written)]
    money = [dollars(value) for value in (kept.saved, kept.held, kept.rate)]
    hours = "for ever" if math.isinf(kept.hours) else show(kept.hours * HOUR, "time")
    hours = "n/a" if math.isnan(kept.hours) else hours
    return (use.name, percent(use.share), *moved, wait if use.waits is not None else "", *money, hours)


def keeping_notes(service: Service) -> list[str]:
    """What the table cannot say."""
    if not told(service):
        return []
    m = service.measures
    found = [f"{percent(m.hit_rate)} of prompt tokens are found, of at most {percent(m.bound)}."]
    refused = [use for use in m.tiers if use.refused]
    found += [f"{use.refused:,} blocks were not kept: too many writes to {use.name} waited." for use in refused]
    return found


def keeping_json(service: Service) -> list[dict[str, object]] | None:
    """The rows as data: tokens, B, s, USD, USD per GB-hour, hours."""
    if not told(service):
        return None
    return [
        {
            "name": kept.use.name,
            "hits": kept.use.hits,
            "share": kept.use.share,
            "loaded": kept.use.loaded,
            "written": kept.use.written,
            "refused": kept.use.refused,
            "load_wait": kept.use.wait,
            "saved_seconds": kept.use.saved,
            "saved": kept.saved,
            "held": kept.held,
            "gb_hour": kept.rate,
            "break_even_hours": kept.hours,
        }
        for kept in keeping(service)
    ]
