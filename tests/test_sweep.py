"""Axes, rows and files of sweeps."""

import csv
import json
from math import prod
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

import archsim
from archsim.cli import app
from archsim.explore.rows import blocks
from archsim.explore.running import tabled
from archsim.explore.scenario import Scenario
from archsim.explore.specify import specify
from archsim.explore.structure import built, origin_of
from archsim.explore.sweep import Sweep
from archsim.explore.vary import Axis, VaryError, read_axes, read_axis

KEYS = {
    "model": "meta/llama-3.1-8b",
    "pools": {"gpu": {"chip": "nvidia/h100-sxm", "count": 2}},
    "batch": 8,
    "context": 2048,
    "traffic": {"input": 500, "output": 100},
}
COLUMNS = ("tpot", "cost_per_token", "memory_needed")


def small(**keys: object) -> Scenario:
    return archsim.scenario(**{**KEYS, **keys})


def axis(text: str, scenario: Scenario | None = None) -> Axis:
    return read_axis(text, scenario or small())


def numbers(text: str) -> list[float]:
    found = axis(text).numbers
    assert found is not None
    return found.tolist()


# What --vary takes


@pytest.mark.parametrize(
    ("text", "name", "expected"),
    [
        ("batch=1,8,64", "batch", [1, 8, 64]),
        ("batch=1..4", "batch", [1, 2, 3, 4]),
        ("batch=1..3,8", "batch", [1, 2, 3, 8]),
        ("batch=1..1024:11log", "batch", [2.0**i for i in range(11)]),
        ("batch=1..4:50", "batch", [1, 2, 3, 4]),
        ("chip.memory.bandwidth=2..8TB/s:4", "chip.memory.bandwidth", [2e12, 4e12, 6e12, 8e12]),
        ("chip.memory.bandwidth=500GB/s..2TB/s:4", "chip.memory.bandwidth", [0.5e12, 1e12, 1.5e12, 2e12]),
        ("chip.memory.bandwidth=1,2,4 TB/s", "chip.memory.bandwidth", [1e12, 2e12, 4e12]),
        ("chip.memory.bandwidth=1,2 GB/s,4 TB/s", "chip.memory.bandwidth", [1e9, 2e9, 4e12]),
        ("chip.memory.bandwidth=1x,2x", "chip.memory.bandwidth", [3.35e12, 6.7e12]),
        ("pools.gpu.chip.clock=1,2GHz", "chip.clock", [1e9, 2e9]),
        ("chip.sram.per_core=256KiB", "chip.sram", [256 * 1024]),
        ("economics.rent=1..3USD/h:3", "economics.rent", [1, 2, 3]),
        ("economics.electricity=0.08 USD/kWh", "economics.electricity", [0.08]),
        ("slo.tpot=10..50ms:3", "slo.tpot", [0.01, 0.03, 0.05]),
        ("skew=0,0.5", "skew", [0, 0.5]),
        ("routing.skew=0,0.5", "skew", [0, 0.5]),
        ("traffic.input=100,200", "input", [100, 200]),
    ],
)
def test_values_are_read_in_si(text: str, name: str, expected: list[float]) -> None:
    found = axis(text)
    assert found.name == name and not found.structure
    assert numbers(text) == pytest.approx(expected, rel=1e-15)


def test_a_range_of_quantities_has_eleven_values_unless_it_says_how_many() -> None:
    assert len(axis("chip.memory.bandwidth=2..8TB/s")) == 11


