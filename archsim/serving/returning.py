"""Who comes back soon: predictors of the next request of an agent, for caches that evict those who stay away.

A request *leaves* if the next one of its agent comes more than a horizon (s) after its answer, or never; the others
return. Precision and recall are those of saying that a request leaves, since few do: 5 % of the steps of coding agents.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol
from zlib import crc32

import numpy as np
from pydantic import Field

from archsim.arrays import Array
from archsim.catalog import Mark, StrictModel, fetch, validate
from archsim.fields import Seconds
from archsim.sources import SourceEntry, check_sources
from archsim.workload.requests import STOPS, Integers, Requests

HORIZON = 600.0
RECENT = 8  # gaps that the mean and the largest recent one are of

Flags = np.typing.NDArray[np.bool_]


class Returns(Protocol):
    """What a cache asks of a request that has ended."""

    def stays(self, request: int, now: float) -> bool:
        """Whether its blocks should stay in fast memory at this time (s): its agent is expected back soon."""


class Predictor(Protocol):
    """What makes chances of requests."""

    def returns(self, requests: Requests) -> Array:
        """Probability that the next request of each one's agent comes within the horizon of its answer."""


class Verdicts:
    """A `Returns` for given requests: those whose chance to leave reaches a threshold do not stay."""

    def __init__(self, predictor: Predictor, requests: Requests, threshold: float = 0.1) -> None:
        self._stays: list[bool] = (1.0 - predictor.returns(requests) < threshold).tolist()

    def stays(self, request: int, now: float) -> bool:
        """Whether its agent is expected back."""
        return self._stays[request]


@dataclass(frozen=True)
class Oracle:
    """Knows the future and errs: of those who leave it names the share `recall`, and of those it names the share
    `precision` leaves. With one seed, what it names at a smaller recall it names at a larger one too."""

    precision: float = 1.0
    recall: float = 1.0
    seed: int = 0
    horizon: float = HORIZON

    def __post_init__(self) -> None:
        if not (0 < self.precision <= 1 and 0 <= self.recall <= 1):
            raise ValueError("precision is above 0 and at most 1, recall from 0 to 1")

    def returns(self, requests: Requests) -> Array:
        """1 or 0 for each request. Precision ends where all who return are named too."""
        truth = leaving(requests, self.horizon)
        order = np.random.default_rng(self.seed).permutation(len(truth))
        right, wrong = order[truth[order]], order[~truth[order]]
        hits = round(self.recall * len(right))
        misses = min(round(hits * (1.0 - self.precision) / self.precision), len(wrong))
        found = np.ones(len(truth))
        found[right[:hits]] = 0.0
        found[wrong[:misses]] = 0.0
        return found


# What is known of requests


def following(requests: Requests) -> Integers:
    """The next request of each one's agent, or the next that names the last block of its prompt; -1: none."""
    count = len(requests)
    found = np.full(count, -1, dtype=np.int64)
    if requests.agent is not None:
        order = np.argsort(requests.agent, kind="stable")
        same = requests.agent[order[1:]] == requests.agent[order[:-1]]
        found[order[:-1][same]] = order[1:][same]
    elif requests.chains is not None:
        users: dict[int, int] = {}
        for index in range(count - 1, -1, -1):
            chain = requests.chains[index]
            if len(chain):
                found[index] = users.get(chain[-1], -1)
            users.update(dict.fromkeys(chain, index))
    return found


def gaps(requests: Requests) -> Array:
    """Seconds between each request's answer and the next request of its agent, as far as known before; inf: none.

    Without recorded gaps the time between arrivals.
    """
    after = following(requests)
    later = requests.arrival[after] - requests.arrival if requests.gap is None else requests.gap[after]
    return np.where(after < 0, np.inf, later)


def leaving(requests: Requests, horizon: float = HORIZON) -> Flags:
    """Which requests leave."""
    return np.asarray(gaps(requests) > horizon)


FEATURES = ("gap", "mean_gap", "largest_gap", "step", "context", "output", "fresh", *STOPS[1:])


def features(requests: Requests) -> Array:
    """Columns FEATURES of every request, shape (requests, features); seconds and tokens as logarithms of 1 + value.

    `gap` is the one before the request, the mean and the largest of it and those before (RECENT at the most); `fresh`
    the tokens beyond the agent's request before. The hour of the day is none of them: sessions are recorded from their
    own start, so that there is none to learn from.
    """
    count = len(requests)
    before = np.full(count, -1, dtype=np.int64)
    after = following(requests)
    before[after[after >= 0]] = np.flatnonzero(after >= 0)
    known = gaps(requests)
    gap = np.where(before < 0, 0.0, known[before])
    total, largest, step, place = gap.copy(), gap.copy(), np.zeros(count), before.copy()
    recent = np.where(before < 0, 0.0, 1.0)
    for _ in range(RECENT - 1):
        some = place >= 0
        total += np.where(some, gap[place], 0.0)
        largest = np.where(some, np.maximum(largest, gap[place]), largest)
        place = np.where(some, before[place], -1)
        recent += place >= 0
    for index in np.flatnonzero(before >= 0).tolist():
        step[index] = step[before[index]] + 1.0
    context = requests.input.astype(np.float64)
    fresh = np.maximum(np.where(before < 0, context, context - context[before]), 0.0)
    stop = np.zeros(count, dtype=np.int64) if requests.stop is None else requests.stop
    logs = (gap, total / np.maximum(recent, 1.0), largest, step, context, requests.output.astype(np.float64), fresh)
    reasons = (np.asarray(stop == index, dtype=np.float64) for index in range(1, len(STOPS)))
    return np.stack([*(np.log1p(column) for column in logs), *reasons], axis=1)


