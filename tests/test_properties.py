"""Whole runs: arrays are their points, more is never worse, and a perfect machine is the roofline of a textbook."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scenarios import CHIPS, DEEPSEEK, GPT_OSS, LLAMA_8B, LLAMA_70B, MODELS, STACKS, chip, one, scenario

import archsim
from archsim import arrays
from archsim.arrays import Array, Inputs, array, axes, blocked
from archsim.explore.result import METRICS, Result
from archsim.explore.scenario import Scenario

H100, H200, B200 = "nvidia/h100-sxm", "nvidia/h200-sxm", "nvidia/b200-sxm"

# A system for each model: chip, chips, split
SYSTEMS: dict[str, tuple[str, int, dict[str, int]]] = {
    LLAMA_8B: (H100, 1, {}),
    LLAMA_70B: (H100, 8, {"tensor": 8}),
    DEEPSEEK: (H200, 16, {"attention_data": 16, "expert": 16}),
    GPT_OSS: (B200, 2, {"tensor": 2}),
}


def asked(of: str, **keys: Any) -> Scenario:
    on, chips, by = SYSTEMS[of]
    return scenario(of, on, chips, **{"split": by, "batch": 1, "context": 1, **keys})


def numbers(result: Result) -> dict[str, Array]:
    """Everything a result can say at every point, feasible or not: metrics, memory, and the parts of all kernels."""
    found = {name: result.pick(of(result.answer)) for name, (_, _, of) in METRICS.items()}
    if result.mode == "step":
        total = result.answer.total
        found |= {f"part {name}": result.pick(part) for name, part in total.parts.items()}
        rest = {"flops": total.flops, "bytes": total.bytes, "link bytes": total.link_bytes, "energy": total.energy}
        found |= {name: result.pick(value) for name, value in rest.items()}
        found |= {f"memory {name}": result.pick(part) for name, part in result.answer.memory.parts.items()}
    return found


def assert_points(result: Result, ask: Any, indices: Iterable[int]) -> None:
    """The points of a run, each asked alone: the same numbers to the last bit."""
    together = {name: np.asarray(values).ravel() for name, values in numbers(result).items()}
    for index in indices:
        alone = ask(index)
        for name, value in numbers(alone).items():
            assert one(value) == together[name][index], f"{name} at point {index} of {result.shape}"
        assert alone.feasible.ravel()[0] == result.feasible.ravel()[index]
        assert alone.reason_at(0) == result.reason_at(index)


# Arrays are their points


@pytest.mark.parametrize("of", MODELS)
def test_a_grid_gives_what_its_points_give_one_by_one_to_the_last_bit(of: str) -> None:
    s = asked(of)
    grid = archsim.run(
        s,
        batch=[1, 7, 128, 1000],
        context=[1, 129, 5000, 131_072],
        over={"chip.memory.bandwidth": [1e12, 3.35e12, 8.1e12], "split.tensor": [1, 2, 4, 8]},
    )
    assert grid.shape == (4, 4, 3, 4)

    def ask(index: int) -> Result:
        at = grid.point(index)
        fields = {name: at.pop(name) for name in ("batch", "context")}
        return archsim.run(s, over=at, **fields)

    chosen = np.random.default_rng(1).choice(grid.feasible.size, 14, replace=False)
    assert_points(grid, ask, [0, grid.feasible.size - 1, *chosen.tolist()])


def everything_varies(of: str, size: int, seed: int = 11) -> dict[str, Array]:
    """A value of its own for every field at every point."""
    rng = np.random.default_rng(seed)
    tensor = rng.choice([1.0, 2, 4, 8], size)
    tensors = {"split.tensor": tensor, "chips": tensor}
    if of == DEEPSEEK:
        tensors |= {"split.expert": tensor, "split.attention_data": np.ones(size)}
    return tensors | {
        "batch": np.floor(np.exp(rng.uniform(0, 8, size))),
        "context": np.floor(np.exp(rng.uniform(0, 12, size))),
        "chip.memory.bandwidth": rng.uniform(1e12, 9e12, size),
        "chip.memory.capacity": rng.uniform(5e10, 3e11, size),
        "chip.matrix.bf16": rng.uniform(3e14, 2e15, size),
        "chip.matrix.fp8": rng.uniform(2e15, 6e15, size),
        "chip.clock": rng.uniform(1e9, 2.5e9, size),
        "chip.links.scale_up.bandwidth": rng.uniform(1e11, 1e12, size),
        "skew": rng.uniform(0, 1.5, size),
    }


@pytest.mark.parametrize("of", MODELS)
def test_zipped_points_with_every_field_their_own_are_the_points_one_by_one(of: str) -> None:
    s = asked(of)
    values = everything_varies(of, 40)
    run = archsim.run(s, zipped=True, over=values)
    assert run.shape == (40,) and list(run.axes) == ["point"]
    assert_points(
        run, lambda index: archsim.run(s, over={name: value[index] for name, value in values.items()}), range(0, 40, 3)
    )


def test_a_sweep_in_which_another_format_becomes_the_fastest_is_its_points() -> None:
    """fp8 at half the rate of bf16, at the same, and at twice it."""
    s = asked(LLAMA_70B, precision={"weights": "fp8"}, batch=512, context=1000)
    rates = np.array([0.5, 1.0, 2.0]) * 989e12
    swept = archsim.run(s, over={"chip.matrix.fp8": rates})
    assert_points(swept, lambda index: archsim.run(s, over={"chip.matrix.fp8": rates[index]}), range(3))


@pytest.mark.parametrize("of", [LLAMA_70B, DEEPSEEK])
def test_a_grid_of_many_blocks_is_its_points(of: str) -> None:
    s = asked(of)
    batch, context = np.arange(1.0, 151), np.unique(np.round(np.geomspace(1, 131_072, 170)))
    grid = archsim.run(s, batch=batch, context=context)
    size = grid.feasible.size
    assert size > 2 * arrays.BLOCK, "it has to cross blocks"

    def ask(index: int) -> Result:
        return archsim.run(s, **grid.point(index))

    edges = [0, arrays.BLOCK - 1, arrays.BLOCK, 2 * arrays.BLOCK, size - 1]
    assert_points(grid, ask, edges + np.random.default_rng(3).choice(size, 8, replace=False).tolist())


@pytest.mark.parametrize("of", [LLAMA_70B, DEEPSEEK])
def test_zipped_points_of_many_blocks_are_their_points(of: str) -> None:
    s = asked(of)
    size = 2 * arrays.BLOCK + 4001
    values = everything_varies(of, size)
    run = archsim.run(s, zipped=True, over=values)
    edges = [0, arrays.BLOCK - 1, arrays.BLOCK, 2 * arrays.BLOCK - 1, 2 * arrays.BLOCK, size - 2, size - 1]
    chosen = edges + np.random.default_rng(5).choice(size, 6, replace=False).tolist()
    assert_points(
        run, lambda index: archsim.run(s, over={name: value[index] for name, value in values.items()}), chosen
    )


@pytest.mark.parametrize("of", MODELS)
def test_the_size_of_a_block_changes_no_bit(of: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def ask() -> dict[str, Array]:
        fields: dict[str, Any] = {"batch": range(1, 12), "context": [1, 100, 3000, 50_000]}
        return numbers(archsim.run(asked(of), over={"chip.memory.bandwidth": [1e12, 4e12]}, **fields))

    whole = ask()
    monkeypatch.setattr(arrays, "BLOCK", 7)
    for name, value in ask().items():
        assert np.array_equal(value, whole[name]), name


sizes = st.tuples(st.integers(1, 60), st.integers(1, 4), st.integers(1, 4))
masks = st.lists(st.tuples(st.booleans(), st.booleans(), st.booleans()), min_size=1, max_size=4)


def summed(x: Inputs) -> tuple[Array, ...]:
    """Outputs that know all axes, those of one input only, and all again."""
    total = sum(x.values(), array(0.0))
    return total, x["0"] * 2.0, np.sqrt(total)


@given(sizes, masks, st.integers(8, 40))
def test_evaluation_in_blocks_is_evaluation(size: tuple[int, ...], known: list[tuple[bool, ...]], block: int) -> None:
    """Inputs that know some axes and not others, as fields of a sweep do."""
    rng = np.random.default_rng(block)
    shapes = [tuple(n if knows else 1 for n, knows in zip(size, mask, strict=True)) for mask in known]
    inputs = {str(index): rng.uniform(1, 2, shape) for index, shape in enumerate(shapes)}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(arrays, "BLOCK", block)
        found = blocked(summed, inputs)
    for left, right in zip(found, summed(inputs), strict=True):
        assert left.shape == right.shape
        assert np.array_equal(left, right)


def test_many_fields_of_two_values_each_are_evaluated_too() -> None:
    """A design of two levels over fifteen fields: no axis is long, and there are 32,768 points."""
    inputs = {str(index): value for index, value in enumerate(axes({str(i): [1.0, 2.0] for i in range(15)}).values())}
    found, _, _ = blocked(summed, inputs)
    assert found.shape == (2,) * 15 and found.min() == 15 and found.max() == 30


@given(st.lists(st.integers(1, 5), min_size=1, max_size=5))
def test_swept_fields_get_axes_of_their_own_in_order(lengths: list[int]) -> None:
    fields = {f"field {index}": np.arange(float(length)) for index, length in enumerate(lengths)}
    found = axes(fields)
    assert np.broadcast_shapes(*(value.shape for value in found.values())) == (
        tuple(n for n in lengths if n > 1) or (1,)
    )
    assert all(np.array_equal(found[name].ravel(), fields[name]) for name in fields)


# More is never worse

GROWN = {
    "chip.memory.bandwidth": lambda c: c.memory.bandwidth,
    "chip.matrix.bf16": lambda c: c.matrix["bf16"],
    "chip.clock": lambda c: c.clock,
    "chip.links.scale_up.bandwidth": lambda c: c.links["scale_up"].bandwidth,
    "chip.links.scale_out.bandwidth": lambda c: c.links["scale_out"].bandwidth,
    "chip.memory.capacity": lambda c: c.memory.capacity,
}
FACTORS = np.array([1.0, 1.01, 1.3, 2.0, 10.0, 1000.0])

systems = st.sampled_from(
    [
        (LLAMA_8B, CHIPS[0], 1),
        (LLAMA_8B, H100, 2),
        (LLAMA_70B, CHIPS[0], 8),
        (LLAMA_70B, H100, 16),
        (LLAMA_70B, B200, 1),
        (DEEPSEEK, H200, 8),
        (DEEPSEEK, H200, 16),
        (DEEPSEEK, B200, 8),
        (LLAMA_70B, H100, 6),
        (GPT_OSS, H100, 2),
        (GPT_OSS, B200, 8),
    ]
)
few_or_many = st.one_of(st.integers(1, 8), st.integers(1, 4000))
short_or_long = st.one_of(st.integers(1, 200), st.integers(1, 131_072))


@pytest.mark.parametrize("field", GROWN)
@pytest.mark.parametrize("stack", STACKS)
def test_more_of_a_resource_never_slows_the_best_plan(stack: str, field: str) -> None:
    @settings(max_examples=12)
    @given(systems, few_or_many, short_or_long, st.sampled_from(["tpot", "ttft"]))
    def search(system: tuple[str, str, int], batch: int, context: int, goal: str) -> None:
        s = scenario(*system, runtime=stack, batch=1, context=1, objective={"minimize": goal})
        found = archsim.run(s, batch=batch, context=context, over={field: one(GROWN[field](s.chip)) * FACTORS})
        assert np.all(np.diff(found.feasible.astype(int)) >= 0), "a plan that fitted no longer does"
        values = found.metric(goal)[found.feasible]
        assert np.all(np.diff(values) <= 1e-12 * values[:-1]), values

    search()


@pytest.mark.parametrize("of", [LLAMA_70B, GPT_OSS])
@pytest.mark.parametrize("field", GROWN)
def test_more_of_a_resource_never_makes_the_cheapest_service_dearer(field: str, of: str) -> None:
    s = scenario(of, H100, 8, traffic={"input": 1155, "output": 211})
    found = archsim.run(
        s, mode="steady", batch=[1, 4, 16, 64, 256, 1024], over={field: one(GROWN[field](s.chip)) * FACTORS[:5]}
    )
    cheapest = np.nanmin(found.cost_per_token, axis=0)
    assert np.all(np.diff(cheapest) <= 1e-9 * cheapest[:-1]), cheapest


@settings(max_examples=15)
@given(systems, few_or_many, short_or_long)
def test_no_stack_beats_the_perfect_one(system: tuple[str, str, int], batch: int, context: int) -> None:
    by = {"tensor": min(system[2], 8), "data": -(-system[2] // 8)}
    real, ideal = (
        archsim.run(scenario(*system, runtime=stack, split=by, batch=1, context=1), batch=batch, context=context)
        for stack in STACKS
    )
    for name in ("tpot", "ttft"):
        slow, fast = (found.pick(METRICS[name][2](found.answer)) for found in (real, ideal))
        assert one(slow) >= one(fast) * (1 - 1e-12), name


# A perfect machine, by hand


def roofline(flops: float, moved: float) -> float:
    return max(flops / 989e12, moved / 3.35e12)


def product(m: float, n: float, k: float) -> float:
    """Weights, input and output in bf16, each moved once."""
    return roofline(2 * m * n * k, 2 * (n * k + m * k + m * n))


def all_reduce(size: float, ranks: int) -> float:
    """Inside an NVSwitch that reduces: up once, down once and a share; one latency. Alone: nothing."""
    return (1 + 1 / ranks) * size / 450e9 + 1e-6 if ranks > 1 else 0.0


def llama_70b_by_hand(batch: int, context: int, ranks: int) -> float:
    """One decode step of Llama-3.1-70B in bf16, operator by operator; small kernels ride on their neighbours."""
    heads, kv = 64 / ranks, 8 / ranks
    cache = batch * context
    attention = roofline(2 * cache * heads * 256, 2 * (cache * kv * 256 + batch * heads * 256))
    layer = (
        product(batch, (heads + 2 * kv) * 128, 8192)
        + attention
        + product(batch, 8192, heads * 128)
        + product(batch, 2 * 28_672 / ranks, 8192)
        + product(batch, 8192, 28_672 / ranks)
        + 2 * all_reduce(2 * batch * 8192, ranks)
    )
    ends = (
        product(batch, 128_256 / ranks, 8192) + all_reduce(2 * batch * 8192, ranks) + all_reduce(batch * 128_256, ranks)
    )
    return 80 * layer + ends


@pytest.mark.parametrize("ranks", [1, 8])
@pytest.mark.parametrize(("batch", "context"), [(1, 1), (1, 131_072), (64, 8192), (300, 100), (512, 2000), (4096, 1)])
def test_the_perfect_runtime_is_the_closed_form_roofline(batch: int, context: int, ranks: int) -> None:
    s = scenario(LLAMA_70B, H100, ranks, runtime="ideal", split={"tensor": ranks}, batch=batch, context=context)
    found = archsim.run(s)
    assert one(found.pick(found.answer.tpot)) == pytest.approx(llama_70b_by_hand(batch, context, ranks), rel=1e-6)


def test_the_perfect_step_at_one_sequence_reads_the_weights_once() -> None:
    found = archsim.run(scenario(LLAMA_70B, H200, 1, runtime="ideal", split={}, batch=1, context=1))
    weights = 2 * (70_553_706_496 - 128_256 * 8192) / 4.8e12  # the embedding is looked up, not read
    assert one(found.pick(found.answer.tpot)) == pytest.approx(weights, rel=2e-3)


def test_the_machines_of_this_file_are_those_of_the_catalogue() -> None:
    h100 = chip(H100)
    assert (one(h100.matrix["bf16"]), one(h100.memory.bandwidth)) == (989e12, 3.35e12)
    assert (one(h100.links["scale_up"].bandwidth), one(h100.links["scale_up"].latency)) == (450e9, 1e-6)
