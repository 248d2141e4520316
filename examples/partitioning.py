"""Which machine decodes a trillion-parameter model best: GPUs, GPUs with LPUs beside them, LPUs, near-memory chips.

For each system the Pareto front of throughput per megawatt of facility power, and of dollars per million output tokens,
against tokens a second for one user: decode steps, prefill apart, no speculation. Where one pool prefills for another,
the table has the pool that decodes, and a line below it the closed loop through both. `docs/partitioning.md` reads it.
"""

from dataclasses import replace

import numpy as np

import archsim
from archsim.economics.money import wall_power
from archsim.explore.bill import facility_power, shares
from archsim.explore.diagnosis import diagnose
from archsim.explore.evaluate import legal
from archsim.explore.result import METRICS, Result
from archsim.explore.second import job_of
from archsim.report.point import point_at
from archsim.report.steps import steps_of, summary

FORMATS = {"weights": "fp8", "attention": "fp8", "experts": "nvfp4", "activations": "fp8", "kv": "fp8"}
BATCHES = np.array([1.0, 4.0, *2.0 ** np.arange(4, 17)])
LEVELS = (20, 50, 100, 200, 500, 1000)
RACK = {"overhead": "0 W"}  # the file of an LPX chip has its share of the rack
CARD = {"overhead": "60 W"}  # eight cards share a server
PREFILL = (8, 16, 36, 72)  # Rubin that prefill for LPX chips
FIRST = {8192: 1.0, 400_000: 15.0}  # seconds in which the first token has to come
LPDDR = np.array([5.0, 10.0, 20.0])  # USD/GB: late 2025, the file of Bertha, and dearer
RATIOS = np.array([1.5, 2.0, 3.0, 4.0, 5.0])  # of HBM over LPDDR
SLOW = (2, 5, 10, 20)  # tok/s for a user, where memory decides what a token costs
MODELS = (("moonshot/kimi-k2", 8192), ("moonshot/kimi-k2", 400_000), ("openai/gpt-oss-2t-what-if", 400_000))
LPUS = {  # LPX chips that decode alone: what the weights and a KV cache need
    ("moonshot/kimi-k2", 8192): 2560,
    ("moonshot/kimi-k2", 400_000): 3520,
    ("openai/gpt-oss-2t-what-if", 400_000): 4096,
}

