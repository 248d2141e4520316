"""Evaluation: the proposals of a scenario, priced at every point by the engine."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from archsim.arrays import Array, array
from archsim.catalog import CatalogError
from archsim.chip.model import Unsuited
from archsim.economics.money import Rate, per_million, rate
from archsim.economics.prices import margin, per_megawatt, revenue
from archsim.economics.terms import HOUR
from archsim.engine.cost import Cost
from archsim.engine.step import PricedStep, run_step
from archsim.explore.bill import away_energy, dollars_per_second, energy, facility_power, shares
from archsim.explore.drafts import reading, speculation_of, with_drafter, written
from archsim.explore.scenario import Scenario
from archsim.explore.second import drafting, handover, job_of, second_deployment, with_second
from archsim.mapping.memory import memory_plan
from archsim.mapping.place import Deployment, place
from archsim.mapping.plan import MemoryPlan
from archsim.mapping.split import OTHER, legality, partner_legality
from archsim.serving.disaggregated import disaggregated, prefilling
from archsim.serving.speculation import expected_tokens
from archsim.serving.steady import Steady, expert_layers, steady
from archsim.workload.operators import ROLES
from archsim.workload.step import Step, decode, prefill


def deployment_of(scenario: Scenario) -> Deployment:
    """What a scenario deploys."""
    s = scenario
    partner = s.partner if s.partner is not None and s.partner.job == "roles" else None
    return Deployment(s.model, s.precision, s.split, s.chip, s.runtime, s.skew, s.options, partner)


def memory_of(scenario: Scenario, batch: Array, context: Array) -> MemoryPlan:
    """What the chips of all pools hold."""
    d = deployment_of(scenario)
    own = with_drafter(speculation_of(scenario, d), memory_plan(d, batch, context), context)
    return with_second(scenario, own, batch, context)


@contextmanager
def at_the_chip(scenario: Scenario) -> Iterator[None]:
    """Turns what a chip lacks into a fault where the scenario names the chip."""
    try:
        yield
    except Unsuited as error:
        if scenario.chip_mark is None:
            raise
        raise CatalogError([scenario.chip_mark.fault(str(error))]) from error


def priced(scenario: Scenario, d: Deployment, step: Step) -> PricedStep:
    """A step placed and priced. Raises CatalogError when the chip lacks what the model needs of it."""
    with at_the_chip(scenario):
        return run_step(place(d, step), d.chip, d.runtime.stack)


@dataclass(frozen=True, eq=False)
class StepAnswer:
    """One decode step of `batch` sequences of `context` tokens; and apart from it the prefill of such a context."""

    scenario: Scenario
    deployment: Deployment
    batch: Array
    context: Array
    memory: MemoryPlan
    decode: PricedStep
    draft: PricedStep | None = None

    mode = "step"

    @cached_property
    def prefilling(self) -> Deployment:
        """What prefills: a pool of its own, or the one that decodes."""
        apart = job_of(self.scenario) == "prefill"
        return second_deployment(self.scenario) if apart else self.deployment

    @cached_property
    def prefill(self) -> PricedStep:
        """One chunk of the prefill of `context` tokens on every data-parallel rank, at its mean position."""
        tokens = self.context / self.chunks
        d = self.prefilling
        step = prefill(tokens, (self.context - tokens) / 2.0, self.groups, d.model.clips)
        return priced(self.scenario, d, step)

    @property
    def prefill_seconds(self) -> Array:
        """The chunks of one context through all pipeline stages, one after another, and the way to another pool."""
        seconds = self.prefill.latency + (self.chunks - 1.0) * self.prefill.stage
        if job_of(self.scenario) != "prefill":
            return seconds
        return seconds + handover(self.scenario, self.context, seconds)

    @property
    def groups(self) -> Array:
        """Data-parallel ranks that prefill."""
        return self.prefilling.split.groups

    @property
    def chunks(self) -> Array:
        """Steps the prefill takes."""
        return np.ceil(self.context / self.prefilling.runtime.chunk)

    @property
    def fits(self) -> Array:
        """1 where the memory plan fits."""
        return self.memory.fits.astype(np.float64)

    @property
    def tpot(self) -> Array:
        """Mean seconds between tokens; a step with drafts gives several."""
        return self.cycle / self.tokens_per_step

    @cached_property
    def cycle(self) -> Array:
        """Seconds from one decode step to the next, the writing of drafts included."""
        return self.decode.turnaround + self.written[0]

    @cached_property
    def written(self) -> tuple[Array, Array]:
        """Seconds to write the drafts of a step, and joules of a chip of the main pool meanwhile."""
        return written(self.scenario, self.deployment, self.draft, self.batch, self.context)

    @cached_property
    def tokens_per_step(self) -> Array:
        """Tokens that a sequence gets from one step: 1 without drafts."""
        speculation = self.scenario.speculation
        return expected_tokens(speculation.acceptance, speculation.drafts)

    @cached_property
    def ttft(self) -> Array:
        """Seconds to the first token of a lone request."""
        host = self.deployment.runtime.host
        prompt = self.prefill_seconds + reading(self.scenario, self.prefilling, self.context, self.chunks)
        return prompt + host.arrival + host.expert_layer * expert_layers(self.deployment)

    @property
    def output_rate(self) -> Array:
        """Output tokens a second, all sequences."""
        return self.batch / self.tpot

    @property
    def input_rate(self) -> Array:
        """Prompt tokens a second, if the chips did nothing else."""
        return self.groups * self.context / (self.prefill.stage * self.chunks)

    @cached_property
    def power(self) -> Array:
        """Mean board power (W) of a chip of the main pool in decode."""
        return (energy(self.decode, self.deployment) + self.written[1]) / self.cycle

    @cached_property
    def partner_power(self) -> Array:
        """Mean board power (W) of a chip of the other pool; of one that prefills, while it does."""
        job = job_of(self.scenario)
        if job == "prefill":
            return energy(self.prefill, self.prefilling) / self.prefill.turnaround
        if self.draft is not None:
            d, drafts = second_deployment(self.scenario), self.scenario.speculation.drafts
            busy = drafts * self.draft.turnaround
            return (drafts * energy(self.draft, d) + d.chip.power.idle * (self.cycle - busy)) / self.cycle
        return away_energy(self.decode, self.deployment) / self.decode.turnaround

    @property
    def total(self) -> Cost:
        """Everything a chip does in one decode step."""
        return self._total

    @cached_property
    def _total(self) -> Cost:
        return self.decode.total()

    def cost(self) -> dict[str, Array]:
        """USD per million tokens, decode and prefill apart; where pools do them, each by its own pool."""
        if job_of(self.scenario) == "prefill":
            return _by_pool(self)
        output, prompt = (_per_million(self, rate) for rate in (self.output_rate, self.input_rate))
        return {"cost_per_token": output, "output_cost": output, "input_cost": prompt}


@dataclass(frozen=True, eq=False)
class SteadyAnswer:
    """A closed loop of `batch` clients with traffic of one size."""

    scenario: Scenario
    deployment: Deployment
    batch: Array
    input: Array
    output: Array
    loop: Steady

    mode = "steady"

    @property
    def memory(self) -> MemoryPlan:
        """What a chip holds."""
        return self.loop.memory

    @property
    def decode(self) -> PricedStep:
        """The plain decode step of the loop."""
        return self.loop.decode

    @property
    def fits(self) -> Array:
        """1 where all clients run at once."""
        return (self.loop.running >= self.batch).astype(np.float64) * self.memory.fits

    @property
    def tpot(self) -> Array:
        """Mean seconds between tokens, prefill of others included."""
        return self.loop.tpot

    @property
    def ttft(self) -> Array:
        """Mean seconds to the first token, queueing included."""
        return self.loop.ttft

    @property
    def output_rate(self) -> Array:
        """Output tokens a second, all clients."""
        return self.loop.requests_per_second * self.output

    @property
    def input_rate(self) -> Array:
        """Prompt tokens a second, all clients."""
        return self.loop.requests_per_second * self.input

    @cached_property
    def power(self) -> Array:
        """Mean board power (W) of a chip of the main pool over decode and mixed steps."""
        return self._mean(energy)

    @cached_property
    def partner_power(self) -> Array:
        """Mean board power (W) of a chip of the other pool."""
        if job_of(self.scenario) != "prefill":
            return self._mean(away_energy)
        d = second_deployment(self.scenario)
        busy = energy(self.loop.mixed, d) / self.loop.mixed.turnaround
        return d.chip.power.idle + (busy - d.chip.power.idle) * self.loop.prefill_share

    def _mean(self, joules: Callable[[PricedStep, Deployment], Array]) -> Array:
        """Watts over decode and mixed steps."""
        loop, d, pace = self.loop, self.deployment, self.loop.pace if joules is energy else None
        drafting, reading = (array(0.0),) * 2 if pace is None else (pace.joules, pace.reading_joules)
        plain = (joules(loop.decode, d) + drafting) / loop.cycle
        mixed = (loop.at_joined(joules(loop.mixed, d) + reading) + drafting) / loop.mixed_seconds
        return plain + (mixed - plain) * self.loop.mixed_time

    def cost(self) -> dict[str, Array]:
        """USD per million tokens: blended, and by the share of time that prefill and decode take, or by pool."""
        if job_of(self.scenario) == "prefill":
            return _by_pool(self) | {"cost_per_token": _per_million(self, self.input_rate + self.output_rate)}
        share = self.loop.prefill_share
        return {
            "cost_per_token": _per_million(self, self.input_rate + self.output_rate),
            "output_cost": _per_million(self, self.output_rate) * (1.0 - share),
            "input_cost": _per_million(self, self.input_rate) * share,
        }

    def cached_input_cost(self) -> Array:
        """USD per million cached input tokens: what the fresh ones take longer because they attend to a prefix too.

        Marginal: the prefill of the fresh tokens of a prompt after its cached ones, against the same without them.
        Raises KeyError where nothing is cached.
        """
        cached = np.minimum(self.scenario.cached, self.input - 1.0)
        if not (cached > 0).any():
            raise KeyError("nothing is cached; add `traffic: {cached: ...}`, prompt tokens found in the prefix cache")
        added = self._prefill(cached) - self._prefill(array(0.0))
        second = dollars_per_second(self) / self.deployment.split.groups
        return np.where(cached > 0, second * np.maximum(added, 0.0) / np.where(cached > 0, cached, 1.0) * 1e6, np.nan)

    def _prefill(self, cached: Array) -> Array:
        """Seconds that every data-parallel rank needs for the fresh tokens of one prompt after so many cached ones."""
        d, fresh = self.deployment, self.input - np.minimum(self.scenario.cached, self.input - 1.0)
        chunks = np.ceil(fresh / d.runtime.chunk)
        tokens = fresh / chunks
        step = prefill(tokens, cached + (fresh - tokens) / 2.0, d.split.groups, d.model.clips)
        return priced(self.scenario, d, step).stage * chunks


Answer = StepAnswer | SteadyAnswer


def chip_rate(answer: Answer) -> Rate:
    """What one chip of the main pool costs an hour at its mean power."""
    return rate(answer.deployment.chip, answer.scenario.terms, answer.power)


def _per_million(answer: Answer, tokens_per_second: Array) -> Array:
    """USD per million tokens, if the whole system were paid by them."""
    if answer.scenario.partner is None:
        return per_million(chip_rate(answer).hourly, answer.scenario.chips, tokens_per_second)
    return dollars_per_second(answer) / tokens_per_second * 1e6


def _by_pool(answer: Answer) -> dict[str, Array]:
    """USD per million tokens: output by the pool that decodes, input by the pool that prefills."""
    main, other = shares(answer)
    output, prompt = (
        share.hourly / HOUR / rate * 1e6 for share, rate in ((main, answer.output_rate), (other, answer.input_rate))
    )
    return {"cost_per_token": output, "output_cost": output, "input_cost": prompt}


def revenue_per_hour(answer: Answer) -> Array:
    """USD an hour that the system earns at the scenario's prices: of the step answer by output alone.

    Raises KeyError saying what to add where there are no prices.
    """
    prices = answer.scenario.prices
    if prices is None:
        raise KeyError("no prices; add `prices: {input: 0.5 USD/Mtok, output: 1.5 USD/Mtok}` to the scenario")
    if isinstance(answer, StepAnswer):
        return revenue(prices, array(0.0), array(0.0), answer.output_rate)
    share = np.minimum(answer.scenario.cached, answer.input - 1.0) / answer.input
    return revenue(prices, answer.input_rate * (1.0 - share), answer.input_rate * share, answer.output_rate)


def margin_of(answer: Answer) -> Array:
    """Share of the revenue that is left after the cost of the system."""
    return margin(revenue_per_hour(answer), dollars_per_second(answer) * HOUR)


def revenue_per_megawatt(answer: Answer) -> Array:
    """USD an hour for a megawatt of facility power."""
    return per_megawatt(revenue_per_hour(answer), facility_power(answer))


def cached_input_cost(answer: Answer) -> Array:
    """USD per million cached input tokens of the steady answer. Raises KeyError for a step."""
    if isinstance(answer, StepAnswer):
        raise KeyError("the cost of cached input is of the steady answer; add `traffic: {cached: ...}`")
    return answer.cached_input_cost()


def legal(scenario: Scenario) -> Array:
    """Index of the first rule each proposed split breaks; 0 where it breaks none."""
    model, split, partner = scenario.model, scenario.split, scenario.partner
    if partner is None or split.partner is None:
        return legality(model, split, scenario.chips)
    if partner.job != "roles":
        own = legality(model, split, scenario.chips)
        theirs = legality(
            model if partner.job == "prefill" else scenario.drafter or model, split.partner, partner.count
        )
        return np.where(own == 0, np.where(theirs == 0, 0.0, float(OTHER[7])), own)
    own = legality(model, split, scenario.chips, frozenset(ROLES) - partner.roles)
    return np.where(own == 0, partner_legality(model, split.partner, partner, partner.count), own)


def evaluate_step(scenario: Scenario) -> StepAnswer:
    """The step answer at every point of every proposal."""
    d = deployment_of(scenario)
    batch, context = scenario.batch, scenario.context
    if batch is None or context is None:
        raise ValueError("the step answer needs `batch` and `context`")
    step = priced(scenario, d, decode(batch, context, d.model.clips, 1 + scenario.speculation.drafts))
    memory = memory_of(scenario, batch, context)
    return StepAnswer(scenario, d, batch, context, memory, step, drafting(scenario, batch, context))


def evaluate_steady(scenario: Scenario) -> SteadyAnswer:
    """The steady answer at every point of every proposal; the last axis of swept arrays has length 1."""
    d = deployment_of(scenario)
    if scenario.input is None or scenario.output is None or scenario.batch is None:
        raise ValueError("the steady answer needs `traffic`")
    job, drafts = job_of(scenario), speculation_of(scenario, d)
    if job == "draft":
        raise ValueError("drafts of a model are of the step answer; give `batch` and `context`")
    if job == "prefill":
        first = prefilling(second_deployment(scenario), scenario.input, scenario.cached)
        exposed = handover(scenario, scenario.input, first.alone)
        loop = disaggregated(d, first, exposed, scenario.batch, scenario.input, scenario.output, drafts)
        memory = with_second(scenario, loop.memory, scenario.batch, scenario.input)
        loop = replace(loop, memory=memory)
    else:
        with at_the_chip(scenario):
            loop = steady(d, scenario.batch, scenario.input, scenario.output, scenario.cached, drafts)
    return SteadyAnswer(scenario, d, scenario.batch, scenario.input, scenario.output, loop)


def most_clients(scenario: Scenario) -> int:
    """The most clients that any legal proposal has memory for; 0 where none has."""
    d = deployment_of(scenario)
    if scenario.input is None or scenario.output is None:
        raise ValueError("the steady answer needs `traffic`")
    memory = memory_plan(d, array(1.0), scenario.input + 0.6 * scenario.output)
    groups = d.split.groups
    room = np.floor(np.maximum(memory.free_for_kv, 0.0) / memory.per_sequence) * groups
    room = np.where(legal(scenario) == 0, room, 0.0)
    return int(min(float(room.max()), 1e9))
