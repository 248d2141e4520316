"""Where tasks of a sweep are worked on: in this process, in several, or on a cluster.

Anything that is a `concurrent.futures.Executor` will do. Tasks are data and name no process, so one whose worker was
lost is simply done again, and results are handed out in the order of the tasks, whoever was first.
"""

import os
import signal
import threading
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, CancelledError, Executor, Future, wait
from concurrent.futures.process import ProcessPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing import get_context, parent_process
from typing import Any

from archsim.explore.rows import Rows, Task, work

ATTEMPTS = 4  # times that a task is given out before its loss is a failure
AHEAD = 2  # rows that wait for others before them: so many times those in flight


class Lost(RuntimeError):
    """Workers that are gone and cannot be replaced."""


@dataclass
class Workers:
    """An executor, how many tasks to keep in it, and how to make another when it breaks (None: it cannot be).

    `lost` is asked while nothing is done: whether what is in flight will never be; it raises Lost where nothing will.
    """

    executor: Executor
    in_flight: int
    renew: Callable[[], Executor] | None = None
    lost: Callable[[], bool] = lambda: False

    def replaced(self, error: BaseException) -> None:
        """Puts a new executor in the place of a broken one. Raises Lost where there is none."""
        if self.renew is None:
            raise Lost(f"the executor broke: {error or type(error).__name__}") from error
        self.executor.shutdown(wait=False, cancel_futures=True)
        self.executor = self.renew()


@contextmanager
def processes(count: int) -> Iterator[Workers]:
    """So many processes on this machine. One that dies is replaced, and what it did is done again."""
    if count < 1:
        raise ValueError(f"expected at least one worker, got {count}")

    def start() -> ProcessPoolExecutor:
        # not forked: this process has threads (a progress bar, a cluster's client), which a fork would tear
        return ProcessPoolExecutor(count, mp_context=get_context("spawn"), initializer=_quiet)

    workers = Workers(start(), count + 1, start)
    try:
        yield workers
    finally:
        workers.executor.shutdown(wait=False, cancel_futures=True)


def _quiet() -> None:
    """A worker leaves Ctrl-C to its parent, and ends when that is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_outlive, daemon=True).start()


def _outlive() -> None:
    parent = parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


@contextmanager
def dask(address: str, patience: str = "10s") -> Iterator[Workers]:
    """The workers of a dask cluster with a scheduler at an address such as tcp://host:8786.

    Raises ValueError without the extra `cluster`, and where no scheduler answers.
    """
    try:
        from distributed import Client
    except ImportError:
        raise ValueError("--dask needs dask.distributed: pip install 'archsim[cluster]'") from None
    try:
        client: Any = Client(address, timeout=patience, set_as_default=False)
    except (OSError, ValueError) as error:
        raise ValueError(f"--dask {address}: no scheduler answers: {error}") from None
    try:
        threads = sum(client.nthreads().values())
        if not threads:
            raise ValueError(f"--dask {address}: the scheduler has no workers")
        executor = client.get_executor(pure=False, retries=ATTEMPTS)
        yield Workers(executor, 2 * threads, lost=_Watch(client, address).lost)
    finally:
        with suppress(Exception):  # the cluster may be gone
            client.close(timeout=5)


@dataclass
class _Watch:
    """Tells whether a scheduler was gone: futures of before then wait for ever."""

    client: Any
    address: str
    away: bool = False

    def lost(self) -> bool:
        """Whether it is back after it was gone. Raises Lost where the client has given it up."""
        if self.client.status == "closed":
            raise Lost(f"the scheduler at {self.address} is gone")
        was, self.away = self.away, self.client.status != "running"
        return was and not self.away


@contextmanager
def given(executor: Executor) -> Iterator[Workers]:
    """An executor of the caller's, who shuts it down."""
    count = getattr(executor, "_max_workers", None) or os.cpu_count() or 1
    yield Workers(executor, int(count) + 1)


Kept = Callable[[int], bool]
Done = Callable[[int, Rows], None]


def in_order(
    count: int, task: Callable[[int], Task], workers: Workers | None, kept: Kept, done: Done, hold: bool
) -> Generator[tuple[int, Rows | None], None, None]:
    """The rows of tasks 0 to `count` in order; None for one that is `kept` already, or that is not to be held.

    `done` is called as soon as a task is, in whichever order. With `hold` rows wait here until their turn; without,
    `done` has put them where they can be read.
    """
    if workers is None:
        for index in range(count):
            rows = None
            if not kept(index):
                rows = work(task(index))
                done(index, rows)
            yield index, rows
        return
    yield from _Flight(count, task, workers, kept, done, hold).land()


@dataclass
class _Flight:
    """Tasks that are given out, and rows that wait for those before them."""

    count: int
    task: Callable[[int], Task]
    workers: Workers
    kept: Kept
    done: Done
    hold: bool

    def __post_init__(self) -> None:
        self.pending: dict[Future[Rows], int] = {}
        self.ready: dict[int, Rows | None] = {}
        self.attempts: dict[int, int] = {}
        self.again: list[int] = []
        self.next = 0

    def land(self) -> Iterator[tuple[int, Rows | None]]:
        """Rows in order."""
        try:
            for index in range(self.count):
                while index not in self.ready:
                    self._fill(index)
                    if index not in self.ready:
                        self._collect()
                yield index, self.ready.pop(index)
        finally:
            for future in self.pending:
                future.cancel()

    def _fill(self, index: int) -> None:
        """Gives out tasks until enough are in flight, lost ones first; none too far ahead of the one that is due."""
        room = self.workers.in_flight
        while self.again and len(self.pending) < room:
            self._submit(self.again.pop(0))
        while len(self.pending) < room and self.next < min(self.count, index + AHEAD * room):
            if self.kept(self.next):
                self.ready[self.next] = None
            else:
                self._submit(self.next)
            self.next += 1

    def _submit(self, index: int) -> None:
        self.attempts[index] = self.attempts.get(index, 0) + 1
        if self.attempts[index] > ATTEMPTS:
            raise Lost(f"chunk {index + 1} was lost {ATTEMPTS} times: its worker dies, perhaps for want of memory")
        task = self.task(index)
        try:
            future = self.workers.executor.submit(work, task)
        except Exception as error:  # a pool that broke, or a cluster that is gone, each with errors of its own
            self._renew(error)
            future = self.workers.executor.submit(work, task)
        self.pending[future] = index

    def _collect(self) -> None:
        """Takes what is done; what was lost is done again."""
        finished, _ = wait(self.pending, timeout=1.0, return_when=FIRST_COMPLETED)
        if not finished and self.workers.lost():
            self.again = sorted({*self.again, *self.pending.values()})
            self.pending.clear()
        for future in finished:
            if future not in self.pending:
                continue
            index = self.pending.pop(future)
            try:
                rows = future.result()
            except (BrokenExecutor, CancelledError, OSError) as error:
                self.again.append(index)
                if isinstance(error, BrokenExecutor):
                    self._renew(error)
                continue
            except Exception as error:
                if type(error).__module__.partition(".")[0] != "distributed":
                    raise
                self.again.append(index)  # its worker was lost more often than the scheduler allows
                continue
            self.attempts.pop(index, None)
            self.done(index, rows)
            self.ready[index] = rows if self.hold else None

    def _renew(self, error: BaseException) -> None:
        """A new executor in place of a broken one; what was in flight is done again."""
        self.again = sorted({*self.again, *self.pending.values()})
        self.pending.clear()
        self.workers.replaced(error)
