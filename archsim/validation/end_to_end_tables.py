"""End to end: error tables and gates of serving runs, with and without the rows that a flag speaks against."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from archsim.arrays import Array
from archsim.validation import end_to_end_pools
from archsim.validation.deployments import CHIPS
from archsim.validation.end_to_end import Deploy, clients_of, harness, predict, shipped, tpot, ttft
from archsim.validation.errors import errors
from archsim.validation.rows import CORRECTED, FITTED_CHIPS, FLAGS, NODE, Run
from archsim.validation.tables import EVERY, Gate, Left, Points, Row, Section, Standing

LEVEL = "end to end"
TIMES = ("tpot", "ttft")
DRAWN = 150  # points of a stack in a figure
Choice = Callable[[Run], bool]

HOW = (
    "Measured serving runs (H100 to GB300, vLLM, SGLang and TensorRT-LLM), each predicted by the steady answer of its "
    "own deployment, without a simulation; what the harness adds (start-up burst, client) is in `harness.yaml` of "
    "archsim.validation. One row a measurement. Constants of engines were fitted on half of the H100 and B200 rows; "
    "errors are of the rest and of chips whose rows no fit saw, unless a name says otherwise. The structure of the "
    "model (formats of caches, flags, which kernels a stack takes) was chosen with all rows in view."
)
FEW = " These are the measurements that the package carries; `pip install 'archsim[measurements]'` brings all."


@dataclass(frozen=True, eq=False)
class Evaluated:
    """Runs with their predictions, (runs,) in seconds."""

    runs: tuple[Run, ...]
    tpot: Array
    ttft: Array

    def times(self, time: str) -> Array:
        """The predictions of tpot or ttft."""
        return self.tpot if time == "tpot" else self.ttft

    def chosen(self, choose: Choice) -> "Evaluated":
        """The runs of a choice."""
        rows = np.array([choose(run) for run in self.runs], bool)
        runs = tuple(run for run, kept in zip(self.runs, rows, strict=True) if kept)
        return Evaluated(runs, self.tpot[rows], self.ttft[rows])

    def measured(self, time: str) -> Array:
        """What was measured, (runs,)."""
        return np.array([getattr(run, time) for run in self.runs])


def evaluate(runs: Sequence[Run], deploy: Deploy = shipped) -> Evaluated:
    """Predictions of all runs that can be predicted: disaggregated ones need their numbers of workers."""
    known = [run for run in runs if not run.disaggregated or run.decode.workers]
    one = [run for run in known if not run.disaggregated]
    two = [run for run in known if run.disaggregated]
    settled = predict(one, deploy)
    file = harness()
    times = np.array([tpot(one, settled, file), ttft(one, settled, file)])
    pools = np.array(end_to_end_pools.predict(two, deploy)) if two else np.zeros((2, 0))
    both = np.concatenate([times, pools], axis=1)
    return Evaluated((*one, *two), both[0], both[1])


def counted(time: str) -> Choice:
    """Whether a run counts for a time: one row a measurement, no flag against it."""
    return lambda run: run.sound(time) and "repeat" not in run.flags


def unfitted(time: str) -> Choice:
    """Aggregated runs that count and that no fit saw."""
    return lambda run: counted(time)(run) and not run.fitted and not run.disaggregated


def section_of(done: Evaluated, few: bool = False) -> Section:
    """Tables, gates, flagged rows and points of evaluated runs."""
    rows = tuple(row for time in TIMES for row in _rows(done, time))
    return Section(
        "Serving runs",
        HOW + (FEW if few else ""),
        rows,
        tuple(gates(done)),
        tuple(_left(done)),
        tuple(_points(done)),
        tuple(notes(done)),
    )


def row_of(done: Evaluated, time: str, chip: str, stack: str, fmt: str, regime: str) -> Row:
    """Errors of a group, with its worst run in words."""
    found = errors(done.times(time), done.measured(time))
    words = in_words(done, time, found.worst) if done.runs else ""
    return Row(LEVEL, time.upper(), chip, stack, fmt, regime, found, words)


def in_words(done: Evaluated, time: str, index: int) -> str:
    """A run in words: its deployment, what was predicted and measured."""
    run = done.runs[index]
    ranks = run.decode
    split = f"TP{ranks.tensor}" + (f" DP{ranks.data}" if ranks.data > 1 else "")
    split += f" EP{ranks.expert}" if ranks.expert > 1 else ""
    shape = f"{run.model.rpartition('/')[2]} {run.precision or 'bf16'} {split}, {clients_of(run):.0f} clients"
    times = f"{done.times(time)[index] * 1e3:.4g} ms predicted, {done.measured(time)[index] * 1e3:.4g} ms measured"
    return f"{shape}, {run.input:.0f} in, {run.output:.0f} out: {times}"


def _rows(done: Evaluated, time: str) -> Iterator[Row]:
    """One row for each chip, stack and precision, then one for each value of every other dimension."""
    rest = done.chosen(unfitted(time))
    for chip, stack, fmt in sorted({(run.chip, run.stack, run.precision) for run in rest.runs}):
        group = rest.chosen(lambda run, key=(chip, stack, fmt): (run.chip, run.stack, run.precision) == key)  # type: ignore[misc]
        yield row_of(group, time, CHIPS[chip], stack, fmt or "bf16", EVERY)
    yield row_of(done.chosen(lambda run: counted(time)(run) and run.fitted), time, "all", "all", "all", "fitted half")
    for label in DIMENSIONS.values():
        for name in dict.fromkeys(sorted((label(run) for run in rest.runs), key=_natural)):
            group = rest.chosen(lambda run, label=label, name=name: label(run) == name)  # type: ignore[misc]
            yield row_of(group, time, "all", "all", "all", name)


def _natural(text: str) -> tuple[str, float]:
    """Order by the first number of a text behind its first letter."""
    digits = "".join(letter for letter in text if letter.isdigit())
    return text[:3], float(digits[:8] or 0)


def _clients(run: Run) -> str:
    for low, most in ((1, 4), (5, 16), (17, 64), (65, 256)):
        if clients_of(run) <= most:
            return f"clients {low} to {most}"
    return "clients over 256"


DIMENSIONS: dict[str, Callable[[Run], str]] = {
    "stack": lambda run: f"stack {run.stack}",
    "chip": lambda run: f"chip {run.chip}",
    "model": lambda run: f"model {run.model.rpartition('/')[2]}",
    "precision": lambda run: f"precision {run.precision or 'bf16'}",
    "gpus": lambda run: f"GPUs {run.decode.tensor * run.decode.data}",
    "clients": _clients,
    "lengths": lambda run: f"lengths {run.input:.0f} in, {run.output:.0f} out" if run.burst else "lengths of a lab",
    "parallelism": lambda run: "split " + ("DP" if run.decode.data > 1 else "TP") + ("+EP" * (run.decode.expert > 1)),
}


@dataclass(frozen=True)
class _Set:
    """A gate and the runs that it is of."""

    name: str
    time: str
    gate: float
    aim: float
    choose: Choice


def _small(run: Run) -> bool:
    return not run.disaggregated and run.decode.tensor * run.decode.data <= NODE


def _other(time: str) -> Choice:
    return lambda run: unfitted(time)(run) and run.chip not in FITTED_CHIPS


SETS = (
    _Set("aggregated, not fitted, TPOT", "tpot", 10.6, 8.0, unfitted("tpot")),
    _Set("aggregated, not fitted, TTFT", "ttft", 27.0, 22.0, unfitted("ttft")),
    _Set("chips whose rows were not used, TPOT", "tpot", 12.9, 10.0, _other("tpot")),
    _Set("chips whose rows were not used, TTFT", "ttft", 31.0, 26.0, _other("ttft")),
    _Set("every aggregated row of a server, flagged and repeated ones too, TPOT", "tpot", 13.5, 11.0, _small),
    _Set("every aggregated row of a server, flagged and repeated ones too, TTFT", "ttft", 30.0, 26.0, _small),
    _Set(
        "disaggregated with numbers of workers, TPOT", "tpot", 17.5, 13.0,
        lambda run: run.disaggregated and counted("tpot")(run),
    ),
)  # fmt: skip
MEDIANS = {"tpot": (7.5, 6.0), "ttft": (21.0, 17.0)}


def gates(done: Evaluated) -> Iterator[Standing]:
    """Every gate with its row."""
    for one in SETS:
        group = done.chosen(one.choose)
        rows = (row_of(group, one.time, "all", "all", "all", one.name),) if group.runs else ()
        yield Standing(Gate(one.name, one.gate, one.aim), rows)


def notes(done: Evaluated) -> Iterator[str]:
    """What no gate of a mean can say: medians, wide deployments, corrected labels."""
    for time, (gate, aim) in MEDIANS.items():
        group = done.chosen(unfitted(time))
        if group.runs:
            median = errors(group.times(time), group.measured(time)).median
            yield f"{time.upper()}, aggregated, not fitted: median {median:.1f} % (gate {gate:g} %, aim {aim:g} %)"
    pools = done.chosen(lambda run: run.disaggregated and counted("ttft")(run))
    if pools.runs:
        found = errors(pools.ttft, pools.measured("ttft"))
        yield (
            f"TTFT, disaggregated with numbers of workers ({found.points}): median error {found.median:.0f} %, with "
            f"sign {found.bias:+.0f} %. Waits of seconds before a first hand-over are not modelled"
        )
    for name, reason in CORRECTED.items():
        count = sum(name in run.flags for run in done.runs)
        if count:
            yield f"read differently, {name.replace('_', ' ')} ({count} rows): {reason}"


def _left(done: Evaluated) -> Iterator[Left]:
    """Every flag with its reason, its rows, and how far off they are."""
    for name, reason in FLAGS.items():
        for time in TIMES:
            group = done.chosen(lambda run, name=name: name in run.flags)  # type: ignore[misc]
            if group.runs:
                found = errors(group.times(time), group.measured(time))
                yield Left(time.upper(), "all", "all", "all", name.replace("_", " "), reason, True, found)


def _points(done: Evaluated) -> Iterator[Points]:
    """Points for figures, evenly over the time of each stack."""
    for time in TIMES:
        rest = done.chosen(unfitted(time))
        for stack in sorted({run.stack for run in rest.runs}):
            group = rest.chosen(lambda run, stack=stack: run.stack == stack)  # type: ignore[misc]
            order = np.argsort(group.measured(time), kind="stable")
            chosen = order[np.unique(np.linspace(0, order.size - 1, min(DRAWN, order.size)).astype(np.int64))]
            words = tuple(in_words(group, time, int(index)) for index in chosen)
            yield Points(
                f"serving {time.upper()}", stack, group.times(time)[chosen], group.measured(time)[chosen], words
            )
