"""What people see: formulas that multiply out, figures and pages that are safe, JSON that is data."""

import json
import math
import re
from functools import cache
from html.parser import HTMLParser
from pathlib import Path

import pytest
from scenarios import DEEPSEEK, LLAMA_8B, LLAMA_70B, scenario

from archsim import api
from archsim.explore.result import METRICS, Result
from archsim.explore.run import run
from archsim.report import figures, tradeoff
from archsim.report.choice import choice_sentences
from archsim.report.document import to_json
from archsim.report.explain import Section, as_text, explain, explain_one
from archsim.report.formulas import Line, Term, least, named, quantity, rounded_up
from archsim.report.html import to_html
from archsim.report.kernels import BYTES, FLOPS
from archsim.report.point import Point, main_point
from archsim.report.rests import assumptions, calibration
from archsim.report.roofline import roofline
from archsim.report.steps import steps_of, summary
from archsim.report.tables import memory_table, proposal_table, sweep_table, time_table
from archsim.report.terminal import notes
from archsim.report.words import dollars, number, percent, place, sentence, slo_sentence, split_label
from archsim.units import DIMENSIONS

EVIL = "<script>alert(1)</script> & <b>bold</b>"
SCENARIOS = {
    "dense": """
name: dense
model: meta/llama-3.1-8b
pools: {gpu: {chip: nvidia/h100-sxm, count: 4}}
precision: {weights: fp8, kv: fp8}
batch: 16
context: 3000
traffic: {input: 600, output: 150}
slo: {ttft: 3 s, interactivity: 40 tok/s}
""",
    "experts": """
name: experts
model: deepseek/deepseek-v3
pools: {gpu: {chip: nvidia/h200-sxm, count: 32}}
mapper: expert-parallel
batch: 100
context: 10000
economics: {by: capital, years: 4}
""",
    "windows": f"""
name: "{EVIL}"
model: openai/gpt-oss-120b
pools: {{gpu: {{chip: nvidia/b200-sxm, count: 2}}}}
batch: 5
context: 2000
traffic: {{input: 2000, output: 300}}
slo: {{tpot: 1 ns}}
""",
    "stages": """
name: stages
model: meta/llama-3.1-70b
pools: {gpu: {chip: nvidia/h100-sxm, count: 32}}
precision: {weights: fp8, kv: fp8}
split: {tensor: 16, pipeline: 2, context: 2}
placement: {micro_batches: 2, sequence_parallel: true}
batch: 64
context: 20000
traffic: {input: 3000, output: 200, cached: 1000}
""",
    "copies": """
name: copies
model: deepseek/deepseek-v3
pools: {gpu: {chip: nvidia/h200-sxm, count: 32}}
mapper: expert-parallel
placement: {redundant_experts: 32, imbalance: 0.6}
batch: 1000
context: 4000
""",
    "sparse": """
name: sparse
model: deepseek/deepseek-v3.2
pools: {gpu: {chip: nvidia/h200-sxm, count: 16}}
mapper: expert-parallel
batch: 64
context: 30000
""",
    "recurrent": """
name: recurrent
model: qwen/qwen3-next-80b-a3b
pools: {gpu: {chip: nvidia/h100-sxm, count: 8}}
batch: 32
context: 9000
speculation: {drafts: 2, acceptance: 0.7}
""",
    "too long": """
name: too long
model: meta/llama-3.1-70b
pools: {gpu: {chip: nvidia/h100-sxm, count: 1}}
precision: {weights: fp8, kv: fp8}
batch: [1, 2]
context: 131072
traffic: {input: 100, output: 10}
""",
}
ANSWERS = [("dense", "step"), ("dense", "steady"), ("experts", "step"), ("windows", "step"), ("windows", "steady")]
ANSWERS += [("stages", "step"), ("stages", "steady"), ("copies", "step"), ("sparse", "step"), ("recurrent", "step")]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("scenarios")
    for name, text in SCENARIOS.items():
        (found / f"{name}.yaml").write_text(text, encoding="utf-8")
    return found


@cache
def result(path: Path, mode: str) -> Result:
    return api.run(path, mode=mode)


@cache
def point(path: Path, mode: str) -> Point:
    return main_point(result(path, mode))


@pytest.fixture(params=ANSWERS, ids="-".join)
def answer(request: pytest.FixtureRequest, folder: Path) -> Point:
    name, mode = request.param
    return point(folder / f"{name}.yaml", mode)


# Formulas

