"""The LPDDR machine that exists: llama.cpp's published decode on DGX Spark, whole steps of five models.

Three constants of the stack `llamacpp` come from the points with one sequence: a fixed time for every kernel and the
share of the bandwidth that weights and KV cache reach. `left_out` fits them anew without the model it predicts.
"""

import csv
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from archsim.arrays import Array, array
from archsim.chip.constants import Constants
from archsim.chip.model import Chip
from archsim.chip.schema import load_chip
from archsim.engine.step import run_step
from archsim.explore.scenario import EXPERT_SKEW
from archsim.mapping.place import Deployment, place
from archsim.mapping.runtime import load_runtime
from archsim.mapping.split import split
from archsim.workload.model import precision_of
from archsim.workload.schema import load_model
from archsim.workload.step import decode

STACK = "llamacpp"
MODELS: Mapping[str, tuple[str, Mapping[str, str]]] = {
    "gpt-oss-20b MXFP4": ("openai/gpt-oss-20b", {"weights": "q8_0", "experts": "mxfp4", "head": "q8_0"}),
    "gpt-oss-120b MXFP4": ("openai/gpt-oss-120b", {"weights": "q8_0", "experts": "mxfp4", "head": "q8_0"}),
    "Qwen3-Coder-30B-A3B Q8_0": ("qwen/qwen3-coder-30b-a3b", {"weights": "q8_0", "head": "q8_0"}),
    "Qwen2.5-Coder-7B Q8_0": ("qwen/qwen2.5-coder-7b", {"weights": "q8_0", "head": "q8_0"}),
    "gemma-3-4b Q4_0": ("google/gemma-3-4b", {"weights": "q4_0", "head": "q8_0"}),
}
FACTORS = (1.0, 1.0, 1.0)  # on the fixed time, and on the shares of weights and KV cache
ROUNDS = 4
SMALL_STEP = 0.02


@dataclass(frozen=True, eq=False)
class Points:
    """Decode of `batch` sequences each: mean context (tokens) and measured seconds of a step, (n,) each."""

    model: str
    context: Array
    batch: Array
    seconds: Array

    def chosen(self, rows: Array) -> "Points":
        """Some of the points."""
        return Points(self.model, self.context[rows], self.batch[rows], self.seconds[rows])


def read(path: Path) -> list[Points]:
    """The points of every model. Raises KeyError for a model that the catalogue lacks."""
    with path.open(encoding="utf-8") as file:
        lines = list(csv.DictReader(line for line in file if not line.startswith("#")))
    found = []
    for model in MODELS:
        mine = [line for line in lines if line["model"] == model]
        batch = np.array([float(line["batch"]) for line in mine])
        reach = np.array([float(line["prompt_or_depth"]) + float(line["gen_tokens"]) / 2.0 for line in mine])
        found.append(Points(model, reach, batch, batch / np.array([float(line["decode_tps_total"]) for line in mine])))
    return found


def predicted(points: Points, factors: tuple[float, ...] = FACTORS) -> Array:
    """Seconds (n,) of the steps, with the shipped constants of the stack times `factors`."""
    name, formats = MODELS[points.model]
    model, chip = load_model(name), _scaled(load_chip("nvidia/dgx-spark-gb10"), factors)
    runtime = load_runtime("llama.cpp")
    d = Deployment(model, precision_of(model, formats), split(), chip, runtime, array(EXPERT_SKEW))
    step = decode(points.batch, points.context, model.clips)
    return np.broadcast_to(run_step(place(d, step), chip, runtime.stack).span, points.seconds.shape)


def left_out(points: list[Points]) -> list[Array]:
    """Seconds (n,) of each model's steps, with constants fitted on one sequence of all the others."""
    found = []
    for held in points:
        others = [one.chosen(one.batch == 1) for one in points if one is not held]
        found.append(predicted(held, fitted(others)))
    return found


def fitted(points: list[Points]) -> tuple[float, ...]:
    """Factors that least squares of the logarithms of time give: Gauss-Newton with differences."""
    measured = np.log(np.concatenate([one.seconds for one in points]))

    def errors(factors: Array) -> Array:
        times = [predicted(one, tuple(np.exp(factors))) for one in points]
        return np.asarray(np.log(np.concatenate(times)) - measured)

    now = np.zeros(len(FACTORS))
    for _ in range(ROUNDS):
        base = errors(now)
        slopes = np.stack([(errors(now + SMALL_STEP * row) - base) / SMALL_STEP for row in np.eye(len(FACTORS))], 1)
        now = now - np.linalg.lstsq(slopes, base, rcond=None)[0]
    return tuple(np.exp(now).tolist())


def _scaled(chip: Chip, factors: tuple[float, ...]) -> Chip:
    sets = chip.generation.kernels[STACK]
    fixed, weights, cache = factors

    def changed(family: str, constants: Constants) -> Constants:
        known: dict[str, float] = constants.model_dump()
        share = cache if family in ("generation_attention", "mla_generation") else weights
        update = {"fixed": known["fixed"] * fixed} if "fixed" in known else {}
        if family in ("gemm", "experts", "generation_attention", "mla_generation"):
            update["memory"] = min(known["memory"] * share, 1.0)
        return constants.model_copy(update=update)

    scaled = {family: {fmt: changed(family, one) for fmt, one in formats.items()} for family, formats in sets.items()}
    generation = replace(chip.generation, kernels={**chip.generation.kernels, STACK: scaled})
    return replace(chip, generation=generation)
