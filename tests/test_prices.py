"""What tokens earn: revenue, margin, revenue per megawatt, and what a cached token costs."""

import json
from typing import Any

import numpy as np
import pytest
from scenarios import LLAMA_8B, scenario

from archsim.arrays import array
from archsim.catalog import CatalogError
from archsim.economics.prices import Prices, margin, per_megawatt, revenue
from archsim.explore.result import METRICS, PRICED, Result
from archsim.explore.run import run
from archsim.report.document import to_json
from archsim.report.explain import as_text, explain
from archsim.report.point import main_point
from archsim.report.prices import price_metrics, price_rows, signed_percent
from archsim.report.terminal import console, print_answer

PRICES = {"input": "0.5 USD/Mtok", "cached_input": "0.05 USD/Mtok", "output": "1.5 USD/Mtok"}
TRAFFIC = {"input": 4000, "output": 200, "cached": 3000}


def steady(clients: int = 16, **keys: Any) -> Result:
    base = {"traffic": TRAFFIC, "prices": PRICES}
    return run(scenario(LLAMA_8B, **{**base, **keys}), "steady", {"batch": array(clients)})


def step(**keys: Any) -> Result:
    return run(scenario(LLAMA_8B, **{"batch": 16, "context": 4096, "prices": PRICES, **keys}))


def one(values: np.ndarray[Any, Any]) -> float:
    return float(values.ravel()[0])


def test_the_sums_by_hand() -> None:
    """A million fresh, two million cached and three million output tokens an hour."""
    hour = 1e6 / 3600
    prices = Prices.model_validate(PRICES)
    income = revenue(prices, array(1 * hour), array(2 * hour), array(3 * hour))
    assert one(income) == pytest.approx(0.5 + 2 * 0.05 + 3 * 1.5)
    assert one(margin(income, array(2.0))) == pytest.approx((5.1 - 2.0) / 5.1)
    assert one(margin(array(1.0), array(3.0))) == pytest.approx(-2.0)
    assert one(per_megawatt(income, array(2000.0))) == pytest.approx(5.1 / 0.002)


def test_cached_input_costs_as_much_as_any_where_no_price_is_given() -> None:
    assert Prices.model_validate({"input": "2 USD/Mtok", "output": "3 USD/Mtok"}).cached == 2.0


def test_the_steady_state_sells_fresh_cached_and_generated_tokens() -> None:
    result = steady()
    requests = one(result.throughput) / TRAFFIC["output"] * 3600
    earned = requests * (1000 * 0.5 + 3000 * 0.05 + 200 * 1.5) / 1e6
    assert one(result.metric("revenue")) == pytest.approx(earned)
    tokens = requests * (TRAFFIC["input"] + TRAFFIC["output"])
    cost = one(result.cost_per_token) / 1e6 * tokens
    assert one(result.metric("margin")) == pytest.approx(1 - cost / earned)


def test_a_step_sells_output_alone() -> None:
    result = step()
    assert one(result.metric("revenue")) == pytest.approx(one(result.throughput) * 3600 * 1.5 / 1e6)
    assert one(result.margin) == pytest.approx(1 - one(result.output_cost) / 1.5)


def test_a_megawatt_is_of_facility_power() -> None:
    result = step(economics={"pue": 1.5, "overhead": "100 W"})
    watts = (one(result.power) + 100) * 1.5
    assert one(result.metric("revenue_per_megawatt")) == pytest.approx(one(result.metric("revenue")) / watts * 1e6)


def test_the_cost_of_a_cached_token_is_marginal() -> None:
    """Attention to the prefix is all that it costs: far less than a computed token, and more than nothing."""
    result = steady()
    cached = one(result.metric("cached_input_cost"))
    fresh = one(run(scenario(LLAMA_8B, batch=1, context=4000)).input_cost)
    assert 0 < cached < fresh / 5


def test_a_longer_prefix_costs_more_in_all() -> None:
    traffic = [{"input": 1000 + cached, "output": 200, "cached": cached} for cached in (1000, 4000, 16000)]
    costs = [one(steady(traffic=sizes).metric("cached_input_cost")) * sizes["cached"] for sizes in traffic]
    assert costs == sorted(costs) and costs[0] > 0


def test_without_prices_it_says_what_to_add() -> None:
    for result in (step(prices=None), steady(prices=None)):
        for name in ("revenue", "margin", "revenue_per_megawatt"):
            with pytest.raises(KeyError, match="add `prices: "):
                result.metric(name)
        assert not PRICED.keys() & result.table().keys()
        assert price_rows(main_point(result)) == []
    assert one(steady(prices=None).metric("cached_input_cost")) > 0  # it needs a cache and no price


def test_without_a_cache_it_says_what_to_add() -> None:
    for result in (step(), steady(traffic={"input": 4000, "output": 200})):
        with pytest.raises(KeyError, match="cached"):
            result.metric("cached_input_cost")
        assert PRICED.keys() & result.table().keys() == {"revenue", "margin", "revenue_per_megawatt"}


def test_every_metric_is_a_column_where_it_can_be() -> None:
    table = steady().table()
    assert table.keys() >= METRICS.keys() | PRICED.keys()


def test_arrays_in_arrays_out() -> None:
    result = run(scenario(LLAMA_8B, traffic=TRAFFIC, prices=PRICES), "steady", {"batch": array([1, 4, 16])})
    for name in PRICED:
        assert result.metric(name).shape == (3,)
    assert np.all(np.diff(result.metric("margin")) > 0)


def test_an_unknown_metric_names_them_all() -> None:
    with pytest.raises(KeyError, match=r"there are .*margin"):
        step().metric("profit")


def test_prices_are_of_tokens() -> None:
    with pytest.raises(CatalogError, match="price of tokens"):
        scenario(LLAMA_8B, batch=1, context=100, prices={"input": "0.5 USD", "output": "1 USD/Mtok"})


def test_what_people_see(capsys: pytest.CaptureFixture[str]) -> None:
    result = steady()
    point = main_point(result)
    print_answer(console(), result)
    text = capsys.readouterr().out
    for label, value in price_rows(point):
        assert label in text and value in text
    told = as_text(point, explain(point))
    assert "fresh input x price" in told and "cached input x price" in told and "of facility power" in told
    answer = json.loads(to_json(result))["answers"][0]
    assert answer["metrics"].keys() >= PRICED.keys()
    for name, amount in price_metrics(point).items():
        assert answer["best"]["metrics"][name] == pytest.approx(amount)


def test_a_loss_has_a_sign() -> None:
    assert signed_percent(-1.2) == "-120 %" and signed_percent(0.37) == "37 %"
