"""Executors and the journal: nothing is lost, nothing is doubled, and every way gives the same bytes."""

import os
import random
import signal
import socket
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from archsim.explore import executors, sweep
from archsim.explore.executors import Lost, Workers, given, processes
from archsim.explore.journal import Changed, Journal, packed, unpacked
from archsim.explore.rows import Task, work
from archsim.explore.running import Outputs, Stopped, run_sweep
from archsim.explore.scenario import Scenario, load_scenario
from archsim.explore.specify import specify
from archsim.explore.sweep import Sweep

ROOT = Path(__file__).parent.parent
SCENARIO = """\
name: small
model: meta/llama-3.1-8b
pools: {gpu: {chip: nvidia/h100-sxm, count: 2}}
batch: 8
context: 2048
"""
VARY = ["chips=1,2,3,4,6,8,12,16,24,32,48,64,96,128", "batch=1..60", "context=100..50000:40"]
COLUMNS = ("tpot", "cost_per_token", "memory_needed", "split.tensor")
CHUNKS = 14


def scenario(folder: Path, text: str = SCENARIO) -> Scenario:
    place = folder / "small.yaml"
    place.write_text(text, encoding="utf-8")
    return load_scenario(str(place))


def spec_in(folder: Path) -> Sweep:
    return specify([scenario(folder)], VARY, columns=COLUMNS)


@pytest.fixture(autouse=True)
def a_chunk_for_each_structure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweep, "TOGETHER", 1)


@pytest.fixture
def spec(tmp_path: Path) -> Sweep:
    return spec_in(tmp_path)


def written(spec: Sweep, place: Path, workers: Workers | None = None, journal: Journal | None = None) -> bytes:
    run_sweep(spec, workers, journal, Outputs(csv=str(place)))
    return place.read_bytes()


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """What an uninterrupted run in this process writes, which does not depend on how it is cut."""
    folder = tmp_path_factory.mktemp("plain")
    return written(spec_in(folder), folder / "plain.csv")


def test_the_sweep_has_several_chunks(spec: Sweep) -> None:
    assert spec.chunks == CHUNKS and spec.rows == 14 * 60 * 40


# Executors


def test_threads_and_processes_give_the_rows_of_this_process(spec: Sweep, plain: bytes, tmp_path: Path) -> None:
    with ThreadPoolExecutor(2) as pool, given(pool) as workers:
        assert written(spec, tmp_path / "threads.csv", workers) == plain
    with processes(2) as workers:
        assert written(spec, tmp_path / "processes.csv", workers) == plain


def test_a_process_that_is_killed_is_replaced_and_its_chunk_done_again(
    spec: Sweep, plain: bytes, tmp_path: Path
) -> None:
    with processes(2) as workers:
        first = workers.executor

        def told(done: int, _: int) -> None:
            if done and workers.executor is first:
                os.kill(next(iter(first._processes)), signal.SIGKILL)  # type: ignore[attr-defined]

        run_sweep(spec, workers, None, Outputs(csv=str(tmp_path / "killed.csv")), told)
        assert workers.executor is not first
    assert (tmp_path / "killed.csv").read_bytes() == plain


class Losing(Executor):
    """Loses the first results of some chunks, and hands out the others late and out of order."""

    def __init__(self, often: int) -> None:
        self.often, self.lost = often, dict[int, int]()
        self.pool = ThreadPoolExecutor(3)
        self._max_workers = 3

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        task: Task = args[0]
        key = hash(repr(task.pieces[0].changes))
        if self.lost.get(key, 0) < self.often:
            self.lost[key] = self.lost.get(key, 0) + 1
            future: Future[Any] = Future()
            future.set_exception(ConnectionError("its worker is gone"))
            return future

        def slow() -> Any:
            time.sleep((key % 7) / 100)
            return fn(*args, **kwargs)

        return self.pool.submit(slow)


def test_what_is_lost_is_done_again_and_order_does_not_matter(spec: Sweep, plain: bytes, tmp_path: Path) -> None:
    with given(Losing(2)) as workers:
        assert written(spec, tmp_path / "lost.csv", workers) == plain
    with given(Losing(99)) as workers, pytest.raises(Lost, match="lost 4 times"):
        written(spec, tmp_path / "never.csv", workers)
    assert not (tmp_path / "never.csv").exists() and not list(tmp_path.glob(".*.part"))


