"""Money and energy: sums that anyone can check by hand, and identities between metrics."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scenarios import CHIPS, DEEPSEEK, LLAMA_8B, LLAMA_70B, chip, one, scenario

import archsim
from archsim.arrays import array
from archsim.catalog import CatalogError, find
from archsim.chip.model import with_value
from archsim.chip.schema import load_chip
from archsim.economics.money import per_million, rate, wall_power
from archsim.economics.terms import Terms, recovery_factor
from archsim.explore.result import Result
from archsim.explore.scenario import load_scenario

H100, BERTHA = "nvidia/h100-sxm", "hyperaccel/bertha-500-192gb"
BARE = {"overhead": "0 W", "pue": 1.0}  # the board alone


def test_8_gpus_at_3_usd_and_8000_tokens_a_second_cost_0_833_usd_a_million() -> None:
    assert one(per_million(array(3.0), array(8.0), array(8000.0))) == pytest.approx(0.833, abs=5e-4)


def test_2_kw_at_230_tokens_a_second_is_2_415_kwh_a_million() -> None:
    joules = wall_power(array(2000.0), Terms(**BARE)) / 230
    assert round(one(joules * 1e6 / 3.6e6), 3) == 2.415


def test_the_facility_draws_the_board_and_its_overhead_times_pue() -> None:
    assert one(wall_power(array(700.0), Terms(overhead="300 W", pue=1.2))) == 1200
    assert one(wall_power(array(0.0), Terms())) == 400 * 1.2


# Rent against capital


@given(st.floats(0.0, 0.5), st.integers(1, 30))
def test_the_yearly_payment_pays_back_capital_and_interest_in_its_years(interest: float, years: int) -> None:
    owed, payment = 1.0, recovery_factor(interest, years)
    for _ in range(years):
        owed = owed * (1 + interest) - payment
    assert owed == pytest.approx(0, abs=1e-6 * (1 + interest) ** years)


def test_rent_is_the_price_list_whatever_the_power() -> None:
    idle, busy = (rate(chip(H100), Terms(), array(watts)) for watts in (100.0, 700.0))
    assert idle.by == "rent" and one(idle.hourly) == one(busy.hourly) == pytest.approx(2.95)


def test_capital_is_payment_operation_and_power() -> None:
    found = rate(chip(H100), Terms(by="capital"), array(500.0))
    yearly = 50_000 * (recovery_factor(0.08, 5) + 0.05)
    assert set(found.parts) == {"capital", "operation", "power"}
    assert one(found.hourly) == pytest.approx(yearly / 8760 + (500 + 400) * 1.2 / 1000 * 0.08)
    assert one(rate(chip(H100), Terms(by="capital"), array(600.0)).hourly) > one(found.hourly)


def test_an_idle_share_of_life_makes_every_token_dearer() -> None:
    for by in ("rent", "capital"):
        full, half = (rate(chip(H100), Terms(by=by, utilization=u), array(0.0)) for u in (1.0, 0.5))
        fixed = [one(r.hourly) - one(r.parts.get("power", array(0.0))) for r in (full, half)]
        assert fixed[1] == pytest.approx(2 * fixed[0])


def test_terms_of_a_scenario_come_before_the_prices_of_a_chip() -> None:
    assert one(rate(chip(H100), Terms(rent="5 USD/h"), array(0.0)).hourly) == 5
    own = rate(chip(H100), Terms(by="capital", capital="100000 USD"), array(0.0))
    assert one(own.parts["capital"]) == pytest.approx(100_000 * recovery_factor(0.08, 5) / 8760)


def test_a_chip_without_a_price_has_no_cost_and_says_what_to_add_where_one_is_asked_for() -> None:
    unsold = replace(chip(H100), price=replace(chip(H100).price, rent=None, system=None))
    assert np.isnan(rate(unsold, Terms(), array(0.0)).hourly).all(), "unknown is not free"
    with pytest.raises(ValueError, match="no all-in price; give `economics"):
        rate(unsold, Terms(by="capital"), array(0.0))
    with pytest.raises(ValueError, match="no rent; give `economics"):
        rate(unsold, Terms(by="rent"), array(0.0))
    assert rate(unsold, Terms(rent="1 USD/h"), array(0.0)).by == "rent"
    assert rate(replace(unsold, price=chip(H100).price), Terms(), array(0.0)).by == "rent"


# Through a run


def step(**keys: Any) -> Result:
    base = {"batch": [1, 16, 256], "context": 4000, "split": {"tensor": 8}}
    return archsim.run(scenario(LLAMA_70B, H100, 8, **{**base, **keys}))


def test_a_step_costs_what_its_chips_cost_while_it_runs() -> None:
    found = step(economics={"rent": "3 USD/h"})
    assert np.allclose(found.cost_per_token, per_million(array(3.0), array(8.0), found.throughput), rtol=1e-12)
    assert np.allclose(found.cost_per_token, found.output_cost, rtol=1e-12)
    assert np.all(np.diff(found.cost_per_token) < 0), "larger batches share the rent"


def test_twice_the_rent_is_twice_the_cost_and_the_same_time() -> None:
    cheap, dear = step(economics={"rent": "2 USD/h"}), step(economics={"rent": "4 USD/h"})
    assert np.allclose(dear.cost_per_token, 2 * cheap.cost_per_token, rtol=1e-12)
    assert np.array_equal(dear.tpot, cheap.tpot)


def test_prompt_and_output_costs_of_the_steady_answer_add_up_to_the_bill() -> None:
    s = scenario(LLAMA_70B, H100, 8, split={"tensor": 8}, traffic={"input": 1155, "output": 211})
    found = archsim.run(s, mode="steady")
    bill = found.output_cost * found.throughput + found.input_cost * found.input_throughput
    assert np.allclose(bill, found.cost_per_token * (found.throughput + found.input_throughput), rtol=1e-9)
    assert np.allclose(bill / 1e6, 2.95 * 8 / 3600, rtol=1e-9)


@pytest.mark.parametrize("on", CHIPS)
def test_power_lies_between_idle_and_the_cap_of_the_board(on: str) -> None:
    power = chip(on).power
    steps = archsim.run(scenario(LLAMA_8B, on, 1, split={}, batch=[1, 8, 64, 512, 4096], context=[1, 100, 2000]))
    loop = archsim.run(scenario(LLAMA_8B, on, 1, split={}, traffic={"input": 4000, "output": 100}), mode="steady")
    for watts in (steps.pick(steps.answer.power), loop.pick(loop.answer.power)):
        assert np.all(watts >= one(power.idle) * (1 - 1e-12))
        assert np.all(watts <= one(power.cap) * (1 + 1e-12))
    assert one(power.cap) <= one(power.tdp)


def test_every_kernel_of_a_busy_chip_stays_under_the_cap_and_above_idle() -> None:
    found = archsim.run(
        scenario(DEEPSEEK, "nvidia/h200-sxm", 16, split={"attention_data": 16, "expert": 16}, batch=4096, context=2000)
    )
    for _, kernel, cost, _ in found.answer.decode.kernels():
        assert one(cost.energy) <= one(chip("nvidia/h200-sxm").power.cap * cost.seconds) * (1 + 1e-12), kernel.name


@pytest.mark.parametrize("watts", [450, 550, 690])
def test_a_power_cap_is_kept_and_never_makes_anything_faster(watts: int) -> None:
    free, capped = (step(batch=[1, 64, 1024, 8192], context=100, **keys) for keys in ({}, {"power_cap": f"{watts} W"}))
    free_time, capped_time = (found.pick(found.answer.tpot) for found in (free, capped))
    assert np.all(capped_time >= free_time * (1 - 1e-12))
    assert np.all(capped.pick(capped.answer.power) <= watts * (1 + 1e-12))


def test_energy_of_a_token_is_the_facilitys_power_over_its_rate() -> None:
    found = step()
    facility = wall_power(found.power, Terms()) * 8 / found.throughput
    assert np.allclose(found.energy_per_token, facility, rtol=1e-12)


def test_dearer_electricity_shows_where_capital_is_paid_and_not_where_rent_includes_it() -> None:
    def cost(by: str, price: str) -> float:
        return float(step(economics={"by": by, "electricity": price}).cost_per_token[0])

    assert cost("rent", "0.08 USD/kWh") == cost("rent", "0.30 USD/kWh")
    assert cost("capital", "0.08 USD/kWh") < cost("capital", "0.30 USD/kWh")


def test_a_more_expensive_chip_costs_more_a_token() -> None:
    s = scenario(LLAMA_70B, H100, 8, split={"tensor": 8}, batch=8, context=1000, economics={"by": "capital"})
    priced = archsim.run(s, over={"chip.price.system": [50_000, 100_000]})
    assert priced.cost_per_token[1] > priced.cost_per_token[0]
    dearer = with_value(chip(H100), ("price", "system"), array(100_000.0))
    assert one(rate(dearer, Terms(by="capital"), array(0.0)).hourly) > one(
        rate(chip(H100), Terms(by="capital"), array(0.0)).hourly
    )


def bertha(**over: object) -> Result:
    s = scenario(LLAMA_8B, BERTHA, 1, runtime="native", split={"tensor": 1}, batch=1, context=1000)
    return archsim.run(s, over=over)


def test_a_price_of_two_parts_follows_the_price_and_the_capacity_of_memory() -> None:
    machine = chip(BERTHA)
    assert machine.price.system is None
    base, memory, size = (one(value) for value in (machine.price.base, machine.price.memory, machine.memory.capacity))
    assert one(machine.capital) == pytest.approx(base + memory * size / 1e9) == pytest.approx(8000)
    dear = bertha(**{"chip.price.memory": [0.0, memory, 2 * memory]}).output_cost
    assert dear[2] - dear[1] == pytest.approx(dear[1] - dear[0]) and dear[0] < dear[1]
    more = bertha(**{"chip.memory.capacity": [size, size + 1e9]}).output_cost
    assert more[1] - more[0] == pytest.approx((dear[1] - dear[0]) / (size / 1e9), rel=1e-6)


def test_memory_of_a_chip_with_one_price_for_all_has_none_of_its_own() -> None:
    s = scenario(LLAMA_70B, H100, 8, split={"tensor": 8}, batch=8, context=1000)
    with pytest.raises(KeyError, match=r"one price for all, `price.system`; it needs `base` and `memory`"):
        archsim.run(s, over={"chip.price.memory": [10.0, 20.0]})


@pytest.mark.parametrize("given", ["base: 6000 USD", "memory: 10 USD/GB"])
def test_half_a_price_of_two_parts_is_refused_in_place(given: str, tmp_path: Path) -> None:
    file = tmp_path / "half.yaml"
    file.write_text(f"extends: nvidia/h100-sxm\nprice:\n  {given}\n", encoding="utf-8")
    other = "memory" if given.startswith("base") else "base"
    with pytest.raises(CatalogError, match=rf"half\.yaml:3:\d+: .*give '{other}' too"):
        chip(str(file))


def test_a_price_for_all_comes_before_one_of_two_parts(tmp_path: Path) -> None:
    file = tmp_path / "sold.yaml"
    source = "sources: [{of: [price.system], kind: assumption, ref: a guess}]"
    file.write_text(f"extends: {BERTHA}\nprice: {{system: 9000 USD}}\n{source}\n", encoding="utf-8")
    assert one(chip(str(file)).capital) == 9000


@pytest.mark.parametrize(("by", "missing"), [("rent", "no rent"), ("capital", "no all-in price")])
def test_a_way_of_paying_without_a_price_is_refused_in_place(by: str, missing: str, tmp_path: Path) -> None:
    chip = "extends: nvidia/h100-sxm\nset: {price: {as_of: 2026-01}}\n"
    (tmp_path / "unpriced.yaml").write_text(chip, encoding="utf-8")
    ask = "model: meta/llama-3.1-8b\npools: {gpu: {chip: ./unpriced.yaml, count: 1}}\nbatch: 1\ncontext: 100\n"
    (tmp_path / "ask.yaml").write_text(f"{ask}economics:\n  by: {by}\n", encoding="utf-8")
    with pytest.raises(CatalogError, match=rf"ask\.yaml:6:7: .*{missing}"):
        load_scenario(str(tmp_path / "ask.yaml"))


def test_no_use_at_all_has_no_cost() -> None:
    with pytest.raises(CatalogError, match=r"at least 0\.001"):
        scenario(LLAMA_8B, economics={"utilization": 0}, batch=1, context=1)


def test_a_chip_needs_the_energy_of_bf16_which_stands_in_for_other_formats(tmp_path: Path) -> None:
    shipped = find("chips", "nvidia/h100-sxm").read_text(encoding="utf-8")
    text = re.sub(r"flop: \{[^}]*\}", "flop: {fp8: 1 pJ/FLOP}", shipped)
    assert text != shipped
    (tmp_path / "chip.yaml").write_text(text, encoding="utf-8")
    with pytest.raises(CatalogError, match=r"chip\.yaml:\d+:\d+: .*bf16"):
        load_chip(str(tmp_path / "chip.yaml"))
