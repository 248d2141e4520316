"""Sessions of agents as JSON: one file a session, with sub-agents inside."""

import json
from collections.abc import Iterator
from math import nan
from pathlib import Path
from typing import Any

from archsim.workload.tracerows import Row, Rows, answer, blocks, seconds, tokens
from archsim.yamlmarks import Fault, shown

MAIN = "main"
Values = dict[str, Any]


def folder(files: list[Path]) -> Rows:
    """The steps of many sessions, each a file whose block ids are its own."""
    base = 0
    for file in files:
        highest = 0
        for row in session(file, base):
            if isinstance(row, Row) and row.chain:
                highest = max(highest, *row.chain)
            yield row
        base = max(base, highest + 1)


def session(file: Path, base: int) -> Rows:
    """The steps of a session in the order of the file; its block ids begin at `base`.

    `t` counts from the start of the session, or of the sub-agent. The entry of a sub-agent stands where it was over
    (`t`), `duration_ms` after it began.
    """
    name = shown(file)
    try:
        data = json.loads(file.read_text(encoding="utf-8"))
        block = block_of(data)
    except json.JSONDecodeError as error:
        yield Fault(name, error.lineno, error.colno, f"not JSON: {error.msg}")
        return
    except UnicodeDecodeError:
        yield Fault(name, 0, 0, "not a text file")
        return
    except (ValueError, RecursionError) as error:
        yield Fault(name, 1, 1, str(error))
        return
    for place, entry in enumerate(data["requests"]):
        try:
            for found in _entry(entry, str(data.get("id") or file.stem), block, base):
                yield found if isinstance(found, Row) else Fault(name, 1, 1, f"requests[{place}].{found}")
        except ValueError as error:
            yield Fault(name, 1, 1, f"requests[{place}]: {error}")


def block_of(data: object) -> int:
    """Tokens of a block of a session's prompts. Raises ValueError where it is no session."""
    if not isinstance(data, dict) or not isinstance(data.get("requests"), list):
        raise ValueError("not a session of agents: it has no list `requests`")
    return tokens(data.get("block_size"), "block_size", 1)


def _entry(entry: object, session: str, block: int, base: int) -> Iterator[Row | str]:
    """The step of an entry, or the steps of its sub-agent; mistakes within these as texts."""
    if not isinstance(entry, dict):
        raise ValueError("expected a mapping")
    if "requests" not in entry:
        yield _step(entry, session, MAIN, block, base, 0.0)
        return
    if not isinstance(entry["requests"], list):
        raise ValueError("requests: expected a list")
    over, lasted = seconds(entry.get("t"), "t"), seconds(entry.get("duration_ms", 0), "duration_ms", scale=1e-3)
    for place, inner in enumerate(entry["requests"]):
        try:
            if not isinstance(inner, dict):
                raise ValueError("expected a mapping")
            yield _step(inner, session, str(entry.get("agent_id", over)), block, base, max(over - lasted, 0.0))
        except ValueError as error:
            yield f"requests[{place}]: {error}"


def _step(entry: Values, session: str, agent: str, block: int, base: int, start: float) -> Row:
    missing = [name for name in ("t", "in", "out") if name not in entry]
    if missing:
        raise ValueError(f"missing {missing[0]!r}")
    size = tokens(entry["in"], "in", 1)
    service, gap = (
        nan if entry.get(name) is None else seconds(entry[name], name) for name in ("api_time", "think_time")
    )
    ids = entry.get("hash_ids", [])
    if isinstance(ids, list) and any(isinstance(item, int) and item < 0 for item in ids):
        raise ValueError("hash_ids: expected ids of at least 0")
    chain = tuple(base + item for item in blocks(ids, "hash_ids", size, block, whole=True))
    time = start + seconds(entry["t"], "t")
    output, stop = answer(entry["out"], "out"), str(entry.get("stop") or "")
    return Row(time, size, output, chain, session, agent, 0, service, gap, stop)
