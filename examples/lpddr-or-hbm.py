"""Where LPDDR overtakes HBM: by price, bandwidth, batch and context, with nothing but the memory different.

Llama 3.1 70B in fp8 on eight Jalapeno with HBM4, and on eight of a what-if of it with LPDDR5X. Tables say below which
share of the price of a chip on HBM one on LPDDR decodes more cheaply, by its capital and power; then how much bandwidth
LPDDR needs at half of the price. Both chips' prices are assumptions, so the tables take none of the LPDDR's.

    python lpddr-or-hbm.py [OUT.html]            also draws the tables as heat maps
"""

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np

import archsim
from archsim.explore.breakeven import breakeven, settled
from archsim.explore.result import Result
from archsim.explore.scenario import Scenario
from archsim.explore.sensitivity import yearly_share

HBM, LPDDR = "openai/jalapeno", "openai/jalapeno-lpddr"
BATCHES = (1, 8, 32, 128, 512)
CONTEXTS = (1024, 8192, 32768, 131072)
BANDWIDTHS = (1.2288e12, 2.4576e12, 4.9152e12)  # B/s: one channel of LPDDR5X for each core slice, two, four
PRICE = 0.5  # of a chip on LPDDR over that of one on HBM, as the files assume
HOUR = 3600.0


def scenario(chip: str, batch: int = 1, context: int = 1024) -> Scenario:
    """Eight chips, priced by their capital."""
    return archsim.scenario(
        model="meta/llama-3.1-70b",
        pools={"chips": {"chip": chip, "count": 8}},
        runtime="native",
        precision={"weights": "fp8", "kv": "fp8"},
        batch=batch,
        context=context,
        economics={"by": "capital"},
        objective={"minimize": "cost_per_token"},
    )


def worth(hbm: Result, lpddr: Result) -> np.ndarray:
    """The price of a chip on LPDDR at which its tokens cost as much, over that of a chip on HBM."""
    price = {name: r.scenario.chip.price.system.item() for name, r in (("hbm", hbm), ("lpddr", lpddr))}
    slack = (hbm.cost_per_token - lpddr.cost_per_token) / 1e6 * lpddr.throughput * HOUR / 8  # USD an hour and chip
    return (price["lpddr"] + slack / yearly_share(lpddr.scenario.terms)) / price["hbm"]


def prices() -> list[tuple[float, np.ndarray]]:
    """A table of price ratios for each bandwidth of LPDDR; and the ratios, NaN where both do not fit."""
    drawn = []
    hbm = archsim.run(scenario(HBM), batch=BATCHES, context=CONTEXTS)
    own = hbm.scenario.chip.memory.bandwidth.item() / 1e12
    print("Price of a chip on LPDDR over that of one on HBM at which their tokens cost the same; - where none fits")
    for bandwidth in BANDWIDTHS:
        lpddr = archsim.run(scenario(LPDDR), batch=BATCHES, context=CONTEXTS, over={"chip.memory.bandwidth": bandwidth})
        ratio = worth(hbm, lpddr)
        drawn.append((bandwidth, np.where(hbm.feasible & lpddr.feasible, ratio, np.nan)))
        print(f"\nLPDDR of {bandwidth / 1e12:.2f} TB/s against HBM of {own:.2f} TB/s")
        print(f"{'context':>10}" + "".join(f"{f'batch {batch}':>12}" for batch in BATCHES))
        for row, context in enumerate(CONTEXTS):
            fits = zip(ratio[:, row], hbm.feasible[:, row], lpddr.feasible[:, row], strict=True)
            cells = [f"{value:.2f}" if a and b else "only LPDDR" if b else "-" for value, a, b in fits]
            print(f"{context:>10,}" + "".join(f"{cell:>12}" for cell in cells))
    return drawn


def bandwidths() -> None:
    """The bandwidth at which LPDDR at half of the price is as cheap, and the batch up to which it is as it comes."""
    print("\nAt half of the price, LPDDR decodes more cheaply from this bandwidth on")
    half = {"capital": PRICE * scenario(HBM).chip.price.system.item()}
    for batch, context in ((1, 1024), (32, 8192), (128, 8192), (512, 1024)):
        first, second = (scenario(chip, batch, context) for chip in (LPDDR, HBM))
        cheap = replace(first, terms=first.terms.model_copy(update=half))
        found = breakeven(cheap, second, "step", "chip.memory.bandwidth", np.linspace(0.2e12, 8e12, 40))
        words = ", ".join(f"{item.value / 1e12:.2f} TB/s" for item in found.crossings) or settled(found)
        print(f"  batch {batch:>3} at {context:>6,} tokens: {words}")


def draw(drawn: list[tuple[float, np.ndarray]], target: Path) -> None:
    """Heat maps of the ratios on one page."""
    from archsim.report.exploring import Chapter, page
    from archsim.report.heatmap import Heat, heat

    chapters = []
    for bandwidth, ratio in drawn:
        rows, columns = [f"{context:,}" for context in CONTEXTS], [str(batch) for batch in BATCHES]
        notes = [
            [f"batch {b}, context {c:,}<br>price ratio {ratio[i, j]:.2f}" for i, b in enumerate(BATCHES)]
            for j, c in enumerate(CONTEXTS)
        ]
        figure = heat(Heat("batch", "context", columns, rows, ratio.T, notes), "price ratio", "", about=PRICE)
        title = f"LPDDR of {bandwidth / 1e12:.2f} TB/s"
        caption = "Orange: cheaper on LPDDR at half of the price. Grey: one of them does not fit."
        chapters.append(Chapter(title, "", ((figure, caption),)))
    lead = ["The price of a chip on LPDDR over that of one on HBM at which a token costs the same."]
    command = f"python {Path(sys.argv[0]).name} {target.name}"
    target.write_text(page("example", "LPDDR or HBM", "Where LPDDR overtakes", lead, chapters, command))


def main() -> None:
    """Prints both, and draws the first."""
    drawn = prices()
    bandwidths()
    if sys.argv[-1].endswith(".html"):
        draw(drawn, Path(sys.argv[-1]))


if __name__ == "__main__":
    main()
