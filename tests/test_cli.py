"""What users type: every command's way to an answer, and what it says and exits with when it cannot give one."""

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner, Result

from archsim import __version__, catalog
from archsim.cli import app
from archsim.explore.result import METRICS

ROOT = Path(__file__).parent.parent
SMALL = """\
name: small
model: meta/llama-3.1-8b
pools: {gpu: {chip: nvidia/h100-sxm, count: 2}}
batch: 8
context: 2048
"""
TRAFFIC = SMALL + "traffic: {input: 500, output: 100}\n"
TOO_LONG = """\
model: meta/llama-3.1-70b
pools: {gpu: {chip: nvidia/h100-sxm, count: 1}}
precision: {weights: fp8, kv: fp8}
batch: 1
context: 131072
"""


@pytest.fixture(autouse=True)
def in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(catalog, "_added", [])
    monkeypatch.setenv("COLUMNS", "200")
    yield


def archsim(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments))


def scenario(text: str = SMALL, name: str = "scenario.yaml") -> str:
    Path(name).write_text(text, encoding="utf-8")
    return name


def refused(result: Result) -> str:
    """What a refusal says; it has exit code 2, no traceback, and nothing on the output."""
    assert result.exit_code == 2, result.output
    assert isinstance(result.exception, SystemExit)
    assert "Traceback" not in result.output
    return result.stderr


def test_help_names_every_command() -> None:
    found = archsim("--help")
    assert found.exit_code == 0
    assert all(name in found.stdout for name in ("run", "explain", "chips", "workloads", "mappers", "--catalog"))
    assert archsim().exit_code in (0, 2)  # help too, by the exit code that typer's version has for it


def test_the_module_runs_as_the_command_does() -> None:
    argv = [sys.executable, "-m", "archsim", "--version"]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, f"archsim {__version__}\n")


# run


def test_run_says_the_answer_first() -> None:
    found = archsim("run", scenario())
    assert found.exit_code == 0, found.output
    first = found.stdout.partition("\n")[0]
    assert first.startswith("Llama 3.1 8B in bf16 on 2 x NVIDIA H100 SXM5 80GB with vLLM decodes 8 sequences")
    for title in (
        "The plan and its alternatives",
        "Where the time goes: decode step",
        "Memory of one chip",
        "rests on",
    ):
        assert title in found.stdout
    assert "Steady" not in found.stdout and "clients" not in found.stdout


def test_run_gives_both_answers_where_both_are_asked() -> None:
    found = archsim("run", scenario(TRAFFIC))
    assert "decodes 8 sequences" in found.stdout and "clients, 500 tokens in and 100 out" in found.stdout
    only = archsim("run", scenario(TRAFFIC), "--mode", "steady", "--batch", "1,4,16")
    assert only.exit_code == 0, only.output
    assert "decodes" not in only.stdout
    assert "Numbers of clients: 3 of 3" in only.stdout


def test_run_sweeps() -> None:
    found = archsim("run", scenario(), "--batch", "1..3,8", "--context", "1024,4096", "--json", "-")
    data = json.loads(found.stdout)
    (answer,) = data["answers"]
    assert answer["axes"] == {"batch": [1, 2, 3, 8], "context": [1024, 4096]}
    assert set(answer["plan"]) >= {"tensor", "data", "pipeline", "context"}
    assert len(answer["metrics"]["tpot"]["values"]) == 4
    table = archsim("run", scenario(), "--batch", "1..3", "--context", "1024,4096").stdout
    assert "Points: 6 of 6" in table and re.search(r"^ *3 +4,096 ", table, re.MULTILINE)


def test_run_says_when_the_slo_is_missed_everywhere() -> None:
    found = archsim("run", scenario(TRAFFIC + "slo: {interactivity: 90000 tok/s}\n"))
    assert found.exit_code == 0
    assert "It misses the SLO (interactivity at least 90,000 tok/s/user)." in found.stdout
    assert "numbers of clients misses the SLO" in found.stdout


