"""Sessions of agents: drawn with the statistics of real ones, replayed, placed in time, and priced."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from serving import server
from typer.testing import CliRunner, Result

from archsim.catalog import CatalogError, read_text, validate
from archsim.cli import app
from archsim.explore.sessions import sessions_of
from archsim.serving.measures import Measures, Targets
from archsim.serving.returning import following, gaps
from archsim.serving.simulate import simulate
from archsim.workload.chains import Runs
from archsim.workload.requests import Requests, requests
from archsim.workload.sessions import in_lanes, started
from archsim.workload.traces import load_trace
from archsim.workload.traffic import TrafficFile, draw, load_traffic

SHARED = Path(__file__).parent.parent.parent / "shared" / "traces"
recorded = pytest.mark.skipif(not SHARED.is_dir(), reason="the traces lie beside the checkout where they are developed")
SMALL = """\
input: 100
output: 20
rate: 0.1
shared: {tokens: 128}
sessions:
  steps: 6
  start: 200
  results: {distribution: uniform, low: 1, high: 90}
  human: 0.3
  tool_gaps: {points: [[0, 0.5], [1, 2]]}
  human_gaps: {points: [[0, 3], [1, 60]]}
  subagents: {chance: 0.3, together: 2, steps: 2, start: 64, results: 40}
"""


def traffic(text: str = SMALL) -> TrafficFile:
    return validate(TrafficFile, read_text(text, Path("traffic.yaml")))


def shared_with_previous(found: Requests) -> float:
    """Share of the input that begins like the prompt before of the same agent, in whole blocks."""
    assert isinstance(found.chains, Runs)
    later = following(found)
    total = 0
    for index in np.flatnonzero(later >= 0).tolist():
        both = zip(found.chains.runs(index), found.chains.runs(int(later[index])), strict=False)
        same = 0
        for (start, size), (other, length) in both:
            same += min(size, length) if start == other else 0
            if start != other or size != length:
                break
        total += min(same, int(found.input[index]) // found.block) * found.block
    return total / float(found.input.sum())


def statistics(found: Requests, whole: slice = slice(None)) -> dict[str, float]:
    steps = np.bincount(found.session if found.session is not None else [])[whole]
    known = gaps(found)
    return {
        "input": float(found.input.mean()),
        "output": float(found.output.mean()),
        "shared": shared_with_previous(found),
        "long": float((known[np.isfinite(known)] > 600).mean()),
        "mean": float(steps.mean()),
        "median": float(np.median(steps)),
        "p90": float(np.percentile(steps, 90)),
        "human": float((found.stop == 2).sum() / (found.stop > 0).sum()) if found.stop is not None else np.nan,
    }


@recorded
def test_generated_sessions_have_the_statistics_of_real_ones() -> None:
    real = statistics(load_trace(SHARED / "agentic_coding_steps.csv"))
    drawn = [draw(load_traffic("agents"), count=49_334, seed=seed) for seed in (0, 3)]
    found = [statistics(one, slice(0, -1)) for one in drawn]
    mean = {name: float(np.mean([one[name] for one in found])) for name in real}
    assert real["input"] == pytest.approx(122_379, abs=1) and real["shared"] == pytest.approx(0.963, abs=0.002)
    assert mean["input"] == pytest.approx(real["input"], rel=0.08)
    assert mean["output"] == pytest.approx(real["output"], rel=0.05)
    assert mean["shared"] == pytest.approx(real["shared"], abs=0.01)
    assert mean["long"] == pytest.approx(real["long"], abs=0.003)
    for name in ("mean", "median", "p90"):
        assert mean[name] == pytest.approx(real[name], rel=0.12), name
    assert mean["human"] == pytest.approx(real["human"], abs=0.02) and mean["human"] < 0.1


@recorded
def test_replays_take_as_long_as_they_were_recorded() -> None:
    """With the recorded answers' times steps come when they came, up to the whole seconds of the trace."""
    found = load_trace(SHARED / "agentic_coding")
    files = sorted((SHARED / "agentic_coding").glob("*.json"))
    service: list[float] = []
    for file in files:
        for entry in json.loads(file.read_text(encoding="utf-8"))["requests"]:
            service += [inner["api_time"] for inner in entry.get("requests", [entry])]
    assert found.after is not None and found.gap is not None and len(found) == 712 and found.sessions == 11
    end = np.zeros(len(found))
    late = np.zeros(len(found))
    for index, before in enumerate(found.after):
        start = max((end[step] for step in before), default=0.0) + found.gap[index]
        end[index] = start + service[index]
        late[index] = start - found.arrival[index]
    assert np.abs(late).max() < 10.0 and found.arrival.max() > 20_000
    assert sum(len(before) > 1 for before in found.after) == 3, "four sub-agents end at two places, and one at another"


