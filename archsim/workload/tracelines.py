"""Traces of one JSON object a line: Mooncake and Bailian."""

import json
from collections.abc import Callable, Iterable
from typing import Any

from archsim.workload.tracerows import Row, Rows, answer, blocks, seconds, tokens
from archsim.yamlmarks import Fault

MOONCAKE_BLOCK = 512
BAILIAN_BLOCK = 16
Values = dict[str, Any]


def lines_of(lines: Iterable[str], file: str, row_of: Callable[[Values], Row]) -> Rows:
    """Rows of a file of JSON lines."""
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            yield row_of(_object(line))
        except (ValueError, RecursionError) as error:
            yield Fault(file, number, 1, str(error))


def _object(line: str) -> Values:
    try:
        row = json.loads(line)
    except json.JSONDecodeError as error:
        raise ValueError(f"not JSON: {error.msg}") from None
    if not isinstance(row, dict):
        raise ValueError("missing 'a mapping'")
    missing = [name for name in ("timestamp", "input_length", "output_length") if name not in row]
    if missing:
        raise ValueError(f"missing {missing[0]!r}")
    return row


def mooncake(row: Values) -> Row:
    """timestamp (ms), input_length, output_length, hash_ids of the prompt's blocks, chained from its head."""
    time = row["timestamp"]
    if not isinstance(time, int | float):
        raise ValueError(f"timestamp: expected milliseconds, got {time!r}")
    length = tokens(row["input_length"], "input_length", 1)
    output = answer(row["output_length"], "output_length")
    chain = blocks(row.get("hash_ids", []), "hash_ids", length, MOONCAKE_BLOCK)
    return Row(seconds(time, "timestamp", "milliseconds", 1e-3), length, output, chain)


class Bailian:
    """timestamp (s), input_length, output_length, hash_ids of 16 tokens; chats that go on make a session."""

    def __init__(self) -> None:
        self._roots: dict[int, int] = {}

    def __call__(self, row: Values) -> Row:
        """A row; one whose parent is not in the trace starts a session."""
        chat, parent = row.get("chat_id"), row.get("parent_chat_id", -1)
        if not isinstance(chat, int) or not isinstance(parent, int):
            raise ValueError(f"chat_id, parent_chat_id: expected whole numbers, got {chat!r}, {parent!r}")
        length = tokens(row["input_length"], "input_length", 1)
        output = answer(row["output_length"], "output_length")
        chain = blocks(row.get("hash_ids", []), "hash_ids", length, BAILIAN_BLOCK)
        time = seconds(row["timestamp"], "timestamp")
        root = self._roots[chat] = self._roots.get(parent, chat)
        return Row(time, length, output, chain, session=str(root))
