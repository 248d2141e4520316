"""Serving runs and saturated servers, played request by request as their harnesses sent them.

The closed loop of `end_to_end` is a settled one, to which the harness adds a burst at the start by fitted constants.
Here the burst is played: all clients send at once, ten prompts each, of lengths spread as the harness spread them.
"""

import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from archsim.arrays import Array, array
from archsim.mapping.options import Options
from archsim.mapping.place import Deployment
from archsim.mapping.split import split
from archsim.serving.measures import Measures
from archsim.serving.policy import ServingFile
from archsim.serving.server import server_of
from archsim.serving.simulate import Server, simulate
from archsim.serving.surface import Surface
from archsim.validation import published_figures as published
from archsim.validation.deployments import Batch, structure_of
from archsim.validation.end_to_end import clients_of, harness, polled, predict, shipped, with_room
from archsim.validation.end_to_end_tables import TIMES, Evaluated, evaluate, row_of, unfitted
from archsim.validation.errors import errors
from archsim.validation.rows import Run
from archsim.validation.tables import EVERY, Gate, Row, Section, Standing
from archsim.workload.model import Moe
from archsim.workload.requests import Requests

PROMPTS = 10  # that a client sends, one after another
SPREAD = 0.8  # of the nominal length, that of the shortest
ENDLESS = 4096  # sequences that run at once: more than any client count of the runs
TABLE = "trtllm_v1.0_throughput.csv"
SENT = {  # requests of a point of TABLE by lengths in and out, as its source says
    ("128", "128"): 30000,
    **dict.fromkeys((("128", "2048"), ("500", "2000"), ("1000", "1000"), ("2048", "128")), 3000),
    **dict.fromkeys((("128", "4096"), ("1000", "2000"), ("2048", "2048"), ("5000", "500")), 1500),
    ("20000", "2000"): 1000,
}
CAPTURED = (1, 2, 4, 8, 16, 32, 64, 128, 256, 384, 512, 1024, 2048)  # batches with a graph there; others are padded
BOUGHT = ("H100", "H200", "B200")  # chips of the gate
EVEN = Options(imbalance=1.0)  # tokens drawn at random meet experts of uneven popularity
TEXT = (
    "The same kinds of figures with every request played. Serving runs whose harness is public: all clients at once, "
    "ten prompts each; nothing fitted but the prompts ahead of one's own with SGLang, taken from the closed form "
    "(`harness.yaml`), which stands beside it on the same runs; no fit saw them. Saturated throughput: all requests "
    "queued at once, as many as the source says, memory for a whole answer taken at its start, decode batches padded "
    "to captured graphs, attention data-parallel in models with experts."
)


def section(runs: Sequence[Run], folder: Path | None, count: int) -> Section:
    """The section of `count` runs, drawn by the hash of their figures, and of the table in `folder`, if it is there."""
    rows, standings = _runs(drawn(runs, count))
    if folder is not None and (folder / TABLE).is_file():
        found = throughput(folder)
        rows += found
        bought = next(row for row in found if row.chip == ", ".join(BOUGHT))
        standings.append(Standing(Gate("saturated throughput as sent, H100, H200, B200", 15.0, None), (bought,)))
    return Section("Played request by request", TEXT, tuple(rows), tuple(standings))


def drawn(runs: Sequence[Run], count: int) -> list[Run]:
    """Runs of a public harness that count and that no fit saw, in the order of a hash."""
    kept = [run for run in runs if run.burst and unfitted("ttft")(run)]
    return sorted(kept, key=lambda run: zlib.crc32(run.key.encode()))[:count]


def _runs(runs: Sequence[Run]) -> tuple[list[Row], list[Standing]]:
    """Rows of both predictions by stack and over all, and a gate: the played one is closer."""
    settled = evaluate(runs)
    found = np.array([play(run) for run in settled.runs]).reshape(-1, 2)
    own = Evaluated(settled.runs, found[:, 1], found[:, 0] + waits(settled.runs))
    rows = []
    for stack in (EVERY, *sorted({run.stack for run in runs})):
        for time in TIMES:
            for done, name in ((own, "played"), (settled, "closed form")):
                part = done if stack == EVERY else done.chosen(lambda run, stack=stack: run.stack == stack)  # type: ignore[misc]
                row = row_of(part, time, EVERY, stack, name, EVERY)
                rows.append(replace(row, level="played", family=f"{time.upper()}, played"))
    (ours, closed) = (next(row for row in rows if (row.family, row.format) == ("TTFT, played", name)) for name in NAMES)
    gate = Gate("time to first token as sent, against that of the closed form", round(closed.errors.mape, 1), None)
    return rows, [Standing(gate, (ours,))]


NAMES = ("played", "closed form")