def test_run_writes_html_json_and_a_trace() -> None:
    found = archsim("run", scenario(), "--html", "out.html", "--json", "out.json", "--trace", "out.trace")
    assert found.exit_code == 0, found.output
    events = json.loads(Path("out.trace").read_text(encoding="utf-8"))["traceEvents"]
    assert {event["args"]["name"] for event in events if event["name"] == "process_name"} == {"Decode step", "Prefill"}
    assert "Report: out.html" in found.stdout and "JSON: out.json" in found.stdout
    assert "archsim run scenario.yaml --html out.html" in Path("out.html").read_text(encoding="utf-8")
    assert json.loads(Path("out.json").read_text(encoding="utf-8"))["archsim"] == 1


def test_run_with_nothing_feasible_exits_with_1_and_says_why() -> None:
    found = archsim("run", scenario(TOO_LONG), "--html", "out.html")
    assert found.exit_code == 1
    assert "cannot run 1 sequence of 131,072 tokens" in found.stdout
    assert "Memory: each NVIDIA H100 SXM5 80GB would need" in found.stdout
    assert "What would help" in found.stdout and "missing" in found.stdout
    assert "What would help" in Path("out.html").read_text(encoding="utf-8")


@pytest.mark.parametrize("numbers", ["", "0", "-1", "1.5", "8..1", "1..", "a", "1,,2", "1..999999999", "٣"])
def test_numbers_that_are_none_are_refused(numbers: str) -> None:
    assert "batch" in refused(archsim("run", scenario(), "--batch", numbers))


# Mistakes in files


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (SMALL.replace("context", "contxt"), "scenario.yaml:5:1: unknown key 'contxt'; did you mean 'context'?"),
        (SMALL + "slo: {ttft: 2}\n", "scenario.yaml:6:13: expected a time such as '1 us', got 2 (a number without"),
        (SMALL + "slo: {ttft: 2 GB}\n", "scenario.yaml:6:13: expected a time"),
        (SMALL.replace("h100-sxm", "h101-sxm"), "scenario.yaml:3:21: unknown chip 'nvidia/h101-sxm'; did you mean"),
        (SMALL.replace("batch: 8\ncontext: 2048\n", ""), "scenario.yaml:1:1: nothing is asked"),
        ("", "scenario.yaml"),
        ("- 1\n", "scenario.yaml"),
    ],
)
def test_a_mistake_is_said_with_its_place(text: str, said: str) -> None:
    lines = refused(archsim("run", scenario(text))).splitlines()
    assert any(line.startswith(said) for line in lines), lines


def test_all_mistakes_are_said_at_once() -> None:
    text = SMALL.replace("h100-sxm", "h101-sxm").replace("llama-3.1-8b", "llama-3.1-9b")
    lines = refused(archsim("run", scenario(text))).splitlines()
    assert len(lines) == 2 and all(":" in line and "did you mean" in line for line in lines)


def test_a_file_that_is_no_text_a_folder_and_no_file_at_all_are_refused() -> None:
    Path("binary.yaml").write_bytes(bytes(range(256)))
    Path("folder.yaml").mkdir()
    for name in ("binary.yaml", "folder.yaml", "nowhere.yaml", "./nowhere"):
        for command in ("run", "explain"):
            said = refused(archsim(command, name))
            assert name in said and len(said.splitlines()) == 1


def test_what_the_engine_cannot_price_is_said_in_one_line() -> None:
    generations = Path("mine/chips/generations")
    generations.mkdir(parents=True)
    source = "sources: [{of: [kernels], kind: assumption, ref: none}]"
    constants = f"kernels: {{vllm: {{elementwise: {{any: {{fitted_on: nothing}}}}}}}}\n{source}"
    (generations / "mine.yaml").write_text(f"name: mine\nmatrix_style: any\n{constants}\n", encoding="utf-8")
    Path("mine/chips/new.yaml").write_text("extends: nvidia/h100-sxm\nset: {generation: mine}\n", encoding="utf-8")
    said = refused(archsim("--catalog", "mine", "run", scenario(SMALL.replace("nvidia/h100-sxm", "new"))))
    assert said.startswith("scenario.yaml:3:21: generation 'mine' has no ") and len(said.splitlines()) == 1


def test_what_the_scenario_lacks_is_said() -> None:
    assert "traffic" in refused(archsim("run", scenario(), "--mode", "steady"))
    asked = TRAFFIC.replace("batch: 8\ncontext: 2048\n", "")
    assert "context" in refused(archsim("run", scenario(asked), "--mode", "step", "--batch", "8"))