def test_one_session_alone_takes_its_steps_and_its_gaps() -> None:
    drawn = draw(traffic(SMALL.replace("chance: 0.3", "chance: 0")), count=6)
    made = server(units=10**6, caching=False)
    played = simulate(drawn, made)
    alone = [
        simulate(requests([0.0], size, output), made).end[0]
        for size, output in zip(drawn.input, drawn.output, strict=True)
    ]
    assert drawn.gap is not None
    assert played.end[-1] - drawn.arrival[0] == pytest.approx(sum(alone) + drawn.gap.sum(), rel=1e-9)
    found = sessions_of(played)
    assert found is not None and found.finished == found.count == 1
    assert found.seconds == pytest.approx([sum(alone) + drawn.gap.sum()])
    assert found.served == pytest.approx([sum(alone)])
    assert found.costs(12.0) == {"step": 2.0, "session": 12.0}


def test_sub_agents_work_beside_and_are_waited_for() -> None:
    drawn = draw(traffic(), count=500, seed=2)
    assert drawn.after is not None and drawn.agent is not None
    joins = [index for index, before in enumerate(drawn.after) if len(before) > 1]
    assert joins and all(len(drawn.after[index]) == 3 for index in joins)
    played = simulate(drawn, server(units=10**6))
    assert played.finished.all() and drawn.gap is not None
    for index in joins:
        assert played.arrived[index] == pytest.approx(max(played.end[drawn.after[index]]) + drawn.gap[index])
    starts = [b for b in range(len(drawn)) if drawn.after[b] and drawn.agent[drawn.after[b][0]] != drawn.agent[b]]
    assert len(starts) >= 2 * len(joins) and all(drawn.gap[b] == 0 for b in starts)


def test_sessions_are_the_same_at_any_rate_and_share_their_system_prompt() -> None:
    slow, fast = (draw(traffic(), rate=rate, count=300, seed=5) for rate in (0.1, 2.0))
    assert np.array_equal(slow.input, fast.input)
    assert slow.gap is not None and fast.gap is not None and np.array_equal(slow.gap, fast.gap)
    assert slow.starts == pytest.approx(20.0 * fast.starts) and fast.rate == pytest.approx(2.0, rel=0.5)
    assert not np.array_equal(slow.input, draw(traffic(), rate=0.1, count=300, seed=6).input)
    assert slow.chains is not None
    assert {tuple(chain[:2]) for chain in slow.chains} == {(0, 1)}
    assert len({chain[2] for chain in slow.chains}) > 1, "what follows is each agent's own"


def test_sessions_of_a_closed_loop_can_start_at_a_rate_for_a_time() -> None:
    drawn = draw(traffic("arrivals: closed\nclients: 3\n" + SMALL), rate=0.5, seconds=100.0)
    assert 30 <= drawn.sessions <= 70 and drawn.span < 100.0
    played = simulate(drawn, server(units=10**6), seconds=20.0)
    assert played.outcome.stopped == "stopped at the time limit of 20 s"
    came = np.isfinite(played.arrived)
    assert 0 < played.finished.sum() <= came.sum() < len(drawn)
    kept = Measures(played).share(Targets(ttft=100.0))
    assert kept == pytest.approx(played.finished.sum() / came.sum()), "what has not come breaks no promise"


