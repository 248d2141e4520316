"""The waterfall: what each step of orchestration is worth, from a naive server to all of them.

One node of 8 H100 serves Llama 3.1 70B, once to people who chat and once to coding agents. The naive server forms
static batches, reserves memory for the longest request, and computes in bf16. Then come continuous batching, paging,
chunked prefill, a prefix cache, fp8, speculation by n-grams (half of the drafts are right: an assumption), and
prefill and decode on four chips each. Each is priced when it joins those before it; alone, with what it needs (chunks
need continuous batching, a prefix cache needs paging); and last: all steps against all but this one and those that
need it.

Two loads, because one hides what the other shows. The promise: the most requests a second, or agents at once, at
which nine requests in ten have their first token and their pace in time. That is what can be sold, and a server that
lets people wait for a batch to end keeps it only while it is all but idle. Full: more clients than are served,
whatever they feel.

All servers see the same requests. `python examples/waterfall.py --plot FILE.html` also draws it.
"""

import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import cache

import numpy as np

import archsim
from archsim.explore.executors import processes
from archsim.explore.service import Service
from archsim.serving.simulate import simulate
from archsim.workload.requests import Requests
from archsim.workload.sessions import in_lanes
from archsim.workload.traffic import draw, load_traffic

STEPS = (
    "continuous batching", "paging", "chunked prefill", "prefix cache", "fp8", "speculation", "disaggregation"
)  # fmt: skip
REPLICAS = "two replicas instead"  # of four chips each, which do both: what of disaggregation is smaller groups
NEEDS = {"chunked prefill": "continuous batching", "prefix cache": "paging"}  # what a step cannot do without
WINDOW = 131072  # tokens of the model
PATIENCE = 600.0  # seconds after which whoever is silent is no load any more
COMING = 200.0  # seconds over which agents begin
SHORTEST, AGENT_HOURS = 600.0, 4.0  # seconds that agents are watched at least; agents times hours otherwise
Steps = frozenset[str]


@dataclass(frozen=True)
class Load:
    """Who is served: what they are promised, what the naive server reserves, and requests at a level of load."""

    unit: str
    slo: dict[str, str]
    reserve: int
    levels: tuple[float, ...]
    at: Callable[[float], tuple[Requests, float]]  # requests, and the second at which to stop
    full: Callable[[], tuple[Requests, float]]
    chunk: int  # tokens of a step with chunked prefill
    skip: int | None  # prompts with fewer tokens to compute are prefilled where they decode


@dataclass(frozen=True)
class Priced:
    """A server at the most that keeps the promise (NaN: nothing does), and when it is full."""

    level: float
    rate: float
    ttft: float
    tpot: float
    worst: float
    dollars: float
    full_rate: float
    full_dollars: float


def main() -> None:
    """Prints, for either load, the steps one after another, and each alone and last."""
    cases = [(name, steps) for name in LOADS for steps in servers()]
    with processes(2) as workers:
        found = dict(zip(cases, workers.executor.map(priced, *zip(*cases, strict=True)), strict=True))
    for name, load in LOADS.items():
        of = {steps: item for (other, steps), item in found.items() if other == name}
        table(name, load, of)
    if "--plot" in sys.argv:
        plot(found, sys.argv[-1])


def so_far(count: int) -> Steps:
    """The first so many steps."""
    return frozenset(STEPS[:count])


def alone(step: str) -> Steps:
    """A step, and what it needs."""
    return frozenset({step, NEEDS.get(step, step)})


def without(step: str) -> Steps:
    """All steps but one, and those that need it."""
    return frozenset(other for other in STEPS if step not in (other, NEEDS.get(other)))


def instead() -> Steps:
    """All steps but the last, on two replicas."""
    return frozenset({*STEPS[:-1], REPLICAS})


def servers() -> list[Steps]:
    """Every combination that is priced, once."""
    order = [so_far(count) for count in range(len(STEPS) + 1)]
    return list(dict.fromkeys([*order, instead(), *map(alone, STEPS), *map(without, STEPS)]))


def scenario(steps: Steps, load: Load) -> object:
    """The node with some steps taken."""
    kv = {} if "paging" in steps else {"allocation": "contiguous", "reserve": load.reserve}
    serving: dict[str, object] = {
        "kv": kv,
        "prefix_cache": "prefix cache" in steps,
        "scheduler": "static",
        "max_batch": 256,
    }
    serving["router"] = "session-affine"
    if "continuous batching" in steps:
        serving["scheduler"] = "continuous"
    if "chunked prefill" in steps:
        serving |= {"scheduler": "chunked", "max_tokens": load.chunk}
    number = "fp8" if "fp8" in steps else "bf16"
    keys: dict[str, object] = {"precision": {"weights": number, "kv": number}, "slo": load.slo}
    if "speculation" in steps:
        keys["speculation"] = {"drafts": 4, "acceptance": 0.5}
    chips = {"chip": "nvidia/h100-sxm", "count": 8}
    if "disaggregation" in steps:
        half = {**chips, "count": 4}
        keys |= {"mapper": "prefill-decode", "pools": {"prefill": half, "decode": half}}
        keys["split"] = {"tensor": 4, "partner": {"tensor": 4}}
        serving["disaggregation"] = {"skip_below": load.skip, "max_tokens": 8192}
    elif REPLICAS in steps:
        keys |= {"pools": {"gpu": chips}, "split": {"tensor": 4, "data": 2}}
    else:
        keys |= {"pools": {"gpu": chips}, "split": {"tensor": 8}}
    return archsim.scenario(model="meta/llama-3.1-70b", traffic={"input": 1, "output": 1}, serving=serving, **keys)


