"""Mistakes that new users make with serving and with explorations: exit code 2, all of them at once, no traceback."""

from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from archsim.cli import app

H100, BERTHA = "llama-70b-on-h100", "llama-70b-on-bertha"


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments))


def refused(*arguments: str) -> list[str]:
    """What is said about a mistake, line by line."""
    result = invoke(*arguments)
    assert result.exit_code == 2, result.output
    assert isinstance(result.exception, SystemExit) and "Traceback" not in result.output
    return result.stderr.strip().splitlines()


def test_all_faults_of_a_file_of_tiers_are_told_at_once(tmp_path: Path) -> None:
    place = tmp_path / "tiers.yaml"
    place.write_text(
        f"extends: {H100}\ntraffic: agents\nserving:\n  kv:\n    tiers:\n"
        "      - {medium: gpu, capacity: 1 TB}\n      - {medium: ssd, capacity: -30 TB, read: 3 s}\n"
        "      - {capacity: 5 GB}\n    eviction: {policy: retrn, linger: 3 GB}\n",
        encoding="utf-8",
    )
    lines = refused("serve", str(place))
    starts = [
        "6:18: expected 'cpu'",
        "7:33: expected a size",
        "7:47: expected a bandwidth",
        "8:9: missing key 'medium'",
    ]
    starts += ["9:24: expected 'lru'", "9:39: expected a time"]
    assert len(lines) == len(starts)
    assert all(line.startswith(f"{place}:{start}") for line, start in zip(lines, starts, strict=True))
    assert lines[4].endswith("did you mean 'return'?")


def test_all_faults_of_a_design_are_told_once_each(tmp_path: Path) -> None:
    place = tmp_path / "card.yaml"
    place.write_text(
        f"scenario: {BERTHA}\nparameters:\n  memory: [hbm3e]\n  units: [1, -2]\n  unit_capacity: [8 s]\n"
        "  peak: []\n  sram: [64 MB]\n  link: [64 GB/s]\nbudgets: {area: 858 W, powr: 250 W}\n",
        encoding="utf-8",
    )
    assert [line.removeprefix(f"{place}:") for line in refused("design", str(place))] == [
        "4:14: expected a whole number of at least 1, got -2",
        "5:19: expected a size such as '80 GB', got '8 s'",
        "6:9: expected at least 1 items, got an empty list",
        "9:17: expected an area such as '814 mm2', got '858 W'",
        "9:24: unknown key 'powr'; did you mean 'power'?",
    ]


@pytest.mark.parametrize("text", ["", "- a\n", "a: [\n", "\x00"])
@pytest.mark.parametrize("command", ["serve", "design", "size", "deployments", "sensitivity"])
def test_what_is_no_file_of_keys_is_refused_with_its_place(command: str, text: str, tmp_path: Path) -> None:
    place = tmp_path / "file.yaml"
    place.write_text(text, encoding="utf-8")
    more = ["--rate", "1"] if command == "size" else []
    (line,) = refused(command, str(place), *more)
    assert line.startswith(f"{place}:")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["breakeven", BERTHA, H100, "--vary", "batch=1..4", "--vary", "context=1..2"], "give --vary once"),
        (["sweep", H100, "--vary", "batch=1", "--csv", "-", "--json", "-"], "one of --csv - and --json -"),
        (["sweep", H100, "--vary", "chip.memory.bandwidth=0..8TB/s:3"], "takes values above 0"),
        (["serve", H100, "--traffic", "chat", "--clients", "2", "--rate", "3"], "--rate or --clients"),
        (["serve", H100, "--traffic", "chat", "--parquet", "missing/a.parquet"], "there is no folder 'missing'"),
        (["size", H100, "--rate", "inf"], "100000"),
    ],
)
def test_options_that_do_not_go_together_are_refused(arguments: list[str], says: str) -> None:
    assert says in " ".join(refused(*arguments))


def test_a_breakeven_of_what_fits_nowhere_is_an_answer_with_exit_code_1() -> None:
    result = invoke("breakeven", BERTHA, H100, "--mode", "step", "--vary", "batch=1000000..2000000")
    assert result.exit_code == 1 and "none is usable anywhere" in result.output and "(memory)" in result.output


def test_a_queue_that_grows_is_told(tmp_path: Path) -> None:
    place = tmp_path / "over.yaml"
    text = f"extends: {H100}\ntraffic: {{input: 1000, output: 100, rate: %s, requests: 200}}\n"
    for rate, behind in ((1000, True), (1, False)):
        place.write_text(text % rate, encoding="utf-8")
        assert ("come in faster than they are served" in invoke("serve", str(place)).stdout) == behind


def test_many_crossings_are_one_sentence() -> None:
    from types import SimpleNamespace
    from typing import Any

    import numpy as np

    from archsim.explore.breakeven import FIRST, SECOND, Crossing
    from archsim.explore.vary import Field
    from archsim.report.crossings import breakeven_lead

    places = np.arange(1.0, 7.0)
    crossings = [
        Crossing(at, at, at, *((FIRST, SECOND) if at % 2 else (SECOND, FIRST)), (1.0, 1.0), (1.0, 1.0), bool(at % 2))
        for at in places
    ]
    one, other = SimpleNamespace(name="one"), SimpleNamespace(name="other")
    found: Any = SimpleNamespace(
        field=Field("chip.memory.bandwidth", "bandwidth", "B/s"), values=places, varied="first", output="tpot",
        first=one, second=other, crossings=crossings, ratio=np.array([0.98, 1.01]), reasons=((), ()),
    )  # fmt: skip
    lines = breakeven_lead(found)
    assert len(lines) == 2 and lines[1].startswith(
        "They change places 6 times between memory bandwidth 1 B/s and 6 B/s"
    )
    assert "3 of them by a jump: below all, one is better; above all, one is better" in lines[1]
    assert lines[1].endswith("never further apart than 2 %.")
