"""The cheapest way to 1,000 agentic sessions of DeepSeek-V3 at 50 tokens/s a user.

An agent sends its instructions and tools (4,096 tokens that many share), its task so far, and waits; a tool then takes
three seconds. Three kinds of chips are priced at every legal split and batch; the cheapest proposal is played with all
thousand sessions before it is an answer.
"""

import archsim
from archsim.explore.played import Demand
from archsim.explore.size import on_chip, size
from archsim.report.words import split_of

KINDS = ("nvidia/h200-sxm", "nvidia/b200-sxm", "nvidia/gb200")


def main() -> None:
    """Prints what was played, in order, and the answer."""
    scenario = archsim.scenario(
        model="deepseek/deepseek-v3",
        pools={"gpu": {"chip": KINDS[0], "count": 8}},
        traffic={
            "name": "agents",
            "input": {"mean": 2048, "spread": 0.8, "most": 16384},
            "output": {"mean": 300, "spread": 0.8, "most": 2000},
            "shared": {"tokens": 4096, "groups": 4},
            "cached": 4096,
            "think": "3 s",
        },
        slo={"ttft": "2 s", "interactivity": "50 tok/s"},
    )
    kinds = [on_chip(scenario, name) for name in KINDS]
    demand = Demand(sessions=1000, objective="cost", requests=2000, largest=32, tries=8)
    found = size(kinds, demand)
    print(f"Looked at {found.points:,} points of {found.fitting:,} splits that fit on {len(kinds)} kinds of chips.")
    print(f"{'played':<48}{'chips':>6}{'USD/h':>8}{'p90 TTFT':>10}{'p90 TPOT':>10}")
    for one in found.trials:
        plan = one.proposal
        name = f"{plan.scenario.chip.name}, {split_of(plan.system.split)}"
        times = f"{one.ttft * 1e3:>7.0f} ms{one.tpot * 1e3:>7.1f} ms"
        print(f"{name:<48}{plan.chips:>6}{plan.hourly:>8.0f}{times}{'  keeps the SLO' if one.passes else ''}")
    if found.left:
        print(f"{found.left} other replicas were put off and not played: `tries` ends the search.")
    if found.answer is None:
        print(found.reason)
        return
    best = found.answer.proposal
    print(
        f"Cheapest: {best.chips} x {best.scenario.chip.name}, {split_of(best.system.split)}: {best.hourly:,.0f} USD/h."
    )


if __name__ == "__main__":
    main()
