"""Files that people get wrong: the shipped ones, spoilt in every way we could think of, and run through the command.

A spoilt file is refused with exit code 2 and its place, or it runs, and then every number is finite or the answer says
why there is none. Never a traceback, never NaN, never more than five seconds. A failure names its number; the file
comes back with `spoilt(number)`.
"""

from __future__ import annotations

import copy
import faulthandler
import json
import multiprocessing
import os
import random
import re
import resource
import signal
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner, Result

from archsim import catalog
from archsim.chip import schema
from archsim.cli import app

ROOT = Path(__file__).parent.parent
QUICK, MANY = 300, 10_000
SECONDS = 5.0  # of processor time, which other work on the machine does not stretch
STUCK = 40  # seconds of the clock after which a case is given up, and twice that after which its process is ended
MEMORY = 6 << 30  # bytes of a worker's address space: what asks for more is a finding and not a dead machine

# What is asked of a spoilt file of each kind; {file} is its path and {chip} one that has the generation
QUESTIONS = {
    "chips": "model: meta/llama-3.1-8b\npools: {{gpu: {{chip: {file}, count: 2}}}}\nbatch: 4\ncontext: 1000\n",
    "chips/generations": "model: meta/llama-3.1-8b\npools: {{gpu: {{chip: ./chip.yaml, count: 1}}}}\n"
    "batch: 4\ncontext: 1000\n",
    "workloads": "model: {file}\npools: {{gpu: {{chip: nvidia/h200-sxm, count: 8}}}}\n"
    "mapper: tensor-parallel\nbatch: 2\ncontext: 3000\n",
    "mappers": "model: openai/gpt-oss-20b\npools: {{gpu: {{chip: nvidia/h100-sxm, count: 4}}}}\n"
    "mapper: {file}\nbatch: 4\ncontext: 1000\n",
    "mappers/runtimes": "model: meta/llama-3.1-8b\npools: {{gpu: {{chip: nvidia/h100-sxm, count: 1}}}}\n"
    "runtime: {file}\nbatch: 4\ncontext: 1000\n",
}
# Scenarios that between them have every key
SCENARIOS = (
    "model: meta/llama-3.1-8b\npools: {gpu: {chip: nvidia/h100-sxm, count: 2}}\nbatch: [1, 8]\ncontext: 2000\n"
    "precision: {weights: fp8, kv: fp8}\nsplit: {tensor: 2}\npower_cap: 500 W\nname: a pair\n"
    "economics: {by: capital, capital: 40000 USD, years: 4, interest: 0.1, operation: 0.05, electricity: 0.1 USD/kWh,"
    " pue: 1.3, overhead: 300 W, utilization: 0.7}\n",
    "model: openai/gpt-oss-20b\npools: {gpu: {chip: nvidia/h100-sxm, count: 2}}\nmapper: expert-parallel\n"
    "runtime: sglang\nbatch: 4\ncontext: 1000\nrouting: {skew: 0.8}\nobjective: {maximize: throughput}\n"
    "placement: {micro_batches: 2, sequence_parallel: true, redundant_experts: 4, imbalance: 0.5}\n",
    "model: meta/llama-3.1-8b\npools: {gpu: {chip: nvidia/a100-sxm-80gb, count: 1}}\nsplit: {tensor: 1, data: 1}\n"
    "traffic: {input: 700, output: 90, cached: 30}\nslo: {ttft: 2 s, tpot: 40 ms, interactivity: 20 tok/s}\n"
    "objective: {minimize: cost_per_token}\neconomics: {rent: 2 USD/h}\n",
)
PLACE = re.compile(r"[^:]+:\d+:\d+: \S")


# Spoiling


