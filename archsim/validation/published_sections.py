"""Sections of machines and published figures: DGX Spark, saturated throughput, first tokens, single points."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from archsim.arrays import Array
from archsim.validation import published_figures as published
from archsim.validation import spark
from archsim.validation.errors import errors
from archsim.validation.tables import EVERY, Gate, Row, Section, Standing

SPARK = "dgx_spark_llamacpp.csv"
SPARK_TEXT = (
    "Decode steps of llama.cpp on DGX Spark (LPDDR5X), five models, behind 0 to 32768 tokens. Three constants are "
    "fitted to one sequence of the four other models; then the model that was left out is predicted, also in batches."
)
PUBLISHED_TEXT = (
    "Figures that others published, none of them fitted on. Throughput is of a closed loop with more clients than "
    "memory holds; a first token is one prefill step of a bare session; single points are steps."
)


def machine_sections(folder: Path) -> list[Section]:
    """The sections whose tables lie in a folder."""
    found = []
    if (folder / SPARK).is_file():
        found.append(spark_section(folder / SPARK))
    rows = tuple(row for compared in published.all_of(folder) for row in _compared(compared))
    return found + ([Section("Published figures", PUBLISHED_TEXT, rows)] if rows else [])


def spark_section(path: Path) -> Section:
    """Decode of one model at a time with constants of the others."""
    points = spark.read(path)
    left = spark.left_out(points)
    rows: list[Row] = []
    alone: list[tuple[Array, Array]] = []
    batched: list[tuple[Array, Array]] = []
    for one, times in zip(points, left, strict=True):
        for kind, regime, kept in (("one", "one sequence", one.batch == 1), ("many", "batched", one.batch > 1)):
            found = errors(times[kept], one.seconds[kept])
            batch, context = one.batch[kept][found.worst], one.context[kept][found.worst]
            words = (
                f"{batch:.0f} sequences behind {context:.0f} tokens: {times[kept][found.worst] * 1e3:.4g} ms predicted"
            )
            words += f", {one.seconds[kept][found.worst] * 1e3:.4g} ms measured"
            rows.append(
                Row(
                    "step",
                    one.model,
                    "nvidia/dgx-spark-gb10",
                    "llama.cpp",
                    one.model.rpartition(" ")[2],
                    regime,
                    found,
                    words,
                )
            )
            (alone if kind == "one" else batched).append((times[kept], one.seconds[kept]))
    together = [_all(alone, "one sequence"), _all(batched, "batched")]
    gates = (
        Standing(Gate("DGX Spark decode, one sequence, a model left out", 4.5, 3.0), (together[0],)),
        Standing(Gate("DGX Spark decode, batched", 20.0, 12.0), (together[1],)),
    )
    return Section("LPDDR machine", SPARK_TEXT, (*together, *rows), gates)


def _all(pairs: list[tuple[Array, Array]], regime: str) -> Row:
    predicted, measured = (np.concatenate(items) for items in zip(*pairs, strict=True))
    return Row("step", "decode", "nvidia/dgx-spark-gb10", "llama.cpp", "all", regime, errors(predicted, measured))


def _compared(c: published.Compared) -> Iterator[Row]:
    """One row over all, then one a chip."""
    chips = np.array(c.chips)
    for chip in (EVERY, *dict.fromkeys(c.chips)):
        kept = np.ones(chips.shape, bool) if chip == EVERY else chips == chip
        found = errors(c.predicted[kept], c.measured[kept])
        index = int(np.flatnonzero(kept)[found.worst])
        words = (
            f"{c.names[index]}: {c.predicted[index]:.4g} {c.unit} predicted, {c.measured[index]:.4g} {c.unit} measured"
        )
        yield Row("published", c.level, chip, "all", "all", EVERY, found, words)
