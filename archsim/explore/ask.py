"""Proposals of optuna for spaces too large to be gone through: asked in rounds, evaluated together, told back."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from archsim.arrays import Array

ROUND = 25  # proposals that are evaluated together
FIRST = 50  # proposals at random before any is drawn from what was learned

Grid = np.typing.NDArray[np.intp]


def proposed(
    sizes: Sequence[int], value: Callable[[Grid], Array], trials: int, seed: int, storage: str | None = None
) -> Grid:
    """Indices of every design looked at, a column each: `value` is to be as little as possible.

    With `storage`, a file of SQLite, a search that was stopped goes on after its last round, to the same proposals as
    one that was not: each round draws from a stream of its own. Raises ValueError where optuna is not installed.
    """
    try:
        import optuna
    except ImportError:
        raise ValueError("a search over so many designs needs optuna: pip install 'archsim[design]'") from None
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    url = None if storage is None else f"sqlite:///{storage}"
    study = optuna.create_study(storage=url, study_name="design", load_if_exists=True)
    done = len(_told(study))
    while done < trials:
        study.sampler = optuna.samplers.TPESampler(
            seed=seed + done, n_startup_trials=FIRST, constant_liar=True, multivariate=True
        )
        asked = [study.ask() for _ in range(min(ROUND, trials - done))]
        grid = np.array(
            [[trial.suggest_int(f"p{at}", 0, size - 1) for at, size in enumerate(sizes)] for trial in asked],
            dtype=np.intp,
        ).T
        for trial, number in zip(asked, value(grid), strict=True):
            study.tell(trial, float(number))
        done += len(asked)
    told = [[trial.params[f"p{at}"] for at in range(len(sizes))] for trial in _told(study)]
    return np.unique(np.array(told, dtype=np.intp), axis=0).T


def _told(study: Any) -> list[Any]:
    """Trials that have a value; those of a round that was cut off have none."""
    return [trial for trial in study.trials if trial.value is not None]
