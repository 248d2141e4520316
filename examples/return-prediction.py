"""Evicting those who stay away: what a prediction of who returns is worth, by its precision and recall.

One step in twenty of a coding agent is followed by more than ten minutes of silence, or is its last. A cache that knew
which would give up just these blocks; that the least recently used go first is a guess at them, and so is an age. The
oracle knows and errs as told: of those it names the share `precision` leaves, and of those who leave it names the share
`recall`. The trained one is a logistic regression on what a server sees: gaps so far, step, tokens, why the answer
ended. Means over three draws of traffic.
"""

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
        f"oracle {precision:.2f} / {recall:.2f}": Eviction(predictor=Oracle(precision, recall))
        for precision, recall in ((0.5, 0.5), (0.5, 1.0), (0.75, 0.75), (1.0, 0.5), (1.0, 1.0))
    },
    "trained, threshold 0.1": Eviction(predictor=load_returns("coding-agents"), threshold=0.1),
}
DRAWS = 3


def main() -> None:
    """Prints a line for each policy."""
    draws = [agents(1000, 20, seed) for seed in range(DRAWS)]
    print(f"{len(draws[0]):,} steps of about {draws[0].sessions} sessions")
    print(f"{'policy':<26}{'hits':>7}{'TTFT':>9}{'p90':>8}{'held':>12}")
    node = scenario()
    servers = [server_of(deployment_of(node), node.serving, asked) for asked in draws]
    for name, policy in POLICIES.items():
        rows = []
        for asked, server in zip(draws, servers, strict=True):
            m = Measures(simulate(asked, replace(server, eviction=policy)))
            ttft = m.latency("ttft")
            rows.append((m.hit_rate, ttft["mean"], ttft["p90"], 2 * m.tiers[0].held / 3.6e12, m.bound))
        hits, ttft_mean, ttft_p90, held, bound = np.mean(rows, axis=0)
        print(f"{name:<26}{hits:>7.1%}{ttft_mean:>8.2f}s{ttft_p90:>7.1f}s{held:>7.0f} GB-h")
    print(f"at most {bound:.1%} could be found")


def agents(count: int, clients: int, seed: int) -> Requests:
    """Steps of short sessions; of their blocks of 64 tokens every eighth names all before it too: blocks of 512."""
    traffic = load_traffic("agents")
    short = traffic.sessions.model_copy(update={"steps": traffic.sessions.steps.model_copy(update={"mean": 25.0})})
    drawn = draw(traffic.model_copy(update={"sessions": short, "clients": clients}), count=count, seed=seed)
    return replace(drawn, chains=[chain[7::8] for chain in drawn.chains or ()], block=512)


def scenario() -> object:
    """Llama 3.1 70B on two chips."""
    return archsim.scenario(
        model="meta/llama-3.1-70b", pools={"gpu": {"chip": "nvidia/h100-sxm", "count": 2}},
        split={"tensor": 2}, precision={"weights": "fp8", "kv": "fp8"}, traffic={"input": 120000, "output": 440},
    )


if __name__ == "__main__":
    main()
