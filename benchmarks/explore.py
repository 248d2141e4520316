"""How fast spaces are explored: ten million points with values of their own and on a grid, their memory, and Parquet.

`python benchmarks/explore.py [--quick] [--json] [--folder DIR]` prints a table. Each line is a process of its own that
sweeps Llama-3.1-70B and DeepSeek-V3 over batch, context, bandwidth, peak, TP or EP and precision, for `tpot` alone.
Times are of the processor, Python and the building of scenarios included; the last column divides by a numpy triad over
a million elements (`benchmarks/speed.py`), so that numbers of different machines and of busy ones compare.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))  # this checkout, installed or not

import numpy as np  # noqa: E402

import archsim  # noqa: E402
from benchmarks.speed import DEEPSEEK, LLAMA, scenario, triad  # noqa: E402

POINTS = 10_000_000
CHECKED = 200  # rows of a Parquet file that are asked one by one
PRECISIONS = ["bf16", "fp8"]


@dataclass(frozen=True)
class Line:
    """One measurement: its value and target in a unit, and what a point took in triads."""

    name: str
    value: float
    unit: str
    target: float
    per_triad: float = 0.0

    @property
    def met(self) -> bool:
        """Whether the target is reached; one of 0 is none."""
        return not self.target or self.value <= self.target


def ranks(text: str, tensor: np.ndarray) -> dict[str, np.ndarray]:
    """Degrees that go with a degree of tensor parallelism, or of expert parallelism over 64 chips."""
    if text is LLAMA:
        return {"split.tensor": tensor, "chips": tensor}
    return {"split.expert": tensor * 8.0}


def own_values(text: str, points: int) -> dict[str, np.ndarray]:
    """Values of every field at every point, drawn once."""
    rng = np.random.default_rng(1)
    return {
        "batch": np.floor(np.exp(rng.uniform(0, np.log(1024), points))),
        "context": np.floor(np.exp(rng.uniform(0, np.log(131_072), points))),
        "chip.memory.bandwidth": rng.uniform(2e12, 8e12, points),
        "chip.matrix.bf16": rng.uniform(5e14, 2e15, points),
        "chip.links.scale_up.bandwidth": rng.uniform(2e11, 1e12, points),
        **ranks(text, rng.choice([1.0, 2.0, 4.0, 8.0], points)),
    }


def swept(text: str, vary: dict[str, Any], zipped: list[str], **outputs: Any) -> int:
    """Rows of a sweep for both precisions, which are not kept."""
    fields = {**vary, "precision.kv": PRECISIONS}
    table = archsim.sweep(scenario(text), fields, zipped=zipped, columns=["tpot"], keep=False, **outputs)
    return len(table)


def zipped(points: int) -> int:
    """Both models at so many points in all, with values of their own."""
    done = 0
    for text in (LLAMA, DEEPSEEK):
        values = own_values(text, points // 4)
        done += swept(text, values, list(values))
    return done


def axes(text: str, points: int) -> tuple[dict[str, Any], list[str]]:
    """Axes whose combinations are so many points."""
    tensor = ranks(text, np.array([1.0, 2.0, 4.0, 8.0]))
    batches = max(points // (25 * 10 * 10 * 5 * 4 * 2), 1)
    fields = {
        "batch": np.unique(np.floor(np.linspace(1, 1024, batches))),
        "context": np.floor(np.geomspace(1, 131_072, 25)),
        "chip.memory.bandwidth": np.linspace(2e12, 8e12, 10),
        "chip.matrix.bf16": np.linspace(5e14, 2e15, 10),
        "chip.links.scale_up.bandwidth": np.linspace(2e11, 1e12, 5),
        **tensor,
    }
    return fields, list(tensor)


def grid(points: int) -> int:
    """Both models on a grid of so many points in all."""
    return sum(swept(text, *axes(text, points // 2)) for text in (LLAMA, DEEPSEEK))


def streamed(points: int, folder: str) -> int:
    """A grid of Llama-3.1-70B into a Parquet file, of which rows drawn at random are asked one by one."""
    import pyarrow.parquet

    place = Path(folder) / "rows.parquet"
    fields, together = axes(LLAMA, points)
    done = swept(LLAMA, fields, together, parquet=place)
    file = pyarrow.parquet.ParquetFile(place)
    rng = np.random.default_rng(3)
    groups = rng.integers(0, file.num_row_groups, 10)
    for group in groups.tolist():
        part = file.read_row_group(group).to_pydict()
        for row in rng.integers(0, len(part["tpot"]), CHECKED // 10).tolist():
            check(part, row)
    if file.metadata.num_rows != done:
        raise SystemExit(f"{done} rows were made and {file.metadata.num_rows} written")
    return done


def check(part: dict[str, list[Any]], row: int) -> None:
    """Asks one point alone; its TPOT must be that of the row."""
    names = ["batch", "context", "chip.memory.bandwidth", "chip.matrix.bf16", "chip.links.scale_up.bandwidth"]
    names += ["split.tensor", "chips"]
    own = scenario(LLAMA.replace("kv: bf16", f"kv: {part['precision.kv'][row]}"))
    alone = archsim.run(own, over={name: part[name][row] for name in names}).tpot.ravel()[0]
    found = part["tpot"][row]
    if (found is None) != bool(np.isnan(alone)) or (found is not None and abs(found / alone - 1) > 1e-12):
        raise SystemExit(f"row {row}: {found} is written, {alone} is right")


def peak() -> float:
    """Peak memory (B) of this process."""
    return float(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss) * (1 if sys.platform == "darwin" else 1024)


def child(call: str) -> dict[str, float]:
    """Rows, seconds of the processor and of the clock, and peak memory of a call in a process of its own."""
    code = (
        "import json, time; begun = time.time()\n"
        "from benchmarks.explore import *\n"
        f"rows = {call}\n"
        "print(json.dumps({'rows': rows, 'cpu': time.process_time(), 'wall': time.time() - begun, 'peak': peak()}))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{call} failed:\n{done.stderr}")
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def measure(quick: bool, folder: str) -> list[Line]:
    """Every line of the table."""
    shrink, base, lines = 20 if quick else 1, triad(3), list[Line]()
    calls = [
        ("points with values of their own", f"zipped({POINTS // shrink})", 60.0),
        ("points of a grid", f"grid({POINTS // shrink})", 10.0),
        ("points of a grid into Parquet", f"streamed({10 * POINTS // shrink}, {folder!r})", 0.0),
    ]
    for name, call, target in calls:
        found = child(call)
        rows, cpu = found["rows"], found["cpu"]
        lines.append(Line(f"{rows:,.0f} {name}", cpu, "s", target / shrink, cpu / rows / base))
        lines.append(Line("  by the clock", found["wall"], "s", 0.0))
        lines.append(Line("  points a second", rows / cpu, "", 0.0))
        lines.append(Line("  peak memory", found["peak"] / 1e9, "GB", 2.0))
    return lines


def table(lines: list[Line], quick: bool) -> str:
    """The lines as text."""
    note = " (quick: a twentieth of the size; targets shrunk alike)" if quick else ""
    rows = [
        f"Seconds of the processor{note}.",
        "",
        f"{'':48}{'value':>12} {'':4}{'target':>8}  {'':4}{'in triads':>12}",
    ]
    for line in lines:
        value, target = (f"{x:,.0f}" if x >= 100 else f"{x:.3g}" if x else "" for x in (line.value, line.target))
        met = "" if not line.target else "ok" if line.met else "miss"
        triads = f"{line.per_triad:.3g}" if line.per_triad else ""
        rows.append(f"{line.name:48}{value:>12} {line.unit:4}{target:>8}  {met:4}{triads:>12}")
    return "\n".join(rows)


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a twentieth of every size")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument("--folder", default=None, help="where the Parquet file is written meanwhile")
    options = parser.parse_args()
    start = time.time()
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        lines = measure(options.quick, folder)
    if options.json:
        print(json.dumps({"quick": options.quick, "lines": [asdict(line) for line in lines]}, indent=1))
    else:
        print(table(lines, options.quick))
        print(f"\n{time.time() - start:.0f} s in all")


if __name__ == "__main__":
    main()
