"""Rates of a fleet whose prefill and decode run on pools of their own: by role and by fleet, never added up."""

from dataclasses import dataclass


@dataclass(frozen=True)
class FleetRates:
    """Tokens a second of one chip: of its own role's chips, and of all chips of the fleet.

    By-role rates say how busy a pool is; only fleet rates, over all chips, say what a token costs.
    """

    input_by_role: float
    output_by_role: float
    input_by_fleet: float
    output_by_fleet: float

    @property
    def total_by_fleet(self) -> float:
        """Input and output tokens a second of one chip of the fleet."""
        return self.input_by_fleet + self.output_by_fleet


def fleet_rates(requests: float, prompt: float, output: float, prefill_chips: int, decode_chips: int) -> FleetRates:
    """Rates at `requests` a second, each with `prompt` tokens in and `output` tokens out."""
    chips = prefill_chips + decode_chips
    tokens_in, tokens_out = requests * prompt, requests * output
    return FleetRates(tokens_in / prefill_chips, tokens_out / decode_chips, tokens_in / chips, tokens_out / chips)
