"""Quantities, formats and field types: what is accepted, what it is worth, and how refusals read."""

from __future__ import annotations

import math
import subprocess
import sys
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from archsim import fields
from archsim.units import (
    DIMENSIONS,
    FORMATS,
    Format,
    UnitError,
    described,
    did_you_mean,
    format_named,
    parse,
    show,
)

ACCEPTED = [
    ("3.35 TB/s", "bandwidth", 3.35e12),
    ("100 Gb/s", "bandwidth", 12.5e9),
    ("400 Gbit/s", "bandwidth", 50e9),
    ("1e12 B/s", "bandwidth", 1e12),
    ("1e12B/s", "bandwidth", 1e12),
    ("81559 MiB", "bytes", 81559 * 2**20),
    ("80 GB", "bytes", 80e9),
    ("1 KiB", "bytes", 1024),
    ("256 KB", "bytes", 256e3),
    ("8 b", "bytes", 1),
    (" 0 B ", "bytes", 0),
    ("989 TFLOP/s", "rate", 989e12),
    ("1979 TOP/s", "rate", 1979e12),
    ("1 us", "time", 1e-6),
    ("1 µs", "time", 1e-6),
    ("4 years", "time", 4 * 8760 * 3600),
    ("1.83 GHz", "frequency", 1.83e9),
    ("700 W", "power", 700),
    ("25000 USD", "money", 25000),
    ("25_000 USD", "money", 25000),
    ("2.95 USD/h", "rent", 2.95 / 3600),
    ("12 pJ", "energy", 12e-12),
    ("66 pJ/B", "energy_per_byte", 66e-12),
    ("8 pJ/bit", "energy_per_byte", 64e-12),
    ("0.53 pJ/FLOP", "energy_per_flop", 0.53e-12),
    ("0.08 USD/kWh", "energy_price", 0.08 / 3.6e6),
    ("12 USD/GB", "byte_price", 12e-9),
    ("0.50 USD/Mtok", "token_price", 0.5e-6),
    ("100 tok/s", "token_rate", 100),
    ("814 mm2", "area", 814e-6),
]


@pytest.mark.parametrize(("text", "dimension", "value"), ACCEPTED)
def test_text_becomes_si(text: str, dimension: str, value: float) -> None:
    assert parse(text, dimension) == pytest.approx(value, rel=1e-15)


def test_examples_of_errors_are_themselves_accepted() -> None:
    for name, dimension in DIMENSIONS.items():
        assert parse(dimension.example, name) > 0


def test_prices_are_exact_in_the_unit_asked_for() -> None:
    assert parse("2.95 USD/h", "rent", "USD/h") == 2.95


REFUSED: list[tuple[Any, str]] = [
    (3.35, "got 3.35 (a number without a unit)"),
    (450, "got 450 (a number without a unit)"),
    ("3.35", "got '3.35' (a number without a unit)"),
    ("80 GB", "got '80 GB'"),
    ("3.35 TBps", "got '3.35 TBps'"),
    ("-1 TB/s", "got '-1 TB/s' (it must not be negative)"),
    ("nan TB/s", "got 'nan TB/s'"),
    ("inf B/s", "got 'inf B/s'"),
    ("1e400 B/s", "got '1e400 B/s' (the number is too large)"),
    ("1e308 TB/s", "got '1e308 TB/s' (the number is too large)"),
    ("1e-400 B/s", "got '1e-400 B/s' (the number is too small)"),
    ("1e25 TB/s", "got '1e25 TB/s' (the number is too large)"),
    ("1e-34 GB/s", "got '1e-34 GB/s' (the number is too small)"),
    (
        "1,000 GB/s",
        "got '1,000 GB/s' (write 1_000 for thousands and 3.35 for decimals; a comma can mean either)",
    ),
    ("1__0 GB/s", "got '1__0 GB/s'"),
    ("٣ GB/s", "got '٣ GB/s'"),
    ("", "got ''"),
    ("TB/s", "got 'TB/s'"),
    (None, "got nothing"),
    (True, "got true"),
    ([1], "got a list"),
    ({}, "got a mapping"),
    ("x" * 1000, f"got '{'x' * 57}...'"),
]


