"""Calibration: constants that are known are found again, and files change only where they should."""

import re
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from archsim import cli
from archsim.catalog import CatalogError
from archsim.chip.constants import Constants, Gemm, GenerationAttention
from archsim.chip.schema import load_chip, load_generation
from archsim.validation import fit as fitting
from archsim.validation.bench import COLUMNS, SIZES, Bench, Row, read_bench
from archsim.validation.calibrate import GENERATIONS, jobs
from archsim.validation.database import installed
from archsim.validation.own import fitted_to
from archsim.validation.rewrite import WIDTH, changed, flows, owner, rewritten

pytest.importorskip("scipy")

CHIP, STACK = "nvidia/h100-sxm", "vllm"
FOLDER = Path(__file__).parent.parent / "chips" / "generations"
HOPPER = (FOLDER / "hopper.yaml").read_text(encoding="utf-8")
PRODUCT = ("kernels", "vllm", "gemm", "bf16")


def rows(family: str, grid: dict[str, tuple[float, ...]], fmt: str = "bf16") -> list[Row]:
    """Rows of every combination, their seconds still to come."""
    names = list(grid)
    points = np.array(np.meshgrid(*grid.values())).reshape(len(names), -1).T
    return [Row(family, fmt, dict(zip(names, point.tolist(), strict=True)), 1.0) for point in points]


def timed(kind: str, constants: Constants, found: list[Row], fmt: str = "bf16") -> Bench:
    """The rows with the seconds that the engine gives with some constants."""
    from archsim.validation.families import LOADERS

    bench = Bench(tuple(found))
    loader, _ = LOADERS[found[0].family]
    (table,) = loader(bench, CHIP, STACK, None)
    table = type(table)(**{**table.__dict__, "kernels": table.kernels[:1]})
    problem = fitting.Problem(kind, STACK, {fmt: constants}, load_chip(CHIP), (table,))
    seconds = problem.seconds(problem.sets, problem.tables)
    return Bench(
        tuple(Row(row.family, row.format, row.sizes, float(time)) for row, time in zip(found, seconds, strict=True)),
    )


PRODUCTS = rows("gemm", {"m": (1, 16, 128, 512, 4096), "n": (1024, 4096, 14336), "k": (1024, 4096, 8192)})
KNOWN = Gemm(
    fixed="4 us", matrix=0.6, memory=0.7, feed="150 GB/s", split="3 us", depth="60 ns", epilogue="1 us",
    persistent=0.9, fitted_on="nothing: it is made up",
)  # fmt: skip


def test_known_constants_of_products_are_found_again() -> None:
    (found,) = fitted_to(timed("gemm", KNOWN, PRODUCTS), CHIP, STACK, STACK)
    new = found.new["bf16"]
    assert isinstance(new, Gemm)
    assert found.after.error < 0.3 < 5 < found.before.error
    for name in ("fixed", "matrix", "memory", "split"):
        assert getattr(new, name) == pytest.approx(getattr(KNOWN, name), rel=0.05), name


def test_known_constants_of_generation_attention_are_found_again() -> None:
    known = GenerationAttention(
        fixed="6 us", memory=0.75, block="2 us", feed="60 GB/s", combine="3 us", overlap=2.0, splits=32,
        fitted_on="nothing: it is made up",
    )  # fmt: skip
    sizes = {
        "batch": (1.0, 8.0, 64.0, 256.0),
        "length": (128.0, 1024.0, 8192.0, 32768.0),
        "heads": (8.0, 32.0),
        "kv_heads": (1.0, 8.0),
        "width": (128.0,),
    }
    bench = timed("generation_attention", known, rows("generation-attention", sizes))
    (found,) = fitted_to(bench, CHIP, STACK, STACK)
    new = found.new["bf16"]
    assert isinstance(new, GenerationAttention)
    assert (new.overlap, found.after.error < 1.0) == (2.0, True)
    for name in ("fixed", "memory", "block"):
        assert getattr(new, name) == pytest.approx(getattr(known, name), rel=0.1), name


def test_a_constant_that_explains_nothing_is_dropped() -> None:
    flat = KNOWN.model_copy(update={"depth": 0.0, "epilogue": 0.0})
    (found,) = fitted_to(timed("gemm", flat, PRODUCTS), CHIP, STACK, STACK)
    new = found.new["bf16"]
    assert isinstance(new, Gemm)
    assert (new.depth, new.epilogue) == (0.0, 0.0)


def test_the_same_rows_give_the_same_constants() -> None:
    bench = timed("gemm", KNOWN, PRODUCTS)
    first, second = (fitted_to(bench, CHIP, STACK, STACK)[0] for _ in range(2))
    assert first.new == second.new
    assert first.after == second.after