@pytest.mark.parametrize(
    ("text", "changes"),
    [
        ("chip=nvidia/h100-sxm,h200-sxm", [{"pools.gpu.chip": "nvidia/h100-sxm"}, {"pools.gpu.chip": "h200-sxm"}]),
        ("precision.kv=bf16,fp8", [{"precision.kv": "bf16"}, {"precision.kv": "fp8"}]),
        ("runtime.prefill.chunk=2048,4096", [{"runtime.prefill.chunk": 2048}, {"runtime.prefill.chunk": 4096}]),
        ("runtime.host.step=1..3us:2", [{"runtime.host.step": "1 us"}, {"runtime.host.step": "3 us"}]),
        ("speculation.drafts=0..2", [{"speculation.drafts": n} for n in range(3)]),
        ("placement.sequence_parallel=true", [{"placement.sequence_parallel": True}]),
        (
            "mapper.degrees.tensor=[1, 2],{one_of: [1, 2]}",
            [{"mapper.degrees.tensor": [1, 2]}, {"mapper.degrees.tensor": {"one_of": [1, 2]}}],
        ),
    ],
)
def test_what_has_to_be_built_is_read_as_files_say_it(text: str, changes: list[dict[str, object]]) -> None:
    found = axis(text)
    assert found.structure and [dict(setting.changes) for setting in found.settings] == changes


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("btch=1", "did you mean 'batch'?"),
        ("prcision.kv=fp8", "did you mean 'precision'"),
        ("pools.gpus.count=1", "did you mean 'gpu'?"),
        ("batch", "expected FIELD=VALUES"),
        ("batch=", "expected FIELD=VALUES"),
        ("batch=1,,2", "a value is missing"),
        ("batch=4..1", "runs backwards"),
        ("batch=1.5", "whole numbers from 1"),
        ("batch=0", "whole numbers from 1"),
        ("batch=1..2:0", "a range has 1 to"),
        ("batch=1..x", "expected a range such as"),
        ("batch=8 TB/s", "has no unit"),
        ("chip.memory.bandwidth=2", "a number without a unit"),
        ("chip.memory.bandwidth=2 GB", "expected a bandwidth"),
        ("chip.memory.bandwidth=0..1TB/s:3log", "starts above 0"),
        ("economics.utilization=2", "from 0.001 to 1"),
        ("chip.links.scale_up.latency=1x,foo", "expected a time"),
    ],
)
def test_mistakes_say_what_was_expected(text: str, message: str) -> None:
    with pytest.raises(VaryError) as refused:
        axis(text)
    assert message in str(refused.value) and f"--vary {text}" in str(refused.value)


def test_all_mistakes_come_at_once_and_no_field_is_varied_twice() -> None:
    with pytest.raises(VaryError) as refused:
        read_axes(["btch=1", "chip.clok=1 GHz,", "batch=1", "batch=2"], small())
    assert len(str(refused.value).splitlines()) == 3 and "'batch' is varied twice" in str(refused.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("chip.memory.bandwith=1 TB/s", "unknown key 'bandwith'; did you mean 'bandwidth'?"),
        ("chip=nvidia/h10", "unknown chip 'nvidia/h10'; did you mean"),
        ("model=meta/llama-3.1-7b", "unknown workload 'meta/llama-3.1-7b'; did you mean"),
        ("precision.kb=fp8", "got 'kb'"),
        ("precision.kv=fp9", "unknown format 'fp9'"),
        ("mapper.degrees.tensr=1", "unknown degree 'tensr'"),
        ("chip.links.scale_up.domain=0", "whole number of at least 1"),
    ],
)
def test_settings_are_tried_before_anything_runs(text: str, message: str) -> None:
    with pytest.raises(VaryError) as refused:
        specify([small()], [text])
    assert message in str(refused.value) and "--vary " in str(refused.value)


def test_two_pools_need_their_names() -> None:
    pair = archsim.load("deepseek-v3-on-rubin-and-lpx")
    with pytest.raises(VaryError, match=r"pools\.attention\.chip\.clock or pools\.ffn\.chip\.clock"):
        axis("chip.clock=1 GHz", pair)
    assert axis("pools.ffn.chip.memory.bandwidth=2x", pair).name == "pools.ffn.chip.memory.bandwidth"
    assert axis("links.latency=1us", pair).unit == "s"


# Scenarios with some of their data changed


@pytest.mark.parametrize(
    ("changes", "seen"),
    [
        ({"model.architecture.num_hidden_layers": 16}, lambda s: s.model.layers == 16),
        ({"pools.gpu.chip.links.scale_up.domain": 1}, lambda s: s.chip.links["scale_up"].domain == 1),
        ({"runtime.prefill.chunk": 1024}, lambda s: s.runtime.chunk == 1024),
        ({"traffic.output": 7}, lambda s: float(s.output[0]) == 7),
        ({"precision.kv": "fp8"}, lambda s: s.precision.of("kv").name == "fp8" if hasattr(s.precision, "of") else True),
        ({"pools.gpu.count": 4}, lambda s: s.split.chips.tolist() == [4.0] * s.split.chips.size),
    ],
)
def test_any_file_that_a_scenario_names_can_be_changed(changes: dict[str, object], seen: object) -> None:
    assert callable(seen) and seen(built(origin_of(small()), changes))


