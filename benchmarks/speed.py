"""How fast archsim is: points a second on grids and zipped points, memory of a million points, start of the command.

`python benchmarks/speed.py [--quick] [--json]` prints a table. Times are of the processor, the best of three after one
run to warm up, so that a busy machine disturbs little; the last column divides by a numpy triad over a million
elements timed in the same run, so that numbers of different machines compare. `benchmarks/README.md` says more.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))  # this checkout, installed or not

import numpy as np  # noqa: E402

import archsim  # noqa: E402
from archsim.catalog import read_text, validate  # noqa: E402
from archsim.engine.cost import Cost  # noqa: E402
from archsim.engine.lanes import Timed, run  # noqa: E402
from archsim.explore.result import Result  # noqa: E402
from archsim.explore.scenario import Scenario, ScenarioFile, build  # noqa: E402

REPEATS = 3
ELEMENTS = 1_000_000  # of the triad
EXAMPLE = "llama-70b-on-h100"

LLAMA = """
model: meta/llama-3.1-70b
pools: {gpu: {chip: nvidia/h100-sxm, count: 8}}
precision: {weights: bf16, kv: bf16}
split: {tensor: 8}
batch: 1
context: 1
"""
DEEPSEEK = """
model: deepseek/deepseek-v3
pools: {gpu: {chip: nvidia/h200-sxm, count: 64}}
split: {attention_data: 64, expert: 64}
batch: 1
context: 1
"""


@dataclass(frozen=True)
class Line:
    """One measurement: its value and target in a unit, and whether more or less of it is better."""

    name: str
    value: float
    unit: str
    target: float
    more_is_better: bool
    per_triad: float  # triads that take as long as one point or one start

    @property
    def met(self) -> bool:
        """Whether the target is reached."""
        return self.value >= self.target if self.more_is_better else self.value <= self.target


def scenario(text: str) -> Scenario:
    """The scenario of a YAML text."""
    document = read_text(text, Path("benchmark.yaml"))
    return build(validate(ScenarioFile, document), document)


def best(work: Callable[[], object], repeats: int) -> float:
    """Processor seconds of the fastest run after one to warm up."""
    work()
    times = []
    for _ in range(repeats):
        start = time.process_time()
        work()
        times.append(time.process_time() - start)
    return min(times)


def triad(repeats: int) -> float:
    """Seconds of a = b + s c over a million doubles: what the machine can do with arrays out of cache."""
    b, c = np.ones(ELEMENTS), np.ones(ELEMENTS)
    a = np.empty(ELEMENTS)

    def work() -> None:
        np.multiply(c, 3.0, out=a)
        np.add(a, b, out=a)

    return best(work, max(repeats, 1) * 10)


def asked_for(result: Result) -> Result:
    """Everything that is measured: time, the parts of all kernels, and the memory plan of every point."""
    _ = result.tpot, result.answer.total, result.memory_needed
    return result


def grid(text: str, batches: int, contexts: int) -> Callable[[], Result]:
    """A grid of batch and context."""
    loaded = scenario(text)
    batch = np.arange(1.0, batches + 1)
    context = np.round(np.linspace(1, 131_072, contexts))
    return lambda: asked_for(archsim.run(loaded, batch=batch, context=context))


def zipped(text: str, points: int) -> Callable[[], Result]:
    """Every field has a value of its own at every point."""
    loaded, values = scenario(text), every_field(points, "experts" if text is DEEPSEEK else "")
    return lambda: asked_for(archsim.run(loaded, zipped=True, over=values))


def every_field(points: int, routed: str) -> dict[str, np.ndarray]:
    """Values of all fields that vary, drawn once."""
    rng = np.random.default_rng(1)
    tensor = rng.choice([1.0, 2.0, 4.0, 8.0], points)
    ranks = {"split.expert": tensor, "split.attention_data": np.ones(points)} if routed else {}
    return {
        "batch": np.floor(np.exp(rng.uniform(0, np.log(1024), points))),
        "context": np.floor(np.exp(rng.uniform(0, np.log(131_072), points))),
        "chip.memory.bandwidth": rng.uniform(2e12, 8e12, points),
        "chip.matrix.bf16": rng.uniform(5e14, 2e15, points),
        "chip.matrix.fp8": rng.uniform(2e15, 5e15, points),
        "chip.clock": rng.uniform(1.2e9, 2.2e9, points),
        "chip.links.scale_up.bandwidth": rng.uniform(2e11, 1e12, points),
        "split.tensor": tensor,
        "chips": tensor,
        **ranks,
    }


def two_pools(designs: int) -> None:
    """So many attention-FFN designs for each of 1 to 4 micro-batches: 61 layers, every lane's parts and stalls."""
    rng = np.random.default_rng(2)
    lengths = {lane: rng.uniform(1e-6, 3e-4, designs) for lane in ("compute", "ffn", "to_ffn", "from_ffn")}
    costs = {lane: Cost(value, {"compute": 0.4 * value, "memory": 0.6 * value}) for lane, value in lengths.items()}
    for most in (1, 2, 3, 4):
        tasks = [
            Timed(lane, lane, costs[lane], ((place - 1) * most + batch,) if place else (), batch=batch)
            for place, lane in enumerate(("compute", "to_ffn", "ffn", "from_ffn"))
            for batch in range(most)
        ]
        found = run({"layer": tasks}, [("layer", 61)], np.zeros(1), {})
        _ = found.span, [(lane.parts, lane.gaps) for lane in found.lanes.values()]


