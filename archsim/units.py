"""Quantities with units: "3.35 TB/s" becomes 3.35e12 at the border, and inside everything is SI.

A unit is mandatory, so that nobody has to guess whether 450 meant GB/s or Gbit/s, per direction or both.
`b` is a bit and `B` a byte; GB is 1e9 bytes and GiB is 2**30. Number formats (fp8, mxfp4, ...) live here too,
because they are units of storage. This module imports only the standard library and starts fast.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

HOUR = 3600.0  # seconds
DAY = 24 * HOUR
YEAR = 365 * DAY  # the 8760 hours that depreciation and rent are reckoned with
LEAST, MOST = 1e-24, 1e36  # of a quantity: beyond them times, raised to the 8th power, leave the range of a float


class UnitError(ValueError):
    """A quantity or format that cannot be read; the text says what was expected and what was found."""


@dataclass(frozen=True)
class Dimension:
    """One kind of quantity.

    `phrase` and `example` word its errors; `units` maps every accepted spelling to its size in SI; `ladder`
    lists the units `show` picks from, in ascending order.
    """

    name: str
    phrase: str
    example: str
    units: Mapping[str, float]
    ladder: tuple[str, ...]


_ONE = {"": 1.0}
_LARGE = {"k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15, "E": 1e18}
_BINARY = {f"{letter}i": 2.0 ** (10 * power) for power, letter in enumerate("KMGTPE", start=1)}
_MICRO = {"u": 1e-6, "\u00b5": 1e-6, "\u03bc": 1e-6}  # the letter u, the micro sign and the Greek letter
_SMALL = {"f": 1e-15, "p": 1e-12, "n": 1e-9, **_MICRO, "m": 1e-3}


def _scaled(prefixes: Mapping[str, float], *spellings: str, by: float = 1.0) -> dict[str, float]:
    """Every prefix before every spelling of one unit, whose size in SI is `by`."""
    return {prefix + spelling: size * by for spelling in spellings for prefix, size in prefixes.items()}


def _per(numerators: Mapping[str, float], denominators: Mapping[str, float]) -> dict[str, float]:
    """Every numerator over every denominator, spelled with a slash."""
    return {f"{top}/{low}": a / b for top, a in numerators.items() for low, b in denominators.items()}


_SIZES = _scaled(_ONE | _LARGE | _BINARY, "B") | _scaled(_ONE | _LARGE | _BINARY, "b", "bit", by=1 / 8)
_JOULES = _scaled(_ONE | _LARGE | _SMALL, "J") | _scaled(_ONE | _LARGE, "Wh", by=HOUR)
_USD = _scaled(_ONE | {"k": 1e3, "M": 1e6}, "USD")
_SPANS = {"h": HOUR, "hour": HOUR, "d": DAY, "day": DAY, "days": DAY, "year": YEAR, "years": YEAR}
_TIMES = _scaled(_ONE | _SMALL, "s") | {"min": 60.0, "hours": HOUR} | _SPANS
_TOKENS = _scaled(_ONE | {"k": 1e3, "M": 1e6}, "tok", "token", "tokens")
_OPERATIONS = _scaled(_ONE, "FLOP", "OP")
_RATES = _scaled(_ONE | _LARGE, "FLOP/s", "FLOPS", "FLOPs/s", "OP/s", "OPS", "OPs/s")


def _steps(prefixes: str, unit: str) -> tuple[str, ...]:
    """A ladder of units; a dot stands for no prefix."""
    return tuple(prefix.replace(".", "") + unit for prefix in prefixes)


_TABLE = (
    Dimension("bytes", "a size", "80 GB", _SIZES, _steps(".kMGTPE", "B")),
    Dimension("bandwidth", "a bandwidth", "3.35 TB/s", _per(_SIZES, {"s": 1.0}), _steps(".kMGTPE", "B/s")),
    Dimension("rate", "a compute rate", "989 TFLOP/s", _RATES, _steps(".kMGTPE", "FLOP/s")),
    Dimension("time", "a time", "1 us", _TIMES, (*_steps("fpnum.", "s"), "h", "d")),
    Dimension("frequency", "a frequency", "1.83 GHz", _scaled(_ONE | _LARGE, "Hz"), _steps(".kMGT", "Hz")),
    Dimension("power", "a power", "700 W", _scaled(_ONE | _LARGE | _SMALL, "W"), _steps("num.kMG", "W")),
    Dimension("money", "an amount of money", "25000 USD", _USD, ("USD", "MUSD")),
    Dimension("rent", "a rent", "2.95 USD/h", _per(_USD, {"s": 1.0} | _SPANS), ("USD/h",)),
    Dimension("energy", "an energy", "12 pJ", _JOULES, _steps("fpnum.kMGT", "J")),
    Dimension(
        "energy_per_byte",
        "an energy per byte or bit",
        "66 pJ/B",
        _per(_JOULES, {"B": 1.0, "byte": 1.0, "bit": 1 / 8, "b": 1 / 8}),
        _steps("fpnum.", "J/B"),
    ),
    Dimension(
        "energy_per_flop",
        "an energy per FLOP",
        "0.53 pJ/FLOP",
        _per(_JOULES, _OPERATIONS),
        _steps("fpnum.", "J/FLOP"),
    ),
    Dimension("energy_price", "a price of energy", "0.08 USD/kWh", _per(_USD, _JOULES), ("USD/kWh",)),
    Dimension("byte_price", "a price of memory", "12 USD/GB", _per(_USD, _SIZES), ("USD/GB",)),
    Dimension("token_price", "a price of tokens", "0.50 USD/Mtok", _per(_USD, _TOKENS), ("USD/Mtok",)),
    Dimension(
        "token_rate",
        "a token rate",
        "100 tok/s",
        _per(_TOKENS, {"s": 1.0, "s/user": 1.0}),
        _steps(".kM", "tok/s"),
    ),
    Dimension("area", "an area", "814 mm2", {"um2": 1e-12, "mm2": 1e-6, "cm2": 1e-4, "m2": 1.0}, ("mm2",)),
)

#: Every dimension by name. SI means: B, B/s, FLOP/s, s, Hz, W, USD, USD/s, J, J/B, J/FLOP, USD/J, USD/B,
#: USD/tok, tok/s and m2, in the order of the table.
DIMENSIONS: Mapping[str, Dimension] = MappingProxyType({entry.name: entry for entry in _TABLE})

_NUMBER = r"[+-]?(?:[0-9]+(?:_[0-9]+)*(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?"
_QUANTITY = re.compile(rf"\s*({_NUMBER})\s*([^\W\d_][\w/\s]*)?")


def parse(text: object, dimension: str, unit: str | None = None) -> float:
    """Read a quantity such as "3.35 TB/s".

    Returns a float >= 0 in SI, or in `unit` (one of the same dimension) where it is given. Thousands
    may be parted by `_` ("25_000 USD"). Raises UnitError for a missing or foreign unit, for anything that is
    not text, and for numbers that are negative, above MOST or, unless 0, below LEAST.
    """
    known = _dimension(dimension)
    found = _QUANTITY.fullmatch(text) if isinstance(text, str) else None
    if found is None:
        raise _refused(known, text, _reason(text))
    if found[2] is None:
        raise _refused(known, text, "a number without a unit")
    size = known.units.get("".join(found[2].split()))
    if size is None:
        raise _refused(known, text)
    number = float(found[1])
    value = number * (size / known.units[unit] if unit else size)
    if number < 0:
        raise _refused(known, text, "it must not be negative")
    if not value <= MOST:
        raise _refused(known, text, "the number is too large")
    if value < LEAST and re.match(r"[+-]?[0._]*[1-9]", found[1]):
        raise _refused(known, text, "the number is too small")
    return abs(value)  # turns -0.0 into 0.0


def _dimension(name: str) -> Dimension:
    try:
        return DIMENSIONS[name]
    except KeyError:
        raise UnitError(f"unknown dimension {name!r}{did_you_mean(name, DIMENSIONS)}") from None


def _refused(dimension: Dimension, value: object, reason: str = "") -> UnitError:
    tail = f" ({reason})" if reason else ""
    return UnitError(f"expected {dimension.phrase} such as '{dimension.example}', got {described(value)}{tail}")


def _reason(value: object) -> str:
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return "a number without a unit"
    if isinstance(value, str) and re.match(r"\s*[+-]?\d[\d_]*,\d", value):
        return "write 1_000 for thousands and 3.35 for decimals; a comma can mean either"
    return ""


def show(value: float, dimension: str, digits: int = 3) -> str:
    """Print an SI value with a fitting unit and `digits` significant digits: "3.35 TB/s", "18.3 ms", "22.0
    TB".

    The inverse of `parse` up to rounding. A value that is not finite prints as "n/a". Raises UnitError for an
    unknown dimension.
    """
    known = _dimension(dimension)
    if not math.isfinite(value):
        return "n/a"
    if value == 0:
        return f"0 {next((unit for unit in known.ladder if known.units[unit] == 1), known.ladder[0])}"
    rounded = abs(float(f"{value:.{digits - 1}e}"))  # first, so that 999.9 GB prints as 1.00 TB and not as 1000 GB
    fitting = [unit for unit in known.ladder if rounded >= known.units[unit] * (1 - 1e-9)]
    unit = fitting[-1] if fitting else known.ladder[0]
    return f"{_significant(value / known.units[unit], digits)} {unit}"


def _significant(number: float, digits: int) -> str:
    scientific = f"{number:.{digits - 1}e}"
    exponent = int(scientific.partition("e")[2])
    if not -6 <= exponent < 15:
        return scientific
    decimals = digits - 1 - exponent
    return f"{round(number, decimals):.{max(decimals, 0)}f}"


# Formats of numbers


@dataclass(frozen=True)
class Format:
    """How one number is stored: `bits` each, and `scale_bits` shared by a `group` of them."""

    name: str
    bits: float
    scale_bits: float = 0
    group: int = 1

    @property
    def bytes(self) -> float:
        """Bytes per element, its share of the scale included: 0.53125 for mxfp4."""
        return (self.bits + self.scale_bits / self.group) / 8

    @property
    def base(self) -> str:
        """The matrix rate of a chip that this format computes at: "fp8" for fp8_block, "fp4" for mxfp4."""
        return _BASES.get(self.name, self.name)


_BASES = {
    **dict.fromkeys(("fp8_block", "mxfp8"), "fp8"),
    **dict.fromkeys(("nvfp4", "mxfp4"), "fp4"),
    **{"fp16": "bf16", "q8_0": "int8", "q4_0": "int4", "int4_g32": "int4"},
}

#: The formats a precision may name. fp16 computes at the rate of bf16 on every chip of the catalogue. fp8
#: carries one scale per tensor, which costs nothing per element. fp8_block is the storage of DeepSeek-V3: one
#: 32-bit scale per 128x128 block of a weight (16384 elements), hence 8.002 bits; its activations have one
#: scale per 128, which the quantising kernels account for, not the format. mxfp8 and mxfp4 (OCP microscaling)
#: have an 8-bit exponent per 32, nvfp4 an fp8 scale per 16, int4 (GPTQ, AWQ) an fp16 scale per group of 128,
#: int4_g32 (Kimi-K2.5) one per group of 32, q8_0 and q4_0 (llama.cpp) one per 32.
FORMATS: Mapping[str, Format] = MappingProxyType(
    {
        entry.name: entry
        for entry in (
            Format("fp32", 32),
            Format("bf16", 16),
            Format("fp16", 16),
            Format("fp8", 8),
            Format("fp8_block", 8, scale_bits=32, group=128 * 128),
            Format("mxfp8", 8, scale_bits=8, group=32),
            Format("int8", 8),
            Format("int4", 4, scale_bits=16, group=128),
            Format("int4_g32", 4, scale_bits=16, group=32),
            Format("nvfp4", 4, scale_bits=8, group=16),
            Format("mxfp4", 4, scale_bits=8, group=32),
            Format("q8_0", 8, scale_bits=16, group=32),
            Format("q4_0", 4, scale_bits=16, group=32),
        )
    }
)


def format_named(name: object) -> Format:
    """The format called `name`. Raises UnitError, with near matches or else all names, for any other."""
    if not isinstance(name, str):
        raise UnitError(f"expected the name of a format such as 'fp8', got {described(name)}")
    if name not in FORMATS:
        hint = did_you_mean(name, FORMATS) or f"; known formats: {', '.join(FORMATS)}"
        raise UnitError(f"unknown format {described(name)}{hint}")
    return FORMATS[name]


# Words for error messages, shared by every module that reads what people write


def described(value: object) -> str:
    """A value as an error message shows it, always short: text in quotes, null as "nothing"."""
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return repr(value if len(value) <= 60 else value[:57] + "...")
    if isinstance(value, (int, float)):
        # Python refuses to print integers of more than 4300 digits
        return str(value) if isinstance(value, float) or value.bit_length() < 1024 else "a huge number"
    if isinstance(value, (list, tuple)):
        return "a list" if value else "an empty list"
    return "a mapping" if isinstance(value, Mapping) else "a value"


def did_you_mean(word: str, options: Iterable[str]) -> str:
    """The tail of an error message: "; did you mean 'clock'?", or "" where nothing is near.

    Case is ignored. At most three options are offered, all about as near as the nearest.
    """
    spelled = {option.lower(): option for option in options}
    if len(word) > 100:  # difflib takes quadratic time
        return ""
    near = difflib.get_close_matches(word.lower(), spelled, n=3, cutoff=0.55)
    ratios = [difflib.SequenceMatcher(None, option, word.lower()).ratio() for option in near]
    best = [repr(spelled[option]) for option, ratio in zip(near, ratios, strict=True) if ratio > ratios[0] - 0.05]
    return f"; did you mean {' or '.join(best)}?" if best else ""