def test_a_place_that_cannot_be_written_is_said() -> None:
    assert "nowhere" in refused(archsim("run", scenario(), "--html", "nowhere/out.html"))
    assert "nowhere" in refused(archsim("run", scenario(), "--json", "nowhere/out.json"))
    assert "folder" in refused(archsim("run", scenario(), "--json", "."))


@pytest.mark.parametrize("command", [["run", "scenario.yaml"], ["compare", "scenario.yaml", "scenario.yaml"]])
def test_a_metric_without_a_number_is_our_mistake_and_not_silence(
    command: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    scenario()
    unit, meaning, power = METRICS["power"]
    monkeypatch.setitem(METRICS, "power", (unit, meaning, lambda a: np.where(a.batch == 8, np.inf, power(a))))
    found = archsim(*command, "--json", "-")
    assert (found.exit_code, found.stdout) == (3, "")
    assert found.stderr.startswith("archsim: power is inf at batch 8, context 2048 of 'small' (step): ")
    assert "please report it" in found.stderr and "Traceback" not in found.output
    assert archsim(*command).exit_code == 0  # tables show n/a


def test_a_cost_without_a_price_says_why_it_is_null() -> None:
    chip = "extends: nvidia/h100-sxm\nset: {price: {as_of: 2026-01}}\n"
    Path("unpriced.yaml").write_text(chip, encoding="utf-8")
    found = archsim("run", scenario(SMALL.replace("nvidia/h100-sxm", "./unpriced.yaml")), "--json", "-")
    assert found.exit_code == 0, found.output
    metrics = json.loads(found.stdout)["answers"][0]["metrics"]
    assert metrics["output_cost"]["values"] == [None] and "no price is known" in metrics["output_cost"]["undefined"]
    assert metrics["tpot"]["values"][0] > 0 and "undefined" not in metrics["tpot"]


# explain


def test_explain_shows_formulas_sums_and_memory() -> None:
    found = archsim("explain", scenario(), "--batch", "4", "--context", "1000")
    assert found.exit_code == 0, found.output
    for part in ("2 x m x n x k = 2 x 4 x", "per million output tokens", "KV a token", "The decode step", "TTFT"):
        assert part in found.stdout
    assert "4 sequences of 1,000 tokens" in found.stdout


def test_explain_one_kernel_with_its_constants() -> None:
    found = archsim("explain", scenario(), "--kernel", "down")
    assert found.exit_code == 0, found.output
    assert "Constants of down (decode step)" in found.stdout and "GB/s" in found.stdout
    assert "  up: gemm" not in found.stdout
    assert "did you mean 'down'" in refused(archsim("explain", scenario(), "--kernel", "dwn"))


def test_explain_what_does_not_fit() -> None:
    found = archsim("explain", scenario(TOO_LONG))
    assert found.exit_code == 1
    assert "cannot run" in found.stdout and "in all - capacity" in found.stdout


def test_explain_traffic() -> None:
    text = TRAFFIC.replace("batch: 8\ncontext: 2048\n", "")
    found = archsim("explain", scenario(text), "--batch", "8")
    assert found.exit_code == 0, found.output
    assert "serves 8 clients" in found.stdout and "clients / (TTFT + output x TPOT)" in found.stdout


# The catalogue


@pytest.mark.parametrize(
    ("kind", "listed", "part"),
    [
        ("chips", "nvidia/h100-sxm", "3.35 TB/s"),
        ("workloads", "meta/llama-3.1-8b", "8.0 billion"),
        ("mappers", "expert-parallel", "tokens travel"),
    ],
)
def test_list(kind: str, listed: str, part: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("archsim.report.catalogue.names", lambda kind: [listed] if "runtimes" not in kind else [])
    found = archsim(kind, "list")
    assert found.exit_code == 0 and listed in found.stdout and part in found.stdout, found.output
    assert archsim(kind).stdout == found.stdout


def test_mappers_list_has_the_runtimes_too() -> None:
    assert "vLLM" in archsim("mappers", "list").stdout


@pytest.mark.parametrize(
    ("kind", "name", "parts"),
    [
        ("chips", "h100-sxm", ("ridge point", "3.35 TB/s", "NVLink 4", "USD/h", "datasheet", "assumption")),
        ("workloads", "deepseek-v3", ("671.0 billion", "37.6 billion", "MLA", "8 of 256 experts", "70.3 kB")),
        ("mappers", "auto", ("what it proposes", "every divisor", "TP8")),
        ("mappers", "vllm", ("kernel stack", "8,192 tokens", "measured")),
    ],
)
def test_show(kind: str, name: str, parts: tuple[str, ...]) -> None:
    found = archsim(kind, "show", name)
    assert found.exit_code == 0, found.output
    assert [part for part in parts if part not in found.stdout] == []


def test_show_of_something_unknown_says_what_is_near() -> None:
    for kind, name in (("chips", "h101-sxm"), ("workloads", "lama-3.1-8b"), ("mappers", "atuo")):
        assert "did you mean" in refused(archsim(kind, "show", name))


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("chips", "h100-sxm"),
        ("chips", "hopper"),
        ("workloads", "llama-3.1-8b"),
        ("mappers", "auto"),
        ("mappers", "vllm"),
    ],
)
def test_check_of_the_shipped_files(kind: str, name: str) -> None:
    found = archsim(kind, "check", name)
    assert found.exit_code == 0, found.output
    assert found.stdout.endswith(f"{name}.yaml: ok\n")


