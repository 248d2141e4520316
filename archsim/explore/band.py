"""How far off an answer may be: the ends between which four of five measurements lie.

They are those of serving runs about their prediction (`spread` of the runtime's file), by how far the chip is from
chips whose runs were fitted. Rates that the chip's own file assumes widen them. Memory is counted, not predicted, and
has no band.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from archsim.chip.model import Chip
from archsim.explore.scenario import Scenario
from archsim.mapping.runtime import DistanceFile, SpreadFile
from archsim.workload.model import Moe

SHARE = 0.8  # of measurements inside
ASSUMED = 1.5  # times wider, as a ratio's logarithm, where the chip's own rates are assumptions
POWER = 1.2  # the power model's own 80 % band: it is good to 10 to 20 %
RATES = ("matrix", "memory", "clock", "cores", "links")  # fields of a chip that decide its speed; latencies are fitted

DISTANCES = {
    "fitted": "serving runs of other models on this chip were fitted",
    "sibling": "chips of its generation were measured, not this one as it is here",
    "other": "no chip of its generation was measured in serving runs",
}

# The time whose band a metric has, and whether it grows with it (1) or falls (-1): of a step, of the steady state
TIMES: Mapping[str, tuple[tuple[str, int], tuple[str, int]]] = {
    "tpot": (("tpot", 1), ("tpot", 1)),
    "ttft": (("ttft", 1), ("ttft", 1)),
    "interactivity": (("tpot", -1), ("tpot", -1)),
    "throughput": (("tpot", -1), ("tpot", -1)),
    "throughput_per_chip": (("tpot", -1), ("tpot", -1)),
    "input_throughput": (("ttft", -1), ("tpot", -1)),
    "cost_per_token": (("tpot", 1), ("tpot", 1)),
    "output_cost": (("tpot", 1), ("tpot", 1)),
    "input_cost": (("ttft", 1), ("tpot", 1)),
    "energy_per_token": (("tpot", 1), ("tpot", 1)),
}


@dataclass(frozen=True)
class Band:
    """Factors on a value between which a share SHARE of measurements lies."""

    low: float
    high: float

    def of(self, value: float) -> tuple[float, float]:
        """The ends about one value."""
        return value * self.low, value * self.high


def distance(scenario: Scenario) -> str:
    """How far the farthest chip of a system is from those whose serving runs were fitted: a key of DISTANCES."""
    return max((_distance(scenario.runtime.spread, chip) for chip in _chips(scenario)), key=list(DISTANCES).index)


def _distance(spread: SpreadFile | None, chip: Chip) -> str:
    if spread is None or chip.generation.name not in spread.generations:
        return "other"
    return "fitted" if chip.name in spread.chips and not chip.varied else "sibling"


def _chips(scenario: Scenario) -> list[Chip]:
    """The chips of both pools."""
    return [pool.chip for pool in scenario.system.pools.values()]


def assumed(scenario: Scenario) -> list[str]:
    """Rates of its chips that their own files assume."""
    sources = [source for chip in _chips(scenario) for source in chip.sources if source.kind == "assumption"]
    fields = [field for source in sources for field in source.of]
    rates = [field for field in fields if field.partition(".")[0] in RATES and not field.endswith("latency")]
    return list(dict.fromkeys(rates))


def band(scenario: Scenario, metric: str, mode: str) -> Band | None:
    """The band of a metric in a mode; None for one that is counted, and where the runtime's file has none."""
    spread = scenario.runtime.spread
    if spread is None:
        return None
    if metric == "power":
        return Band(1.0 / POWER, POWER)
    if metric not in TIMES:
        return None
    time, sign = TIMES[metric][mode == "steady"]
    low, high = np.log(_ends(scenario, spread, time)) * (ASSUMED if assumed(scenario) else 1.0)
    if metric == "energy_per_token":
        low, high = -np.hypot(low, np.log(POWER)), np.hypot(high, np.log(POWER))
    ends = np.exp([low, high] if sign > 0 else [-high, -low])
    return Band(float(ends[0]), float(ends[1]))


def _ends(scenario: Scenario, spread: SpreadFile, time: str) -> tuple[float, float]:
    """Ends of the band of a time, as factors."""
    kinds = spread.tpot if time == "tpot" else spread.ttft
    routed = any(isinstance(block.ffn, Moe) for block in scenario.model.blocks.values())
    by_distance: DistanceFile = kinds.experts if routed else kinds.dense
    ends: tuple[float, float] = getattr(by_distance, distance(scenario))
    return ends


def basis(scenario: Scenario) -> str:
    """What the bands rest on, in a sentence."""
    if scenario.runtime.spread is None:
        return f"No band: {scenario.runtime.name} is what the chip allows, not a prediction of a measurement."
    text = f"Bands hold {SHARE * 100:.0f} % of measured runs: {DISTANCES[distance(scenario)]}"
    fields = assumed(scenario)
    if fields:
        text += f"; {ASSUMED:g} times wider, because the chip's file assumes {', '.join(fields)}"
    return f"{text}."
