"""Tensor parallelism inside a node, experts across nodes: DeepSeek-V3 on H200 from one node to eight.

More tensor ranks cut a token's time until all-reduces and fixed times rule; experts across nodes cut what each chip
holds and reads, so that more sequences fit and each expert sees a larger batch, at the price of two transfers a layer.
"""

import archsim

PLANS = [
    (8, {"tensor": 8, "expert": 1}, "TP8, experts sliced"),
    (8, {"tensor": 8, "expert": 8}, "TP8, EP8"),
    (8, {"attention_data": 8, "expert": 8}, "attention DP8, EP8"),
    (16, {"tensor": 8, "pipeline": 2, "expert": 8}, "TP8, EP8, two stages"),
    (16, {"attention_data": 16, "expert": 16}, "attention DP16, EP16"),
    (32, {"attention_data": 32, "expert": 32}, "attention DP32, EP32"),
    (64, {"attention_data": 64, "expert": 64}, "attention DP64, EP64"),
]
PER_CHIP = [1, 8, 32, 64]


def main() -> None:
    """Prints interactivity and throughput of each plan at the same number of sequences a chip."""
    print(f"{'chips':>5}  {'plan':<24}{'sequences a chip':>17}{'tok/s/user':>12}{'tok/s a chip':>14}{'memory':>9}")
    for chips, split, name in PLANS:
        scenario = archsim.scenario(
            model="deepseek/deepseek-v3",
            pools={"gpu": {"chip": "nvidia/h200-sxm", "count": chips}},
            split=split,
            batch=[chips * count for count in PER_CHIP],
            context=4096,
        )
        result = archsim.run(scenario)
        for index, count in enumerate(PER_CHIP):
            memory = f"{result.answer.memory.needed.ravel()[index] / result.answer.memory.capacity.max():>9.0%}"
            if not result.feasible[index]:
                print(f"{chips:>5}  {name:<24}{count:>17}{'does not fit':>26}{memory}")
                continue
            user, chip = result.interactivity[index], result.throughput_per_chip[index]
            print(f"{chips:>5}  {name:<24}{count:>17}{user:>12.1f}{chip:>14.0f}{memory}")


if __name__ == "__main__":
    main()
