"""Designs: die cost by hand and against known dies, the search against brute force, optuna seeded and resumed."""

from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from archsim.arrays import array
from archsim.catalog import CatalogError
from archsim.cli import app
from archsim.economics.die import MM2, Sketch, dies_per_wafer, good_share, load_silicon
from archsim.explore.design import NAMES, REASONS, Designs, Problem, design, fields, load_problem
from archsim.explore.run import run

EXAMPLE = Path(__file__).parent.parent / "examples" / "designs" / "near-memory-card.yaml"
SPEC = """
scenario: llama-70b-on-bertha
parameters:
  memory: [lpddr5x, hbm3e]
  units: [2, 4, 8]
  unit_capacity: [8 GB, 16 GB]
  peak: [96 TFLOP/s, 384 TFLOP/s]
  sram: [64 MB, 256 MB]
  link: [64 GB/s]
budgets: {area: 858 mm2, power: 250 W, price: 5000 USD}
batch: [16, 64]
"""


def problem(folder: Path, text: str = SPEC) -> Problem:
    file = folder / "card.yaml"
    file.write_text(text, encoding="utf-8")
    return load_problem(str(file))


def sketch(peak: float, sram: float, link: float, stacks: int, process: str = "n4", memory: str = "hbm3e") -> Sketch:
    """TFLOP/s, MB, GB/s, stacks."""
    own = array(peak * 1e12), array(sram * 1e6), array(link * 1e9), array(stacks), array(24e9)
    return Sketch(load_silicon("estimates-2026").file, process, memory, *own)


# Dies


def test_dies_and_yield_by_hand() -> None:
    area = array(814e-6)
    # pi 150^2 / 814 = 86.84 whole dies' worth, less pi 300 / sqrt(1628) = 23.36 at the edge
    assert dies_per_wafer(area, np.pi * 0.15**2)[0] == 63
    # 8.14 cm2 at 0.1 a cm2: (1 + 0.814 / 3)^-3, ((1 - e^-0.814) / 0.814)^2, e^-0.814
    assert good_share(area, array(0.1), array(3.0))[0] == pytest.approx(0.48675, abs=2e-4)
    assert good_share(area, array(0.1), array(3.0), "murphy")[0] == pytest.approx(0.46797, abs=5e-4)
    assert good_share(area, array(0.1), array(3.0), "poisson")[0] == pytest.approx(0.44308, abs=2e-4)


def test_forms_of_yield_agree_where_they_must() -> None:
    area = array(np.geomspace(1e-6, 1e-3, 30))
    forms = [good_share(area, array(0.1), array(1e9), form) for form in ("negative-binomial", "poisson")]
    np.testing.assert_allclose(forms[0], forms[1], rtol=1e-6)
    binomial, murphy, poisson = (
        good_share(area, array(0.1), array(3.0), form)  # type: ignore[arg-type]
        for form in ("negative-binomial", "murphy", "poisson")
    )
    assert (binomial >= poisson).all() and (murphy >= poisson).all()
    assert (np.diff(binomial) < 0).all()


def test_the_cost_of_a_die_by_hand() -> None:
    one = sketch(989, 116, 514, 6)
    each = 17000 / (63 * one.good)
    assert one.dies[0] == 1
    assert one.die_cost[0] == pytest.approx(each[0])
    assert one.memory_cost[0] == pytest.approx(6 * (24 * 10.3 + 90))
    assert one.cost[0] == pytest.approx(each[0] + 6 * (24 * 10.3 + 90) + 340)


def test_known_dies() -> None:
    """H100 (814 mm2) and A100 (826) gave the constants of their processes; B200 (two dies of about 800) did not."""
    assert sketch(989, 116, 514, 6).area[0] / MM2 == pytest.approx(814, rel=0.01)
    assert sketch(312, 88, 332, 6, "n7").area[0] / MM2 == pytest.approx(826, rel=0.01)
    b200 = sketch(2250, 126 + 148 * 0.5, 964, 8)
    assert b200.area[0] / MM2 == pytest.approx(1600, rel=0.1) and b200.dies[0] == 2


def test_parts_add_up_and_nothing_comes_for_free() -> None:
    one = sketch(400, 100, 100, 4)
    assert sum(part[0] for part in one.parts.values()) == pytest.approx(one.area[0])
    for more in (
        sketch(800, 100, 100, 4),
        sketch(400, 200, 100, 4),
        sketch(400, 100, 200, 4),
        sketch(400, 100, 100, 8),
    ):
        assert more.area[0] > one.area[0] and more.cost[0] > one.cost[0]
    assert replace(one, harvest=0.9).die_cost[0] < one.die_cost[0]


# The search


def test_it_finds_what_brute_force_finds(tmp_path: Path) -> None:
    p = problem(tmp_path)
    found = design(p)
    lists = [getattr(p.file.parameters, name) for name in NAMES]
    best, count, out = np.inf, 0, 0
    for memory, *numbers in product(*lists):
        count += 1
        columns = {name: array(value) for name, value in zip(NAMES[1:], numbers, strict=True)}
        s = p.sketch(memory, columns)
        made = columns["unit_capacity"][0] in s.unit.sizes
        if not made or s.shore[0] > 0.75 or p.power(s)[0] > 250 or p.price(s)[0] > 5000 or s.area[0] > 858e-6:
            out += 1
            continue
        from archsim.explore.design import _with_memory

        for batch in p.file.batch:
            own = {name: float(value[0]) for name, value in fields(p, memory, columns).items()}
            result = run(_with_memory(p, memory), "steady", {**own, "batch": float(batch)})
            if result.feasible.all() and result.meets_slo.all():
                best = min(best, float(result.cost_per_token.ravel()[0]))
    assert found.space == count == found.value.size and found.exhaustive
    assert sum(found.out().get(name, 0) for name in ("unit", "area", "edge", "power", "price")) == out
    assert found.best is not None
    assert found.value[found.best] == pytest.approx(best, rel=1e-9)


