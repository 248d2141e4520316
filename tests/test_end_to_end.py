"""Serving runs: flags, predictions, the fit of engine constants, bands, machines and published figures."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from archsim.arrays import array
from archsim.chip.schema import load_chip
from archsim.engine.gpu import price
from archsim.mapping.place import Deployment, place
from archsim.mapping.plan import Kernel, Plan
from archsim.mapping.runtime import load_runtime
from archsim.mapping.split import split
from archsim.serving.steady import steady
from archsim.validation import end_to_end_fit, end_to_end_pools, spark
from archsim.validation import published_figures as published
from archsim.validation.deployments import batches, cache_of, precision_names
from archsim.validation.end_to_end import Predicted, harness, predict, tpot, ttft
from archsim.validation.end_to_end_first import NAMES as FIRST_NAMES
from archsim.validation.end_to_end_first import changed, first_of
from archsim.validation.end_to_end_fit import Linear, Name, Prior, put, quantity, solved
from archsim.validation.end_to_end_sections import bands, sections
from archsim.validation.end_to_end_spread import Band, coverage, share, shipped
from archsim.validation.end_to_end_tables import Evaluated, counted, evaluate, section_of, unfitted
from archsim.validation.errors import errors
from archsim.validation.rows import FLAGS, Ranks, Run, carried, flagged, read, table
from archsim.workload.model import precision_of
from archsim.workload.schema import load_model
from archsim.workload.step import decode

MEASUREMENTS = Path(__file__).parents[2] / "shared" / "measurements"


def run_of(**changes: object) -> Run:
    """An unflagged run of Llama 3.1 70B in fp8 on two H100 with vLLM."""
    plain = Run(
        id="a", key="h100_sxm|1024|1024|60.1|12.2", source="db-dump/2026-04-27; silicon_concurrency=8;", stack="vllm",
        version="0.12.0", model="meta-llama/Llama-3.1-70B", chip="h100_sxm", precision="fp8", input=1024.0,
        output=1024.0, clients=8.0, burst=True, decode=Ranks(2, 1, 1, 1, 8.0), prefill=None, ttft=0.0601, tpot=0.0122,
    )  # fmt: skip
    return replace(plain, **changes)  # type: ignore[arg-type]


def flags_of(**changes: object) -> tuple[str, ...]:
    return flagged([run_of(**changes)])[0].flags


# Flags


def test_a_plain_run_has_no_flag() -> None:
    assert flags_of() == ()


@pytest.mark.parametrize(
    ("flag", "changes"),
    [
        ("nodes", {"decode": Ranks(72, 1, 72, 1, 8.0)}),
        ("capped", {"model": "openai/gpt-oss-120b", "clients": 512.0}),
        ("eager", {"burst": False, "chip": "h200_sxm", "model": "Qwen/Qwen3-235B-A22B-FP8", "source": "lab"}),
        ("cached", {"burst": False, "chip": "h200_sxm", "model": "nvidia/Llama-3.1-8B-Instruct-FP8", "source": "lab"}),
        ("replicas", {"burst": False, "clients": 64.0}),
        ("replicas", {"burst": False, "clients": 0.0}),
        ("workers", {"prefill": Ranks(2, 1, 1, 1), "decode": Ranks(2, 1, 1, 1)}),
        (
            "drafts",
            {"stack": "trtllm", "model": "deepseek-ai/DeepSeek-R1", "source": "2026-03-25.csv; release:1.2.0rc6.post3"},
        ),
        (
            "first_token",
            {
                "stack": "sglang", "version": "", "precision": "fp4", "chip": "b200_sxm",
                "model": "deepseek-ai/DeepSeek-R1", "source": "2026-04-06.csv; measured=2025-11-10T",
            },
        ),
    ],
)  # fmt: skip
def test_each_trap_has_its_flag(flag: str, changes: dict[str, object]) -> None:
    assert flag in flags_of(**changes) and flag in FLAGS


def test_a_fault_of_the_first_token_leaves_the_time_between_tokens_alone() -> None:
    run = replace(run_of(), flags=("first_token",))
    assert run.sound("tpot") and not run.sound("ttft")
    assert not replace(run, flags=("drafts",)).sound("tpot")


def test_a_dump_that_tells_drafts_apart_is_believed() -> None:
    source = "2026-04-06.csv; release:1.1.0rc2.post2"
    csv = run_of(id="b", stack="trtllm", model="deepseek-ai/DeepSeek-R1", source=source)
    dump = run_of(id="c", stack="trtllm", model="deepseek-ai/DeepSeek-R1", source="db-dump/2026-04-27;")
    assert "drafts" in flagged([csv])[0].flags
    assert not any("drafts" in run.flags for run in flagged([csv, dump]))


def test_one_measurement_counts_once_and_its_soundest_row_stays() -> None:
    rounded = run_of(id="b", version="", ttft=0.06010001)
    other = run_of(id="c", ttft=0.0701)
    found = {run.id: run.flags for run in flagged([rounded, run_of(), other])}
    assert found == {"a": (), "b": ("repeat",), "c": ()}


def test_a_measurement_is_fitted_if_any_of_its_rows_is() -> None:
    keys = [f"h100_sxm|1024|1024|60.1|12.{digit}" for digit in range(20)]
    even = next(key for key in keys if run_of(key=key).half)
    odd = next(key for key in keys if not run_of(key=key).half)
    pair = flagged([run_of(id="a", key=even), run_of(id="b", key=odd)])
    assert [run.fitted for run in pair] == [True, True]
    assert not flagged([run_of(key=even, chip="h200_sxm")])[0].fitted


def test_squared_ranks_and_false_data_parallelism_are_read_as_they_ran() -> None:
    squared = flagged([run_of(decode=Ranks(64, 1, 8, 8, 8.0))])[0]
    assert squared.decode == Ranks(8, 1, 1, 8, 8.0) and squared.sound("tpot")
    data = flagged([run_of(stack="trtllm", decode=Ranks(1, 64, 8, 8, 1.0))])[0].decode
    assert (data.tensor, data.data, data.expert) == (1, 8, 8)
    again = flagged([run_of(model="moonshotai/Kimi-K2.5", decode=Ranks(4, 4, 1, 16, 2.0))])[0]
    assert again.flags == ("not_data_parallel",)
    assert (again.decode.tensor, again.decode.data, again.decode.expert) == (4, 1, 4)


# Deployments


def test_formats_follow_recipes_and_checkpoints() -> None:
    assert cache_of(run_of()) == "fp8"
    assert cache_of(run_of(model="openai/gpt-oss-120b", precision="fp4")) == "bf16"
    assert cache_of(run_of(model="MiniMaxAI/MiniMax-M2.5", version="0.18.0", chip="b200_sxm")) == "bf16"
    assert precision_names(run_of(model="deepseek-ai/DeepSeek-R1"))["weights"] == "fp8_block"
    kimi = precision_names(run_of(model="moonshotai/Kimi-K2.5", precision="fp4"))
    assert (kimi["attention"], kimi["weights"], kimi["experts"]) == ("bf16", "bf16", "nvfp4")


def test_runs_of_one_structure_are_priced_together_as_each_alone() -> None:
    runs = [run_of(clients=4.0), run_of(clients=64.0, decode=Ranks(4, 1, 1, 1, 64.0)), run_of(input=8192.0)]
    assert len(batches(runs)) == 1
    together = predict(runs)
    for index, run in enumerate(runs):
        alone = predict([run])
        assert together.tpot[index] == pytest.approx(alone.tpot[0], rel=1e-12)
        assert together.ttft[index] == pytest.approx(alone.ttft[0], rel=1e-9)


# What the harness adds


def predicted(**changes: float) -> Predicted:
    values = {
        "tpot": 0.02, "ttft": 0.3, "plain": 0.015, "mixed": 0.06, "prompt": 0.04, "burst": 0.03, "share": 0.2,
        "clients": 16.0, "waiting": 0.0, "ranks": 1.0, "layers": 0.0,
    }  # fmt: skip
    return Predicted(**{name: array(value) for name, value in (values | changes).items()})


def test_a_settled_loop_of_one_client_is_reported_as_it_is() -> None:
    one = predicted(clients=1.0, tpot=0.015, prompt=0.0)
    assert tpot([run_of()], one, harness())[0] == pytest.approx(0.015)
    assert ttft([run_of()], one, harness())[0] == pytest.approx(0.3)


def test_the_start_of_all_clients_grows_with_their_number() -> None:
    few, many = (ttft([run_of()], predicted(clients=count), harness())[0] for count in (8.0, 64.0))
    weight = harness().stacks["vllm"].burst
    assert many - few == pytest.approx(weight * 56.0 / 2.0 * 0.03)


def test_a_lab_adds_its_client_and_lockstep_halves_the_waits() -> None:
    lab = run_of(burst=False, stack="sglang", version="0.5.1", source="lab")
    together = tpot([lab], predicted(), harness())[0]
    assert together == pytest.approx(0.015 + 0.5 * 15.0 * 0.03 / 1024.0)
    elsewhere = replace(lab, chip="h200_sxm")
    assert tpot([elsewhere], predicted(), harness())[0] == pytest.approx(0.015 + harness().followers * 0.005)
    other = replace(run_of(burst=False), clients=16.0)
    added = ttft([other], predicted(), harness())[0] - ttft([run_of()], predicted(), harness())[0]
    assert added == pytest.approx(harness().stacks["vllm"].lab)


# What engines do, as placed and priced


def deployment(runtime: str, model: str = "deepseek/deepseek-v3", **degrees: int) -> Deployment:
    loaded = load_model(model)
    chip = load_chip("nvidia/b200-sxm")
    return Deployment(loaded, precision_of(loaded, {}), split(**degrees), chip, load_runtime(runtime), array(1.2))


def kernels_of(plan: Plan) -> dict[str, Kernel]:
    return {kernel.name: kernel for _, kernel, _ in plan.kernels()}


def test_shared_experts_beside_routed_ones_show_no_fixed_time() -> None:
    d = deployment("vllm", tensor=8)
    kernels = kernels_of(place(d, decode(8, 1024, d.model.clips)))
    beside = price(kernels["shared_activation"], d.chip, "vllm")
    alone = price(replace(kernels["shared_activation"], shown=1.0), d.chip, "vllm")
    assert beside.parts["fixed"][0] == 0.0 and beside.seconds[0] < alone.seconds[0]
    assert beside.seconds[0] == pytest.approx(sum(part[0] for part in beside.parts.values()))
    assert kernels["shared_add"].shown == 1.0


def test_products_show_the_share_of_their_fixed_time_that_the_runtime_says() -> None:
    d = deployment("vllm", "meta/llama-3.1-70b", tensor=4)
    kernel = kernels_of(place(d, decode(8, 1024, d.model.clips)))["up"]
    whole = price(replace(kernel, shown=1.0), d.chip, "vllm")
    shown = price(kernel, d.chip, "vllm")
    assert 0.0 < kernel.shown < 1.0
    assert shown.parts["fixed"][0] == pytest.approx(kernel.shown * whole.parts["fixed"][0])
    assert whole.seconds[0] - shown.seconds[0] == pytest.approx((1.0 - kernel.shown) * whole.parts["fixed"][0])


def test_a_runtime_may_take_kernels_of_another_stack() -> None:
    loaded = load_model("deepseek/deepseek-v3")
    d = deployment("tensorrt-llm", tensor=8)
    d = replace(d, precision=precision_of(loaded, {"experts": "nvfp4"}))
    kernel = kernels_of(place(d, decode(8, 1024, loaded.clips)))["experts"]
    own = price(replace(kernel, stack=""), d.chip, "trtllm").seconds[0]
    assert price(kernel, d.chip, "trtllm").seconds[0] == price(replace(kernel, stack=""), d.chip, "vllm").seconds[0]
    assert price(kernel, d.chip, "trtllm").seconds[0] != own


def test_a_norm_over_all_heads_adds_up_across_ranks() -> None:
    d = deployment("vllm", "minimax/minimax-m2.5", tensor=4)
    names = kernels_of(place(d, decode(8, 1024, d.model.clips)))
    assert names["norm_all_reduce"].dims["bytes"][0] == 8 * 8.0
    heads = deployment("vllm", "qwen/qwen3-32b", tensor=4)
    assert "norm_all_reduce" not in kernels_of(place(heads, decode(8, 1024, heads.model.clips)))


def test_ranks_that_prefill_together_share_steps() -> None:
    d = deployment("tensorrt-llm", attention_data=8, expert=8)
    apart = replace(d, runtime=replace(d.runtime, together=False))
    arguments = (array([[64.0]]), array([[8192.0]]), array([[1024.0]]), array(0.0))
    joint, alone = steady(d, *arguments), steady(apart, *arguments)
    assert joint.joined.min() >= 8.0
    assert joint.tpot.max() < alone.tpot.max()
    lone = steady(d, array([[1.0]]), *arguments[1:])
    assert lone.joined.max() == 1.0


# The fit


def linear(noise: float = 0.0) -> tuple[np.ndarray, np.ndarray, list[Prior]]:
    """Residuals of 60 runs over three constants whose logarithms are off by 0.3, -0.2 and 0.1."""
    generator = np.random.default_rng(7)
    slopes = generator.uniform(0.0, 1.0, (60, 3))
    return -slopes @ np.array([0.3, -0.2, 0.1]) + noise * generator.standard_normal(60), slopes, [Prior(1.0, 50.0)] * 3


def test_least_squares_finds_the_constants_and_outliers_do_not_move_them() -> None:
    base, slopes, priors = linear()
    assert solved(np.zeros(3), base, slopes, priors, 0.1) == pytest.approx([0.3, -0.2, 0.1], abs=1e-4)
    base[:4] += 5.0
    assert solved(np.zeros(3), base, slopes, priors, 0.1) == pytest.approx([0.3, -0.2, 0.1], abs=0.02)


def test_a_tight_prior_holds_and_a_bound_binds() -> None:
    base, slopes, priors = linear()
    held = solved(np.zeros(3), base, slopes, [Prior(1.0, 1e-4), *priors[1:]], 0.1)
    assert held[0] == pytest.approx(0.0, abs=1e-3)
    bound = solved(np.zeros(3), base, slopes, [Prior(1.0, 50.0, 1.1), *priors[1:]], 0.1)
    assert bound[0] == pytest.approx(np.log(1.1))


def test_without_a_group_its_runs_are_predicted_by_the_others() -> None:
    base, slopes, priors = linear(0.05)
    runs = tuple(run_of(id=str(index), model="a" if index < 20 else "b") for index in range(60))
    fit = Linear(runs, np.zeros(3), base, slopes, tuple(priors), 0.1)
    left = fit.without(lambda run: run.model)
    others = solved(np.zeros(3), base[20:], slopes[20:], priors, 0.1)
    assert left[:20] == pytest.approx(base[:20] + slopes[:20] @ others)


def test_constants_go_into_the_files_and_come_back(tmp_path: Path) -> None:
    root = Path(__file__).parents[1]
    for folder in ("mappers/runtimes", "chips/generations"):
        (tmp_path / folder).mkdir(parents=True)
        for file in (root / folder).glob("*.yaml"):
            (tmp_path / folder / file.name).write_text(file.read_text(encoding="utf-8"), encoding="utf-8")
    values = {name: end_to_end_fit.PRIORS[name.kind].value for name in end_to_end_fit.NAMES}
    values[Name("launch", "vllm")] = 12.3e-6
    end_to_end_fit.write(values, tmp_path, "a test")
    written = load_runtime(str(tmp_path / "mappers" / "runtimes" / "vllm.yaml"))
    assert written.host.launch == pytest.approx(12.3e-6)
    assert written.host.sequence == pytest.approx(5e-6)
    text = (tmp_path / "chips" / "generations" / "hopper.yaml").read_text(encoding="utf-8")
    assert text.count("fixed: 4.5 us") >= 3 and "skew: 1.99" in text


def test_numbers_are_written_with_units_and_only_where_one_place_fits() -> None:
    assert [quantity(value) for value in (5.73e-3, 9.89e-6, 2e-8)] == ["5.73 ms", "9.89 us", "20 ns"]
    assert put("a: 1\nb: 2\n", r"^b: (\d)", "3") == "a: 1\nb: 3\n"
    with pytest.raises(ValueError, match="expected one"):
        put("a: 1\na: 2\n", r"^a: (\d)", "3")


def test_host_times_of_a_first_token_add_up() -> None:
    runs = [run_of()]
    first = first_of(runs, predicted(layers=10.0))
    host = load_runtime("vllm").host
    shipped_values = {
        name: getattr(host, name.kind) if name.kind in ("arrival", "expert_layer") else 0.0
        for name in FIRST_NAMES
        if name.of == "vllm"
    }
    values = {name: shipped_values.get(name, 1e-9) for name in FIRST_NAMES}
    expected = ttft(runs, predicted(layers=10.0), changed(harness(), values))
    assert first.seconds(values) == pytest.approx(expected)


# Bands


def test_shipped_bands_hold_the_prediction_and_widen_with_distance() -> None:
    found = shipped()
    assert len(found) == 3 * 2 * 2 * 3
    for (stack, time, kind, distance), band in found.items():
        assert 0.0 < band.low < band.high and band.low < 1.15 and band.high > 0.87
        if distance == "other":
            near = found[stack, time, kind, "sibling"]
            assert band.high / band.low > near.high / near.low


def test_coverage_counts_runs_inside_their_bands() -> None:
    runs = tuple(run_of(id=str(index), tpot=0.01 * ratio) for index, ratio in enumerate((0.8, 1.0, 1.05, 1.3)))
    done = Evaluated(runs, np.full(4, 0.01), np.full(4, 0.0601))
    bands = {key: Band(0.9, 1.0, 1.1) for key in shipped()}
    found = list(coverage(done, bands))
    assert share(found, "tpot") == 0.5 and share(found, "ttft") == 1.0
    assert np.isnan(share([], "tpot"))


# Against measurements


@pytest.fixture(scope="module")
def quoted() -> Evaluated:
    return evaluate(read(carried()))


def test_the_carried_set_spans_chips_stacks_and_flags() -> None:
    runs = read(carried())
    assert 60 <= len(runs) <= 90
    assert {run.stack for run in runs} == {"vllm", "sglang", "trtllm"}
    assert {run.chip for run in runs} == {"h100_sxm", "h200_sxm", "b200_sxm", "b300_sxm", "gb200", "gb300"}
    assert set(FLAGS) - {"repeat"} <= {flag for run in runs for flag in run.flags}
    head = carried().read_text(encoding="utf-8")
    assert "Apache-2.0" in head and "aiconfigurator-core 0.12.0" in head


def test_quoted_runs_are_predicted_within_the_gates(quoted: Evaluated) -> None:
    """A thirtieth of the whole table."""
    for time, gate in (("tpot", 12.9), ("ttft", 31.0)):
        rest = quoted.chosen(unfitted(time))
        found = errors(rest.times(time), rest.measured(time))
        assert found.points >= 35 and found.mape <= gate
    pools = quoted.chosen(lambda run: run.disaggregated and counted("tpot")(run))
    assert errors(pools.tpot, pools.measured("tpot")).mape <= 17.5


def test_the_section_reports_flagged_runs_apart(quoted: Evaluated) -> None:
    section = section_of(quoted, few=True)
    assert {row.level for row in section.rows} == {"end to end"}
    assert {left.flag for left in section.left} >= {"eager", "capped", "nodes"}
    assert len(section.gates) == 7 and any("median" in note for note in section.notes)
    assert all(row.errors.points for row in section.rows)


def test_prefill_that_cannot_keep_up_leaves_fewer_to_decode() -> None:
    ranks = Ranks(8, 1, 1, 8, 64.0, workers=1)
    few = run_of(model="deepseek-ai/DeepSeek-R1", chip="b200_sxm", stack="trtllm", clients=256.0, input=8192.0,
                 decode=replace(ranks, workers=2), prefill=ranks)  # fmt: skip
    many = replace(few, prefill=replace(ranks, workers=16))
    tokens, waits = end_to_end_pools.predict([few, many], lambda batch, pool: batch.deployment(pool))
    assert tokens[0] < tokens[1] and waits[0] > waits[1]


needs_tables = pytest.mark.skipif(not MEASUREMENTS.is_dir(), reason="the folder of published measurements is not here")


@needs_tables
def test_dgx_spark_decodes_as_measured_with_constants_of_other_models() -> None:
    points = spark.read(MEASUREMENTS / "dgx_spark_llamacpp.csv")
    left = spark.left_out(points)
    pairs = [(times[one.batch == 1], one.seconds[one.batch == 1]) for one, times in zip(points, left, strict=True)]
    alone = errors(*(np.concatenate(items) for items in zip(*pairs, strict=True)))
    assert alone.points == 40 and alone.mape <= 4.5
    rest = [(times[one.batch > 1], one.seconds[one.batch > 1]) for one, times in zip(points, left, strict=True)]
    assert errors(*(np.concatenate(items) for items in zip(*rest, strict=True))).mape <= 20.0


@needs_tables
def test_published_figures_are_compared_with_their_worst_named() -> None:
    found = {one.level: one for one in published.all_of(MEASUREMENTS)}
    assert set(found) == {"saturated", "first token", "published"}
    saturated = found["saturated"]
    assert len(saturated.names) == saturated.measured.size == 250
    dense = np.array([name.startswith("Llama-3") for name in saturated.names])
    hbm = np.array([not chip.startswith("RTX") for chip in saturated.chips])
    assert errors(saturated.predicted[dense & hbm], saturated.measured[dense & hbm]).mape <= 20.0


def test_bands_are_said_to_hold_what_they_hold(quoted: Evaluated) -> None:
    between, first = bands(quoted)
    assert "TPOT" in between and "TTFT" in first and "80 % band" in between


@pytest.mark.slow
def test_the_whole_table_meets_its_gates() -> None:
    """Needs the extra `measurements`."""
    pytest.importorskip("aiconfigurator_core")
    source = table()
    assert source is not None
    (section, *_) = sections()
    missed = [
        f"{gate.gate.name}: {row.errors.mape:.1f} %"
        for gate in section.gates
        for row in gate.rows
        if row.errors.mape > gate.gate.gate
    ]
    assert not missed
    done = evaluate(read(source))
    for time in ("tpot", "ttft"):
        assert 0.70 <= share(coverage(done, shipped()), time) <= 0.88
