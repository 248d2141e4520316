"""Reading YAML: the traps of version 1.1, positions, limits, and how every refusal reads."""

from __future__ import annotations

import pickle
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from archsim import yamlmarks
from archsim.yamlmarks import CatalogError, Fault, Mark, read, read_text

FILE = Path("x.yaml")


@pytest.fixture(params=["libyaml", "python"])
def loader(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both loaders of PyYAML: a wheel without libyaml falls back to the second."""
    kind = getattr(yaml, "CSafeLoader", yaml.SafeLoader) if request.param == "libyaml" else yaml.SafeLoader
    monkeypatch.setattr(yamlmarks, "_LOADER", kind)


def faults_of(action: Callable[[], Any]) -> str:
    with pytest.raises(CatalogError) as caught:
        action()
    return str(caught.value)


def reading(text: str) -> str:
    return faults_of(lambda: read_text(text, FILE))


def test_scalars_follow_a_strict_core_schema(loader: None) -> None:
    data = read_text(
        "words: [yes, no, on, off, True, NULL, y]\n"
        "booleans: [true, false, null, ~]\n"
        "texts: [017, 12:30:45, 0x10, 1_000, 2026-05-01, 2026-05, nan, .e5, 1e, '1', \"true\", 08]\n"
        "numbers: [0, -3, +4, 1e9, 1.5, .5, 5., 0.1e-3, -0.0]\nnothing:\n",
        FILE,
    ).data
    assert data["words"] == ["yes", "no", "on", "off", "True", "NULL", "y"]
    assert data["booleans"] == [True, False, None, None]
    assert data["texts"] == (
        ["017", "12:30:45", "0x10", "1_000", "2026-05-01", "2026-05", "nan", ".e5", "1e", "1", "true", "08"]
    )
    assert data["numbers"] == [0, -3, 4, 1e9, 1.5, 0.5, 5.0, 1e-4, 0.0]
    assert [type(number) for number in data["numbers"][:5]] == [int, int, int, float, float]
    assert data["nothing"] is None


def test_every_value_and_key_has_a_position_in_characters(loader: None) -> None:
    marks = read_text("é: 'ü'\nüü: {a: é, b: [x, y]}\nz:\n  - k: v\n", FILE).marks
    assert marks[("é",)] == Mark("x.yaml", 1, 4, 1, 1)
    assert marks[("üü", "b")] == Mark("x.yaml", 2, 15, 2, 12)
    assert marks[("üü", "b", 1)] == Mark("x.yaml", 2, 19, 2, 19)
    assert marks[("z", 0, "k")] == Mark("x.yaml", 4, 8, 4, 5)


NOT_VALID = "x.yaml:{}: this is not valid YAML: "
REFUSED = [
    ("", "x.yaml:1:1: the file is empty"),
    ("# only a comment\n", "x.yaml:1:1: the file is empty"),
    ("---\n", "x.yaml:1:1: the file is empty"),
    ("- 1\n", "x.yaml:1:1: expected a mapping of keys to values at the top level, got a list"),
    ("hello\n", "x.yaml:1:1: expected a mapping of keys to values at the top level, got a single value"),
    ("a: 1\n---\nb: 2\n", "x.yaml:2:1: a second document starts here; a file holds one"),
    ("a: 1\nb: 2\na: 3\n", "x.yaml:3:1: duplicate key 'a'; it is first given on line 1"),
    ("a: {b: 1, 'b': 2}\n", "x.yaml:1:11: duplicate key 'b'; it is first given on line 1"),
    ("x: {a: 1}\ny:\n  <<: {b: 1}\n", "x.yaml:3:3: merge keys '<<' are not supported; use 'extends:'"),
    (
        "a: !!python/name:os.system x\n",
        "x.yaml:1:4: YAML tags such as 'tag:yaml.org,2002:python/name:os.system' are not",
    ),
    (
        "1: a\ntrue: b\n",
        "x.yaml:1:1: a key must be text; write it in quotes: '1'\nx.yaml:2:1: a key must be text",
    ),
    ("? [a]\n: 1\n", "x.yaml:1:3: a key must be text, not a list or a mapping"),
    (
        "a: .nan\nb: -.inf\n",
        "x.yaml:1:4: a number must be finite, got .nan\nx.yaml:2:4: a number must be finite, got",
    ),
    ("a: 1e999\n", "x.yaml:1:4: the number is too large or too long (5 characters)"),
    (f"a: {'9' * 10_000}\n", "x.yaml:1:4: the number is too large or too long (10000 characters)"),
    (f"a: {'9' * 310}\n", "x.yaml:1:4: the number is too large or too long (310 characters)"),
    ("a: *b\n", "x.yaml:1:4: the alias '*b' has no finished anchor '&b' before it"),
    ("a: &b [*b]\n", "x.yaml:1:8: the alias '*b' has no finished anchor '&b' before it"),
    ("a: " + "[\n" * 100_000, "x.yaml:50:1: the file is nested deeper than 50 levels"),
    ("a: " + "- " * 100_000, "x.yaml:1:4: this is not valid YAML"),
    ("a: " + "[" * 500, "x.yaml:1:"),
    ("a:\n\tb: 1\n", NOT_VALID.format("2:1") + "found character"),
    ("a: b: c\n", NOT_VALID.format("1:5") + "mapping values are not allowed"),
    ("a: [1, 2\nb: 3\n", NOT_VALID.format("2:2")),
    ('a: "\\0"\n', "x.yaml:1:4: the text holds the character U+0000"),
    ('a: "\\ud800"\n', "x.yaml:1:"),
    ('a: "\\UFFFFFFFF"\n', "x.yaml:1:"),
    ("%YAML 1." + "9" * 5000 + "\n---\na: 1\n", "x.yaml:1:"),
    ("a: b\nc: \x07\n", "x.yaml:2:4: the file is not plain text: it holds the character U+0007"),
]


@pytest.mark.parametrize(("text", "beginning"), REFUSED, ids=[text[:20] for text, _ in REFUSED])
def test_bad_yaml_is_refused_with_its_position(loader: None, text: str, beginning: str) -> None:
    assert reading(text).startswith(beginning)


def test_an_open_bracket_is_named_with_its_line(loader: None) -> None:
    assert "while parsing a flow sequence that starts on line 1" in reading("a: [1, 2\nb: 3\n")


def test_all_faults_of_a_file_come_at_once_in_order() -> None:
    lines = reading("a: .inf\na: 1\n3: x\n").splitlines()
    assert [line.split(" ")[0] for line in lines] == ["x.yaml:1:4:", "x.yaml:2:1:", "x.yaml:3:1:"]


def test_aliases_repeat_what_they_name_but_cannot_explode(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(yamlmarks, "MAX_NODES", 5000)
    document = read_text("a: &x [1, {b: 2}]\nc: *x\n", FILE)
    assert document.data["c"] == document.data["a"]
    assert document.mark("c", 1, "b") == Mark("x.yaml", 1, 15, 1, 12)
    bomb = "a: &a [x,x,x,x,x,x,x,x,x,x]\n"
    for before, after in zip("abcdefg", "bcdefgh", strict=True):
        bomb += f"{after}: &{after} [{','.join([f'*{before}'] * 10)}]\n"
    assert "more than 5000 values, aliases expanded" in reading(bomb)


def test_files_that_cannot_be_read_are_faults(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("folder").mkdir()
    Path("latin.yaml").write_bytes(b"a: 1\nb: \xe9\n")
    Path("huge.yaml").write_bytes(b"#" * 5_000_001)
    Path("bom.yaml").write_bytes(b"\xef\xbb\xbfa: 1\r\n")
    assert faults_of(lambda: read(Path("nope.yaml"))) == "nope.yaml: no such file"
    assert faults_of(lambda: read(tmp_path / "nope.yaml")) == "nope.yaml: no such file"
    assert faults_of(lambda: read(Path("folder"))) == "folder: expected a file, this is a folder"
    assert faults_of(lambda: read(Path("latin.yaml"))) == "latin.yaml:2:4: the file is not UTF-8 text"
    assert faults_of(lambda: read(Path("huge.yaml"))) == "huge.yaml: the file is larger than 5 MB"
    assert "cannot be read" in faults_of(lambda: read(Path("a\0b")))
    assert "cannot be read" in faults_of(lambda: read(Path("x" * 5000)))
    assert read(Path("bom.yaml")).data == {"a": 1}


def test_a_part_of_a_document_is_a_document_with_its_positions() -> None:
    document = read_text("pools: [{chip: {clock: 3}}]\n", FILE).at("pools", 0, "chip")
    assert (document.data, document.mark("clock").column) == ({"clock": 3}, 24)
    message = faults_of(lambda: document.at("clock"))
    assert message == "x.yaml:1:24: expected a mapping at 'clock'"


def test_faults_sort_by_position_and_come_once() -> None:
    first, second = Fault("a.yaml", 2, 1, "x"), Fault("a.yaml", 10, 1, "x")
    assert CatalogError([second, first, second]).faults == (first, second)


@settings(max_examples=80)
@given(st.binary(max_size=60))
def test_random_bytes_raise_nothing_but_catalog_errors(raw: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "x.yaml"
        path.write_bytes(raw)
        try:
            read(path)
        except CatalogError as error:
            assert error.faults and pickle.loads(pickle.dumps(error)).faults == error.faults
