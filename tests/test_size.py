"""The fewest chips: proposals in order, never more than the plan with the most throughput, and played."""

import math
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import archsim
from archsim.cli import app
from archsim.explore.played import Demand, Proposal, played
from archsim.explore.scenario import Scenario
from archsim.explore.size import Sized, _bounds, _Search, on_chip, size

SLO = {"ttft": "1 s", "interactivity": "60 tok/s"}
LARGEST = 4


def scenario(**more: object) -> Scenario:
    return archsim.scenario(
        **{
            "model": "meta/llama-3.1-8b",
            "pools": {"gpu": {"chip": "nvidia/h100-sxm", "count": 1}},
            "traffic": "chat",
            "slo": SLO,
            **more,
        }
    )


def sized(rate: float, **more: object) -> Sized:
    return size([scenario()], Demand(rate=rate, largest=LARGEST, **more))  # type: ignore[arg-type]


def test_the_answer_passes_when_it_is_replayed() -> None:
    found = sized(30.0)
    assert found.answer is not None
    split = {name: int(value.max()) for name, value in found.answer.proposal.system.split.named().items()}
    pools = {"gpu": {"chip": "nvidia/h100-sxm", "count": found.answer.proposal.chips}}
    count = len(found.answer.service.requests)
    served = archsim.serve(scenario(split=split, pools=pools), rate=30.0, requests=count)
    later = np.argsort(served.played.arrived)[round(0.25 * count) :]
    assert np.percentile(served.measures.ttft[later], 90) <= 1.0
    assert np.nanpercentile(served.measures.tpot[later], 90) <= 1 / 60
    assert served.played.finished.all()


def test_it_never_answers_more_chips_than_the_plan_with_the_most_throughput_a_chip() -> None:
    rates = [5.0, 90.0]
    plans = []
    for count in range(1, LARGEST + 1):
        result = archsim.run(scenario(pools={"gpu": {"chip": "nvidia/h100-sxm", "count": count}}), mode="steady")
        kept = np.where(result.meets_slo, result.throughput_per_chip, 0.0).ravel()
        best = int(np.argmax(kept))
        plans.append((float(kept[best]), count, result, best))
    each, count, result, best = max(plans, key=lambda plan: plan[0])
    for rate in rates:
        found = sized(rate)
        copies = math.ceil(rate * 211 / (each * count))
        plan = Proposal(scenario(), result.split_at(best), copies, count, 1.0, 0.01, 0.1, 1.0, 1.0)
        while not played(plan, found.demand, 90.0).passes:
            plan = plan.times(plan.copies + 1)
        assert found.answer is not None
        assert found.answer.proposal.chips <= plan.chips


def test_more_requests_never_need_fewer_chips() -> None:
    needed = []
    for rate in (2.0, 60.0, 150.0):
        found = sized(rate)
        assert found.answer is not None
        needed.append(found.answer.proposal.chips)
    assert needed == sorted(needed) and needed[0] < needed[-1]


@pytest.mark.parametrize("objective", ["chips", "cost", "power"])
@pytest.mark.parametrize("amount", [{"rate": 50.0}, {"sessions": 400}])
def test_proposals_come_in_order_and_none_is_lost(objective: str, amount: dict[str, float]) -> None:
    demand = Demand(**amount, objective=objective, largest=LARGEST)  # type: ignore[arg-type]
    lazy = [one.value(objective) for one in islice(_Search([scenario()], demand).proposals(), 40)]
    every = _Search([scenario()], demand)
    kind = every.kinds[0]
    every._price(kind, np.arange(len(kind)))
    whole = [proposal.value(objective) for proposal in every._below(math.inf, set())]
    assert lazy == sorted(lazy)
    assert lazy == pytest.approx(whole[:40])


@pytest.mark.parametrize("objective", ["chips", "cost", "power"])
def test_bounds_are_never_above_the_value(objective: str) -> None:
    demand = Demand(rate=50.0, objective=objective, largest=LARGEST)
    search = _Search([scenario()], demand)
    kind = search.kinds[0]
    bounds = _bounds(kind, demand)
    for point in range(0, len(kind), 11):
        search.heap.clear()
        search._price(kind, np.array([point]))
        for value, *_ in search.heap:
            assert bounds[point] <= value * (1 + 1e-9)


def chip(folder: Path, name: str, rent: float, bandwidth: str) -> str:
    file = folder / f"{name}.yaml"
    file.write_text(
        f"extends: nvidia/h100-sxm\nname: {name}\nset: {{price.rent: {rent} USD/h, memory.bandwidth: {bandwidth}}}\n"
        f"sources: [{{of: [price.rent, memory.bandwidth], kind: assumption, ref: a toy}}]\n",
        encoding="utf-8",
    )
    return str(file)


def test_of_two_toys_the_cheap_one_is_cheapest_and_the_fast_one_is_fewest(tmp_path: Path) -> None:
    kinds = [
        on_chip(scenario(), chip(tmp_path, "slow", 0.5, "2 TB/s")),
        on_chip(scenario(), chip(tmp_path, "fast", 50.0, "6 TB/s")),
    ]
    answers = {}
    for objective in ("chips", "cost"):
        found = size(kinds, Demand(rate=100.0, objective=objective, largest=1))
        assert found.answer is not None
        answers[objective] = found.answer.proposal.scenario.chip.name
    assert answers == {"chips": "fast", "cost": "slow"}


def test_sessions_are_a_closed_loop_of_their_own_number() -> None:
    found = size([scenario()], Demand(sessions=100, largest=LARGEST))
    assert found.answer is not None
    assert found.answer.service.requests.clients == 100
    assert found.answer.tpot <= 1 / 60


def test_what_cannot_be_is_an_answer_with_a_fix() -> None:
    found = size([scenario(slo={"interactivity": "9000 tok/s"})], Demand(rate=1.0, largest=LARGEST))
    assert found.answer is None
    assert "fast enough" in found.reason and "tok/s a user" in found.helps[0]
    huge = scenario(model="deepseek/deepseek-v3")
    found = size([huge], Demand(rate=1.0, largest=2))
    assert found.answer is None and found.fitting == 0 and "memory" in found.reason


def test_the_command_answers_and_refuses(tmp_path: Path) -> None:
    file = tmp_path / "chat.yaml"
    file.write_text(
        "model: meta/llama-3.1-8b\npools: {gpu: {chip: nvidia/h100-sxm, count: 1}}\ntraffic: chat\n"
        "slo: {ttft: 1 s, interactivity: 60 tok/s}\n",
        encoding="utf-8",
    )
    run = CliRunner().invoke
    found = run(app, ["size", str(file), "--rate", "20", "--largest", "2"])
    assert found.exit_code == 0 and "keep the SLO" in found.output and "Looked at" in found.output
    found = run(app, ["size", str(file)])
    assert found.exit_code == 2 and "give a rate" in found.output + found.stderr
    found = run(app, ["size", str(file), "--rate", "20", "--chips", "nvidia/h300-sxm"])
    assert found.exit_code == 2 and "did you mean" in found.output + found.stderr
