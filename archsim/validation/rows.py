"""Measured serving runs: one row a run, each with the flags that say why it should not be taken as it stands.

The layout is that of `silicon_sample.csv` in the wheel aiconfigurator-core (Apache-2.0), which is not part of archsim:
`table()` finds it where the extra `measurements` is installed. A small quoted set ships in `measured/end_to_end.csv`.
"""

import csv
import re
import zlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from importlib import resources, util
from pathlib import Path

FITTED_CHIPS = ("h100_sxm", "b200_sxm")
NODE = 8  # GPUs of the largest deployment that one server holds

FLAGS = {
    "repeat": "the values of another row: the same measurement exported again",
    "drafts": "ran with multi-token prediction that the row does not state: several tokens a step",
    "nodes": "spans servers: 12 GPUs and more, whose link and placement are not given",
    "capped": "the server ran fewer sequences than the clients sent: a queue, not a step, was measured",
    "eager": "about 50 ms a step whatever the batch and the split: run without captured graphs",
    "cached": "prompts read faster than the chip's peak allows: found in a prefix cache",
    "replicas": "clients are not batch x data-parallel ranks, or not given: an unknown number of replicas",
    "first_token": "seconds to a first token at any load: a fault of the run; its time between tokens is sound",
    "workers": "disaggregated, without numbers of workers: the batch of a step is not known",
}
CORRECTED = {
    "squared": "tp_size or attention_dp_size is the product with the expert ranks: the root of it ran",
    "not_sliced": "wide data-parallel decode with moe_tp_size for its ranks: the recipe states expert ranks elsewhere",
    "not_data_parallel": "data-parallel rows of vLLM with tp x tp expert ranks: its tensor-parallel runs again",
}
TTFT_ONLY = ("first_token",)  # flags that leave the time between tokens alone


@dataclass(frozen=True)
class Ranks:
    """Degrees of one pool of a deployment, as the file has them; `workers` is 0 where it is not given."""

    tensor: int
    data: int
    expert_tensor: int
    expert: int
    batch: float = 0.0
    workers: int = 0


@dataclass(frozen=True)
class Run:
    """A measured run: times in seconds, lengths in tokens, `clients` of its closed loop (0: unknown).

    `burst` says that all clients start at once with lengths spread over 0.8 to 1.0 of the nominal ones, and that ten
    prompts a client were sent. `prefill` is None where one pool does both. `fitted` says that constants may be fitted
    on the measurement: that any row of it belongs to that half.
    """

    id: str
    key: str
    source: str
    stack: str
    version: str
    model: str
    chip: str
    precision: str
    input: float
    output: float
    clients: float
    burst: bool
    decode: Ranks
    prefill: Ranks | None
    ttft: float
    tpot: float
    flags: tuple[str, ...] = ()
    fitted: bool = False

    @property
    def half(self) -> bool:
        """Whether these figures, as written in the file, belong to the half that constants may be fitted on."""
        return self.chip in FITTED_CHIPS and zlib.crc32(self.key.encode()) % 2 == 0

    @property
    def measurement(self) -> tuple[object, ...]:
        """What two exports of one measurement share: some round its times to hundredths of a millisecond."""
        return (self.chip, self.stack, self.input, self.output, f"{self.ttft * 1e3:.2f}", f"{self.tpot * 1e3:.2f}")

    @property
    def disaggregated(self) -> bool:
        """Whether prompts and decode ran on pools of their own."""
        return self.prefill is not None

    def sound(self, time: str) -> bool:
        """Whether no flag speaks against a `time`, tpot or ttft. Corrected labels do not."""
        against = set(self.flags) & set(FLAGS)
        return not (against - set(TTFT_ONLY) if time == "tpot" else against)


def table() -> Path | None:
    """The table of end-to-end rows of the extra `measurements`; None where it is not installed."""
    if util.find_spec("aiconfigurator_core") is None:
        return None
    return Path(str(resources.files("aiconfigurator_core").joinpath("systems", "silicon_sample.csv")))


def carried() -> Path:
    """The small set of measurements that archsim itself quotes."""
    return Path(__file__).parent / "measured" / "end_to_end.csv"


def read(path: Path) -> list[Run]:
    """The runs of a table, flagged. Lines that start with # are remarks. Raises KeyError for a missing column."""
    with path.open(encoding="utf-8", newline="") as file:
        runs = [_run(line) for line in csv.DictReader(item for item in file if not item.startswith("#"))]
    return flagged(runs)


def _run(line: dict[str, str]) -> Run:
    source = line["silicon_data_source"]
    times = (line["silicon_ttft_ms"], line["silicon_tpot_ms"])
    found = re.search(r"silicon_concurrency=(\d+)", source)
    together = line["mode"] == "agg"
    return Run(
        id=line["id"],
        key="|".join((line["system"], line["isl"], line["osl"], *times)),
        source=source,
        stack=line["backend"],
        version=line["backend_version"],
        model=line["model_path"],
        chip=line["system"],
        precision=line["precision"],
        input=float(line["isl"]),
        output=float(line["osl"]),
        clients=float(found.group(1)) if found else 0.0,
        burst=bool(re.match(r"db-dump|source_file=(2026-|[^/;]*gap-analysis)", source)),
        decode=_ranks(line, "" if together else "decode_"),
        prefill=None if together else _ranks(line, "prefill_"),
        ttft=float(times[0]) / 1e3,
        tpot=float(times[1]) / 1e3,
    )


