"""Which machine decodes a trillion-parameter model best: GPUs, GPUs with LPUs beside them, LPUs, near-memory chips.

For each system the Pareto front of throughput per megawatt of facility power, and of dollars per million output tokens,
against tokens a second for one user: decode steps, prefill apart, no speculation. `docs/partitioning.md` reads it.
"""

from dataclasses import replace

import numpy as np

import archsim
from archsim.explore.evaluate import legal
from archsim.explore.result import METRICS, Result
from archsim.report.point import point_at
from archsim.report.steps import steps_of, summary

FORMATS = {"weights": "fp8", "attention": "fp8", "experts": "nvfp4", "activations": "fp8", "kv": "fp8"}
BATCHES = np.array([1.0, 4.0, *2.0 ** np.arange(4, 17)])
LEVELS = (20, 50, 100, 200, 500, 1000)
RACK = {"overhead": "0 W"}  # the file of an LPX chip has its share of the rack
CARD = {"overhead": "60 W"}  # eight cards share a server
MODELS = (("moonshot/kimi-k2", 8192), ("moonshot/kimi-k2", 400_000), ("openai/gpt-oss-2t-what-if", 400_000))

SYSTEMS = {
    "64 H100": {"pools": {"gpu": {"chip": "nvidia/h100-sxm", "count": 64}}, "runtime": "sglang", "experts": "fp8"},
    "GB200 NVL72": {"pools": {"gpu": {"chip": "nvidia/gb200", "count": 72}}, "runtime": "tensorrt-llm"},
    "Rubin NVL72": {"pools": {"gpu": {"chip": "nvidia/rubin-vr200", "count": 72}}, "runtime": "tensorrt-llm"},
    "LPX": {"pools": {"rack": {"chip": "nvidia/groq-3-lpx"}}, "mapper": "layer-pipeline", "economics": RACK},
    "64 Jalapeno": {"pools": {"gpu": {"chip": "openai/jalapeno", "count": 64}}, "runtime": "native"},
    "8 x 8 Bertha": {
        "pools": {"card": {"chip": "hyperaccel/bertha-500-192gb", "count": 64}},
        "runtime": "native",
        "economics": CARD,
    },
}


def beside(model: str, racks: int, chips: int) -> dict[str, object]:
    """Attention on racks of 72 Rubin, feed-forward networks on LPX chips."""
    ffn = {"chip": "nvidia/groq-3-lpx", "count": chips, "economics": RACK}
    pools = {"attention": {"chip": "nvidia/rubin-vr200", "count": 72 * racks}, "ffn": ffn}
    return {"pools": pools, "mapper": "attention-ffn", "runtime": "tensorrt-llm"}


def run(model: str, context: int, system: dict[str, object], over: dict[str, object] | None = None) -> Result:
    """A system at every batch; LPUs alone in as many chips as the weights need."""
    keys = dict(system)
    formats = FORMATS | ({"experts": keys.pop("experts")} if "experts" in keys else {})
    if keys.get("mapper") == "layer-pipeline":
        count = 2560 if "kimi" in model else 4096
        keys |= {"pools": {"rack": {"chip": "nvidia/groq-3-lpx", "count": count}}, "runtime": "scheduled"}
    scenario = archsim.scenario(model=model, precision=formats, context=context, batch=1, **keys)
    return archsim.run(scenario, over={"batch": BATCHES, **(over or {})})


