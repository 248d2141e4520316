"""What the next 10 % of each resource is worth on H100, B200, Rubin and Bertha, in dollars of one chip.

Llama 3.1 70B in fp8 for chat, with the fewest dollars a token at 30 tok/s a user: a chip with 10 % more of something
may cost so much more before a token does. The plan and the number of clients are chosen anew.

    python next-ten-percent.py [OUT.html]        also draws them
"""

import sys
from pathlib import Path

import archsim
from archsim.explore.sensitivity import Sensitivity, sensitivity

SYSTEMS = {
    "8 H100": ("nvidia/h100-sxm", "vllm"),
    "8 B200": ("nvidia/b200-sxm", "vllm"),
    "8 Rubin": ("nvidia/rubin-vr200", "tensorrt-llm"),
    "8 Bertha": ("hyperaccel/bertha-500-192gb", "native"),
}
RESOURCES = (
    "memory bandwidth",
    "memory capacity",
    "matrix peak",
    "vector peak",
    "scale-up link bandwidth",
    "scale-up link latency",
    "power cap",
    "energy per byte",
)


def asked(chip: str, runtime: str) -> Sensitivity:
    """The sensitivity of the cost per token on eight chips."""
    scenario = archsim.scenario(
        model="meta/llama-3.1-70b",
        pools={"chips": {"chip": chip, "count": 8}},
        runtime=runtime,
        precision={"weights": "fp8", "kv": "fp8"},
        traffic={"input": 1155, "output": 211},
        slo={"ttft": "2 s", "interactivity": "30 tok/s"},
        objective={"minimize": "cost_per_token"},
    )
    return sensitivity(scenario, "steady", "cost_per_token")


def draw(found: dict[str, Sensitivity], target: Path) -> None:
    """Bars of what each resource is worth on every system."""
    from archsim.report import charts
    from archsim.report.exploring import Chapter, page

    worth = {name: {w.resource.name: w.chosen.capital for w in result.worths} for name, result in found.items()}
    kept = [name for name in RESOURCES if any(abs(own.get(name, 0.0)) > 1.0 for own in worth.values())]
    values = {system: [own.get(name, 0.0) for name in kept] for system, own in worth.items()}
    notes = [
        name + "".join(f"<br>{system} ${own.get(name, 0.0):,.0f}" for system, own in worth.items()) for name in kept
    ]
    figure = charts.bars(kept, values, "worth of 10 % more for one chip (USD)", notes)
    lead = ["What a chip with 10 % more may cost on top, at an unchanged cost per token of Llama 3.1 70B."]
    chapters = [Chapter("By resource", "", ((figure, "All-in price of one chip, the plan chosen anew."),))]
    command = f"python {Path(sys.argv[0]).name} {target.name}"
    target.write_text(page("example", "The next 10 %", "What it is worth", lead, chapters, command))


def main() -> None:
    """Prints a table for all systems, and what bounds each; and draws the table."""
    found = {name: asked(*system) for name, system in SYSTEMS.items()}
    print("10 % more of (or less latency and energy): USD of all-in price of a chip, at the same cost per token")
    print(f"{'':<26}" + "".join(f"{name:>12}" for name in found))
    for resource in RESOURCES:
        cells = []
        for result in found.values():
            worth = {item.resource.name: item.chosen.capital for item in result.worths}
            cells.append(f"{worth[resource]:>12,.0f}" if resource in worth else f"{'-':>12}")
        print(f"{resource:<26}" + "".join(cells))
    print(f"{'$/Mtok now':<26}" + "".join(f"{result.value:>12.3f}" for result in found.values()))
    clients = [0 if result.best.batch is None else result.best.batch.item() for result in found.values()]
    print(f"{'clients now':<26}" + "".join(f"{count:>12,.0f}" for count in clients))
    print("\nThe strongest elasticities of the cost, on the side of less and of more:")
    for name, result in found.items():
        rows = [
            f"{row.field.name.removeprefix('chip.')} {row.chosen.below:+.2f} {row.chosen.above:+.2f}"
            for row in result.moving[:4]
        ]
        print(f"  {name:<10}{'; '.join(rows)}")
    if sys.argv[-1].endswith(".html"):
        draw(found, Path(sys.argv[-1]))


if __name__ == "__main__":
    main()
