"""Throughput against interactivity, and what a fast mode must cost.

More clients on the same chips: each gets its tokens more slowly, and all together get more of them. A price that pays
for the chips at 100 tok/s a user is a multiple of the one at 30.
"""

import archsim

CLIENTS = [1, 2, 4, 8, 16, 32, 64, 128, 256]


def main() -> None:
    """Prints a row for each number of clients."""
    print("chat, Llama 3.1 70B in fp8 on 8 x H100, closed loop")
    print(f"{'clients':>7}{'tok/s/user':>12}{'p10':>7}{'tok/s':>8}{'TTFT p90':>10}{'$/Mtok out':>12}{'J/token':>9}")
    for clients in CLIENTS:
        found = archsim.serve(scenario(clients), requests=max(300, 6 * clients))
        m = found.measures
        tpot = m.latency("tpot")
        print(
            f"{clients:>7}{1 / tpot['mean']:>12.1f}{1 / tpot['p90']:>7.1f}{m.output_rate:>8,.0f}"
            f"{m.latency('ttft')['p90']:>9.2f}s{found.costs()['output_cost']:>12.2f}{found.energy_per_token:>9.2f}"
        )


def scenario(clients: int) -> object:
    """The chips with so many clients."""
    return archsim.scenario(
        model="meta/llama-3.1-70b", pools={"gpu": {"chip": "nvidia/h100-sxm", "count": 8}}, split={"tensor": 8},
        precision={"weights": "fp8", "kv": "fp8"},
        traffic={
            "input": {"mean": 1155, "spread": 0.96, "most": 14050},
            "output": {"mean": 211, "spread": 0.77, "most": 1000},
            "arrivals": "closed",
            "clients": clients,
        },
    )


if __name__ == "__main__":
    main()
