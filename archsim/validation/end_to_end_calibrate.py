"""Everything that serving runs say about engines: constants of steps, of first tokens, and the bands of both."""

from collections.abc import Callable
from pathlib import Path

import numpy as np

from archsim.validation import end_to_end_first, end_to_end_fit, end_to_end_spread
from archsim.validation.deployments import loaded, runtime_of
from archsim.validation.end_to_end import harness, predict
from archsim.validation.end_to_end_fit import NAMES, chosen_of, deploying
from archsim.validation.rows import read


def calibrate(source: Path, catalogue: Path, report: Callable[[str], None] = lambda text: None) -> list[Path]:
    """Fits to the fitted half of the rows in `source` and writes the files below `catalogue`; the changed files.

    Deterministic; a few minutes of one core. Raises ValueError where a file lacks a number that it should hold.
    """
    runs = [run for run in read(source) if not run.disaggregated]
    steps = end_to_end_fit.fit(runs, report)
    values = dict(zip(NAMES, np.exp(steps.logs).tolist(), strict=True))
    first_runs = chosen_of(runs, "ttft")
    first = end_to_end_first.fit(first_runs, predict(first_runs, deploying(values)))
    changed = end_to_end_fit.write(values, catalogue, end_to_end_fit.note(runs))
    times = dict(zip(end_to_end_first.NAMES, np.exp(first.logs).tolist(), strict=True))
    changed += end_to_end_first.write(times, catalogue)
    changed += end_to_end_spread.write(end_to_end_spread.bands({"tpot": steps, "ttft": first}), catalogue)
    for cache in (loaded, runtime_of, harness):
        cache.cache_clear()
    return list(dict.fromkeys(changed))
