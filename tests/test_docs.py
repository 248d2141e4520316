"""The pages are true: what they take from the program is up to date, and what they show works."""

import importlib
import re
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from archsim.catalog import CatalogError, add_catalog
from archsim.chip.schema import load_chip
from archsim.explore.design import load_problem
from archsim.explore.scenario import load_scenario
from archsim.mapping.mapper import load_mapper
from archsim.mapping.runtime import load_runtime
from archsim.workload.importer import import_config
from archsim.workload.schema import load_model

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
LOADERS: dict[str, Callable[[str], object]] = {
    "chips/": load_chip,
    "workloads/": load_model,
    "mappers/runtimes/": load_runtime,
    "mappers/": load_mapper,
    "examples/designs/": load_problem,
    "examples/": load_scenario,
}
FENCED = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)


def of_docs(name: str) -> ModuleType:
    """A module of docs/, which is no package."""
    folder = str(ROOT / "docs")
    if folder not in sys.path:
        sys.path.insert(0, folder)
    return importlib.import_module(name)


def page_id(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.fixture
def own_catalog(monkeypatch: pytest.MonkeyPatch) -> None:
    """Folders that a page adds are forgotten afterwards."""
    monkeypatch.setattr("archsim.catalog._added", [])


@pytest.mark.usefixtures("own_catalog")
@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_tables_snippets_and_python_outputs_are_up_to_date(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert of_docs("generate").page(text, commands=False) == text, "run `python docs/generate.py`, then read the diff"


@pytest.mark.slow
@pytest.mark.usefixtures("own_catalog")
@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_outputs_of_commands_are_up_to_date(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert of_docs("generate").page(text) == text, "run `python docs/generate.py`, then read the diff"


def test_every_key_has_one_meaning() -> None:
    tables, notes = of_docs("tables"), of_docs("notes").NOTES
    keys = {
        f"{name}.{key}": field
        for name, model in tables.CLASSES.items()
        for key, field in tables.own_fields(model).items()
    }
    described = {key for key, field in keys.items() if field.description}
    assert keys.keys() - described - notes.keys() == set(), "give these a description in their schema"
    assert notes.keys() - (keys.keys() - described) == set(), "these notes of docs/notes.py are not needed"


def test_every_schema_has_its_table() -> None:
    text = (ROOT / "docs" / "files.md").read_text(encoding="utf-8")
    missing = [name for name in of_docs("tables").CLASSES if f"<!-- begin fields {name} -->" not in text]
    assert not missing, f"docs/files.md lacks a region `fields` for {missing}"


def anchors(page: Path) -> set[str]:
    """The anchors that a page offers, as GitHub makes them of its headings."""
    text = FENCED.sub("", page.read_text(encoding="utf-8"))
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_links_lead_somewhere(page: Path) -> None:
    text = FENCED.sub("", page.read_text(encoding="utf-8"))
    broken = []
    for link in re.findall(r"\]\(([^)\s]+)\)", text):
        name, _, anchor = link.partition("#")
        target = (page.parent / name).resolve() if name else page
        if re.match(r"https?:", link):
            continue
        if not target.exists() or (anchor and anchor not in anchors(target)):
            broken.append(link)
    assert not broken, f"{page_id(page)} links to {broken}"


def test_files_of_the_code_that_pages_name_exist() -> None:
    lost = []
    for page in PAGES:
        for name in re.findall(r"(?<![\w/.-])(?:archsim/)?[a-z_]+/[a-z_]+\.py\b", page.read_text(encoding="utf-8")):
            if name.startswith("mine/") or (ROOT / name).exists() or (ROOT / "archsim" / name).exists():
                continue
            lost.append(f"{page_id(page)}: {name}")
    assert not lost, "\n".join(["", *lost])


def test_the_design_names_every_room() -> None:
    text = (ROOT / "docs" / "design.md").read_text(encoding="utf-8")
    rooms = {path.stem for path in (ROOT / "archsim").iterdir() if path.is_dir() or path.suffix == ".py"}
    unnamed = [room for room in rooms if not room.startswith("_") and room not in text]
    assert not unnamed, f"docs/design.md says nothing of {unnamed}"


def yaml_files(page: Path) -> dict[str, str]:
    """The YAML files that a page shows, by the name in their first line."""
    generate = of_docs("generate")
    blocks = [
        block["body"]
        for block in generate.BLOCK.finditer(page.read_text(encoding="utf-8"))
        if block["language"] == "yaml"
    ]
    named = {generate.named_file(body): body for body in blocks}
    assert None not in named, (
        f"a ```yaml block of {page_id(page)} does not start with `# its/name.yaml`:\n{named.get(None)}"
    )
    return {name: body for name, body in named.items() if name}


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_yaml_of_shipped_files_is_cut_from_them(page: Path) -> None:
    for name, body in yaml_files(page).items():
        if (ROOT / name).exists():
            shown = body.split("\n", 1)[1]
            assert (ROOT / name).read_text(encoding="utf-8").startswith(shown), f"{page_id(page)} shows another {name}"


@pytest.mark.usefixtures("own_catalog")
@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_yaml_of_ones_own_validates(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All but those that the page itself says are refused."""
    monkeypatch.chdir(tmp_path)
    own = {name: body for name, body in yaml_files(page).items() if not (ROOT / name).exists()}
    text = page.read_text(encoding="utf-8")
    for block in of_docs("generate").BLOCK.finditer(text):
        if block["language"] in ("yaml", "python") and (name := of_docs("generate").named_file(block["body"])):
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_text(block["body"], encoding="utf-8")
    for folder in {Path(name).parts[0] for name in own}:
        add_catalog(folder)
    refused = re.findall(r"^\$ archsim .*? (\S+) +# exits with 2$", text, re.MULTILINE)
    for name in own:
        loader = next(load for folder, load in LOADERS.items() if folder in name)
        if Path(name).stem in refused:
            with pytest.raises(CatalogError):
                loader(name)
        else:
            loader(name)


@pytest.mark.usefixtures("own_catalog")
def test_the_imported_file_of_the_tutorial_is_what_import_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    generate = of_docs("generate")
    blocks = list(generate.BLOCK.finditer((ROOT / "docs" / "tutorial.md").read_text(encoding="utf-8")))
    monkeypatch.chdir(tmp_path)
    exec(next(block["body"] for block in blocks if "write_text(json.dumps(config" in block["body"]), {})
    shown = next(block["body"] for block in blocks if block["body"].startswith("# mine/workloads/small-moe.yaml\n"))
    assert shown.partition("\n")[2] == import_config("config.json").text
