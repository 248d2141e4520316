"""Step times of a pair of pools, of which one runs operators of every step of the other."""

from __future__ import annotations

from typing import Any

import pytest

import archsim
from archsim.explore.evaluate import deployment_of
from archsim.explore.scenario import Scenario
from archsim.explore.service import Asked, serve
from archsim.serving.paired import Paired
from archsim.workload.step import decode, prefill

KEYS: dict[str, Any] = {
    "model": "deepseek/deepseek-v3",
    "precision": {"weights": "fp8", "attention": "fp8", "experts": "fp8", "activations": "fp8", "kv": "fp8"},
    "pools": {
        "attention": {"chip": "nvidia/rubin-vr200", "count": 72},
        "ffn": {"chip": "nvidia/groq-3-lpx", "count": 1792, "economics": {"overhead": "0 W"}},
    },
    "mapper": "attention-ffn",
    "runtime": "tensorrt-llm",
    "split": {
        "attention_data": 8,
        "data": 9,
        "micro_batches": 2,
        "partner": {"tensor": 29, "expert": 29, "pipeline": 61},
    },
    "traffic": {"input": 1000, "output": 100, "rate": 60},
}


@pytest.fixture(scope="module")
def scenario() -> Scenario:
    return archsim.scenario(**KEYS)


@pytest.fixture(scope="module")
def builder(scenario: Scenario) -> Paired:
    return Paired(deployment_of(scenario), 32, (200.0, 3000.0), 2048)


def test_steps_with_prefill_follow_the_exact_path(builder: Paired) -> None:
    """Prompts on some ranks or on all, alone and beside sequences that decode; all replicas do the same."""
    made = builder.build(0)
    assert made.guard.mixed < 0.02  # the bend where waiting for the pool of experts begins; the answer states it
    assert made.guard.decode < 0.03  # the waits of both pools for each other bend the line in the contexts
    for new, before, requests, batch in ((256, 0, 1, 0), (256, 0, 8, 0), (2048, 0, 1, 32), (256, 1000, 1, 16)):
        step = prefill(new, before, requests, builder.clips)
        sums = [0.0] * len(builder.clips)
        if batch:
            plain = decode(batch, 1000, builder.clips)
            step, sums = plain + step, [float(plain.context[clip].max()) for clip in builder.clips]
        exact = float(builder.price(step).span.max())
        assert made.mixed(batch, sums, [(new, before)] * requests) == pytest.approx(exact, rel=0.015)


def test_a_pair_is_served_and_both_pools_are_paid(scenario: Scenario) -> None:
    found = serve(scenario, Asked(count=60))
    assert found.measures.finished == 60
    assert [part.name for part in found.parts] == ["attention", "ffn"]
    assert found.chips == 72 + 1792
    own, other = found.parts
    assert own.joules > 0 and other.joules > 0
    assert found.dollars == pytest.approx(own.dollars + other.dollars)
    costs = found.costs()
    whole = costs["output_cost"] * 100 + costs["input_cost"] * 1000
    assert whole == pytest.approx(costs["cost_per_token"] * 1100, rel=1e-9)
