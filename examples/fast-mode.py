"""Throughput against interactivity, and what a fast mode must cost.

More clients on the same chips: each gets its tokens more slowly, and all together get more of them. A price that pays
for the chips at 100 tok/s a user is a multiple of the one at 30.

`python examples/fast-mode.py --plot FILE.html` also draws it.
"""

import sys

import numpy as np

import archsim

SLOW, FASTER = 30.0, 2.5  # tok/s of a user, and how many times that a fast mode gives
CLIENTS = [1, 2, 4, 8, 16, 32, 64, 128, 256]


def main() -> None:
    """Prints a row for each number of clients."""
    print("chat, Llama 3.1 70B in fp8 on 8 x H100, closed loop")
    print(f"{'clients':>7}{'tok/s/user':>12}{'p10':>7}{'tok/s':>8}{'TTFT p90':>10}{'$/Mtok out':>12}{'J/token':>9}")
    speeds, rates, prices = [], [], []
    for clients in CLIENTS:
        found = archsim.serve(scenario(clients), requests=max(300, 6 * clients))
        m = found.measures
        tpot = m.latency("tpot")
        speeds.append(1 / tpot["mean"])
        rates.append(m.output_rate)
        prices.append(found.costs()["output_cost"])
        print(
            f"{clients:>7}{1 / tpot['mean']:>12.1f}{1 / tpot['p90']:>7.1f}{m.output_rate:>8,.0f}"
            f"{m.latency('ttft')['p90']:>9.2f}s{found.costs()['output_cost']:>12.2f}{found.energy_per_token:>9.2f}"
        )
    slow, fast = (price(speed, speeds, prices) for speed in (SLOW, FASTER * SLOW))
    ratio = f"{FASTER:g} times {SLOW:g} tok/s must cost {fast / slow:.1f} times as much"
    print(f"{ratio}: ${slow:.2f} and ${fast:.2f} a million tokens out")
    if "--plot" in sys.argv:
        plot(speeds, rates, prices, sys.argv[-1])


def scenario(clients: int) -> object:
    """The chips with so many clients."""
    return archsim.scenario(
        model="meta/llama-3.1-70b",
        pools={"gpu": {"chip": "nvidia/h100-sxm", "count": 8}},
        split={"tensor": 8},
        precision={"weights": "fp8", "kv": "fp8"},
        traffic={
            "input": {"mean": 1155, "spread": 0.96, "most": 14050},
            "output": {"mean": 211, "spread": 0.77, "most": 1000},
            "arrivals": "closed",
            "clients": clients,
        },
    )


def price(speed: float, speeds: list[float], prices: list[float]) -> float:
    """USD a million output tokens at a speed, between the numbers of clients that were tried."""
    return float(np.exp(np.interp(speed, speeds[::-1], np.log(prices[::-1]))))


def plot(speeds: list[float], rates: list[float], prices: list[float], target: str) -> None:
    """Throughput and price over interactivity."""
    from plotly.subplots import make_subplots

    figure = make_subplots(cols=2, subplot_titles=("tok/s of all", "USD a million output tokens"))
    for column, values in enumerate((rates, prices), 1):
        line = {"x": speeds, "y": values, "text": CLIENTS, "mode": "lines+markers+text", "textposition": "top right"}
        figure.add_scatter(**line, line_color="#1f6fb4", row=1, col=column)
        figure.update_xaxes(title_text="tok/s of a user", row=1, col=column)
    figure.update_yaxes(type="log", tickvals=[0.5, 1, 2, 5, 10, 20, 50, 100], col=2)
    figure.update_layout(template="plotly_white", showlegend=False, title="By the number of clients")
    figure.write_html(target, include_plotlyjs=True)


if __name__ == "__main__":
    main()
