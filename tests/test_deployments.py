"""The search over deployments: against brute force that shares nothing of its enumeration or its pruning."""

import json
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from typer.testing import CliRunner

import archsim
from archsim.arrays import array
from archsim.cli import app
from archsim.engine.step import run_step
from archsim.explore.deployments import BUSY, Found, deployments
from archsim.explore.evaluate import deployment_of
from archsim.explore.replicas import replicas, shapes
from archsim.explore.scenario import Scenario
from archsim.mapping.memory import memory_plan
from archsim.mapping.place import Deployment, place
from archsim.mapping.split import Split, legality, split
from archsim.report.search import deployments_json, label
from archsim.serving.disaggregated import disaggregated, prefilling
from archsim.serving.steady import HELD, expert_layers, sustaining
from archsim.workload.step import decode

CHIPS, PROMPT, OUTPUT = 4, 2048.0, 256.0
FINE, COARSE = 3, 6  # batches of the space that brute force goes through


def scenario(**more: object) -> Scenario:
    return archsim.scenario(
        **{
            "model": "openai/gpt-oss-120b",
            "pools": {"gpu": {"chip": "nvidia/h200-sxm", "count": CHIPS}},
            "traffic": {"input": int(PROMPT), "output": int(OUTPUT)},
            "slo": {"ttft": "1 s", "interactivity": "60 tok/s"},
            **more,
        }
    )


def degrees(most: int) -> list[Split]:
    """Every legal split of at most so many chips, found by trying all numbers."""
    model, found = scenario().model, []
    tried = range(1, most + 1)
    for t, a, p, e, c in product(tried, tried, tried, tried, tried):
        if t * a * p <= most:
            one = split(tensor=t, attention_data=a, pipeline=p, expert=e, context=c)
            if legality(model, one, array(t * a * p)).max() == 0:
                found.append(one)
    return found


def room_of(d: Deployment) -> float:
    memory = memory_plan(d, array(1.0), array(PROMPT + HELD * OUTPUT))
    return float((np.floor(np.maximum(memory.free_for_kv, 0) / memory.per_sequence) * d.split.groups).max())


def all_batches(splits: list[Split], s: Scenario) -> dict[int, list[float]]:
    """The batches of every split that fits: multiples of its ranks, fine and then coarse, and all it holds."""
    rooms = {at: room_of(replace(deployment_of(s), split=one)) for at, one in enumerate(splits)}
    ranks = [float((one.attention_data * one.pipeline).max()) for one in splits]
    most = max(room / ranks[at] for at, room in rooms.items() if room >= 1)
    each = {*np.arange(1.0, FINE + 1), *np.round(np.geomspace(FINE, most, COARSE))}
    return {
        at: sorted({*(n * ranks[at] for n in each if n * ranks[at] <= room), room})
        for at, room in rooms.items()
        if room >= 1
    }


def brute(s: Scenario) -> tuple[float, float, int, int]:
    """The best aggregated and disaggregated output tokens/s, and how many deployments of each there are."""
    splits = [one for one in degrees(CHIPS) if s.runtime.shares_context(s.model) or one.context.max() == 1]
    batches = all_batches(splits, s)
    sizes = [int(one.chips.max()) for one in splits]
    prompt, output, nothing = array(PROMPT), array(OUTPUT), array(0.0)
    ds = [replace(deployment_of(s), split=one) for one in splits]
    slo_tpot, slo_ttft = 1.0 / 60.0, 1.0
    best, together = 0.0, 0
    plain: dict[tuple[int, float], float] = {}
    for at, counts in batches.items():
        column = np.array(counts)[:, None]
        step = decode(column, prompt + output / 2.0, s.model.clips)
        seconds = run_step(place(ds[at], step), s.chip, s.runtime.stack).turnaround
        plain |= {(at, batch): float(value) for batch, value in zip(counts, seconds[:, 0], strict=True)}
        if CHIPS % sizes[at]:
            continue
        together += 1
        loop = sustaining(ds[at], column, prompt, output, nothing)
        kept = (loop.running <= counts[-1]) & (loop.tpot <= slo_tpot) & (loop.ttft <= slo_ttft)
        rates = np.where(kept, loop.requests_per_second * OUTPUT * CHIPS / sizes[at], 0.0)
        best = max(best, float(rates.max()))
    apart, pairs = 0.0, 0
    link = s.chip.links["scale_out"]
    host = s.runtime.host.arrival + s.runtime.host.expert_layer * expert_layers(ds[0])
    for first, d in enumerate(ds):
        if sizes[first] == CHIPS or not memory_plan(d, d.split.groups, prompt).fits.all():
            continue
        pool = prefilling(d, prompt, nothing)
        alone, each = float(pool.alone.max()), float(pool.each.max())
        for other, counts in batches.items():
            ratios = [n for n in range(1, CHIPS) if n % sizes[first] == 0 and (CHIPS - n) % sizes[other] == 0]
            pairs += len(ratios)
            size = memory_plan(replace(d, split=split()), array(1.0), prompt).per_sequence.max()
            rate_of_link = min(d.split.tensor.max(), splits[other].tensor.max()) * link.bandwidth.max()
            layers, transfer = s.model.layers, size / rate_of_link
            exposed = (alone + transfer) / layers + (layers - 1) * max(alone, transfer) / layers - alone
            service = alone + exposed + float(link.latency.max()) + host
            for n, batch in product(ratios, counts):
                rate = batch / plain[other, batch] / OUTPUT * (CHIPS - n) / sizes[other]
                load = rate / (float(pool.most.max()) * n / sizes[first])
                quick = load < BUSY and plain[other, batch] <= slo_tpot
                if quick and service + load * each / (2 * (1 - load)) <= slo_ttft:
                    apart = max(apart, rate * OUTPUT)
    return best, apart, together, pairs