def priced(name: str, steps: Steps) -> Priced:
    """A server under both loads."""
    load = LOADS[name]
    requests, seconds = load.full()
    full = archsim.serve(scenario(steps, load), requests=requests, seconds=None if np.isinf(seconds) else seconds)
    last = full.measures.output_rate, full.costs()["cost_per_token"]
    plays: dict[float, Service] = {}

    def holds(level: float) -> bool:
        served = played(full, load, level)
        if kept(served) < served.targets.share:
            return False
        plays[level] = served
        return True

    level = largest(holds, load.levels)
    if not level:
        return Priced(*[np.nan] * 6, *last)
    best = plays[level]
    m = best.measures
    means = m.latency("ttft")["mean"], m.latency("tpot")["mean"]
    return Priced(level, m.output_rate, *means, float(m.gaps[0].max()), best.costs()["cost_per_token"], *last)


def played(service: Service, load: Load, level: float) -> Service:
    """The server at a level of load."""
    requests, seconds = load.at(level)
    return replace(service, requests=requests, played=simulate(requests, service.server, seconds=seconds))


def kept(service: Service) -> float:
    """Share that keeps the promise, of those that are over and those that have waited too long when time is up."""
    m, targets, end = service.measures, service.targets, service.played.seconds
    late = np.nan_to_num(service.played.first, nan=end) - service.played.arrived > targets.ttft
    judged = service.played.finished | late
    return float(m.kept(targets)[judged].mean()) if judged.any() else 0.0


def largest(holds: Callable[[float], bool], levels: tuple[float, ...]) -> float:
    """The last of the levels that holds, by bisection; 0 where the first does not."""
    low, high = -1, len(levels)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if holds(levels[middle]) else (low, middle)
    return levels[low] if low >= 0 else 0.0


def chat(rate: float) -> tuple[Requests, float]:
    """Chat at a rate."""
    return draw(load_traffic("chat"), rate, count=600), np.inf


def chatting() -> tuple[Requests, float]:
    """256 clients of chat, each of whom sends when it has its answer."""
    return draw(load_traffic("chat").model_copy(update={"arrivals": "closed", "clients": 256}), count=1500), np.inf


@cache
def sessions() -> Requests:
    """Sessions of agents within the model's window, without their rare sub-agents, in blocks of 512 tokens."""
    traffic = load_traffic("agents")
    most = WINDOW - traffic.output.most  # of a prompt; the longest answer goes on top
    short = {
        name: length.model_copy(
            update={"points": tuple((share, min(size, most - traffic.shared.tokens)) for share, size in length.points)}
        )
        for name, length in (("start", traffic.sessions.start), ("compacted", traffic.sessions.compacted))
    }
    model = traffic.sessions.model_copy(update={**short, "window": most, "subagents": None})
    drawn = draw(traffic.model_copy(update={"sessions": model, "arrivals": "poisson", "rate": 1.0}), count=8000)
    chains = [chain[7::8] for chain in drawn.chains or ()]
    return replace(drawn, chains=chains, block=512, gap=np.minimum(drawn.gap, PATIENCE))


def agents(count: float) -> tuple[Requests, float]:
    """So many agents at once, each of whom is followed by another; few are watched for longer."""
    drawn = in_lanes(sessions(), int(count))
    return drawn.starting(COMING / count * np.arange(drawn.sessions)), max(3600.0 * AGENT_HOURS / count, SHORTEST)


LOADS = {
    "chat": Load(
        "requests/s", {"ttft": "2 s", "tpot": "33.3 ms"}, 16384, tuple(np.geomspace(0.05, 40, 255)),
        chat, chatting, 2048, 512,
    ),
    "agents": Load(
        "agents", {"ttft": "10 s", "tpot": "50 ms"}, WINDOW,
        (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, 24, 28, 32, 36, 40, 48, 56, 64, 80, 96),
        agents, lambda: agents(96), 8192, 8192,
    ),
}  # fmt: skip