def test_constants_keep_to_what_is_physical() -> None:
    bench = timed("gemm", KNOWN, PRODUCTS)
    faster = Bench(tuple(Row(r.family, r.format, r.sizes, r.seconds / 4.0) for r in bench.rows))
    new = fitted_to(faster, CHIP, STACK, STACK)[0].new["bf16"]
    assert isinstance(new, Gemm)
    assert new.matrix <= 1.0
    assert new.memory <= 1.0


# Rewriting


def test_rewriting_changes_only_what_it_should() -> None:
    text = rewritten(HOPPER, {PRODUCT: {"matrix": "0.8", "depth": None, "spread": "0.05"}})
    old, new = HOPPER.splitlines(), text.splitlines()
    same = [line for line in old if line in new]
    assert len(old) - len(same) <= 3
    assert [line for line in old if line.lstrip().startswith("#")] == [
        line for line in new if line.lstrip().startswith("#")
    ]
    before, after = flows(HOPPER), flows(text)
    pairs = after[PRODUCT].pairs
    assert (pairs["matrix"], pairs["spread"], "depth" in pairs) == ("0.8", "0.05", False)
    assert list(pairs)[-3:] == ["spread", "sibling", "fitted_on"]
    others = {path: flow.pairs for path, flow in before.items() if owner(before, path) != PRODUCT}
    assert all(after[path].pairs == pairs for path, pairs in others.items())
    assert "&gemm_bf16" in text
    assert "bf16: *gemm_bf16" in text


def test_rewriting_what_is_there_changes_nothing() -> None:
    same = {path: dict(flow.pairs) for path, flow in flows(HOPPER).items()}
    assert rewritten(HOPPER, same) == HOPPER


@pytest.mark.parametrize("name", sorted(path.stem for path in FOLDER.glob("*.yaml")))
def test_every_set_can_be_rewritten(name: str) -> None:
    text = (FOLDER / f"{name}.yaml").read_text(encoding="utf-8")
    marks = flows(text)
    own = {path for path in marks if owner(marks, path) == path}
    new = rewritten(text, {path: {"error": "98.7", "spread": "0.123"} for path in own})
    assert set(flows(new)) == set(marks)
    assert all(
        flow.pairs == {**marks[path].pairs, "error": "98.7", "spread": "0.123"} for path, flow in flows(new).items()
    )
    assert all(len(line) <= WIDTH for line in new.splitlines() if line not in text.splitlines())


def test_numbers_are_written_as_files_write_them() -> None:
    constants = KNOWN.model_copy(update={"feed": 1.234e12, "split": None})
    values = changed(constants, None, {"split": "2 us"}, ["fixed", "matrix", "feed", "split", "depth", "wave"])
    assert values == {"fixed": "4 us", "matrix": "0.6", "feed": "1230 GB/s", "split": None, "depth": "60 ns"}
    parent = KNOWN.model_copy(update={"matrix": 0.5})
    assert changed(constants, parent, {}, ["fixed", "matrix", "split"]) == {"matrix": "0.6", "split": "null"}


def test_a_set_that_extends_a_measured_one_has_no_spread() -> None:
    known = KNOWN.model_copy(update={"spread": 0.1, "sibling": 0.2})
    assert (known.known().spread, known.known().sibling) == (None, None)
    measured = known.model_copy(update={"error": 5.0})
    assert measured.known() == measured
    assert load_generation("rubin").kernels["vllm"]["gemm"]["bf16"].spread is None


def test_what_extends_a_set_follows_it() -> None:
    old, new = KNOWN, KNOWN.model_copy(update={"matrix": 0.66, "fixed": 5e-6})
    child = KNOWN.model_copy(update={"matrix": 0.72})
    follows = fitting.inherited(child, old, new)
    assert isinstance(follows, Gemm)
    assert (follows.matrix, follows.fixed) == (pytest.approx(0.792), 5e-6)


# A benchmark of one's own


def written(path: Path, bench: Bench) -> Path:
    names = ["family", "format", *SIZES[bench.rows[0].family], "seconds"]
    lines = [",".join(names)]
    lines += [
        ",".join([row.family, row.format, *(f"{row.sizes[name]:g}" for name in names[2:-1]), repr(row.seconds)])
        for row in bench.rows
    ]
    path.write_text("\n".join(lines), encoding="utf-8")
    return path


