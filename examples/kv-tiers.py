"""What memory below the chips is worth to coding agents: HBM only, then CPU memory, then SSD too.

Sessions of coding agents, drawn with the statistics of recorded ones but shorter: contexts of a hundred thousand tokens
and more, of which a step adds a few thousand, and gaps of seconds to hours while tools run and people think. What is
not kept until the next step is computed again. The last columns are dollars: what the hits in a memory saved, and what
it cost to hold what was in it.

`python examples/kv-tiers.py --plot FILE.html` also draws it.
"""

import sys
from dataclasses import replace

import archsim
from archsim.explore.keeping import keeping
from archsim.explore.sessions import sessions_of
from archsim.workload.requests import Requests
from archsim.workload.traffic import draw, load_traffic

CPU = {"medium": "cpu", "capacity": "128 GB"}
SSD = {"medium": "ssd", "capacity": "4 TB"}
TIERS = {"HBM only": [], "+ CPU memory": [CPU], "+ SSD": [CPU, SSD]}


def main() -> None:
    """Prints a line for each set of tiers, and one for each memory in it."""
    asked = agents(2000, 32)
    print(f"{len(asked):,} steps of {asked.sessions} sessions, {asked.input.mean():,.0f} tokens in")
    print(f"{'tiers':<16}{'hits':>7}{'TTFT':>9}{'p99':>8}{'out tok/s':>11}{'$/session':>11}{'saved':>9}{'held':>9}")
    rows = []
    for name, tiers in TIERS.items():
        found = archsim.serve(scenario(tiers), requests=asked)
        m, sessions = found.measures, sessions_of(found.played)
        ttft, cost = m.latency("ttft"), sessions.costs(found.dollars)["session"] if sessions else float("nan")
        print(
            f"{name:<16}{m.hit_rate:>7.1%}{ttft['mean']:>8.2f}s{ttft['p99']:>7.1f}s{m.output_rate:>11.1f}{cost:>11.2f}"
        )
        rows.append((name, m.hit_rate, ttft["mean"]))
        for kept in keeping(found):
            print(f"  {kept.use.name:<14}{kept.use.share:>7.1%}{'':39}{kept.saved:>9.2f}{kept.held:>9.2f}")
    print(f"at most {m.bound:.1%} could be found")
    if "--plot" in sys.argv:
        plot(rows, sys.argv[-1])


def agents(count: int, clients: int) -> Requests:
    """Steps of agents; of their blocks of 64 tokens every eighth names all before it too, so that 512 make one."""
    traffic = load_traffic("agents")
    short = traffic.sessions.model_copy(update={"steps": traffic.sessions.steps.model_copy(update={"mean": 25.0})})
    drawn = draw(traffic.model_copy(update={"sessions": short, "clients": clients}), count=count)
    return replace(drawn, chains=[chain[7::8] for chain in drawn.chains or ()], block=512)


def scenario(tiers: list[dict[str, str]]) -> object:
    """Llama 3.1 70B on two chips, with tiers."""
    return archsim.scenario(
        model="meta/llama-3.1-70b",
        pools={"gpu": {"chip": "nvidia/h100-sxm", "count": 2}},
        split={"tensor": 2},
        precision={"weights": "fp8", "kv": "fp8"},
        traffic={"input": 120000, "output": 440},
        serving={"kv": {"tiers": tiers}},
    )


def plot(rows: list[tuple[str, float, float]], target: str) -> None:
    """Hits and what users feel, side by side."""
    from plotly.subplots import make_subplots

    figure = make_subplots(cols=2, subplot_titles=("share of prompt tokens found", "mean TTFT (s)"))
    for column in (1, 2):
        bars = [row[column] for row in rows]
        figure.add_bar(
            x=[row[0] for row in rows], y=bars, marker_color="#1f6fb4", texttemplate="%{y:.3g}", col=column, row=1
        )
    figure.update_layout(template="plotly_white", showlegend=False)
    figure.write_html(target, include_plotlyjs=True)


if __name__ == "__main__":
    main()
