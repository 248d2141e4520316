"""Traces that are tables: Azure, BurstGPT, and plain CSV with or without sessions."""

import csv
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from math import nan

from archsim.workload.tracerows import Row, Rows, answer, seconds, tokens
from archsim.yamlmarks import Fault

Values = dict[str, str]


def table(lines: Iterable[str], file: str, row_of: Callable[[Values], Row]) -> Rows:
    """Rows of a CSV file whose first line names its columns, in small letters."""
    rows = csv.reader(lines)
    heads = [head.strip().lower() for head in next(rows)]
    while True:
        try:
            row = next(rows)
            if not row:
                continue
            if len(row) != len(heads):
                raise ValueError(f"expected {len(heads)} columns, got {len(row)}")
            yield row_of(dict(zip(heads, map(str.strip, row), strict=True)))
        except StopIteration:
            return
        except (ValueError, csv.Error) as error:
            yield Fault(file, rows.line_num, 1, str(error))


def azure(row: Values) -> Row:
    """TIMESTAMP as a date, ContextTokens, GeneratedTokens (2023 and 2024)."""
    given = row["generatedtokens"]
    return Row(
        date(row["timestamp"]), tokens(row["contexttokens"], "contexttokens", 1), answer(given, "generatedtokens")
    )


def burst(row: Values) -> Row:
    """Timestamp (s), Session ID where there is one, Request tokens, Response tokens."""
    time = seconds(row["timestamp"], "timestamp")
    inputs, outputs = row["request tokens"], row["response tokens"]
    session = row.get("session id", "")
    return Row(time, tokens(inputs, "request tokens", 1), answer(outputs, "response tokens"), session=session)


ALIASES = {"t": "time", "shared_with_previous": "shared", "think_time": "gap", "api_time": "service"}


def plain(row: Values) -> Row:
    """time (s), input, output."""
    return Row(seconds(row["time"], "time"), tokens(row["input"], "input", 1), answer(row["output"], "output"))


def steps(row: Values) -> Row:
    """session, input, output, and where there are such columns: agent, time or t, shared, gap, service, stop."""
    row = {ALIASES.get(name, name): value for name, value in row.items()}
    if not row["session"]:
        raise ValueError("session: expected a name")
    time, gap, service = (seconds(row[name], name) if row.get(name) else nan for name in ("time", "gap", "service"))
    size = tokens(row["input"], "input", 1)
    shared = tokens(row["shared"], "shared", 0) if row.get("shared") else 0
    if shared > size:
        raise ValueError(f"shared: {shared:,} tokens are more than the prompt's {size:,}")
    return Row(
        time,
        size,
        answer(row["output"], "output"),
        session=row["session"],
        agent=row.get("agent", ""),
        shared=shared,
        service=service,
        gap=gap,
        stop=row.get("stop", ""),
    )


def date(text: str) -> float:
    """Seconds of a date with any number of digits of a second, with or without an offset from UTC."""
    try:
        moment = datetime.fromisoformat(text)
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError):
        raise ValueError(f"expected a date such as 2023-11-16 18:15:46.68, got {text!r}") from None