@pytest.mark.parametrize(("value", "ending"), REFUSED)
def test_refusals_say_what_was_expected(value: Any, ending: str) -> None:
    with pytest.raises(UnitError) as caught:
        parse(value, "bandwidth")
    assert str(caught.value) == f"expected a bandwidth such as '3.35 TB/s', {ending}"


def test_an_unknown_dimension_is_refused() -> None:
    with pytest.raises(UnitError, match="unknown dimension 'bandwith'; did you mean 'bandwidth'"):
        parse("1 B/s", "bandwith")


@given(st.text(max_size=40))
def test_any_text_gives_a_finite_number_or_a_unit_error(text: str) -> None:
    for dimension in DIMENSIONS:
        try:
            assert 0 <= parse(text, dimension) < math.inf
        except UnitError as error:
            assert "\n" not in str(error)


@pytest.mark.parametrize(
    ("value", "dimension", "text"),
    [
        (3.35e12, "bandwidth", "3.35 TB/s"),
        (0.0183, "time", "18.3 ms"),
        (22e12, "bytes", "22.0 TB"),
        (999.96e9, "bytes", "1.00 TB"),
        (512, "bytes", "512 B"),
        (0, "time", "0 s"),
        (-0.003, "time", "-3.00 ms"),
        (7200, "time", "2.00 h"),
        (25345, "money", "25300 USD"),
        (2.95 / 3600, "rent", "2.95 USD/h"),
        (0.08 / 3.6e6, "energy_price", "0.0800 USD/kWh"),
        (64e-12, "energy_per_byte", "64.0 pJ/B"),
        (814e-6, "area", "814 mm2"),
        (1e30, "bytes", "1000000000000 EB"),
        (math.nan, "time", "n/a"),
        (-math.inf, "money", "n/a"),
    ],
)
def test_values_print_with_a_fitting_unit(value: float, dimension: str, text: str) -> None:
    assert show(value, dimension) == text


@given(st.sampled_from(sorted(DIMENSIONS)), st.floats(1e-23, 1e30), st.integers(1, 9))
@example("time", 3599.9, 3)
def test_show_is_the_inverse_of_parse(dimension: str, value: float, digits: int) -> None:
    assert parse(show(value, dimension, digits), dimension) == pytest.approx(value, rel=0.5001 * 10 ** (1 - digits))


def test_formats_count_their_scales() -> None:
    bits = {name: entry.bytes * 8 for name, entry in FORMATS.items()}
    assert bits["mxfp4"] == 4.25
    assert bits["nvfp4"] == 4.5
    assert bits["mxfp8"] == 8.25
    assert (bits["int4"], bits["int4_g32"], bits["q8_0"], bits["q4_0"]) == (4.125, 4.5, 8.5, 4.5)
    assert bits["fp8_block"] == 8 + 32 / 16384
    assert (bits["fp32"], bits["bf16"], bits["fp8"], bits["int8"]) == (32, 16, 8, 8)
    assert Format("odd", 6, scale_bits=8, group=4).bytes == 1


def test_formats_name_the_matrix_rate_they_compute_at() -> None:
    bases = {name: entry.base for name, entry in FORMATS.items() if entry.base != name}
    assert {name for name, base in bases.items() if base == "fp8"} == {"fp8_block", "mxfp8"}
    assert {name for name, base in bases.items() if base == "fp4"} == {"nvfp4", "mxfp4"}
    assert {name: base for name, base in bases.items() if base not in ("fp8", "fp4")} == {
        "fp16": "bf16",
        "q8_0": "int8",
        "q4_0": "int4",
        "int4_g32": "int4",
    }


def test_an_unknown_format_offers_near_ones() -> None:
    with pytest.raises(UnitError) as caught:
        format_named("fp7")
    assert str(caught.value) == "unknown format 'fp7'; did you mean 'fp8'?"
    with pytest.raises(UnitError, match="unknown format 'x'; known formats: fp32, bf16"):
        format_named("x")
    with pytest.raises(UnitError, match="expected the name of a format such as 'fp8', got 8"):
        format_named(8)


