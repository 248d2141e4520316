"""Pareto fronts against the definition, point against point."""

import numpy as np
import pytest

from archsim.explore.pareto import Objective, front, objectives


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