UNITS = {unit: size for dimension in reversed(DIMENSIONS.values()) for unit, size in dimension.units.items()}
OWN = {"USD": 1.0, "USD/h": 1.0, "USD/kWh": 1.0, "requests/s": 1.0, "tokens": 1.0, "tok/s": 1.0}
NUMBER = re.compile(r"((?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?(?:e[+-]?\d+)?)(?: (?!x )([A-Za-z][A-Za-z/0-9]*))?")


def evaluated(text: str) -> float:
    """The value of numbers as they are shown: "2 x 64 x 1 B / 3.35 TB/s"."""

    def plain(match: re.Match[str]) -> str:
        unit = match[2] or ""
        size = {**UNITS, **OWN}.get(unit, 1.0)
        if unit.endswith("FLOP"):
            size = UNITS[f"{unit}/s"]
        if unit == "kW" and "USD/kWh" in text:
            size = 1.0
        return f"({match[1].replace(',', '')}*{size!r})"

    return float(eval(NUMBER.sub(plain, text).replace(" x ", " * "), {"ceil": math.ceil, "min": min, "max": max}))


def lines(sections: list[Section]) -> list[Line]:
    return [line for section in sections for line in section.every_line()]


def test_what_explain_shows_multiplies_out(answer: Point) -> None:
    shown = [line for line in lines(explain(answer)) if line.term is not None]
    assert len(shown) > 30
    for line in shown:
        assert line.term is not None
        value = evaluated(line.term.numbers)
        assert value == pytest.approx(line.value, rel=5e-3), line.text()
        assert evaluated(line.result) == pytest.approx(line.value, rel=1e-3), line.text()


def test_flops_bytes_and_sums_are_those_of_the_engine(answer: Point) -> None:
    """A line has a formula only where it gives what the engine gave, so a missing one is a formula gone stale."""
    always = {"FLOP", "bytes", "bytes sent", "compute", "link", "one run", "time", "all runs", "host", "TPOT", "step"}
    always |= {"chip", "system", "output", "input", "blended", "energy", "weights", "KV cache", "KV a sequence"}
    always |= {"activations", "reserve", "in all", "requests", "throughput", "user"}
    found = [line for line in lines(explain(answer)) if line.name in always and "interpolated" not in line.note]
    staged = answer.scenario.split.pipeline.max() > 1  # the weights of the fullest stage are not told apart
    stale = [line.text() for line in found if line.term is None and not (staged and line.name == "weights")]
    assert stale == []


def test_every_family_of_kernels_has_its_formulas(folder: Path) -> None:
    kinds = {
        item.kernel.kind
        for name, mode in ANSWERS
        for step in steps_of(point(folder / f"{name}.yaml", mode))
        for item in step.by_name
    }
    assert kinds == set(BYTES) | {"all_reduce", "all_to_all"}
    assert set(FLOPS) == set(BYTES) - {"elementwise"}


def test_explanations_name_kernels_of_one_name_apart(folder: Path) -> None:
    windows = point(folder / "windows.yaml", "step")
    text = as_text(windows, explain(windows))
    assert "attention (moe): generation attention" in text and "attention (windowed_moe): " in text
    one = as_text(windows, explain_one(windows, "experts"))
    assert "Constants of experts" in one and "up: gemm" not in one
    with pytest.raises(ValueError, match="did you mean 'experts'"):
        explain_one(windows, "exprts")


def test_terms_are_written_as_they_are_computed() -> None:
    a, b = named("a", 1500.0), named("b", 2e9, "bytes")
    term = 2 * (a + 1) / (b - 3 * b) * (1 / a)
    assert term.symbols == "2 x (a + 1) / (b - 3 x b) x 1 / a"
    assert term.numbers == "2 x (1,500 + 1) / (2 GB - 3 x 2 GB) x 1 / 1,500"
    assert term.value == pytest.approx(2 * 1501 / -4e9 / 1500)
    assert (a / (b / a)).symbols == "a / (b / a)"
    assert least(a, rounded_up(a / 7)).numbers == "min(1,500, ceil(1,500 / 7))"
    assert rounded_up(named("n", 3.0)).value == 3.0
    assert Line("n", None, 1.0, "time").formula == "" and Line("n", Term(1.0, "1", "1"), 1.0, "").formula == ""


# Plain numbers


