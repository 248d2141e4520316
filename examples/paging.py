"""What paging saves: KV memory in blocks against reservations, on a chip whose weights leave little room.

A server that reserves the longest answer for everybody, or the longest context, runs out of memory with most of it
empty. Blocks are taken as sequences grow, and only the last one of a sequence is not full.
"""

import archsim

WAYS = [
    ("reserve 16,384 tokens", {"allocation": "contiguous", "reserve": 16384}),
    ("reserve 4,096 tokens", {"allocation": "contiguous", "reserve": 4096}),
    ("reserve its own length", {"allocation": "contiguous"}),
    ("blocks of 256", {"block": 256}),
    ("blocks of 16", {"block": 16}),
]


def main() -> None:
    """Prints how many sequences run at once, and what that is worth."""
    print("256 clients, 600 tokens in and about 400 out, Qwen3-32B in fp8 with a bf16 KV cache on one H100")
    print(f"{'memory':<26}{'batch':>7}{'tok/s':>8}{'TTFT':>9}{'TPOT':>9}{'preempted':>11}{'$/Mtok':>9}")
    for name, kv in WAYS:
        found = archsim.serve(scenario(kv), requests=1500)
        m = found.measures
        print(
            f"{name:<26}{m.batch:>7.1f}{m.output_rate:>8,.0f}{m.latency('ttft')['mean']:>8.2f}s"
            f"{1e3 * m.latency('tpot')['mean']:>7.1f}ms{found.played.outcome.preempted:>11}"
            f"{found.costs()['cost_per_token']:>9.3f}"
        )


def scenario(kv: dict[str, object]) -> object:
    """The chip with one way to lay out its memory."""
    return archsim.scenario(
        model="qwen/qwen3-32b", pools={"gpu": {"chip": "nvidia/h100-sxm", "count": 1}}, split={"tensor": 1},
        precision={"weights": "fp8", "kv": "bf16"},
        traffic={
            "input": 600,
            "output": {"mean": 400, "spread": 0.8, "most": 3000},
            "arrivals": "closed",
            "clients": 256,
        },
        serving={"kv": kv, "max_batch": 256},
    )


if __name__ == "__main__":
    main()
