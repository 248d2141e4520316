"""What the prices of tokens earn: rows of an answer, and lines of an explanation. Empty without prices."""

from archsim.economics.money import wall_power
from archsim.economics.terms import HOUR
from archsim.explore.bill import dollars_per_second
from archsim.explore.evaluate import StepAnswer
from archsim.explore.result import metrics_of
from archsim.report.formulas import Line, Term, checked, named
from archsim.report.point import Point, single
from archsim.report.words import dollars, percent

MILLION = 1e6


def price_rows(point: Point) -> list[tuple[str, str]]:
    """Revenue, margin, revenue per megawatt, and the cost of cached input, with their names."""
    value = price_metrics(point)
    if not value:
        return []
    rows = [
        ("revenue of the system", f"{dollars(value['revenue'])} an hour"),
        ("margin", signed_percent(value["margin"])),
        ("revenue of a megawatt", f"{dollars(value['revenue_per_megawatt'])} an hour"),
    ]
    if "cached_input_cost" in value:
        rows.append(("cost per million cached input tokens", dollars(value["cached_input_cost"])))
    return rows


def signed_percent(share: float) -> str:
    """A share that may be negative: "37 %", "-120 %"."""
    return f"-{percent(-share)}" if share < 0 else percent(share)


def price_metrics(point: Point) -> dict[str, float]:
    """The metrics that prices add at a point; empty without prices."""
    if point.scenario.prices is None:
        return {}
    known = metrics_of(point.scenario, point.mode)
    names = [name for name in ("revenue", "margin", "revenue_per_megawatt", "cached_input_cost") if name in known]
    return {name: single(known[name][2](point.alone.answer)) for name in names}


def price_lines(point: Point) -> list[Line]:
    """Revenue, margin and revenue per megawatt with their formulas; empty without prices."""
    value = price_metrics(point)
    if not value:
        return []
    answer, terms = point.alone.answer, point.scenario.terms
    income = named("revenue", value["revenue"], "USD/h")
    cost = named("system", single(dollars_per_second(answer)) * HOUR, "USD/h")
    chips = named("chips", single(point.scenario.chips))
    watts = named("wall power", single(wall_power(answer.power, terms)), "power") * chips
    lines = [
        checked("revenue", [_income(point)], value["revenue"], "USD/h", "tokens at the prices of the scenario"),
        checked("margin", [1.0 - cost / income], value["margin"], "of the revenue"),
        checked("a megawatt", [income / watts * MILLION], value["revenue_per_megawatt"], "USD/h", "of facility power"),
    ]
    if "cached_input_cost" in value:
        note = "a million cached tokens: the prefill after them against the same prefill without them"
        lines.append(Line("cached input", None, value["cached_input_cost"], "USD", note))
    return lines


def _income(point: Point) -> Term:
    """Tokens a second times their prices."""
    answer, prices = point.alone.answer, point.scenario.prices
    if prices is None:
        raise ValueError("the scenario has no prices")
    rate = "token_rate"
    earned = named("output", single(answer.output_rate), rate) * named("price", prices.output, "USD/Mtok")
    if not isinstance(answer, StepAnswer):
        prompt = single(answer.input)
        share = min(single(point.scenario.cached), prompt - 1.0) / prompt
        whole = single(answer.input_rate)
        fresh = named("fresh input", whole * (1.0 - share), rate) * named("price", prices.input, "USD/Mtok")
        earned = fresh + earned
        if share > 0:
            earned += named("cached input", whole * share, rate) * named("price", prices.cached, "USD/Mtok")
    return earned * named("hour", HOUR, "s") / named("million", MILLION)
