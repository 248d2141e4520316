"""What a scenario hangs on and where designs change places, against closed forms, single runs and known functions."""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest

import archsim
from archsim.arrays import array
from archsim.explore.breakeven import FIRST, ONLY_FIRST, ONLY_SECOND, SECOND, breakeven, settled
from archsim.explore.resources import chip_fields
from archsim.explore.scenario import Scenario, with_fields
from archsim.explore.sensitivity import Nothing, Sensitivity, sensitivity, tornado
from archsim.explore.sobol import MODEL, Spread, indices, sobol
from archsim.explore.variants import answers, fixed
from archsim.explore.vary import read_axes

H100, BERTHA = "llama-70b-on-h100", "llama-70b-on-bertha"


@cache
def loaded(name: str) -> Scenario:
    return archsim.load(name)


@cache
def found(name: str, mode: str = "step") -> Sensitivity:
    return sensitivity(loaded(name), mode, "cost_per_token")


# Variants


def test_variants_are_the_answers_of_runs_one_by_one() -> None:
    scenario, field = loaded("deepseek-v3-on-rubin"), "chip.memory.bandwidth"
    bandwidths = scenario.chip.memory.bandwidth * np.array([0.5, 1.0, 3.0])
    together = answers(scenario, "step", {field: bandwidths}, ["cost_per_token", "tpot"])
    for row, bandwidth in enumerate(bandwidths):
        alone = archsim.run(with_fields(scenario, {field: array(bandwidth)}), mode="step")
        best = alone.best()
        assert best is not None
        for name in ("cost_per_token", "tpot"):
            assert together.metrics[name][row] == pytest.approx(alone.metric(name).ravel()[best], rel=1e-12)


@pytest.mark.parametrize("mode", ["step", "steady"])
def test_batches_that_are_given_are_variants_of_their_own(mode: str) -> None:
    batches = np.array([1.0, 8.0, 64.0])
    together = answers(loaded(H100), mode, {"batch": batches}, ["tpot"])
    alone = archsim.run(loaded(H100), mode=mode, batch=batches)
    assert together.batch.tolist() == batches.tolist()
    assert together.metrics["tpot"] == pytest.approx(alone.tpot, rel=1e-12)


@pytest.mark.parametrize("name", [H100, BERTHA])
def test_the_best_number_of_clients_is_that_of_trying_all(name: str) -> None:
    scenario = loaded(name)
    found = answers(scenario, "steady", {}, ["cost_per_token"])
    every = archsim.run(scenario, mode="steady", batch=range(1, 200))
    best = every.best()
    assert best is not None and found.batch[0] == best + 1
    assert found.metrics["cost_per_token"][0] == pytest.approx(every.cost_per_token[best], rel=1e-12)


def test_steps_of_a_cost_over_clients_are_looked_behind() -> None:
    """On Rubin the best number of clients is behind a step, at another place for each bandwidth."""
    rubin = archsim.scenario(
        model="meta/llama-3.1-70b", pools={"gpu": {"chip": "nvidia/rubin-vr200", "count": 8}}, runtime="tensorrt-llm",
        precision={"weights": "fp8", "kv": "fp8"}, traffic={"input": 1155, "output": 211},
        slo={"ttft": "2 s", "interactivity": "30 tok/s"}, objective={"minimize": "cost_per_token"},
    )  # fmt: skip
    field, bandwidths = "chip.memory.bandwidth", rubin.chip.memory.bandwidth * np.array([1.0, 0.95, 1.1])
    together = answers(rubin, "steady", {field: bandwidths}, ["cost_per_token"])
    for row, bandwidth in enumerate(bandwidths):
        every = archsim.run(rubin, mode="steady", over={field: bandwidth, "batch": range(900, 2000)})
        cost = np.where(every.meets_slo, every.cost_per_token, np.inf)
        assert together.batch[row] == 900 + cost.argmin()
        assert together.metrics["cost_per_token"][row] == pytest.approx(cost.min(), rel=1e-12)


# Sensitivity


