"""What it takes to hold 512 users of Llama 3.1 70B at 131,072 tokens each.

Their KV cache alone is 22 TB in bf16: the question is not how fast a chip is but how many it takes to hold them.

`python examples/users-at-128k.py --plot FILE.html` also draws it.
"""

import sys

import archsim
from archsim.explore.diagnosis import diagnose

CHIPS = ["nvidia/h100-sxm", "nvidia/h200-sxm", "nvidia/b200-sxm"]
USERS, CONTEXT = 512, 131072


def main() -> None:
    """Prints the fewest chips that hold the users, and what they feel."""
    print(f"{USERS} users at {CONTEXT:,} tokens: {USERS * CONTEXT * 327680 / 1e12:.1f} TB of KV cache in bf16")
    print(f"{'chip':<24}{'KV':>6}{'chips':>7}  {'plan':<22}{'tok/s/user':>11}{'$/Mtok':>9}{'USD/h':>9}")
    rows = []
    for chip in CHIPS:
        for kv in ("bf16", "fp8"):
            result = fewest(chip, kv)
            split = result.split_at(0)
            plan = f"TP{int(split.tensor[0])}, {int(split.data[0])} replicas"
            chips = int(split.chips[0])
            hourly = chips * float(result.scenario.chip.price.rent[0])
            rows.append((f"{result.scenario.chip.name}, KV in {kv}", chips, result.cost_per_token[0]))
            print(
                f"{result.scenario.chip.name:<24}{kv:>6}{chips:>7}  {plan:<22}{result.interactivity[0]:>11.1f}"
                f"{result.cost_per_token[0]:>9.2f}{hourly:>9.0f}"
            )
    refusal = diagnose(archsim.run(deployed(CHIPS[0], "bf16", 64)), 0)
    print(f"\n64 x H100: {refusal.reason}")
    print("\n".join(f"  - {fix}" for fix in refusal.fixes))
    if "--plot" in sys.argv:
        plot(rows, sys.argv[-1])


def fewest(chip: str, kv: str) -> archsim.run:
    """The answer on the fewest nodes of eight chips that hold everyone."""
    nodes = 1
    while not (result := archsim.run(deployed(chip, kv, 8 * nodes))).feasible[0]:
        nodes += 1
    return result


def deployed(chip: str, kv: str, count: int) -> object:
    """The scenario on `count` chips."""
    pools = {"gpu": {"chip": chip, "count": count}}
    return archsim.scenario(
        model="meta/llama-3.1-70b",
        pools=pools,
        precision={"weights": "fp8", "kv": kv},
        mapper="tensor-parallel",
        batch=USERS,
        context=CONTEXT,
    )


def plot(rows: list[tuple[str, float, float]], target: str) -> None:
    """Chips and cost, side by side."""
    from plotly.subplots import make_subplots

    figure = make_subplots(cols=2, subplot_titles=("chips", "USD a million tokens"))
    for column in (1, 2):
        bars = [row[column] for row in rows]
        figure.add_bar(
            x=[row[0] for row in rows], y=bars, marker_color="#1f6fb4", texttemplate="%{y:.3g}", col=column, row=1
        )
    figure.update_layout(template="plotly_white", showlegend=False)
    figure.write_html(target, include_plotlyjs=True)


if __name__ == "__main__":
    main()