def test_it_finds_what_brute_force_finds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("archsim.explore.replicas.FINE", FINE)
    monkeypatch.setattr("archsim.explore.replicas.COARSE", COARSE)
    found = deployments(scenario())
    best, apart, together, pairs = brute(scenario())
    assert (found.aggregated, found.disaggregated) == (together, pairs)
    kinds = found.best(False), found.best(True)
    assert kinds[0] is not None and kinds[1] is not None
    assert kinds[0].throughput == pytest.approx(best, rel=1e-9)
    assert kinds[1].throughput == pytest.approx(apart, rel=1e-9)


def test_pruning_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("archsim.explore.deployments.TOGETHER", 32)
    few = deployments(scenario(), top=3)
    monkeypatch.setattr("archsim.explore.deployments.TOGETHER", 10**9)
    whole = deployments(scenario(), top=3)
    assert few.mixed < whole.mixed
    rows = [json.loads(deployments_json(found))["deployments"] for found in (few, whole)]
    assert rows[0] == rows[1]


def test_every_legal_split_is_there_once() -> None:
    model = scenario().model
    found = shapes(model, CHIPS).named()
    size = found["tensor"].size
    rows = list(zip(*(np.broadcast_to(column, size).tolist() for column in found.values()), strict=True))
    assert len(set(rows)) == len(rows) == len(degrees(CHIPS))


def test_an_aggregated_one_is_so_many_times_what_run_says_of_a_replica() -> None:
    found = deployments(scenario()).best(False)
    assert found is not None
    copies = float(found.split.data.max())
    own = {name: int(value.max()) for name, value in found.split.named().items()} | {"data": 1}
    pools = {"gpu": {"chip": "nvidia/h200-sxm", "count": int(found.split.chips.max() / copies)}}
    result = archsim.run(scenario(split=own, pools=pools), mode="steady", batch=[found.clients / copies])
    assert result.tpot[0] == pytest.approx(found.tpot, rel=0.02)
    assert result.throughput[0] * copies == pytest.approx(found.throughput, rel=0.02)


def test_a_disaggregated_one_is_its_closed_loop() -> None:
    s = scenario()
    found = deployments(s).best(True)
    assert found is not None and found.split.partner is not None
    base = deployment_of(s)
    first = prefilling(replace(base, split=found.split.partner), array(PROMPT), array(0.0))
    host = s.runtime.host.arrival + s.runtime.host.expert_layer * expert_layers(base)
    load = found.throughput / OUTPUT / float(first.most.max())
    exposed = found.ttft - load * first.each / (2 * (1 - load)) - first.alone - host
    own = replace(base, split=replace(found.split, partner=None))
    loop = disaggregated(own, first, exposed, array(found.clients), array(PROMPT), array(OUTPUT))
    assert loop.requests_per_second.max() * OUTPUT == pytest.approx(found.throughput, rel=0.01)
    assert loop.tpot.max() == pytest.approx(found.tpot, rel=0.01)


def test_a_tighter_slo_is_never_better() -> None:
    rates = []
    for tokens in (20, 60, 100, 140):
        found = deployments(scenario(slo={"ttft": "1 s", "interactivity": f"{tokens} tok/s"})).found
        rates.append(found[0].per_chip if found else 0.0)
    assert rates == sorted(rates, reverse=True) and rates[0] > rates[-1]


def test_all_in_the_list_keep_the_slo_and_fill_the_chips() -> None:
    found = deployments(scenario())
    for one in found.found:
        assert one.tpot <= 1 / 60 and one.ttft <= 1.0
        other = one.split.partner
        assert one.split.chips.max() + (0 if other is None else other.chips.max()) == CHIPS
        assert ("prefill" in label(one)) == one.disaggregated
    assert [one.throughput for one in found.found] == sorted((one.throughput for one in found.found), reverse=True)


def test_decode_alone_bounds_every_point() -> None:
    every = replicas(scenario(), CHIPS)
    index = np.arange(0, len(every), 7)
    answer = every.loop(index)
    assert (answer.tpot[:, 0] >= every.plain[index] * (1 - 1e-12)).all()
    assert (answer.output_rate[:, 0] <= every.batch[index] / every.plain[index] * (1 + 1e-9)).all()


def test_what_no_deployment_keeps_is_an_answer(tmp_path: object) -> None:
    text = (
        "model: openai/gpt-oss-120b\npools: {gpu: {chip: nvidia/h200-sxm, count: 2}}\n"
        "traffic: {input: 1024, output: 128}\nslo: {interactivity: 5000 tok/s}\n"
    )
    file = tmp_path / "fast.yaml"  # type: ignore[operator]
    file.write_text(text, encoding="utf-8")
    found = CliRunner().invoke(app, ["deployments", str(file)])
    assert found.exit_code == 1
    assert "No deployment" in found.output and "what would help" in " ".join(found.output.split())


def test_two_pools_and_no_traffic_are_refused() -> None:
    with pytest.raises(ValueError, match="traffic"):
        deployments(scenario(traffic=None, batch=1, context=128))
    found = CliRunner().invoke(app, ["deployments", "deepseek-v3-on-rubin-and-lpx"])
    assert found.exit_code == 2 and "one pool" in found.output + found.stderr


def test_the_best_is_a_row() -> None:
    found = deployments(scenario())
    assert isinstance(found.found[0], Found)
    assert found.points > found.priced
