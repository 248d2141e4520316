"""Rows of traces: what a reader gives, and how rows are gathered in chunks with their faults."""

from array import array as numbers
from collections.abc import Iterator, Sequence
from math import isfinite, nan
from typing import NamedTuple

import numpy as np

from archsim.catalog import CatalogError
from archsim.workload.chains import Runs
from archsim.workload.requests import STOPS
from archsim.yamlmarks import Fault

ROWS = 4096  # of a chunk
MOST_FAULTS = 20
MOST_TOKENS = 2**31
LATEST = 1e12  # s


class Row(NamedTuple):
    """A request of a trace.

    `time` in s; of a session's steps it may count from the start of the session. `chain` are the ids of whole blocks of
    its prompt, or `shared` counts the leading tokens that it shares with the step before of its agent. `service` is how
    long the answer took and `gap` the time from the answer before (s; NaN: not recorded).
    """

    time: float
    input: int
    output: int
    chain: tuple[int, ...] = ()
    session: str = ""
    agent: str = ""
    shared: int = 0
    service: float = nan
    gap: float = nan
    stop: str = ""


Rows = Iterator[Row | Fault]


class Columns:
    """Rows as columns of numbers; sessions and agents by number, in order of appearance."""

    def __init__(self) -> None:
        self.time, self.service, self.gap = numbers("d"), numbers("d"), numbers("d")
        self.input, self.output, self.shared = numbers("q"), numbers("q"), numbers("q")
        self.session, self.agent, self.stop = numbers("q"), numbers("q"), numbers("b")
        self.chains = Runs()
        self.sessions: dict[str, int] = {}
        self.agents: dict[tuple[int, str], int] = {}
        self.skipped: list[Fault] = []

    def __len__(self) -> int:
        """Rows so far."""
        return len(self.time)

    def extend(self, rows: Sequence[Row]) -> None:
        """Adds rows."""
        if not rows:
            return
        times, inputs, outputs, chains, sessions, agents, shared, services, gaps, stops = zip(*rows, strict=True)
        known, workers = self.sessions, self.agents
        numbered = [known.setdefault(session, len(known)) for session in sessions]
        for column, values in (
            (self.time, times),
            (self.service, services),
            (self.gap, gaps),
            (self.input, inputs),
            (self.output, outputs),
            (self.shared, shared),
            (self.session, numbered),
            (self.agent, [workers.setdefault(pair, len(workers)) for pair in zip(numbered, agents, strict=True)]),
            (self.stop, [STOPS.index(stop) if stop in STOPS else 0 for stop in stops]),
        ):
            column.extend(values)
        for chain in chains:
            self.chains.append(chain)

    def floats(self, name: str) -> "np.typing.NDArray[np.float64]":
        """A column of seconds."""
        return np.frombuffer(getattr(self, name), dtype=np.float64) if len(self) else np.zeros(0)

    def integers(self, name: str) -> "np.typing.NDArray[np.int64]":
        """A column of whole numbers."""
        column = getattr(self, name)
        return np.array(column, dtype=np.int64) if len(self) else np.zeros(0, dtype=np.int64)


def chunked(rows: Rows, skip_bad: bool) -> Iterator[tuple[list[Row], list[Fault]]]:
    """Rows in chunks of ROWS, with the faults among them; without `skip_bad` faults are raised together."""
    faults: list[Fault] = []
    good: list[Row] = []
    for row in rows:
        if isinstance(row, Fault):
            faults.append(row)
            if not skip_bad and len(faults) >= MOST_FAULTS:
                break
        elif skip_bad or not faults:
            good.append(row)
        if len(good) == ROWS:
            yield good, faults
            good, faults = [], []
    if faults and not skip_bad:
        raise CatalogError(faults)
    if good or faults:
        yield good, faults


# Values of a row


def tokens(value: object, name: str, least: int) -> int:
    """A number of tokens. Raises ValueError saying what was expected."""
    try:
        number = int(str(value))
    except ValueError:
        number = -1
    if isinstance(value, bool) or not least <= number < MOST_TOKENS:
        raise ValueError(f"{name}: expected a whole number of at least {least}, got {value!r}")
    return number


def answer(value: object, name: str) -> int:
    """Tokens of an answer; one that has none is taken as one token, since a request ends with its last."""
    return max(tokens(value, name, 0), 1)


def seconds(value: object, name: str, unit: str = "seconds", scale: float = 1.0) -> float:
    """A time that is not negative, in s. Raises ValueError saying what was expected."""
    try:
        number = float(str(value)) * scale
    except ValueError:
        number = nan
    if isinstance(value, bool) or not (isfinite(number) and 0 <= number < LATEST):
        raise ValueError(f"{name}: expected {unit}, got {value!r}")
    return number


def blocks(ids: object, name: str, length: int, block: int, whole: bool = False) -> tuple[int, ...]:
    """Ids of the whole blocks of a prompt of `length` tokens, of which the last one named may be a part.

    With `whole` a part may be left out.
    """
    if not isinstance(ids, list) or not all(isinstance(item, int) and abs(item) < 2**62 for item in ids):
        raise ValueError(f"{name}: expected a list of whole numbers")
    wanted = -(-length // block)
    if ids and len(ids) != wanted and not (whole and len(ids) == length // block):
        raise ValueError(f"{length:,} tokens have {wanted} blocks of {block} tokens, not {len(ids)} {name}")
    return tuple(ids[: length // block])
