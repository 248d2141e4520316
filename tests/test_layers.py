"""Imports point one way, and starting the command loads nothing heavy."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "archsim"

# A room may import from the rows above its own, and in the first row from its neighbours too.
ROWS = [
    {"units", "arrays", "fields", "yamlmarks", "catalog", "sources"},
    {"chip", "workload"},  # what a machine is and what is computed know nothing of each other
    {"mapping"},
    {"engine"},
    {"economics"},
    {"serving"},
    {"explore"},
    {"validation"},
    {"report"},
    {"api"},
    {"__init__"},  # the package itself: it offers what api has
    {"cli"},
    {"__main__"},
]
RANK = {room: rank for rank, row in enumerate(ROWS) for room in row}
HEAVY = {"numpy", "pydantic", "plotly", "networkx", "yaml", "scipy"}


def allowed(room: str, target: str) -> bool:
    return room == target or RANK[target] < RANK[room] or RANK[target] == RANK[room] == 0


def imports(node: ast.AST, module: str) -> Iterator[tuple[int, str]]:
    """Line and dotted name of all that a module imports at run time, inside functions too.

    `module` is its dotted name, that of a package ending in `.__init__`: relative imports start from there.
    """
    if isinstance(node, ast.If) and ast.unparse(node.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING"):
        children: list[ast.AST] = list(node.orelse)
    else:
        children = list(ast.iter_child_nodes(node))
        yield from named(node, module)
    for child in children:
        yield from imports(child, module)


def named(node: ast.AST, module: str) -> Iterator[tuple[int, str]]:
    """What one statement or call imports; `from package import x` may mean the module `package.x`."""
    match node:
        case ast.Import(names=names):
            yield from ((node.lineno, alias.name) for alias in names)
        case ast.ImportFrom(names=names, module=source, level=level):
            base = module.split(".")[:-level] if level else []
            start = ".".join([*base, *([source] if source else [])])
            yield from ((node.lineno, f"{start}.{alias.name}") for alias in names)
        case ast.Call(func=function, args=[ast.Constant(value=str(target)), *_]):
            if ast.unparse(function).endswith("import_module"):
                yield node.lineno, target


def room_of(imported: str) -> str | None:
    """The room that a dotted name lies in, or None outside the package."""
    package, _, rest = imported.partition(".")
    if package != "archsim" or rest.startswith("__"):  # archsim.__version__ is there as soon as anything is
        return None
    room = rest.partition(".")[0]
    return room if room in RANK else "__init__"


def violations(source: str, module: str) -> list[str]:
    room = module.split(".")[1]
    found = [(line, name, room_of(name)) for line, name in imports(ast.parse(source), module)]
    return [
        f"line {line}: {room} imports {name}, which is not to its left"
        for line, name, target in found
        if target and not allowed(room, target)
    ]


def modules() -> dict[Path, str]:
    """Every file of the package with its dotted name."""
    files = sorted(PACKAGE.rglob("*.py"))
    return {file: ".".join(["archsim", *file.relative_to(PACKAGE).with_suffix("").parts]) for file in files}


def test_every_file_lies_in_a_known_room() -> None:
    known = modules()
    strangers = [str(file.relative_to(PACKAGE.parent)) for file in known if known[file].split(".")[1] not in RANK]
    assert known and not strangers, f"give them a place in ROWS and in docs/design.md: {strangers}"


def test_no_room_imports_from_its_right() -> None:
    found = [
        f"{file.relative_to(PACKAGE.parent)} {violation}"
        for file, name in modules().items()
        if name.split(".")[1] in RANK
        for violation in violations(file.read_text(encoding="utf-8"), name)
    ]
    assert not found, "\n".join(["", *found])


@pytest.mark.parametrize(
    ("module", "source", "count"),
    [
        ("archsim.engine.gpu", "from archsim.mapping.plan import Plan\nimport archsim.units, numpy", 0),
        ("archsim.engine.gpu", "from archsim import units, __version__\nfrom . import lanes", 0),
        ("archsim.engine.gpu", "def f():\n    from ..serving import play", 1),
        ("archsim.engine.gpu", "import importlib\nimportlib.import_module('archsim.report.html')", 1),
        ("archsim.engine.gpu", "from archsim import api, run", 2),
        ("archsim.engine.__init__", "from . import gpu\nfrom .. import cli", 1),
        ("archsim.chip.link", "import archsim.workload.model", 1),
        ("archsim.catalog", "from archsim.units import parse", 0),
        ("archsim.units", "if TYPE_CHECKING:\n    import archsim.api\nelse:\n    import archsim.cli", 1),
        ("archsim.__init__", "def __getattr__(name):\n    from archsim import api", 0),
    ],
)
def test_the_rule_itself(module: str, source: str, count: int) -> None:
    assert len(violations(source, module)) == count, violations(source, module)


def loaded_by(statement: str) -> set[str]:
    """The top-level modules that a fresh interpreter loads for a statement."""
    argv = [sys.executable, "-X", "importtime", "-c", statement]
    done = subprocess.run(argv, cwd=PACKAGE.parent, capture_output=True, text=True, timeout=60)
    lines = done.stderr.splitlines()
    timed = [line for line in lines if line.startswith("import time:")]
    assert done.returncode == 0, "\n".join(line for line in lines if line not in timed)
    return {line.rpartition("|")[2].strip().partition(".")[0] for line in timed}


def test_the_command_starts_without_anything_heavy() -> None:
    loaded = loaded_by("import archsim.cli")
    assert "archsim" in loaded and "typer" in loaded
    assert not loaded & HEAVY


def test_the_package_loads_without_plots_and_solvers() -> None:
    loaded = loaded_by("import archsim")
    assert "archsim" in loaded
    assert not loaded & {"plotly", "scipy", "pandas"}