def test_check_says_every_fault_and_goes_on() -> None:
    Path("mine.yaml").write_text("extends: nvidia/h100-sxm\nset: {cores: many, clok: 1 GHz}\n", encoding="utf-8")
    Path("good.yaml").write_text("extends: nvidia/h100-sxm\nset: {cores: 64}\n", encoding="utf-8")
    found = archsim("chips", "check", "mine.yaml", "good.yaml")
    assert found.exit_code == 2
    assert "mine.yaml:2:" in found.stderr and found.stdout == "good.yaml: ok\n"


def test_check_of_a_generation_and_a_runtime_file_by_path() -> None:
    Path("mine.yaml").write_text("extends: vllm\nset: {host.step: 1 ms}\n", encoding="utf-8")
    assert archsim("mappers", "check", "mine.yaml").exit_code == 2  # a mapper of that name does not exist
    folder = Path("runtimes")
    folder.mkdir()
    (folder / "mine.yaml").write_text("extends: vllm\nset: {host.step: 1 ms}\n", encoding="utf-8")
    assert archsim("mappers", "check", "runtimes/mine.yaml").exit_code == 0


def test_a_catalogue_of_ones_own_comes_first_and_its_names_are_no_markup() -> None:
    folder = Path("mine/chips")
    folder.mkdir(parents=True)
    (folder / "new.yaml").write_text(
        'extends: nvidia/h100-sxm\nset: {name: "[red]New[/red] :smile:"}\n', encoding="utf-8"
    )
    assert "[red]New[/red] :smile:" in archsim("--catalog", "mine", "chips", "show", "new").stdout
    found = archsim("--catalog", "mine", "run", scenario(SMALL.replace("nvidia/h100-sxm", "new")))
    assert "2 x [red]New[/red] :smile: with vLLM" in found.stdout
    assert "no such catalogue folder" in refused(archsim("--catalog", "nowhere", "mappers", "list"))


def test_a_broken_file_of_a_catalogue_does_not_hide_the_others() -> None:
    folder = Path("mine/mappers")
    folder.mkdir(parents=True)
    (folder / "broken.yaml").write_text("name: 1\n", encoding="utf-8")
    found = archsim("--catalog", "mine", "mappers", "list")
    assert found.exit_code == 2
    assert "expert-parallel" in found.stdout and "broken.yaml" in found.stderr


def test_lists_without_a_number_are_refused_in_place(tmp_path: Path) -> None:
    """All of them at once, each where it stands."""
    file = tmp_path / "empty.yaml"
    file.write_text(
        "model: meta/llama-3.1-8b\npools: {gpu: {chip: nvidia/h100-sxm, count: 1}}\nbatch: []\ncontext: []\n",
        encoding="utf-8",
    )
    result = CliRunner().invoke(app, ["run", str(file)])
    assert result.exit_code == 2
    places = [line.rpartition("empty.yaml:")[2] for line in result.stderr.splitlines()]
    assert places == ["3:8: give at least one number", "4:10: give at least one number"]
