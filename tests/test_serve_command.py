"""`archsim serve` as users type it, and `archsim.serve` as they call it."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

import archsim
from archsim import catalog
from archsim.cli import app

SCENARIO = """\
name: small
model: meta/llama-3.1-8b
pools: {gpu: {chip: nvidia/h100-sxm, count: 1}}
split: {tensor: 1}
traffic: {input: {mean: 500, spread: 0.5}, output: 50, rate: 5, requests: 60}
slo: {ttft: 1 s, interactivity: 50 tok/s}
"""
SCHEDULER = """
from archsim.serving.schedulers import Scheduler


class OneAtATime(Scheduler):
    def plan(self, engine):
        admitted = None if engine.running else engine.admit()
        return ([] if admitted is None else [(admitted, admitted.left)]), True

    def deaf(self, engine):
        return True
"""


@pytest.fixture(autouse=True)
def in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(catalog, "_added", [])
    monkeypatch.setenv("COLUMNS", "200")
    Path("s.yaml").write_text(SCENARIO, encoding="utf-8")
    yield


def serve(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["serve", *arguments])


def refused(result: Result) -> str:
    assert result.exit_code == 2, result.output
    assert isinstance(result.exception, SystemExit) and "Traceback" not in result.output
    return result.stderr


def test_drafts_are_told() -> None:
    text = "speculation: {drafts: 4, acceptance: 0.6}\n"
    Path("drafts.yaml").write_text(SCENARIO + text, encoding="utf-8")
    found = serve("drafts.yaml")
    assert found.exit_code == 0, found.output
    assert re.search(r"drafts a step +4 of n-grams, accepted 60 %: 2.31 tokens", found.output)
    assert re.search(r"steps that verify drafts +100 %; 2.31 tokens a step", found.output)
    answer = json.loads(serve("drafts.yaml", "--json", "-").stdout)["speculation"]
    assert answer["drafts"] == 4 and answer["steps_with_drafts"] == 1.0 and answer["discarded_tokens"] > 0
    assert answer["tokens_per_step"] == pytest.approx(sum(0.6**n for n in range(5)), rel=0.01)


@pytest.mark.parametrize(
    ("drafts", "fault"),
    [
        ("{drafts: 2, mtp: true}", "s.yaml:7:31: Llama 3.1 8B has no prediction module"),
        ("{drafts: 2, mtp: true, model: meta/llama-3.1-8b}", "either `model` or `mtp` writes drafts"),
        ("{drafts: 2, when: never}", "s.yaml:7:32: expected 'pays' or 'always', got 'never'"),
    ],
)
def test_mistakes_of_drafts_are_named(drafts: str, fault: str) -> None:
    Path("s.yaml").write_text(f"{SCENARIO}speculation: {drafts}\n", encoding="utf-8")
    assert fault in refused(serve("s.yaml"))


def said(text: str, *more: str) -> dict[str, object]:
    Path("other.yaml").write_text(SCENARIO + text, encoding="utf-8")
    result = serve("other.yaml", "--json", "-", *more)
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert isinstance(found, dict)
    return found


def test_it_answers_in_a_sentence_and_tables() -> None:
    result = serve("s.yaml")
    assert result.exit_code == 0, result.output
    for text in (
        "60 of 60 requests finished",
        "TTFT",
        "p99",
        "goodput",
        "cost per million tokens",
        "95 % of steps within",
    ):
        assert text in result.stdout
    assert "nan" not in result.stdout.lower()


def test_it_writes_all_its_files() -> None:
    result = serve("s.yaml", "--html", "a.html", "--json", "a.json", "--csv", "a.csv", "--trace-out", "a.trace")
    assert result.exit_code == 0, result.output
    html = Path("a.html").read_text(encoding="utf-8")
    assert "How long users wait" in html and not re.search(r'src="http', html)
    rows = list(csv.DictReader(Path("a.csv").read_text(encoding="utf-8").splitlines()))
    assert len(rows) == 60 and {row["outcome"] for row in rows} == {"finished"}
    found = json.loads(Path("a.json").read_text(encoding="utf-8"))
    mean = sum(float(row["ttft"]) for row in rows) / 60
    assert found["latency"]["ttft"]["mean"] == pytest.approx(mean, rel=1e-6)
    events = json.loads(Path("a.trace").read_text(encoding="utf-8"))["traceEvents"]
    decode = [event for event in events if event["name"] == "decode"]
    assert len(decode) == 60
    assert sum(event["dur"] for event in decode) / 60e6 == pytest.approx(
        49 * found["latency"]["tpot"]["mean"], rel=1e-4
    )


def test_plain_and_fast_say_the_same() -> None:
    fast, plain = (said("", *more) for more in ((), ("--plain",)))
    fast_latency, plain_latency = fast.pop("latency"), plain.pop("latency")
    assert isinstance(fast_latency, dict) and isinstance(plain_latency, dict)
    for name in ("ttft", "tpot", "e2e", "queue"):
        assert fast_latency[name] == pytest.approx(plain_latency[name], rel=1e-6)
    assert fast["counts"] == plain["counts"]


def test_the_same_seed_writes_the_same_bytes_and_another_does_not() -> None:
    first, again, other = (serve("s.yaml", "--json", "-", "--seed", seed).stdout for seed in ("3", "3", "4"))
    assert first == again != other


@pytest.mark.parametrize("name", ["static", "continuous", "prefill-first", "decode-first"])
def test_every_scheduler_can_be_named(name: str) -> None:
    assert said(f"serving: {{scheduler: {name}}}\n")["finished"] == 60


def test_a_scheduler_of_ones_own_is_loaded_from_beside_the_scenario() -> None:
    Path("mine.py").write_text(SCHEDULER, encoding="utf-8")
    found = said("serving: {scheduler: mine.py}\n")
    use = found["utilization"]
    assert isinstance(use, dict) and use["batch"] == 1
    Path("mine.py").write_text("import nothing_of_this_name\n", encoding="utf-8")
    text = refused(serve("other.yaml"))
    assert text.startswith("other.yaml:7:") and "ModuleNotFoundError" in text
    Path("mine.py").write_text("", encoding="utf-8")
    assert "no class that extends Scheduler" in refused(serve("other.yaml"))


def test_it_says_why_no_prefix_is_found() -> None:
    text = SCENARIO.replace("output: 50", "output: 50, shared: {tokens: 256}")
    for serving, reason in (
        ("", ""),
        ("serving: {kv: {block: 24}}", "no whole number of blocks of 24"),
        ("serving: {kv: {allocation: contiguous}}", "contiguous memory shares no blocks"),
        ("serving: {prefix_cache: false}", "the prefix cache is off"),
    ):
        Path("p.yaml").write_text(f"{text}{serving}\n", encoding="utf-8")
        found = json.loads(serve("p.yaml", "--json", "-").stdout)
        assert (found["prefix_hits"] > 0.2) == (not reason)
        assert any(reason in note for note in found["notes"])


def test_replicas_are_routed_to() -> None:
    text = SCENARIO.replace("count: 1", "count: 2").replace("tensor: 1", "tensor: 1, data: 2")
    Path("two.yaml").write_text(text, encoding="utf-8")
    assert "2 replicas, chunked scheduler, paged KV in blocks of 16, least-loaded router" in serve("two.yaml").stdout


def test_contiguous_memory_and_swap_can_be_asked_for() -> None:
    assert said("serving: {kv: {allocation: contiguous, reserve: 4096}, preemption: swap}\n")["finished"] == 60


def test_the_largest_rate_is_found_or_refused_with_its_reason() -> None:
    result = serve("s.yaml", "--largest-rate", "--requests", "100")
    assert re.search(r"largest rate that keeps it +[\d.]+ ± [\d.]+ requests/s", result.stdout), result.stdout
    hard = SCENARIO.replace("ttft: 1 s", "ttft: 1 us")
    Path("hard.yaml").write_text(hard, encoding="utf-8")
    assert "n/a: even at" in serve("hard.yaml", "--largest-rate", "--requests", "20").stdout


def test_a_trace_is_served() -> None:
    Path("t.csv").write_text("time,input,output\n0,100,10\n1,200,1\nx,1,1\n", encoding="utf-8")
    assert refused(serve("s.yaml", "--trace", "t.csv")).startswith("t.csv:4:1: ")
    result = serve("s.yaml", "--trace", "t.csv", "--skip-bad")
    assert "2 of 2 requests finished" in result.stdout and "1 row left out: t.csv:4:1" in result.stdout
    Path("own.yaml").write_text(SCENARIO + "trace: missing.csv\n", encoding="utf-8")
    assert refused(serve("own.yaml")).startswith("own.yaml:7:")


def test_nothing_to_do_is_no_mistake_and_overload_no_hang() -> None:
    assert "there are no requests" in serve("s.yaml", "--requests", "0").stdout
    late = serve("s.yaml", "--rate", "1e6", "--events", "5")
    assert late.exit_code == 1 and "finished 0 of 60 requests: stopped after 5 events" in late.stdout
    Path("t.csv").write_text("time,input,output\n0,10000000,1\n", encoding="utf-8")
    long = serve("s.yaml", "--trace", "t.csv")
    assert long.exit_code == 1 and "Memory: each" in long.stdout
    Path("t.csv").write_text("time,input,output\n0,1000000,1\n0,10,1\n0,10,1\n", encoding="utf-8")
    some = serve("s.yaml", "--trace", "t.csv")
    assert some.exit_code == 0 and "2 of 3" in some.stdout and "more than the KV memory holds" in some.stdout


def test_one_token_has_no_time_between_tokens() -> None:
    Path("t.csv").write_text("time,input,output\n0,100,1\n", encoding="utf-8")
    result = serve("s.yaml", "--trace", "t.csv")
    assert result.exit_code == 0 and "n/a" in result.stdout
    found = json.loads(serve("s.yaml", "--trace", "t.csv", "--json", "-").stdout)
    assert found["latency"]["tpot"]["mean"] is None and found["latency"]["itl"]["p50"] is None


def test_what_fits_nowhere_is_refused_as_run_does() -> None:
    text = SCENARIO.replace("llama-3.1-8b", "llama-3.1-70b")
    Path("big.yaml").write_text(text, encoding="utf-8")
    result = serve("big.yaml")
    assert result.exit_code == 1 and "Memory: each" in result.stdout and "Traceback" not in result.output


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("serving: {scheduler: statik}\n", "did you mean 'static'?"),
        ("serving: {kv: {reserve: 5}}\n", "paged memory reserves nothing"),
        ("serving: {batch: 5}\n", "unknown key 'batch'"),
        ("serving: {router: best}\n", "expected"),
    ],
)
def test_mistakes_are_refused_by_their_place(change: str, message: str) -> None:
    Path("bad.yaml").write_text(SCENARIO + change, encoding="utf-8")
    text = refused(serve("bad.yaml"))
    assert text.startswith("bad.yaml:7:") and message in text


def test_traffic_that_is_not_known_and_folders_that_are_not_there() -> None:
    assert "did you mean 'chat'?" in refused(serve("s.yaml", "--traffic", "chta"))
    assert "there is no folder" in refused(serve("s.yaml", "--csv", "nowhere/a.csv"))


def test_python_callers_get_arrays() -> None:
    found = archsim.serve("s.yaml", traffic="chat", rate=2.0, requests=30, seed=1)
    assert found.measures.ttft.shape == (30,) and found.requests.rate == pytest.approx(2.0, rel=0.5)
    assert found.measures.finished == 30


def test_requests_as_parquet_are_those_of_the_csv() -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    result = serve("s.yaml", "--csv", "a.csv", "--parquet", "a.parquet", "--requests", "30")
    assert result.exit_code == 0 and "Requests: a.parquet" in result.stdout
    table = parquet.read_table("a.parquet")
    rows = list(csv.DictReader(Path("a.csv").read_text(encoding="utf-8").splitlines()))
    assert table.column_names == list(rows[0]) and table.num_rows == len(rows) == 30
    assert table.schema.field("ttft").metadata == {b"unit": b"s"}
    for row, found in zip(rows, table.to_pylist(), strict=True):
        assert found["input"] == int(row["input"]) and found["outcome"] == row["outcome"] == "finished"
        assert found["ttft"] == pytest.approx(float(row["ttft"]), rel=1e-8)


def test_what_is_undefined_is_null_in_parquet() -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    Path("t.csv").write_text("time,input,output\n0,100,1\n1,200,2\n", encoding="utf-8")
    assert serve("s.yaml", "--trace", "t.csv", "--parquet", "a.parquet").exit_code == 0
    assert [value is None for value in parquet.read_table("a.parquet")["tpot"].to_pylist()] == [True, False]


def test_answers_of_one_token_have_no_rate_of_a_user() -> None:
    Path("t.csv").write_text("time,input,output\n0,100,1\n1,200,1\n", encoding="utf-8")
    first = serve("s.yaml", "--trace", "t.csv").stdout.partition("Plan:")[0]
    assert "a user" not in first and "n/a" not in first and "first token after" in first
