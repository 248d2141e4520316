"""Pareto fronts against the definition, point against point."""

from dataclasses import replace

import numpy as np
import pytest

import archsim
from archsim.explore import fronts
from archsim.explore.fronts import front_of
from archsim.explore.pareto import Objective, front, objectives
from archsim.explore.result import METRICS
from archsim.explore.specify import specify


def oracle(values: np.ndarray) -> np.ndarray:
    """Columns that no other column beats, by comparing all pairs; less is better."""
    on = np.zeros(values.shape[1], np.bool_)
    for i in range(values.shape[1]):
        mine = values[:, i]
        if np.isnan(mine).any():
            continue
        others = values[:, ~np.isnan(values).any(axis=0)]
        on[i] = not ((others <= mine[:, None]).all(axis=0) & (others < mine[:, None]).any(axis=0)).any()
    return on


def random_set(rng: np.random.Generator) -> tuple[dict[str, np.ndarray], list[Objective]]:
    """Points with ties, repeats, NaN and infinities, in one to five objectives of either direction."""
    count, size = int(rng.integers(1, 6)), int(rng.integers(1, 60))
    grid = rng.integers(0, int(rng.integers(2, 12)), (count, size)).astype(float)
    values = grid if rng.random() < 0.6 else rng.standard_normal((count, size))
    for odd in (np.nan, np.inf, -np.inf):
        values = np.where(rng.random(values.shape) < rng.choice([0.0, 0.02, 0.3]), odd, values)
    wanted = [Objective(str(i), float(rng.choice([-1.0, 1.0]))) for i in range(count)]
    return {str(i): row for i, row in enumerate(values)}, wanted


def test_a_front_is_what_comparing_all_pairs_gives_on_1000_random_sets() -> None:
    rng = np.random.default_rng(20261130)
    sizes = set()
    for _ in range(1000):
        columns, wanted = random_set(rng)
        found = front(columns, wanted)
        expected = oracle(np.stack([item.sign * columns[item.name] for item in wanted]))
        assert (found == expected).all(), (columns, wanted)
        sizes.add(int(found.sum()))
    assert {0, 1} < sizes and len(sizes) > 15  # empty ones, single ones, and many larger ones were among them


def test_all_points_that_tie_stay_and_a_point_without_a_value_does_not() -> None:
    columns = {"x": np.array([1.0, 1.0, 2.0, 2.0, np.nan]), "y": np.array([1.0, 1.0, 0.0, 1.0, -9.0])}
    wanted = [Objective("x", 1.0), Objective("y", 1.0)]
    assert front(columns, wanted).tolist() == [True, True, True, False, False]
    assert front(columns, wanted[:1]).tolist() == [True, True, False, False, False]


def test_directions_are_read_and_mistakes_named() -> None:
    names = ["throughput_per_chip", "interactivity"]
    found = objectives("throughput_per_chip:max, interactivity:min", names)
    assert [(item.name, item.direction) for item in found] == [("throughput_per_chip", "max"), ("interactivity", "min")]
    with pytest.raises(ValueError, match="did you mean 'interactivity'"):
        objectives("interactivty:max", names)
    with pytest.raises(ValueError, match="interactivity:max or interactivity:min"):
        objectives("interactivity", names)
    with pytest.raises(ValueError, match="twice"):
        objectives("interactivity:max,interactivity:min", names)


@pytest.mark.parametrize("count", [2, 3])
def test_a_front_of_many_points_takes_no_pair_of_all_of_them(count: int) -> None:
    values = np.random.default_rng(0).random((count, 100_000))
    columns = {str(i): row for i, row in enumerate(values)}
    found = front(columns, [Objective(str(i), -1.0) for i in range(count)])
    on = values[:, found]
    assert 2 < found.sum() < 500
    beaten = [((on >= values[:, i, None]).all(axis=0)).any() for i in range(0, 100_000, 997)]
    assert all(beaten)


