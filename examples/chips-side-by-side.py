"""One model on the machines people have: gpt-oss-120b on H100, H200, B200, GB300 and MI355X, side by side.

Two chips each, the same traffic; the steady answer at the number of clients that is cheapest within the SLO.
"""

import archsim

CHIPS = ["nvidia/h100-sxm", "nvidia/h200-sxm", "nvidia/b200-sxm", "nvidia/gb300", "amd/mi355x"]


def main() -> None:
    """Prints the best point of each chip."""
    head = f"{'chip':<26}{'clients':>8}{'tok/s/user':>12}{'TTFT':>9}"
    print(head + f"{'tok/s a chip':>14}{'$/Mtok':>8}{'W a chip':>10}  plan")
    for chip in CHIPS:
        scenario = archsim.scenario(
            model="openai/gpt-oss-120b",
            pools={"gpu": {"chip": chip, "count": 2}},
            traffic={"input": 1155, "output": 211},
            slo={"ttft": "1 s", "interactivity": "60 tok/s"},
        )
        result = archsim.run(scenario)
        best = result.best()
        if best is None:
            print(f"{scenario.chip.name:<26}{'does not fit':>20}")
            continue
        split, at = result.split_at(best), result.point(best)
        plan = f"TP{split.tensor[0]:.0f}, EP{split.expert[0]:.0f}, {split.data[0]:.0f} replica(s)"
        print(
            f"{scenario.chip.name[:25]:<26}{at['batch']:>8.0f}{result.interactivity[best]:>12.1f}"
            f"{result.ttft[best] * 1e3:>6.0f} ms{result.throughput_per_chip[best]:>14.0f}"
            f"{result.cost_per_token[best]:>8.3f}{result.power[best]:>10.0f}  {plan}"
        )


if __name__ == "__main__":
    main()
