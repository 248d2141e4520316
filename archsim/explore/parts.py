"""The pools of a service, each with its chips, terms and share of what was played: what they draw and cost."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from archsim.arrays import Array, array
from archsim.chip.model import Chip
from archsim.economics.money import rate as hourly_rate
from archsim.economics.money import wall_power
from archsim.economics.terms import HOUR, Terms
from archsim.serving.energies import Energies
from archsim.serving.measures import Measures
from archsim.serving.server import decode_joules, decode_seconds
from archsim.serving.simulate import Played, Server


@dataclass(frozen=True, eq=False)
class Part:
    """One pool: its server, what its replicas played, its chips and how they are paid for, over `span` seconds.

    `only`: it does nothing but prefill. What is undefined is NaN.
    """

    name: str
    server: Server
    played: Played
    chip: Chip
    terms: Terms
    chips: float
    span: float
    energy: Energies | None
    only: bool = False

    @cached_property
    def measures(self) -> Measures:
        """Occupancy and throughput of this pool."""
        return Measures(self.played)

    @property
    def busy(self) -> float:
        """Share of the span in which a replica works."""
        total = float(self.measures.log["seconds"].sum())
        return total / len(self.played.logs) / self.span if self.span > 0 else float("nan")

    @cached_property
    def joules(self) -> float:
        """Energy on the boards of all its chips."""
        energy, log = self.energy, self.measures.log
        if energy is None:
            return float("nan")
        decode = decode_joules(self.server, log, energy)
        idle = energy.idle * (self.span * len(self.played.logs) - float(log["seconds"].sum()))
        each = float((decode + energy.prefill(log["prefilled"])).sum()) + idle
        return each * self.chips / len(self.played.logs)

    @property
    def power(self) -> float:
        """Mean board power of a chip (W)."""
        return self.joules / self.span / self.chips if self.span > 0 else float("nan")

    @property
    def facility_power(self) -> float:
        """Facility power (W) of all its chips."""
        return float(wall_power(array(self.power), self.terms).max()) * self.chips

    @cached_property
    def dollars(self) -> float:
        """USD of the span."""
        watts = array(self.power if np.isfinite(self.power) else 0.0)
        hourly = float(hourly_rate(self.chip, self.terms, watts).hourly.max())
        return hourly * self.chips * self.span / HOUR

    @cached_property
    def prefill_share(self) -> float:
        """Share of the busy time that prefill adds to decode."""
        log = self.measures.log
        total = float(log["seconds"].sum())
        if self.only:
            return 1.0
        if not total:
            return float("nan")
        filled = log["prefilled"] > 0
        added = log["seconds"][filled] - decode_seconds(self.server, log)[filled]
        return float(np.maximum(added, 0.0).sum()) / total

    def cached_share(self, fresh: Array, cached: Array) -> float:
        """Share of the busy time in which prompts of `fresh` tokens attend to `cached` ones."""
        prompts, total = self.server.surface.prompts, float(self.measures.log["seconds"].sum())
        if prompts is None or not total:
            return 0.0
        spent = 0.0
        for tokens, before in zip(fresh.tolist(), cached.tolist(), strict=True):
            spent += max(prompts.grid(tokens, 1.0, before) - prompts.grid(tokens, 1.0, 0.0), 0.0)
        return min(spent / total, self.prefill_share)
