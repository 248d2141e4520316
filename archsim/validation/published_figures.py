"""Figures that vendors and teams published: saturated throughput, first tokens of lone requests, single points.

All are read from a folder of tables that is not part of archsim. A saturated server is a closed loop with more
clients than it has memory for; a first token of a bare session is one prefill step without any host time.
"""

import csv
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from archsim.arrays import Array, array
from archsim.chip.schema import load_chip
from archsim.engine.step import run_step
from archsim.explore.scenario import EXPERT_SKEW
from archsim.mapping.place import Deployment, place
from archsim.mapping.runtime import HostFile, load_runtime
from archsim.mapping.split import Split, split
from archsim.serving.steady import steady
from archsim.validation.deployments import column
from archsim.workload.model import precision_of
from archsim.workload.schema import load_model
from archsim.workload.step import decode, prefill

Line = Mapping[str, str]
Key = tuple[str, str, str, str]  # model, chip, precision, parallelism

MOST = 2048.0  # requests that TensorRT-LLM runs at once if memory lets it: its default batch
MODELS = {
    "Llama-3.1-8B": "meta/llama-3.1-8b",
    "Llama-3.3-70B": "meta/llama-3.1-70b",
    "Llama-3.1-70B": "meta/llama-3.1-70b",
    "Llama-3.1-405B": "meta/llama-3.1-405b",
    "Llama-4-Scout": "meta/llama-4-scout",
    "Llama-4-Maverick": "meta/llama-4-maverick",
    "Qwen3-235B-A22B": "qwen/qwen3-235b-a22b",
    "Qwen3-30B-A3B": "qwen/qwen3-coder-30b-a3b",
    "Llama-2-7B": "meta/llama-2-7b",
    "Llama-2-70B": "meta/llama-2-70b",
    "Mixtral-8x7B": "mistral/mixtral-8x7b",
}
CHIPS = {
    "H100": "nvidia/h100-sxm",
    "H200": "nvidia/h200-sxm",
    "B200": "nvidia/b200-sxm",
    "GB200": "nvidia/gb200",
    "RTXPRO6000": "nvidia/rtx-pro-6000-server",
    "A100": "nvidia/a100-sxm-80gb",
    "L40S": "nvidia/l40s",
}
FORMATS: Mapping[str, Mapping[str, str]] = {
    "FP4": {"weights": "nvfp4", "kv": "fp8"},
    "FP8": {"weights": "fp8", "kv": "fp8"},
    "FP16": {},
}


@dataclass(frozen=True, eq=False)
class Compared:
    """Predictions of published figures in one unit: what they are of, and both (n,)."""

    level: str
    names: tuple[str, ...]
    chips: tuple[str, ...]
    unit: str
    predicted: Array
    measured: Array


def throughput(folder: Path) -> Compared:
    """Output tokens a second of TensorRT-LLM with all requests queued at once."""
    lines = [line for line in lines_of(folder / "trtllm_v1.0_throughput.csv") if line["model"] in MODELS]
    return _compared("saturated", lines, "tok/s", "output_tps_total", _saturated)


def first_tokens(folder: Path) -> Compared:
    """Milliseconds of one prompt in a bare session of TensorRT-LLM 0.9."""
    lines = [line for line in lines_of(folder / "trtllm_ttft_batch1_v0.9.csv") if line["model"] in MODELS]
    lines = [{**line, "parallelism": f"TP{line['tp']}"} for line in lines]
    return _compared("first token", lines, "ms", "ttft_ms", _prompts)


def lines_of(path: Path) -> list[dict[str, str]]:
    """The rows of a table whose remarks start with #."""
    with path.open(encoding="utf-8") as file:
        return list(csv.DictReader(line for line in file if not line.startswith("#")))


def _compared(
    level: str, lines: list[dict[str, str]], unit: str, key: str, predict: Callable[[Key, list[Line]], Array]
) -> Compared:
    """Lines predicted in groups of one structure each."""
    groups: dict[Key, list[int]] = {}
    for index, line in enumerate(lines):
        name = (line["model"], line["gpu"], line["precision"], line["parallelism"].replace(" ", ""))
        groups.setdefault(name, []).append(index)
    found = np.zeros(len(lines))
    for name, members in groups.items():
        found[members] = predict(name, [lines[index] for index in members])
    names = tuple(f"{line['model']} {line['isl']}/{line.get('osl', 1)}" for line in lines)
    return Compared(
        level, names, tuple(line["gpu"] for line in lines), unit, found, np.array([float(line[key]) for line in lines])
    )


def deployment_of(key: Key) -> Deployment:
    """What a group of lines deploys."""
    name, gpu, precision, parallelism = key
    model = load_model(MODELS[name])
    formats = dict(FORMATS[precision])
    if precision == "FP4" and "Qwen3" in name:
        formats |= {"attention": "bf16"}
    chip, runtime = load_chip(CHIPS[gpu]), load_runtime("tensorrt-llm")
    return Deployment(model, precision_of(model, formats), _split(parallelism), chip, runtime, array(EXPERT_SKEW))


