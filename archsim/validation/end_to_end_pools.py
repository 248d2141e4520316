"""Disaggregated runs, predicted: prompts on one pool, decode on another, with the clients shared between them.

Decode steps take no prompts. Where the prefill pool cannot keep up with the clients, they queue for it, and fewer of
them decode: the fixed point of both pools' rates.
"""

from collections.abc import Callable, Sequence

import numpy as np

from archsim.arrays import Array, array
from archsim.engine.step import run_step
from archsim.mapping.place import Deployment, place
from archsim.validation.deployments import Batch, batches, column
from archsim.validation.rows import Run
from archsim.workload.step import decode, prefill

ROUNDS = 6
DAMPING = 0.6


def predict(runs: Sequence[Run], deploy: Callable[[Batch, str], Deployment]) -> tuple[Array, Array]:
    """Seconds between tokens and to the first token, (runs,) each; numbers of workers must be known."""
    found = np.full((2, len(runs)), np.nan)
    for batch in batches(runs):
        values = np.stack([np.ravel(item) for item in _pools(batch, deploy)])
        found[:, list(batch.places)] = values
    return found[0], found[1]


def _pools(batch: Batch, deploy: Callable[[Batch, str], Deployment]) -> tuple[Array, Array]:
    prompt, output = batch.lengths()
    clients = column(run.clients or run.decode.batch * run.decode.data * run.decode.workers for run in batch.runs)
    workers = column(run.decode.workers for run in batch.runs)
    first, rate = _prompts(batch, deploy(batch, "prefill"), prompt)
    d = deploy(batch, "decode")
    decoding = clients
    for _ in range(ROUNDS):
        step = decode(np.maximum(decoding / workers, 1.0), prompt + output / 2.0, d.model.clips)
        seconds = run_step(place(d, step), d.chip, d.runtime.stack).turnaround
        served = np.minimum(clients / (output * seconds + first), rate)
        decoding = decoding + DAMPING * (np.minimum(served * output * seconds, clients) - decoding)
    return seconds, np.maximum(clients / served - output * seconds, first)


def _prompts(batch: Batch, d: Deployment, prompt: Array) -> tuple[Array, Array]:
    """Seconds that one prompt takes on its pool, and prompts a second that all its workers take."""
    workers = column(run.prefill.workers if run.prefill else 0 for run in batch.runs)
    chunks = np.ceil(prompt / d.runtime.chunk)
    tokens, ranks = prompt / chunks, d.split.groups
    each = np.maximum(np.floor(d.runtime.chunk / prompt), 1.0)

    def seconds(count: Array) -> Array:
        step = prefill(tokens, (prompt - tokens) / 2.0, count, d.model.clips)
        return run_step(place(d, step), d.chip, d.runtime.stack).turnaround * chunks

    return seconds(ranks) + d.runtime.host.arrival, workers * ranks * each / seconds(ranks * each) + array(0.0)
