"""Lanes: the recurrence against a simulation that plays every task of every layer, one by one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scenarios import DEEPSEEK, GPT_OSS, LLAMA_70B, collective, deployment, one, runtime, same_bits

from archsim.arrays import Array, array
from archsim.engine.cost import Cost
from archsim.engine.lanes import GAPS, Schedule, Timed, run
from archsim.engine.step import PricedStep, run_step
from archsim.mapping.interleave import interleaved
from archsim.mapping.options import Options
from archsim.mapping.place import Deployment, place
from archsim.mapping.plan import Task
from archsim.mapping.split import split
from archsim.workload.step import Step, decode, prefill

TIGHT = 1e-9
LANES = ("compute", "link", "copy")
seconds = st.integers(min_value=0, max_value=1000).map(float)  # whole, so that sums are exact
Blocks = dict[str, list[Timed]]
Sequence_ = list[tuple[str, int]]


def timed(lane: str, duration: object, after: Sequence[int] = (), batch: int = 0, part: str = "compute") -> Timed:
    length = array(duration)
    return Timed("task", lane, Cost(length, {part: length}), tuple(after), batch=batch)


# The simulation: every layer, every task, plain numbers


@dataclass
class Played:
    """When everything ended, how long each lane worked, and when each layer of each block ended."""

    span: float
    busy: dict[str, float]
    ends: list[float]


def play(blocks: Blocks, sequence: Sequence_, host: float, launch: dict[str, float] | None = None) -> Played:
    """A task starts when its lane is free, what it waits for is done, and its launch is in.

    What waits for nothing in its block waits for all of its micro-batch in the block before.
    """
    free, busy, ends = {"host": host}, {"host": host}, []
    done_before: dict[int, float] = {}
    for block, count in sequence:
        for _ in range(count):
            if launch:
                free["host"] += launch[block]
                busy["host"] += launch[block]
            done: list[float] = []
            for task in blocks[block]:
                waits = [done[index] for index in task.after] or [done_before.get(task.batch, host)]
                start = max(*waits, free.get(task.lane, 0.0), free["host"] if launch else host)
                done.append(start + one(task.cost.seconds))
                free[task.lane] = done[-1]
                busy[task.lane] = busy.get(task.lane, 0.0) + one(task.cost.seconds)
            batches = {task.batch for task in blocks[block]}
            done_before |= {
                b: max(end for end, task in zip(done, blocks[block], strict=True) if task.batch == b) for b in batches
            }
            ends.append(max(done))
    return Played(max(free.values()), busy, ends)


# Random plans: as placement makes them, every block ends in one task that all others lead to


@st.composite
def tasks(draw: st.DrawFn) -> list[Timed]:
    """A block whose tasks wait for some earlier ones, its last for all that are left."""
    found: list[Timed] = []
    for _ in range(draw(st.integers(0, 6))):
        after = draw(st.lists(st.sampled_from(range(len(found))), unique=True, max_size=3)) if found else []
        found.append(timed(draw(st.sampled_from(LANES)), draw(seconds), sorted(after)))
    waited_for = {index for task in found for index in task.after}
    left = [index for index in range(len(found)) if index not in waited_for]
    return [*found, timed(draw(st.sampled_from(LANES)), draw(seconds), left)]


@st.composite
def plans(draw: st.DrawFn, most: int = 30) -> tuple[Blocks, Sequence_]:
    names = ("a", "b", "c")[: draw(st.integers(1, 3))]
    blocks = {name: draw(tasks()) for name in names}
    counts = st.tuples(st.sampled_from(names), st.integers(1, most))
    return blocks, draw(st.lists(counts, min_size=1, max_size=5))


def agrees(schedule: Schedule, played: Played) -> None:
    """The same span, the same work on every lane, and accounts that close."""
    assert one(schedule.span) == pytest.approx(played.span, rel=1e-12)
    assert {lane: one(account.cost.seconds) for lane, account in schedule.lanes.items()} == pytest.approx(played.busy)
    closes(schedule)


def closes(schedule: Schedule) -> None:
    for name, lane in schedule.lanes.items():
        parts = sum(lane.parts.values(), array(0.0))
        gaps = sum(lane.gaps.values(), array(0.0))
        assert np.all(np.abs(parts + gaps - schedule.span) <= TIGHT * schedule.span), name
        assert set(lane.gaps) <= {*GAPS, *LANES}, name
        assert all(np.all(gap >= -TIGHT * schedule.span) for gap in lane.gaps.values()), name


@given(plans(), seconds)
def test_any_graph_of_tasks_takes_as_long_as_playing_it(plan: tuple[Blocks, Sequence_], host: float) -> None:
    blocks, sequence = plan
    agrees(run(blocks, sequence, array(host), {}), play(blocks, sequence, host))


rows = st.lists(st.tuples(st.sampled_from(("compute", "link")), seconds), min_size=1, max_size=8)


def micro_batched(row: list[tuple[str, float]], batches: int) -> list[Timed]:
    """A row of tasks for every micro-batch, interleaved as placement does it."""
    kernels = [collective("all_reduce", time, 2) for _, time in row]
    placed = [Task(of, row[at][0], (at - 1,) if at else ()) for at, of in enumerate(kernels)]
    return [timed(t.lane, t.kernel.dims["bytes"], t.after, t.batch) for t in interleaved(placed, batches)]


@settings(max_examples=100)
@given(
    st.lists(rows, min_size=3, max_size=3),
    st.lists(st.tuples(st.integers(0, 2), st.integers(1, 40)), min_size=1, max_size=4),
    st.integers(1, 4),
    seconds,
)
def test_micro_batches_take_as_long_as_playing_them(
    layers: list[list[tuple[str, float]]], runs: list[tuple[int, int]], batches: int, host: float
) -> None:
    blocks = {str(kind): micro_batched(row, batches) for kind, row in enumerate(layers)}
    sequence = [(str(kind), count) for kind, count in runs]
    agrees(run(blocks, sequence, array(host), {}), play(blocks, sequence, host))


@given(plans(), seconds, st.lists(seconds, min_size=3, max_size=3))
def test_eager_steps_take_as_long_as_playing_them(
    plan: tuple[Blocks, Sequence_], host: float, times: list[float]
) -> None:
    """The host launches every kernel, ahead of the device where it can, behind it where it must."""
    blocks, sequence = plan
    launch = dict(zip(("a", "b", "c"), times, strict=True))
    arrays = {name: array(launch[name]) for name in blocks}
    agrees(run(blocks, sequence, array(host), arrays), play(blocks, sequence, host, launch))


@given(st.lists(st.tuples(st.sampled_from(LANES), seconds), min_size=1, max_size=6), st.integers(1, 100), seconds)
def test_a_row_of_tasks_takes_their_sum(row: list[tuple[str, float]], layers: int, host: float) -> None:
    block = [timed(lane, time, [index - 1] if index else []) for index, (lane, time) in enumerate(row)]
    schedule = run({"layer": block}, [("layer", layers)], array(host), {})
    assert one(schedule.span) == host + layers * sum(time for _, time in row)
    assert one(schedule.period["layer"]) == pytest.approx(sum(time for _, time in row))
    agrees(schedule, play({"layer": block}, [("layer", layers)], host))


@given(plans(most=12), seconds)
def test_repeated_layers_take_as_long_as_layers_written_one_by_one(plan: tuple[Blocks, Sequence_], host: float) -> None:
    blocks, sequence = plan
    singly = [(block, 1) for block, count in sequence for _ in range(count)]
    together, apart = run(blocks, sequence, array(host), {}), run(blocks, singly, array(host), {})
    assert one(together.span) == pytest.approx(one(apart.span), rel=1e-12)
    for lane, account in apart.lanes.items():
        assert one(together.lanes[lane].cost.seconds) == pytest.approx(one(account.cost.seconds), rel=1e-12)


@settings(max_examples=25)
@given(plans(), seconds, st.integers(2, 5))
def test_arrays_of_times_are_played_element_by_element(plan: tuple[Blocks, Sequence_], host: float, size: int) -> None:
    """Every element of swept times has its own critical path."""
    blocks, sequence = plan
    rng = np.random.default_rng(size)
    factors = {id(task): rng.integers(1, 20, size).astype(float) for block in blocks.values() for task in block}

    def scaled(element: int | None) -> Blocks:
        def times(task: Timed) -> Array:
            by = factors[id(task)]
            return task.cost.seconds * (by if element is None else by[element])

        return {
            name: [replace(task, cost=Cost(times(task), {"compute": times(task)})) for task in block]
            for name, block in blocks.items()
        }

    together = run(scaled(None), sequence, array(host), {})
    for element in range(size):
        alone = run(scaled(element), sequence, array(host), {})
        assert np.broadcast_to(together.span, (size,))[element] == one(alone.span)


# Who waited for what


def gaps(schedule: Schedule, lane: str) -> dict[str, float]:
    return {cause: one(gap) for cause, gap in schedule.lanes[lane].gaps.items() if one(gap)}


def test_kernels_that_wait_for_a_transfer_say_so() -> None:
    block = [timed("compute", 5), timed("link", 3, [0]), timed("compute", 2, [1])]
    schedule = run({"layer": block}, [("layer", 10)], array(0), {})
    assert gaps(schedule, "compute") == {"link": 30}
    assert gaps(schedule, "link") == {"compute": 68, "no_work": 2}  # the last kernel comes after the last transfer
    assert one(schedule.span) == 100


def test_a_transfer_behind_other_kernels_costs_only_what_shows() -> None:
    """A transfer of 9 s beside a kernel of 4 s: the kernel that needs both waits 5 s more, for the link."""
    block = [timed("compute", 1), timed("link", 9, [0]), timed("compute", 4, [0]), timed("compute", 2, [1, 2])]
    schedule = run({"layer": block}, [("layer", 4)], array(0), {})
    assert one(schedule.span) == 4 * 12
    assert gaps(schedule, "compute") == {"link": 4 * 5}


@pytest.mark.parametrize("order", [(1, 2), (2, 1)])
def test_a_gap_belongs_to_the_dependency_that_came_last_not_to_the_one_listed_last(order: tuple[int, int]) -> None:
    block = [timed("compute", 1), timed("link", 9, [0]), timed("copy", 4, [0]), timed("compute", 2, order)]
    schedule = run({"layer": block}, [("layer", 4)], array(0), {})
    assert one(schedule.span) == 4 * 12
    assert gaps(schedule, "compute") == {"link": 4 * 9}


def test_every_element_of_a_sweep_names_its_own_cause() -> None:
    """The link is slow at one point and fast at the next; the copy takes as long at both."""
    block = [timed("compute", 1), timed("link", [9, 2], [0]), timed("copy", 4, [0]), timed("compute", 2, [1, 2])]
    schedule = run({"layer": block}, [("layer", 4)], array(0), {})
    found = {cause: np.broadcast_to(gap, (2,)) for cause, gap in schedule.lanes["compute"].gaps.items()}
    assert list(schedule.span) == [4 * 12, 4 * 7]
    assert list(found["link"]) == [4 * 9, 0] and list(found["copy"]) == [0, 4 * 4]


def test_a_host_that_is_too_slow_shows_as_host_and_a_fast_one_costs_nothing() -> None:
    block = {"layer": [timed("compute", 5), timed("compute", 5, [0])]}
    slow = run(block, [("layer", 20)], array(1), {"layer": array(12)})
    assert one(slow.span) == 1 + 20 * 12 + 10
    assert gaps(slow, "compute") == {"host": 1 + 20 * 12 + 10 - 200}
    fast = run(block, [("layer", 20)], array(1), {"layer": array(3)})
    assert one(fast.span) == 1 + 3 + 200
    assert gaps(fast, "compute") == {"host": 4}
    assert gaps(fast, "host") == {"no_work": 1 + 3 + 200 - (1 + 20 * 3)}


def test_a_head_start_of_the_device_is_used_up_before_the_host_shows() -> None:
    """Three long layers let the host run ahead by 21 s; forty short ones, 1 s below the host's pace, use that up."""
    blocks = {"long": [timed("compute", 10)], "short": [timed("compute", 2)]}
    launch = {"long": 3.0, "short": 3.0}
    sequence: Sequence_ = [("long", 3), ("short", 40)]
    played = play(blocks, sequence, 0.0, launch)
    assert played.span == 43 * 3 + 2  # the host sets the pace in the end
    schedule = run(blocks, sequence, array(0), {name: array(time) for name, time in launch.items()})
    assert one(schedule.span) == played.span


