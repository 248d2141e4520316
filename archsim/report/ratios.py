"""What every division of the chips between two pools sustains, as a table and as data."""

from collections.abc import Sequence

from archsim.explore.rates import Ratio
from archsim.report.tables import Table
from archsim.report.words import number


def ratio_table(ratios: Sequence[Ratio]) -> Table:
    """A row for each division, the best first."""
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
    return Table("Ratios", heads, tuple(rows), texts=2)


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
