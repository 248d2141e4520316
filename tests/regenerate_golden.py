"""Golden metrics: a dozen scenarios whose answers are kept in tests/golden/metrics.json.

`python tests/regenerate_golden.py` writes the file anew and prints what changed. Run it when a change of the model is
meant, read what it prints, and say in the commit why the numbers moved.
"""

from __future__ import annotations

import json
import platform
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np

if __name__ == "__main__":
    sys.path[:0] = [str(Path(__file__).parent.parent), str(Path(__file__).parent)]

from scenarios import DEEPSEEK, GPT_OSS, LLAMA_8B, LLAMA_70B, scenario

import archsim
from archsim.explore.result import METRICS, Result
from archsim.mapping.mapper import DEGREES

FILE = Path(__file__).parent / "golden" / "metrics.json"
COMMAND = "python tests/regenerate_golden.py"
TOLERANCE = 1e-9  # relative

A100, H100, H200, B200 = (f"nvidia/{name}" for name in ("a100-sxm-80gb", "h100-sxm", "h200-sxm", "b200-sxm"))
CHAT = {"input": 1155, "output": 211}
STEP: dict[str, Any] = {"batch": [1, 64, 512], "context": [1000, 30_000]}
CLIENTS = [1, 16, 128]

CASES: dict[str, dict[str, Any]] = {
    "8b bf16 on one A100, vLLM": {"of": LLAMA_8B, "on": A100, "chips": 1},
    "8b fp8 on one H100, vLLM": {"of": LLAMA_8B, "on": H100, "chips": 1, "precision": {"weights": "fp8", "kv": "fp8"}},
    "8b int4 on one B200, vLLM": {"of": LLAMA_8B, "on": B200, "chips": 1, "precision": {"weights": "int4"}},
    "70b bf16 on eight A100, ideal": {"of": LLAMA_70B, "on": A100, "chips": 8, "runtime": "ideal"},
    "70b bf16 on eight H100, vLLM": {"of": LLAMA_70B, "on": H100, "chips": 8},
    "70b fp8 on four H200 by tensor ranks, vLLM": {
        "of": LLAMA_70B, "on": H200, "chips": 4, "precision": {"weights": "fp8"}, "split": {"tensor": 4}
    },
    "70b nvfp4 on two B200, vLLM": {
        "of": LLAMA_70B, "on": B200, "chips": 2, "precision": {"weights": "nvfp4", "kv": "fp8"}
    },
    "deepseek on eight H200 by tensor ranks, vLLM": {
        "of": DEEPSEEK, "on": H200, "chips": 8, "split": {"tensor": 8, "expert": 8}
    },
    "deepseek on 16 H200, vLLM": {"of": DEEPSEEK, "on": H200, "chips": 16},
    "deepseek on 64 B200, attention apart, ideal": {
        "of": DEEPSEEK, "on": B200, "chips": 64, "runtime": "ideal", "split": {"attention_data": 64, "expert": 64}
    },
    "gpt-oss on one H100, vLLM": {"of": GPT_OSS, "on": H100, "chips": 1},
    "gpt-oss on two B200, ideal": {"of": GPT_OSS, "on": B200, "chips": 2, "runtime": "ideal"},
}  # fmt: skip


def answers(case: str) -> dict[str, Any]:
    """Both answers of a case: metrics, parts of a step, the chosen plans; None where a point is not feasible."""
    s = scenario(**CASES[case], traffic=CHAT, objective={"maximize": "throughput"})
    step, loop = archsim.run(s, mode="step", **STEP), archsim.run(s, mode="steady", batch=CLIENTS)
    parts = {name: listed(step, step.pick(part)) for name, part in step.answer.total.parts.items()}
    return {"step": kept(step) | {"parts": parts}, "steady": kept(loop)}


def kept(result: Result) -> dict[str, Any]:
    table = result.table()
    plan = {name: [int(value) for value in table[f"split.{name}"]] for name in DEGREES}
    return {name: listed(result, result.metric(name)) for name in METRICS} | {"plan": plan}


def listed(result: Result, values: Any) -> list[float | None]:
    """Numbers in the order of points; those that are not feasible are null."""
    return [float(v) if fine else None for v, fine in zip(np.ravel(values), result.feasible.ravel(), strict=True)]


def flat(tree: Any, path: str = "") -> dict[str, Any]:
    """Leaves of nested mappings and lists by their path."""
    if isinstance(tree, dict):
        return {k: v for name, inner in tree.items() for k, v in flat(inner, f"{path}/{name}").items()}
    if isinstance(tree, list):
        return {k: v for at, inner in enumerate(tree) for k, v in flat(inner, f"{path}[{at}]").items()}
    return {path: tree}


def differences(old: Any, new: Any) -> list[str]:
    """What differs by more than the tolerance, each as `path: old -> new (by how much)`."""
    before, after = flat(old), flat(new)
    found = [f"{path}: {'gone' if path in before else 'new'}" for path in sorted(before.keys() ^ after.keys())]
    for path in before.keys() & after.keys():
        left, right = before[path], after[path]
        if isinstance(left, float) and isinstance(right, float):
            if abs(right - left) > TOLERANCE * abs(left):
                by = f"{right / left - 1:+.3%}" if left else "from 0"
                found.append(f"{path}: {left:.6g} -> {right:.6g} ({by})")
        elif left != right:
            found.append(f"{path}: {left} -> {right}")
    return sorted(found)


def main() -> None:
    old = json.loads(FILE.read_text(encoding="utf-8"))["cases"] if FILE.exists() else {}
    cases = {case: answers(case) for case in CASES}
    provenance = {
        "what": "metrics of the cases in tests/regenerate_golden.py: SI units, points row by row, null: infeasible",
        "archsim": archsim.__version__,
        "regenerate": COMMAND,
        "tolerance": f"{TOLERANCE:g} relative",
        "made_with": f"Python {platform.python_version()}, numpy {np.__version__}",
    }
    text = json.dumps({"provenance": provenance, "cases": cases}, indent=1, allow_nan=False)
    in_rows = re.sub(r"\[[^\[\]{}]*\]", lambda found: " ".join(found[0].split()), text)  # a list of numbers is one line
    FILE.parent.mkdir(exist_ok=True)
    FILE.write_text(in_rows + "\n", encoding="utf-8")
    changed = differences(old, cases)
    print(*changed[:40], sep="\n")
    print(f"{len(changed)} numbers changed; {len(cases)} cases in {FILE.name}")


if __name__ == "__main__":
    main()