def test_causes_and_lanes_sum_to_the_span(answer: Point) -> None:
    for step in steps_of(answer):
        assert sum(step.causes().values()) == pytest.approx(step.span, rel=1e-6)
        assert sum(share for _, share in summary(step)) == pytest.approx(1.0, rel=1e-6)
        for lane in step.lanes:
            assert sum(lane.parts.values()) + sum(lane.gaps.values()) == pytest.approx(step.span, rel=1e-6)
        for item in step.by_name:
            assert sum(item.parts.values()) == pytest.approx(item.seconds, rel=1e-6)
            assert 0 <= item.efficiency <= 1 + 1e-9
        assert all(0 <= share <= 1 for share in (step.compute_share, step.memory_share, step.link_share))


def test_the_point_alone_is_the_point_of_the_sweep(answer: Point) -> None:
    for name in METRICS:
        swept = float(answer.result.metric(name).ravel()[answer.index])
        assert answer.metric(name) == pytest.approx(swept, rel=1e-9), name


def test_the_chosen_proposal_is_first_and_the_best(answer: Point) -> None:
    first, *others = answer.proposals
    assert first.chosen and not any(other.chosen for other in others)
    assert len(answer.proposals) == answer.result.proposals
    assert first.metrics["tpot"] == pytest.approx(answer.metric("tpot"), rel=1e-9)


def test_a_report_says_what_was_looked_at_and_why_the_plan_was_chosen() -> None:
    base = {"batch": 64, "context": 8192, "precision": {"weights": "fp8", "kv": "fp8"}}
    point = main_point(run(scenario(LLAMA_70B, "nvidia/h100-sxm", 8, **base)))
    first, second = choice_sentences(point)
    assert first.startswith("Auto looked at 4 splits") and "no pipeline stages" in first and "no context ranks" in first
    assert second.startswith("3 of 4 fit; TP8 has the lowest time per output token") and "next is TP4" in second
    assert choice_sentences(main_point(run(scenario(LLAMA_8B, batch=1, context=100)))) == []  # one proposal, one chip
    few = main_point(run(scenario(DEEPSEEK, "nvidia/h200-sxm", 8, runtime="llama.cpp", batch=1, context=1000)))
    assert "llama.cpp has none for this model" in choice_sentences(few)[0]


def test_a_report_marks_risks_to_quality_the_most_sensitive_first() -> None:
    s = scenario(LLAMA_8B, batch=1, context=100, precision={"weights": "nvfp4", "kv": "fp8"})
    result = run(s)
    (note,) = [text for text in notes(main_point(result)) if text.startswith("Risks to quality")]
    assert note.index("attention projections in nvfp4") < note.index("KV cache in fp8") < note.index("dense weights")
    risks = json.loads(to_json(result))["scenario"]["quality_risks"]
    assert risks[0].startswith("attention projections") and len(risks) >= 3
    assert "KV cache in fp8: errors stay" in to_html(result)
    assert not [text for text in notes(main_point(run(scenario(LLAMA_8B, batch=1, context=100)))) if "quality" in text]


def test_a_better_plan_that_misses_the_slo_is_named() -> None:
    """With 8 TB/s two replicas of four chips decode fastest, and a prompt has half the chips."""

    def said(ttft: str) -> str:
        base = {"batch": 64, "context": 8192, "precision": {"weights": "fp8", "kv": "fp8"}, "slo": {"ttft": ttft}}
        s = scenario(LLAMA_70B, "nvidia/h100-sxm", 8, **base)
        return choice_sentences(main_point(run(s, fields={"chip.memory.bandwidth": 8e12})))[1]

    assert "TP4, 2 replicas has the lowest time per output token" in said("2 s")
    assert "; of those that keep the SLO TP8 has the lowest time per output token" in said("350 ms")
    assert said("350 ms").endswith("TP4, 2 replicas has 15.6 ms but misses TTFT.")
    assert "none keeps the SLO" in said("1 ms") and "TP4, 2 replicas has the lowest" in said("1 ms")


def test_values_are_written_for_people() -> None:
    assert [number(value) for value in (8192.0, 0.03123, 1.5, math.nan, 1e-9)] == [
        "8,192",
        "0.0312",
        "1.50",
        "n/a",
        "1.00e-09",
    ]
    assert [percent(value) for value in (0.14, 0.032, 1e-5, 0.0, 1.0)] == ["14 %", "3.2 %", "<0.1 %", "0 %", "100 %"]
    assert [dollars(value) for value in (1.929, 0.04123, 23600.0)] == ["$1.93", "$0.0412", "$23,600"]
    assert [quantity(value, "time") for value in (1e-6, 3.5e-4)] == ["1 us", "350 us"]
    assert split_label({"tensor": 8}) == "TP8" and split_label({}) == "TP1"
    assert split_label({"attention_data": 64, "expert": 64}) == "attention DP64, EP64"
    assert split_label({"tensor": 4, "data": 2, "pipeline": 3, "context": 2}) == "TP4, PP3, CP2, 2 replicas"


