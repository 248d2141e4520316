"""How many GPUs to how many LPUs, by the interactivity that is promised.

DeepSeek-V3 in fp8 with attention on Rubin and experts pinned to LPX chips, at 8k of context: the ratio with the fewest
dollars a token at every interactivity, beside one rack of Rubin alone. A rack of Rubin has 72 GPUs, one of LPX 256.

    python gpu-to-lpu.py [OUT.html]              also draws the costs
"""

import sys
from pathlib import Path

import numpy as np

import archsim
from archsim.explore.fronts import Front, front_of
from archsim.explore.pareto import objectives
from archsim.explore.result import METRICS
from archsim.explore.specify import specify

FORMATS = {"weights": "fp8", "attention": "fp8", "experts": "fp8", "activations": "fp8", "kv": "fp8"}
RUBIN = (72, 144, 288)
LPX = (1792, 2560, 3584)
BATCHES = (2.0 ** np.arange(4, 15)).tolist()
LEVELS = (25, 50, 75, 100, 125, 150, 175, 200)
WANTED = objectives("cost_per_token:min,interactivity:max", list(METRICS))


def front(pools: dict[str, object], mapper: str) -> Front:
    """The front of cost and interactivity over every plan and batch."""
    scenario = archsim.scenario(
        model="deepseek/deepseek-v3",
        precision=FORMATS,
        pools=pools,
        mapper=mapper,
        runtime="tensorrt-llm",
        batch=1,
        context=8192,
        objective={"minimize": "cost_per_token"},
    )
    return front_of(specify([scenario], {"batch": BATCHES}, mode="step"), WANTED)


def cheapest(found: Front, level: float) -> tuple[float, int] | None:
    """The least dollars a token at an interactivity, and which point that is."""
    cost = np.where(found.columns["interactivity"] >= level, found.columns["cost_per_token"], np.inf)
    if not np.isfinite(cost).any():
        return None
    index = int(np.argmin(cost))
    return float(cost[index]), index


def draw(drawn: list[tuple[float, float, float]], target: Path) -> None:
    """Costs and the ratio against interactivity."""
    from archsim.report.charts import Curve, curves
    from archsim.report.exploring import Chapter, page

    levels, columns = np.array(LEVELS, dtype=float), np.array(drawn).T
    notes = [f"{level} tok/s a user" for level in LEVELS]
    costs = [Curve(name, column, notes) for name, column in zip(("72 Rubin", "with LPX"), columns, strict=False)]
    titles = ("interactivity (tok/s/user)", "least cost per million tokens (USD)")
    ratio = curves(levels, [Curve("LPX a GPU", columns[2], notes)], (titles[0], "LPX chips for one Rubin"))
    plots = ((curves(levels, costs, titles), "A line ends where nothing is as fast."), (ratio, "At that cost."))
    lead = ["The GPUs and LPUs that decode DeepSeek-V3 most cheaply at each interactivity."]
    chapters = [Chapter("Costs", "", plots)]
    command = f"python {Path(sys.argv[0]).name} {target.name}"
    target.write_text(page("example", "GPUs to LPUs", "By interactivity", lead, chapters, command))


def main() -> None:
    """Prints a row for each interactivity."""
    alone = front({"gpu": {"chip": "nvidia/rubin-vr200", "count": 72}}, "auto")
    pairs = {}
    for gpus in RUBIN:
        for lpus in LPX:
            ffn = {"chip": "nvidia/groq-3-lpx", "count": lpus, "economics": {"overhead": "0 W"}}
            pools = {"attention": {"chip": "nvidia/rubin-vr200", "count": gpus}, "ffn": ffn}
            pairs[gpus, lpus] = front(pools, "attention-ffn")
    looked = sum(found.looked for found in pairs.values())
    print(f"DeepSeek-V3, 8,192 tokens of context: {looked:,} plans of {len(pairs)} pairs of pools\n")
    print(f"{'tok/s/user':>10}{'72 Rubin':>12}{'with LPX':>12}{'Rubin':>8}{'LPX':>7}{'LPX a GPU':>11}{'batch':>8}")
    drawn: list[tuple[float, float, float]] = []
    for level in LEVELS:
        first = cheapest(alone, level)
        found = {pair: best for pair, result in pairs.items() if (best := cheapest(result, level)) is not None}
        cells = f"{level:>10}" + (f"{'-':>12}" if first is None else f"{f'${first[0]:.2f}':>12}")
        nothing = (np.nan, 0)
        least = min(found.values(), default=nothing)[0]
        drawn.append(((first or nothing)[0], least, np.nan))
        if not found:
            print(cells + f"{'-':>12}")
            continue
        (gpus, lpus), (cost, index) = min(found.items(), key=lambda item: item[1][0])
        batch = pairs[gpus, lpus].columns["batch"][index]
        drawn[-1] = (*drawn[-1][:2], lpus / gpus)
        print(cells + f"{f'${cost:.2f}':>12}{gpus:>8}{lpus:>7}{lpus / gpus:>11.1f}{batch:>8,.0f}")
    if sys.argv[-1].endswith(".html"):
        draw(drawn, Path(sys.argv[-1]))


if __name__ == "__main__":
    main()
