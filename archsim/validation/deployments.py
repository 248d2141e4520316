"""From a measured run to what archsim deploys: model, chip, stack, precision, split. What the file leaves out is here.

Formats of KV caches and of unquantised modules are not in the table; they follow the recipes and checkpoints of the
runs. Runs that share their structure are priced together: numbers (clients, lengths, degrees) are zipped along an axis.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from archsim.arrays import Array, array
from archsim.chip.model import Chip
from archsim.chip.schema import load_chip
from archsim.explore.scenario import EXPERT_SKEW
from archsim.mapping.place import Deployment
from archsim.mapping.runtime import Runtime, load_runtime
from archsim.mapping.split import Split, split
from archsim.validation.rows import Ranks, Run
from archsim.workload.model import Model, precision_of
from archsim.workload.schema import load_model

MODELS = {
    "meta-llama/Llama-3.1-70B": "meta/llama-3.1-70b",
    "meta-llama/Llama-3.1-8B-Instruct": "meta/llama-3.1-8b",
    "nvidia/Llama-3.1-8B-Instruct-FP8": "meta/llama-3.1-8b",
    "Qwen/Qwen3-32B": "qwen/qwen3-32b",
    "nvidia/Qwen3-32B-NVFP4": "qwen/qwen3-32b",
    "Qwen/Qwen3-235B-A22B-FP8": "qwen/qwen3-235b-a22b",
    "Qwen/Qwen3.5-397B-A17B": "qwen/qwen3.5-397b-a17b",
    "MiniMaxAI/MiniMax-M2.5": "minimax/minimax-m2.5",
    "openai/gpt-oss-120b": "openai/gpt-oss-120b",
    "moonshotai/Kimi-K2.5": "moonshot/kimi-k2.5",
    "zhipuai/GLM-5": "zai/glm-5",
    "deepseek-ai/DeepSeek-R1": "deepseek/deepseek-r1",
    "deepseek-ai/DeepSeek-V3": "deepseek/deepseek-v3",
    "nvidia/DeepSeek-R1-NVFP4": "deepseek/deepseek-r1",
    "nvidia/DeepSeek-V3.1-NVFP4": "deepseek/deepseek-v3",
}
CHIPS = {
    "h100_sxm": "nvidia/h100-sxm",
    "h200_sxm": "nvidia/h200-sxm",
    "b200_sxm": "nvidia/b200-sxm",
    "b300_sxm": "nvidia/b300-sxm",
    "gb200": "nvidia/gb200",
    "gb300": "nvidia/gb300",
}
STACKS = {"vllm": "vllm", "sglang": "sglang", "trtllm": "tensorrt-llm"}
HOPPER = ("h100_sxm", "h200_sxm")
MEAN_LENGTH = 0.9  # of the nominal length, where lengths are spread evenly over 0.8 to 1.0 of it
BLOCKS = ("DeepSeek", "Qwen3-235B", "Qwen3.5", "MiniMax", "GLM")  # released in fp8 with a scale for each block
BF16_ATTENTION = ("DeepSeek", "Qwen3.5", "MiniMax", "GLM", "Kimi")  # 4-bit checkpoints that leave attention alone
BF16_DENSE = ("Qwen3.5", "GLM", "Kimi")  # and dense layers and shared experts too
LARGE = 160e9  # bytes of memory from which SGLang reads prompts in larger chunks
LARGE_CHUNK = 16384
LARGE_SHARE = 0.95  # of that memory, as far as its runs of DeepSeek-R1 on four B200 show what they held


@dataclass(frozen=True)
class Structure:
    """What runs that are priced in one call have in common."""

    model: str
    chip: str
    stack: str
    precision: tuple[tuple[str, str], ...]
    eager: bool = False


@dataclass(frozen=True, eq=False)
class Batch:
    """Runs of one structure, and where they stand in the list they came from."""

    structure: Structure
    runs: tuple[Run, ...]
    places: tuple[int, ...]

    def deployment(self, pool: str = "decode") -> Deployment:
        """What the runs deploy, with one row of degrees a run: arrays (runs, 1)."""
        model, chip, runtime = parts(self.structure)
        precision = precision_of(model, dict(self.structure.precision))
        degrees = degrees_of([ranks_of(run, pool) for run in self.runs], [experts_of(run, pool) for run in self.runs])
        return Deployment(model, precision, degrees, chip, runtime, array(EXPERT_SKEW))

    def column(self, name: str) -> Array:
        """A number of every run, (runs, 1)."""
        return column([getattr(run, name) for run in self.runs])

    def lengths(self) -> tuple[Array, Array]:
        """Mean tokens in and out of a request, (runs, 1)."""
        share = np.where(self.column("burst") > 0, MEAN_LENGTH, 1.0)
        return np.round(self.column("input") * share), np.round(self.column("output") * share)


def column(values: Iterable[float]) -> Array:
    """Values zipped over runs, (runs, 1)."""
    return array(list(values)).reshape(-1, 1)


def batches(runs: Iterable[Run]) -> list[Batch]:
    """Runs gathered by structure. Raises KeyError for a model, chip or stack without an entry."""
    found: dict[Structure, list[tuple[int, Run]]] = {}
    for place, run in enumerate(runs):
        found.setdefault(structure_of(run), []).append((place, run))
    return [
        Batch(structure, tuple(run for _, run in members), tuple(place for place, _ in members))
        for structure, members in found.items()
    ]


def structure_of(run: Run) -> Structure:
    """The structure of a run."""
    precision = tuple(sorted(precision_names(run).items()))
    return Structure(MODELS[run.model], CHIPS[run.chip], STACKS[run.stack], precision, "eager" in run.flags)


@lru_cache(maxsize=128)
def loaded(structure: Structure) -> tuple[Model, Chip, Runtime]:
    """Model, chip and runtime as shipped."""
    return load_model(structure.model), load_chip(structure.chip), runtime_of(structure.stack)


@lru_cache(maxsize=8)
def runtime_of(stack: str) -> Runtime:
    """A runtime as shipped, read once."""
    return load_runtime(stack)


def parts(structure: Structure) -> tuple[Model, Chip, Runtime]:
    """Model, chip and runtime of a structure, in the runtime's settings on that chip."""
    model, chip, runtime = loaded(structure)
    if structure.stack == "sglang" and float(chip.memory.capacity.max()) > LARGE:
        runtime = replace(runtime, chunk=LARGE_CHUNK, utilization=LARGE_SHARE)
    return model, chip, replace(runtime, graphed="none") if structure.eager else runtime