def test_the_answer_in_a_sentence(folder: Path) -> None:
    step = sentence(point(folder / "dense.yaml", "step"))
    assert step.startswith(
        "Llama 3.1 8B in fp8 on 4 x NVIDIA H100 SXM5 80GB with vLLM decodes 16 sequences of 3,000 tokens"
    )
    assert re.search(r"at [\d.]+ tok/s/user: TPOT [\d.]+ ms, [\d,]+ tok/s of output, \$[\d.]+ per million output", step)
    assert re.search(r"chosen: TP\d, .*among \d+ proposals|chosen: TP\d among \d+ proposals", step)
    missed = slo_sentence(result(folder / "windows.yaml", "steady"))
    assert "misses the SLO (TPOT at most 1.00 ns)" in missed and missed.endswith("shown is the best one without it.")
    assert "keep the SLO" in slo_sentence(result(folder / "dense.yaml", "steady"))


def test_tables_have_a_cell_for_every_column(answer: Point) -> None:
    steps = steps_of(answer)
    tables = [proposal_table(answer), memory_table(answer), *(time_table(step) for step in steps)]
    tables += [sweep_table(answer.result, answer.index)] if answer.result.axes else []
    for table in tables:
        assert table.rows and all(len(row) == len(table.columns) for row in table.rows), table.title
        assert not any("nan" in cell for row in table.rows for cell in row)


def test_a_sweep_shows_a_dozen_points_and_marks_the_best(folder: Path) -> None:
    answer = point(folder / "dense.yaml", "steady")
    table = sweep_table(answer.result, answer.index)
    (marked,) = table.marked
    assert 10 <= len(table.rows) <= 14
    assert table.rows[marked][0] == number(answer.result.point(answer.index)["batch"])


def test_assumptions_about_kernels_that_do_not_run_are_left_out(answer: Point) -> None:
    shown = assumptions([answer])
    assert {source.ref for source in shown} <= {source.ref for source in answer.result.assumptions}
    borrowed = {of for source in shown for of in source.of if of.startswith("kernels.")}
    assert shown and "kernels.ideal" not in borrowed
    if "H100" in answer.scenario.chip.name:  # its fp8 constants are measured, those of other formats borrowed
        assert not borrowed
    table = calibration([answer])
    assert table is not None and all(row[3] for row in table.rows)


def test_files_of_the_catalogue_are_called_the_same_everywhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    root = Path(__file__).parent.parent
    monkeypatch.chdir(root)
    assert place("chips/nvidia/h100-sxm.yaml") == "chips/nvidia/h100-sxm.yaml"
    monkeypatch.chdir(tmp_path)
    assert place(str(root / "mappers/runtimes/vllm.yaml")) == "mappers/runtimes/vllm.yaml"
    assert place("mine.yaml") == "mine.yaml"


# JSON


def test_json_is_strict_complete_and_the_same_every_time(folder: Path) -> None:
    path = folder / "dense.yaml"
    text = to_json(result(path, "step"), result(path, "steady"))
    data = json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    assert data["archsim"] == 1 and [answer["mode"] for answer in data["answers"]] == ["step", "steady"]
    assert text == json.dumps(data, sort_keys=True, indent=1) + "\n"
    assert text == to_json(*(api.run(path, mode=mode) for mode in ("step", "steady")))
    assert str(folder) not in text
    for answer in data["answers"]:
        assert set(answer["metrics"]) == set(METRICS)
        assert answer["best"]["metrics"]["tpot"] > 0 and answer["refusal"] is None


def test_json_of_what_is_infeasible_is_null_with_a_reason(folder: Path) -> None:
    data = json.loads(to_json(result(folder / "too long.yaml", "step")))
    (answer,) = data["answers"]
    assert answer["metrics"]["tpot"]["values"] == [None, None]
    assert answer["reasons"] == ["memory", "memory"] and answer["best"] is None
    assert answer["refusal"]["needed"] > answer["refusal"]["available"] and answer["refusal"]["fixes"]


# HTML