def test_a_larger_budget_is_never_worse(tmp_path: Path) -> None:
    values = []
    for price in (1500, 2500, 5000, 9000):
        found = design(problem(tmp_path, SPEC.replace("price: 5000 USD", f"price: {price} USD")))
        values.append(np.inf if found.best is None else float(found.value[found.best]))
    assert values == sorted(values, reverse=True) and values[-1] < np.inf


def test_without_budgets_the_most_that_the_edge_has_room_for_is_fastest(tmp_path: Path) -> None:
    text = SPEC.replace("budgets: {area: 858 mm2, power: 250 W, price: 5000 USD}\n", "")
    p = problem(tmp_path, text)
    goal = p.scenario.objective.model_copy(update={"minimize": None, "maximize": "throughput"})
    found = design(replace(p, scenario=replace(p.scenario, objective=goal)))
    assert found.best is not None
    assert found.memory[found.best] == "hbm3e"
    # 8 stacks need 96 mm of edge, more than three quarters of what such a die has
    assert found.columns["units"][found.best] == 4 and found.columns["peak"][found.best] == 384e12


def test_what_no_design_keeps_says_what_would_help(tmp_path: Path) -> None:
    file = tmp_path / "card.yaml"
    file.write_text(SPEC.replace("power: 250 W", "power: 1 W"), encoding="utf-8")
    found = CliRunner().invoke(app, ["design", str(file)])
    assert found.exit_code == 1
    assert "No design" in found.output and "more power" in found.output


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("[lpddr5x, hbm3e]", "[lpddr5, hbm3e]", "did you mean 'lpddr5x'"),
        ("budgets:", "process: n5\nbudgets:", "unknown process 'n5'"),
        ("sram: [64 MB, 256 MB]", "sram: []", "at least 1"),
        ("llama-70b-on-bertha", "llama-70b-on-berta", "did you mean"),
    ],
)
def test_mistakes_are_faults_with_a_place(tmp_path: Path, old: str, new: str, said: str) -> None:
    with pytest.raises(CatalogError) as caught:
        problem(tmp_path, SPEC.replace(old, new))
    assert any(said in str(fault) for fault in caught.value.faults)


def test_the_command_prints_the_best_of_the_shipped_example() -> None:
    found = CliRunner().invoke(app, ["design", str(EXAMPLE), "--top", "3"])
    assert found.exit_code == 0
    assert "all of them looked at" in found.output and "The best of each technology" in found.output


# Optuna


def asked(p: Problem, storage: Path | None = None) -> Designs:
    return design(p, None if storage is None else str(storage))


@pytest.mark.slow
def test_optuna_is_seeded_and_goes_on_where_it_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("optuna")
    monkeypatch.setattr("archsim.explore.design.LIMIT", 1)
    monkeypatch.setattr("archsim.explore.ask.ROUND", 8)
    p = problem(tmp_path)
    files = {count: replace(p, file=p.file.model_copy(update={"trials": count})) for count in (16, 32)}
    whole, again = asked(files[32]), asked(files[32])
    asked(files[16], tmp_path / "kept.db")
    resumed = asked(files[32], tmp_path / "kept.db")
    for other in (again, resumed):
        np.testing.assert_array_equal(other.value, whole.value)
    assert not whole.exhaustive and whole.space == 48 and whole.value.size <= 32


@pytest.mark.slow
def test_optuna_finds_one_of_the_best_twentieth(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("optuna")
    p = load_problem(str(EXAMPLE))
    best = design(p)
    monkeypatch.setattr("archsim.explore.design.LIMIT", 1)
    found = asked(replace(p, file=p.file.model_copy(update={"trials": 250})))
    assert best.best is not None and found.best is not None
    assert found.value.size <= 250 < best.value.size
    kept = np.sort(best.value[np.isfinite(best.value)])
    assert found.value[found.best] <= kept[kept.size // 20]


def test_without_optuna_it_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("archsim.explore.design.LIMIT", 1)
    monkeypatch.setitem(__import__("sys").modules, "optuna", None)
    with pytest.raises(ValueError, match=r"archsim\[design\]"):
        design(problem(tmp_path))


def test_every_reason_has_its_words() -> None:
    from archsim.report.designs import WHY

    assert set(WHY) == set(REASONS) - {""}


def test_a_card_pays_its_share_of_the_server_also_where_a_price_has_two_parts() -> None:
    problem = load_problem(str(EXAMPLE))
    chip, memory = problem.scenario.chip, problem.file.parameters.memory[0]
    columns = {"units": 2.0, "unit_capacity": 16e9, "peak": 192e12, "sram": 64e6, "link": 64e9}
    arrays = {name: array(value) for name, value in columns.items()}
    card = problem.price(problem.sketch(memory, arrays))
    assert chip.price.base is not None and chip.price.chip is not None and chip.capital is not None
    share = fields(problem, memory, arrays)["chip.price.system"] - card
    assert share == pytest.approx(float(chip.capital[0] - chip.price.chip[0])) and share > 1000