def test_suggestions_ignore_case_and_stay_quiet_when_nothing_is_near() -> None:
    assert did_you_mean("CLOCK", ["clock", "cores"]) == "; did you mean 'clock'?"
    assert did_you_mean("A40", ["l40s", "mi300x"]) == "; did you mean 'l40s'?"
    assert did_you_mean("qqq", ["clock"]) == ""
    assert did_you_mean("x" * 10**6, ["clock"]) == ""
    assert did_you_mean("a", []) == ""


def test_described_survives_huge_numbers() -> None:
    assert described(10**5000) == "a huge number"


FIELDS: list[tuple[Any, Any, Any]] = [
    (fields.Bandwidth, "3.35 TB/s", 3.35e12),
    (fields.DollarsPerHour, "2.95 USD/h", 2.95),
    (fields.DollarsPerKWh, "80 USD/MWh", 0.08),
    (fields.DollarsPerGB, "12 USD/GB", 12),
    (fields.DollarsPerMillionTokens, "0.5 USD/Mtok", 0.5),
    (fields.Fraction, 0, 0.0),
    (fields.Fraction, 1.0, 1.0),
    (fields.Positive, 2, 2.0),
    (fields.NonNegative, 0, 0.0),
    (fields.Count, 8, 8),
    (fields.Count, 1e9, 10**9),
    (fields.Count, 10**15, 10**15),
    (fields.Natural, 0, 0),
    (fields.FormatName, "mxfp4", "mxfp4"),
]


@pytest.mark.parametrize(("kind", "value", "result"), FIELDS)
def test_fields_read_values(kind: Any, value: Any, result: Any) -> None:
    found = TypeAdapter(kind).validate_python(value)
    assert found == pytest.approx(result) if isinstance(result, float) else found == result
    assert type(found) is type(result) or isinstance(found, float)


FIELD_FAULTS: list[tuple[Any, Any, str]] = [
    (fields.Fraction, 1.5, "expected a fraction between 0 and 1, got 1.5"),
    (fields.Fraction, True, "expected a fraction between 0 and 1, got true"),
    (fields.Fraction, "0.5", "expected a fraction between 0 and 1, got '0.5'"),
    (fields.Positive, 0, "expected a number above 0, got 0"),
    (fields.Positive, math.nan, "expected a number above 0, got nan"),
    (fields.Positive, 10**400, "expected a number above 0, got a huge number"),
    (fields.NonNegative, -1, "expected a number of at least 0, got -1"),
    (fields.Count, 0, "expected a whole number of at least 1, got 0"),
    (fields.Count, 2.5, "expected a whole number of at least 1, got 2.5"),
    (fields.Count, 1e20, "expected a whole number of at least 1, got 1e+20"),
    (fields.Count, "eight", "expected a whole number of at least 1, got 'eight'"),
    (fields.Count, False, "expected a whole number of at least 1, got false"),
    (fields.FormatName, "mxfp5", "unknown format 'mxfp5'; did you mean 'mxfp8' or 'mxfp4'?"),
    (fields.Hertz, 5, "expected a frequency such as '1.83 GHz', got 5 (a number without a unit)"),
]


@pytest.mark.parametrize(("kind", "value", "message"), FIELD_FAULTS)
def test_fields_refuse_in_whole_sentences(kind: Any, value: Any, message: str) -> None:
    with pytest.raises(ValidationError) as caught:
        TypeAdapter(kind).validate_python(value)
    assert str(caught.value.errors()[0]["ctx"]["error"]) == message


def test_quantities_document_themselves_in_the_json_schema() -> None:
    schema = TypeAdapter(fields.Bandwidth).json_schema()
    assert schema == {"type": "string", "description": "a bandwidth", "examples": ["3.35 TB/s"]}


def test_units_import_nothing_heavy() -> None:
    code = "import sys, archsim.units; print([m for m in ('pydantic', 'numpy', 'yaml') if m in sys.modules])"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"
