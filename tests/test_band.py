"""The bands of an answer: what they rest on, which way they turn, and what widens them."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import archsim
from archsim.cli import app
from archsim.explore.band import ASSUMED, TIMES, assumed, band, basis, distance
from archsim.explore.result import METRICS
from archsim.explore.scenario import Scenario, scenario_of

EVERY = [name for name in METRICS if not name.startswith("memory")]


def scenario(chip: str = "nvidia/h100-sxm", **more: Any) -> Scenario:
    data = {"model": "meta/llama-3.1-8b", "pools": {"gpu": {"chip": chip, "count": 1}}, "batch": 8, "context": 2048}
    return scenario_of(data | more)


def test_distance_is_of_the_chip_as_it_is_here() -> None:
    """A chip whose runs were fitted, its sibling, another generation, and the first with another bandwidth."""
    assert distance(scenario()) == "fitted"
    assert distance(scenario("nvidia/h200-sxm")) == "sibling"
    assert distance(scenario("nvidia/a100-sxm-80gb")) == "other"
    faster = archsim.run(scenario(), over={"chip.memory.bandwidth": 5e12})
    assert distance(faster.scenario) == "sibling"
    assert distance(scenario(power_cap="500 W")) == "sibling"


@pytest.mark.parametrize("mode", ["step", "steady"])
def test_every_predicted_metric_has_a_band_about_its_value(mode: str) -> None:
    """Times and costs grow with the slower end, rates fall; memory is counted and has none."""
    asked = scenario(traffic={"input": 1024, "output": 256})
    result = archsim.run(asked, mode=mode, batch=[4, 8])
    for name in EVERY:
        ends = result.band(name)
        assert ends is not None, name
        assert np.all(ends[0] < result.metric(name)) and np.all(result.metric(name) < ends[1]), name
    for name in METRICS.keys() - EVERY:
        assert result.band(name) is None
    slow, fast = result.band("tpot"), result.band("interactivity")
    assert slow is not None and fast is not None
    assert np.allclose(slow[1] * fast[0], 1.0) and np.allclose(slow[0] * fast[1], 1.0)


def test_farther_chips_and_assumed_rates_have_wider_bands() -> None:
    """By the logarithm of the ends; assumed rates of the chip's own file widen by the factor that the sentence says."""

    def width(found: Scenario, name: str = "tpot") -> float:
        ends = band(found, name, "step")
        assert ends is not None
        return float(np.log(ends.high / ends.low))

    near, sibling, other = (
        width(scenario(chip)) for chip in ("nvidia/h100-sxm", "nvidia/h200-sxm", "nvidia/a100-sxm-80gb")
    )
    assert max(near, sibling) < other
    rubin = scenario("nvidia/rubin-vr200")
    assert "clock" in assumed(rubin) and not assumed(scenario())
    assert width(rubin) == pytest.approx(ASSUMED * other) and "clock" in basis(rubin)


def test_the_farthest_of_two_pools_decides() -> None:
    """Experts on a chip that nobody measured in serving leave nothing of the H100's narrow band."""
    pools = {"attention": {"chip": "nvidia/h100-sxm", "count": 8}, "ffn": {"chip": "nvidia/groq-3-lp30", "count": 1792}}
    two = {"model": "deepseek/deepseek-v3", "pools": pools, "mapper": "attention-ffn", "batch": 64, "context": 2048}
    assert distance(scenario_of(two)) == "other"


def test_what_a_chip_allows_has_no_band() -> None:
    """`ideal` is a limit; its file has no spread, and the answer says so."""
    ideal = scenario(runtime="ideal")
    assert all(band(ideal, name, "step") is None for name in TIMES)
    assert "No band" in basis(ideal)


def test_json_and_text_show_the_band() -> None:
    """Both ends at every point in JSON; in text beside the value."""
    runner = CliRunner()
    data = json.loads(runner.invoke(app, ["run", "llama-70b-on-h100", "--json", "-"]).stdout)
    for answer in data["answers"]:
        tpot = answer["metrics"]["tpot"]
        low, value, high = (
            np.array(item, float).ravel() for item in (tpot["band"]["low"], tpot["values"], tpot["band"]["high"])
        )
        assert np.all(low < value) and np.all(value < high) and tpot["band"]["share"] == 0.8
        assert "Bands hold 80 %" in answer["best"]["bands"]
    text = runner.invoke(app, ["run", "llama-70b-on-h100"]).stdout
    (line,) = [line for line in text.splitlines() if line.strip().startswith("TPOT")][:1]
    assert " to " in line and line.rstrip().endswith("ms)")