def test_a_named_traffic_file_can_be_changed_too() -> None:
    scenario = small(traffic="chat")
    changed = built(origin_of(scenario), {"traffic.output": 9})
    assert changed.output is not None and float(changed.output[0]) == 9
    assert changed.input is not None and scenario.input is not None
    assert float(changed.input[0]) == float(scenario.input[0])


# Rows


def test_rows_are_what_run_says_point_by_point() -> None:
    spec = specify([small()], ["batch=1,8", "precision.kv=bf16,fp8", "chip.memory.bandwidth=2,4TB/s"])
    table = tabled(spec)
    assert len(table) == 8 and spec.names[:4] == ["batch", "precision.kv", "chip.memory.bandwidth", "context"]
    for row in range(8):
        alone = small(precision={"kv": str(table["precision.kv"][row])})
        over = {name: float(table[name][row]) for name in ("batch", "chip.memory.bandwidth")}
        found = archsim.run(alone, mode="step", over=over)
        for name in ("tpot", "ttft", "cost_per_token", "memory_needed", "energy_per_token"):
            assert table[name][row] == pytest.approx(float(found.metric(name).ravel()[0]), rel=1e-12), name
    order = list(zip(table["precision.kv"], table["batch"], table["chip.memory.bandwidth"], strict=True))
    assert order == [(kv, b, w) for kv in ("bf16", "fp8") for b in (1, 8) for w in (2e12, 4e12)]


def test_the_steady_answer_of_a_row_is_that_of_its_best_number_of_clients() -> None:
    table = archsim.sweep(small(), {"chip.memory.bandwidth": [2e12, 4e12]}, mode="steady", columns=["batch", *COLUMNS])
    for row, bandwidth in enumerate((2e12, 4e12)):
        alone = archsim.run(small(), mode="steady", over={"chip.memory.bandwidth": bandwidth})
        best = alone.best()
        assert best is not None
        assert table["batch"][row] == alone.point(best)["batch"]
        assert table["cost_per_token"][row] == pytest.approx(float(alone.metric("cost_per_token").ravel()[best]))


def test_zipped_axes_go_together_and_several_scenarios_one_after_another() -> None:
    zipped = tabled(specify([small()], ["batch=1,2,3", "context=10,20,30"], zips=[["batch", "context"]]))
    assert zipped["batch"].tolist() == [1, 2, 3] and zipped["context"].tolist() == [10, 20, 30]
    both = archsim.sweep([small(name="a"), small(name="b", batch=[1, 2])], {"chip.clock": [1e9, 2e9]}, columns=["tpot"])
    assert both["scenario"].tolist() == ["a"] * 2 + ["b"] * 4
    mixed = tabled(specify([small()], ["chip=h100-sxm,h200-sxm", "batch=4,8"], zips=[["all"]]))
    assert mixed["chip"].tolist() == ["h100-sxm", "h200-sxm"] and mixed["batch"].tolist() == [4, 8]
    with pytest.raises(ValueError, match="equally many"):
        specify([small()], ["batch=1,2", "context=10"], zips=[["batch", "context"]])
    with pytest.raises(ValueError, match="'clock' is not varied"):
        specify([small()], ["batch=1,2"], zips=[["batch", "clock"]])


def test_named_overrides_are_an_axis_of_their_own() -> None:
    names = {"old": {"chip": "nvidia/h100-sxm"}, "new": {"chip": "nvidia/h200-sxm", "precision.kv": "fp8", "chips": 1}}
    table = archsim.sweep(small(), {"batch": [1, 8]}, overrides=names)
    assert table["override"].tolist() == ["old", "old", "new", "new"]
    assert table["chips"].tolist() == [2, 2, 1, 1]


def test_a_mapper_proposes_anew_for_every_number_of_chips() -> None:
    table = archsim.sweep(small(), {"chips": [1, 2, 4]}, columns=["tpot", "chips", "split.tensor"])
    assert table["feasible"].all() and table["chips"].tolist() == [1, 2, 4]


