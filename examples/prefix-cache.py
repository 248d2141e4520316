"""What a prefix cache finds, against the most that it could: conversations whose prompts hold all that was said before.

Without a trace the requests are generated in the manner of Mooncake's conversation trace: chained blocks of 512 tokens,
turns that come minutes apart, long prompts. The bound is that of a cache that never forgets. What is found depends on
the memory that is left, and on replicas: each has a cache of its own. CPU memory below the chips finds more.

`python examples/prefix-cache.py --trace FILE --rate 1` takes a recorded trace, sped up or slowed down to a rate;
`--plot FILE.html` also draws it.
"""

import argparse
import sys

import numpy as np

import archsim
from archsim.workload.requests import Requests
from archsim.workload.traces import load_trace

BLOCK = 512
SESSIONS, TURNS = 400, 4


CASES = [
    ("TP8, no cache", {"tensor": 8}, {"prefix_cache": False}),
    ("TP8", {"tensor": 8}, {}),
    ("TP8, 1 TB of CPU memory below", {"tensor": 8}, {"kv": {"tiers": [{"medium": "cpu", "capacity": "1 TB"}]}}),
    ("4 replicas of TP2, round robin", {"tensor": 2, "data": 4}, {"router": "round-robin"}),
    ("4 replicas of TP2, prefix-affine", {"tensor": 2, "data": 4}, {"router": "prefix-affine"}),
]


def main(words: list[str]) -> None:
    """Prints hits and what they are worth."""
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("--trace")
    parser.add_argument("--rate", type=float)
    parser.add_argument("--plot")
    given = parser.parse_known_args(words)[0]
    trace = load_trace(given.trace) if given.trace else conversations(np.random.default_rng(0))
    trace = trace.at_rate(given.rate) if given.rate else trace
    sizes = f"{trace.input.mean():,.0f} tokens in, {trace.output.mean():.0f} out"
    print(f"{len(trace):,} requests, {sizes}; a cache that never forgets would find {bound(trace):.1%} of the tokens")
    print(f"{'chips and router':<34}{'hits':>7}{'TTFT':>9}{'p99':>9}{'TPOT':>9}{'$/Mtok in':>11}{'cached':>9}")
    hits = {}
    for name, split, serving in CASES:
        found = archsim.serve(scenario(split, serving), requests=trace)
        m, cost = found.measures, found.costs()
        hits[name] = m.hit_rate
        ttft = m.latency("ttft")
        cached = "n/a" if np.isnan(cost["cached_input_cost"]) else f"{cost['cached_input_cost']:.3f}"
        print(
            f"{name:<34}{m.hit_rate:>7.1%}{ttft['mean']:>8.2f}s{ttft['p99']:>8.2f}s"
            f"{1e3 * m.latency('tpot')['mean']:>7.1f}ms{cost['input_cost']:>11.3f}{cached:>9}"
        )
    if given.plot:
        plot(hits, bound(trace), given.plot)


def conversations(rng: np.random.Generator) -> Requests:
    """Turns of conversations: a prompt is the one before it, its answer and a new question; ids are chained blocks."""
    rows = []
    for session in range(SESSIONS):
        time, tokens, names = rng.uniform(0, 3600), 0, []
        for turn in range(rng.geometric(1 / TURNS)):
            answer = int(rng.integers(50, 600))
            tokens += int(rng.lognormal(8.2, 1.0)) + answer
            names = [*names, *(session * 10**6 + turn * 10**4 + n for n in range(tokens // BLOCK - len(names)))]
            rows.append((time, min(tokens, 100_000), answer, tuple(names[: min(tokens, 100_000) // BLOCK])))
            time += float(rng.lognormal(4.5, 1.0))
    rows.sort()
    times, inputs, answers, chains = zip(*rows, strict=True)
    return Requests(np.array(times), np.array(inputs), np.array(answers), chains=chains, block=BLOCK, name="talks")


def bound(trace: Requests) -> float:
    """Share of tokens in leading whole blocks that came before."""
    seen: set[int] = set()
    hits = 0
    for chain in trace.chains or []:
        found = next((place for place, name in enumerate(chain) if name not in seen), len(chain))
        hits += found * BLOCK
        seen.update(chain)
    return hits / float(trace.input.sum())


def scenario(split: dict[str, int], serving: dict[str, object]) -> object:
    """The chips with one split and one policy."""
    return archsim.scenario(
        model="meta/llama-3.1-70b",
        pools={"gpu": {"chip": "nvidia/h100-sxm", "count": 8}},
        split=split,
        precision={"weights": "fp8", "kv": "fp8"},
        traffic={"input": 12000, "output": 340},
        serving=serving,
    )


def plot(hits: dict[str, float], most: float, target: str) -> None:
    """Hits of each case, under the bound."""
    from plotly.graph_objects import Figure

    figure = Figure()
    figure.add_bar(x=list(hits), y=list(hits.values()), marker_color="#1f6fb4", texttemplate="%{y:.1%}")
    figure.add_hline(y=most, line_dash="dot", annotation_text=f"a cache that never forgets: {most:.1%}")
    figure.update_layout(template="plotly_white", title="Prompt tokens found in the prefix cache")
    figure.update_yaxes(range=[0, 1], tickformat=".0%")
    figure.write_html(target, include_plotlyjs=True)


if __name__ == "__main__":
    main(sys.argv[1:])