def test_mistakes_of_ours_are_not_tried_again(spec: Sweep, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def broken(task: Task) -> None:
        calls.append(task)
        raise ZeroDivisionError("a mistake")

    monkeypatch.setattr(executors, "work", broken)
    with ThreadPoolExecutor(1) as pool, given(pool) as workers, pytest.raises(ZeroDivisionError):
        run_sweep(spec, workers)
    assert len(calls) <= 4


def test_served_points_go_through_the_same_executors(tmp_path: Path) -> None:
    asked = {"requests": 20}
    text = SCENARIO + "traffic: {input: 500, output: 50}\n"
    served = specify([scenario(tmp_path, text)], ["rate=1,5"], served=asked, columns=("ttft_p90", "goodput"))
    alone = written(served, tmp_path / "alone.csv")
    with ThreadPoolExecutor(2) as pool, given(pool) as workers:
        assert written(served, tmp_path / "pool.csv", workers) == alone
    assert served.chunks == 2


# A cluster


@contextmanager
def cluster(count: int) -> Iterator[tuple[str, list["subprocess.Popen[bytes]"]]]:
    """A scheduler and workers, each a process of its own, on this machine."""
    pytest.importorskip("distributed")
    from distributed import Client

    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    python = [sys.executable, "-m"]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "env": environment}
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    address = f"tcp://127.0.0.1:{port}"
    scheduler = [*python, "distributed.cli.dask_scheduler", "--host", "127.0.0.1", "--port", port, "--no-dashboard"]
    worker = [*python, "distributed.cli.dask_worker", address, "--nthreads", "1", "--no-nanny", "--no-dashboard"]
    started: list[subprocess.Popen[bytes]] = []
    try:
        started.append(subprocess.Popen(scheduler, **quiet))  # type: ignore[call-overload]
        started += [subprocess.Popen(worker, **quiet) for _ in range(count)]  # type: ignore[call-overload]
        with Client(address, timeout="60s", set_as_default=False) as client:
            client.wait_for_workers(count, timeout=120)
        yield address, started
    finally:
        for process in started:
            process.kill()
            process.wait()


@pytest.mark.slow
def test_a_cluster_gives_the_rows_of_this_process_also_when_a_worker_dies(
    spec: Sweep, plain: bytes, tmp_path: Path
) -> None:
    with cluster(4) as (address, started), executors.dask(address) as workers:
        assert written(spec, tmp_path / "dask.csv", workers) == plain
        killed = []

        def told(done: int, _: int) -> None:
            if done and not killed:
                killed.append(started[2].pid)
                started[2].kill()

        run_sweep(spec, workers, None, Outputs(csv=str(tmp_path / "killed.csv")), told)
        assert killed and (tmp_path / "killed.csv").read_bytes() == plain


@pytest.mark.slow
def test_a_sweep_whose_cluster_is_lost_goes_on_without_it(spec: Sweep, plain: bytes, tmp_path: Path) -> None:
    place, journal = tmp_path / "rows.csv", tmp_path / "rows.journal"
    book = Journal(journal, spec, resume=False)
    with cluster(1) as (address, started), executors.dask(address) as workers:

        def told(done: int, _: int) -> None:
            if done:
                for process in started:
                    process.kill()

        with pytest.raises(Lost):
            run_sweep(spec, workers, book, Outputs(csv=str(place)), told)
    book.close()
    book = Journal(journal, spec, resume=True)
    assert 0 < book.done < CHUNKS and not place.exists()
    assert written(spec, place, None, book) == plain
    book.close()


def test_no_cluster_is_said_in_a_sentence() -> None:
    pytest.importorskip("distributed")
    with pytest.raises(ValueError, match="no scheduler answers"), executors.dask("tcp://127.0.0.1:9", "1s"):
        pass


# The journal


def forked(work: Callable[[], None]) -> int:
    """A child process that does some work: as a command of its own, without its start."""
    child = os.fork()
    if child:
        return child
    with suppress(BaseException):
        work()
    os._exit(0)


def killed_at(moment: float, work: Callable[[], None]) -> None:
    """Kills a child that does some work, with SIGKILL at a moment."""
    child = forked(work)
    time.sleep(moment)
    with suppress(ProcessLookupError):
        os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)


@pytest.fixture
def many(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Sweep:
    """A sweep of many chunks that need nothing built, so that a kill at any moment falls among them."""
    monkeypatch.setattr(sweep, "limit_of", lambda shape: 150)
    return specify([scenario(tmp_path)], ["batch=1..60", "context=100..50000:40"], columns=COLUMNS)


def kills(spec: Sweep, folder: Path, count: int, seed: int) -> list[int]:
    """Kills runs at random moments and resumes each; how many chunks each kill left."""
    rng, place, chunks = random.Random(seed), folder / "killed.csv", spec.chunks
    plain = written(spec, folder / "whole.csv")

    def run(journal: Path) -> None:
        book = Journal(journal, spec, resume=True)
        written(spec, place, None, book)
        book.close()

    start = time.perf_counter()
    os.waitpid(forked(lambda: run(folder / "whole.journal")), 0)
    whole = time.perf_counter() - start
    left = []
    for number in range(count):
        journal = folder / f"{number}.journal"
        place.unlink(missing_ok=True)
        killed_at(rng.uniform(0.0, whole), lambda journal=journal: run(journal))  # type: ignore[misc]
        book = Journal(journal, spec, resume=True)
        left.append(book.done)
        assert written(spec, place, None, book) == plain
        book.close()
        with closing(sqlite3.connect(journal)) as db, db:
            assert db.execute("SELECT COUNT(*), COUNT(DISTINCT number) FROM chunks").fetchone() == (chunks, chunks)
    return left


@pytest.mark.skipif(not hasattr(os, "fork"), reason="children are forked")
def test_killed_at_some_moments_and_resumed_it_gives_the_same_bytes(many: Sweep, tmp_path: Path) -> None:
    assert many.chunks == 20
    kills(many, tmp_path, 5, seed=1)


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="children are forked")
def test_killed_at_fifty_moments_and_resumed_it_gives_the_same_bytes(many: Sweep, tmp_path: Path) -> None:
    left = kills(many, tmp_path, 50, seed=2)
    assert len(set(left)) > 3  # the moments were spread over the sweep