def test_what_cannot_be_is_a_row_with_its_reason_and_counted() -> None:
    texts = ["model=meta/llama-3.1-8b,meta/llama-3.1-70b", "chip=h100-sxm,bertha-500-192gb", "chips=1,3"]
    table = tabled(specify([small()], texts))
    assert table.summary.rows == 8 and table.summary.feasible == int(table["feasible"].sum()) == 3
    assert sum(table.summary.reasons.values()) == 5
    assert "memory" in table.summary.reasons and any("stack" in reason for reason in table.summary.reasons)
    for feasible, reason, tpot in zip(table["feasible"], table["reason"], table["tpot"], strict=True):
        assert feasible == (reason == "") == bool(np.isfinite(tpot))


def test_prices_and_terms_are_axes() -> None:
    prices = {"input": "1 USD/Mtok", "output": "2 USD/Mtok"}
    table = archsim.sweep(small(prices=prices), {"economics.rent": [1, 2], "prices.output": [1, 2]}, columns=["margin"])
    cost, price = np.array([1, 1, 2, 2]), np.array([1, 2, 1, 2])
    share = (1 - table["margin"]) * price / cost
    assert share == pytest.approx(np.full(4, share[0]))


@given(st.lists(st.integers(1, 9), min_size=0, max_size=4), st.integers(1, 50))
def test_blocks_cover_a_grid_once_and_in_order(shape: list[int], limit: int) -> None:
    index = np.arange(prod(shape)).reshape(shape)
    found = [index[tuple(slice(*ends) for ends in bounds)].ravel() for bounds in blocks(tuple(shape), limit)]
    assert np.concatenate(found).tolist() == list(range(prod(shape)))
    assert all(part.size <= limit for part in found)


def chunks_of(spec: Sweep) -> list[int]:
    return [spec.chunk(number).rows for number in range(spec.chunks)]


def test_chunks_are_bounded_and_cover_all_rows() -> None:
    spec = specify([small()], ["batch=1..1000", "context=1..1000", "precision.kv=bf16,fp8"])
    assert sum(chunks_of(spec)) == spec.rows == 2_000_000 and max(chunks_of(spec)) <= 1 << 18
    starts = [spec.chunk(number).start for number in range(spec.chunks)]
    assert starts == np.cumsum([0, *chunks_of(spec)])[:-1].tolist()
    many = specify([small()], ["chips=1..100", "batch=1..10"])
    assert sum(chunks_of(many)) == many.rows == 1000 and many.chunks == 13


# Files


def test_files_have_the_rows_of_the_table(tmp_path: Path) -> None:
    places = {"csv": tmp_path / "rows.csv", "json": tmp_path / "rows.json"}
    table = archsim.sweep(small(), {"batch": [1, 10**6], "chip.clock": [1e9, 2e9]}, columns=COLUMNS, **places)
    with places["csv"].open(encoding="utf-8", newline="") as file:
        head, *rows = csv.reader(file)
    assert head[:4] == ["batch", "chip.clock [Hz]", "context", "tpot [s]"] and len(rows) == 4
    data = json.loads(places["json"].read_text())
    assert data["units"]["cost_per_token"] == "USD/Mtok" and table.units["tpot"] == "s"
    tpot = head.index("tpot [s]")
    for row, item, value in zip(rows, data["rows"], table["tpot"], strict=True):
        assert (
            (float(row[tpot]) == item["tpot"] == value)
            if np.isfinite(value)
            else row[tpot] == "" == (item["tpot"] or "")
        )
    assert rows[-1][head.index("reason")] == data["rows"][-1]["reason"] == "memory"
    assert not list(tmp_path.glob(".*"))