@pytest.mark.parametrize("stack", ["vllm", "mine"])
def test_a_benchmark_becomes_a_generation_that_loads(tmp_path: Path, stack: str) -> None:
    csv = written(tmp_path / "bench.csv", timed("gemm", KNOWN, PRODUCTS))
    command = ["calibrate", str(csv), "--chip", CHIP, "--stack", stack, "--out", str(tmp_path / "out")]
    answer = CliRunner().invoke(cli.app, command)
    assert answer.exit_code == 0, answer.output
    path = tmp_path / "out" / f"h100-sxm-{stack}.yaml"
    text = path.read_text(encoding="utf-8")
    kernels = load_generation(str(path)).kernels
    product = kernels[stack]["gemm"]["bf16"]
    assert isinstance(product, Gemm)
    assert product.matrix == pytest.approx(KNOWN.matrix, rel=0.05)
    assert product.error is not None
    assert set(kernels[stack]) == set(kernels["vllm"])
    assert kernels[stack]["experts"].keys() == kernels["vllm"]["experts"].keys()
    assert all(len(line) <= WIDTH for line in text.splitlines() if "of: [" not in line)
    chip = tmp_path / "chip.yaml"
    chip.write_text(f"extends: {CHIP}\ngeneration: {path}\n", encoding="utf-8")
    assert load_chip(str(chip)).generation.kernels[stack]["gemm"]["bf16"] == product


BAD = {
    "family,format,m,n,k,second\n": (1, 21, "unknown column 'second'; did you mean 'seconds'?"),
    "family,format,m,n,k\n": (1, 1, "missing column 'seconds'"),
    "family,format,m,m,seconds\n": (1, 17, "the column 'm' is there twice"),
    "family,format,m,n,k,seconds\ngem,bf16,1,1,1,1\n": (2, 1, "unknown family 'gem'; did you mean 'gemm'?"),
    "family,format,m,n,k,seconds\ngemm,bf61,1,1,1,1\n": (2, 6, "unknown format 'bf61'; did you mean 'bf16'?"),
    "family,format,m,n,k,seconds\ngemm,bf16,1,-2,1,1\n": (2, 13, "expected a number above 0 for 'n', got '-2'"),
    "family,format,m,n,k,seconds\ngemm,bf16,1,1\n": (2, 13, "expected 6 cells as in the first line, got 4"),
    "family,format,m,n,seconds\ngemm,bf16,1,1,1\n": (2, 1, "gemm needs a column 'k'"),
    "family,format,m,n,k,seconds\n": (1, 1, "there are no rows below the names of the columns"),
}


@pytest.mark.parametrize("text", BAD)
def test_mistakes_in_a_benchmark_are_named_where_they_are(tmp_path: Path, text: str) -> None:
    csv = tmp_path / "bench.csv"
    csv.write_text(text, encoding="utf-8")
    with pytest.raises(CatalogError) as caught:
        read_bench(csv)
    line, column, message = BAD[text]
    assert [(fault.line, fault.column) for fault in caught.value.faults] == [(line, column)]
    assert message in caught.value.faults[0].message


def test_mistakes_end_with_exit_code_2(tmp_path: Path) -> None:
    csv = tmp_path / "bench.csv"
    csv.write_text("family,format,m,n,k,seconds\ngem,bf16,1,1,1,1\n", encoding="utf-8")
    answer = CliRunner().invoke(cli.app, ["calibrate", str(csv), "--chip", CHIP])
    assert answer.exit_code == 2
    assert f"{csv}:2:1: unknown family 'gem'" in answer.output
    assert CliRunner().invoke(cli.app, ["calibrate", str(csv)]).exit_code == 2
    csv.write_text("family,format,m,n,k,seconds\ngemm,bf16,1,4096,4096,1e-5\n", encoding="utf-8")
    answer = CliRunner().invoke(cli.app, ["calibrate", str(csv), "--chip", CHIP])
    assert answer.exit_code == 2
    assert re.search("gemm in bf16 has 1 rows, fewer than its . constants", answer.output)


# The public measurements


def test_only_calibration_chips_are_fitted() -> None:
    assert {job.generation for job in jobs()} == set(GENERATIONS)
    assert all("mean of stacks" in job.stacks for job in jobs(families=["gemm"]))
    with pytest.raises(ValueError, match="did you mean 'hopper'"):
        jobs(["hoper"])


@pytest.mark.skipif(not installed(), reason="needs the extra measurements")
def test_a_family_is_fitted_to_the_public_measurements(tmp_path: Path) -> None:
    command = [
        "calibrate",
        "--generation",
        "hopper",
        "--family",
        "all-to-all",
        "--workers",
        "1",
        "--out",
        str(tmp_path),
    ]
    answer = CliRunner().invoke(cli.app, command)
    assert answer.exit_code == 0, answer.output
    assert "all_to_all" in answer.output


def test_columns_are_those_that_the_documentation_names() -> None:
    text = (Path(__file__).parent.parent / "docs" / "calibration.md").read_text(encoding="utf-8")
    assert all(f"`{name}`" in text for name in COLUMNS)
