"""Two pools that share a model: the laws of the pipeline between them, placement, memory, money and refusals."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from archsim.arrays import Array, array
from archsim.engine.cost import Cost
from archsim.engine.lanes import Schedule, Timed, run

TIGHT = 1e-9
LAYERS = 61
seconds = st.floats(min_value=0.0, max_value=1000.0).map(lambda value: round(value, 3))
micro = st.integers(min_value=1, max_value=4)


def timed(
    name: str, duration: object, after: tuple[int, ...], batch: int, pinned: bool = False, wait: Array | None = None
) -> Timed:
    length = array(duration)
    more = {} if wait is None else {"wait": wait}
    return Timed(name, name, Cost(length, {"compute": length}), after, batch=batch, pinned=pinned, **more)


def layer(ta: object, tf: object, tc: object, m: int, pinned: bool = False, wait: Array | None = None) -> list[Timed]:
    """One layer: attention, there, feed-forward, back, of every micro-batch in turn."""
    stages = [("compute", ta, False), ("to_ffn", tc, pinned), ("ffn", tf, pinned), ("from_ffn", tc, pinned)]
    return [
        timed(lane, time, (place * m - m + batch,) if place else (), batch, own, wait if lane == "ffn" else None)
        for place, (lane, time, own) in enumerate(stages)
        for batch in range(m)
    ]


def played(ta: object, tf: object, tc: object, m: int, pinned: bool = False, wait: Array | None = None) -> Schedule:
    tasks = layer(ta, tf, tc, m, pinned, wait)
    return run({"layer": tasks}, [("layer", LAYERS)], array(0.0), {})


@given(seconds, seconds, seconds, micro)
def test_the_period_of_an_unpinned_pool(ta: float, tf: float, tc: float, m: int) -> None:
    found = played(ta, tf, tc, m)
    law = max(m * ta, m * tf, m * tc, ta + tf + 2 * tc)
    assert found.period["layer"] == pytest.approx(law, rel=TIGHT, abs=1e-9)


@given(seconds, seconds, seconds, st.integers(min_value=1, max_value=2))
def test_the_period_of_a_pool_pinned_by_layer(ta: float, tf: float, tc: float, m: int) -> None:
    found = played(ta, tf, tc, m, pinned=True)
    law = max(ta + (m - 1) * max(ta, tf, tc), ta + tf + 2 * tc)
    assert found.period["layer"] == pytest.approx(law, rel=TIGHT, abs=1e-9)


@given(seconds, seconds, seconds, micro, st.booleans())
def test_parts_and_gaps_of_every_lane_sum_to_the_span(ta: float, tf: float, tc: float, m: int, pinned: bool) -> None:
    found = played(ta, tf, tc, m, pinned)
    for lane in found.lanes.values():
        whole = sum(lane.parts.values(), array(0.0)) + sum(lane.gaps.values(), array(0.0))
        assert whole == pytest.approx(found.span, rel=TIGHT, abs=1e-6)
        assert all((gap >= -1e-6).all() for gap in lane.gaps.values())
