"""The SRAM that an LPU needs: Llama 2 70B in int8 on 72 to 576 chips, each count with its smallest memory that fits.

More chips need less SRAM each but repeat what every chip has, and every hop costs time; fewer, larger dies yield worse.
Dies are sketched at N4 with the peak of a GroqChip v1; bandwidth grows with the SRAM, as its banks do.
"""

import numpy as np

import archsim
from archsim.arrays import array
from archsim.economics.die import MM2, Sketch, load_silicon

CHIPS = (72, 144, 216, 288, 432, 576)
SIZES = np.arange(20.0, 1600.0, 10.0) * 1e6  # B
CONTEXT, BATCH = 4096, 4


def main() -> None:
    """Prints the least SRAM of each number of chips, its die, and what users and buyers get."""
    base = archsim.load("llama-2-70b-on-groqchips")
    chip = base.chip
    dense = chip.memory.bandwidth / chip.memory.capacity
    silicon = load_silicon("estimates-2026").file
    heads = ("SRAM a chip", "SRAM in all", "die", "yield", "dies in all", "tok/s/user")
    print(f"{'chips':>5}" + "".join(f"{head:>13}" for head in heads))
    for count in CHIPS:
        pools = {"chips": {"chip": "groq/groqchip-v1", "count": count}}
        scenario = archsim.scenario(
            model="meta/llama-2-70b",
            pools=pools,
            precision={"weights": "int8", "attention": "int8", "head": "int8", "embedding": "int8", "kv": "int8"},
            runtime="scheduled",
            mapper="layer-pipeline",
            batch=BATCH,
            context=CONTEXT,
        )
        over = {
            "chip.memory.capacity": SIZES,
            "chip.sram": SIZES,
            "chip.memory.bandwidth": SIZES * dense,
        }
        result = archsim.run(scenario, over=over, zipped=True)
        fits = np.flatnonzero(result.feasible)
        if not fits.size:
            print(f"{count:>5}{'more than 1.6 GB':>26}")
            continue
        least = int(fits[0])
        link = chip.links["scale_up"].bandwidth
        zero = array(0.0)
        die = Sketch(silicon, "n4", "hbm4", chip.matrix["bf16"], array(SIZES[least]), link, zero, zero)
        size, money = SIZES[least], die.die_cost[0] * count
        cells = (
            f"{size / 1e6:.0f} MB",
            f"{size * count / 1e9:.1f} GB",
            f"{die.area[0] / MM2:.0f} mm2",
            f"{die.good[0]:.0%}",
            f"{money:,.0f} USD",
            f"{result.interactivity[least]:.0f}",
        )
        print(f"{count:>5}" + "".join(f"{cell:>13}" for cell in cells))


if __name__ == "__main__":
    main()