def test_an_ideal_machine_bound_by_memory_has_the_elasticities_of_a_roofline() -> None:
    ideal = archsim.scenario(
        model="meta/llama-3.1-8b", pools={"gpu": {"chip": "nvidia/h100-sxm", "count": 1}}, runtime="ideal",
        precision={"weights": "fp8"}, batch=1, context=1024,
    )  # fmt: skip
    rows = {row.field.name: row for row in sensitivity(ideal, "step", "tpot").rows}
    for side in (rows["chip.memory.bandwidth"].fixed, rows["chip.memory.bandwidth"].chosen):
        assert side.below == pytest.approx(-1.0, abs=1e-3) and side.above == pytest.approx(-1.0, abs=1e-3)
    assert not rows["chip.matrix.fp8"].fixed.moves and not rows["chip.cache"].fixed.moves


def test_elasticities_are_those_of_runs_with_one_field_changed() -> None:
    rows, scenario = found(H100).rows, loaded(H100)
    best = fixed(scenario, "step")
    assert best is not None and len(rows) > 20
    now = archsim.run(best, mode="step").cost_per_token[0]
    for row in (
        rows[0],
        rows[7],
        *(r for r in rows if "scale_up.bandwidth" in r.field.name or "matrix" in r.field.name),
    ):
        value = row.field.now
        assert value is not None
        for factor, slope in ((0.95, row.fixed.below), (1.05, row.fixed.above)):
            if row.field.whole:
                continue
            alone = archsim.run(with_fields(best, {row.field.name: array(value * factor)}), mode="step")
            expected = np.log(alone.cost_per_token[0] / now) / np.log(factor)
            assert slope == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize(("name", "mode"), [(H100, "step"), (BERTHA, "step"), (BERTHA, "steady")])
def test_a_resource_at_its_worth_leaves_the_cost_as_it_was(name: str, mode: str) -> None:
    """The price that a gain is worth, put on top of the price of the chip: by rent for H100, by capital for Bertha."""
    scenario = loaded(name)
    worths = {worth.resource.name: worth for worth in found(name, mode).worths}
    best, more = fixed(scenario, mode), worths["memory bandwidth"]
    assert best is not None and best.batch is not None and more.fixed.rent > 0 and more.fixed.capital > 0
    terms = best.terms
    if scenario.chip.price.rent is not None:
        paid = replace(
            best, terms=terms.model_copy(update={"rent": float(scenario.chip.price.rent[0]) + more.fixed.rent})
        )
    else:
        assert scenario.chip.capital is not None
        system = float(scenario.chip.capital[0]) + more.fixed.capital
        paid = replace(best, terms=terms.model_copy(update={"capital": system}))
    more_of_it = with_fields(paid, {"chip.memory.bandwidth": scenario.chip.memory.bandwidth * more.factor})
    costs = [archsim.run(item, mode=mode, batch=best.batch).cost_per_token[0] for item in (best, more_of_it)]
    assert costs[1] == pytest.approx(costs[0], rel=1e-9)


@pytest.mark.parametrize(("name", "mode"), [(H100, "step"), (BERTHA, "steady")])
def test_a_plan_chosen_anew_is_never_worth_less_than_the_one_that_was_best(name: str, mode: str) -> None:
    for worth in found(name, mode).worths:
        if worth.fixed.kept:
            assert worth.chosen.rent >= worth.fixed.rent - 1e-12, worth.resource.name


def test_every_number_of_a_chip_is_asked_and_those_without_effect_are_named() -> None:
    result = found(H100)
    assert {row.field.name for row in result.rows} == set(chip_fields(loaded(H100)))
    assert "chip.sram" in result.still and "chip.memory.bandwidth" not in result.still
    strengths = [abs(row.fixed.central) for row in result.moving]
    assert len(strengths) + len(result.still) == len(result.rows)


def test_resources_of_two_pools_are_named_and_paid_by_their_own_chips() -> None:
    scenario = loaded("deepseek-v3-on-rubin-and-lpx")
    small = replace(scenario, batch=array(288.0))
    worths = {worth.resource.name: worth for worth in sensitivity(small, "step", "cost_per_token").worths}
    assert {"attention: memory bandwidth", "ffn: SRAM bandwidth", "links between the pools, latency"} <= set(worths)
    assert worths["ffn: SRAM bandwidth"].fixed.capital > 0


def test_nothing_is_said_of_what_does_not_fit() -> None:
    tiny = archsim.scenario(
        model="meta/llama-3.1-70b", pools={"gpu": {"chip": "nvidia/h100-sxm", "count": 1}}, batch=1, context=8192
    )
    with pytest.raises(Nothing):
        sensitivity(tiny, "step")


