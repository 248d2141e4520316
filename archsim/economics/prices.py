"""Prices of tokens: revenue, margin, and revenue per megawatt."""

from pydantic import Field

from archsim.arrays import Array
from archsim.catalog import StrictModel
from archsim.economics.terms import HOUR
from archsim.fields import DollarsPerMillionTokens


class Prices(StrictModel):
    """What tokens are sold for. A price of cached input that is not given is that of all input."""

    input: DollarsPerMillionTokens = Field(description="of a prompt token that is computed")
    output: DollarsPerMillionTokens = Field(description="of a generated token")
    cached_input: DollarsPerMillionTokens | None = Field(
        None, description="of a prompt token found in the prefix cache; default: as `input`"
    )

    @property
    def cached(self) -> float:
        """USD per million cached input tokens."""
        return self.input if self.cached_input is None else self.cached_input


def revenue(prices: Prices, fresh: Array, cached: Array, output: Array) -> Array:
    """USD an hour from tokens a second: computed and cached ones of prompts, and generated ones."""
    return (prices.input * fresh + prices.cached * cached + prices.output * output) / 1e6 * HOUR


def margin(income: Array, cost: Array) -> Array:
    """Share of an income that is left after its cost, both USD an hour; negative where it costs more than it earns."""
    return 1.0 - cost / income


def per_megawatt(income: Array, watts: Array) -> Array:
    """USD per megawatt and hour, from USD an hour and watts."""
    return income / watts * 1e6
