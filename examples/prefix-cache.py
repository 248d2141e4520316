"""What a prefix cache finds, against the most that it could: conversations whose prompts hold all that was said before.

The trace is generated in the manner of Mooncake's conversation trace: chained blocks of 512 tokens, turns that come
minutes apart, long prompts. The bound is that of a cache that never forgets. What is found depends on the
memory that is left, and on replicas: each has a cache of its own.
"""

import numpy as np

import archsim
from archsim.workload.requests import Requests

BLOCK = 512
SESSIONS, TURNS = 400, 4


def main() -> None:
    """Prints hits and what they are worth."""
    trace = conversations(np.random.default_rng(0))
    sizes = f"{trace.input.mean():,.0f} tokens in, {trace.output.mean():.0f} out"
    print(f"{len(trace):,} requests, {sizes}; a cache that never forgets would find {bound(trace):.1%} of the tokens")
    print(f"{'chips and router':<34}{'hits':>7}{'TTFT':>9}{'p99':>9}{'TPOT':>9}{'$/Mtok in':>11}{'cached':>9}")
    cases = [
        ("TP8, no cache", {"tensor": 8}, {"prefix_cache": False}),
        ("TP8", {"tensor": 8}, {}),
        ("4 replicas of TP2, round robin", {"tensor": 2, "data": 4}, {"router": "round-robin"}),
        ("4 replicas of TP2, prefix-affine", {"tensor": 2, "data": 4}, {"router": "prefix-affine"}),
    ]
    for name, split, serving in cases:
        found = archsim.serve(scenario(split, serving), requests=trace)
        m, cost = found.measures, found.costs()
        ttft = m.latency("ttft")
        cached = "n/a" if np.isnan(cost["cached_input_cost"]) else f"{cost['cached_input_cost']:.3f}"
        print(
            f"{name:<34}{m.hit_rate:>7.1%}{ttft['mean']:>8.2f}s{ttft['p99']:>8.2f}s"
            f"{1e3 * m.latency('tpot')['mean']:>7.1f}ms{cost['input_cost']:>11.3f}{cached:>9}"
        )


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
    """Share of tokens in leading blocks that came before."""
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
        model="meta/llama-3.1-70b", pools={"gpu": {"chip": "nvidia/h100-sxm", "count": 8}}, split=split,
        precision={"weights": "fp8", "kv": "fp8"}, traffic={"input": 12000, "output": 340}, serving=serving,
    )


if __name__ == "__main__":
    main()
