"""Letting those go who stay away: what a prediction of who returns is worth, by its precision and recall.

One step in twenty of a coding agent is followed by more than ten minutes of silence, or is its last. Blocks of those
who are said to leave go to CPU memory at once, where a GB-hour costs a hundredth, and all others after ten minutes; if
they come back after all, they are loaded. The oracle knows and errs as told: of those it names the share `precision`
leaves, and of those who leave it names the share `recall`. The trained one is a logistic regression on what a server
sees: gaps so far, step, tokens, why the answer ended. Against them, keeping all until memory is needed, and ages.
Means over two draws of traffic.

`python examples/return-prediction.py --plot FILE.html` also draws it.
"""

import sys
from dataclasses import replace

import numpy as np

import archsim
from archsim.explore.evaluate import deployment_of
from archsim.serving.eviction import Eviction
from archsim.serving.measures import Measures
from archsim.serving.returning import Oracle, load_returns
from archsim.serving.server import server_of
from archsim.serving.simulate import simulate
from archsim.workload.requests import Requests
from archsim.workload.traffic import draw, load_traffic

POLICIES = {
    "least recently used": Eviction(),
    "older than 1 min": Eviction(60.0),
    "older than 10 min": Eviction(600.0),
    **{
        f"oracle {precision:.2f} / {recall:.2f}": Eviction(600.0, Oracle(precision, recall), linger=0.0)
        for precision, recall in ((0.5, 0.5), (0.5, 1.0), (0.75, 0.75), (1.0, 0.5), (1.0, 1.0))
    },
    "trained, threshold 0.1": Eviction(600.0, load_returns("coding-agents"), 0.1, linger=0.0),
}
CHIPS, DRAWS = 2, 2


def main() -> None:
    """Prints a line for each policy."""
    draws = [agents(800, 20, seed) for seed in range(DRAWS)]
    print(f"{len(draws[0]):,} steps of about {draws[0].sessions} sessions")
    print(f"{'policy':<26}{'hits':>7}{'chips':>8}{'cpu':>8}{'TTFT':>9}{'held on chips':>16}{'in cpu':>11}")
    node = scenario()
    servers = [server_of(deployment_of(node), node.serving, asked) for asked in draws]
    shown = []
    for name, policy in POLICIES.items():
        rows = []
        for asked, server in zip(draws, servers, strict=True):
            m = Measures(simulate(asked, replace(server, eviction=policy)))
            chips, cpu = m.tiers
            held = [CHIPS * chips.held / 3.6e12, cpu.held / 3.6e12]  # GB-hours; each chip has its part of a block
            rows.append((m.hit_rate, chips.share, cpu.share, m.latency("ttft")["mean"], *held, m.bound))
        hits, near, far, ttft, warm, cold, bound = np.mean(rows, axis=0)
        shown.append((name, ttft, warm))
        print(f"{name:<26}{hits:>7.1%}{near:>8.1%}{far:>8.1%}{ttft:>8.2f}s{warm:>11.0f} GB-h{cold:>6.0f} GB-h")
    print(f"at most {bound:.1%} could be found")
    if "--plot" in sys.argv:
        plot(shown, sys.argv[-1])


def agents(count: int, clients: int, seed: int) -> Requests:
    """Steps of short sessions; of their blocks of 64 tokens every eighth names all before it too: blocks of 512."""
    traffic = load_traffic("agents")
    short = traffic.sessions.model_copy(update={"steps": traffic.sessions.steps.model_copy(update={"mean": 25.0})})
    drawn = draw(traffic.model_copy(update={"sessions": short, "clients": clients}), count=count, seed=seed)
    return replace(drawn, chains=[chain[7::8] for chain in drawn.chains or ()], block=512)


def scenario() -> object:
    """Llama 3.1 70B on two chips, with their share of a node's CPU memory."""
    return archsim.scenario(
        model="meta/llama-3.1-70b",
        pools={"gpu": {"chip": "nvidia/h100-sxm", "count": CHIPS}},
        split={"tensor": CHIPS},
        precision={"weights": "fp8", "kv": "fp8"},
        traffic={"input": 120000, "output": 440},
        serving={"kv": {"tiers": [{"medium": "cpu", "capacity": "512 GB"}]}},
    )


def plot(rows: list[tuple[str, float, float]], target: str) -> None:
    """What users feel and what it costs to keep, side by side."""
    from plotly.subplots import make_subplots

    figure = make_subplots(cols=2, subplot_titles=("mean TTFT (s)", "GB-hours held on the chips"))
    for column in (1, 2):
        bars = [row[column] for row in rows]
        figure.add_bar(
            x=[row[0] for row in rows], y=bars, marker_color="#1f6fb4", texttemplate="%{y:.3g}", col=column, row=1
        )
    figure.update_layout(template="plotly_white", showlegend=False)
    figure.write_html(target, include_plotlyjs=True)


if __name__ == "__main__":
    main()