def _ranks(line: dict[str, str], pool: str) -> Ranks:
    names = ("tp_size", "attention_dp_size", "moe_tp_size", "moe_ep_size")
    tensor, data, sliced, expert = (max(int(float(line[pool + name] or 1)), 1) for name in names)
    workers = int(float(line.get(pool + "num_workers") or 0))
    return Ranks(tensor, data, sliced, expert, float(line[pool + "batch_size"] or 0), workers)


def flagged(runs: Iterable[Run]) -> list[Run]:
    """The runs with their labels corrected and every flag that holds; the best row of a measurement is no repeat."""
    runs = [replace(run, flags=tuple(name for name, holds in CORRECTIONS.items() if holds(run))) for run in runs]
    runs = [_corrected(run) for run in runs]
    stated = {run.key for run in runs if run.source.startswith("db-dump")}
    rules: dict[str, Callable[[Run], bool]] = RULES | {"drafts": lambda run: _drafts(run, stated)}
    runs = [replace(run, flags=(*run.flags, *(name for name, holds in rules.items() if holds(run)))) for run in runs]
    first: dict[tuple[object, ...], Run] = {}
    for run in sorted(runs, key=lambda run: (not run.sound("ttft"), not run.version)):
        first.setdefault(run.measurement, run)
    halves = {run.measurement for run in runs if run.half}
    runs = [replace(run, fitted=run.measurement in halves) if run.measurement in halves else run for run in runs]
    best = {run.id for run in first.values()}
    return [run if run.id in best else replace(run, flags=("repeat", *run.flags)) for run in runs]


def _corrected(run: Run) -> Run:
    """The run with the ranks that it had."""
    ranks = run.decode
    if "squared" in run.flags and not run.disaggregated:
        side = ranks.expert_tensor
        if ranks.data > 1:
            return replace(run, decode=replace(ranks, data=side, expert_tensor=1))
        return replace(run, decode=replace(ranks, tensor=side, expert_tensor=1))
    if "not_sliced" in run.flags:
        return replace(run, decode=replace(ranks, expert=ranks.expert_tensor, expert_tensor=1))
    if "not_data_parallel" in run.flags:
        return replace(run, decode=replace(ranks, data=1, expert_tensor=1, expert=ranks.tensor))
    return run


def _squared(run: Run) -> bool:
    r = run.decode
    return r.expert_tensor == r.expert > 2 and r.expert**2 in (r.tensor, r.data)


def _not_data_parallel(run: Run) -> bool:
    r = run.decode
    return run.stack == "vllm" and r.data == r.tensor > 1 and r.expert == r.tensor**2


def _not_sliced(run: Run) -> bool:
    r = run.decode
    return run.disaggregated and run.stack == "sglang" and r.data > NODE and r.expert_tensor == r.data


def _drafts(run: Run, stated: set[str]) -> bool:
    """Images whose recipes switch prediction on, unless a dump that tells the two apart has the run.

    The dump's runs of the same set-ups are 1.3 (SGLang) to 1.9 times slower (TensorRT-LLM) with four clients.
    """
    if "DeepSeek" not in run.model or not run.burst or run.disaggregated:
        return False
    if run.stack == "sglang":
        return (run.chip, run.precision) == ("b200_sxm", "fp8") and bool(run.version) and run.key not in stated
    if "1.2.0rc6.post3" in run.source:
        return True
    return "1.1.0rc2.post2" in run.source and run.key not in stated


def _replicas(run: Run) -> bool:
    """Runs of a lab that do not say how many engines shared the clients."""
    if run.burst:
        return False
    if run.disaggregated:
        return True
    return not run.clients or run.clients != run.decode.batch * run.decode.data


def _eager(run: Run) -> bool:
    return (
        not run.burst and (run.stack, run.chip, run.version) == ("vllm", "h200_sxm", "0.12.0") and "235B" in run.model
    )


def _cached(run: Run) -> bool:
    return not run.burst and (run.stack, run.chip) == ("vllm", "h200_sxm") and "Llama-3.1-8B" in run.model


def _capped(run: Run) -> bool:
    return run.stack == "vllm" and "gpt-oss" in run.model and run.chip == "h100_sxm" and run.clients >= 512


def _first_token(run: Run) -> bool:
    dated = re.search(r"measured=2025-11-(02|10|18)", run.source)
    unnamed = run.stack == "sglang" and not run.version and run.precision == "fp4" and not run.disaggregated
    return bool(unnamed and dated and run.chip == "b200_sxm" and "DeepSeek" in run.model)


CORRECTIONS: dict[str, Callable[[Run], bool]] = {
    "squared": _squared,
    "not_sliced": _not_sliced,
    "not_data_parallel": _not_data_parallel,
}
RULES: dict[str, Callable[[Run], bool]] = {
    "nodes": lambda run: not run.disaggregated and run.decode.tensor * run.decode.data > NODE,
    "capped": _capped,
    "eager": _eager,
    "cached": _cached,
    "replicas": _replicas,
    "first_token": _first_token,
    "workers": lambda run: run.disaggregated and not run.decode.workers,
}