# Fronts of sweeps


def test_the_front_of_a_sweep_is_that_of_all_plans_at_all_points() -> None:
    scenario = archsim.load("deepseek-v3-on-rubin")
    batches = [64.0, 512.0, 4096.0]
    sweep = specify([scenario], {"batch": batches, "context": [2048.0, 32768.0]})
    wanted = objectives("throughput_per_chip:max,ttft:min,power:min", list(METRICS))
    found = front_of(sweep, wanted, refine=False)
    rows = []
    for plan in range(scenario.split.chips.size):
        split = scenario.split.mapped(lambda _, value, plan=plan: value[[plan if value.size > 1 else 0]])
        result = archsim.run(replace(scenario, split=split, mapper=None), batch=batches, context=[2048.0, 32768.0])
        rows.append(np.stack([item.sign * result.metric(item.name).ravel() for item in wanted]))
    every = np.concatenate(rows, axis=1)
    expected = {tuple(np.round(point, 12)) for point in every[:, oracle(every)].T}
    mine = np.stack([item.sign * found.columns[item.name][found.on] for item in wanted])
    assert {tuple(np.round(point, 12)) for point in mine.T} == expected and len(expected) > 3
    assert found.points == 6 and found.looked == 6 * scenario.split.chips.size


def test_a_front_does_not_depend_on_how_its_points_are_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    scenario = archsim.load("llama-70b-on-h100")
    sweep = specify([scenario], ["batch=1..256:9log", "chip.memory.bandwidth=2..6TB/s:5"])
    wanted = objectives("throughput_per_chip:max,interactivity:max,cost_per_token:min", list(METRICS))
    whole = front_of(sweep, wanted)
    monkeypatch.setattr(fronts, "MOST", 50)
    cut = front_of(sweep, wanted)
    for item in wanted:
        first, second = (np.sort(each.columns[item.name][each.on]) for each in (whole, cut))
        assert first == pytest.approx(second, rel=1e-12)


def test_points_are_dense_where_an_slo_is_just_kept() -> None:
    scenario = archsim.load("llama-70b-on-h100")
    sweep = specify([scenario], ["batch=16,256", "context=8192,16384"], mode="step")
    found = front_of(sweep, objectives("throughput_per_chip:max,interactivity:max", list(METRICS)))
    assert found.refined > 8
    kept = found.columns["meets_slo"] & (found.columns["context"] == 8192)
    most = found.columns["batch"][kept].max()
    limit = archsim.run(scenario, mode="step", batch=range(16, 257), context=8192)
    assert most == limit.axes["batch"][limit.meets_slo].max()


def test_a_steady_front_has_every_number_of_clients_and_its_plan() -> None:
    scenario = archsim.load("llama-70b-on-bertha")
    sweep = specify([scenario], ["chip.memory.bandwidth=0.5,1TB/s"], mode="steady")
    found = front_of(sweep, objectives("throughput_per_chip:max,interactivity:max", list(METRICS)))
    assert found.on.sum() > 50 and "batch" in found.axes
    index = int(np.flatnonzero(found.on)[3])
    at = {name: float(found.columns[name][index]) for name in ("batch", "chip.memory.bandwidth")}
    alone = archsim.run(scenario, mode="steady", over=at)
    assert alone.throughput_per_chip.max() == pytest.approx(found.columns["throughput_per_chip"][index], rel=1e-9)


def test_several_structures_share_a_front() -> None:
    scenario = archsim.load("llama-70b-on-h100")
    sweep = specify([scenario], ["runtime=vllm,sglang,ideal", "batch=1,16,128"], mode="step")
    found = front_of(sweep, objectives("throughput_per_chip:max,interactivity:max", list(METRICS)))
    assert set(found.columns["runtime"][found.on]) == {"ideal"}
    assert set(found.columns["runtime"]) >= {"vllm", "sglang"}