def test_lanes_hold_so_many_sessions_at_once() -> None:
    drawn = draw(traffic("arrivals: closed\nclients: 3\n" + SMALL), count=120)
    assert drawn.rate == 0.0 and drawn.session is not None
    played = simulate(drawn, server(units=10**6))
    assert played.finished.all()
    begin = [played.arrived[drawn.session == number].min() for number in range(drawn.sessions)]
    end = [played.end[drawn.session == number].max() for number in range(drawn.sessions)]
    assert begin[:3] == [0.0] * 3 and begin[3:] == pytest.approx(end[:-3])


def test_a_recorded_session_can_start_at_a_rate() -> None:
    after = [[], [0], [], [2], []]
    trace = Requests(
        np.array([0.0, 5.0, 0.0, 7.0, 0.0]), np.full(5, 9), np.full(5, 3), after=after, gap=np.full(5, 1.0),
        session=np.array([0, 0, 1, 1, 2]),
    )  # fmt: skip
    assert trace.rate == 0.0 and trace.sessions == 3
    placed = started(trace, 0.5, seed=1)
    assert (np.diff(placed.starts) > 0).all()
    assert placed.arrival[1] - placed.arrival[0] == pytest.approx(5.0)
    doubled = placed.at_rate(2 * placed.rate)
    assert doubled.starts == pytest.approx(placed.starts / 2)
    assert doubled.arrival[3] - doubled.arrival[2] == pytest.approx(7.0)
    lanes = in_lanes(placed, 1)
    assert lanes.after == [[], [0], [1], [2], [3]] and lanes.starts.tolist() == [0.0]


def test_the_blocks_of_an_answer_are_found_again() -> None:
    """A prompt of 64 tokens and an answer of 65: the next prompt finds both, and without them the prompt alone."""
    chains = [[0, 1, 2, 3, 4, 5, 6, 7], [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]]
    asked = requests([0.0, 0.0], [64, 160], [65, 4], after=[[], [0]], gap=np.zeros(2), chains=chains, block=16)
    without = requests([0.0, 0.0], [64, 160], [65, 4], after=[[], [0]], gap=np.zeros(2),
                       chains=[chains[0][:4], chains[1]], block=16)  # fmt: skip
    assert simulate(asked, server()).cached.tolist() == [0, 128]
    assert simulate(without, server()).cached.tolist() == [0, 64]


@pytest.mark.parametrize("seed", range(12))
def test_fast_forward_equals_iterations_with_sessions_and_blocks_of_answers(seed: int) -> None:
    rng = np.random.default_rng(seed)
    drawn = draw(traffic(), rate=float(rng.choice([0.5, 5.0])), count=60, seed=seed)
    name = str(rng.choice(["chunked", "prefill-first", "continuous", "decode-first"]))
    made = server(int(rng.integers(80, 300)), name=name, batch=int(rng.choice([2, 16])))
    fast, plain = (simulate(drawn, made, plain=plain) for plain in (False, True))
    assert np.allclose(fast.end, plain.end, equal_nan=True) and np.array_equal(fast.cached, plain.cached)
    for played in (fast, plain):
        pool = played.pools[0]
        assert pool.prefixes is not None and pool.used == pool.prefixes.idle == pool.prefixes.held
        assert pool.taken - pool.given == pool.used


def test_keeping_answers_finds_more(tmp_path: Path) -> None:
    found = []
    for keeps in ("true", "false"):
        text = SMALL.replace("  human: 0.3", f"  human: 0.3\n  keeps_answers: {keeps}").replace(
            "output: 20", "output: 200"
        )
        found.append(simulate(draw(traffic(text), count=60), server(units=10**6)).cached.sum())
    assert found[0] > found[1] > 0


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("[[0, 0.5], [1, 2]]", "[[0, 2], [1, 1]]", "quantiles go from share 0 to 1"),
        ("[[0, 0.5], [1, 2]]", "[[0.1, 1], [1, 2]]", "quantiles go from share 0 to 1"),
        ("human: 0.3", "human: 1.3", "a fraction"),
        ("steps: 6", "stps: 6", "did you mean 'steps'?"),
        ("{tokens: 128}", "{tokens: 128, groups: 2}", "all sessions share one prompt"),
    ],
)
def test_mistakes_in_sessions_are_faults_in_their_place(old: str, new: str, message: str) -> None:
    with pytest.raises(CatalogError) as caught:
        traffic(SMALL.replace(old, new))
    assert message in str(caught.value) and "traffic.yaml:" in str(caught.value)


