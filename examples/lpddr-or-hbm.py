"""Where LPDDR overtakes HBM: the price at which a near-memory chip on LPDDR5X costs as little a token as one on HBM4.

The same chip with either memory (Jalapeno, and a what-if of it on LPDDR5X), so that nothing but the memory differs:
Llama 3.1 70B in fp8 on eight of them, at every batch and context, with LPDDR of 1.2 TB/s and of up to three times as
much. A chip on LPDDR is the cheaper one to decode with if its price is below this share of the other's.
"""

import numpy as np

import archsim
from archsim.explore.breakeven import breakeven
from archsim.explore.scenario import Scenario

HBM, LPDDR = "openai/jalapeno", "openai/jalapeno-lpddr"
BATCHES = (1, 8, 32, 128, 512)
CONTEXTS = (1024, 8192, 32768, 131072)
BANDWIDTHS = (1.0, 2.0, 3.0)  # times what the chip on LPDDR has
PRICE = 0.5  # of the chip on LPDDR over the other's, as the files assume


def scenario(chip: str, **more: object) -> Scenario:
    """Eight chips, priced by their capital."""
    return archsim.scenario(
        model="meta/llama-3.1-70b", pools={"chips": {"chip": chip, "count": 8}}, runtime="native",
        precision={"weights": "fp8", "kv": "fp8"}, batch=1, context=1024, economics={"by": "capital"},
        objective={"minimize": "cost_per_token"}, **more,
    )


def grid(chip: str, times: float = 1.0) -> "archsim.Result":
    """A chip at every batch and context, with so many times its bandwidth."""
    found = scenario(chip)
    over = {"chip.memory.bandwidth": found.chip.memory.bandwidth * times}
    return archsim.run(found, batch=BATCHES, context=CONTEXTS, over=over)


def main() -> None:
    """Prints the price ratio at which either costs the same, and where the order changes along bandwidth and batch."""
    hbm = grid(HBM)
    print("price of a chip on LPDDR over that of one on HBM, below which its tokens are cheaper (- does not fit)")
    for times in BANDWIDTHS:
        lpddr = grid(LPDDR, times)
        bandwidth = 1.2288 * times
        print(f"\nLPDDR of {bandwidth:.1f} TB/s, HBM of {hbm.scenario.chip.memory.bandwidth.item() / 1e12:.1f} TB/s")
        print(f"{'context':>10}" + "".join(f"{f'batch {batch}':>12}" for batch in BATCHES))
        ratio = np.where(lpddr.feasible & hbm.feasible, lpddr.throughput / hbm.throughput, np.nan)
        for row, context in enumerate(CONTEXTS):
            only = lpddr.feasible[:, row] & ~hbm.feasible[:, row]
            cells = ["only LPDDR" if alone else "-" if np.isnan(value) else f"{value:.2f}"
                     for value, alone in zip(ratio[:, row], only, strict=True)]
            print(f"{context:>10,}" + "".join(f"{cell:>12}" for cell in cells))
    print(f"\nAt {PRICE} of the price, where does the order change?")
    for batch, context in ((32, 8192), (512, 1024)):
        for field, values in (("chip.memory.bandwidth", np.linspace(0.5e12, 6e12, 45)),):
            first, second = (scenario(chip) for chip in (LPDDR, HBM))
            pair = [archsim.explored(item, batch=batch, context=context) for item in (first, second)]
            found = breakeven(pair[0], pair[1], "step", field, values)
            print(batch, context, [f"{item.value / 1e12:.2f} TB/s" for item in found.crossings])


if __name__ == "__main__":
    main()
