"""Steps with prefill as a simulation prices them: put together from the curves of what they consist of."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from archsim.serving.curves import Curve, Grid


@dataclass(frozen=True, eq=False)
class Stages:
    """What pipeline stages add to a step with prefill; see `steady.with_prefill`."""

    count: int
    share: float  # of the layers, on the fullest stage
    hop: tuple[float, float]  # seconds of a hop: fixed, and a token
    stage: Callable[[int, Sequence[float]], float]

    def between_tokens(self, span: float, layers: float, tokens: float, batch: int, sums: Sequence[float]) -> float:
        """Seconds between two tokens of a sequence when prefill joins one of the micro-batches on their way."""
        latency = span + (self.count - 1) * (self.hop[0] + self.hop[1] * tokens)
        return max(latency, (self.count - 1) * self.stage(batch, sums) + layers * self.share)


@dataclass(frozen=True, eq=False)
class Prompts:
    """Steps with prefill, put together from curves.

    `layers` are the kernels that know tokens only, the embedding among them, `head` those that know sampled tokens,
    `fixed` and `slope` decode attention, `alone` prompt attention of one request without prefix and `grid` of any, with
    `bend` what a pair of tokens more costs. `host` is (step, sequence, request) and `launches` those of (a layer, the
    head) without and with decode. `ranks` are the groups and stages that share a step. A sequence has `queries` tokens,
    its drafts among them; `writing` is what a model takes to write these, and `reading` its own prefill, by tokens.
    `total` is what another pool does with the tokens of all ranks.
    """

    layers: Curve
    head: Sequence[float]
    fixed: Sequence[float]
    slope: Sequence[Sequence[float]]
    alone: Curve
    grid: Grid
    bend: Grid
    clip: float
    host: tuple[float, float, float]
    launches: tuple[tuple[float, float], tuple[float, float]]
    count: int
    ranks: int
    pipeline: Stages | None = None
    queries: int = 1
    writing: Callable[[int, Sequence[float]], float] | None = None
    reading: Curve | None = None
    total: Curve | None = None

    def seconds(self, batch: int, sums: Sequence[float], chunks: Sequence[tuple[int, int]]) -> float:
        """Seconds of a step."""
        ranks, requests = self.ranks, len(chunks)
        one = 1.0
        if requests == 1:
            tokens, before = chunks[0]
            rows: float = tokens
            prompt = self.grid(tokens, 1.0, before) if before else self.alone(tokens)
        else:
            tokens = sum([chunk[0] for chunk in chunks])
            one = requests / ranks if requests > ranks else 1.0
            rows = tokens / requests * one if ranks > 1 else tokens
            prompt = self._prompts(chunks, tokens, requests, one)
        sequences = batch if ranks == 1 else -(-batch // ranks)
        decoded = sequences * self.queries
        layers = self.layers(decoded + rows) + prompt
        if self.total is not None:
            layers += self.total(batch * self.queries + tokens)
        if batch:
            layers += self.fixed[batch]
            for slope, total in zip(self.slope, sums):  # noqa: B905  # hot
                layers += slope[batch] * total
        step, sequence, request = self.host
        sampled = int(decoded + one + 0.5)
        head = self.head[sampled] if sampled < len(self.head) else self.head[-1]
        span = self._span(step + sequence * sequences + request * one, layers, head, self.launches[1 if batch else 0])
        if self.pipeline is not None:
            span = self.pipeline.between_tokens(span, layers, decoded + rows, batch, sums)
        if self.reading is not None:
            span += self.reading(rows)
        return span if self.writing is None or not batch else span + self.writing(batch, sums)

    def _prompts(self, chunks: Sequence[tuple[int, int]], tokens: int, requests: int, one: float) -> float:
        """Prompt attention of several requests: as equal ones, and the pairs that unequal ones have more."""
        before = sum([chunk[1] for chunk in chunks])
        mean, prefix = tokens / requests, before / requests
        own = sum([_pairs(new, old, self.clip) for new, old in chunks])
        more = (own - requests * _pairs(mean, prefix, self.clip)) * one / requests
        return self.grid(mean, one, prefix) + self.bend(mean, one, prefix) * more

    def _span(self, end: float, layers: float, head: float, by: tuple[float, float]) -> float:
        """The lanes' recurrence: a layer starts when the one before has ended and its launches are in.

        The embedding counts as a part of the layers.
        """
        each, last = by
        if not each:
            return end + layers + head
        host = end + each * self.count
        end = end + each + layers
        launched, sampled = host + layers / self.count, host + last
        if launched > end:
            end = launched
        return (end if end > sampled else sampled) + head


def _pairs(new: float, old: float, clip: float) -> float:
    """Pairs of a query and a key it sees: sum of min(position, clip) over positions old + 1 .. old + new."""
    below = new if old + new <= clip else max(min(clip - old, new), 0.0)
    far = (new - below) * clip if below < new else 0.0
    return below * old + below * (below + 1.0) / 2.0 + far
