"""Who comes back soon: features, training, oracles that err, scores, and the shipped prediction."""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from archsim.catalog import CatalogError
from archsim.cli import app
from archsim.serving.returning import (
    FEATURES,
    Oracle,
    Verdicts,
    area,
    average_precision,
    features,
    following,
    halves,
    leaving,
    load_returns,
    scores,
    train,
)
from archsim.validation.returns import learned
from archsim.workload.requests import Requests
from archsim.workload.traces import load_trace
from archsim.workload.traffic import draw, load_traffic

SHARED = Path(__file__).parent.parent.parent / "shared" / "traces"
recorded = pytest.mark.skipif(not SHARED.is_dir(), reason="the traces lie beside the checkout where they are developed")


def steps() -> Requests:
    """Two agents in turn: gaps of 5, 700 and 3 s for the first, none for the second."""
    return Requests(
        np.array([0.0, 1.0, 6.0, 707.0, 711.0]),
        np.array([100, 50, 150, 400, 420]),
        np.array([9, 9, 9, 9, 9]),
        gap=np.array([0.0, 0.0, 5.0, 700.0, 3.0]),
        agent=np.array([0, 1, 0, 0, 0]),
        stop=np.array([1, 2, 2, 1, 2]),
    )


def synthetic(count: int = 20_000) -> tuple[Requests, np.typing.NDArray[np.float64]]:
    """Agents of two steps: who ends a turn leaves more often; and the chance of each."""
    rng = np.random.default_rng(0)
    stop = rng.integers(1, 3, count)
    chance = np.where(stop == 2, 0.6, 0.1)
    gap = np.zeros(2 * count)
    gap[1::2] = np.where(rng.random(count) < chance, 1000.0, 10.0)
    ones = np.ones(2 * count, dtype=np.int64)
    stops, chances = ones.copy(), np.ones(2 * count)
    stops[::2], chances[::2] = stop, chance
    agent = np.repeat(np.arange(count), 2)
    return Requests(np.zeros(2 * count), 100 * ones, ones, gap=gap, agent=agent, stop=stops), chances


def test_who_follows_whom_and_who_leaves() -> None:
    assert following(steps()).tolist() == [2, -1, 3, 4, -1]
    assert leaving(steps()).tolist() == [False, True, True, False, True]
    assert leaving(steps(), horizon=1000.0).tolist() == [False, True, False, False, True]


def test_without_agents_who_names_the_last_block_follows() -> None:
    asked = Requests(
        np.array([0.0, 10.0, 20.0]), np.full(3, 40), np.ones(3, int), chains=[[1, 2], [1], [1, 2, 3]], block=16
    )
    assert following(asked).tolist() == [2, 2, -1]
    assert leaving(asked, horizon=15.0).tolist() == [True, False, True]


def test_features_are_what_is_known_when_an_answer_ends() -> None:
    found = dict(zip(FEATURES, features(steps()).T, strict=True))
    assert np.expm1(found["gap"]) == pytest.approx([0, 0, 5, 700, 3])
    assert np.expm1(found["mean_gap"]) == pytest.approx([0, 0, 5, 352.5, 236])
    assert np.expm1(found["largest_gap"]) == pytest.approx([0, 0, 5, 700, 700])
    assert np.expm1(found["step"]) == pytest.approx([0, 0, 1, 2, 3])
    assert np.expm1(found["fresh"]) == pytest.approx([100, 50, 50, 250, 20])
    assert found["end_turn"].tolist() == [0, 1, 1, 0, 1] and found["tool_use"].tolist() == [1, 0, 0, 1, 0]


def test_features_know_nothing_of_the_future() -> None:
    whole, part = steps(), steps().first(3)
    assert np.array_equal(features(whole)[:3], features(part))


def test_training_finds_the_chances_that_made_the_data() -> None:
    asked, chances = synthetic()
    model = train(asked)
    assert 1.0 - model.returns(asked)[::2] == pytest.approx(chances[::2], abs=0.02)


def test_training_needs_both_kinds() -> None:
    with pytest.raises(ValueError, match="requests that leave and requests that return"):
        train(steps(), np.array([True, False, False, False, False]))


@pytest.mark.parametrize(("precision", "recall"), [(1.0, 1.0), (0.5, 0.7), (0.9, 0.5), (0.5, 1.0)])
def test_an_oracle_errs_as_much_as_it_says(precision: float, recall: float) -> None:
    asked, _ = synthetic(2000)
    truth = leaving(asked)
    verdicts = Verdicts(Oracle(precision, recall), asked)
    named = np.array([not verdicts.stays(index, 0.0) for index in range(len(asked))])
    assert (named & truth).sum() / truth.sum() == pytest.approx(recall, abs=1e-3)
    wrong = min(recall * truth.sum() * (1 / precision - 1), (~truth).sum())
    assert (named & ~truth).sum() == pytest.approx(wrong, abs=1)


