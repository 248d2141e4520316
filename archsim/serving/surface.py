"""Step times of a deployment as a compiled surface: what a simulation asks a million times.

A decode step of B sequences takes fixed[B] + sum over clips of slope[B, clip] x (sum of min(length, clip)), at every
whole B. A step with prefill is put together from what it consists of: kernels that know only tokens, decode attention,
prompt attention, the head, the host and the launches. A guard compares random steps with the exact path.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from archsim.arrays import Array, array
from archsim.engine.step import PricedStep, lanes_of, run_step
from archsim.mapping.pipeline import stages
from archsim.mapping.place import Deployment, place
from archsim.serving.curves import Curve, Grid, affine
from archsim.serving.energies import Energies
from archsim.serving.prompts import Prompts, Stages
from archsim.serving.speculation import Speculation
from archsim.serving.steady import expert_layers, with_prefill
from archsim.workload.parts import Chunk
from archsim.workload.step import Step, decode, prefill

CONTEXTS = 24  # contexts at which a batch is priced for its line
RANKS_REQUESTS = array([1, 2, 4, 8, 16, 32, 64, 128, 256])  # requests of a rank at which prompt attention is priced
PREFIXES = (0.0, 512.0, 2048.0, 8192.0, 32768.0, 131072.0)  # cached tokens a request, likewise
PER_OCTAVE = 4  # prompt lengths in each doubling, likewise
PROBES = 96  # random steps of the guard, of each kind
GUARD = 0.01  # what 95 % of them must keep


@dataclass(frozen=True)
class Guard:
    """How far the surface is from the exact path on random steps: 95th percentiles of the relative error."""

    decode: float
    mixed: float

    def worse(self, other: "Guard") -> "Guard":
        """The larger error of each kind."""
        return Guard(max(self.decode, other.decode), max(self.mixed, other.mixed))

    @property
    def kept(self) -> bool:
        """Whether both are below the guard."""
        return max(self.decode, self.mixed) <= GUARD

    def __str__(self) -> str:
        """One line about it."""
        decode, mixed, most = (f"{max(100 * share, 0.01):.2g} %" for share in (self.decode, self.mixed, GUARD))
        verdict = "" if self.kept else f"; above {most}, so read times with care"
        return f"95 % of steps within {decode} in decode, {mixed} with prefill{verdict}"


@dataclass(frozen=True, eq=False)
class Surface:
    """Step times (s) of one replica.

    `clips` are the levels at which context sums are clipped and `beyond` what a longer sequence counts at each;
    `fixed[B]` and `slope[clip][B]` are plain lists for scalar use. `arrival` is the host time of a request (s).
    """

    clips: tuple[float, ...]
    beyond: tuple[float, ...]
    fixed: Sequence[float]
    slope: Sequence[Sequence[float]]
    arrival: float
    prompts: Prompts | None = None
    energy: Energies | None = None
    guard: Guard = Guard(0.0, 0.0)
    drafted: "Drafted | None" = None
    away: Energies | None = None

    @property
    def most(self) -> int:
        """The largest batch that is tabulated."""
        return len(self.fixed) - 1

    def decode(self, batch: int, sums: Sequence[float]) -> float:
        """Seconds of a decode step."""
        return self.fixed[batch] + sum(slope[batch] * total for slope, total in zip(self.slope, sums, strict=True))

    def mixed(self, batch: int, sums: Sequence[float], chunks: Sequence[tuple[int, int]]) -> float:
        """Seconds of a step that decodes `batch` sequences and prefills `chunks`: (new tokens, tokens before)."""
        if self.prompts is None:
            raise ValueError("this surface knows no prefill")
        return self.prompts.seconds(batch, sums, chunks)


@dataclass(frozen=True, eq=False)
class Drafted:
    """Steps that verify `drafts` drafts of every sequence: their times, with what it takes to write the drafts.

    `gain` is the mean of tokens that a sequence gets; `always`: also where drafts do not pay.
    """

    surface: Surface
    drafts: int
    gain: float
    always: bool = False

    @property
    def mixed(self) -> Callable[[int, Sequence[float], Sequence[tuple[int, int]]], float]:
        """Seconds of a step with prefill among sequences with drafts; see Surface."""
        prompts = self.surface.prompts
        return self.surface.mixed if prompts is None else prompts.seconds

    def pays(self, plain: Surface, batch: int, sums: Sequence[float]) -> bool:
        """Whether a token of such a step takes less time than one of a plain step."""
        return self.always or self.surface.decode(batch, sums) < self.gain * plain.decode(batch, sums)


def surface(
    d: Deployment,
    most: int,
    contexts: tuple[float, float],
    longest: int,
    seed: int = 0,
    speculation: Speculation | None = None,
) -> Surface:
    """The surface of a deployment up to a batch of `most`; with `speculation` also that of steps with drafts.

    `contexts` are the shortest and the longest mean context that a batch will have, `longest` the most tokens that one
    step prefills. Raises what `run_step` raises.
    """
    if d.partner is not None and d.partner.job == "roles":
        from archsim.serving.paired import Paired  # it extends this module

        return Paired(d, most, contexts, longest).build(seed)
    if speculation is None:
        return Builder(d, most, contexts, longest).build(seed)
    reader = replace(speculation, drafts=0)  # a model that drafts reads prompts also where drafts do not pay
    plain = Builder(d, most, contexts, longest, reader).build(seed)
    found = Builder(d, most, contexts, longest, speculation).build(seed)
    drafted = Drafted(found, speculation.drafts, float(speculation.tokens.max()), speculation.always)
    return replace(plain, guard=plain.guard.worse(found.guard), drafted=drafted)


class Builder:
    """Prices arrays and turns them into curves."""

    def __init__(
        self,
        d: Deployment,
        most: int,
        contexts: tuple[float, float],
        longest: int,
        speculation: Speculation | None = None,
    ) -> None:
        self.writer = None if speculation is None else speculation.writer
        self.drafts = 0 if speculation is None else speculation.drafts
        self.queries = 1 + self.drafts
        self.d, self.most, self.longest = d, max(most, 1), max(longest, 16)
        self.clips = d.model.clips
        low, high = max(contexts[0], 1.0), max(contexts[1], contexts[0] + 1.0, 64.0)
        self.lengths = np.unique(np.round(np.geomspace(low, high, CONTEXTS)))
        self.groups = int(d.split.groups.max())
        self.stages = int(d.split.pipeline.max())
        self.ranks = self.groups * self.stages
        batch = np.arange(1.0, self.most + 1)[:, None]
        self.decoded = self.price(decode(batch, self.lengths[None, :], self.clips, self.queries))
        self.written = self.write(batch, self.lengths[None, :])
        self.one = self.price(decode(1, 512, self.clips, self.queries) + prefill(256, 0, 1, self.clips))
        self.parts = self.beside(batch)
        self.names = {block: set(kernels) for block, kernels in self._kernels(self.parts).items()}
        self.filled = self._kernels(self.price(prefill(256, 0, 1, self.clips)))

    def price(self, step: Step) -> PricedStep:
        """The exact path."""
        return run_step(place(self.d, step), self.d.chip, self.d.runtime.stack)

    def write(self, batch: Array, context: Array) -> Array:
        """Seconds to write the drafts of a step."""
        return array(0.0) if self.writer is None else self.writer.seconds(self.drafts, batch, context)

    def whole(self, step: Step) -> PricedStep:
        """A decode step as it is beside prefill: in one micro-batch."""
        return self.price(step)

    def beside(self, batch: Array) -> PricedStep:
        """All decode steps that are tabulated, likewise."""
        return self.decoded

    def build(self, seed: int) -> Surface:
        """The surface with its guard."""
        fixed, slope = self._lines(self.decoded.turnaround + self.written)
        beyond = tuple((clip + 1.0) / 2.0 if isinstance(clip, Chunk) else clip for clip in self.clips)
        host = self.d.runtime.host
        arrival = host.arrival + host.expert_layer * expert_layers(self.d)
        clips = tuple(float(clip) for clip in self.clips)
        made = Surface(clips, beyond, fixed, slope, arrival, self._prompts(), self._energies())
        return replace(made, guard=self._guard(made, seed), away=self.away())

    def _lines(self, seconds: Array) -> tuple[list[float], list[list[float]]]:
        """Lines in the context sums for every batch, by least squares of the relative error; index 0 is no batch."""
        full = np.broadcast_to(seconds, (self.most, len(self.lengths)))
        means = [decode(1, self.lengths, self.clips).lengths[clip] for clip in self.clips]
        constant, gains = affine(full, means)
        batch = np.arange(1.0, self.most + 1)
        return [0.0, *constant.tolist()], [[0.0, *(gain / batch).tolist()] for gain in gains]

    # What a step with prefill consists of

    @staticmethod
    def _kernels(priced: PricedStep) -> dict[str, dict[str, Array]]:
        """Seconds of every kernel by block and name, over all layers of the block."""
        found: dict[str, dict[str, Array]] = {}
        for block, kernel, cost, count in priced.kernels():
            kernels = found.setdefault(block, {})
            kernels[kernel.name] = kernels.get(kernel.name, array(0.0)) + cost.seconds * count
        return found

    def _sum(self, priced: PricedStep, wanted: Callable[[str, str], bool]) -> Array:
        total = array(0.0)
        for block, kernels in self._kernels(priced).items():
            for name, seconds in kernels.items():
                if wanted(block, name):
                    total = total + seconds
        return total

    def _shared(self, block: str, name: str) -> bool:
        """Whether a kernel of a layer serves decode and prefill alike: it knows tokens only."""
        return block != "head" and name in self.names[block] and name in self.filled[block]

    def _prompts(self) -> Prompts:
        tokens = Curve.knots(self.longest + self.most * self.queries)
        filled = self.price(prefill(tokens, 0, self.ranks, self.clips))
        only_prompt = self._only(self.filled, self.names)
        fixed, slope = self._lines(self._sum(self.parts, self._only(self.names, self.filled)))
        grid, bend = self._grids(only_prompt)
        runtime = self.d.runtime
        alone = self._launches(self.price(prefill(256, 0, 1, self.clips)))
        return Prompts(
            Curve.of(tokens, self._layers(filled)),
            self._head(),
            fixed,
            slope,
            Curve.of(tokens, self._sum(filled, only_prompt)),
            grid,
            bend,
            max(float(clip) for clip in self.clips) if self.clips else np.inf,
            (runtime.host.step, runtime.host.sequence, runtime.host.request),
            (alone, self._launches(self.one)),
            self.d.model.layers,
            self.ranks,
            self._stages() if self.stages > 1 else None,
            self.queries,
            self._writing() if self.writer is not None and self.drafts else None,
            None if self.writer is None else Curve.of(tokens, self.writer.reading(tokens, array(self.ranks))),
            self.total(),
        )

    def _writing(self) -> Callable[[int, Sequence[float]], float]:
        """The writing of drafts alone, as lines."""
        fixed, slope = self._lines(self.written)
        return Surface(tuple(map(float, self.clips)), (), fixed, slope, 0.0).decode

    def total(self) -> Curve | None:
        """What another pool does with the tokens of all ranks."""
        return None

    def _layers(self, filled: PricedStep) -> Array:
        """What knows tokens only, of steps of prefill."""
        return self._sum(filled, self._shared)

    @staticmethod
    def _only(have: Mapping[str, object], lack: Mapping[str, object]) -> Callable[[str, str], bool]:
        """Kernels of layers that one kind of step has and the other has not."""
        return lambda block, name: (
            block not in ("head", "embedding") and name in have[block] and name not in lack[block]  # type: ignore[operator]
        )

    def _launches(self, priced: PricedStep) -> tuple[float, float]:
        """Seconds to launch a layer (their mean, the embedding shared out) and the head; 0 for captured graphs."""
        launch = lanes_of(priced.plan, priced.costs)[3]
        if not launch:
            return 0.0, 0.0
        counts = dict(priced.plan.merged())
        layers = sum(float(launch[name].max()) * n for name, n in counts.items() if name != "head")
        return layers / self.d.model.layers, float(launch["head"].max())

    def _head(self) -> list[float]:
        """The head by sampled tokens of a rank."""
        rows = np.arange(1.0, self.most * self.queries + RANKS_REQUESTS[-1] + 2)
        found = self._sum(self.whole(decode(rows * self.ranks, 512, self.clips)), lambda block, _: block == "head")
        values = np.broadcast_to(found, rows.shape).tolist()
        return [values[0], *values]

    def _grids(self, wanted: Callable[[str, str], bool]) -> tuple[Grid, Grid]:
        """Prompt attention by length, requests and prefix; and what a pair more costs."""
        octaves = int(np.ceil(np.log2(self.longest)))
        lengths = np.unique(np.round(2.0 ** (np.arange(0, octaves * PER_OCTAVE + 1) / PER_OCTAVE)))
        prefixes = np.array(PREFIXES)
        step = prefill(
            lengths[:, None, None],
            prefixes[None, None, :],
            RANKS_REQUESTS[None, :, None] * self.ranks,
            self.clips,
        )
        shape = (len(lengths), len(RANKS_REQUESTS), len(prefixes))
        base = np.broadcast_to(self._sum(self.price(step), wanted), shape)
        if not self.clips:
            return Grid.of(lengths, RANKS_REQUESTS, prefixes, base), Grid.of(
                lengths, RANKS_REQUESTS, prefixes, 0 * base
            )
        clip = max(self.clips)
        more = {name: pairs * 1.5 for name, pairs in step.prefill_pairs.items()}
        bent = np.broadcast_to(self._sum(self.price(replace(step, prefill_pairs=more)), wanted), shape)
        slope = (bent - base) / (0.5 * step.prefill_pairs[clip] / self.ranks)
        return Grid.of(lengths, RANKS_REQUESTS, prefixes, base), Grid.of(lengths, RANKS_REQUESTS, prefixes, slope)

    def _stages(self) -> Stages:
        """The share of the fullest stage, hops, and the stage time of decode."""
        fullest = max(sum(held.values()) for held in stages(self.d.model.sequence, self.stages)) - 1
        small, large = (float(self.price(prefill(n, 0, self.ranks, self.clips)).hop.max()) for n in (1, 1025))
        fixed, slope = self._lines(self.decoded.stage)
        lines = Surface(tuple(map(float, self.clips)), (), fixed, slope, 0.0)
        each = (large - small) / 1024.0
        return Stages(self.stages, fullest / self.d.model.layers, (small - each, each), lines.decode)

    def away(self) -> Energies | None:
        """Energies of a chip of another pool that runs part of every step."""
        return None

    def _energies(self) -> Energies:
        """Energy of a decode step as a line; of prefill by tokens of a step."""
        idle = float(self.d.chip.power.idle.max())
        total = self.decoded.total()
        spent = total.energy + idle * (self.decoded.turnaround - total.seconds)
        if self.writer is not None and self.drafts:
            batch = np.arange(1.0, self.most + 1)[:, None]
            spent = spent + self.writer.joules(self.drafts, batch, self.lengths[None, :])
        fixed, slope = self._lines(spent)
        tokens = np.unique(np.round(np.geomspace(1, self.longest, 48)))
        filled = self.price(prefill(tokens / self.ranks, 0, self.ranks, self.clips))
        done = filled.total()
        joules = done.energy + idle * np.maximum(filled.span - done.seconds, 0.0)
        if self.writer is not None:
            joules = joules + self.writer.reading_joules(tokens / self.ranks, array(self.ranks))
        return Energies(np.array(fixed), np.array(slope), tokens, np.broadcast_to(joules, tokens.shape), idle)

    # The guard

    def _guard(self, made: Surface, seed: int) -> Guard:
        """95th percentiles of the relative error on random steps of both kinds."""
        rng = np.random.default_rng(seed)
        batch = np.floor(np.exp(rng.uniform(0, np.log(self.most + 1), PROBES)))
        length = np.round(np.exp(rng.uniform(np.log(self.lengths[0]), np.log(self.lengths[-1]), PROBES)))
        plain = decode(batch, length, self.clips, self.queries)
        more = self.write(array(batch), array(length))
        priced = self.price(plain)
        sums = [[float(plain.context[clip][i]) for clip in self.clips] for i in range(PROBES)]
        found = np.array([made.decode(int(b), s) for b, s in zip(batch, sums, strict=True)])
        tokens = np.floor(np.exp(rng.uniform(0, np.log(self.longest + 1), PROBES)))
        requests = np.minimum(rng.integers(1, 5, PROBES), tokens)
        tokens = np.floor(tokens / requests)
        prefix = np.where(rng.random(PROBES) < 0.5, 0.0, np.floor(np.exp(rng.uniform(0, np.log(32768), PROBES))))
        mixed = with_prefill(priced, self.price(plain + prefill(tokens, prefix, requests, self.clips)))
        mixed = mixed + more
        if self.writer is not None:
            mixed = mixed + self.writer.reading(tokens, requests)
        times = [
            made.mixed(int(batch[i]), sums[i], [(int(tokens[i]), int(prefix[i]))] * int(requests[i]))
            for i in range(PROBES)
        ]
        return Guard(_p95(found, priced.turnaround + more), _p95(np.array(times), mixed))


def _p95(found: Array, exact: Array) -> float:
    return float(np.percentile(np.abs(found / np.broadcast_to(exact, found.shape) - 1.0), 95))
