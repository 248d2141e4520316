"""What paging saves: KV memory in blocks against reservations, on a chip whose weights leave little room.

A server that reserves the longest answer for everybody, or the longest context, runs out of memory with most of it
empty. Blocks are taken as sequences grow, and only the last one of a sequence is not full.

`python examples/paging.py --plot FILE.html` also draws it.
"""

import sys

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
    rows = []
    for name, kv in WAYS:
        found = archsim.serve(scenario(kv), requests=1500)
        m = found.measures
        rows.append((name, m.batch, m.output_rate))
        print(
            f"{name:<26}{m.batch:>7.1f}{m.output_rate:>8,.0f}{m.latency('ttft')['mean']:>8.2f}s"
            f"{1e3 * m.latency('tpot')['mean']:>7.1f}ms{found.played.outcome.preempted:>11}"
            f"{found.costs()['cost_per_token']:>9.3f}"
        )
    if "--plot" in sys.argv:
        plot(rows, sys.argv[-1])


def scenario(kv: dict[str, object]) -> object:
    """The chip with one way to lay out its memory."""
    return archsim.scenario(
        model="qwen/qwen3-32b",
        pools={"gpu": {"chip": "nvidia/h100-sxm", "count": 1}},
        split={"tensor": 1},
        precision={"weights": "fp8", "kv": "bf16"},
        traffic={
            "input": 600,
            "output": {"mean": 400, "spread": 0.8, "most": 3000},
            "arrivals": "closed",
            "clients": 256,
        },
        serving={"kv": kv, "max_batch": 256},
    )


def plot(rows: list[tuple[str, float, float]], target: str) -> None:
    """Batch and throughput, side by side."""
    from plotly.subplots import make_subplots

    figure = make_subplots(cols=2, subplot_titles=("sequences in a decode step", "tok/s"))
    for column in (1, 2):
        bars = [row[column] for row in rows]
        figure.add_bar(
            x=[row[0] for row in rows], y=bars, marker_color="#1f6fb4", texttemplate="%{y:.3g}", col=column, row=1
        )
    figure.update_layout(template="plotly_white", showlegend=False)
    figure.write_html(target, include_plotlyjs=True)


if __name__ == "__main__":
    main()
