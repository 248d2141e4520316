"""Reading files: YAML's traps, positions, composition, schemas and search, and how every mistake reads."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, BeforeValidator, Field, model_validator

from archsim import catalog, yamlmarks
from archsim.catalog import (
    CatalogError,
    Document,
    FaultAt,
    Mark,
    StrictModel,
    read_text,
    validate,
)
from archsim.fields import Bandwidth, Bytes, Count, FormatName, Fraction, Hertz
from archsim.units import Format, format_named

Write = Callable[[str, str | bytes], Path]
FILE = Path("x.yaml")


@pytest.fixture(params=["libyaml", "python"])
def loader(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both loaders of PyYAML: a wheel without libyaml falls back to the second."""
    kind = getattr(yaml, "CSafeLoader", yaml.SafeLoader) if request.param == "libyaml" else yaml.SafeLoader
    monkeypatch.setattr(yamlmarks, "_LOADER", kind)


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Write]:
    """Writes files below a folder, which is also the current one and an empty installation."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(catalog, "_PACKAGE", tmp_path / "site" / "archsim")
    monkeypatch.setattr(catalog, "_added", [])
    monkeypatch.delenv(catalog.ENVIRONMENT, raising=False)

    def written(name: str, content: str | bytes) -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return Path(name)

    yield written


def faults_of(action: Callable[[], Any]) -> str:
    with pytest.raises(CatalogError) as caught:
        action()
    return str(caught.value)


def reading(text: str) -> str:
    return faults_of(lambda: read_text(text, FILE))


# Schemas


class Memory(StrictModel):
    capacity: Bytes
    bandwidth: Bandwidth | Literal["unlimited"]


class Gpu(StrictModel):
    kind: Literal["gpu"]
    cores: Count


class Lpu(StrictModel):
    kind: Literal["lpu"]
    lanes: int
    share: Fraction = 1.0


class Style(Enum):
    WIDE = "wide"
    NARROW = "narrow"


class Chip(StrictModel):
    name: str
    clock: Hertz
    memory: Memory
    units: tuple[Annotated[Gpu | Lpu, Field(discriminator="kind")], ...] = ()
    split: int | dict[str, Count] | Literal["auto"] = 1
    style: Style = Style.WIDE
    formats: dict[str, FormatName] = Field(default_factory=dict)
    width: Annotated[Format | None, BeforeValidator(format_named)] = None
    source: str = Field(default="", alias="from")
    near: list[Memory | str] = Field(default_factory=list)

    @model_validator(mode="after")
    def _named(self) -> Chip:
        if self.name == "nameless":
            raise FaultAt("a chip needs a name", "name")
        return self


VALID = """name: A
clock: 1.83 GHz
memory: {capacity: 80 GB, bandwidth: 3.35 TB/s}
units: [{kind: gpu, cores: 132}, {kind: lpu, lanes: 3}]
formats: {kv: fp8}
width: mxfp4
style: narrow
from: datasheet
"""


def test_a_valid_file_becomes_a_frozen_model_in_si() -> None:
    chip = validate(Chip, read_text(VALID, FILE))
    assert (chip.clock, chip.memory.capacity, chip.memory.bandwidth) == (1.83e9, 80e9, 3.35e12)
    assert isinstance(chip.units, tuple) and chip.units[0] == Gpu(kind="gpu", cores=132)
    assert chip.style is Style.NARROW and chip.source == "datasheet"
    assert chip.width is not None and chip.width.bits == 4
    with pytest.raises(ValueError, match="frozen"):
        chip.name = "B"


MISTAKES = [
    ("clock: 1.83 GHz", "clok: 1.83 GHz", "2:1: unknown key 'clok'; did you mean 'clock'?"),
    ("clock: 1.83 GHz", "clok: 1.83 GHz", "1:1: missing key 'clock'"),
    ("clock: 1.83 GHz", "qqqqqq: 1", "2:1: unknown key 'qqqqqq'; known keys: name, clock, memory, units, "),
    ("{capacity: 80 GB, ", "{", "3:1: missing key 'capacity'"),
    ("capacity: 80 GB", "capcity: 80 GB", "3:10: unknown key 'capcity'; did you mean 'capacity'?"),
    ("80 GB", "80", "3:20: expected a size such as '80 GB', got 80 (a number without a unit)"),
    ("3.35 TB/s", "3 GB", "3:38: expected a bandwidth such as '3.35 TB/s' or 'unlimited', got '3 GB'"),
    ("name: A", "name: 2026", "1:7: expected text, got 2026 (write it in quotes)"),
    ("name: A", "name:", "1:6: expected text, got nothing"),
    ("name: A", "name: nameless", "1:7: a chip needs a name"),
    ("lanes: 3", "lanes: eight", "4:53: expected a whole number, got 'eight'"),
    ("lanes: 3", "lanes: true", "4:53: expected a whole number, got true"),
    ("lanes: 3", "lanes: 3.0", "4:53: expected a whole number, got 3.0"),
    ("lanes: 3", "lane: 3", "4:46: unknown key 'lane'; did you mean 'lanes'?"),
    ("lanes: 3", "cores: 3, lanes: 3", "4:46: unknown key 'cores'; known keys: kind, lanes, share"),
    ("cores: 132", "cores: '132'", "4:28: expected a whole number of at least 1, got '132'"),
    ("kind: gpu", "kind: gpuu", "4:16: expected 'gpu' or 'lpu', got 'gpuu'; did you mean 'gpu'?"),
    ("kind: gpu, ", "", "4:9: missing key 'kind'"),
    ("units: [{", "units: 3 #", "4:8: expected a list, got 3"),
    ("memory: {", "memory: 3 #", "3:9: expected a mapping, got 3"),
    ("kv: fp8", "kv: fp7", "5:15: unknown format 'fp7'; did you mean 'fp8'?"),
    ("mxfp4", "mxfp", "6:8: unknown format 'mxfp'; did you mean 'mxfp8' or 'mxfp4'?"),
    ("style: narrow", "style: na", "7:8: expected 'wide' or 'narrow', got 'na'"),
    ("narrow", "narow", "7:8: expected 'wide' or 'narrow', got 'narow'; did you mean 'narrow'?"),
    ("style: narrow", "split: 1.5", "7:8: expected a whole number or a mapping or 'auto', got 1.5"),
    ("style: narrow", "split: {a: 0}", "7:12: expected a whole number of at least 1, got 0"),
    ("style: narrow", "near: [{capacity: 1 GB}]", "7:8: missing key 'bandwidth'"),
    ("style: narrow", "near: [3]", "7:8: expected a mapping or text, got 3"),
]


@pytest.mark.parametrize(("old", "new", "expected"), MISTAKES, ids=[f"{new}" for _, new, _ in MISTAKES])
def test_mistakes_are_explained_where_they_stand(old: str, new: str, expected: str) -> None:
    assert old in VALID
    message = faults_of(lambda: validate(Chip, read_text(VALID.replace(old, new, 1), FILE)))
    assert any(line.startswith(f"x.yaml:{expected}") for line in message.splitlines()), message
    for jargon in ("Input", "pydantic", "Value error", "http", "type="):
        assert jargon not in message


def test_data_without_a_file_is_located_by_its_path() -> None:
    data = {"name": "A", "clock": "1 GHz", "memory": {"capacity": "1 GB", "bandwidth": 3}}
    message = faults_of(lambda: validate(Chip, Document(Path("<python>"), data, {})))
    assert message.startswith("<python>: memory.bandwidth: expected a bandwidth such as")


@settings(max_examples=50)
@given(st.floats(allow_nan=False, allow_infinity=False), st.integers(-(2**70), 2**70), st.text())
def test_numbers_and_texts_reach_the_model_unchanged(real: float, whole: int, text: str) -> None:
    class Plain(StrictModel):
        real: float
        whole: int
        text: str

    document = Document(FILE, {"real": real, "whole": whole, "text": text}, {})
    assert validate(Plain, document).model_dump() == document.data


# extends and set


def resolved(write: Write, text: str, **others: str) -> Document:
    for name, content in others.items():
        write(f"site/archsim/chips/{name}.yaml", content)
    write("site/archsim/chips/child.yaml", text)
    return catalog.fetch("chips", "child")


PARENT = "name: P\nmemory:\n  capacity: 80 GB\n  parts: [1, 2]\nkernels: {llama.cpp: {x: 1}}\n"


def test_extends_merges_mappings_and_replaces_lists(write: Write) -> None:
    child = "extends: parent\nmemory: {capacity: 40 GB, parts: [3]}\n"
    child += "set: {kernels.llama.cpp.x: 2, memory.parts.0: 9}\n"
    document = resolved(write, child, parent=PARENT)
    assert document.data == {
        "name": "P",
        "memory": {"capacity": "40 GB", "parts": [9]},
        "kernels": {"llama.cpp": {"x": 2}},
    }
    folder = "site/archsim/chips"
    assert document.mark("name") == Mark(f"{folder}/parent.yaml", 1, 7, 1, 1)
    assert document.mark("memory", "capacity") == Mark(f"{folder}/child.yaml", 2, 20, 2, 10)
    assert document.mark("kernels", "llama.cpp", "x") == Mark(f"{folder}/child.yaml", 3, 28, 3, 7)
    assert document.mark("memory").file == f"{folder}/child.yaml"
    assert set(document.marks) == {
        (),
        *[path for path in document.marks if path and path[0] in document.data],
    }


RESOLVE_FAULTS = [
    (
        "extends: parent\nset: {memory.capcity: 1}\n",
        ":2:7: there is no 'memory.capcity' to set; did you mean 'memory.capacity'?",
    ),
    (
        "extends: parent\nset: {memry.capacity: 1}\n",
        ":2:7: there is no 'memry.capacity' to set; did you mean 'memory.capacity'?",
    ),
    ("extends: parent\nset: {name.x: 1}\n", ":2:7: there is no 'name.x' to set"),
    (
        "extends: parent\nset: {memory.parts.2: 1}\n",
        ":2:7: there is no 'memory.parts.2' to set; did you mean 'memory.parts.1' or 'memory.parts.0'?",
    ),
    ("extends: parent\nset: 3\n", ":2:6: expected a mapping of dotted paths to values, got 3"),
    ("extends: parnt\n", ":1:10: unknown chip 'parnt'; did you mean 'parent'?"),
    ("extends: [a]\n", ":1:10: expected the name or path of a file to extend, got a list"),
    ("extends: child\n", ":1:10: extends goes in a circle: site/archsim/chips/child.yaml -> "),
    ("extends: ./nope.yaml\n", ":1:10: no such file './nope.yaml'"),
]


@pytest.mark.parametrize(("text", "expected"), RESOLVE_FAULTS, ids=[text for text, _ in RESOLVE_FAULTS])
def test_faults_of_extends_and_set(write: Write, text: str, expected: str) -> None:
    message = faults_of(lambda: resolved(write, text, parent=PARENT))
    assert message.startswith(f"site/archsim/chips/child.yaml{expected}")


def test_set_may_not_nest_deeper_than_a_file_may() -> None:
    deep = f"{'[' * 40}{']' * 40}"
    document = read_text(f"a: {deep}\nset: {{a{'.0' * 20}: {deep}}}\n", FILE)
    assert "nests values deeper than 50 levels" in faults_of(lambda: catalog.resolve(document, lambda *_: FILE))


def test_extends_may_not_go_deeper_than_ten_files(write: Write) -> None:
    chain = {f"c{n}": f"extends: c{n + 1}\n" for n in range(12)} | {"c12": "a: 1\n"}
    assert "extends goes more than 10 files deep" in faults_of(lambda: resolved(write, "extends: c0\n", **chain))
    assert resolved(write, "extends: c3\n", **chain).data == {"a": 1}


def test_a_fault_in_a_parent_points_into_the_parent(write: Write) -> None:
    resolved(write, "extends: parent\nname: B\n", parent=VALID.replace("1.83 GHz", "1.83"))
    message = faults_of(lambda: catalog.load("chips", "child", Chip))
    assert message.startswith("site/archsim/chips/parent.yaml:2:8: expected a frequency")


# Search


def test_files_are_found_by_path_name_or_last_part(write: Write) -> None:
    write("site/archsim/chips/nvidia/h100.yaml", VALID)
    write("site/archsim/chips/generations/hopper.yaml", "a: 1")
    mine = write("mine/my.yaml", VALID).resolve()
    full = Path("site/archsim/chips/nvidia/h100.yaml").resolve()
    assert catalog.names("chips") == ["nvidia/h100"]
    assert catalog.names("chips/generations") == ["hopper"]
    for name in (
        "h100",
        "nvidia/h100",
        "chips/nvidia/h100.yaml",
        "site/archsim/chips/nvidia/h100.yaml",
        str(full),
    ):
        assert catalog.find("chips", name) == full
    assert catalog.find("chips", "mine/my.yaml") == mine
    assert catalog.find("chips", "my.yaml", Mark("mine/other.yaml", 1, 1, 1, 1)) == mine
    assert catalog.load("chips", "h100", Chip).name == "A"


def test_unknown_names_suggest_near_ones_or_list_what_exists(write: Write) -> None:
    assert faults_of(lambda: catalog.find("mappers", "auto")).endswith(
        "unknown mapper 'auto'; no catalogue folder has any"
    )
    for name in ("nvidia/l40s", "nvidia/h100", "amd/h100", "amd/mi300x"):
        write(f"site/archsim/chips/{name}.yaml", VALID)
    assert faults_of(lambda: catalog.find("chips", "L40")) == "L40: unknown chip 'L40'; did you mean 'l40s'?"
    mark = Mark("s.yaml", 3, 9, 3, 3)
    assert faults_of(lambda: catalog.find("chips", "zzz", mark)) == (
        "s.yaml:3:9: unknown chip 'zzz'; known: amd/h100, amd/mi300x, nvidia/h100, nvidia/l40s"
    )
    ambiguous = faults_of(lambda: catalog.find("chips", "h100", mark))
    assert ambiguous == "s.yaml:3:9: chip 'h100' is ambiguous: write 'amd/h100' or 'nvidia/h100'"
    assert faults_of(lambda: catalog.find("chips", "./l40.yaml")).startswith("./l40.yaml: no such file './l40.yaml'")


@pytest.mark.parametrize("name", ["", ".", "/", "~nobody/x", "a\0b", "x" * 5000, "../..", "*", "[", "nvidia"])
def test_odd_names_are_faults_not_crashes(write: Write, name: str) -> None:
    write("site/archsim/chips/nvidia/h100.yaml", VALID)
    faults_of(lambda: catalog.find("chips", name))


def test_user_folders_come_first_and_may_extend_what_they_shadow(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    write("site/archsim/chips/nvidia/h100.yaml", VALID)
    write("env/chips/nvidia/h100.yaml", "extends: nvidia/h100\nname: env\n")
    write("added/chips/own.yaml", VALID)
    monkeypatch.setenv(catalog.ENVIRONMENT, f"env{os.pathsep}")
    catalog.add_catalog("added")
    assert [root.parent.name for root in catalog.roots("chips")] == ["added", "env", "archsim"]
    assert catalog.names("chips") == ["nvidia/h100", "own"]
    assert catalog.load("chips", "h100", Chip).name == "env"
    monkeypatch.setenv(catalog.ENVIRONMENT, "gone")
    assert faults_of(lambda: catalog.roots("chips")) == "gone: no such folder, named by ARCHSIM_CATALOG"
    assert faults_of(lambda: catalog.add_catalog("nope")) == "nope: no such catalogue folder"


def test_a_checkout_keeps_its_catalogue_beside_the_package(write: Write) -> None:
    write("site/pyproject.toml", "")
    write("site/chips/a.yaml", VALID)
    assert catalog.names("chips") == ["a"]


# Whatever comes


TOKENS = [
    *"{}[]:'\n\t!|#%@,0é\\",
    '"',
    "- ",
    "&a ",
    "*a",
    "  ",
    "? ",
    "1e9",
    "<<",
    "kind",
    "null",
    "--- ",
    "...",
]
TOKENS += ["extends: x.yaml\n", "set: {name: 1}\n", ".nan", "\ufeff", "\x00"]
EDITS = st.tuples(st.integers(0, len(VALID)), st.integers(0, 12), st.sampled_from(TOKENS))


@settings(max_examples=80, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(EDITS, max_size=4))
def test_mutations_raise_nothing_but_catalog_errors(loader: None, edits: list[tuple[int, int, str]]) -> None:
    text = VALID
    for start, length, token in edits:
        text = text[:start] + token + text[start + length :]
    try:
        catalog.validate(Chip, catalog.resolve(read_text(text, FILE), lambda name, _: Path(name)))
    except CatalogError as error:
        assert error.faults and str(error)


def test_models_without_the_strict_base_still_give_plain_messages() -> None:
    class Loose(BaseModel):
        size: Annotated[int, Field(gt=3)]
        names: Annotated[list[str], Field(min_length=2)]

        tiles: Literal[1, 2, "auto"] = 1

    tiles = faults_of(lambda: validate(Loose, read_text("size: 4\nnames: [a, b]\ntiles: aut\n", FILE)))
    assert tiles == "x.yaml:3:8: expected 1 or 2 or 'auto', got 'aut'; did you mean 'auto'?"
    size, names = faults_of(lambda: validate(Loose, read_text("size: 2\nnames: [a]\n", FILE))).splitlines()
    assert size == "x.yaml:1:7: expected a number above 3, got 2"
    assert names == "x.yaml:2:8: expected at least 2 items, got a list"