def test_the_host_comes_first_and_is_a_lane_of_its_own() -> None:
    schedule = run({"layer": [timed("compute", 4)]}, [("layer", 5)], array(7), {})
    assert one(schedule.span) == 27
    assert gaps(schedule, "compute") == {"host": 7}
    assert gaps(schedule, "host") == {"no_work": 20}


def test_a_lane_that_starts_late_and_stops_early_has_a_bubble_and_no_work() -> None:
    blocks = {"first": [timed("compute", 4)], "middle": [timed("link", 3)], "last": [timed("compute", 5)]}
    schedule = run(blocks, [("first", 1), ("middle", 1), ("last", 1)], array(0), {})
    assert gaps(schedule, "link") == {"bubble": 4, "no_work": 5}
    assert gaps(schedule, "compute") == {"link": 3}


def test_micro_batches_hide_transfers_behind_each_other() -> None:
    """While one micro-batch is on the link the other computes: 10 s of both a layer instead of 20 s in a row."""
    block = [timed("compute", 5, (), 0), timed("compute", 5, (), 1), timed("link", 5, [0], 0), timed("link", 5, [1], 1)]
    layers = 50
    schedule = run({"layer": block}, [("layer", layers)], array(0), {})
    assert one(schedule.span) == play({"layer": block}, [("layer", layers)], 0.0).span == layers * 10 + 5
    closes(schedule)