def child(arguments: list[str]) -> float:
    """Processor seconds of a child process; it finds compiled modules, as those of an installation are."""
    written = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run([sys.executable, *arguments], cwd=ROOT, env=written, capture_output=True, text=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode:
        raise SystemExit(f"{' '.join(arguments)} failed:\n{done.stderr}")
    return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime


def start(arguments: list[str], repeats: int) -> float:
    """Processor seconds of the command, started anew each time."""
    child(["-m", "archsim", *arguments])
    return min(child(["-m", "archsim", *arguments]) for _ in range(repeats))


def million(points: int) -> float:
    """Peak memory (B) of a process that prices a grid of so many points, python and numpy included."""
    side = int(points**0.5)
    code = f"from benchmarks.speed import LLAMA, grid, peak; result = grid(LLAMA, {side}, {side})(); print(peak())"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"a grid of {side} x {side} points failed:\n{done.stderr}")
    return float(done.stdout)


def peak() -> float:
    """Peak memory (B) of this process."""
    kilobytes = 1 if sys.platform == "darwin" else 1024
    return float(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss) * kilobytes


def measure(quick: bool) -> tuple[list[Line], float]:
    """Every line of the table, and the seconds of the triad."""
    repeats, shrink = (1, 5) if quick else (REPEATS, 1)
    base = triad(repeats)
    lines: list[Line] = []

    def rate(name: str, work: Callable[[], Result], target: float) -> None:
        points = work().feasible.size
        seconds = best(work, repeats)
        lines.append(Line(name, points / seconds, "points/s", target, True, seconds / points / base))

    def seconds(name: str, arguments: list[str], target: float) -> None:
        value = start(arguments, repeats)
        lines.append(Line(name, value, "s", target, False, value / base))

    side, points = 1000 // shrink, 100_000 // shrink
    rate(f"70B TP8 on H100, grid {side} x {side}", grid(LLAMA, side, side), 2e6)
    rate(
        f"DeepSeek-V3 EP64, grid {200 // shrink} x {500 // shrink}", grid(DEEPSEEK, 200 // shrink, 500 // shrink), 1.5e6
    )
    rate(f"70B, {points:,} points, all fields zipped", zipped(LLAMA, points), 1e5)
    rate(f"DeepSeek-V3, {points:,} points, all zipped", zipped(DEEPSEEK, points), 6e4)
    designs = 10_000 // shrink
    spent = best(lambda: two_pools(designs), repeats)
    name = f"{designs:,} designs of two pools, 1 to 4 turns"
    lines.append(Line(name, spent, "s", 1.0, False, spent / designs / 4 / base))
    lines.append(Line("peak memory of a million points", million(ELEMENTS) / 1e9, "GB", 2.0, False, 0.0))
    seconds("archsim --help", ["--help"], 0.3)
    seconds(f"archsim run {EXAMPLE}", ["run", EXAMPLE], 1.0)
    return lines, base


def table(lines: list[Line], base: float, quick: bool) -> str:
    """The lines as text."""
    note = " (quick: smaller, once; targets are of the full run)" if quick else ""
    rows = [f"Processor time, best of {1 if quick else REPEATS}, warm{note}. One triad: {base * 1e3:.2f} ms.", ""]
    rows.append(f"{'':44}{'value':>12} {'':9}{'target':>12}  {'':4}{'in triads':>12}")
    for line in lines:
        value, target = (f"{x:,.0f}" if line.more_is_better else f"{x:.3g}" for x in (line.value, line.target))
        triads = f"{line.per_triad:.3g}" if line.per_triad else ""
        rows.append(
            f"{line.name:44}{value:>12} {line.unit:9}{target:>12}  {'ok' if line.met else 'miss':4}{triads:>12}"
        )
    return "\n".join(rows)


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="smaller grids, measured once")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    options = parser.parse_args()
    lines, base = measure(options.quick)
    if options.json:
        found: Mapping[str, Any] = {"triad_s": base, "quick": options.quick, "lines": [asdict(line) for line in lines]}
        print(json.dumps(found, indent=1))
    else:
        print(table(lines, base, options.quick))


if __name__ == "__main__":
    main()
