"""The memory plan, and refusals that help: what falls short, by how much, and what to change.

Every change that a refusal names is made, and must then fit.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scenarios import DEEPSEEK, GPT_OSS, LLAMA_8B, LLAMA_70B, MODELS, chip, deployment, model, one, scenario

import archsim
from archsim.arrays import array
from archsim.chip.model import with_value
from archsim.explore.diagnosis import Diagnosis, diagnose
from archsim.explore.result import Result
from archsim.explore.scenario import Scenario, with_fields
from archsim.mapping.mapper import load_mapper
from archsim.mapping.memory import memory_plan
from archsim.mapping.place import Deployment
from archsim.mapping.split import split
from archsim.mapping.system import Pool, System
from archsim.units import format_named

H100, H200 = "nvidia/h100-sxm", "nvidia/h200-sxm"
FP8_70B: dict[str, Any] = {"precision": {"weights": "fp8"}, "split": {"tensor": 1}}
MIB = 2**20

batches = st.integers(1, 4096)
contexts = st.integers(1, 400_000)
degrees = st.sampled_from([1, 2, 4, 8])


@given(st.sampled_from(MODELS), degrees, batches, contexts, st.sampled_from(["vllm", "ideal"]))
def test_parts_of_the_plan_add_up_and_are_never_negative(
    name: str, tensor: int, batch: int, context: int, under: str
) -> None:
    plan = memory_plan(deployment(name, H200, split(tensor=tensor), under), array(batch), array(context))
    assert set(plan.parts) >= {"weights", "kv", "activations", "buffers", "reserve"}
    assert all(np.all(part >= 0) for part in plan.parts.values())
    assert one(plan.needed) == pytest.approx(sum(one(part) for part in plan.parts.values()), rel=1e-15)
    assert one(plan.free_for_kv) + one(plan.needed) - one(plan.parts["kv"]) == pytest.approx(one(plan.capacity))
    assert bool(one(plan.fits)) == (one(plan.needed) <= one(plan.capacity))
    if one(plan.fits):
        assert one(plan.parts["kv"]) <= one(plan.free_for_kv) * (1 + 1e-12)


@given(st.sampled_from(MODELS), degrees, batches, contexts, st.floats(1.0, 8.0))
def test_more_memory_never_stops_fitting(name: str, tensor: int, batch: int, context: int, factor: float) -> None:
    d = deployment(name, H100, split(tensor=tensor))
    larger = with_value(d.chip, ("memory", "capacity"), d.chip.memory.capacity * factor)
    small, large = (memory_plan(x, array(batch), array(context)) for x in (d, replace(d, chip=larger)))
    assert bool(one(large.fits)) >= bool(one(small.fits))
    assert one(large.free_for_kv) >= one(small.free_for_kv) - 1e-6


@given(st.sampled_from(MODELS), degrees, batches, contexts)
def test_more_sequences_or_longer_ones_never_need_less(name: str, tensor: int, batch: int, context: int) -> None:
    d = deployment(name, H200, split(tensor=tensor, data=2))
    needed = one(memory_plan(d, array(batch), array(context)).needed)
    assert needed <= one(memory_plan(d, array(batch + 1), array(context)).needed)
    assert needed <= one(memory_plan(d, array(batch), array(context + 1)).needed)


def test_an_engine_keeps_a_tenth_for_itself_and_that_covers_its_activations_and_buffers() -> None:
    plan = memory_plan(deployment(LLAMA_8B, H100), array(1), array(1))
    capacity = one(plan.capacity)
    kept = one(plan.parts["activations"] + plan.parts["buffers"] + plan.parts["reserve"])
    assert kept == pytest.approx(0.1 * capacity)
    ideal = memory_plan(deployment(LLAMA_8B, H100, under="ideal"), array(1), array(1))
    assert one(ideal.parts["buffers"]) == one(ideal.parts["reserve"]) == 0


# 70B in fp8 on one H100: the case that most tools get wrong


def refused(**changes: Any) -> tuple[Result, Diagnosis]:
    result = archsim.run(scenario(LLAMA_70B, H100, 1, **{**FP8_70B, "batch": 1, "context": 131_072, **changes}))
    found = diagnose(result, 0)
    assert found is not None
    return result, found


def test_a_request_of_131072_tokens_is_refused_for_memory_with_its_sum() -> None:
    result, why = refused()
    assert not result.feasible.any() and result.reason_at(0) == "memory"
    assert why.resource == "memory" and why.reason.startswith("memory:")
    assert why.needed > why.available == 81_559 * MIB
    assert why.parts["weights"] == 72_655_052_800
    assert why.parts["kv"] == 40 * 2**30  # what the request holds
    assert sum(why.parts.values()) == pytest.approx(why.needed)
    kept = why.available - why.parts["weights"] - sum(why.parts[name] for name in ("activations", "buffers", "reserve"))
    assert kept / 2**30 == pytest.approx(4.02, abs=0.005)  # what 0.9 of the card leaves


def test_the_longest_context_that_fits_is_13164_tokens_and_26328_with_an_fp8_cache() -> None:
    for precision, longest in [({"weights": "fp8"}, 13_164), ({"weights": "fp8", "kv": "fp8"}, 26_328)]:
        _, why = refused(precision=precision)
        assert f"a context of {longest:,} tokens fits at this batch" in why.fixes
        fits = archsim.run(
            scenario(
                LLAMA_70B, H100, 1, precision=precision, split={"tensor": 1}, batch=1, context=[longest, longest + 1]
            )
        )
        assert list(fits.feasible) == [True, False]


def test_the_refusal_names_a_tp_that_works_and_what_an_fp8_cache_would_hold() -> None:
    _, why = refused()
    assert any(re.fullmatch(r"\d+ chips at TP2 hold it", fix) for fix in why.fixes), why.fixes
    assert any("26,328" in fix for fix in why.fixes), why.fixes


def test_weights_that_do_not_fit_alone_say_so() -> None:
    _, why = refused(precision={})
    assert "weights alone" in why.reason
    assert not any("tokens fits at this batch" in fix for fix in why.fixes)
    assert any("chips" in fix for fix in why.fixes)


def test_a_feasible_point_has_no_refusal() -> None:
    result = archsim.run(scenario(LLAMA_70B, H100, 1, **FP8_70B, batch=1, context=1000))
    assert result.feasible.all() and diagnose(result, 0) is None


# Every fix, made


def with_context(s: Scenario, context: float) -> Scenario:
    return with_fields(s, {"context": array(context)})


def with_batch(s: Scenario, batch: float) -> Scenario:
    return with_fields(s, {"batch": array(batch)})


def in_fp8(s: Scenario, tensor: str) -> Scenario:
    names = ("weights", "attention", "experts") if tensor == "weights" else (tensor,)
    return replace(s, precision=replace(s.precision, **{name: format_named("fp8") for name in names}))


def on_chips(s: Scenario, count: int, tensor: int, replicas: int) -> Scenario:
    pool = Pool(s.chip, array(count))
    routed = one(s.split.expert.max()) > 1
    by = split(tensor=tensor, data=replicas, expert=tensor if routed else 1)
    return replace(s, system=System({"gpu": pool}), split=by, mapper=None)


def in_stages(s: Scenario, count: int, tensor: int, stages: int) -> Scenario:
    whole = on_chips(s, count, tensor, 1)
    return replace(whole, split=replace(whole.split, pipeline=array(stages)))


def number(text: str | None) -> int:
    return int((text or "1").replace(",", ""))


CHANGES: list[tuple[str, Callable[[Scenario, re.Match[str]], Scenario]]] = [
    (r"a context of ([\d,]+) tokens fits at this batch", lambda s, m: with_context(s, number(m[1]))),
    (r"a batch of ([\d,]+) fits at this context", lambda s, m: with_batch(s, number(m[1]))),
    (r"(kv|weights) in fp8 fits", lambda s, m: in_fp8(s, m[1])),
    (
        r"(kv|weights) in fp8 holds a context of ([\d,]+) tokens",
        lambda s, m: with_context(in_fp8(s, m[1]), number(m[2])),
    ),
    (
        r"([\d,]+) chips at TP(\d+)(?: with (\d+) replicas)? hold it",
        lambda s, m: on_chips(s, number(m[1]), number(m[2]), number(m[3])),
    ),
    (
        r"([\d,]+) chips at TP(\d+) in (\d+) pipeline stages hold it",
        lambda s, m: in_stages(s, number(m[1]), number(m[2]), number(m[3])),
    ),
    (r"a pool of (\d+) chips", lambda s, m: with_fields(s, {"chips": array(number(m[1]))})),
    (r"another split, or none for the mapper to choose", lambda s, m: chosen(s)),
    (r"degrees the model allows: (.*)", lambda s, m: first_allowed(s, m[1])),
]


def chosen(s: Scenario) -> Scenario:
    mapper = load_mapper("auto")
    return replace(s, mapper=mapper, split=mapper.propose(s.model, s.system.main))


def first_allowed(s: Scenario, listed: str) -> Scenario:
    """Every degree of the list is legal; the last is taken."""
    for name in listed.split(", "):
        tried = on_chips(s, int(name.removeprefix("TP")), int(name.removeprefix("TP")), 1)
        assert archsim.run(tried).reason_at(0) in ("", "memory"), name
    return tried


def changed(s: Scenario, fix: str) -> Scenario:
    """The scenario with a fix of a refusal made; every text of a fix must be understood."""
    for pattern, change in CHANGES:
        found = re.fullmatch(pattern, fix)
        if found:
            return change(s, found)
    raise AssertionError(f"nobody knows how to do what this fix says: {fix}")


REFUSALS: dict[str, dict[str, Any]] = {
    "70b fp8, one chip, long": {"of": LLAMA_70B, "batch": 1, "context": 131_072, **FP8_70B},
    "70b fp8, one chip, many": {"of": LLAMA_70B, "batch": 64, "context": 8192, **FP8_70B},
    "70b bf16, one chip": {"of": LLAMA_70B, "batch": 1, "context": 100, "split": {"tensor": 1}},
    "70b bf16, two chips": {"of": LLAMA_70B, "chips": 2, "batch": 1, "context": 100_000, "split": {"tensor": 2}},
    "70b bf16, replicas": {"of": LLAMA_70B, "chips": 8, "batch": 500, "context": 20_000,
                           "split": {"tensor": 4, "data": 2}},
    "70b bf16, mapper": {"of": LLAMA_70B, "chips": 4, "batch": 300, "context": 30_000},
    "8b, very many": {"of": LLAMA_8B, "batch": 3000, "context": 5000, "split": {"tensor": 1}},
    "8b, replicas, one sequence": {"of": LLAMA_8B, "chips": 8, "batch": 1, "context": 900_000, "split": {"data": 8}},
    "deepseek, eight chips": {"of": DEEPSEEK, "chips": 8, "batch": 1, "context": 1000,
                              "split": {"tensor": 8, "expert": 8}},
    "deepseek, spread": {"of": DEEPSEEK, "on": H200, "chips": 16, "batch": 4000, "context": 8000,
                         "split": {"attention_data": 16, "expert": 16}},
    "deepseek, tensor": {"of": DEEPSEEK, "on": H200, "chips": 8, "batch": 64, "context": 100_000,
                         "split": {"tensor": 8, "expert": 8}},
    "gpt-oss, one chip": {"of": GPT_OSS, "batch": 200, "context": 30_000, "split": {"tensor": 1}},
    "gpt-oss, mapper": {"of": GPT_OSS, "chips": 2, "batch": 2000, "context": 50_000},
}  # fmt: skip


def refusal_of(case: dict[str, Any]) -> Scenario:
    keys = dict(case)
    return scenario(keys.pop("of"), keys.pop("on", H100), keys.pop("chips", 1), **keys)


@pytest.mark.parametrize("case", REFUSALS)
def test_every_named_fix_is_feasible_once_made(case: str) -> None:
    s = refusal_of(REFUSALS[case])
    result = archsim.run(s)
    why = diagnose(result, 0)
    assert why is not None and why.needed > why.available, "the case does fit"
    assert why.fixes, "a refusal without a way out"
    taken = replace(s, split=result.split_at(0), mapper=None)
    for fix in why.fixes:
        done = archsim.run(changed(taken, fix))
        assert done.feasible.all(), f"{fix}: {done.reason_at(0)}"


@pytest.mark.parametrize("case", REFUSALS)
def test_the_numbers_of_a_fix_are_the_most_that_fit(case: str) -> None:
    """One token or one sequence more is too much."""
    s = refusal_of(REFUSALS[case])
    result = archsim.run(s)
    why = diagnose(result, 0)
    assert why is not None
    taken = replace(s, split=result.split_at(0), mapper=None)
    for fix in why.fixes:
        if longest := re.fullmatch(r"a context of ([\d,]+) tokens fits at this batch", fix):
            assert not archsim.run(with_context(taken, number(longest[1]) + 1)).feasible.any(), fix
        if most := re.fullmatch(r"a batch of ([\d,]+) fits at this context", fix):
            assert not archsim.run(with_batch(taken, number(most[1]) + 1)).feasible.any(), fix


@pytest.mark.parametrize(
    ("of", "chips", "by", "rule"),
    [
        (LLAMA_70B, 8, {"tensor": 3}, "query heads"),
        (LLAMA_70B, 8, {"tensor": 4}, "chips"),
        (LLAMA_70B, 16, {"tensor": 8}, "chips"),
        (DEEPSEEK, 24, {"attention_data": 24, "expert": 24}, "experts"),
    ],
)
def test_shapes_and_chips_that_do_not_divide_are_refused_by_name_with_a_way_out(
    of: str, chips: int, by: dict[str, int], rule: str
) -> None:
    s = scenario(of, H200, chips, split=by, batch=1, context=100)
    result = archsim.run(s)
    why = diagnose(result, 0)
    assert result.reason_at(0) == rule and why is not None and rule in why.reason
    assert why.fixes
    for fix in why.fixes:
        done = archsim.run(changed(s, fix))
        assert done.reason_at(0) in ("", "memory"), f"{fix}: {done.reason_at(0)}"


def test_the_steady_answer_is_refused_for_memory_too() -> None:
    s = scenario(LLAMA_70B, H100, 1, **FP8_70B, traffic={"input": 100_000, "output": 1000})
    result = archsim.run(s, mode="steady")
    why = diagnose(result, 0)
    assert not result.feasible.any() and result.best() is None
    assert why is not None and why.resource == "memory" and why.needed > why.available


def test_a_sweep_is_refused_point_by_point() -> None:
    result = archsim.run(
        scenario(LLAMA_70B, H100, 1, **FP8_70B, batch=1, context=1), context=[1000, 13_164, 13_165, 131_072]
    )
    assert list(result.feasible) == [True, True, False, False]
    assert [result.reason_at(index) for index in range(4)] == ["", "", "memory", "memory"]
    assert [diagnose(result, index) is None for index in range(4)] == [True, True, False, False]


@given(st.sampled_from(MODELS), degrees, st.integers(1, 64), st.integers(1, 200_000))
def test_a_plan_of_arrays_is_the_plans_of_its_points(name: str, tensor: int, batch: int, context: int) -> None:
    d: Deployment = deployment(name, H200, split(tensor=[tensor, 1]))
    together = memory_plan(d, array(batch), array(context))
    for index, degree in enumerate([tensor, 1]):
        alone = memory_plan(replace(d, split=split(tensor=degree)), array(batch), array(context))
        assert np.broadcast_to(together.needed, (2,))[index] == one(alone.needed)


def test_pages_never_change_what_a_token_weighs() -> None:
    """Memory divided by the tokens shown is the bytes of a token shown, whatever the runtime keeps for itself."""
    for under in ("vllm", "ideal"):
        d = deployment(LLAMA_70B, H200, split(tensor=4), under)
        plan = memory_plan(d, array(10), array(5000))
        assert one(plan.parts["kv"]) / (10 * 5000) == 327_680 / 4 == model(LLAMA_70B).kv_elements_per_token() * 2 / 4


def test_an_unknown_chip_is_no_other_chip() -> None:
    from archsim.catalog import CatalogError

    for wrong in ("nvidia/h100", "a40", "h100-sxm-typo"):
        with pytest.raises(CatalogError, match="unknown chip"):
            scenario(LLAMA_8B, wrong, 1, batch=1, context=1)
    assert chip("nvidia/h100-sxm").name.startswith("NVIDIA H100")