# Logistic regression


class Weights(StrictModel):
    """What each feature adds to the logit of leaving; seconds and tokens as logarithms of 1 + value."""

    gap: float = Field(description="before the request")
    mean_gap: float = Field(description="of it and the seven before")
    largest_gap: float = Field(description="of it and the seven before")
    step: float = Field(description="of its agent")
    context: float = Field(description="tokens of its prompt")
    output: float = Field(description="tokens of its answer")
    fresh: float = Field(description="tokens beyond the prompt before")
    tool_use: float = Field(description="1 if a tool is called")
    end_turn: float = Field(description="1 if the turn is over")


class ReturnsFile(StrictModel):
    """A trained prediction of who comes back, in `workloads/returns/`."""

    name: str | None = None
    horizon: Seconds = Field(HORIZON, description="one who comes later leaves")
    bias: float = Field(description="logit of leaving where all features are 0")
    weights: Weights
    sources: tuple[SourceEntry, ...] = ()


@dataclass(frozen=True, eq=False)
class Regression:
    """Chance to leave = 1 / (1 + exp(-(bias + sum of weight x feature))), by FEATURES."""

    bias: float
    weights: Array
    horizon: float = HORIZON

    def returns(self, requests: Requests) -> Array:
        """Probability that the next request of each one's agent comes within the horizon."""
        return 1.0 / (1.0 + np.exp(np.clip(self.bias + features(requests) @ self.weights, -50.0, 50.0)))


def load_returns(name: str = "coding-agents", mark: Mark | None = None) -> Regression:
    """The trained prediction of a name or path. Raises CatalogError with every fault of its file."""
    document = fetch("workloads/returns", name, mark)
    file = validate(ReturnsFile, document)
    check_sources(document, file.sources, skip=("name",))
    return Regression(file.bias, np.array([getattr(file.weights, key) for key in FEATURES]), file.horizon)


def train(
    requests: Requests, chosen: Flags | None = None, horizon: float = HORIZON, penalty: float = 1.0
) -> Regression:
    """Logistic regression of who leaves on FEATURES, over the `chosen` requests (all).

    Newton's method on the log-likelihood less penalty / 2 x the squares of the weights of standardised features.
    Raises ValueError where none or all of them leave.
    """
    picked = np.ones(len(requests), dtype=bool) if chosen is None else chosen
    known, truth = features(requests)[picked], leaving(requests, horizon)[picked].astype(np.float64)
    if not 0.0 < truth.sum() < len(truth):
        raise ValueError("to learn who leaves takes requests that leave and requests that return")
    mean, spread = known.mean(axis=0), known.std(axis=0)
    scale = np.where(spread > 0, spread, 1.0)
    inputs = np.column_stack([np.ones(len(truth)), (known - mean) / scale])
    ridge = np.diag([0.0, *([penalty] * len(mean))])
    weights = np.zeros(inputs.shape[1])
    for _ in range(50):
        chance = 1.0 / (1.0 + np.exp(-np.clip(inputs @ weights, -50.0, 50.0)))
        slope = inputs.T @ (truth - chance) - ridge @ weights
        bend = (inputs * (chance * (1.0 - chance))[:, None]).T @ inputs + ridge
        move = np.linalg.solve(bend, slope)
        weights = weights + move
        if float(np.abs(move).max()) < 1e-9:
            break
    return Regression(float(weights[0] - (weights[1:] / scale) @ mean), weights[1:] / scale, horizon)


def halves(requests: Requests) -> Flags:
    """The requests to learn from: those of sessions whose names have an even CRC-32; the others are for scoring.

    Raises ValueError where the requests are of no named sessions.
    """
    if requests.session is None or not requests.titles:
        raise ValueError("to learn who comes back takes a trace of sessions that have names")
    even = np.array([crc32(title.encode()) % 2 == 0 for title in requests.titles])
    return np.asarray(even[requests.session])


# Scores


@dataclass(frozen=True)
class Score:
    """How good it is to say that all with a chance to leave of at least `threshold` leave."""

    threshold: float
    flagged: float
    precision: float
    recall: float


def scores(leave: Array, truth: Flags, thresholds: Sequence[float] = (0.05, 0.1, 0.2, 0.3)) -> tuple[Score, ...]:
    """Precision and recall of chances to leave, threshold by threshold; NaN where nobody is named or nobody leaves."""
    found = []
    for threshold in thresholds:
        named = leave >= threshold
        hits, all_named, all_true = (float(flags.sum()) for flags in (named & truth, named, truth))
        precision = hits / all_named if all_named else float("nan")
        found.append(Score(threshold, float(named.mean()), precision, hits / all_true if all_true else float("nan")))
    return tuple(found)


def area(leave: Array, truth: Flags) -> float:
    """Area under the receiver operating characteristic: how often one who leaves has the larger chance to."""
    _, place, counts = np.unique(leave, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - (counts - 1) / 2.0)[place]
    right = float(truth.sum())
    wrong = len(truth) - right
    return (
        float((ranks[truth].sum() - right * (right + 1.0) / 2.0) / (right * wrong)) if right and wrong else float("nan")
    )


def average_precision(leave: Array, truth: Flags) -> float:
    """Mean precision over the recalls, those of equal chance named together."""
    order = np.argsort(-leave, kind="stable")
    hits = np.cumsum(truth[order])
    last = np.flatnonzero(np.append(np.diff(leave[order]) != 0, True))
    gained = np.diff(np.concatenate([[0], hits[last]]))
    return float((gained * hits[last] / (last + 1.0)).sum() / hits[-1]) if hits[-1] else float("nan")