def test_a_tornado_has_the_ends_of_each_range_alone() -> None:
    scenario = loaded(H100)
    axes = read_axes(["chip.memory.bandwidth=2..5TB/s", "batch=16..128"], scenario)
    found = tornado(scenario, "step", "tpot", axes)
    for row, (name, low, high) in enumerate((("chip.memory.bandwidth", 2e12, 5e12), ("batch", 16, 128))):
        for column, value in enumerate((low, high)):
            assert found[row, column] == pytest.approx(archsim.run(scenario, mode="step", over={name: value}).tpot[0])


def test_a_tornado_over_clients_leaves_them_to_the_choice_elsewhere() -> None:
    scenario = loaded(H100)
    found = tornado(
        scenario, "steady", "cost_per_token", read_axes(["batch=10..20", "economics.rent=2..4USD/h"], scenario)
    )
    alone = archsim.run(scenario, mode="steady", batch=[10, 20]).cost_per_token
    assert found[0] == pytest.approx(alone, rel=1e-12)
    best = answers(scenario, "steady", {}, ["cost_per_token"]).metrics["cost_per_token"][0]
    assert found[1] == pytest.approx(best * np.array([2.0, 4.0]) / 2.95, rel=1e-9)


# Sobol indices


def test_indices_of_ishigami_are_the_known_ones_within_sampling_error() -> None:
    """Ishigami and Homma (1990): V1, V2 and V13 are closed forms for a = 7, b = 0.1."""

    def ishigami(x: "dict[str, np.ndarray]") -> np.ndarray:
        return np.sin(x["a"]) + 7 * np.sin(x["b"]) ** 2 + 0.1 * x["c"] ** 4 * np.sin(x["a"])

    first = 0.5 * (1 + 0.1 * np.pi**4 / 5) ** 2
    second, third = 49 / 8, 0.01 * np.pi**8 * (1 / 18 - 1 / 50)
    variance = first + second + third
    known = {"a": (first, first + third), "b": (second, second), "c": (0.0, third)}
    result = indices(ishigami, [Spread(name, -np.pi, np.pi) for name in "abc"], samples=1024, seed=1)
    assert result.evaluations == 1024 * 5
    for row in result.rows:
        for value, ends, part in zip(
            (row.first, row.total), (row.first_ends, row.total_ends), known[row.name], strict=True
        ):
            assert ends[0] - 0.02 < part / variance < ends[1] + 0.02, row
            assert value == pytest.approx(part / variance, abs=0.05)
    assert result.mean == pytest.approx(3.5, abs=0.05)
    widths = [row.total_ends[1] - row.total_ends[0] for row in result.rows]
    assert all(row.total_ends[0] < row.total < row.total_ends[1] for row in result.rows) and max(widths) < 0.3


def test_an_even_log_whole_and_error_spread_have_the_shares_that_they_should() -> None:
    share = (np.arange(100_000) + 0.5) / 100_000
    assert Spread("x", 2.0, 4.0).at(share).mean() == pytest.approx(3.0)
    assert np.log(Spread("x", 1.0, 100.0, "log").at(share)).mean() == pytest.approx(np.log(10.0))
    whole = Spread("x", 1.0, 4.0, "whole").at(share)
    assert set(whole) == {1.0, 2.0, 3.0, 4.0} and (whole == 4.0).mean() == pytest.approx(0.25)
    error = Spread(MODEL, 0.8, 1.5, "error").at(share)
    assert np.percentile(error, [10, 50, 90]) == pytest.approx([0.8, 1.0, 1.5], rel=1e-4)


def test_what_decides_a_scenario_includes_the_error_of_the_model() -> None:
    scenario = loaded(H100)
    axes = read_axes(["context=1000..16000", "chip.links.host.bandwidth=50..64GB/s"], scenario)
    result = sobol(scenario, "step", "cost_per_token", axes, samples=64)
    total = {row.name: row.total for row in result.rows}
    assert total["context"] > 0.3 and total[MODEL] > 0.05
    assert total["chip.links.host.bandwidth"] == pytest.approx(0.0, abs=1e-9)
    assert result.low < result.mean < result.high
    again = sobol(scenario, "step", "cost_per_token", axes, samples=64)
    assert again.rows == result.rows


def test_samples_that_do_not_fit_are_refused() -> None:
    scenario = loaded(H100)
    with pytest.raises(ValueError, match="narrow the ranges"):
        sobol(scenario, "step", "tpot", read_axes(["batch=1..20000"], scenario), samples=16)


