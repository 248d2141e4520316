"""Traffic drawn from files, and traces read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from serving import server

from archsim.catalog import CatalogError, names, read_text, validate
from archsim.serving.measures import Measures
from archsim.serving.simulate import simulate
from archsim.workload.traces import load_trace
from archsim.workload.traffic import TrafficFile, draw, load_traffic

SHARED = Path(__file__).parent.parent.parent / "shared" / "traces"
traces = pytest.mark.skipif(not SHARED.is_dir(), reason="the traces lie beside the checkout where they are developed")
MOONCAKE = '{{"timestamp": {t}, "input_length": {n}, "output_length": 5, "hash_ids": {ids}}}\n'


def traffic(text: str) -> TrafficFile:
    return validate(TrafficFile, read_text(text, Path("traffic.yaml")))


def written(tmp_path: Path, text: str, name: str = "trace.csv") -> Path:
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize("name", sorted({*names("workloads/traffic")} - {"agents"}))
def test_shipped_traffic_has_the_means_it_says(name: str) -> None:
    file = load_traffic(name)
    drawn = draw(file, rate=10.0, count=20_000)
    assert file.sources
    assert drawn.input.mean() == pytest.approx(file.mean_input, rel=0.05)
    assert drawn.output.mean() == pytest.approx(file.mean_output, rel=0.1)
    if not drawn.clients:
        assert drawn.rate == pytest.approx(10.0, rel=0.05)


@pytest.mark.parametrize(
    ("arrivals", "variation"), [("poisson", 1.0), ("constant", 0.0), ("gamma, burstiness: 0.25", 2.0)]
)
def test_gaps_vary_as_their_process_does(arrivals: str, variation: float) -> None:
    gaps = np.diff(draw(traffic(f"{{input: 10, output: 5, rate: 4, arrivals: {arrivals}}}"), count=40_000).arrival)
    assert gaps.mean() == pytest.approx(0.25, rel=0.03)
    assert gaps.std() / gaps.mean() == pytest.approx(variation, rel=0.05, abs=1e-9)


@pytest.mark.parametrize(
    ("lengths", "mean", "least", "most"),
    [
        ("{distribution: uniform, low: 10, high: 30}", 20, 10, 30),
        ("{distribution: empirical, values: [1, 100], weights: [3, 1]}", 25.75, 1, 100),
        ("{distribution: fixed, mean: 7}", 7, 7, 7),
        ("{mean: 500, spread: 0.5, most: 900}", 480, 1, 900),
    ],
)
def test_lengths_are_spread_as_they_should(lengths: str, mean: float, least: int, most: int) -> None:
    found = draw(traffic(f"{{input: {lengths}, output: 5, rate: 1}}"), count=20_000).input
    assert found.mean() == pytest.approx(mean, rel=0.05)
    assert found.min() >= least and found.max() <= most


def test_a_rate_over_time_is_followed() -> None:
    file = traffic("{input: 1, output: 1, profile: [[0, 10], [50, 10], [51, 0], [100, 0]]}")
    times = draw(file, count=2000).arrival
    inside = times % 100
    assert (inside <= 51).all()
    assert np.diff(times[inside < 50][:400]).mean() == pytest.approx(0.1, rel=0.15)
    counts = [(draw(file, rate=rate, count=9000).arrival < 500).sum() for rate in (None, 2 * 505 / 100)]
    assert counts == pytest.approx([5 * 505, 5 * 1010], rel=0.05)


def test_rates_share_their_random_numbers() -> None:
    file = load_traffic("chat")
    slow, fast = (draw(file, rate=rate, count=100) for rate in (1.0, 4.0))
    assert np.array_equal(slow.input, fast.input) and np.allclose(slow.arrival, 4.0 * fast.arrival)
    assert not np.array_equal(slow.input, draw(file, count=100, seed=1).input)


def test_shared_prefixes_are_chains_and_short_ones_are_none() -> None:
    text = "{{input: 100, output: 5, rate: 1, shared: {{tokens: {tokens}, groups: 2}}}}"
    drawn = draw(traffic(text.format(tokens=64)), count=50)
    assert drawn.chains is not None and drawn.block == 16
    heads = {tuple(chain[:4]) for chain in drawn.chains}
    assert len(heads) == 2
    tails = [name for chain in drawn.chains for name in chain[4:]]
    assert len(tails) == len(set(tails)) and all(len(chain) == 164 // 16 for chain in drawn.chains)
    short = draw(traffic(text.format(tokens=15)), count=50)
    assert short.chains is not None
    every = [name for chain in short.chains for name in chain]
    assert len(every) == len(set(every)), "a prefix shorter than a block is shared by no block"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{input: 1, output: 1, arrivals: closed}", "a closed loop needs `clients`"),
        ("{input: {distribution: uniform, low: 5}, output: 1}", "uniform lengths need `high`"),
        ("{input: {distribution: uniform, low: 5, high: 4}, output: 1}", "low 5 is above high 4"),
        ("{input: {distribution: empirical, values: [1], weights: [1, 2]}, output: 1}", "2 weights for 1 values"),
        ("{input: 1, output: 1, profile: [[5, 1], [6, 1]]}", "a profile starts at second 0"),
        ("{input: 1, output: 1, arrivls: poisson}", "did you mean 'arrivals'?"),
        ("{input: 0, output: 1}", "expected a whole number of at least 1"),
    ],
)
def test_mistakes_are_faults_in_their_place(text: str, message: str) -> None:
    with pytest.raises(CatalogError) as caught:
        traffic(text)
    assert message in str(caught.value) and "traffic.yaml:1:" in str(caught.value)


def test_no_rate_is_said() -> None:
    with pytest.raises(ValueError, match="give `rate`"):
        draw(traffic("{input: 1, output: 1}"))


# Traces


def test_a_trace_row_with_too_many_blocks_is_refused_by_its_line(tmp_path: Path) -> None:
    text = MOONCAKE.format(t=0, n=600, ids=[1, 2]) + MOONCAKE.format(t=3, n=20, ids=[1, 2])
    path = written(tmp_path, text, "trace.jsonl")
    with pytest.raises(CatalogError, match=r"trace\.jsonl:2:1: 20 tokens have 1 blocks of 512 tokens, not 2"):
        load_trace(path)
    found = load_trace(path, skip_bad=True)
    assert len(found) == 1 and len(found.skipped) == 1 and found.chains is not None and list(found.chains[0]) == [1]


BAD_MOONCAKE: list[tuple[Any, str]] = [
    ("{", "not JSON"),
    ('{"timestamp": 1}', "missing 'input_length'"),
    (MOONCAKE.format(t=-1, n=5, ids=[]), "expected milliseconds"),
    (MOONCAKE.format(t=1, n=0, ids=[]), "input_length: expected a whole number"),
    (MOONCAKE.format(t=1, n='"x"', ids=[]), "input_length: expected a whole number"),
    (MOONCAKE.format(t=1, n=5, ids='["a"]'), "hash_ids: expected a list"),
    ("[1, 2]", "missing"),
]


@pytest.mark.parametrize(("row", "message"), BAD_MOONCAKE)
def test_malformed_json_rows_are_named(tmp_path: Path, row: str, message: str) -> None:
    path = written(tmp_path, MOONCAKE.format(t=0, n=5, ids=[1]) + row.strip() + "\n", "trace.jsonl")
    with pytest.raises(CatalogError) as caught:
        load_trace(path)
    assert "trace.jsonl:2:1: " in str(caught.value) and message in str(caught.value)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("soon,1,1", "expected a date"),
        ("2023-11-16 18:15:46.68,x,1", "contexttokens: expected a whole number"),
        ("2023-11-16 18:15:46.68,1", "expected 3 columns, got 2"),
        ("2023-11-16 18:15:46.68,-4,1", "expected a whole number of at least 1"),
    ],
)
def test_malformed_csv_rows_are_named(tmp_path: Path, row: str, message: str) -> None:
    good = "2023-11-16 18:15:46.6805900,374,44\n"
    path = written(tmp_path, f"TIMESTAMP,ContextTokens,GeneratedTokens\n{good}{row}\n{good}")
    with pytest.raises(CatalogError) as caught:
        load_trace(path)
    assert "trace.csv:3:1: " in str(caught.value) and message in str(caught.value)
    assert len(load_trace(path, skip_bad=True)) == 2


def test_plain_csv_is_read_and_sorted(tmp_path: Path) -> None:
    found = load_trace(written(tmp_path, "time,input,output\n7,3,4\n5.5,1,2\n"))
    assert found.arrival.tolist() == [0.0, 1.5] and found.input.tolist() == [1, 3] and found.chains is None


@pytest.mark.parametrize("text", ["", "a,b\n1,2\n", "\x00\x01"])
def test_other_files_are_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(CatalogError, match="known format"):
        load_trace(written(tmp_path, text))
    with pytest.raises(CatalogError):
        load_trace(tmp_path / "none.csv")


@traces
@pytest.mark.parametrize(
    ("name", "count", "inputs", "outputs", "span"),
    [
        ("azure2023_conv.csv", 19_366, 1155, 211.1, 3502),
        ("azure2023_code.csv", 8_819, 2048, 27.9, 3436),
        ("mooncake_conversation_trace.jsonl", 12_031, 12_035, 342.6, 3537),
        ("mooncake_synthetic_trace.jsonl", 3_993, 15_325, 149.1, 1022),
    ],
)
def test_public_traces_have_their_published_means(
    name: str, count: int, inputs: float, outputs: float, span: float
) -> None:
    found = load_trace(SHARED / name)
    assert len(found) == count
    assert found.input.mean() == pytest.approx(inputs, rel=1e-3)
    assert found.output.mean() == pytest.approx(outputs, rel=1e-3)
    assert found.span == pytest.approx(span, abs=1)


@traces
@pytest.mark.parametrize(
    ("name", "bound"), [("mooncake_conversation_trace.jsonl", 0.374), ("mooncake_synthetic_trace.jsonl", 0.651)]
)
def test_a_cache_that_never_forgets_comes_near_the_bound_of_a_trace(name: str, bound: float) -> None:
    """Below it, as a part of a block and a whole prompt's last block are no hits; one that forgets finds less."""
    asked = load_trace(SHARED / name).at_rate(0.01)  # so slow that every prompt is computed when the next one comes
    endless, small = (
        Measures(simulate(asked, server(units, block=512, tokens=10**6))).hit_rate for units in (10**9, 2000)
    )
    assert bound - 0.02 < endless <= bound
    assert 0 < small < endless
