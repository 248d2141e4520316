"""What continuous batching is worth: the same chat on the same chips, batch by batch and iteration by iteration.

A static batch waits for its longest answer, and those that come meanwhile wait for the batch. Memory is taken in one
piece for each whole sequence, as such servers do; paging on top is the subject of `paging.py`.

`python examples/static-or-continuous.py --plot FILE.html` also draws it.
"""

import sys

import archsim

STEPS = [
    ("static batches", "static", "contiguous"),
    ("continuous batching", "continuous", "contiguous"),
    ("chunked prefill", "chunked", "contiguous"),
]
CLIENTS = 128


def main() -> None:
    """Prints throughput and latencies of each scheduler in a closed loop."""
    print(f"{CLIENTS} clients of chat, Llama 3.1 70B in fp8 on 8 x H100")
    print(f"{'scheduler':<22}{'tok/s':>8}{'batch':>8}{'TTFT':>9}{'p99':>9}{'TPOT':>9}{'ITL p99':>9}{'$/Mtok':>9}")
    rows = []
    for name, scheduler, allocation in STEPS:
        found = archsim.serve(scenario(scheduler, allocation), requests=1500)
        m = found.measures
        rows.append((name, m.batch / CLIENTS, m.output_rate))
        ttft, tpot, itl = (m.latency(what) for what in ("ttft", "tpot", "itl"))
        print(
            f"{name:<22}{m.output_rate:>8,.0f}{m.batch:>8.1f}{ttft['mean']:>8.2f}s{ttft['p99']:>8.2f}s"
            f"{1e3 * tpot['mean']:>7.1f}ms{1e3 * itl['p99']:>7.0f}ms{found.costs()['cost_per_token']:>9.2f}"
        )
    if "--plot" in sys.argv:
        plot(rows, sys.argv[-1])


def scenario(scheduler: str, allocation: str) -> object:
    """The chips with one scheduler."""
    return archsim.scenario(
        model="meta/llama-3.1-70b",
        pools={"gpu": {"chip": "nvidia/h100-sxm", "count": 8}},
        split={"tensor": 8},
        precision={"weights": "fp8", "kv": "fp8"},
        traffic={
            "input": {"mean": 1155, "spread": 0.96, "most": 14050},
            "output": {"mean": 211, "spread": 0.77, "most": 1000},
            "arrivals": "closed",
            "clients": CLIENTS,
        },
        serving={"scheduler": scheduler, "max_batch": CLIENTS, "kv": {"allocation": allocation}},
    )


def plot(rows: list[tuple[str, float, float]], target: str) -> None:
    """Utilisation and throughput, side by side."""
    from plotly.subplots import make_subplots

    figure = make_subplots(cols=2, subplot_titles=("clients in a decode step, share", "tok/s"))
    for column in (1, 2):
        bars = [row[column] for row in rows]
        figure.add_bar(
            x=[row[0] for row in rows], y=bars, marker_color="#1f6fb4", texttemplate="%{y:.3g}", col=column, row=1
        )
    figure.update_layout(template="plotly_white", showlegend=False)
    figure.write_html(target, include_plotlyjs=True)


if __name__ == "__main__":
    main()