SYSTEMS = {
    "64 H100": {"pools": {"gpu": {"chip": "nvidia/h100-sxm", "count": 64}}, "runtime": "sglang", "experts": "fp8"},
    "GB200 NVL72": {"pools": {"gpu": {"chip": "nvidia/gb200", "count": 72}}, "runtime": "tensorrt-llm"},
    "Rubin NVL72": {"pools": {"gpu": {"chip": "nvidia/rubin-vr200", "count": 72}}, "runtime": "tensorrt-llm"},
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


def apart(context: int, chips: int) -> dict[str, object]:
    """Prompts on Rubin, decoding on LPX chips with pinned layers; answers of 1,024 tokens."""
    lpus = {"chip": "nvidia/groq-3-lpx", "count": chips, "economics": RACK}
    pools = {"prefill": {"chip": "nvidia/rubin-vr200", "count": PREFILL}, "decode": lpus}
    traffic = {"input": context, "output": 1024}
    return {"pools": pools, "mapper": "prefill-decode", "runtime": "tensorrt-llm", "traffic": traffic}


def run(
    model: str,
    context: int,
    system: dict[str, object],
    over: dict[str, object] | None = None,
    mode: str = "step",
) -> Result:
    """A system at every batch."""
    keys = dict(system)
    formats = FORMATS | ({"experts": keys.pop("experts")} if "experts" in keys else {})
    scenario = archsim.scenario(model=model, precision=formats, context=context, batch=1, **keys)
    return archsim.run(scenario, mode=mode, over={"batch": BATCHES, **(over or {})})


def front(result: Result) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Interactivity, tokens a second for a megawatt, and USD per million tokens of every proposal at every batch.

    Of the pool that decodes alone, where another prefills.
    """
    main, rate = shares(result.answer)[0], result.answer.output_rate
    alone = job_of(result.scenario) == "prefill"
    watts = wall_power(main.watts, main.terms) * main.count if alone else facility_power(result.answer)
    names = ("interactivity", "output_cost")
    user, dollars = (np.broadcast_to(METRICS[name][2](result.answer), result.raw_shape) for name in names)
    fits = (legal(result.scenario) == 0) & (result.answer.fits > 0)
    return np.where(fits, user, np.nan), np.broadcast_to(1e6 * rate / watts, result.raw_shape), dollars


def loop(model: str, context: int, chips: int) -> str:
    """The most output for a megawatt of both pools, prompts included, where the first token comes in time."""
    result = run(model, context, apart(context, chips), mode="steady")
    answer, limit = result.answer, FIRST[context]
    late = (legal(result.scenario) > 0) | (answer.fits == 0) | (answer.ttft > limit)
    rate = np.where(late, 0.0, answer.output_rate * 1e6 / facility_power(answer))
    full = np.broadcast_to(rate, result.raw_shape)
    if not full.any():
        return f"no number of Rubin up to {PREFILL[-1]} gives the first token in {limit} s"
    at = np.unravel_index(int(np.argmax(full)), full.shape)
    bill = METRICS["input_cost"][2](answer), METRICS["output_cost"][2](answer)
    values = [answer.batch, answer.scenario.partner.count, answer.ttft, 1.0 / answer.tpot, *bill]
    batch, count, first, user, prompt, output = (float(np.broadcast_to(v, full.shape)[at]) for v in values)
    return (
        f"{batch:.0f} at once on {count:.0f} Rubin, {chips} LPX: {full[at]:.0f} tok/s for a megawatt of both;\n"
        f"    {user:.0f} tok/s for a user, {first:.2f} s to the first token, {prompt:.2f} $ in and {output:.2f} $ out"
    )


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
    lpus = LPUS[model, context]
    systems["Rubin, then LPX"] = [run(model, context, apart(context, lpus))]
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
    print(f"  Rubin, then LPX, with prompts: {loop(model, context, lpus)}")
    if lpus > min(LPUS[model, other] for name, other in LPUS if name == model):
        few = run(model, context, apart(context, LPUS[model, 8192]), {"batch": 1.0})
        found = diagnose(few, 0)
        if found:
            print(f"  {LPUS[model, 8192]} LPX: {found.reason}\n    " + "; ".join(found.fixes))
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


def cheapest(model: str, context: int, name: str, prices: np.ndarray) -> np.ndarray:
    """Fewest USD per million tokens of a system that is bought, by interactivity (SLOW) and USD/GB of its memory."""
    system = SYSTEMS[name]
    paid = {**system.get("economics", {}), "by": "capital"}
    result = run(model, context, {**system, "economics": paid}, {"chip.price.memory": prices})
    user, _, dollars = front(result)
    return np.array([np.min(np.where(user >= level, dollars, np.inf), axis=(0, 1)) for level in SLOW])


def memory_prices() -> None:
    """Where Bertha and Rubin, both bought, cost the same a token, by what HBM costs beside LPDDR."""
    print(
        "\nRubin over Bertha, $ a token, both bought: LPDDR5X at 10 USD/GB, HBM4 at so many times that; and the ratio"
    )
    print("at which they cost the same, with LPDDR5X at 5, 10 and 20 USD/GB")
    print(f"{'':<36}" + "".join(f"{ratio:>7.1f}" for ratio in RATIOS) + "".join(f"{price:>9.0f}" for price in LPDDR))
    hbm = np.linspace(0.0, 4000.0, 201)
    for model, context in MODELS:
        cards, gpus = cheapest(model, context, "8 x 8 Bertha", LPDDR), cheapest(model, context, "Rubin NVL72", hbm)
        for level, card, gpu in zip(SLOW, cards, gpus, strict=True):
            shown = np.interp(RATIOS * LPDDR[1], hbm, gpu) / card[1]
            equal = np.interp(card, gpu, hbm, left=0.0, right=np.nan) / LPDDR
            label = f"{model.split('/')[1]} {context // 1000}k, {level} tok/s"
            print(f"  {label:<34}" + "".join(f"{v:>7.2f}" for v in shown) + "".join(f"{v:>9.1f}" for v in equal))


def main() -> None:
    """Prints the study."""
    for model, context in MODELS:
        study(model, context)
    flips()
    memory_prices()


if __name__ == "__main__":
    main()