def test_interrupted_it_says_what_is_kept_and_goes_on(spec: Sweep, plain: bytes, tmp_path: Path) -> None:
    place, journal = tmp_path / "rows.csv", tmp_path / "rows.journal"

    def interrupt(done: int, _: int) -> None:
        if done > 3 * 2400:
            raise KeyboardInterrupt

    book = Journal(journal, spec, resume=False)
    with pytest.raises(Stopped) as stopped:
        run_sweep(spec, None, book, Outputs(csv=str(place)), interrupt)
    book.close()
    assert stopped.value.done == 4 and not place.exists() and not list(tmp_path.glob(".*"))
    with pytest.raises(ValueError, match=f"4 of {CHUNKS} chunks done: add --resume"):
        Journal(journal, spec, resume=False)
    book = Journal(journal, spec, resume=True)
    counted: list[tuple[int, int]] = []
    run_sweep(spec, None, book, Outputs(csv=str(place)), lambda done, before: counted.append((done, before)))
    assert counted[0] == (4 * 2400, 4 * 2400) and counted[-1] == (spec.rows, 4 * 2400)
    assert place.read_bytes() == plain
    book.remove()
    assert not list(tmp_path.glob("rows.journal*"))


def begun(spec: Sweep, journal: Path) -> None:
    """A journal with its first chunk."""
    book = Journal(journal, spec, resume=False)
    book.add(0, work(spec.task(spec.chunk(0))))
    book.close()


def test_a_changed_input_is_refused_with_what_changed(spec: Sweep, tmp_path: Path) -> None:
    chips = tmp_path / "mine.yaml"
    chips.write_text("extends: nvidia/h100-sxm\nset: {memory.bandwidth: 3 TB/s}\n")
    text = SCENARIO.replace("nvidia/h100-sxm", str(chips))
    own = specify([scenario(tmp_path, text)], VARY, columns=COLUMNS)
    journal = tmp_path / "own.journal"
    begun(own, journal)
    Journal(journal, own, resume=True).close()
    chips.write_text("extends: nvidia/h100-sxm\nset: {memory.bandwidth: 4 TB/s}\n")
    with pytest.raises(Changed, match=r"mine\.yaml changed \(set\.memory\.bandwidth was 3 TB/s, is 4 TB/s\)"):
        Journal(journal, specify([scenario(tmp_path, text)], VARY, columns=COLUMNS), resume=True)
    chips.unlink()
    with pytest.raises(Changed, match=r"mine\.yaml is gone"):
        Journal(journal, own, resume=True)


def test_another_question_is_refused_with_what_changed(spec: Sweep, tmp_path: Path) -> None:
    journal = tmp_path / "rows.journal"
    begun(spec, journal)
    others = {
        "pools.gpu.count was 2, is 4": (SCENARIO.replace("count: 2", "count: 4"), VARY, COLUMNS),
        "values of batch was .* is 1.0, 2.0": (SCENARIO, [VARY[0], "batch=1,2", VARY[2]], COLUMNS),
        "columns was tpot, .* is tpot": (SCENARIO, VARY, ("tpot",)),
    }
    for message, (text, vary, columns) in others.items():
        other = specify([scenario(tmp_path, text)], vary, columns=columns)
        with pytest.raises(Changed, match=message):
            Journal(journal, other, resume=True)
    scenario(tmp_path)
    Journal(journal, spec, resume=True).close()


def test_an_input_that_changes_while_the_sweep_runs_is_noticed(spec: Sweep, tmp_path: Path) -> None:
    first = work(spec.task(spec.chunk(0)))
    place = Path(spec.grids[0].origin.path)
    place.write_text(place.read_text() + "# later\n")
    second = work(spec.task(spec.chunk(1)))
    with pytest.raises(Changed, match=r"changed while the sweep ran: .*small\.yaml"):
        book = Journal(tmp_path / "rows.journal", spec, resume=False)
        book.add(0, first)
        book.add(1, second)