def _split(text: str) -> Split:
    """TP4, TP2,PP1 or DEP8."""
    degrees = {"TP": 1, "PP": 1, "DEP": 1}
    for part in text.split(","):
        word = part.rstrip("0123456789")
        degrees[word] = int(part[len(word) :])
    if degrees["DEP"] > 1:
        return split(1, degrees["DEP"], degrees["DEP"])
    return split(tensor=degrees["TP"], pipeline=degrees["PP"])


def _saturated(key: Key, lines: list[Line]) -> Array:
    """Output tokens a second at saturation."""
    prompt, output = (column(float(line[name]) for line in lines) for name in ("isl", "osl"))
    d = deployment_of(key)
    loop = steady(d, np.full_like(prompt, MOST), prompt, output, array(0.0))
    return np.broadcast_to(loop.requests_per_second * output, prompt.shape).ravel()


def _prompts(key: Key, lines: list[Line]) -> Array:
    """Milliseconds of one prompt alone, without host time."""
    d = deployment_of(key)
    d = replace(d, runtime=replace(d.runtime, host=HostFile()))
    tokens = array([float(line["isl"]) for line in lines])
    step = run_step(place(d, prefill(tokens, array(0.0), array(1.0), d.model.clips)), d.chip, d.runtime.stack)
    return np.asarray(np.broadcast_to(step.latency, tokens.shape) * 1e3)


@dataclass(frozen=True)
class Point:
    """A single published figure and how it is predicted: a decode or prefill step of a deployment."""

    id: str
    model: str
    chip: str
    runtime: str
    formats: Mapping[str, str]
    degrees: tuple[int, int, int]
    sequences: float
    length: float
    phase: str
    per: float = 1.0
    skew: float = EXPERT_SKEW


EVEN = 0.0  # experts chosen at random, or rebalanced to it
WIDE: Mapping[str, str] = {"weights": "fp8_block", "kv": "bf16"}
EIGHT_BITS: Mapping[str, str] = {"weights": "fp8"}
H100, SPARK = "nvidia/h100-sxm", "nvidia/dgx-spark-gb10"
POINTS = (
    Point("sgl_h100_prefill_1024", "deepseek/deepseek-v3", H100, "sglang", WIDE, (1, 32, 32), 512, 1024, "prefill", 4),
    Point("sgl_h100_prefill_4096", "deepseek/deepseek-v3", H100, "sglang", WIDE, (1, 32, 32), 128, 4096, "prefill", 4),
    Point(
        "sgl_h100_prefill_4096_perfect", "deepseek/deepseek-v3", H100, "sglang", WIDE, (1, 32, 32), 128, 4096,
        "prefill", 4, EVEN,
    ),
    Point("spark_l8b_b1", "meta/llama-3.1-8b", SPARK, "sglang", EIGHT_BITS, (1, 1, 1), 1, 2048, "prefill"),
    Point("spark_l8b_b1_dec", "meta/llama-3.1-8b", SPARK, "sglang", EIGHT_BITS, (1, 1, 1), 1, 2048, "decode"),
    Point("spark_l8b_b32_dec", "meta/llama-3.1-8b", SPARK, "sglang", EIGHT_BITS, (1, 1, 1), 32, 2048, "decode"),
    Point("spark_l70b_b1", "meta/llama-3.1-70b", SPARK, "sglang", EIGHT_BITS, (1, 1, 1), 1, 2048, "prefill"),
    Point("spark_l70b_b1_dec", "meta/llama-3.1-70b", SPARK, "sglang", EIGHT_BITS, (1, 1, 1), 1, 2048, "decode"),
)  # fmt: skip


def points(folder: Path) -> Compared:
    """The single points that a step predicts, in tokens a second."""
    lines = {line["id"]: line for line in lines_of(folder / "published_points.csv")}
    known = [point for point in POINTS if point.id in lines]
    return Compared(
        "published",
        tuple(point.id for point in known),
        tuple(point.chip for point in known),
        "tok/s",
        np.array([_rate(point) for point in known]),
        np.array([float(lines[point.id]["value"]) for point in known]),
    )


def _rate(point: Point) -> float:
    """Tokens a second of a point, of one of the `per` parts that its source counts in."""
    model, chip, runtime = load_model(point.model), load_chip(point.chip), load_runtime(point.runtime)
    tensor, data, expert = point.degrees
    d = Deployment(
        model, precision_of(model, point.formats), split(tensor, data, expert), chip, runtime, array(point.skew)
    )
    count, length = array(point.sequences), array(point.length)
    if point.phase == "prefill":
        step, tokens = prefill(length, array(0.0), count, model.clips), count * length
    else:
        step, tokens = decode(count, length, model.clips), count
    seconds = run_step(place(d, step), chip, runtime.stack).turnaround
    return float((tokens / seconds / point.per).max())


def all_of(folder: Path) -> Iterable[Compared]:
    """Every comparison that the folder has a table for."""
    for name, build in TABLES.items():
        if (folder / name).is_file():
            yield build(folder)


TABLES: Mapping[str, Callable[[Path], Compared]] = {
    "trtllm_v1.0_throughput.csv": throughput,
    "trtllm_ttft_batch1_v0.9.csv": first_tokens,
    "published_points.csv": points,
}
