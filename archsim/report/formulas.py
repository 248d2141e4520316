"""Formulas with their numbers put in: what is shown is computed from what is shown, so that it multiplies out."""

import re
import textwrap
from dataclasses import dataclass
from math import ceil, isclose

from archsim.report.words import number
from archsim.units import DIMENSIONS, show

DIGITS = 4
SUM, PRODUCT, ATOM = 1, 2, 3  # how tightly a formula binds
CLOSE = 1e-6  # relative difference up to which a formula is the one the engine used
WIDTH = 118


def quantity(value: float, dimension: str, digits: int = DIGITS) -> str:
    """A value with its unit and without idle zeros: "3.35 TB/s", "64", "7.516 GFLOP", "2.95 USD/h"."""
    if dimension == "flops":
        return quantity(value, "rate", digits).removesuffix("/s")
    if dimension == "token_rate":
        dimension = "tok/s"  # in plain numbers, which people compare, not in ktok/s
    if dimension not in DIMENSIONS:
        return f"{_plain(number(value, digits))} {dimension}".rstrip()
    text, unit = show(value, dimension, digits).split(" ")
    return f"{_plain(text)} {unit}"


def _plain(text: str) -> str:
    return re.sub(r"\.?0+$", "", text) if "." in text and "e" not in text else text


@dataclass(frozen=True)
class Term:
    """A value, how it is written in symbols, and how it is written in numbers."""

    value: float
    symbols: str
    numbers: str
    binds: int = ATOM

    def __mul__(self, other: "Term | float") -> "Term":
        """The product."""
        return self._with(_term(other), "x", PRODUCT, PRODUCT)

    def __rmul__(self, other: float) -> "Term":
        """The product, with a plain number first."""
        return _term(other) * self

    def __truediv__(self, other: "Term | float") -> "Term":
        """The quotient."""
        return self._with(_term(other), "/", PRODUCT, ATOM)

    def __rtruediv__(self, other: float) -> "Term":
        """The quotient of a plain number."""
        return _term(other) / self

    def __add__(self, other: "Term | float") -> "Term":
        """The sum."""
        return self._with(_term(other), "+", SUM, SUM)

    def __radd__(self, other: float) -> "Term":
        """The sum, with a plain number first."""
        return _term(other) + self

    def __sub__(self, other: "Term | float") -> "Term":
        """The difference."""
        return self._with(_term(other), "-", SUM, PRODUCT)

    def __rsub__(self, other: float) -> "Term":
        """The difference from a plain number."""
        return _term(other) - self

    def _with(self, other: "Term", sign: str, binds: int, right: int) -> "Term":
        values = {"x": self.value * other.value, "+": self.value + other.value, "-": self.value - other.value}
        value = self.value / other.value if sign == "/" else values[sign]
        a, b = self._held(binds), other._held(right)
        return Term(value, f"{a[0]} {sign} {b[0]}", f"{a[1]} {sign} {b[1]}", binds)

    def _held(self, binds: int) -> tuple[str, str]:
        """Symbols and numbers, in parentheses where they bind less tightly than their place asks."""
        if self.binds >= binds:
            return self.symbols, self.numbers
        return f"({self.symbols})", f"({self.numbers})"

    def function(self, name: str, value: float) -> "Term":
        """A function of the term, such as `ceil(...)`."""
        return Term(value, f"{name}({self.symbols})", f"{name}({self.numbers})")


def _term(value: "Term | float") -> Term:
    return value if isinstance(value, Term) else Term(float(value), quantity(value, ""), quantity(value, ""))


def named(symbol: str, value: float, dimension: str = "", digits: int = DIGITS) -> Term:
    """A named value; more digits where it is subtracted from one of its size."""
    return Term(value, symbol, quantity(value, dimension, digits))


def rounded_up(term: Term) -> Term:
    """The next whole number."""
    return term.function("ceil", float(ceil(term.value - 1e-9)))


def least(term: Term, other: Term) -> Term:
    """The smaller of two."""
    value = min(term.value, other.value)
    return Term(value, f"min({term.symbols}, {other.symbols})", f"min({term.numbers}, {other.numbers})")


def greatest(term: Term, other: Term) -> Term:
    """The larger of two."""
    value = max(term.value, other.value)
    return Term(value, f"max({term.symbols}, {other.symbols})", f"max({term.numbers}, {other.numbers})")


def total(terms: list[Term]) -> Term:
    """The sum of one term or more."""
    first, *rest = terms
    for term in rest:
        first = first + term
    return first


@dataclass(frozen=True)
class Line:
    """One shown value: its name, the formula (None where the value stands alone), the result, and a remark."""

    name: str
    term: Term | None
    value: float
    dimension: str
    note: str = ""

    @property
    def result(self) -> str:
        """The value with its unit."""
        return quantity(self.value, self.dimension)

    @property
    def formula(self) -> str:
        """Symbols and numbers, as far as they say more than the result."""
        if self.term is None:
            return ""
        parts = dict.fromkeys((self.term.symbols, self.term.numbers))
        return " = ".join(part for part in parts if part != self.result)

    def text(self, indent: str = "    ", width: int = 12) -> str:
        """The line as printed, wrapped."""
        body = f"{self.formula} = {self.result}" if self.formula else self.result
        body += f"  ({self.note})" if self.note else ""
        body = re.sub(r"(?<=\d) (?=(?!x\b)[A-Za-z%])", "\u00a0", body)  # a number stays on the line of its unit
        hanging = indent + " " * (width + 2)
        whole = f"{indent}{self.name:<{width}}  {body}"
        filled = textwrap.fill(whole, WIDTH, subsequent_indent=hanging, break_long_words=False, break_on_hyphens=False)
        return filled.replace("\u00a0", " ")


def line(name: str, term: Term, dimension: str, note: str = "") -> Line:
    """A line whose value is that of its formula."""
    return Line(name, term, term.value, dimension, note)


def checked(name: str, terms: list[Term], value: float, dimension: str, note: str = "") -> Line:
    """A line for a value that the engine gave: with the first formula that gives the same, or with none."""
    for term in terms:
        if isclose(term.value, value, rel_tol=CLOSE, abs_tol=1e-15):
            return Line(name, term, value, dimension, note)
    return Line(name, None, value, dimension, note)
