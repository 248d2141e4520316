"""What the memory of a chip sustains, by pattern of access, from the timings of its technology."""

import numpy as np

from archsim.catalog import names
from archsim.chip.memory import Technology, lines_of_rows, load_technology, pages, pages_in_one_bank, streaming
from archsim.chip.model import Chip
from archsim.report.point import single
from archsim.report.tables import Table
from archsim.report.words import percent
from archsim.units import show

PAGES = (256, 1024, 4096, 16384)  # bytes of a page in one channel


def technology_of(chip: Chip) -> Technology | None:
    """The timings of a chip's memory: its own, else those that stand for its technology; None where there are none."""
    if chip.memory.dram is not None:
        return chip.memory.dram
    known = (load_technology(name) for name in names("chips/memory"))
    return next((found for found in known if found.typical and found.technology == chip.memory.technology), None)


def bandwidth_table(chip: Chip) -> Table | None:
    """Sustained bandwidth by pattern, as the DRAM alone allows it; None for memories without timings."""
    found = technology_of(chip)
    if found is None:
        return None
    t, peak = found.timings, single(chip.memory.bandwidth)
    patterns = [
        ("streams of reads", single(streaming(t))),
        ("streams, 5 % of them writes", single(streaming(t, 0.95))),
        ("streams, half of them writes", single(streaming(t, 0.5))),
    ]
    patterns += [(f"scattered pages of {size:,} B a channel", single(pages(t, np.float64(size)))) for size in PAGES]
    patterns.append(("the same in one bank each, a mapping to avoid", single(pages_in_one_bank(t, float(PAGES[-1])))))
    patterns.append(("random reads, one burst a row", single(lines_of_rows(t))))
    rows = tuple((name, percent(share), show(peak * share, "bandwidth")) for name, share in patterns)
    whose = "" if chip.memory.dram is not None else f", typical of {found.technology}"
    caption = f"From the timings of {found.name}{whose}; controllers and chips lose more."
    return Table("Bandwidth that the memory sustains", ("pattern", "of the peak", "bandwidth"), rows, caption)
