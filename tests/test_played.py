"""Serving runs played request by request: what is sent, padding, and figures that beat the closed form."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from serving import machine, server

from archsim.validation import played
from archsim.validation.rows import Run, carried, read

MEASURED = Path(__file__).parent.parent.parent / "shared" / "measurements"


def runs() -> list[Run]:
    return [run for run in read(carried()) if run.burst]


def test_a_harness_sends_ten_prompts_a_client_of_spread_lengths() -> None:
    run = next(run for run in runs() if run.clients >= 8)
    asked = played.sent(run)
    assert len(asked) == 10 * asked.clients == 10 * run.clients
    assert asked.input.min() >= round(0.8 * run.input) and asked.input.max() <= run.input
    assert asked.input.mean() == pytest.approx(0.9 * run.input, rel=0.05)
    assert np.array_equal(asked.output, played.sent(run).output)


def test_a_batch_without_a_graph_of_its_own_takes_the_next() -> None:
    plain = server(surface=machine())
    padded = played._padded(plain, 1).surface.fixed
    assert [padded[batch] for batch in (1, 3, 5, 32, 33)] == pytest.approx(
        [plain.surface.fixed[batch] for batch in (1, 4, 8, 32, 64)]
    )
    assert played._padded(plain, 4).surface.fixed[5] == pytest.approx(plain.surface.fixed[8])


def test_a_played_run_is_near_what_was_measured() -> None:
    found = {run.id: played.play(run) for run in runs() if run.stack == "vllm" and run.sound("ttft")}
    off = [abs(found[run.id][1] / run.tpot - 1.0) for run in runs() if run.id in found]
    assert len(off) >= 3 and np.median(off) < 0.15


@pytest.mark.skipif(not MEASURED.is_dir(), reason="the published tables are not here")
def test_dense_models_saturate_as_published(tmp_path: Path) -> None:
    lines = played.published.lines_of(MEASURED / played.TABLE)
    chosen = [
        line
        for line in lines
        if (line["model"], line["gpu"], line["osl"]) == ("Llama-3.3-70B", "H100", "2000") and line["isl"] != "20000"
    ]
    off = [played.saturated(line) / float(line["output_tps_total"]) - 1.0 for line in chosen]
    assert len(off) == 2 and np.abs(off).max() < 0.12
