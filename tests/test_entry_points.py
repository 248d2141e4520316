"""Installed distributions offer catalogue folders by entry points; one that fails is a fault, never skipped."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from archsim import catalog
from archsim.catalog import CatalogError, add_catalog, find, names, roots
from archsim.chip.schema import load_chip
from archsim.cli import app

OURS = ("mychips", "alpha", "zeta")
CHIP = "extends: nvidia/h100-sxm\nname: {name}\n"
Install = Callable[..., Path]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """A fake distribution on sys.path: its module, and the value of its entry point."""

    def installed(value: str, source: str, name: str = "mychips") -> Path:
        site = tmp_path / "site"
        info = site / f"{name}-1.0.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n", encoding="utf-8")
        (info / "entry_points.txt").write_text(f"[archsim.catalog]\n{name} = {value}\n", encoding="utf-8")
        (site / f"{name}_data.py").write_text(source, encoding="utf-8")
        folder = tmp_path / name
        (folder / "chips" / "acme").mkdir(parents=True)
        (folder / "chips" / "acme" / "one.yaml").write_text(CHIP.format(name=f"One of {name}"), encoding="utf-8")
        monkeypatch.syspath_prepend(str(site))
        catalog._offered.cache_clear()
        return folder

    monkeypatch.setattr(catalog, "_added", [])
    monkeypatch.delenv(catalog.ENVIRONMENT, raising=False)
    yield installed
    monkeypatch.undo()
    for module in [module for module in sys.modules if module.endswith("_data") and module.partition("_")[0] in OURS]:
        del sys.modules[module]
    catalog._offered.cache_clear()


@pytest.mark.parametrize(
    ("value", "source"),
    [
        ("mychips_data:FOLDER", "FOLDER = {folder!r}"),
        ("mychips_data:folder", "def folder():\n    return {folder!r}"),
        ("mychips_data:PATH", "import pathlib\nPATH = pathlib.Path({folder!r})"),
    ],
    ids=["text", "function", "path"],
)
def test_a_folder_is_found_by_the_same_route(install: Install, tmp_path: Path, value: str, source: str) -> None:
    folder = install(value, source.format(folder=str(tmp_path / "mychips")))
    assert "acme/one" in names("chips")
    assert find("chips", "one") == (folder / "chips" / "acme" / "one.yaml").resolve()
    chip = load_chip("acme/one")
    assert chip.name == "One of mychips" and chip.memory.bandwidth > 0
    assert "One of mychips" in CliRunner().invoke(app, ["chips"]).stdout


def test_users_come_first_and_what_is_built_in_last(install: Install, tmp_path: Path) -> None:
    folder = install("mychips_data:FOLDER", f"FOLDER = {str(tmp_path / 'mychips')!r}")
    mine = tmp_path / "mine"
    (mine / "chips").mkdir(parents=True)
    add_catalog(mine)
    found = roots("chips")
    assert found[:2] == [(mine / "chips").resolve(), (folder / "chips").resolve()]
    assert len(found) == 3


def test_several_come_in_the_order_of_their_names(install: Install, tmp_path: Path) -> None:
    for name in ("zeta", "alpha"):
        (tmp_path / "site").mkdir(exist_ok=True)
        install(f"{name}_data:FOLDER", f"FOLDER = {str(tmp_path / name)!r}", name)
    assert [root.parent.name for root in roots("chips")[:2]] == ["alpha", "zeta"]
    assert load_chip("acme/one").name == "One of alpha"


@pytest.mark.parametrize(
    ("value", "source", "says"),
    [
        ("mychips_data:FOLDER", "FOLDER = 'nowhere'", "no such folder"),
        ("mychips_data:FOLDER", "FOLDER = 3", "expected the path of a folder, got 3"),
        ("mychips_data:LOST", "FOLDER = ''", "AttributeError"),
        ("other_module:FOLDER", "", "ModuleNotFoundError"),
        ("mychips_data:folder", "def folder():\n    raise RuntimeError('broken')", "RuntimeError: broken"),
    ],
)
def test_one_that_fails_is_a_fault(install: Install, value: str, source: str, says: str) -> None:
    install(value, source)
    with pytest.raises(CatalogError) as refused:
        names("chips")
    assert "entry point 'mychips' of archsim.catalog" in str(refused.value) and says in str(refused.value)
    done = CliRunner().invoke(app, ["chips", "show", "nvidia/h100-sxm"])
    assert done.exit_code == 2 and says in done.stderr


def test_without_any_nothing_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catalog, "entry_points", lambda group: [])
    catalog._offered.cache_clear()
    assert catalog._offered() == ()
    catalog._offered.cache_clear()
