"""Readers of traces: every format by hand, malformed rows, length scaling."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from archsim.catalog import CatalogError
from archsim.workload.chains import Runs, Stretched
from archsim.workload.traces import load_trace

BURST = "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
STEPS = "session,agent,step,t,input,output,shared_with_previous,api_time,think_time,stop\n"


def written(tmp_path: Path, text: str, name: str = "trace.csv") -> Path:
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    return path


def chat(number: int, parent: int, time: float, length: int, ids: list[int]) -> str:
    row = {"chat_id": number, "parent_chat_id": parent, "timestamp": time, "input_length": length, "output_length": 3}
    return json.dumps({**row, "type": "text", "turn": 1, "hash_ids": ids}) + "\n"


def step(time: float, size: int, ids: list[int], **more: Any) -> dict[str, Any]:
    return {"t": time, "in": size, "out": 5, "hash_ids": ids, "api_time": 2.0, "stop": "tool_use", **more}


def session(requests: list[dict[str, Any]], **more: Any) -> str:
    return json.dumps({"id": "one", "block_size": 4, "requests": requests, **more})


def test_burstgpt_rows_are_requests_of_sessions(tmp_path: Path) -> None:
    text = BURST + "5,b,1.5,GPT-4,30,7,37,API log\n45.5,a,2,ChatGPT,100,0,100,Conversation log\n50,b,2,GPT-4,9,1,10,x\n"
    found = load_trace(written(tmp_path, text))
    assert found.arrival.tolist() == [0.0, 40.5, 45.0]
    assert found.input.tolist() == [30, 100, 9] and found.output.tolist() == [7, 1, 1]
    assert found.session is not None and found.session.tolist() == [0, 1, 0]
    assert found.after is None, "they come when they were recorded"


def test_burstgpt_without_sessions_is_read(tmp_path: Path) -> None:
    text = (
        "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n5,ChatGPT,472,18,490,Conversation log\n"
    )
    found = load_trace(written(tmp_path, text))
    assert found.input.tolist() == [472] and found.session is None


def test_bailian_chats_that_answer_one_another_are_a_session(tmp_path: Path) -> None:
    lines = chat(1, -1, 10.0, 20, [7, 8]) + chat(2, -1, 11.0, 16, [9]) + chat(3, 1, 12.5, 50, [7, 1, 2, 3])
    found = load_trace(written(tmp_path, lines + chat(4, 3, 13.0, 16, [7]), "chats.jsonl"))
    assert found.block == 16 and found.chains is not None
    assert [list(chain) for chain in found.chains] == [[7], [9], [7, 1, 2], [7]]
    assert found.session is not None and found.session.tolist() == [0, 1, 0, 0]
    assert found.arrival.tolist() == [0.0, 1.0, 2.5, 3.0]


@pytest.mark.parametrize(
    "time", ["2024-05-10 00:00:00.009930+00:00", "2024-05-10 00:00:00.0099300", "2024-05-10T00:00:00.00993Z"]
)
def test_dates_of_azure_2023_and_2024_are_read(tmp_path: Path, time: str) -> None:
    rows = f"{time},2162,5\n2024-05-10 00:00:01,30,4\n2024-05-10 02:00:02+02:00,30,4\n"
    found = load_trace(written(tmp_path, f"TIMESTAMP,ContextTokens,GeneratedTokens\n{rows}"))
    assert found.arrival.tolist() == pytest.approx([0.0, 1 - 0.00993, 2 - 0.00993], abs=1e-6)


def test_a_plain_table_of_sessions_is_replayed(tmp_path: Path) -> None:
    text = "session,time,input,output,gap,shared\nb,100,64,5,,\na,40,130,5,,\nb,130,200,5,20,64\na,50,200,5,3,128\n"
    found = load_trace(written(tmp_path, text))
    assert found.titles == ["a", "b"] and found.session is not None and found.session.tolist() == [0, 0, 1, 1]
    assert found.input.tolist() == [130, 200, 64, 200]
    assert found.arrival.tolist() == [0.0, 10.0, 60.0, 90.0]
    assert found.after == [[], [0], [], [2]]
    assert found.gap is not None and found.gap.tolist() == [0.0, 3.0, 0.0, 20.0]
    assert found.chains is not None and found.block == 64
    chains = [list(chain) for chain in found.chains]
    assert [len(chain) for chain in chains] == [2, 3, 1, 3]
    assert chains[1][:2] == chains[0] and chains[3][:1] == chains[2]
    assert len({name for chain in chains for name in chain}) == 2 + 1 + 1 + 2


def test_a_gap_is_never_longer_than_the_time_between_steps(tmp_path: Path) -> None:
    rows = "s,main,0,0,100,5,0,2,0,\ns,main,1,8,100,5,0,,6000,\ns,main,2,20,100,5,0,,,\n"
    found = load_trace(written(tmp_path, STEPS + rows))
    assert found.gap is not None and found.gap.tolist() == [0.0, 8.0, 12.0]


def test_sub_agents_run_beside_their_agent_which_waits_for_them(tmp_path: Path) -> None:
    sub = {"t": 30.0, "duration_ms": 27000, "agent_id": "x"}
    requests = [
        step(0.0, 8, [1, 2]),
        {**sub, "requests": [step(0.0, 4, [9]), step(10.0, 8, [9, 10], think_time=8.0, stop="end_turn")]},
        {**sub, "agent_id": "y", "t": 90.0, "duration_ms": 87000, "requests": [step(0.0, 4, [9], api_time=85.0)]},
        step(31.0, 12, [1, 2, 3], think_time=29.0),
        step(95.0, 12, [1, 2, 3], think_time=62.0, stop="end_turn"),
    ]
    found = load_trace(written(tmp_path, session(requests), "one.json"))
    assert found.after == [[], [0], [1], [0], [0, 2], [4, 3]], "the second sub-agent is still at work at 31 s"
    assert found.gap is not None and found.gap.tolist() == [0.0, 1.0, 8.0, 1.0, 16.0, 7.0]
    assert found.arrival.tolist() == [0.0, 3.0, 13.0, 3.0, 31.0, 95.0]
    assert found.agent is not None and found.agent.tolist() == [0, 1, 1, 2, 0, 0]
    assert found.stop is not None and found.stop.tolist() == [1, 1, 2, 1, 1, 2]


def test_block_ids_of_a_session_are_its_own(tmp_path: Path) -> None:
    for name in ("a.json", "b.json"):
        written(tmp_path, session([step(0.0, 9, [1, 2]), step(9.0, 13, [1, 2, 5, 6])], id=name), name)
    found = load_trace(tmp_path)
    assert found.chains is not None and found.block == 4 and found.sessions == 2
    chains = [set(chain) for chain in found.chains]
    assert [len(chain) for chain in chains] == [2, 3, 2, 3] and chains[0] < chains[1] and not chains[1] & chains[3]


BAD: list[tuple[str, str, str]] = [
    ("x.csv", BURST + "x,1,1,m,3,3,6,l\n", r"x\.csv:2:1: timestamp: expected seconds, got 'x'"),
    ("x.csv", BURST + "1,1,1,m,0,3,6,l\n", r"x\.csv:2:1: request tokens: expected a whole number of at least 1"),
    ("x.csv", STEPS + "s,m,0,0,10,5,11,,,\n", r"x\.csv:2:1: shared: 11 tokens are more than the prompt's 10"),
    ("x.csv", STEPS + ",m,0,0,10,5,0,,,\n", r"x\.csv:2:1: session: expected a name"),
    ("x.csv", STEPS + "s,m,0,-1,10,5,0,,,\n", r"x\.csv:2:1: time: expected seconds"),
    ("x.csv", STEPS + "s,m,0,nan,10,5,0,,,\n", r"x\.csv:2:1: time: expected seconds"),
    ("x.jsonl", chat(1, -1, 0, 20, [1]), r"x\.jsonl:1:1: 20 tokens have 2 blocks of 16 tokens, not 1 hash_ids"),
    ("x.jsonl", chat(1, -1, 0, 20, [1, 2]).replace("-1", '"a"'), r"x\.jsonl:1:1: chat_id, parent_chat_id: expected"),
    ("x.json", session([step(0, 8, [1])]), r"x\.json:1:1: requests\[0\]: 8 tokens have 2 blocks of 4 tokens, not 1"),
    ("x.json", session([{"t": 1, "in": 3}]), r"x\.json:1:1: requests\[0\]: missing 'out'"),
    ("x.json", session([{"t": 0, "requests": [3]}]), r"x\.json:1:1: requests\[0\]\.requests\[0\]: expected a mapping"),
    ("x.json", '{"requests": [],\n "block_size": 4,,}', r"x\.json:2:18: not JSON"),
    ("x.json", '{"requests": []}', r"x\.json:1:1: block_size: expected a whole number"),
]


@pytest.mark.parametrize(("name", "text", "message"), BAD)
def test_malformed_rows_are_named_and_can_be_left_out(tmp_path: Path, name: str, text: str, message: str) -> None:
    path = written(tmp_path, text, name)
    with pytest.raises(CatalogError, match=message):
        load_trace(path)
    found = load_trace(path, skip_bad=True)
    assert len(found) == 0 and len(found.skipped) == 1


def test_all_malformed_rows_are_named_at_once(tmp_path: Path) -> None:
    path = written(tmp_path, STEPS + "s,m,0,x,10,5,0,,,\n" + "s,m,1,2,10,5,0,,,\n" + "s,m,2,3,ten,5,0,,,\n")
    with pytest.raises(CatalogError) as caught:
        load_trace(path)
    assert [fault.line for fault in caught.value.faults] == [2, 4]
    assert len(load_trace(path, skip_bad=True)) == 1


def test_a_folder_without_sessions_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CatalogError, match="a folder without sessions"):
        load_trace(tmp_path)


KEYS = st.sampled_from(["t", "in", "out", "hash_ids", "api_time", "think_time", "requests", "duration_ms", "stop"])
VALUES: Any = st.sampled_from([None, -1, 0, 1e400, "x", [], {}, [1, "a"], True, 2**70, [2**70], [{}], float("nan")])


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 2), KEYS, VALUES), min_size=1, max_size=4), st.booleans())
def test_spoilt_sessions_raise_nothing_but_catalog_errors(
    tmp_path_factory: pytest.TempPathFactory, edits: list[tuple[int, str, Any]], skip: bool
) -> None:
    requests: list[dict[str, Any]] = [
        step(0.0, 8, [1, 2]),
        {"t": 9.0, "duration_ms": 5000, "agent_id": "x", "requests": [step(0.0, 4, [9])]},
        step(12.0, 12, [1, 2, 3], think_time=10.0),
    ]
    for place, key, value in edits:
        requests[place][key] = value
    path = written(tmp_path_factory.mktemp("spoilt"), session(requests), "x.json")
    try:
        found = load_trace(path, skip_bad=skip)
    except CatalogError:
        return
    assert (found.gap is not None and np.isfinite(found.gap).all() and (found.gap >= 0).all()) or not len(found)


@given(st.lists(st.lists(st.integers(0, 30), max_size=12), max_size=6))
def test_runs_give_back_what_they_were_given(chains: list[list[int]]) -> None:
    runs = Runs()
    for chain in chains:
        runs.append(chain)
    assert [list(chain) for chain in runs] == chains
    backwards = np.arange(len(chains))[::-1].copy()
    assert [list(chain) for chain in runs.pick(backwards)] == chains[::-1]
    assert [list(chain) for chain in runs[1:]] == chains[1:]


@given(
    st.integers(0, 40), st.integers(0, 20), st.integers(0, 20), st.sampled_from([0.25, 0.5, 0.7, 1.0, 1.5, 2.0, 3.3])
)
def test_scaled_prompts_share_as_much_as_before(common: int, mine: int, yours: int, factor: float) -> None:
    chains = [[*range(common), *range(100, 100 + mine)], [*range(common), *range(200, 200 + yours)]]
    first, second = Stretched(chains, factor)
    assert [len(first), len(second)] == [int((common + own) * factor + 1e-9) for own in (mine, yours)]
    assert len(set(first)) == len(first), "a block stands once in a chain"
    same = next((place for place, (a, b) in enumerate(zip(first, second, strict=False)) if a != b), None)
    whole = int(common * factor + 1e-9)
    assert min(len(first), len(second)) == whole if same is None else same == whole
    assert not set(first[whole:]) & set(second[whole:])


def test_lengths_are_scaled(tmp_path: Path) -> None:
    found = load_trace(written(tmp_path, "time,input,output\n0,100,9\n")).scaled(2.5, 0.01)
    assert found.input.tolist() == [250] and found.output.tolist() == [1]
    with pytest.raises(ValueError, match="above 0"):
        found.scaled(0.0)
