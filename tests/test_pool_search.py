"""Search over pairs of pools: branch and bound finds what pricing every pair finds, and says which of both it was."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import archsim
from archsim.catalog import CatalogError
from archsim.explore import search
from archsim.explore.result import Result
from archsim.explore.scenario import Scenario
from archsim.mapping import roles
from archsim.report.choice import choice_sentences
from archsim.report.point import main_point

H100, LPU, RUBIN = "nvidia/h100-sxm", "nvidia/groq-3-lpx", "nvidia/rubin-vr200"
FP8 = dict.fromkeys(("weights", "attention", "experts", "activations", "kv"), "fp8")
CHEAP = {"objective": {"minimize": "cost_per_token"}}
FEW, MANY = [8, 12, 16, 24, 40], list(range(1, 81))


def pairs(first: list[int], second: list[int], on: str = H100, beside: str = H100, **keys: Any) -> Scenario:
    pools = {"attention": {"chip": on, "count": first}, "ffn": {"chip": beside, "count": second}}
    base = {"model": "deepseek/deepseek-v3", "pools": pools, "mapper": "attention-ffn", "precision": FP8}
    return archsim.scenario(**(base | {"batch": 256, "context": 4096} | keys))


def chips(result: Result) -> tuple[float, float]:
    """Chips of both pools at the one point of an answer."""
    count = result.scenario.system
    assert count.partner is not None
    whole = (np.broadcast_to(value, result.raw_shape) for value in (count.main.count, count.partner.count))
    here, there = (float(result.pick(value)[0]) for value in whole)
    return here, there


@pytest.mark.parametrize(
    "asked",
    [
        {},
        CHEAP,
        {**CHEAP, "slo": {"interactivity": "35 tok/s"}},
        {**CHEAP, "slo": {"interactivity": "1000 tok/s"}},
        {**CHEAP, "economics": {"by": "capital"}},
        {"objective": {"maximize": "throughput"}, "mapper": "experts-only"},
    ],
)
def test_branch_and_bound_finds_what_pricing_every_pair_finds(
    asked: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    if "mapper" in asked:
        pools = {name: {"chip": H100, "count": FEW} for name in ("attention", "experts")}
        asked = {**asked, "pools": pools}
    whole = archsim.run(pairs(FEW, FEW, **asked))
    monkeypatch.setattr(roles, "PAIRS", 1)
    found = archsim.run(pairs(FEW, FEW, **asked))
    assert whole.scenario.searched == "" and "branch and bound priced" in found.scenario.searched
    assert found.tpot[0] == pytest.approx(float(whole.tpot[0]), rel=1e-12)
    assert found.cost_per_token[0] == pytest.approx(float(whole.cost_per_token[0]), rel=1e-12)
    assert chips(found) == chips(whole)


def test_it_finds_the_same_beside_chips_that_are_pinned_to_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    keys = {"on": RUBIN, "beside": LPU, "runtime": "sglang", **CHEAP}
    whole = archsim.run(pairs([18, 36, 72], [1792, 2440], **keys))
    monkeypatch.setattr(roles, "PAIRS", 1)
    found = archsim.run(pairs([18, 36, 72], [1792, 2440], **keys))
    assert found.cost_per_token[0] == pytest.approx(float(whole.cost_per_token[0]), rel=1e-12)


@pytest.mark.parametrize("asked", [{}, CHEAP])
def test_no_pair_is_better_than_its_bound(asked: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(roles, "PAIRS", 1)
    s = pairs(FEW, FEW, **asked)
    assert s.space is not None
    name = "cost_per_token" if asked else "tpot"
    bounds = search._bounds(s, s.space, name)
    places, lows = bounds.below(np.inf)
    some = np.random.default_rng(0).permutation(places.size)[:400]
    keys = search._keys(search._paired(s, s.space, places[some], bounds.shape), name)
    assert np.all(lows[some] <= keys * (1 + 1e-12)) and np.isfinite(keys).any()


def test_so_many_pairs_are_searched_and_the_answer_says_how() -> None:
    result = archsim.run(pairs(MANY, MANY, **CHEAP))
    assert result.feasible.all() and result.proposals <= search.KEPT
    priced, every = (int(word.replace(",", "")) for word in result.scenario.searched.split() if word[0].isdigit())
    assert priced < every / 50 and every > 100_000
    assert any("branch and bound" in text for text in choice_sentences(main_point(result)))


def test_what_cannot_be_searched_is_refused_with_what_can() -> None:
    with pytest.raises(ValueError, match="searched by tpot, interactivity, throughput, cost_per_token only"):
        archsim.run(pairs(MANY, MANY, objective={"minimize": "ttft"}))
    with pytest.raises(ValueError, match="for one step at one point; give fewer counts"):
        archsim.run(pairs(MANY, MANY), batch=[64, 256])


def test_where_nothing_fits_the_refusal_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(roles, "PAIRS", 1)
    assert not archsim.run(pairs([2, 4], [2, 4])).feasible.any()


def test_pools_with_jobs_of_their_own_take_fewer_pairs() -> None:
    pools = {name: {"chip": H100, "count": MANY} for name in ("prefill", "decode")}
    with pytest.raises(CatalogError, match="6,400 pairs of numbers of chips; 4,096 are the most here"):
        pairs(MANY, MANY, mapper="prefill-decode", pools=pools)
