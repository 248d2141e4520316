"""The journal of a sweep: a SQLite file that keeps every chunk as soon as it is done.

Each chunk is one transaction in write-ahead mode, so that a process that is killed at any moment leaves whole chunks
and nothing else. Beside them stand what the sweep is and the contents of every file it read; a sweep goes on only where
all of that is still the same, and says what changed where it is not.
"""

import json
import sqlite3
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from hashlib import sha256
from pathlib import Path

import numpy as np

from archsim import __version__
from archsim.catalog import CatalogError, read_text
from archsim.explore.rows import Column, Rows, digest
from archsim.explore.sweep import Sweep, described

LARGEST_TEXT = 1_000_000  # bytes of an input that is kept, to say what changed in it
FORMAT = "1"


class Changed(ValueError):
    """Inputs that are not what the chunks kept so far were made from; the text says which."""


class Full(OSError):
    """A journal that cannot grow."""


SCHEMA = """
CREATE TABLE IF NOT EXISTS sweep (key TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS inputs (path TEXT PRIMARY KEY, hash TEXT NOT NULL, text TEXT);
CREATE TABLE IF NOT EXISTS chunks (number INTEGER PRIMARY KEY, rows BLOB NOT NULL);
"""


class Journal:
    """Chunks of one sweep in a file."""

    def __init__(self, path: Path, sweep: Sweep, resume: bool) -> None:
        """Opens or makes a journal.

        Raises ValueError for one that is there without `resume`, is no journal or is in use; Changed where an input
        is not what it was; Full where the file cannot be written.
        """
        self.path = path
        self.hashes: dict[str, str] = {}
        self._there: set[int] = set()
        self._db = sqlite3.connect(path, isolation_level=None, timeout=1.0)
        try:
            with self._told():
                self._open(sweep, resume)
        except BaseException:
            self.close()
            raise

    def _open(self, sweep: Sweep, resume: bool) -> None:
        for pragma in ("page_size=16384", "locking_mode=EXCLUSIVE", "journal_mode=WAL", "synchronous=NORMAL"):
            self._db.execute(f"PRAGMA {pragma}")
        now = {"format": FORMAT, "archsim": __version__, "numpy": np.__version__, **described(sweep), **_code()}
        tables = {name for (name,) in self._db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        if tables - {"sweep", "inputs", "chunks"}:
            raise ValueError(f"{self.path} is no journal of a sweep")
        self._db.executescript(SCHEMA)  # in parts where an earlier run was killed between them
        with self._transaction():
            kept = dict(self._db.execute("SELECT key, value FROM sweep").fetchall())
            if not kept:
                self._db.executemany("INSERT INTO sweep VALUES (?, ?)", now.items())
        self._there = {number for (number,) in self._db.execute("SELECT number FROM chunks")}
        if not kept:
            return
        if not resume:
            text = f"{self.path} holds a sweep with {len(self._there)} of {sweep.chunks} chunks done"
            raise ValueError(f"{text}: add --resume to go on with it, or remove the file")
        self._check(kept, now)

    def _check(self, kept: Mapping[str, str], now: Mapping[str, str]) -> None:
        """Raises Changed where the sweep or a file that it read is not what it was."""
        found = [_difference(key, kept.get(key), now.get(key)) for key in {**kept, **now}]
        for path, old, text in self._db.execute("SELECT path, hash, text FROM inputs ORDER BY path").fetchall():
            self.hashes[path] = old
            found.append(_file_changed(Path(path), old, text))
        lines = [line for line in found if line]
        if lines:
            raise Changed(f"{self.path} was begun with other inputs: " + "; ".join(lines[:8]))

    def has(self, number: int) -> bool:
        """Whether a chunk is done."""
        return number in self._there

    @property
    def done(self) -> int:
        """How many chunks are done."""
        return len(self._there)

    def add(self, number: int, rows: Rows) -> None:
        """Keeps a chunk. Raises Changed where it was made from other files than those before it, Full without room."""
        new = news(self.hashes, rows.files)
        with self._told(), self._transaction():
            for path, value in new.items():
                self._db.execute("INSERT INTO inputs VALUES (?, ?, ?)", (path, value, _text(Path(path), value)))
            self._db.execute("INSERT OR REPLACE INTO chunks VALUES (?, ?)", (number, packed(rows)))
        self.hashes |= new
        self._there.add(number)

    def read(self, number: int) -> Rows:
        """The rows of a chunk that is done. Raises ValueError where the file is damaged."""
        with self._told():
            row = self._db.execute("SELECT rows FROM chunks WHERE number = ?", (number,)).fetchone()
        if row is None:
            raise ValueError(f"{self.path}: chunk {number + 1} is not there")
        return unpacked(row[0], f"{self.path}: chunk {number + 1}")

    def close(self) -> None:
        """Closes the file; the write-ahead log is folded into it."""
        with suppress(sqlite3.Error):
            self._db.close()

    def remove(self) -> None:
        """Closes and deletes the file, once its rows are elsewhere."""
        self.close()
        for ending in ("", "-wal", "-shm"):
            Path(f"{self.path}{ending}").unlink(missing_ok=True)

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        self._db.execute("BEGIN IMMEDIATE")
        try:
            yield
            self._db.execute("COMMIT")
        except BaseException:
            with suppress(sqlite3.Error):
                self._db.execute("ROLLBACK")
            raise

    @contextmanager
    def _told(self) -> Iterator[None]:
        """Errors of SQLite in words for users."""
        try:
            yield
        except sqlite3.OperationalError as error:
            text = str(error)
            if "locked" in text:
                raise ValueError(f"{self.path} is in use by another sweep") from error
            if "full" in text or "I/O" in text:
                raise Full(28, f"no room for more chunks ({text})", str(self.path)) from error
            raise ValueError(f"{self.path}: {text}") from error
        except sqlite3.DatabaseError as error:
            raise ValueError(f"{self.path} is no journal of a sweep: {error}") from error


def news(known: Mapping[str, str], files: Mapping[str, str]) -> dict[str, str]:
    """Files that were not read before. Raises Changed for one that was, and was different then."""
    other = [path for path, value in files.items() if known.get(path, value) != value]
    if other:
        raise Changed(f"changed while the sweep ran: {', '.join(sorted(other))}")
    return {path: value for path, value in files.items() if path not in known}


def _difference(key: str, old: str | None, new: str | None) -> str:
    """How an item of a sweep differs; empty where it does not."""
    if old == new:
        return ""
    if key.startswith("code "):
        return f"{key.removeprefix('code ')} of archsim itself"
    return f"{key} was {old if old is not None else 'not there'}, is {new if new is not None else 'not there'}"


def _file_changed(path: Path, old: str, text: str | None) -> str:
    """What changed in a file since its hash was kept; empty where nothing did."""
    if not path.is_file():
        return f"{path} is gone"
    if digest(path) == old:
        return ""
    fields = [] if text is None else _fields(path, text)
    return f"{path} changed" + (f" ({', '.join(fields[:5])})" if fields else "")


def _fields(path: Path, text: str) -> list[str]:
    """The fields of a YAML file that differ from an older text of it."""
    try:
        old = dict(_leaves(read_text(text, path).data))
        new = dict(_leaves(read_text(path.read_text(encoding="utf-8"), path).data))
    except (CatalogError, OSError, UnicodeDecodeError):
        return []
    names = [name for name in {**old, **new} if old.get(name) != new.get(name)]
    return [f"{name} was {old.get(name, 'not there')}, is {new.get(name, 'not there')}" for name in names]


def _leaves(data: object, before: str = "") -> Iterator[tuple[str, object]]:
    if isinstance(data, dict):
        for key, value in data.items():
            yield from _leaves(value, f"{before}.{key}" if before else str(key))
    else:
        yield before, data


def _text(path: Path, value: str) -> str | None:
    """The text of an input, so that what changed in it can be told; None where it is large, binary or elsewhere."""
    try:
        raw = path.read_bytes() if path.stat().st_size <= LARGEST_TEXT else b""
        return raw.decode("utf-8") if raw and sha256(raw).hexdigest() == value else None
    except (OSError, UnicodeDecodeError):
        return None


def _code() -> dict[str, str]:
    """Hashes of the program's own files: its results are only comparable with those of the same program."""
    package = Path(__file__).resolve().parent.parent
    return {f"code {path.relative_to(package).as_posix()}": digest(path)[:16] for path in sorted(package.rglob("*.py"))}


# Rows as bytes


def packed(rows: Rows) -> bytes:
    """Rows as bytes: a header that says what they are, their columns one after another, and a checksum in front."""
    head = json.dumps(
        {
            "count": rows.count,
            "reasons": rows.reasons,
            "files": rows.files,
            "columns": [[name, values.dtype.str, int(values.size)] for name, values in rows.columns.items()],
        }
    ).encode()
    body = b"".join([len(head).to_bytes(4, "big"), head, *(values.tobytes() for values in rows.columns.values())])
    return zlib.crc32(body).to_bytes(4, "big") + body


def unpacked(raw: bytes, name: str) -> Rows:
    """The rows of `packed`. Raises ValueError, with the `name` of what was read, where the checksum is wrong."""
    if len(raw) < 8 or zlib.crc32(raw[4:]) != int.from_bytes(raw[:4], "big"):
        raise ValueError(f"{name} is damaged")
    size = int.from_bytes(raw[4:8], "big")
    head = json.loads(raw[8 : 8 + size])
    at, columns = 8 + size, dict[str, Column]()
    for column, kind, count in head["columns"]:
        columns[column] = np.frombuffer(raw, np.dtype(kind), count, at)
        at += columns[column].nbytes
    return Rows(head["count"], columns, tuple(head["reasons"]), head["files"])
