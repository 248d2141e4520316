"""Scenarios side by side: differences sum exactly, in time and in cost, and people see why."""

import json
from pathlib import Path
from typing import Any

import pytest
from scenarios import LLAMA_8B, scenario
from typer.testing import CliRunner

from archsim.cli import app
from archsim.explore.run import run
from archsim.report.compare import Compared, compared, cost_waterfall, pairs, time_waterfall, to_html, to_json
from archsim.report.waterfall import WIDTH, signed_bars

BASE: dict[str, Any] = {"batch": 16, "context": 4096}
ONE = "model: meta/llama-3.1-8b\npools: {gpu: {chip: nvidia/h100-sxm, count: 1}}\nbatch: 16\ncontext: 4096\n"


def named(name: str, on: str = "nvidia/h100-sxm", chips: int = 1, mode: str = "step", **keys: Any) -> Compared:
    result = run(scenario(LLAMA_8B, on, chips, **{**BASE, "name": name, **keys}), mode)
    return compared([result], [name])[0]


CASES = {
    "another chip": {"on": "nvidia/b200-sxm"},
    "more chips": {"chips": 4},
    "pipeline": {"chips": 2, "split": {"pipeline": 2}},
    "drafts": {"speculation": {"drafts": 3, "acceptance": 0.7}},
    "another format": {"precision": {"weights": "fp8", "kv": "fp8"}},
    "another batch": {"batch": 64},
    "another runtime": {"runtime": "sglang"},
}


@pytest.mark.parametrize("keys", CASES.values(), ids=CASES)
def test_parts_and_factors_sum_to_the_difference(keys: dict[str, Any]) -> None:
    first, other = named("first"), named("other", **keys)
    for waterfall in (time_waterfall(first, other), cost_waterfall(first, other)):
        total = waterfall.start + sum(bar.change for bar in waterfall.bars)
        assert total == pytest.approx(waterfall.end, rel=1e-8)
    for item in (first, other):
        assert sum(item.parts.values()) == pytest.approx(item.point.metric("tpot"), rel=1e-12)


def test_a_pipeline_waits_for_its_other_micro_batches() -> None:
    assert named("one").parts["pipeline"] == pytest.approx(0.0, abs=1e-9)
    assert named("two", chips=2, split={"pipeline": 2}, batch=512).parts["pipeline"] > 0


def test_the_steady_state_has_prefill_between_tokens() -> None:
    keys: dict[str, Any] = {"traffic": {"input": 1000, "output": 100}}
    first, other = (named(chip, f"nvidia/{chip}", mode="steady", **keys) for chip in ("h100-sxm", "h200-sxm"))
    time, cost = pairs([first, other])[0]
    assert "prefill" in {bar.name for bar in time.bars}
    for waterfall in (time, cost):
        total = waterfall.start + sum(bar.change for bar in waterfall.bars)
        assert total == pytest.approx(waterfall.end, rel=1e-8)


def test_the_same_scenario_differs_in_nothing() -> None:
    time, cost = pairs([named("a"), named("b")])[0]
    assert not time.bars and time.start == time.end
    assert all(bar.change == 0 for bar in cost.bars)


def test_a_factor_counts_by_the_logarithm_of_its_ratio() -> None:
    """Twice the batch at the same TPOT would halve the cost; the factor alone gives that share."""
    bars = {bar.name: bar for bar in cost_waterfall(named("a"), named("b", batch=32)).bars}
    assert bars["sequences"].change < 0 < bars["TPOT"].change
    assert bars["chips"].change == bars["chip-hour"].change == 0


def test_bars_have_one_axis_and_the_longest_is_full() -> None:
    left, right = signed_bars([-2.0, 1.0])
    assert left.index("│") == right.index("│") == WIDTH
    assert left.count("█") == WIDTH and right.count("█") == WIDTH // 2
    assert signed_bars([]) == []


def test_a_step_is_no_steady_state() -> None:
    keys: dict[str, Any] = {"traffic": {"input": 100, "output": 10}}
    results = [run(scenario(LLAMA_8B, **BASE, **keys), mode) for mode in ("step", "steady")]
    with pytest.raises(ValueError, match="--mode"):
        compared(results, ["a", "b"])


def test_what_does_not_fit_is_said_and_not_explained() -> None:
    found = [named("fits"), named("too long", context=100_000_000)]
    assert pairs(found) == []
    answers = json.loads(to_json(found))["answers"]
    assert [answer["feasible"] for answer in answers] == [True, False]
    assert answers[1]["reason"] == "memory"
    assert "cannot run" in to_html(found, "archsim compare a b")


def test_json_and_html_hold_the_waterfalls() -> None:
    found = [named("<first>"), named("other", chips=2)]
    data = json.loads(to_json(found))
    assert {item["of"] for item in data["differences"]} == {"tpot", "cost_per_token"}
    page = to_html(found, "archsim compare a b")
    assert '"type": "waterfall"' in page and "&lt;first&gt;" in page and "<first>" not in page


def test_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "160")
    Path("one.yaml").write_text(ONE, encoding="utf-8")
    Path("two.yaml").write_text(ONE.replace("count: 1", "count: 2"), encoding="utf-8")
    done = CliRunner().invoke(app, ["compare", "one.yaml", "two.yaml", "--html", "out.html", "--json", "out.json"])
    assert done.exit_code == 0, done.output
    assert "two is" in done.stdout and "Why the TPOT of two differs" in done.stdout and "█" in done.stdout
    assert Path("out.html").is_file() and json.loads(Path("out.json").read_text(encoding="utf-8"))["mode"] == "step"
    lone = CliRunner().invoke(app, ["compare", "one.yaml"])
    assert lone.exit_code == 2 and "two scenarios" in lone.stderr
    twice = CliRunner().invoke(app, ["compare", "one.yaml", "one.yaml", "--json", "-"])
    assert [item["name"] for item in json.loads(twice.stdout)["answers"]] == ["1: one.yaml", "2: one.yaml"]


def test_a_report_ends_with_a_comparison_of_others(tmp_path: Path) -> None:
    """`run --beside A --beside B` puts the comparison of A and B into the page of the answer; one alone is refused."""
    page = tmp_path / "page.html"
    names = ["deepseek-v3-on-rubin", "deepseek-v3-on-rubin-and-lpx"]
    beside = [part for name in names for part in ("--beside", name)]
    answer = CliRunner().invoke(app, ["run", "llama-70b-on-h100", "--mode", "step", "--html", str(page), *beside])
    assert answer.exit_code == 0, answer.output
    text = page.read_text(encoding="utf-8")
    assert "Side by side" in text and "seven LPX racks" in text and text.count("<main>") == 1
    assert "--beside deepseek-v3-on-rubin-and-lpx" in text  # how to make it again
    for wrong in (["--html", str(page), "--beside", names[0]], beside):
        refused = CliRunner().invoke(app, ["run", "llama-70b-on-h100", *wrong])
        assert refused.exit_code == 2 and "two scenarios or more" in refused.output
