"""Golden metrics: a dozen scenarios answer as they did when the file was written, to 1e-9."""

from __future__ import annotations

import json
from typing import Any

import pytest
from regenerate_golden import CASES, COMMAND, FILE, answers, differences, flat


@pytest.fixture(scope="module")
def golden() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(FILE.read_text(encoding="utf-8"))
    return found


def test_the_file_says_where_it_comes_from_and_holds_every_case(golden: dict[str, Any]) -> None:
    assert set(golden["provenance"]) >= {"archsim", "regenerate", "tolerance"}
    assert golden["provenance"]["regenerate"] == COMMAND
    assert list(golden["cases"]) == list(CASES)


def test_the_file_has_numbers_to_compare(golden: dict[str, Any]) -> None:
    for case, kept in golden["cases"].items():
        numbers = [value for value in flat(kept).values() if isinstance(value, float)]
        assert len(numbers) >= 60, f"{case}: hardly any point is feasible"
        assert all(value >= 0 for value in numbers)


@pytest.mark.parametrize("case", CASES)
def test_answers_are_as_they_were(case: str, golden: dict[str, Any]) -> None:
    found = differences(golden["cases"][case], answers(case))
    more = f"\n... and {len(found) - 12} more" if len(found) > 12 else ""
    shown = "\n".join(found[:12]) + more
    assert not found, f"\n{shown}\nIf that is meant: {COMMAND}, and say why in the commit."
