"""What runs on Python 2.7, too, is written in what both languages share."""

from __future__ import annotations

import ast
from itertools import accumulate
from pathlib import Path

import pytest

from envbuild.jobs import envbuild_job, imports

RECIPES = Path(__file__).resolve().parents[3] / "recipes"
OF_PYTHON2 = ("cntk", "openmpi-debian")
HELPER = Path(envbuild_job.__file__)
# Nodes that Python 2.7 has no syntax for.
NEWER = (
    *(ast.JoinedStr, ast.AnnAssign, ast.NamedExpr, ast.Nonlocal, ast.YieldFrom, ast.MatMult),
    *(ast.AsyncFunctionDef, ast.AsyncFor, ast.AsyncWith, ast.Await, ast.Match, ast.TryStar),
)
# Modules that came later, and the `__future__` that did.
MODULES = {"annotations", "dataclasses", "enum", "faulthandler", "pathlib", "statistics", "typing"}
# Names that came later.
NAMES = {"FileNotFoundError", "TimeoutError", "PermissionError", "ProcessLookupError", "nonlocal"}


def newer(text: str) -> list[str]:
    """Return what Python 2.7 would stumble over, as far as the syntax tree shows it."""
    found = []
    guarded: set[int] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Try):
            guarded.update(id(child) for child in node.body)
        if isinstance(node, NEWER):
            found.append(type(node).__name__)
        elif isinstance(node, ast.FunctionDef):
            arguments = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
            if node.args.kwonlyargs or node.args.posonlyargs:
                found.append(f"{node.name}: arguments by name or position alone")
            found += [f"{node.name}: a list's own `{name}` overwrites another" for name in leaks(node)]
            if node.returns is not None or any(argument.annotation for argument in arguments):
                found.append(f"{node.name}: annotations")
        elif isinstance(node, (ast.Tuple, ast.List)) and any(isinstance(e, ast.Starred) for e in node.elts):
            found.append("a star outside of a call")
        elif isinstance(node, ast.ClassDef) and node.keywords:
            found.append(f"{node.name}: class keywords")
        elif isinstance(node, ast.Raise) and node.cause is not None:
            found.append("raise … from")
        elif isinstance(node, (ast.Import, ast.ImportFrom)) and id(node) not in guarded:
            origin = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            found += sorted({*origin, *(alias.name for alias in node.names)} & MODULES)
        elif isinstance(node, ast.Name) and node.id in NAMES:
            found.append(node.id)
        elif isinstance(node, ast.Attribute) and node.attr == "monotonic":
            found.append("time.monotonic")
    return found + commas_behind_stars(text)


def commas_behind_stars(text: str) -> list[str]:
    """Return the calls that end in ``*a,)`` or ``**a,)``."""
    commas = []
    lines = text.encode().splitlines(keepends=True)
    starts = [0, *accumulate(map(len, lines))]
    for call in (node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call)):
        stars: list[ast.expr] = [argument for argument in call.args if isinstance(argument, ast.Starred)]
        stars += [keyword.value for keyword in call.keywords if keyword.arg is None]
        for star in stars:
            begin = starts[(star.end_lineno or 0) - 1] + (star.end_col_offset or 0)
            end = starts[(call.end_lineno or 0) - 1] + (call.end_col_offset or 0)
            if b"".join(b"".join(lines)[begin:end].split()) == b",)":
                commas.append("a comma behind a star")
    return commas


def leaks(function: ast.FunctionDef) -> list[str]:
    """Return the names of list comprehensions that mean something else as well: in Python 2 they are one."""
    lists = [node for node in ast.walk(function) if isinstance(node, ast.ListComp)]
    inside = {id(node) for one in lists for each in one.generators for node in ast.walk(each.target)}
    own = {node.id for node in ast.walk(function) if isinstance(node, ast.Name) and id(node) in inside}
    stored = {
        node.id
        for node in ast.walk(function)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and id(node) not in inside
    }
    return sorted(own & (stored | {argument.arg for argument in function.args.args}))


@pytest.mark.parametrize(
    "path",
    [HELPER, *(path for name in OF_PYTHON2 for path in sorted(RECIPES.glob(f"{name}/**/*.py")))],
    ids=lambda path: path.name,
)
def test_it_is_python_2_too(path: Path) -> None:
    text = path.read_text()
    assert newer(text) == []
    # Python 2.7 takes a source without a declared encoding for ASCII.
    assert text.isascii()
    assert "print(" not in text


@pytest.mark.parametrize("program", [imports.IMPORT, imports.SEARCH_PATH], ids=["import", "search path"])
def test_the_import_check_sends_such_code_to_the_images_python(program: str) -> None:
    assert newer(program) == []


@pytest.mark.parametrize(
    "text",
    [
        "f'{x}'",
        "def f(a: int): pass",
        "def f() -> int: pass",
        "def f(*, a): pass",
        "x: int = 1",
        "import pathlib",
        "from __future__ import annotations",
        "raise ValueError from error",
        "first, *rest = words",
        "f(\n    a,\n    **b,\n)",
        "f(*a,)",
        "except_ = TimeoutError",
        "def f(a):\n    b = 1\n    return [b for b in a], b",
    ],
)
def test_what_is_newer_is_seen(text: str) -> None:
    assert newer(text)
