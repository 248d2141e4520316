"""Columns of a table as people read them: values in a fitting unit, names of fields and metrics in words."""

import re
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from archsim.arrays import Array
from archsim.explore.axes import SI
from archsim.explore.result import METRICS, PRICED
from archsim.report.document import UNITS
from archsim.report.formulas import quantity
from archsim.report.words import dollars, number, percent, token_rate
from archsim.units import show

LADDERS = {
    "B": ("B", "kB", "MB", "GB", "TB", "PB"),
    "B/s": ("B/s", "kB/s", "MB/s", "GB/s", "TB/s", "PB/s"),
    "FLOP/s": ("FLOP/s", "kFLOP/s", "MFLOP/s", "GFLOP/s", "TFLOP/s", "PFLOP/s", "EFLOP/s"),
    "Hz": ("Hz", "kHz", "MHz", "GHz"),
    "s": ("ns", "us", "ms", "s"),
    "W": ("mW", "W", "kW", "MW"),
}
SMALLEST = {"s": 1e-9, "W": 1e-3}
DIMENSIONS = {unit: dimension for dimension, unit in SI.items()}
MONEY = {"USD": "", "USD/h": "/h", "USD/kWh": "/kWh", "USD/Mtok": ""}
WORDS = {
    "tpot": "TPOT",
    "ttft": "TTFT",
    "itl": "ITL",
    "e2e": "E2E",
    "cost_per_token": "cost per million tokens",
    "output_cost": "cost per million output tokens",
    "input_cost": "cost per million input tokens",
    "cached_input_cost": "cost per million cached input tokens",
    "energy_per_token": "energy per output token",
    "meets_slo": "keeps the SLO",
    "links.bandwidth": "bandwidth of the links between the pools",
    "links.latency": "latency of the links between the pools",
}
FIELDS = (  # of a chip, in words
    (r"^links\.scale_up\.", "scale-up link "),
    (r"^links\.scale_out\.", "scale-out link "),
    (r"^links\.host\.", "host link "),
    (r"^(matrix|vector)\.", r"\1 peak "),
    (r"^energy\.flop\.(.*)", r"energy per \1 FLOP"),
    (r"^energy\.(byte|exponential)", r"energy per \1"),
    (r"^power\.(.*)", r"\1 power"),
    (r"^cap power", "power cap"),
    (r"^price\.system", "all-in price"),
    (r"^price\.(.*)", r"\1 price"),
    (r"^backing\.", "memory behind, "),
    (r"^sram$", "SRAM of a core"),
    (r"^cache$", "shared cache"),
    (r"^network$", "network on chip"),
)


@dataclass(frozen=True)
class Scale:
    """What values in SI are multiplied by, and the unit they then have."""

    factor: float = 1.0
    unit: str = ""


def scale_of(values: "npt.NDArray[np.generic]", unit: str) -> Scale:
    """The unit in which the middle of some numbers reads best."""
    ladder = LADDERS.get(unit)
    known = np.abs(np.asarray(values, dtype=np.float64))
    known = known[np.isfinite(known) & (known > 0)]
    if ladder is None or not known.size:
        return Scale(1.0, unit)
    least = SMALLEST.get(unit, 1.0)
    step = int(np.clip(np.floor(np.log10(float(np.median(known)) / least) / 3.0 + 1e-9), 0, len(ladder) - 1))
    return Scale(1.0 / (least * 1000.0**step), ladder[step])


def told(value: object, unit: str, whole: bool = False) -> str:
    """A value with its unit: "3.35 TB/s", "$0.43", "TP8"; with `whole`, zeros at the end stay.

    Of prices the label says what they are for, of rents the unit does: "$2.95/h".
    """
    if isinstance(value, str | np.str_):
        return str(value)
    if isinstance(value, bool | np.bool_):
        return "yes" if value else "no"
    figure = float(np.asarray(value, dtype=np.float64))
    if not np.isfinite(figure):
        return "n/a"
    if unit in MONEY:
        return f"{'-' if figure < 0 else ''}{dollars(abs(figure))}{MONEY[unit]}"
    if unit == "tok/s":
        return token_rate(figure)
    if unit in DIMENSIONS:
        return show(figure, DIMENSIONS[unit], 4) if whole else quantity(figure, DIMENSIONS[unit], 4)
    if unit == "1":
        return percent(figure)
    return f"{number(figure, 4)} {unit}".rstrip()


def unit_of(name: str) -> str:
    """The unit of a metric; "" for anything else."""
    known = METRICS | PRICED
    return UNITS[known[name][0]] if name in known else ""


def label_of(name: str) -> str:
    """A field or metric in words: "cost per million tokens", "memory bandwidth", "ffn: matrix peak fp8", "TPOT"."""
    if name in WORDS:
        return WORDS[name]
    latency = re.fullmatch(r"(ttft|tpot|itl|e2e)_(p\d+|mean)", name)
    if latency:
        return f"{latency[1].upper()} {latency[2]}"
    found = re.fullmatch(r"(?:pools\.([^.]+)\.)?chip\.(.+)", name)
    pool, field = found.groups() if found else ("", name)
    for pattern, words in FIELDS:
        field = re.sub(pattern, words, field)
    field = field.replace("_", " ").replace(".", " ")
    return f"{pool}: {field}" if pool else field


def headed(words: str) -> str:
    """Words at the start of a sentence; names that begin with a capital or a digit stay."""
    return words[:1].upper() + words[1:]


def titled(name: str, scale: Scale) -> str:
    """The title of an axis."""
    label, unit = label_of(name), "share" if scale.unit == "1" else scale.unit
    if name == "interactivity":
        unit += "/user"
    unit = unit.removesuffix("/Mtok")
    return f"{label} ({unit})" if unit else label


def logarithmic(values: Array, most: float = 20.0) -> bool:
    """Whether positive numbers span so much that only their logarithm tells them apart."""
    known = values[np.isfinite(values)]
    return bool(known.size and known.min() > 0 and known.max() > most * known.min())