def test_a_plan_without_tasks_takes_the_host_alone() -> None:
    schedule = run({"layer": []}, [("layer", 3)], array(2), {})
    assert one(schedule.span) == 2
    closes(schedule)


# Placed plans, not made up: every layer of a step played one by one


def steps(d: Deployment) -> Iterator[Step]:
    clips = d.model.clips
    yield decode(64, 4096, clips)
    yield prefill(2048, clips=clips)
    yield decode(64, 4096, clips) + prefill(512, 1024, 2, clips)


CASES = {
    "dense on one chip": deployment(LLAMA_70B, "nvidia/h200-sxm", split()),
    "dense, tensor parallel": deployment(LLAMA_70B, "nvidia/h100-sxm", split(tensor=8)),
    "experts over data-parallel attention": deployment(
        DEEPSEEK, "nvidia/h200-sxm", split(attention_data=16, expert=16)
    ),
    "in two micro-batches": replace(
        deployment(DEEPSEEK, "nvidia/h200-sxm", split(attention_data=16, expert=16)), options=Options(micro_batches=2)
    ),
    "windows alternate": deployment(GPT_OSS, "nvidia/b200-sxm", split(tensor=2)),
    "no losses": deployment(LLAMA_70B, "nvidia/h100-sxm", split(tensor=8), "ideal"),
}