# The command

SCENARIO = """\
name: small
model: meta/llama-3.1-8b
pools: {gpu: {chip: nvidia/h100-sxm, count: 1}}
split: {tensor: 1}
trace: sessions.csv
"""
STEPS = "session,time,input,output,gap,shared\na,0,500,20,,\nb,0,400,10,,\na,9,900,30,5,448\nb,4,500,9,2,384\n"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("s.yaml").write_text(SCENARIO, encoding="utf-8")
    Path("sessions.csv").write_text(STEPS, encoding="utf-8")
    return tmp_path


def serve(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["serve", "s.yaml", *arguments])


def test_the_command_prices_sessions(folder: Path) -> None:
    result = serve("--clients", "1", "--json", "out.json")
    assert result.exit_code == 0, result.output
    said = " ".join(result.output.split())
    assert "serves 2 sessions of sessions" in said and "2 of 2 finished, 2 steps each" in said
    data = json.loads(Path("out.json").read_text(encoding="utf-8"))
    found = data["sessions"]
    assert found["count"] == found["finished"] == 2 and found["steps"] == 4
    assert found["cost"]["session"] == pytest.approx(2 * found["cost"]["step"])
    tokens = 500 + 400 + 900 + 500 + 20 + 10 + 30 + 9
    assert 4 * found["cost"]["step"] == pytest.approx(data["cost"]["cost_per_token"] * tokens / 1e6)
    assert found["time"]["mean"] > 3.5 and found["served"]["mean"] < 1
    assert data["span"] == pytest.approx(2 * found["time"]["mean"], rel=1e-6), "one session after the other"


def test_sessions_without_starts_need_a_rate_or_clients(folder: Path) -> None:
    result = serve()
    assert result.exit_code == 2 and "give --rate (sessions a second) or --clients" in result.stderr
    both = serve("--rate", "1", "--clients", "2")
    assert both.exit_code == 2 and "give --rate or --clients" in both.stderr
    assert serve("--rate", "1").exit_code == 0


def test_a_time_limit_ends_closed_loops_of_sessions(folder: Path) -> None:
    result = serve("--clients", "2", "--seconds", "1", "--json", "-")
    data = json.loads(result.stdout)
    assert data["stopped"] == "stopped at the time limit of 1 s" and data["finished"] == 2
    assert data["sessions"]["finished"] == 0 and data["sessions"]["time"]["mean"] is None


def test_lengths_are_scaled_by_the_command(folder: Path) -> None:
    Path("plain.csv").write_text("time,input,output\n0,100,10\n1,300,30\n", encoding="utf-8")
    result = serve("--trace", "plain.csv", "--scale-input", "2", "--scale-output", "0.5", "--csv", "out.csv")
    assert result.exit_code == 0, result.output
    rows = [line.split(",") for line in Path("out.csv").read_text(encoding="utf-8").splitlines()]
    place = rows[0].index("input"), rows[0].index("output")
    assert [[row[column] for column in place] for row in rows[1:]] == [["200", "5"], ["600", "15"]]


def test_quantiles_are_met() -> None:
    text = "{input: {distribution: quantiles, points: [[0, 10], [0.5, 100], [1, 1000]]}, output: 1, rate: 1}"
    file = traffic(text)
    drawn = draw(file, count=40_000)
    assert np.percentile(drawn.input, [25, 50, 75]) == pytest.approx([31.6, 100, 316], rel=0.03)
    assert drawn.input.mean() == pytest.approx(file.mean_input, rel=0.02)