def table(name: str, load: Load, found: dict[Steps, Priced]) -> None:
    """Steps one after another, then the worth of each."""
    print(f"{name}: first token within {load.slo['ttft']}, {load.slo['tpot']} a token, for nine in ten{'':17}full")
    head = f"{'':<24}{load.unit:>10}{'tok/s':>7}{'TTFT':>8}{'TPOT':>8}{'worst':>8}{'$/Mtok':>8}"
    print(f"{head}{'tok/s':>10}{'$/Mtok':>8}")
    rows = {"naive": so_far(0), **{f"+ {step}": so_far(count) for count, step in enumerate(STEPS, 1)}}
    for label, steps in (rows | {f"  {REPLICAS}": instead()}).items():
        row = found[steps]
        times = f"{row.ttft:>7.2f}s{1e3 * row.tpot:>6.1f}ms{row.worst:>7.2f}s"
        promised = f"{row.level:>10.3g}{row.rate:>7,.0f}{times}{row.dollars:>8.3f}"
        print(f"{label:<24}{promised}{row.full_rate:>10,.0f}{row.full_dollars:>8.3f}")
    naive, everything = found[so_far(0)], found[so_far(len(STEPS))]
    print(f"\n{'price falls by':<24}{'joining':>10}{'alone':>9}{'last':>9}{'full: joining':>17}{'alone':>9}{'last':>9}")
    for count, step in enumerate(STEPS):
        pairs = (
            (found[so_far(count)], found[so_far(count + 1)]),
            (naive, found[alone(step)]),
            (found[without(step)], everything),
        )
        print(f"{step:<24}{worth(pairs)}")
    print(f"{'all':<24}{worth([(naive, everything)]):<28}\n")


def worth(pairs: Iterable[tuple[Priced, Priced]]) -> str:
    """How many times the price of the first is that of the other, for both loads."""
    pairs = list(pairs)
    promised = [factor(before.dollars, after.dollars) for before, after in pairs]
    full = [factor(before.full_dollars, after.full_dollars) for before, after in pairs]
    if len(pairs) == 1:
        return f"{promised[0]:>10}{'':18}{full[0]:>17}"
    return f"{promised[0]:>10}{promised[1]:>9}{promised[2]:>9}{full[0]:>17}{full[1]:>9}{full[2]:>9}"


def factor(before: float, after: float) -> str:
    """How many times the price falls; `needed`: without it no load keeps the promise; `never`: with it none does."""
    return "needed" if np.isnan(before) else "never" if np.isnan(after) else f"{before / after:.2f}x"


def plot(found: dict[tuple[str, Steps], Priced], target: str) -> None:
    """A waterfall of the price for each load, on a logarithmic axis: equal heights are equal factors."""
    from plotly.subplots import make_subplots

    views = {"kept promise": lambda item: item.dollars, "full": lambda item: item.full_dollars}
    titles = [f"{load}, {view}" for view in views for load in LOADS]
    figure = make_subplots(rows=2, cols=2, subplot_titles=titles, vertical_spacing=0.22, horizontal_spacing=0.09)
    for row, price in enumerate(views.values(), 1):
        for column, load in enumerate(LOADS, 1):
            dollars = np.array([price(found[load, so_far(count)]) for count in range(len(STEPS) + 1)])
            bars(figure, dollars, row, column)
    figure.update_layout(
        title="Price of a million tokens, naive server to all steps: Llama 3.1 70B on 8 H100",
        showlegend=False, template="plotly_white", height=900, font_size=12,
    )  # fmt: skip
    figure.write_html(target, include_plotlyjs=True)


def bars(figure: object, dollars: np.ndarray, row: int, column: int) -> None:
    """One waterfall, from 0.05 USD up."""
    floor, ticks = 0.05, np.array([0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50])
    changes = np.diff(np.log10(dollars))
    shown = [
        f"${dollars[0]:.3g}",
        *(f"÷{10**-change:.3g}" if change < 0 else f"×{10**change:.3g}" for change in changes),
        f"${dollars[-1]:.3g}",
    ]
    figure.add_waterfall(
        x=["naive", *STEPS, "all"],
        y=[np.log10(dollars[0] / floor), *changes, 0],
        measure=["absolute", *["relative"] * len(STEPS), "total"],
        text=shown, textposition="outside", cliponaxis=False,
        hovertext=[f"${value:.3f}" for value in (*dollars, dollars[-1])],
        increasing_marker_color="#d98200", decreasing_marker_color="#007f5c", totals_marker_color="#5f6670",
        row=row, col=column,
    )  # fmt: skip
    most = ticks[ticks < 2.2 * dollars.max()]
    figure.update_yaxes(
        tickvals=np.log10(most / floor), ticktext=[f"${value:g}" for value in most], title_text="USD a million tokens",
        range=[0, np.log10(2.2 * dollars.max() / floor)], row=row, col=column,
    )  # fmt: skip


if __name__ == "__main__":
    main()
