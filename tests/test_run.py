"""Runs: the choice among proposed plans, what is not feasible, and questions that make no sense."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from scenarios import (
    CHIPS,
    DEEPSEEK,
    GPT_OSS,
    LLAMA_8B,
    LLAMA_70B,
    MODELS,
    STACKS,
    chip,
    model,
    one,
    same_bits,
    scenario,
)

import archsim
from archsim.arrays import Array, array
from archsim.catalog import CatalogError, names
from archsim.explore.result import METRICS, Result
from archsim.explore.scenario import Scenario
from archsim.mapping.split import REASONS, Split

H100, H200 = "nvidia/h100-sxm", "nvidia/h200-sxm"
CHAT = {"traffic": {"input": 1155, "output": 211}}


def raw(result: Result, name: str) -> Array:
    """A metric at the chosen plans, feasible or not."""
    return result.pick(METRICS[name][2](result.answer))


def singles(s: Scenario) -> list[Scenario]:
    """The scenario with each of its proposals given."""
    count = max(value.size for value in s.split.named().values())

    def at(index: int) -> Split:
        return s.split.mapped(lambda _, value: array(value.ravel()[index if value.size > 1 else 0]))

    return [replace(s, split=at(index), mapper=None) for index in range(count)]


# The choice


CHOICES: dict[str, tuple[tuple[str, str, int], dict[str, int], dict[str, str]]] = {
    "fastest step of 70b": ((LLAMA_70B, H100, 8), {"batch": 64, "context": 4000}, {"minimize": "tpot"}),
    "most tokens of 70b": ((LLAMA_70B, H100, 8), {"batch": 200, "context": 3000}, {"maximize": "throughput"}),
    "fastest step of deepseek": ((DEEPSEEK, H200, 16), {"batch": 512, "context": 4000}, {"minimize": "tpot"}),
    "least energy of gpt-oss": ((GPT_OSS, H100, 4), {"batch": 64, "context": 4000}, {"minimize": "energy_per_token"}),
    "first token of 8b": ((LLAMA_8B, H100, 4), {"batch": 4, "context": 4000}, {"minimize": "ttft"}),
}


@pytest.mark.parametrize("case", CHOICES)
def test_auto_is_never_worse_than_any_single_proposal(case: str) -> None:
    system, point, objective = CHOICES[case]
    s = scenario(*system, **point, objective=objective)
    ((sense, goal),) = objective.items()
    best = min if sense == "minimize" else max
    chosen = archsim.run(s)
    alone = [archsim.run(single) for single in singles(s)]
    values = [one(found.metric(goal)) for found in alone if found.feasible.all()]
    assert len(alone) > 1 and values, "the case has no choice"
    assert one(chosen.metric(goal)) == best(values)


def test_auto_is_never_worse_at_any_number_of_clients_either() -> None:
    s = scenario(LLAMA_70B, H100, 8, **CHAT)
    batch = [1, 64, 512]
    chosen = archsim.run(s, mode="steady", batch=batch)
    costs = np.array([archsim.run(single, mode="steady", batch=batch).cost_per_token for single in singles(s)])
    assert np.array_equal(chosen.cost_per_token, np.nanmin(costs, axis=0))
    assert len(set(chosen.choice.ravel())) > 1, "one plan wins everywhere: the case has no choice"


def test_the_slo_comes_before_the_objective() -> None:
    """The plan with the earliest first token decodes too slowly for the SLO; another one that keeps it is taken."""
    keys: dict[str, Any] = {"batch": 512, "context": 1000, "objective": {"minimize": "ttft"}}
    free = archsim.run(scenario(LLAMA_70B, H100, 8, **keys))
    limit = one(free.tpot) * 0.999
    kept = archsim.run(scenario(LLAMA_70B, H100, 8, **keys, slo={"tpot": f"{limit * 1e3} ms"}))
    assert kept.meets_slo.all() and one(kept.tpot) <= limit
    assert one(kept.ttft) > one(free.ttft)


def test_the_best_point_keeps_the_slo_when_any_does_and_says_so_when_none_can() -> None:
    s = scenario(LLAMA_70B, H100, 8, **CHAT, slo={"interactivity": "50 tok/s", "ttft": "2 s"})
    found = archsim.run(s, mode="steady")
    best = found.best()
    assert best is not None
    assert found.meets_slo[best] and found.interactivity[best] >= 50 and found.ttft[best] <= 2
    kept = found.cost_per_token[found.meets_slo]
    assert found.cost_per_token[best] == kept.min() > np.nanmin(found.cost_per_token), "the SLO costs nothing here"

    impossible = archsim.run(scenario(LLAMA_70B, H100, 8, **CHAT, slo={"interactivity": "5000 tok/s"}), mode="steady")
    best = impossible.best()
    assert best is not None and not impossible.meets_slo.any()
    assert impossible.cost_per_token[best] == np.nanmin(impossible.cost_per_token)


def test_no_point_is_best_where_none_is_feasible() -> None:
    found = archsim.run(scenario(LLAMA_70B, H100, 1, batch=1, context=[100, 1000]))
    assert not found.feasible.any() and found.best() is None


def test_the_plan_changes_with_the_context_when_memory_forces_it() -> None:
    """Two replicas of TP4 are faster, but hold their weights twice: with longer sequences TP8 is all that fits."""
    s = scenario(LLAMA_70B, H100, 8, batch=512, context=1)
    context = [100, 1000, 2500]
    found = archsim.run(s, context=context)
    assert found.feasible.all()
    table = found.table()
    assert list(table["split.tensor"]) == [4, 4, 8] and list(table["split.data"]) == [2, 2, 1]
    stays = archsim.run(replace(s, split=found.split_at(0), mapper=None), context=context)
    assert list(stays.feasible) == [True, True, False] and stays.reason_at(2) == "memory"
    assert list(found.tpot[:2]) == list(stays.tpot[:2])


# What is not feasible


@pytest.fixture(scope="module")
def partly() -> Result:
    s = scenario(LLAMA_70B, H100, 4, split={"tensor": 4}, batch=1, context=1)
    return archsim.run(s, batch=[1, 64, 1024], context=[1000, 100_000, 1_000_000])


def test_points_that_do_not_fit_are_nan_in_every_metric_and_have_a_reason(partly: Result) -> None:
    assert partly.feasible.any() and not partly.feasible.all()
    for name in METRICS:
        assert np.array_equal(np.isnan(partly.metric(name)), ~partly.feasible), name
    for index, fine in enumerate(partly.feasible.ravel()):
        assert partly.reason_at(index) == ("" if fine else "memory")


def test_the_table_has_a_row_for_every_point_and_the_same_gaps(partly: Result) -> None:
    table = partly.table()
    assert {len(column) for column in table.values()} == {9}
    assert set(table) >= {"batch", "context", "split.tensor", "split.data", *METRICS}
    assert list(table["batch"]) == [1, 1, 1, 64, 64, 64, 1024, 1024, 1024]
    assert np.array_equal(np.isnan(table["tpot"]), ~partly.feasible.ravel())


def test_the_engine_prices_points_that_do_not_fit_all_the_same(partly: Result) -> None:
    for name in METRICS:
        assert np.isfinite(raw(partly, name)).all(), name


def test_nothing_in_any_output_is_negative_or_infinite(partly: Result) -> None:
    for name in METRICS:
        values = partly.metric(name)[partly.feasible]
        assert np.all(np.isfinite(values)) and np.all(values > 0), name


def test_a_split_that_uses_other_than_all_chips_is_not_feasible() -> None:
    found = archsim.run(
        scenario(LLAMA_8B, H100, 8, split={"tensor": 8}, batch=1, context=10), over={"split.tensor": [1, 2, 4, 8]}
    )
    assert list(found.feasible) == [False, False, False, True]
    assert {found.reason_at(index) for index in range(3)} == {"chips"}


def test_more_chips_with_a_split_to_match_are_swept_together() -> None:
    s = scenario(LLAMA_8B, H100, 1, split={}, batch=1, context=1000)
    found = archsim.run(s, zipped=True, over={"split.tensor": [1, 2, 4, 8], "chips": [1, 2, 4, 8]})
    assert found.feasible.all() and list(found.axes) == ["point"]
    assert np.all(np.diff(found.tpot) < 0)
    assert [one(found.split_at(index).tensor) for index in range(4)] == [1, 2, 4, 8]


# Questions that make no sense


@pytest.mark.parametrize(
    ("field", "known"),
    [
        ("bacth", "batch, context"),
        ("chip.memory.bandwith", "bandwidth"),
        ("chip.memry", "memory"),
        ("chip.matrix.fp9", "bf16"),
        ("split.tensr", "tensor"),
        ("chip", "batch, context"),
        ("split", "batch, context"),
        ("pools.gpu.count", "chips"),
    ],
)
def test_an_unknown_field_is_refused_with_what_exists(field: str, known: str) -> None:
    s = scenario(LLAMA_8B, batch=1, context=10, split={})
    with pytest.raises(KeyError, match=known):
        archsim.run(s, over={field: 1.0})


def test_an_unknown_metric_is_refused_with_what_exists() -> None:
    found = archsim.run(scenario(LLAMA_8B, batch=1, context=10, split={}))
    with pytest.raises(KeyError, match="tpot, ttft"):
        found.metric("tpto")
    with pytest.raises(AttributeError, match="tpot, ttft"):
        _ = found.tpto
    assert found.cost_per_million_tokens is not None


def test_a_step_without_batch_or_context_is_refused() -> None:
    s = scenario(LLAMA_8B, **CHAT, split={})
    with pytest.raises(ValueError, match="needs `batch` and `context`"):
        archsim.run(s, mode="step", batch=1)


def test_zipped_fields_of_different_lengths_are_refused() -> None:
    with pytest.raises(ValueError, match="one length"):
        archsim.run(scenario(LLAMA_8B, split={}, batch=1, context=1), zipped=True, batch=[1, 2], context=[1, 2, 3])


def test_a_scenario_that_asks_nothing_or_names_nobody_is_refused() -> None:
    with pytest.raises(CatalogError, match="nothing is asked"):
        scenario(LLAMA_8B)
    with pytest.raises(CatalogError, match=r"unknown workload 'lama-3\.1-8b'; did you mean"):
        scenario("lama-3.1-8b", batch=1, context=1)
    with pytest.raises(CatalogError) as faults:
        scenario("nope", "nobody", 1, runtime="nothing", mapper="nowhere", batch=1, context=1)
    assert len(str(faults.value).splitlines()) >= 4, "all faults come at once"


# Axes


def test_every_swept_field_has_its_own_axis_in_order() -> None:
    s = scenario(LLAMA_8B, split={}, batch=1, context=1)
    found = archsim.run(
        s, context=[10, 20], batch=range(1, 4), over={"chip.memory.bandwidth": [1e12, 2e12, 3e12, 4e12]}
    )
    assert list(found.axes) == ["context", "batch", "chip.memory.bandwidth"]
    assert found.tpot.shape == found.shape == (2, 3, 4)
    point = found.point(int(np.ravel_multi_index((1, 2, 3), found.shape)))
    assert point == {"context": 20, "batch": 3, "chip.memory.bandwidth": 4e12}


def test_a_single_point_is_one_number_and_has_no_axes() -> None:
    found = archsim.run(scenario(LLAMA_8B, split={}, batch=1, context=1))
    assert found.shape == (1,) and not found.axes and found.point(0) == {}


@pytest.mark.parametrize(
    "field",
    [
        *(
            f"chip.{name}"
            for name in ("memory.bandwidth", "memory.capacity", "clock", "cores", "matrix.bf16", "exponentials")
        ),
        *(f"chip.links.{name}" for name in ("scale_up.bandwidth", "scale_up.latency", "scale_out.bandwidth")),
        *(f"chip.power.{name}" for name in ("active", "idle")),
        *(f"chip.energy.{name}" for name in ("byte", "flop.bf16", "exponential")),
        *(f"chip.price.{name}" for name in ("rent", "system")),
        "skew",
    ],
)
def test_every_number_of_a_scenario_can_be_swept_alone(field: str) -> None:
    s = scenario(GPT_OSS, H100, 2, split={"tensor": 2}, batch=8, context=1000)
    value: Any = s
    for name in field.split("."):
        value = value[name] if isinstance(value, dict) else getattr(value, name)
    found = archsim.run(s, over={field: one(value) * np.array([1.0, 1.0, 2.0])})
    plain = archsim.run(s)
    assert found.shape == (3,)
    for name in METRICS:
        values = found.metric(name)
        assert values[0] == values[1] == one(plain.metric(name)), name


# The catalogue, and the same answer every time


@pytest.mark.parametrize("on", names("chips"))
def test_every_chip_of_the_catalogue_runs_a_model_and_ideal_is_the_bound(on: str) -> None:
    spans = []
    for under in STACKS if chip(on).kind == "gpu" else ("native", "ideal"):
        found = archsim.run(scenario(LLAMA_8B, on, 1, runtime=under, batch=[1, 64, 1024], context=1000, split={}))
        spans.append(raw(found, "tpot"))
    assert np.all(spans[1] > 0) and np.all(spans[0] >= spans[1] * (1 - 1e-12))


@pytest.mark.parametrize("name", MODELS)
def test_every_model_runs_on_every_chip_it_fits(name: str) -> None:
    for on in CHIPS:
        found = archsim.run(scenario(name, on, 16, batch=32, context=1000))
        assert found.feasible.all() and one(found.tpot) > 0, on


def test_the_same_question_has_the_same_answer_bit_for_bit() -> None:
    def ask() -> Result:
        return archsim.run(scenario(DEEPSEEK, H200, 16, batch=[1, 7, 300], context=[5, 5000]))

    first, second = ask(), ask()
    for name in METRICS:
        assert same_bits(first.metric(name), second.metric(name)), name
    assert np.array_equal(first.choice, second.choice)


def test_the_shipped_example_answers_both_questions() -> None:
    s = archsim.load("llama-70b-on-h100")
    step, loop = archsim.run(s), archsim.run(s, mode="steady")
    assert (step.mode, loop.mode) == ("step", "steady")
    assert step.feasible.all() and loop.best() is not None
    assert loop.meets_slo.any()


def test_reasons_have_one_name_each() -> None:
    assert REASONS[0] == "" and len(set(REASONS)) == len(REASONS)
    assert model(LLAMA_8B).name and chip(H100).name
