"""The code stays short and explained: measured, so that no reviewer has to ask for it."""

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parent.parent
FILES = sorted((ROOT / "archsim").rglob("*.py"))

Function = ast.FunctionDef | ast.AsyncFunctionDef
Documented = Function | ast.ClassDef | ast.Module


@cache
def tree(file: Path) -> ast.Module:
    return ast.parse(file.read_text(encoding="utf-8"), str(file))


def functions() -> Iterator[tuple[Path, Function]]:
    """Every function of the package, nested ones and methods too."""
    for file in FILES:
        for node in ast.walk(tree(file)):
            if isinstance(node, Function):
                yield file, node


def length(function: Function) -> int:
    """Its lines from `def` to its last, docstring and comments included."""
    return (function.end_lineno or function.lineno) - function.lineno + 1


def place(file: Path, node: ast.stmt | ast.expr) -> str:
    return f"{file.relative_to(ROOT)}:{node.lineno}"


def report(offenders: list[str]) -> str:
    return "\n".join(["", *offenders])


def test_there_is_something_to_measure() -> None:
    assert FILES


def test_nearly_all_functions_fit_in_30_lines() -> None:
    lengths = {f"{place(file, f)} {f.name}": length(f) for file, f in functions()}
    long = sorted((name for name in lengths if lengths[name] > 30), key=lambda name: -lengths[name])
    allowed = len(lengths) // 20
    assert len(long) <= allowed, (
        f"{len(long)} of {len(lengths)} functions have more than 30 lines, {allowed} may"
        + report([f"{name}: {lengths[name]} lines" for name in long])
    )


def test_no_function_is_long() -> None:
    def limit(file: Path) -> int:
        return 60 if ROOT / "archsim" / "engine" in file.parents else 80  # the model is what newcomers read

    long = [
        f"{place(file, f)} {f.name}: {length(f)} lines, {limit(file)} at most"
        for file, f in functions()
        if length(f) > limit(file)
    ]
    assert not long, report(long)


def test_no_file_is_long() -> None:
    lines = {file: len(file.read_text(encoding="utf-8").splitlines()) for file in FILES}
    long = [f"{file.relative_to(ROOT)}: {n} lines, 400 at most" for file, n in lines.items() if n > 400]
    assert not long, report(long)


def public(node: ast.Module | ast.ClassDef, name: str = "") -> Iterator[tuple[str, Documented]]:
    """A module or class and, with their names, the public classes and functions that it holds."""
    yield name, node
    for child in node.body:
        if isinstance(child, ast.ClassDef) and not child.name.startswith("_"):
            yield from public(child, f"{name}.{child.name}".lstrip("."))
        elif isinstance(child, Function) and not child.name.startswith("_") and not repeats(child):
            yield f"{name}.{child.name}".lstrip("."), child


def repeats(function: Function) -> bool:
    """Whether it is an overload or a setter, whose docstring stands at the function of the same name."""
    return any(ast.unparse(d).endswith(("overload", ".setter")) for d in function.decorator_list)


def test_every_public_thing_has_a_docstring() -> None:
    bare = [
        f"{file.relative_to(ROOT)}:{getattr(node, 'lineno', 1)} {name or 'the module'}"
        for file in FILES
        for name, node in public(tree(file))
        if not (ast.get_docstring(node) or "").strip()
    ]
    assert not bare, report(bare)


def test_input_is_never_checked_by_assert() -> None:
    """`python -O` drops asserts, and users get no message to act on: raise an error that says what to do."""
    found = [place(f, node) for f in FILES for node in ast.walk(tree(f)) if isinstance(node, ast.Assert)]
    assert not found, report(found)


def bare_names(function: Function, method: bool) -> list[str]:
    """What of a function has no annotation: parameters by name, and `return`."""
    a = function.args
    positional = [*a.posonlyargs, *a.args]
    static = any(isinstance(d, ast.Name) and d.id == "staticmethod" for d in function.decorator_list)
    typed = positional[1:] if method and not static else positional  # without self or cls
    parameters = [*typed, *a.kwonlyargs, *(arg for arg in (a.vararg, a.kwarg) if arg)]
    return [arg.arg for arg in parameters if arg.annotation is None] + ["return"] * (function.returns is None)


def test_every_function_is_annotated() -> None:
    methods = {
        id(child)
        for file in FILES
        for node in ast.walk(tree(file))
        if isinstance(node, ast.ClassDef)
        for child in node.body
    }
    found = [
        f"{place(file, f)} {f.name}: {', '.join(bare)}"
        for file, f in functions()
        if (bare := bare_names(f, method=id(f) in methods))
    ]
    assert not found, report(found)
