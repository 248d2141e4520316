"""Prefill and decode on chips of their own against both on all of them; and prompts that stay where they decode.

Eight chips, in replicas of two. Every division between the pools is tried, and the rate at which nine requests in ten
keep their promise is found for each; what does both is tried with long and short steps of prefill. Then short questions
come among long documents: a short prompt that is prefilled where it decodes saves the way, and leaves the other pool to
the long ones.

`python examples/disaggregation.py --plot FILE.html` also draws it.
"""

import sys

import numpy as np

import archsim
from archsim.explore.rates import best_rate, best_ratio
from archsim.explore.service import Asked
from archsim.workload.requests import Requests

WORKERS, COUNT = 2, 200
SKIPS = {"none": None, "up to 256 tokens": 256, "up to 2,048": 2048, "auto": "auto", "all": 10**6}
STEPS = (256, 512, 2048)
TRAFFIC = {
    "long prompts": {"input": {"mean": 3000, "spread": 0.5, "most": 12000}, "output": {"mean": 150, "spread": 0.5}},
    "long answers": {"input": {"mean": 1000, "spread": 0.5, "most": 8000}, "output": {"mean": 400, "spread": 0.5}},
}


def main() -> None:
    """Prints goodput by ratio, then latencies by threshold."""
    print("Llama 3.1 70B in fp8 on 8 x H100 in replicas of TP2; TTFT 1 s and TPOT 25 ms for nine requests in ten")
    print(f"{'':<14}{'replicas':<31}{'requests/s':>12}{'a chip':>9}")
    rows = []
    for name, traffic in TRAFFIC.items():
        for tokens in STEPS:
            rate = best_rate(archsim.serve(scenario(traffic, None, tokens=tokens), requests=COUNT), 1).rate
            rows.append((name, f"4 mixed, {tokens:,}", rate))
            print(f"{name:<14}{f'4 mixed, {tokens:,} tokens a step':<31}{rate:>12.2f}{rate / 8:>9.3f}")
        for ratio in best_ratio(scenario(traffic, (2, 2)), Asked(count=COUNT), workers=WORKERS):
            label = f"{ratio.prefill} prefill, {ratio.decode} decode"
            rows.append((name, label, ratio.largest.rate))
            print(f"{name:<14}{label:<31}{ratio.largest.rate:>12.2f}{ratio.per_chip:>9.3f}")
    print()
    trace = questions_among_documents(np.random.default_rng(0))
    print(f"{len(trace):,} requests, nine in ten of them short; 2 replicas prefill, 2 decode")
    print(f"{'prefilled where they decode':<30}{'handed over':>12}{'TTFT':>9}{'short p90':>11}{'TPOT p90':>10}")
    short = trace.input < 1000
    for label, skip in SKIPS.items():
        found = archsim.serve(scenario(TRAFFIC["long prompts"], (2, 2), skip), requests=trace)
        m = found.measures
        print(
            f"{label:<30}{found.played.outcome.handed:>12,}{m.latency('ttft')['mean']:>8.2f}s"
            f"{np.percentile(m.ttft[short], 90):>10.2f}s{1e3 * m.latency('tpot')['p90']:>8.1f}ms"
        )
    if "--plot" in sys.argv:
        plot(rows, sys.argv[-1])


def questions_among_documents(rng: np.random.Generator) -> Requests:
    """Short questions, one long document in ten."""
    count = 600
    times = rng.exponential(1 / 9.0, count).cumsum()
    inputs = np.where(rng.random(count) < 0.9, rng.integers(50, 400, count), rng.integers(8000, 24000, count))
    return Requests(times, inputs, rng.integers(50, 250, count), name="questions among documents")


def scenario(
    traffic: dict[str, object], replicas: tuple[int, int] | None, skip: int | str | None = None, tokens: int = 4096
) -> object:
    """Eight chips as one pool, or as one that prefills and one that decodes."""
    keys = {
        "model": "meta/llama-3.1-70b",
        "precision": {"weights": "fp8", "kv": "fp8"},
        "traffic": {**traffic, "rate": 4},
        "slo": {"ttft": "1 s", "tpot": "25 ms"},
    }
    if replicas is None:
        pools = {"gpu": {"chip": "nvidia/h100-sxm", "count": 8}}
        return archsim.scenario(**keys, pools=pools, split={"tensor": 2, "data": 4}, serving={"max_tokens": tokens})
    first, second = replicas
    return archsim.scenario(
        **keys,
        mapper="prefill-decode",
        pools={
            "prefill": {"chip": "nvidia/h100-sxm", "count": 2 * first},
            "decode": {"chip": "nvidia/h100-sxm", "count": 2 * second},
        },
        split={"tensor": 2, "data": second, "partner": {"tensor": 2, "data": first}},
        serving={"disaggregation": {"max_tokens": tokens, "skip_below": skip}},
    )


def plot(rows: list[tuple[str, str, float]], target: str) -> None:
    """Goodput of every way to use the chips, for both kinds of traffic."""
    from plotly.graph_objects import Figure

    figure = Figure()
    for name in TRAFFIC:
        own = [row for row in rows if row[0] == name]
        figure.add_bar(x=[row[1] for row in own], y=[row[2] for row in own], name=name, texttemplate="%{y:.3g}")
    figure.update_layout(template="plotly_white", title="Requests a second that keep the promise, on 8 H100")
    figure.write_html(target, include_plotlyjs=True)


if __name__ == "__main__":
    main()
