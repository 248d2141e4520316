"""`archsim pareto`, `sensitivity` and `breakeven` as people type them: answers, files, mistakes."""

import csv
import io
import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from archsim.cli import app

H100, BERTHA = "llama-70b-on-h100", "llama-70b-on-bertha"
TINY = (
    "model: meta/llama-3.1-70b\npools: {gpu: {chip: nvidia/h100-sxm, count: 1}}\nprecision: {weights: fp8}\n"
    "batch: 1\ncontext: 131072\n"
)


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments))


def test_sensitivity_says_what_is_worth_most_and_writes_what_is_asked(tmp_path: Path) -> None:
    page, data = tmp_path / "page.html", tmp_path / "data.json"
    result = invoke(
        "sensitivity", H100, "--mode", "step", "--output", "cost_per_token", "--vary", "context=2000..16000",
        "--sobol", "--samples", "32", "--html", str(page), "--json", str(data),
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    for words in ("Worth most for each chip", "memory bandwidth", "What decides it", "error of the model", "Report:"):
        assert words in result.output
    found = json.loads(data.read_text())
    assert found["output"] == "cost_per_token" and len(found["elasticities"]) > 20
    assert {row["name"] for row in found["sobol"]["indices"]} == {"context", "error of the model"}
    html = page.read_text()
    assert "What decides it" in html and "--samples 32" in html and html.count('class="plot"') == 4


def test_json_alone_is_all_that_is_printed() -> None:
    result = invoke("sensitivity", H100, "--mode", "step", "--json", "-")
    assert json.loads(result.output)["mode"] == "step"
    result = invoke("breakeven", BERTHA, H100, "--mode", "step", "--vary", "batch=1..8", "--json", "-")
    assert json.loads(result.output)["never"].startswith("first is better everywhere")


def test_breakeven_names_the_value_and_both_sides(tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    result = invoke(
        "breakeven", BERTHA, H100, "--mode", "step", "--output", "tpot", "--html", str(page),
        "--vary", "chip.memory.bandwidth=0.5..6TB/s",
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    assert "At memory bandwidth 1.776 TB/s" in result.output and "misses its SLO" in result.output
    assert page.read_text().count('class="plot"') == 2


def test_pareto_gives_the_front_as_table_csv_json_and_page(tmp_path: Path) -> None:
    page, table = tmp_path / "page.html", tmp_path / "front.csv"
    arguments = ["pareto", H100, "--mode", "step", "--vary", "batch=1,8,64", "--vary", "context=2048,8192,16384"]
    result = invoke(*arguments, "--html", str(page), "--csv", str(table))
    assert result.exit_code == 0, result.output
    assert "on the front of most throughput per chip, most interactivity" in result.output
    rows = list(csv.DictReader(io.StringIO(table.read_text())))
    assert {row["context"] for row in rows} == {"2048"} and {row["plan"] for row in rows} <= {
        "TP8",
        "TP4, 2 replicas",
    }
    assert page.read_text().count('class="plot"') == 3
    found = json.loads(invoke(*arguments, "--json", "-").output)
    assert [row["batch"] for row in found["front"]] == [float(row["batch"]) for row in rows]


def test_a_sweep_is_drawn_on_a_page(tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    result = invoke(
        "sweep",
        H100,
        "--mode",
        "step",
        "--vary",
        "batch=1,8,64",
        "--vary",
        "context=1024,8192,131072",
        "--html",
        str(page),
    )
    assert result.exit_code == 0, result.output
    text = page.read_text()
    assert "9 points" in text and "memory (" in text and text.count('class="plot"') == 3


@pytest.mark.parametrize("command", [["sensitivity"], ["pareto", "--vary", "batch=1,2"]])
def test_what_fits_nowhere_is_refused_with_its_reason(command: list[str], tmp_path: Path) -> None:
    scenario = tmp_path / "tiny.yaml"
    scenario.write_text(TINY)
    result = invoke(command[0], str(scenario), *command[1:])
    assert result.exit_code == 1 and "memory" in result.output.lower()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["sensitivity", H100, "--vary", "chip.memry=3"], "did you mean 'chip.memory.capacity'"),
        (["sensitivity", H100, "--output", "cots"], "no metric 'cots'"),
        (["sensitivity", H100, "--mode", "both"], "--mode step or --mode steady"),
        (["sensitivity", H100, "--mode", "step", "--sobol", "--samples", "100"], "power of two"),
        (["sensitivity", H100, "--mode", "step", "--sobol", "--vary", "batch=1..20000:5", "--samples", "16"], "narrow"),
        (["sensitivity", H100, "--html", "/nowhere/page.html"], "there is no folder"),
        (["breakeven", BERTHA, H100, "--vary", "batch=3"], "give a range"),
        (["breakeven", BERTHA, H100, "--vary", "runtime=vllm,sglang"], "no number 'runtime'"),
        (
            ["breakeven", BERTHA, H100, "--vary", "batch=1..4", "--output", "memory_utilization"],
            "neither more nor less",
        ),
        (["breakeven", BERTHA, "deepseek-v3-on-rubin", "--vary", "batch=1..4"], "give --mode"),
        (["pareto", H100, "--objectives", "tpt:min"], "did you mean 'tpot'"),
        (["pareto", H100, "--objectives", "tpot"], "say which way tpot is better"),
        (["pareto", H100, "--objectives", "margin:max", "--mode", "step"], "no prices; add `prices"),
    ],
)
def test_mistakes_are_told_without_a_traceback(arguments: list[str], words: str) -> None:
    result = invoke(*arguments)
    assert result.exit_code == 2, result.output
    assert words in result.stderr and "Traceback" not in result.output