def replayed(priced: PricedStep) -> Played:
    """The same plan, every layer of it, in plain numbers."""
    plan = priced.plan
    blocks = {
        name: [
            replace(timed(task.lane, cost.seconds, task.after), batch=getattr(task, "batch", 0))
            for task, (_, cost) in zip(plan.blocks[name], priced.costs[name], strict=True)
        ]
        for name in plan.blocks
    }
    launched = {name: plan.launch * sum(one(task.cost.seconds) > 0 for task in block) for name, block in blocks.items()}
    return play(blocks, list(plan.sequence), one(array(plan.host)), launched if plan.launch else None)


@pytest.mark.parametrize("case", CASES)
def test_a_placed_step_takes_as_long_as_playing_every_layer(case: str) -> None:
    d = CASES[case]
    for step in steps(d):
        priced = run_step(place(d, step), d.chip, d.runtime.stack)
        agrees(priced.schedule, replayed(priced))


@pytest.mark.parametrize("case", CASES)
def test_kernels_and_gaps_of_every_lane_sum_to_the_span(case: str) -> None:
    d = CASES[case]
    batches, contexts = np.array([1.0, 7, 64, 300]).reshape(4, 1), np.array([1.0, 100, 9000]).reshape(1, 3)
    priced = run_step(place(d, decode(batches, contexts, d.model.clips)), d.chip, d.runtime.stack)
    closes(priced.schedule)
    listed = sum((cost.seconds * count for _, _, cost, count in priced.kernels()), array(0.0))
    assert np.allclose(listed, priced.total().seconds, rtol=1e-12, atol=0)


def test_launching_kernel_by_kernel_never_beats_a_captured_graph() -> None:
    d = CASES["dense, tensor parallel"]
    eager = replace(d, runtime=replace(runtime("vllm"), graphed="none"))
    batch = np.array([1.0, 16, 256, 2000])
    slow, fast = (run_step(place(x, decode(batch, 2000)), x.chip, x.runtime.stack).span for x in (eager, d))
    assert np.all(slow >= fast)
    assert slow[0] > 1.1 * fast[0], "at one sequence the launches show"
    assert not same_bits(slow, fast)
