"""What every division of the chips between two pools sustains, as a table and as data."""

from collections.abc import Sequence

from archsim.explore.rates import Ratio
from archsim.report.tables import Table
from archsim.report.words import counted, number


def too_few(count: int, rate: float, took: float) -> str:
    """What to say where all requests come within the time `took` (s) that one takes; else empty."""
    if not rate or count / rate >= took:
        return ""
    return f"{counted(count, 'request')} are too few to tell: at that rate all come while the first is served"


def ratio_table(ratios: Sequence[Ratio], count: int, took: float) -> Table:
    """A row for each division, the best first; `count` requests were played, each of which took so long (s)."""
    rows = [
        (
            f"{ratio.prefill} + {ratio.decode}",
            f"{ratio.prefill_chips} + {ratio.decode_chips}",
            number(ratio.largest.rate) if not ratio.largest.reason else "n/a",
            number(ratio.per_chip) if not ratio.largest.reason else ratio.largest.reason,
        )
        for ratio in ratios
    ]
    heads = ("replicas that prefill + decode", "chips", "requests/s that keep the SLO", "a chip")
    caption = "These chips divide in no other way into replicas of the plan's shapes." if len(rows) == 1 else ""
    best = max((ratio.largest.rate for ratio in ratios if not ratio.largest.reason), default=0.0)
    few = too_few(count, best, took)
    caption = f"{few}.".replace("that rate", "the largest of these rates") if few else caption
    return Table("Ratios", heads, tuple(rows), caption, texts=2)


def ratio_data(ratios: Sequence[Ratio]) -> list[dict[str, object]]:
    """The same as data: replicas and chips of both pools, requests a second, and why there are none."""
    return [
        {
            "prefill": ratio.prefill,
            "decode": ratio.decode,
            "prefill_chips": ratio.prefill_chips,
            "decode_chips": ratio.decode_chips,
            "rate": ratio.largest.rate,
            "per_chip": ratio.per_chip,
            "reason": ratio.largest.reason or None,
        }
        for ratio in ratios
    ]