# Crossings


def test_a_price_at_which_designs_cost_the_same_is_that_of_the_closed_form() -> None:
    bertha, h100 = loaded(BERTHA), loaded(H100)
    by_rent = replace(
        bertha,
        terms=bertha.terms.model_copy(update={"by": "rent"}),
        slo=h100.slo.model_copy(update={"interactivity": 1.0}),
    )
    result = breakeven(by_rent, h100, "step", "economics.rent", np.linspace(0.1, 5.0, 9))
    speeds = breakeven(by_rent, h100, "step", "economics.rent", np.linspace(0.1, 5.0, 9), "throughput_per_chip")
    assert not speeds.crossings and "economics.rent changes nothing" in settled(speeds)
    (crossing,) = result.crossings
    costs = [answers(item, "step", {}, ["cost_per_token"]).metrics["cost_per_token"][0] for item in (bertha, h100)]
    paid = answers(by_rent, "step", {"economics.rent": array(1.0)}, ["cost_per_token"]).metrics["cost_per_token"][0]
    assert crossing.value == pytest.approx(costs[1] / paid, rel=1e-6)
    assert (crossing.below, crossing.above) == (FIRST, SECOND) and not crossing.jumps


def test_every_crossing_is_found_and_holds_on_either_side() -> None:
    bertha, h100 = loaded(BERTHA), loaded(H100)
    result = breakeven(bertha, h100, "step", "chip.memory.bandwidth", np.linspace(0.5e12, 6e12, 65), "tpot")
    assert [(c.below, c.above) for c in result.crossings] == [(ONLY_SECOND, SECOND), (SECOND, FIRST)]
    for crossing in result.crossings:
        assert crossing.high - crossing.low <= 1e-6 * crossing.high
        for value, standing in ((crossing.low, crossing.below), (crossing.high, crossing.above)):
            alone = archsim.run(bertha, mode="step", over={"chip.memory.bandwidth": value})
            other = archsim.run(h100, mode="step")
            kept = bool(alone.meets_slo.all())
            assert standing == (ONLY_SECOND if not kept else FIRST if alone.tpot < other.tpot else SECOND)


def test_whole_numbers_are_told_apart_to_the_neighbour() -> None:
    bertha, h100 = loaded(BERTHA), loaded(H100)
    result = breakeven(bertha, h100, "step", "context", np.geomspace(1000, 100_000, 9).round())
    assert [c.high - c.low for c in result.crossings] == [1.0] * len(result.crossings)
    assert (result.crossings[0].below, result.crossings[0].above) == (FIRST, ONLY_SECOND)


def test_designs_that_never_change_places_say_why() -> None:
    bertha, h100 = loaded(BERTHA), loaded(H100)
    result = breakeven(bertha, h100, "step", "batch", np.arange(1.0, 35.0))
    assert not result.crossings and "everywhere" in settled(result)
    single = archsim.run(bertha, mode="step", batch=[2, 30]).cost_per_token
    assert result.outputs[0][[1, 29]] == pytest.approx(single, rel=1e-12)
    small = breakeven(bertha, h100, "step", "chip.memory.capacity", np.linspace(5e9, 6e9, 5))
    assert not small.crossings and settled(small) == "only the second is usable anywhere in the range"
    assert set(small.reasons[0]) == {"memory"}


def test_designs_that_change_places_twice_are_told_both_times(monkeypatch: pytest.MonkeyPatch) -> None:
    """Against a curve that crosses three times, through the same search."""
    from archsim.explore import breakeven as module
    from archsim.explore.variants import Answers

    def curve(scenario: Scenario, mode: str, fields: "dict[str, np.ndarray]", metrics: "list[str]") -> Answers:
        values = fields.get("batch", np.zeros(1))
        metric = 1.0 + (values - 20.5) * (values - 40.5) * (values - 60.5) / 1e5 if fields else np.ones(1)
        size = metric.size
        return Answers({metrics[0]: metric}, np.ones(size, bool), values, {}, ("",) * size)

    monkeypatch.setattr(module, "answers", curve)
    scenario = loaded(H100)
    found = module.breakeven(scenario, scenario, "step", "batch", np.array([1.0, 30, 50, 80]), "tpot", "first")
    assert [(c.low, c.high) for c in found.crossings] == [(20, 21), (40, 41), (60, 61)]
    assert ONLY_FIRST not in found.standings