def test_a_chunk_that_was_damaged_is_done_again(spec: Sweep, plain: bytes, tmp_path: Path) -> None:
    journal = tmp_path / "rows.journal"
    book = Journal(journal, spec, resume=False)
    assert written(spec, tmp_path / "rows.csv", None, book) == plain
    book.close()
    with closing(sqlite3.connect(journal)) as db, db:
        (raw,) = db.execute("SELECT rows FROM chunks WHERE number = 2").fetchone()
        db.execute("UPDATE chunks SET rows = ? WHERE number = 2", (raw[:-1] + bytes([raw[-1] ^ 1]),))
    book = Journal(journal, spec, resume=True)
    assert written(spec, tmp_path / "rows.csv", None, book) == plain
    book.close()


def test_rows_survive_as_bytes(spec: Sweep) -> None:
    rows = work(spec.task(spec.chunk(5)))
    again = unpacked(packed(rows), "a chunk")
    assert again.count == rows.count and again.reasons == rows.reasons and again.files == rows.files
    assert {name: values.tobytes() for name, values in again.columns.items()} == {
        name: values.tobytes() for name, values in rows.columns.items()
    }
    with pytest.raises(ValueError, match="a chunk is damaged"):
        unpacked(packed(rows)[:-1], "a chunk")


def test_no_journal_is_shared_and_no_other_file_taken_for_one(spec: Sweep, tmp_path: Path) -> None:
    journal = tmp_path / "rows.journal"
    book = Journal(journal, spec, resume=False)
    with pytest.raises(ValueError, match="is in use by another sweep"):
        Journal(journal, spec, resume=True)
    book.close()
    text = tmp_path / "text.txt"
    text.write_text("not a database, and long enough to be none " * 10)
    with pytest.raises(ValueError, match="is no journal of a sweep"):
        Journal(text, spec, resume=True)
    with closing(sqlite3.connect(tmp_path / "other.db")) as db, db:
        db.execute("CREATE TABLE people (name TEXT)")
    with pytest.raises(ValueError, match="is no journal of a sweep"):
        Journal(tmp_path / "other.db", spec, resume=True)


# The command


def command(folder: Path, *arguments: str, size: int = 0) -> "subprocess.Popen[str]":
    """`archsim sweep` in a process of its own, whose files may not be larger than `size` bytes (0: any)."""
    limit = f"import resource; resource.setrlimit(resource.RLIMIT_FSIZE, ({size}, {size}));" if size else ""
    code = f"import sys; {limit} sys.argv[0] = 'archsim'; from archsim.cli import app"
    code += "; from archsim.explore import sweep; sweep.TOGETHER = 1; app()"
    vary = [part for text in VARY for part in ("--vary", text)]
    argv = [sys.executable, "-c", code, "sweep", "small.yaml", *vary, "--columns", ",".join(COLUMNS), *arguments]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.Popen(argv, cwd=folder, env=environment, stdout=-1, stderr=-1, text=True)


@pytest.mark.skipif(sys.platform == "win32", reason="limits of files are POSIX")
def test_a_full_disk_keeps_what_is_done_and_says_how_to_go_on(spec: Sweep, plain: bytes, tmp_path: Path) -> None:
    full = command(tmp_path, "--csv", "rows.csv", size=400_000)
    _, said = full.communicate(timeout=120)
    assert full.returncode == 2 and "Traceback" not in said, said
    assert f"of {CHUNKS} chunks are in rows.csv.journal; go on with" in said and "--csv rows.csv --resume" in said
    assert not (tmp_path / "rows.csv").exists()
    again = command(tmp_path, "--csv", "rows.csv", "--resume")
    again.communicate(timeout=120)
    assert again.returncode == 0 and (tmp_path / "rows.csv").read_bytes() == plain
    assert not (tmp_path / "rows.csv.journal").exists()


@pytest.mark.slow
def test_control_c_stops_cleanly_and_says_how_to_go_on(spec: Sweep, plain: bytes, tmp_path: Path) -> None:
    for workers in ("0", "2"):
        process = command(tmp_path, "--csv", "rows.csv", "--workers", workers)
        journal = tmp_path / "rows.csv.journal-wal"  # chunks come here first
        while process.poll() is None and not (journal.exists() and journal.stat().st_size > 400_000):
            time.sleep(0.02)
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=120)
        assert process.returncode == 130 and "Traceback" not in said, said
        assert "go on with" in said and not (tmp_path / "rows.csv").exists()
        again = command(tmp_path, "--csv", "rows.csv", "--workers", workers, "--resume")
        again.communicate(timeout=120)
        assert (tmp_path / "rows.csv").read_bytes() == plain
        (tmp_path / "rows.csv").unlink()