def play(run: Run) -> tuple[float, float]:
    """Mean seconds to the first token and between tokens of one run, as its harness sends it."""
    d = with_room(shipped(Batch(structure_of(run), (run,), (0,)), "decode"), array(run.input + run.output))
    policy = ServingFile(
        scheduler="prefill-first" if run.stack == "sglang" else "chunked", max_batch=ENDLESS, prefix_cache=False
    )
    asked = sent(run)
    measures = Measures(simulate(asked, server_of(_single(d), policy, asked)))
    return measures.latency("ttft")["mean"], measures.latency("tpot")["mean"]


def waits(runs: Sequence[Run]) -> Array:
    """Seconds that prompts wait where a stack looks for new ones now and then only; see `HarnessFile`."""
    h, p = harness(), predict(runs)
    lets = np.array([h.stacks[run.stack].lets_wait for run in runs])
    return np.where(lets, polled(runs, p, h) + np.array([h.stacks[run.stack].queue for run in runs]) * p.prompt, 0.0)


def sent(run: Run) -> Requests:
    """The prompts of a harness: lengths even over 0.8 to 1.0 of the nominal ones, each client's one after another."""
    clients = round(clients_of(run))
    rng = np.random.default_rng(zlib.crc32(run.key.encode()))
    sizes = [
        np.maximum(rng.integers(round(SPREAD * nominal), round(nominal) + 1, PROMPTS * clients), 1)
        for nominal in (run.input, run.output)
    ]
    return Requests(np.zeros(PROMPTS * clients), sizes[0], sizes[1], clients=clients)


def _single(d: Deployment) -> Deployment:
    """A deployment of one row, with degrees of one dimension."""
    return replace(d, split=d.split.mapped(lambda _, value: np.ravel(value)))


def throughput(folder: Path) -> list[Row]:
    """Rows of saturated throughput: over all chips, those of BOUGHT, and chip by chip."""
    lines = [line for line in published.lines_of(folder / TABLE) if line["model"] in published.MODELS]
    found = np.array([saturated(line) for line in lines])
    measured = np.array([float(line["output_tps_total"]) for line in lines])
    chips = np.array([line["gpu"] for line in lines])
    return list(_by_chip(lines, found, measured, chips))


def _by_chip(
    lines: Sequence[Mapping[str, str]], found: Array, measured: Array, chips: "np.typing.NDArray[np.str_]"
) -> Iterator[Row]:
    groups = {EVERY: np.ones(chips.shape, bool), ", ".join(BOUGHT): np.isin(chips, BOUGHT)}
    groups |= {chip: chips == chip for chip in dict.fromkeys(chips.tolist())}
    for name, kept in groups.items():
        off = errors(found[kept], measured[kept])
        index = int(np.flatnonzero(kept)[off.worst])
        line = lines[index]
        words = f"{line['model']} {line['isl']}/{line['osl']}: {found[index]:.4g} tok/s played, {measured[index]:.4g}"
        yield Row("played", "saturated", name, "trtllm", EVERY, EVERY, off, f"{words} tok/s measured")


def saturated(line: Mapping[str, str]) -> float:
    """Output tokens a second of one line of TABLE."""
    key = (line["model"], line["gpu"], line["precision"], line["parallelism"].replace(" ", ""))
    d = _single(published.deployment_of(key))
    ranks, experts = 1, any(isinstance(block.ffn, Moe) for block in d.model.blocks.values())
    if experts and float(d.split.pipeline.max()) == 1.0:
        ranks = int(d.split.ranks.max())
        d = replace(d, split=split(1, ranks, ranks), options=EVEN)
    count = SENT[line["isl"], line["osl"]]
    asked = Requests(np.zeros(count), np.full(count, int(line["isl"])), np.full(count, int(line["osl"])))
    policy = ServingFile(max_batch=int(published.MOST) * ranks, prefix_cache=False, watermark=0.0)
    server = server_of(d, policy, asked)
    whole = replace(server.scheduler, whole=True)
    return Measures(simulate(asked, _padded(replace(server, scheduler=whole), ranks))).output_rate


def _padded(server: Server, ranks: int) -> Server:
    """The server whose decode steps without prefill run the next larger batch that has a graph."""
    surface: Surface = server.surface
    batches = np.arange(surface.most + 1.0)
    each = np.ceil(batches / ranks)
    index = np.searchsorted(CAPTURED, each)
    padded = np.where(index < len(CAPTURED), np.array([*CAPTURED, 0])[index], each) * ranks
    known = np.array(surface.fixed)
    slope = (known[-1] - known[len(known) // 2]) / max(len(known) - 1 - len(known) // 2, 1)
    beyond = known[-1] + slope * (padded - surface.most)
    times = np.where(padded <= surface.most, known[np.minimum(padded, surface.most).astype(int)], beyond)
    times[0] = known[0]
    return replace(server, surface=replace(surface, fixed=times.tolist()))