def paths(data: Any, where: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Every path of keys and positions inside plain data."""
    items = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    for part, value in items:
        yield (*where, part)
        yield from paths(value, (*where, part))


def at(data: Any, where: tuple[Any, ...]) -> Any:
    for part in where:
        data = data[part]
    return data


def misspelt(name: str, rng: random.Random) -> str:
    place = rng.randrange(len(name) + 1)
    tail = name[place + 1 :]
    other = rng.choice(
        ["", "_", "x", "ß", "е", name[place : place + 1].upper(), name[place : place + 1] * 2, " ", "\u200b"]
    )
    return name[:place] + other + tail


def scaled(text: str, rng: random.Random) -> str:
    """A quantity such as "3.35 TB/s" with another number, or another unit, or only one of both."""
    number, _, unit = text.partition(" ")
    numbers = [
        "0",
        "-1",
        "-0",
        "1e308",
        "1e-308",
        "1e999",
        "nan",
        "inf",
        ".5",
        "1_000",
        "1,5",
        "7e-12",
        "1e15",
        "3.7",
        number,
    ]
    units = [
        "",
        "GB",
        "GiB/s",
        "GHz",
        "W",
        "furlongs",
        "us",
        "TFLOP/s",
        "USD/h",
        "pJ/B",
        "%",
        "GB/s/s",
        unit.lower(),
        unit * 2,
    ]
    if rng.random() < 0.6:
        return f"{rng.choice(numbers)} {unit}".strip()
    return f"{number} {rng.choice(units)}".strip()


def other_value(value: Any, rng: random.Random) -> Any:
    odd: list[Any] = [
        float("nan"),
        float("inf"),
        -float("inf"),
        1e308,
        -1e308,
        1e-308,
        10**400,
        2**63,
        -1,
        0,
        -0.0,
        0.5,
        1e15,
    ]
    odd += [
        True,
        None,
        [],
        {},
        [value],
        {"a": value},
        "",
        " ",
        "text",
        "no",
        "12:30:45",
        "017",
        "\u202eabc",
        "💥",
        "x" * 5000,
    ]
    if isinstance(value, str) and re.match(r"-?[\d.]+(e[-+]?\d+)? \S", value) and rng.random() < 0.7:
        return scaled(value, rng)
    if isinstance(value, bool):
        return rng.choice([not value, *odd])
    if isinstance(value, int | float) and rng.random() < 0.6:
        third = value / 3 if abs(value) < 2**1000 else value // 3  # some numbers are larger than any float
        return rng.choice(
            [value * 2, value + 1, -value, value * 1000, third, value * 10**6, value // 2, 1, 10**9, 2**40]
        )
    return rng.choice(odd)


def drop(data: Any, where: tuple[Any, ...], rng: random.Random) -> None:
    del at(data, where[:-1])[where[-1]]


def rename(data: Any, where: tuple[Any, ...], rng: random.Random) -> None:
    inside = at(data, where[:-1])
    if isinstance(inside, dict):
        inside[misspelt(str(where[-1]), rng)] = inside.pop(where[-1])
    else:
        inside.append(copy.deepcopy(inside[where[-1]]))


def move(data: Any, where: tuple[Any, ...], rng: random.Random) -> None:
    value = at(data, where[:-1])[where[-1]]
    drop(data, where, rng)
    mappings = [data, *(at(data, path) for path in paths(data) if isinstance(at(data, path), dict))]
    own = {id(value), *(id(at(value, path)) for path in paths(value))}  # an alias stands elsewhere too: no cycles
    rng.choice([mapping for mapping in mappings if id(mapping) not in own])[str(where[-1])] = value


def replace(data: Any, where: tuple[Any, ...], rng: random.Random) -> None:
    inside = at(data, where[:-1])
    inside[where[-1]] = other_value(inside[where[-1]], rng)


def swap(data: Any, where: tuple[Any, ...], rng: random.Random) -> None:
    """The value of somewhere else in the file."""
    other = copy.deepcopy(at(data, rng.choice(list(paths(data)))))
    at(data, where[:-1])[where[-1]] = other


def nest(data: Any, where: tuple[Any, ...], rng: random.Random) -> None:
    inside = at(data, where[:-1])
    for _ in range(rng.choice([1, 2, 48, 60])):
        inside[where[-1]] = rng.choice([[inside[where[-1]]], {"a": inside[where[-1]]}])


def stretch(data: Any, where: tuple[Any, ...], rng: random.Random) -> None:
    """Another number of the same kind somewhere: files that stay well formed and go far out."""
    numbers = [path for path in paths(data) if path[0] != "sources" and number_of(at(data, path)) is not None]
    if numbers:
        path = rng.choice(numbers)
        inside, value = at(data, path[:-1]), at(data, path)
        factor = rng.choice([0, 0.5, 1.01, 2, 7, 1000, 1e-3, 1e6, 1e-9, 1e12, 1e25])
        number = (number_of(value) or 0.0) * factor
        plain = int(number) if isinstance(value, int) and number.is_integer() else number
        inside[path[-1]] = plain if not isinstance(value, str) else f"{plain} {value.partition(' ')[2]}"


def number_of(value: Any) -> float | None:
    """The number of a number, or of a quantity such as "3.35 TB/s"."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    found = re.fullmatch(r"(\d+(?:\.\d+)?(?:e[-+]?\d+)?)(?: \S+)?", str(value))
    return float(found[1]) if found else None


SPOIL: list[Callable[[Any, tuple[Any, ...], random.Random], None]]
SPOIL = [drop, drop, rename, move, replace, replace, replace, swap, nest, *[stretch] * 9]
TOKENS = [
    ".nan",
    ".inf",
    "NaN",
    "1e309",
    "1e400",
    "0x10",
    "1" * 401,
    "- - -",
    "&a *a",
    "*a",
    "!!python/object:os.system x",
]
TOKENS += [
    "!!float 1",
    "<<",
    "---",
    "\t",
    "@",
    "%",
    "`",
    "|",
    ">",
    "? a",
    '"\\0"',
    '"\\x07"',
    "{",
    "[",
    "}",
    "#",
    "[" * 3000,
]
TOKENS += ["{a: " * 200, "\ufeff", "\u2028", "\x00", "é", "名前", "🚀", "e\u0301", "\u202e", "'", "...", "\r"]


def spoilt_text(text: str, rng: random.Random) -> bytes:
    """A text with one edit, as bytes that need not be text any more."""
    raw = text.encode()
    lines = text.splitlines()
    place, line = rng.randrange(len(raw)), rng.randrange(len(lines))
    edit = rng.choice(
        ["cut", "byte", "bytes", "token", "token", "value", "value", "drop", "double", "double", "swap", "indent"]
    )
    if edit == "cut":
        return raw[:place]
    if edit == "byte":
        return raw[:place] + bytes([rng.randrange(256)]) + raw[place + 1 :]
    if edit == "bytes":
        return raw[:place] + rng.randbytes(rng.choice([1, 4, 100])) + raw[place:]
    if edit == "token":
        return raw[:place] + rng.choice(TOKENS).encode() + raw[place:]
    if edit == "value":
        lines[line] = re.sub(r"(: ?)\S+", lambda found: f": {rng.choice(TOKENS)}", lines[line], count=1)
    elif edit == "drop":
        del lines[line]
    elif edit == "double":
        lines.insert(rng.randrange(len(lines) + 1), lines[line])
    elif edit == "swap":
        lines.insert(rng.randrange(len(lines)), lines.pop(line))
    else:
        lines[line] = rng.choice([" ", "  ", "\t", "- "]) + lines[line].lstrip(rng.choice([" ", "?"]))
    return ("\n".join(lines) + "\n").encode()


# What is spoilt, and what is asked of it


@cache
def shipped(kind: str) -> tuple[tuple[str, str], ...]:
    """(name, text) of every file of a kind."""
    if kind == "examples":
        known = [(name, catalog.find(kind, name).read_text("utf-8")) for name in catalog.names(kind)]
        return (*known, *(("mine", text) for text in SCENARIOS for _ in range(3)))
    return tuple((name, catalog.find(kind, name).read_text("utf-8")) for name in catalog.names(kind))


@cache
def chips_of(generation: str) -> str:
    """A chip that takes its constants from a generation."""
    for name, text in shipped("chips"):
        if f"generation: {generation}\n" in text:
            return name
    return "nvidia/h100-sxm"


KINDS = (
    "examples",
    "examples",
    "chips",
    "chips",
    "chips/generations",
    "workloads",
    "workloads",
    "mappers",
    "mappers/runtimes",
)


@dataclass(frozen=True)
class Spoilt:
    """A spoilt file of a kind, and the scenario that asks something of it."""

    kind: str
    name: str
    raw: bytes

    def write(self, folder: Path) -> str:
        """Writes all that is needed; gives the path of the scenario."""
        (folder / "spoilt.yaml").write_bytes(self.raw)
        if self.kind == "examples":
            return str(folder / "spoilt.yaml")
        chip = f"extends: {chips_of(self.name)}\nset: {{generation: ./spoilt.yaml}}\n"
        (folder / "chip.yaml").write_text(chip, encoding="utf-8")
        (folder / "ask.yaml").write_text(QUESTIONS[self.kind].format(file="./spoilt.yaml"), encoding="utf-8")
        return str(folder / "ask.yaml")


def spoilt(number: int) -> Spoilt:
    """The spoilt file of a number, always the same."""
    rng = random.Random(number)
    kind = rng.choice(KINDS)
    name, text = rng.choice(shipped(kind))
    if rng.random() < 0.25:
        return Spoilt(kind, name, spoilt_text(text, rng))
    data = yaml.safe_load(text)
    for _ in range(rng.choice([1, 1, 1, 1, 2, 3])):
        places = [path for path in paths(data) if path[0] != "sources"] or list(paths(data))
        if places:
            rng.choice(SPOIL)(data, rng.choice(places), rng)
    dumped = yaml.dump(data, Dumper=_Dumper, sort_keys=False, allow_unicode=True, default_flow_style=rng.random() < 0.1)
    return Spoilt(kind, name, dumped.encode())


class _Dumper(yaml.SafeDumper):
    """Writes values out in full, since aliases are not what is tested."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


# Judging


@dataclass(frozen=True)
class Finding:
    """What is wrong with an outcome: a word for its kind, and what was seen."""

    number: int
    file: str
    kind: str
    seen: str

    def __str__(self) -> str:
        return f"spoilt({self.number}), {self.file}: {self.kind}: {self.seen[-1500:]}"


def unlike_numbers(text: str) -> str:
    """What is wrong with a JSON answer; nothing where all is well."""
    constants: list[str] = []
    data = json.loads(text, parse_constant=constants.append)
    if constants:
        return f"no number: {constants[0]}"
    for answer in data["answers"]:
        feasible = flat(answer["feasible"])
        for name, metric in answer["metrics"].items():
            for fits, value in zip(feasible, flat(metric["values"]), strict=True):
                if fits and value is None and not metric.get("undefined"):
                    return f"{name} is undefined at a feasible point"
                if fits and value is not None and value < 0:
                    return f"{name} is negative: {value}"
        if not any(feasible) and not (answer["refusal"] and answer["refusal"]["reason"]):
            return "infeasible without a reason"
    return ""


def flat(values: Any) -> list[Any]:
    return [item for value in values for item in flat(value)] if isinstance(values, list) else [values]


def wrong(found: Result, stderr: str) -> tuple[str, str]:
    """The kind of mistake in an outcome and what was seen; two empty texts where there is none."""
    error = found.exception
    if error is not None and not isinstance(error, SystemExit):
        return f"traceback of {type(error).__name__}", f"{error!r:.400} in {lines_of(error)}"
    if found.exit_code in (0, 1):
        said = unlike_numbers(found.stdout)
        return (said.partition(":")[0], said) if said else ("", "")
    lines = [line for line in stderr.splitlines() if line]
    if found.exit_code != 2 or not lines or found.stdout:
        return f"exit code {found.exit_code}", found.output
    unplaced = [line for line in lines if not PLACE.match(line)]
    return ("no place", unplaced[0]) if unplaced else ("", "")


def lines_of(error: BaseException) -> str:
    """The lines of archsim that an error passed through, the last first."""
    steps, trace = [], error.__traceback__
    while trace is not None:
        code = trace.tb_frame.f_code
        if "archsim" in Path(code.co_filename).parts:
            steps.append(f"{Path(code.co_filename).name}:{trace.tb_lineno}")
        trace = trace.tb_next
    return " < ".join(reversed(steps[-4:]))


def check(number: int) -> tuple[Finding | None, int]:
    """Runs one spoilt file in the current folder; its finding, and its exit code."""
    case = spoilt(number)
    scenario = case.write(Path())
    started, shown = time.process_time(), []
    try:
        with guarded(), warnings.catch_warnings(record=True) as shown:
            warnings.simplefilter("always")
            found = CliRunner().invoke(app, ["run", scenario, "--json", "-"])
    except Late:
        return Finding(number, f"{case.kind}/{case.name}", "endless", ""), -1
    kind, seen = wrong(found, found.stderr)
    spent = time.process_time() - started
    if not kind and spent > SECONDS:
        kind, seen = "slow", f"{spent:.1f} s"
    if not kind and shown:
        kind, seen = "warning", f"{shown[0].filename}:{shown[0].lineno}: {shown[0].message}"
    return (Finding(number, f"{case.kind}/{case.name}", kind, seen) if kind else None), found.exit_code


class Late(BaseException):
    """Out of time; no Exception, since the command answers for those."""


@contextmanager
def guarded() -> Iterator[None]:
    """Raises Late in what runs for too long, and ends the process where even that does not help."""

    def late(signum: int, frame: object) -> None:
        raise Late

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(STUCK)
    faulthandler.dump_traceback_later(2 * STUCK, exit=True)
    try:
        yield
    finally:
        signal.alarm(0)
        faulthandler.cancel_dump_traceback_later()
        signal.signal(signal.SIGALRM, before)


def start(folder: str) -> None:
    """Prepares a worker: a folder of its own, a limit of its memory, and shipped files read once."""
    own = Path(folder) / str(os.getpid())
    own.mkdir()
    os.chdir(own)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    os.environ["COLUMNS"] = "200"
    catalog._added.clear()
    read, generation = catalog.read, schema.load_generation
    once, of_shipped = lru_cache(None)(read), lru_cache(None)(lambda name: generation(name))
    catalog.read = lambda path: once(path) if ROOT in path.parents else read(path)
    known = set(catalog.names("chips/generations"))
    schema.load_generation = lambda name, mark=None: of_shipped(name) if name in known else generation(name, mark)


def findings(numbers: range, folder: Path) -> tuple[list[Finding], dict[int, int]]:
    """What is wrong with the outcomes of the spoilt files of `numbers`, and how often each exit code came."""
    workers = max(2, os.cpu_count() or 1)
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, context, start, (str(folder),)) as pool:
        done = list(pool.map(check, numbers, chunksize=max(1, min(25, len(numbers) // (4 * workers)))))
    codes: dict[int, int] = {}
    for _, code in done:
        codes[code] = codes.get(code, 0) + 1
    return [found for found, _ in done if found is not None], codes


def report(found: list[Finding], codes: dict[int, int]) -> str:
    """One line for each kind of mistake, the commonest first, with an instance."""
    kinds: dict[str, list[Finding]] = {}
    for finding in found:
        kinds.setdefault(finding.kind, []).append(finding)
    listed = sorted(kinds.values(), key=len, reverse=True)
    return "\n".join([f"exit codes {codes}", *(f"{len(group)} x {group[0]}" for group in listed)])


def assert_handled(numbers: range, folder: Path) -> None:
    found, codes = findings(numbers, folder)
    assert not found, report(found, codes)
    assert codes.get(0, 0) > len(numbers) / 20 and codes.get(2, 0) > len(numbers) / 4, (
        f"too one-sided to say much: {codes}"
    )


def test_hundreds_of_spoilt_files_are_refused_in_place_or_give_numbers(tmp_path: Path) -> None:
    assert_handled(range(QUICK), tmp_path)


@pytest.mark.slow
def test_thousands_of_spoilt_files_are_refused_in_place_or_give_numbers(tmp_path: Path) -> None:
    assert_handled(range(QUICK, QUICK + MANY), tmp_path)


def test_files_are_spoilt_the_same_way_every_time_and_in_every_kind() -> None:
    cases = [spoilt(number) for number in range(120)]
    assert cases == [spoilt(number) for number in range(120)]
    assert {case.kind for case in cases} == set(KINDS)
    assert len({case.raw for case in cases}) > 110


@pytest.mark.parametrize("name", ["unspoilt", *range(len(SCENARIOS))])
def test_unspoilt_files_run(name: str | int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The questions themselves are answered, so that what is refused is refused for what was spoilt."""
    monkeypatch.chdir(tmp_path)
    if isinstance(name, int):
        cases = [Spoilt("examples", "mine", SCENARIOS[name].encode())]
    else:
        first = {"chips": "nvidia/h100-sxm", "chips/generations": "hopper", "workloads": "meta/llama-3.1-8b"}
        first |= {"mappers": "auto", "mappers/runtimes": "vllm"}
        cases = [Spoilt(kind, of, dict(shipped(kind))[of].encode()) for kind, of in first.items()]
    for case in cases:
        found = CliRunner().invoke(app, ["run", case.write(tmp_path), "--json", "-"])
        assert found.exit_code == 0, found.output
        assert not unlike_numbers(found.stdout)