class Page(HTMLParser):
    """Ids, tags and the contents of scripts of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.ids: list[str] = []
        self.tags: list[str] = []
        self.scripts: list[str] = []
        self.words: list[str] = []
        self.inside = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.inside = tag
        self.ids += [value for name, value in attributes if name == "id" and value]
        if tag == "script":
            self.scripts.append("")

    def handle_endtag(self, tag: str) -> None:
        self.inside = ""

    def handle_data(self, data: str) -> None:
        if self.inside == "script":
            self.scripts[-1] += data
        else:
            self.words.append(data)


@cache
def page(path: Path, *modes: str) -> Page:
    return Page(to_html(*(result(path, mode) for mode in modes), command="archsim run it"))


def test_a_page_holds_its_figures_and_plotly_once(folder: Path) -> None:
    found = page(folder / "dense.yaml", "step", "steady")
    data, library, start = found.scripts
    drawn = json.loads(data)
    assert set(drawn) <= set(found.ids)
    assert len(drawn) == 2 * 8  # trade-off, operators and lanes twice each, roofline, memory
    assert len(library) > 1e6 and "newPlot" in start
    assert "nan" not in data.lower().replace("nano", "")
    text = " ".join(found.words)
    for part in (
        "Steady state",
        "One decode step",
        "How to reproduce it",
        "archsim run it",
        "What the cost assumes",
        "PUE",
    ):
        assert part in text or part.lower() in text


def test_a_page_loads_nothing(folder: Path) -> None:
    text = to_html(result(folder / "dense.yaml", "step"))
    head = text.partition("<script")[0]
    assert [word for word in ("src=", "@import", "url(", 'href="http', '<link rel="style') if word in head] == []


def test_names_are_text_wherever_they_stand(folder: Path) -> None:
    text = to_html(result(folder / "windows.yaml", "steady"))
    assert EVIL not in text
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in text
    found = Page(text)
    assert found.tags.count("script") == 3
    assert figures.text(EVIL) == "&lt;script&gt;alert(1)&lt;/script&gt; &amp; &lt;b&gt;bold&lt;/b&gt;"


def test_a_page_of_what_does_not_fit_says_why(folder: Path) -> None:
    found = page(folder / "too long.yaml", "step")
    text = " ".join(found.words).replace("\u00a0", " ")
    for part in ("cannot run", "would need", "What would help", "does not fit", "What the answer rests on"):
        assert part in text
    assert len(json.loads(found.scripts[0])) == 1  # the memory plan


def test_a_page_with_one_answer_that_fits_and_one_that_does_not(folder: Path) -> None:
    found = page(folder / "too long.yaml", "step", "steady")
    assert "cannot run" in " ".join(found.words) and "serves" in " ".join(found.words)


def test_the_trade_off_goes_through_the_point(answer: Point) -> None:
    found = tradeoff.curve(answer)
    assert found is not None and found.best is not None
    assert found.metrics["tpot"][found.best] == pytest.approx(answer.metric("tpot"), rel=1e-9)
    for figure in (tradeoff.throughput(found, answer), tradeoff.cost(found, answer)):
        assert all(math.isfinite(value) for trace in figure["data"] for value in trace["y"])


def test_every_kernel_stands_in_the_roofline_and_none_above_its_roof(answer: Point) -> None:
    steps = steps_of(answer)
    drawn = roofline(steps)
    marks = [trace for trace in drawn["data"] if trace["type"] == "scatter" and "markers" in trace["mode"]]
    kernels = sum(len(trace["x"]) for trace in marks if trace["name"] != "ridge point")
    assert kernels == sum(1 for step in steps for item in step.by_name if item.flops or item.efficiency > 0)
    for step in steps:
        for item in (item for item in step.by_name if item.flops):
            bandwidth = float(step.chip.memory.bandwidth[0])
            assert item.flops / item.seconds <= min(step.peak(item), item.intensity * bandwidth) * (1 + 1e-9)


def test_bars_of_a_step_sum_to_it(answer: Point) -> None:
    for step in steps_of(answer):
        bars = figures.lanes(step)
        sums: dict[str, float] = {}
        for trace in bars["data"]:
            for lane, value in zip(trace["y"], trace["x"], strict=True):
                sums[lane] = sums.get(lane, 0.0) + value
        assert max(sums.values()) == pytest.approx(min(sums.values()), rel=1e-6)
        whole = sum(sum(trace["x"]) for trace in figures.operators(step)["data"])
        assert whole > 0
