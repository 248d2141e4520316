"""Writes tests/golden/metrics.json anew and prints what changed: `python tests/regenerate_golden.py`.

Run it when a change of the model is meant, read what it prints, and say in the commit why the numbers moved.
"""

from __future__ import annotations

import json
import platform
import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parent.parent), str(Path(__file__).parent)]

import numpy as np
from golden_cases import CASES, COMMAND, FILE, TOLERANCE, answers, differences

import archsim


def main() -> None:
    old = json.loads(FILE.read_text(encoding="utf-8"))["cases"] if FILE.exists() else {}
    cases = {case: answers(case) for case in CASES}
    provenance = {
        "what": "metrics of a dozen scenarios (tests/golden_cases.py), SI units, points in row-major order, null where not feasible",
        "archsim": archsim.__version__,
        "regenerate": COMMAND,
        "tolerance": f"{TOLERANCE:g} relative",
        "made_with": f"Python {platform.python_version()}, numpy {np.__version__}",
    }
    FILE.parent.mkdir(exist_ok=True)
    text = json.dumps({"provenance": provenance, "cases": cases}, indent=1, allow_nan=False)
    FILE.write_text(text + "\n", encoding="utf-8")
    changed = differences(old, cases)
    print(*changed[:40], sep="\n")
    print(f"{len(changed)} numbers changed; {len(cases)} cases in {FILE.name}")


if __name__ == "__main__":
    main()
