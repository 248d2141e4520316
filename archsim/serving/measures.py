"""What a simulation tells: latencies at percentiles, throughput, occupancy, goodput."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from archsim.arrays import Array
from archsim.serving.simulate import Played
from archsim.serving.usage import Use, uses

QUANTILES = (50, 90, 95, 99)
LATENCIES = {
    "ttft": "time to first token",
    "tpot": "time per output token",
    "itl": "time between two tokens",
    "e2e": "end to end",
    "queue": "in the queue",
}
BINS = 300  # of a time series


@dataclass(frozen=True)
class Targets:
    """What users must feel (s), and the share of requests that must."""

    ttft: float | None = None
    tpot: float | None = None
    share: float = 0.9

    @property
    def any(self) -> bool:
        """Whether anything is asked."""
        return self.ttft is not None or self.tpot is not None


@dataclass(frozen=True, eq=False)
class Measures:
    """Measures of what was played. Undefined ones are NaN."""

    played: Played

    # Of every request (s)

    @cached_property
    def ttft(self) -> Array:
        """From its arrival to its first token."""
        return self.played.first - self.played.arrived

    @cached_property
    def e2e(self) -> Array:
        """From its arrival to its last token."""
        return self.played.end - self.played.arrived

    @cached_property
    def queue(self) -> Array:
        """From reaching the scheduler to its first step."""
        first = self.played.server.prefill
        server = self.played.server if first is None else first.server
        waited = self.played.begun - self.played.arrived - server.surface.arrival
        return np.where(np.abs(waited) < 1e-9, 0.0, waited)

    @cached_property
    def tpot(self) -> Array:
        """(end - first) / (tokens - 1); NaN for one token."""
        tokens = self.played.requests.output
        return np.where(tokens > 1, (self.played.end - self.played.first) / np.maximum(tokens - 1, 1), np.nan)

    # Of all

    @cached_property
    def log(self) -> dict[str, Array]:
        """The logs of all replicas, one after another."""
        logs = self.played.logs
        return {name: np.concatenate([log[name] for log in logs]) for name in logs[0]}

    @cached_property
    def gaps(self) -> tuple[Array, Array]:
        """Times between two steps that give a sequence tokens, and how many sequences had them."""
        log = self.log
        decoding = log["decoding"] > 0
        steps, batch, stall = log["steps"][decoding], log["decoding"][decoding], log["stall"][decoding]
        each = log["seconds"][decoding] / steps
        late = stall > 0
        return np.concatenate([each, (each + stall)[late]]), np.concatenate([batch * (steps - late), batch[late]])

    def latency(self, name: str) -> dict[str, float]:
        """Mean and percentiles of one of LATENCIES; NaN where nothing has it."""
        if name == "itl":
            values, weights = self.gaps
        else:
            values = getattr(self, name)
            values = values[np.isfinite(values)]
            weights = np.ones(len(values))
        found = {"mean": float(np.average(values, weights=weights)) if weights.sum() > 0 else np.nan}
        return found | {f"p{q}": quantile(values, weights, q / 100.0) for q in QUANTILES}

    @cached_property
    def span(self) -> float:
        """Seconds from the first arrival to the last end."""
        arrived = self.played.arrived
        start = float(np.nanmin(arrived)) if np.isfinite(arrived).any() else 0.0
        return max(self.played.seconds - start, 0.0)

    @property
    def finished(self) -> int:
        """Requests with all their tokens."""
        return int(self.played.finished.sum())

    def rate(self, amount: float) -> float:
        """An amount over the span; NaN where no time has gone by."""
        return amount / self.span if self.span > 0 else np.nan

    @property
    def output_rate(self) -> float:
        """Output tokens of finished requests a second."""
        return self.rate(float(self.played.requests.output[self.played.finished].sum()))

    @property
    def input_rate(self) -> float:
        """Prompt tokens of finished requests a second."""
        return self.rate(float(self.played.requests.input[self.played.finished].sum()))

    @property
    def busy(self) -> float:
        """Share of the span in which a replica works."""
        return self.rate(float(self.log["seconds"].sum()) / len(self.played.logs))

    @property
    def batch(self) -> float:
        """Sequences in a decode step, by time."""
        log = self.log
        decoding = log["decoding"] > 0
        time = log["seconds"][decoding]
        return float(np.average(log["decoding"][decoding], weights=time)) if time.sum() > 0 else np.nan

    @property
    def drafted(self) -> float:
        """Share of the decode steps that verify drafts; NaN without any step."""
        log = self.log
        steps = float(log["steps"][log["decoding"] > 0].sum())
        return float(log["drafted"].sum()) / steps if steps else np.nan

    @property
    def tokens_per_step(self) -> float:
        """Tokens that a sequence gets from a decode step, in the mean."""
        log = self.log
        steps = float((log["decoding"] * log["steps"]).sum())
        return float((log["decoding"] * log["tokens"]).sum()) / steps if steps else np.nan

    @property
    def occupancy(self) -> tuple[float, float]:
        """Share of the KV memory in use by sequences: mean over the busy time, and largest."""
        pairs = zip(self.played.logs, self.played.pools, strict=True)
        units, time = np.concatenate([log["units"] / pool.capacity for log, pool in pairs]), self.log["seconds"]
        return (float(np.average(units, weights=time)), float(units.max())) if time.sum() > 0 else (0.0, 0.0)

    @property
    def hit_rate(self) -> float:
        """Share of the prompt tokens of started requests found in the prefix cache."""
        begun = np.isfinite(self.played.begun)
        total = float(self.played.requests.input[begun].sum())
        return float(self.played.cached[begun].sum()) / total if total else np.nan

    @property
    def bound(self) -> float:
        """The most that `hit_rate` can be: every leading block that was asked for before, by whomever, is found."""
        asked, begun = self.played.requests, np.isfinite(self.played.begun)
        total = float(asked.input[begun].sum())
        if asked.chains is None or not total:
            return float("nan")
        seen: set[int] = set()
        hits = 0
        for request in np.flatnonzero(begun).tolist():
            chain, most = asked.chains[request], (int(asked.input[request]) - 1) // asked.block
            hits += min(next((place for place, name in enumerate(chain) if name not in seen), len(chain)), most)
            seen.update(chain)
        return hits * asked.block / total

    @cached_property
    def tiers(self) -> tuple[Use, ...]:
        """What the prefix cache of the chips and every tier below did; nothing where prompts share nothing."""
        return uses(self.played)

    def kept(self, targets: Targets) -> "np.typing.NDArray[np.bool_]":
        """The requests that meet all targets; one that did not finish meets none."""
        met = self.played.finished.copy()
        if targets.ttft is not None:
            met &= np.nan_to_num(self.ttft, nan=np.inf) <= targets.ttft
        if targets.tpot is not None:
            single = self.played.requests.output == 1
            met &= single | (np.nan_to_num(self.tpot, nan=np.inf) <= targets.tpot)
        return met

    def share(self, targets: Targets) -> float:
        """The share of all requests that came which meet the targets; NaN where there are none."""
        came = np.isfinite(self.played.arrived)
        return float(self.kept(targets)[came].mean()) if came.any() else np.nan

    def goodput(self, targets: Targets) -> float:
        """Requests a second that meet the targets."""
        return self.rate(float(self.kept(targets).sum()))

    def series(self, names: Sequence[str] = ("decoding", "units")) -> Mapping[str, Array]:
        """Columns of the log over time, summed over replicas, at BINS moments (`time`), and who waits (`waiting`)."""
        time = np.linspace(0.0, self.played.seconds, BINS + 1)[:-1]
        found = {name: np.zeros(BINS) for name in names}
        for log in self.played.logs:
            if not len(log["start"]):
                continue
            place = np.clip(np.searchsorted(log["start"], time, side="right") - 1, 0, None)
            working = (time >= log["start"][place]) & (time <= log["start"][place] + log["seconds"][place])
            for name in names:
                found[name] += np.where(working, log[name][place], 0.0)
        come, begun = (np.sort(times[np.isfinite(times)]) for times in (self.played.arrived, self.played.begun))
        waiting = np.searchsorted(come, time, side="right") - np.searchsorted(begun, time, side="right")
        return {"time": time, "waiting": waiting.astype(np.float64), **found}


def quantile(values: Array, weights: Array, share: float) -> float:
    """The value that a share of the weight does not exceed; NaN without any."""
    if not len(values) or weights.sum() <= 0:
        return float("nan")
    order = np.argsort(values, kind="stable")
    summed = np.cumsum(weights[order])
    place = int(np.searchsorted(summed, share * summed[-1] * (1 - 1e-12)))
    return float(values[order][min(place, len(values) - 1)])
