"""What a simulation writes down: times and counts of requests, and a log of every replica."""

from dataclasses import dataclass, field
from struct import Struct

import numpy as np

from archsim.arrays import Array

TIMES = ("start", "seconds", "context", "stall")
COUNTS = (
    *("steps", "decoding", "running", "waiting", "units", "prefilled"),
    *("tokens", "drafted"),  # that each sequence gets in the stretch, and its steps that verify drafts
)
ROW = Struct(f"={len(TIMES)}d{len(COUNTS)}q")  # a row of the log as bytes: packed in half the time of an array's extend


@dataclass(eq=False)
class Outcome:
    """What happened to every request (s; negative: not yet), and what was counted."""

    arrived: list[float]
    begun: list[float]
    first: list[float]
    end: list[float]
    cached: list[int]
    refused: dict[int, str] = field(default_factory=dict)
    preempted: int = 0
    recomputed: int = 0
    swapped: int = 0
    prefilled: int = 0
    generated: int = 0
    discarded: int = 0
    over: int = 0  # requests that have ended or were refused
    handed: int = 0  # requests that decode where they were not prefilled
    sent: float = 0.0  # bytes of their KV caches
    events: int = 0
    stopped: str = ""

    @staticmethod
    def of(count: int) -> "Outcome":
        """Nothing has happened yet."""
        return Outcome([-1.0] * count, [-1.0] * count, [-1.0] * count, [-1.0] * count, [0] * count)


@dataclass(frozen=True)
class Swap:
    """Preemption by swap: seconds to move a unit of KV memory to the host or back."""

    unit: float


def columns(log: bytes | bytearray) -> dict[str, Array]:
    """The columns of a log of rows, by name."""
    kinds = [(name, "=f8") for name in TIMES] + [(name, "=i8") for name in COUNTS]
    table = np.frombuffer(log, dtype=kinds)
    return {name: table[name].astype(np.float64) for name, _ in kinds}