def ranks_of(run: Run, pool: str) -> Ranks:
    """The degrees of a pool, `decode` or `prefill`."""
    return run.decode if pool == "decode" or run.prefill is None else run.prefill


def experts_of(run: Run, pool: str) -> int:
    """Expert ranks that ran; MiniMax scripts of vLLM on Blackwell switch them on whatever the row says."""
    ranks = ranks_of(run, pool)
    if "MiniMax" in run.model and run.chip not in HOPPER:
        return ranks.tensor * ranks.data
    return ranks.expert


def degrees_of(ranks: list[Ranks], experts: list[int]) -> Split:
    """Splits zipped over runs, each degree (runs, 1)."""
    tensor, data = column(r.tensor for r in ranks), column(r.data for r in ranks)
    return split(tensor, data, np.minimum(column(experts), tensor * data), np.ones_like(tensor))


def precision_names(run: Run) -> Mapping[str, str]:
    """Formats by class of tensor, over the model's own."""
    cache = {"kv": cache_of(run)}
    if "gpt-oss" in run.model:
        return cache
    if run.precision == "fp8":
        return {"weights": "fp8_block" if blocked(run) else "fp8"} | cache
    if run.precision == "fp4":
        return _four_bits(run.model) | cache
    return cache if run.precision == "int4" else {"weights": "bf16"} | cache


def blocked(run: Run) -> bool:
    """Whether fp8 weights have a scale for each block."""
    if any(name in run.model for name in BLOCKS):
        return True
    return run.stack == "sglang" and "Llama-3.1-8B" in run.model


def _four_bits(model: str) -> dict[str, str]:
    if not any(name in model for name in BF16_ATTENTION):
        return {"weights": "nvfp4"}
    dense = "bf16" if any(name in model for name in BF16_DENSE) else "nvfp4"
    return {"weights": dense, "attention": "bf16", "experts": "nvfp4"}


def cache_of(run: Run) -> str:
    """The format of the KV cache."""
    if run.precision in ("", "bf16", "int4"):
        return "bf16"
    hopper = run.chip in HOPPER
    if run.stack == "vllm" and "gpt-oss" in run.model and hopper:
        return "bf16"
    if run.stack == "vllm" and "MiniMax" in run.model and run.version < "0.19":
        return "bf16"
    if run.stack == "sglang" and hopper and ("GLM-5" in run.model or "DeepSeek" in run.model):
        return "bf16"
    if not run.burst and run.stack != "trtllm":
        return "bf16"
    return "fp8"