def front(result: Result) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Interactivity, tokens a second for a megawatt, and USD per million tokens of every proposal at every batch."""
    names = ("interactivity", "energy_per_token", "output_cost")
    user, joules, dollars = (np.broadcast_to(METRICS[name][2](result.answer), result.raw_shape) for name in names)
    fits = (legal(result.scenario) == 0) & (result.answer.fits > 0)
    return np.where(fits, user, np.nan), 1e6 / joules, dollars


def best(results: list[Result], level: float) -> tuple[float, float, int, int]:
    """Most tokens a second for a megawatt, and fewest dollars, at an interactivity; and where that is."""
    found, price = (0.0, 0, 0), np.nan
    for number, result in enumerate(results):
        user, rate, dollars = front(result)
        kept = np.isfinite(user) & (user >= level)
        if kept.any():
            at = int(np.argmax(np.where(kept, rate, 0.0)))
            found = max(found, (float(rate.flat[at]), number, at))
            price = float(np.nanmin([price, np.min(dollars[kept])]))
    return found[0], price, found[1], found[2]


def row(name: str, results: list[Result]) -> str:
    """A line of the table."""
    cells = []
    for level in LEVELS:
        rate, price, _, _ = best(results, level)
        cells.append(f"{rate / 1e3:>7.0f} {price:>8.2f}" if rate else f"{'-':>7} {'-':>8}")
    users = [float(np.nanmax(front(result)[0])) for result in results if result.feasible.any()]
    return (
        f"{name:<22}" + "".join(f"{cell:>18}" for cell in cells) + (f"{max(users):>9.0f}" if users else f"{'n/a':>9}")
    )


def bound(results: list[Result], level: float) -> str:
    """What most of the time goes to where a system is best at an interactivity."""
    rate, _, number, at = best(results, level)
    if not rate:
        return "does not reach it"
    result = results[number]
    proposal, batch = np.unravel_index(at, result.raw_shape)
    split = result.scenario.split.mapped(lambda _, value: value.reshape(-1)[[proposal if value.size > 1 else 0]])
    alone = archsim.run(replace(result.scenario, split=split, mapper=None), batch=BATCHES[batch])
    causes = summary(steps_of(point_at(alone, 0))[0])[:3]
    return ", ".join(f"{100 * share:.0f} % {name}" for name, share in causes)


def study(model: str, context: int) -> None:
    """The table of one model at one context."""
    chips = 1344 if "kimi" in model else 2736  # the fewest multiples of the layers that hold the experts
    pairs = {racks: run(model, context, beside(model, racks, chips)) for racks in (1, 4)}
    systems = {name: [run(model, context, system)] for name, system in SYSTEMS.items()}
    systems["Rubin + LPX"] = list(pairs.values())
    print(f"\n{model}, {context:,} cached tokens: thousand tok/s for a megawatt, and $/Mtok, at tok/s for a user")
    print(f"{'':<22}" + "".join(f"{level:>18}" for level in LEVELS) + f"{'most':>9}")
    for name, results in systems.items():
        print(row(name, results))
    for level in (50, 100, 200):
        rate, _, number, _ = best(systems["Rubin + LPX"], level)
        if rate:
            print(f"  best ratio at {level}: {72 * list(pairs)[number]} Rubin to {chips} LPX")
    for name, results in systems.items():
        print(f"  {name} at 50: {bound(results, 50)}")
    print(f"  prompts on Rubin NVL72: {np.nanmin(systems['Rubin NVL72'][0].input_cost):.2f} $ per million tokens")


def flips() -> None:
    """What changes the order for Kimi-K2 at 8k: faster links to the LPUs, and twice their SRAM."""
    model, context = MODELS[0]
    print("\nRubin + LPX, 288 to 1344: what if (thousand tok/s for a megawatt at 50, 100 and 200 tok/s for a user)")
    links = {
        "as it is": {},
        "links of 800 Gb/s": {"links.bandwidth": 1e11},
        "links of 25 Gb/s": {"links.bandwidth": 3.125e9},
    }
    for name, over in links.items():
        found = [run(model, context, beside(model, 4, 1344), over)]
        print(f"  {name:<24}" + "".join(f"{best(found, level)[0] / 1e3:>8.0f}" for level in (50, 100, 200)))
    half = run(model, context, beside(model, 4, 671), {"pools.ffn.chip.memory.capacity": 1e9})
    print(
        f"  {'twice the SRAM, 671':<24}" + "".join(f"{best([half], level)[0] / 1e3:>8.0f}" for level in (50, 100, 200))
    )
    bertha, rubin = (run(model, context, SYSTEMS[name]) for name in ("8 x 8 Bertha", "Rubin NVL72"))
    for level in (20, 50):
        ratio = best([rubin], level)[1] / best([bertha], level)[1]
        print(f"  Bertha costs as much a token as Rubin at {level} tok/s if its cards cost {ratio:.2f} of what they do")


def main() -> None:
    """Prints the study."""
    for model, context in MODELS:
        study(model, context)
    flips()


if __name__ == "__main__":
    main()
