"""DRAM: sustained bandwidth from timings, against a cycle-accurate simulator.

The oracle is Ramulator 2.1 (CMU-SAFARI/ramulator2 at c5b1c3a4, June 2026; open page, FR-FCFS, one channel, 400,000
requests): % of the peak of sequential reads with all-bank refresh, of equal reads and writes, and of reads of one
burst a row; and of scattered pages striped over bank groups.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from archsim.catalog import names
from archsim.chip.memory import (
    Timings,
    lines_of_rows,
    load_technology,
    pages,
    pages_in_one_bank,
    refresh,
    streaming,
    turnaround,
)
from archsim.chip.model import with_value
from archsim.cli import app

# name: (streaming reads, equal reads and writes, one burst a row)
SIMULATED = {
    "lpddr5-6400-8gb": (93.3, 70.3, 46.6),
    "lpddr5-6400": (91.4, 69.0, 45.7),
    "lpddr6-10667": (88.5, 66.2, 50.1),
    "hbm3-6400": (91.3, 59.0, 30.1),
    "hbm3-6400-16gb": (89.0, 57.4, 29.3),
    "hbm4-8000": (86.5, 54.9, 22.9),
    "hbm4-8000-16hi": (83.1, 53.7, 22.7),
    "gddr7-28000": (88.5, 75.7, 31.0),
}
PAGES = (256, 512, 1024, 2048, 4096, 8192, 16384)  # bytes in a channel, which is two pseudo-channels in HBM
SCATTERED = {
    "lpddr5-6400": (68, 82, 82, 86, 89, 90, 90),
    "lpddr6-10667": (61, 68, 75, 81, 85, 87, 87),
    "hbm3-6400": (30, 59, 86, 88, 86, 88, 86),
    "hbm4-8000": (46, 66, 72, 78, 81, 79, 81),
    "gddr7-28000": (86, 86, 84, 81, 81, 80, 81),
}
ALL = names("chips/memory")


def timings(name: str) -> Timings:
    return load_technology(name).timings


def share(values: object) -> float:
    return 100.0 * float(np.asarray(values).item())


@pytest.mark.parametrize("name", SIMULATED)
def test_streams_come_within_a_point_of_the_simulator(name: str) -> None:
    assert share(streaming(timings(name))) == pytest.approx(SIMULATED[name][0], abs=1.0)


def test_refresh_bank_by_bank_comes_within_a_point_where_the_simulator_reorders() -> None:
    assert share(streaming(timings("lpddr5-6400"), per_bank=True)) == pytest.approx(95.9, abs=1.0)
    assert share(streaming(timings("hbm3-6400"), per_bank=True)) == pytest.approx(73.7, abs=1.0)
    assert share(streaming(timings("hbm4-8000"), per_bank=True)) == pytest.approx(72.2, abs=1.0)


@pytest.mark.parametrize("name", SIMULATED)
def test_random_reads_come_within_a_point(name: str) -> None:
    assert share(lines_of_rows(timings(name))) == pytest.approx(SIMULATED[name][2], abs=1.0)


@pytest.mark.parametrize("name", SIMULATED)
def test_mixes_of_reads_and_writes_come_within_three_points(name: str) -> None:
    assert share(streaming(timings(name), 0.5)) == pytest.approx(SIMULATED[name][1], abs=3.0)


@pytest.mark.parametrize("name", SCATTERED)
def test_scattered_pages_come_within_seven_points(name: str) -> None:
    t = timings(name)
    found = 100.0 * pages(t, np.array(PAGES) / t.pseudo)
    assert found == pytest.approx(np.array(SCATTERED[name]), abs=7.0)


def test_scattered_pages_are_two_points_off_on_average() -> None:
    off = [100.0 * pages(t, np.array(PAGES) / t.pseudo) - of for n, of in SCATTERED.items() for t in (timings(n),)]
    assert np.abs(np.array(off)).mean() < 2.0


def test_the_burst_follows_from_rate_and_width() -> None:
    assert timings("lpddr5x-8533").burst_time.item() == pytest.approx(32 / (8.533e9 * 2), rel=1e-3)
    assert timings("lpddr5x-9600").burst_time.item() == pytest.approx(32 / (9.6e9 * 2), rel=1e-3)


# Closed forms and counterfactuals


@pytest.mark.parametrize("name", ALL)
def test_without_refresh_a_stream_of_reads_loses_nothing(name: str) -> None:
    t = with_value(timings(name), ("refresh_interval",), np.array([1e9]))
    assert streaming(t) == pytest.approx(1.0, abs=1e-6)
    assert np.all(turnaround(t, 1.0) == pytest.approx(1.0, abs=1e-6)) and np.all(turnaround(t, 0.0) == 1.0)


@pytest.mark.parametrize("name", ALL)
def test_long_runs_of_a_row_are_streams_and_one_line_is_the_worst(name: str) -> None:
    t = timings(name)
    lines = np.array([1.0, 2.0, 4.0, 16.0, 64.0])
    found = lines_of_rows(t, lines)
    assert np.all(np.diff(found) >= 0) and found[-1] == pytest.approx(streaming(t), rel=1e-6)


@pytest.mark.parametrize("name", ALL)
def test_a_page_in_one_bank_is_never_faster_than_one_striped_over_groups(name: str) -> None:
    t, sizes = timings(name), np.geomspace(32, 65536, 40)
    assert np.all(pages_in_one_bank(t, sizes) <= pages(t, sizes) + 1e-12)


def test_interleaving_a_page_over_channels_shortens_its_runs() -> None:
    t = timings("lpddr5x-8533")
    assert share(pages(t, 4096, 16)) == share(pages(t, 256)) < 60.0 < share(pages(t, 4096))


@given(st.sampled_from(ALL), st.floats(0.0, 1.0), st.floats(32.0, 1e6), st.integers(1, 64))
def test_shares_are_shares_and_arrays_equal_points(name: str, reads: float, size: float, channels: int) -> None:
    t = timings(name)
    for found in (streaming(t, reads), pages(t, size, channels), pages_in_one_bank(t, size, channels), refresh(t)):
        assert 0.0 < found.item() <= 1.0
    grid = pages(t, np.array([size, 64.0])[:, None], np.array([1.0, float(channels)]))
    assert grid.shape == (2, 2) and grid[0, 1] == pages(t, size, channels).item()
    swept = with_value(t, ("rc",), np.array([40e-9, 60e-9]))
    assert pages(swept, size).shape == (2,) and np.all(np.diff(pages(swept, size)) <= 1e-12)


@given(st.sampled_from(ALL), st.sampled_from(["rcd", "rp", "rc", "faw", "rrd", "refresh_all", "write_to_read"]))
def test_slower_timings_never_help(name: str, timing: str) -> None:
    t = timings(name)
    slower = with_value(t, (timing,), getattr(t, timing) * 1.5 + 1e-9)
    sizes = np.array([64.0, 1024.0, 16384.0])
    for found in (lambda x: pages(x, sizes), lambda x: streaming(x, 0.7), lines_of_rows):
        assert np.all(found(slower) <= found(t) + 1e-12)


def test_a_technology_has_one_typical_file() -> None:
    typical = [load_technology(name).technology for name in ALL if load_technology(name).typical]
    assert len(typical) == len(set(typical)) and {
        "LPDDR5X",
        "LPDDR6",
        "HBM3",
        "HBM3e",
        "HBM4",
        "GDDR6",
        "GDDR7",
    } <= set(typical)


def test_the_command_shows_what_a_memory_sustains_and_checks_its_file() -> None:
    shown = CliRunner().invoke(app, ["chips", "show", "nvidia/dgx-spark-gb10"]).output
    assert "scattered pages" in shown and "typical of LPDDR5X" in shown
    checked = CliRunner().invoke(app, ["chips", "check", "hbm4-8000"])
    assert checked.exit_code == 0 and "ok" in checked.output