def test_oracles_of_one_seed_agree() -> None:
    asked, _ = synthetic(500)
    less, more = (Oracle(1.0, recall, seed=3).returns(asked) < 0.5 for recall in (0.4, 0.8))
    assert (less <= more).all() and less.sum() < more.sum()
    assert not np.array_equal(less, Oracle(1.0, 0.4, seed=4).returns(asked) < 0.5)
    with pytest.raises(ValueError, match="precision"):
        Oracle(0.0, 0.5)


def test_scores_of_a_small_case() -> None:
    leave = np.array([0.9, 0.8, 0.8, 0.3, 0.1])
    truth = np.array([True, False, True, True, False])
    assert area(leave, truth) == pytest.approx((2 + 1.5 + 1) / 6)
    assert average_precision(leave, truth) == pytest.approx((1 + 2 / 3 + 3 / 4) / 3)
    (found,) = scores(leave, truth, (0.5,))
    assert (found.flagged, found.precision, found.recall) == pytest.approx((0.6, 2 / 3, 2 / 3))
    assert np.isnan(scores(leave, truth, (0.95,))[0].precision)


def test_verdicts_follow_their_threshold() -> None:
    asked, _ = synthetic(200)
    strict, loose = (Verdicts(train(asked), asked, threshold) for threshold in (0.05, 0.3))
    kept = [[verdicts.stays(index, 0.0) for index in range(0, 400, 2)] for verdicts in (strict, loose)]
    assert sum(kept[0]) < sum(kept[1])


def test_the_shipped_prediction_tells_who_leaves_among_generated_sessions() -> None:
    drawn = draw(load_traffic("agents"), count=8000)
    leave = 1.0 - load_returns().returns(drawn)
    assert area(leave, leaving(drawn)) > 0.6


def test_unknown_predictions_are_refused() -> None:
    with pytest.raises(CatalogError, match="return prediction"):
        load_returns("nobody")


@recorded
def test_the_shipped_prediction_is_what_its_trace_gives() -> None:
    found = learned(load_trace(SHARED / "agentic_coding_steps.csv"))
    shipped = load_returns()
    assert shipped.weights == pytest.approx(found.model.weights, abs=1e-4)
    assert shipped.bias == pytest.approx(found.model.bias, abs=1e-4)
    assert found.base == pytest.approx(0.043, abs=0.001)
    assert found.area > 0.82 and found.precision > 0.29


@recorded
def test_gaps_as_recorded_give_the_published_scores() -> None:
    """Published for gaps taken as recorded, of which 4,135 are longer than the time between their steps."""
    path = SHARED / "agentic_coding_steps.csv"
    asked = load_trace(path)
    with path.open(encoding="utf-8") as file:
        raw = np.array([float(row["think_time"] or "nan") for row in csv.DictReader(file)])
    known = np.zeros(0) if asked.gap is None else asked.gap
    gap = np.where(np.isnan(raw), known, raw)
    assert (gap > known + 1).sum() == 4135
    found = learned(replace(asked, gap=gap))
    assert found.base == pytest.approx(0.051, abs=0.0005)
    assert found.area == pytest.approx(0.85, abs=0.01) and found.precision == pytest.approx(0.37, abs=0.015)
    rule = np.asarray(asked.stop == 2)[~halves(asked)]
    truth = leaving(replace(asked, gap=gap))[~halves(asked)]
    assert (rule & truth).sum() / rule.sum() == pytest.approx(0.41, abs=0.01)
    assert (rule & truth).sum() / truth.sum() == pytest.approx(0.46, abs=0.01)


def test_the_command_learns_and_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    rows = ["session,time,input,output,gap,stop"]
    for name in range(40):
        time = 0.0
        for _ in range(10):
            turn = rng.random() < 0.3
            rows.append(f"s{name},{time},100,5,,{'end_turn' if turn else 'tool_use'}")
            time += 2000.0 if turn and rng.random() < 0.8 else 5.0
    Path("mine.csv").write_text("\n".join(rows) + "\n", encoding="utf-8")
    result = CliRunner().invoke(app, ["calibrate", "--returns", "mine.csv", "--out", "new"])
    assert result.exit_code == 0, result.output
    assert "area under the ROC 0.8" in result.output or "area under the ROC 0.9" in result.output
    found = load_returns("new/mine.yaml")
    assert found.weights[FEATURES.index("end_turn")] > 1
    refused = CliRunner().invoke(app, ["calibrate", "--returns", "mine.csv", "--engines"])
    assert refused.exit_code == 2 and "takes no other option" in refused.stderr
    Path("plain.csv").write_text("time,input,output\n0,1,1\n", encoding="utf-8")
    plain = CliRunner().invoke(app, ["calibrate", "--returns", "plain.csv"])
    assert plain.exit_code == 2 and "sessions that have names" in plain.stderr
