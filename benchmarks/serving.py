"""How fast serving is simulated: requests a second on steady chat and on traces, fast-forward against plain iteration.

`python benchmarks/serving.py [--quick] [--json] [--traces DIR]` prints a table. Times are of the processor, best of
three, without the surface of step times, which has a line of its own. The last column divides by a plain Python loop of
a thousand steps timed in the same run, so that numbers of different machines and of busy ones compare. Traces are read
where `--traces` names a folder with the public files; others are generated with the same statistics.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))  # this checkout, installed or not

import numpy as np  # noqa: E402

import archsim  # noqa: E402
from archsim.explore.evaluate import deployment_of  # noqa: E402
from archsim.explore.scenario import Scenario  # noqa: E402
from archsim.serving.policy import ServingFile  # noqa: E402
from archsim.serving.server import server_of  # noqa: E402
from archsim.serving.simulate import Server, simulate  # noqa: E402
from archsim.workload.requests import Requests, requests  # noqa: E402
from archsim.workload.traces import load_trace  # noqa: E402
from archsim.workload.traffic import draw, load_traffic  # noqa: E402

REPEATS = 3
STEADY = 1155, 211  # tokens in and out of steady chat


@dataclass(frozen=True)
class Line:
    """One measurement: its value and target in a unit, and what it took in loops of a thousand steps."""

    name: str
    value: float
    unit: str
    target: float
    more_is_better: bool
    per_loop: float

    @property
    def met(self) -> bool:
        """Whether the target is reached."""
        return self.value >= self.target if self.more_is_better else self.value <= self.target


def node() -> Scenario:
    """Llama 3.1 70B on eight H100."""
    return archsim.scenario(
        model="meta/llama-3.1-70b",
        pools={"gpu": {"chip": "nvidia/h100-sxm", "count": 8}},
        split={"tensor": 8},
        precision={"weights": "fp8", "kv": "fp8"},
        traffic={"input": STEADY[0], "output": STEADY[1]},
    )


def served(asked: Requests, policy: ServingFile | None = None) -> Server:
    """What serves them."""
    return server_of(deployment_of(node()), policy or ServingFile(), asked)


def tiered() -> ServingFile:
    """Three tiers below the chips."""
    tiers = ({"medium": "cpu", "capacity": "1 TB"}, {"medium": "ssd", "capacity": "8 TB"}, {"medium": "remote"})
    return ServingFile.model_validate({"kv": {"tiers": tiers}})


def steady(count: int) -> Requests:
    """Chat of equal requests at 5.5 a second."""
    gaps = np.random.default_rng(0).exponential(1 / 5.5, count)
    return requests(gaps.cumsum().tolist(), *STEADY)


def azure(traces: Path | None, count: int) -> tuple[str, Requests]:
    """The Azure conversation trace, or one with its statistics."""
    path = None if traces is None else traces / "azure2023_conv.csv"
    if path is not None and path.is_file():
        return "Azure conversation trace", load_trace(path, limit=count)
    return "chat as in Azure's trace", draw(load_traffic("chat"), count=count)


def mooncake(traces: Path | None, count: int) -> tuple[str, Requests]:
    """The Mooncake conversation trace, or chains of growing prompts with its mean sizes."""
    path = None if traces is None else traces / "mooncake_conversation_trace.jsonl"
    if path is not None and path.is_file():
        return "Mooncake conversation trace", load_trace(path, limit=count)
    rng = np.random.default_rng(0)
    made = requests(rng.exponential(0.3, count).cumsum().tolist(), rng.integers(2000, 22000, count).tolist(), 343)
    chains = [
        [g * 1000 + i for i in range(n // 512)] for g, n in zip(rng.integers(0, 4000, count), made.input, strict=True)
    ]
    return "chains as in Mooncake's trace", replace(made, chains=chains, block=512)


def best(work: Callable[[], object], repeats: int) -> float:
    """Processor seconds of the fastest run."""
    times = []
    for _ in range(repeats):
        start = time.process_time()
        work()
        times.append(time.process_time() - start)
    return min(times)


def loop(repeats: int) -> float:
    """Seconds of a thousand steps of a plain loop: what the machine can do with Python."""

    def work() -> None:
        total = 0
        for step in range(200_000):
            total += 1 * step

    return best(work, 3 * repeats) / 200.0


def million(count: int) -> float:
    """Peak memory (B) of a process that plays so many requests, Python and numpy included."""
    code = f"from benchmarks.serving import peak, played; played({count}); print(peak())"
    written = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=written, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{count} requests failed:\n{done.stderr}")
    return float(done.stdout)


def played(count: int) -> None:
    """Plays steady chat."""
    asked = steady(count)
    simulate(asked, served(asked))


def peak() -> float:
    """Peak memory (B) of this process."""
    kilobytes = 1 if sys.platform == "darwin" else 1024
    return float(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss) * kilobytes


def measure(quick: bool, traces: Path | None) -> tuple[list[Line], float]:
    """Every line of the table, and the seconds of the loop."""
    repeats, shrink = (1, 10) if quick else (REPEATS, 1)
    base = loop(repeats)
    lines: list[Line] = []

    def rate(
        name: str, asked: Requests, target: float, plain: bool = False, policy: ServingFile | None = None
    ) -> float:
        server = served(asked, policy)
        seconds = best(lambda: simulate(asked, server, plain=plain), repeats)
        lines.append(Line(name, len(asked) / seconds, "requests/s", target, True, seconds / len(asked) / base))
        return seconds / len(asked)

    small = rate("steady chat, 10,000 requests", steady(10_000 // shrink), 50_000)
    large = rate("steady chat, 100,000 requests", steady(100_000 // shrink), 50_000)
    lines.append(Line("a request of the second over the first", large / small, "", 1.25, False, 0.0))
    name, asked = azure(traces, 19_366 // shrink)
    fast = rate(name, asked, 50_000)
    plain = rate("  the same, iteration by iteration", asked.first(2000 // shrink), 0, True)
    lines.append(Line("  fast-forward over plain", plain / fast, "times", 2.0, True, 0.0))
    rate(f"{mooncake(traces, 10)[0]}, prefix cache", mooncake(traces, 12_031 // shrink)[1], 5_000)
    rate("  the same, three tiers", mooncake(traces, 12_031 // shrink)[1], 5_000, policy=tiered())
    seconds = best(lambda: served(asked), repeats)
    lines.append(Line("surface of step times", seconds, "s", 1.0, False, seconds / base))
    lines.append(Line("peak memory of a million requests", million(1_000_000 // shrink) / 1e9, "GB", 2.0, False, 0.0))
    return lines, base


def table(lines: list[Line], base: float, quick: bool) -> str:
    """The lines as text."""
    note = " (quick: a tenth of the size, once; targets are of the full run)" if quick else ""
    rows = [
        f"Processor time, best of {1 if quick else REPEATS}{note}. A thousand steps of a loop: {base * 1e6:.1f} us.",
        "",
    ]
    rows.append(f"{'':44}{'value':>12} {'':11}{'target':>10}  {'':4}{'in loops':>12}")
    for line in lines:
        value, target = (f"{x:,.0f}" if x >= 100 else f"{x:.3g}" for x in (line.value, line.target))
        loops = f"{line.per_loop:.3g}" if line.per_loop else ""
        rows.append(
            f"{line.name:44}{value:>12} {line.unit:11}{target:>10}  {'ok' if line.met else 'miss':4}{loops:>12}"
        )
    return "\n".join(rows)


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a tenth of every size, measured once")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument("--traces", type=Path, default=None, help="a folder with the public traces")
    options = parser.parse_args()
    lines, base = measure(options.quick, options.traces)
    if options.json:
        print(json.dumps({"loop_s": base, "quick": options.quick, "lines": [asdict(line) for line in lines]}, indent=1))
    else:
        print(table(lines, base, options.quick))


if __name__ == "__main__":
    main()
