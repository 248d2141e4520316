"""How fast the searches of explore are: all deployments of DeepSeek-V3 on 64 H200, and a size.

`python benchmarks/explore_search.py [--json]` prints processor seconds and what was looked at. Scenarios are loaded
before the clock starts.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))  # this checkout, installed or not

import archsim  # noqa: E402
from archsim.explore.deployments import deployments  # noqa: E402
from archsim.explore.played import Demand  # noqa: E402
from archsim.explore.size import on_chip, size  # noqa: E402

TARGET = 10.0  # seconds
SLOS = {"no SLO": {}, "50 tok/s, 2 s": {"interactivity": "50 tok/s", "ttft": "2 s"}}


def deepseek(slo: dict[str, str]) -> archsim.explore.scenario.Scenario:
    """DeepSeek-V3 on 64 H200, prompts of 4,096 tokens and answers of 1,024."""
    return archsim.scenario(
        model="deepseek/deepseek-v3",
        pools={"gpu": {"chip": "nvidia/h200-sxm", "count": 64}},
        traffic={"input": 4096, "output": 1024},
        slo=slo,
    )


def main() -> None:
    """Prints a line for each search."""
    rows = []
    for name, slo in SLOS.items():
        scenario = deepseek(slo)
        start, wall = time.process_time(), time.perf_counter()
        found = deployments(scenario)
        seconds = time.process_time() - start, time.perf_counter() - wall
        looked = f"{found.aggregated + found.disaggregated:,} deployments, {found.points:,} points"
        rows.append((f"64 H200, {name}", *seconds, looked, seconds[0] <= TARGET))
    scenario = deepseek(SLOS["50 tok/s, 2 s"])
    kinds = [scenario, on_chip(scenario, "nvidia/b200-sxm")]
    start, wall = time.process_time(), time.perf_counter()
    sized = size(kinds, Demand(rate=5.0, objective="cost"))
    seconds = time.process_time() - start, time.perf_counter() - wall
    rows.append(
        ("5 requests/s on H200 or B200", *seconds, f"{sized.points:,} points, {len(sized.trials)} played", True)
    )
    if "--json" in sys.argv:
        names = ("search", "processor_seconds", "wall_seconds", "looked_at", "met")
        print(json.dumps([dict(zip(names, row, strict=True)) for row in rows], indent=2))
        return
    for name, busy, wall, looked, met in rows:
        print(f"{name:<32}{busy:>7.2f} s processor {wall:>7.2f} s wall  {looked}  {'met' if met else 'MISSED'}")


if __name__ == "__main__":
    main()