def test_parquet_has_units_and_nulls(tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    place = tmp_path / "rows.parquet"
    table = archsim.sweep(small(), {"batch": [1, 10**6], "precision.kv": ["bf16", "fp8"]}, parquet=place)
    found = parquet.read_table(place)
    assert found.schema.field("tpot").metadata == {b"unit": b"s"}
    assert found.column("tpot").null_count == 2 and found.column("reason").to_pylist() == table["reason"].tolist()


def test_pandas_where_it_is_installed() -> None:
    pytest.importorskip("pandas")
    frame = archsim.sweep(small(), {"batch": [1, 2]}, columns=COLUMNS).to_pandas()
    assert frame["batch"].tolist() == [1, 2] and frame.attrs["units"]["tpot"] == "s"


def test_served_rows_are_simulations() -> None:
    asked = {"requests": 50}
    table = archsim.sweep(small(), {"rate": [2.0, 20.0], "seed": [0, 1]}, zipped=["rate", "seed"], served=asked)
    for row in range(2):
        alone = archsim.serve(small(), rate=float(table["rate"][row]), seed=int(table["seed"][row]), requests=50)
        assert table["ttft_p90"][row] == alone.measures.latency("ttft")["p90"]
        assert table["output_rate"][row] == alone.measures.output_rate
    assert table["finished"].tolist() == [50] * 2


# The command


def invoke(*arguments: str) -> tuple[int, str, str]:
    done = CliRunner().invoke(app, ["sweep", *arguments])
    return done.exit_code, done.stdout, done.stderr


def test_the_command_prints_counts_reasons_and_the_best(tmp_path: Path) -> None:
    place = tmp_path / "rows.csv"
    code, out, _ = invoke("llama-70b-on-h100", "--vary", "batch=1,8,100000", "--vary", "chips=8", "--csv", str(place))
    assert code == 0 and "3 points (step): 2 feasible" in out and "memory" in out and str(place) in out
    assert len(place.read_text().splitlines()) == 4
    assert sorted(path.name for path in tmp_path.iterdir()) == ["rows.csv"]


def test_best_rows_keep_the_slo_first_and_then_the_objective() -> None:
    scenario = small(slo={"tpot": "8 ms"}, objective={"maximize": "throughput"})
    table = archsim.sweep(scenario, {"batch": [1, 8, 64, 512], "precision.kv": ["bf16", "fp8"]}, columns=["throughput"])
    order = sorted(range(8), key=lambda i: (not table["meets_slo"][i], -table["throughput"][i], i))
    assert [row["throughput"] for row in table.summary.best] == [table["throughput"][i] for i in order]
    assert 0 < table.summary.kept < 8
    other = archsim.sweep(scenario, {"batch": [1, 8, 64]}, columns=["tpot"])
    assert other.summary.best[0]["tpot"] == float(other["tpot"][other["meets_slo"]].min())


def test_the_best_of_many_chunks_are_those_of_one(monkeypatch: pytest.MonkeyPatch) -> None:
    vary = {"chips": [1, 2, 4, 8, 16], "batch": range(1, 40)}
    whole = archsim.sweep(small(), vary, columns=["tpot", "cost_per_token"])
    monkeypatch.setattr("archsim.explore.sweep.TOGETHER", 1)
    parts = archsim.sweep(small(), vary, columns=["tpot", "cost_per_token"])
    assert whole.summary == parts.summary and len(whole.summary.best) == 10


def test_the_command_writes_rows_to_the_output() -> None:
    code, out, _ = invoke("llama-70b-on-h100", "--vary", "batch=1,8", "--columns", "tpot", "--csv", "-")
    assert code == 0 and out.splitlines()[0] == "batch,context,tpot [s],feasible,meets_slo,reason"
    assert len(out.splitlines()) == 3


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "nothing is varied"),
        (("--vary", "btch=1"), "did you mean 'batch'?"),
        (("--vary", "batch=1", "--columns", "tpott"), "did you mean 'tpot'?"),
        (("--vary", "batch=1", "--mode", "both"), "one answer"),
        (("--vary", "input=100"), "the step answer does not depend on it; vary `batch` and `context`"),
        (("--vary", "context=100", "--mode", "steady"), "the steady answer does not depend on it"),
        (("--vary", "batch=1", "--requests", "5"), "--requests needs --serve"),
        (("--vary", "batch=1", "--resume"), "--resume needs --journal"),
        (("--vary", "batch=1", "--zip", "batch,clock"), "'clock' is not varied"),
        (("--vary", "batch=1", "--csv", "/no/such/folder/rows.csv"), "there is no folder"),
        (("--override", "a: b"), "expected NAME: {FIELD: VALUE, ...}"),
    ],
)
def test_mistakes_end_with_exit_code_2(arguments: tuple[str, ...], message: str) -> None:
    code, _, err = invoke("llama-70b-on-h100", *arguments)
    assert code == 2 and message in err and "Traceback" not in err


def test_nothing_feasible_is_exit_code_1() -> None:
    code, out, _ = invoke("llama-70b-on-h100", "--vary", "batch=1000000", "--vary", "context=131072")
    assert code == 1 and "0 feasible" in out
