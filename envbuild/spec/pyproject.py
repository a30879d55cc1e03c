"""Requirements of a Python project: pyproject.toml (PEP 621, Poetry), setup.cfg and setup.py. Runs nothing.

Sources: the PyPA specification of pyproject.toml; PEP 735; Poetry's documentation ("Dependency
specification", "The pyproject.toml file"); setuptools' documentation ("Declarative config").
"""

from __future__ import annotations

import ast
import configparser
import re
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from envbuild.spec.yamlfile import shorten

# Python converts no longer number than this one.
_POETRY_BOUND = re.compile(r"([\^~])\s*([0-9]{1,18}(?:\.[0-9]{1,18})*)(?![0-9])(\S*)")
_WRITE_THEM = "name the file that they come from, or write them into `project.dependencies`"


@dataclass(slots=True)
class Project:
    """The requirements of a project, and what of it is not read."""

    requirements: list[str] = field(default_factory=list)
    """PEP 508."""
    python: str = ""
    """PEP 440 constraint on its Python; empty for any."""
    files: list[str] = field(default_factory=list)
    """Requirements files that it names, relative to it."""
    indexes: list[str] = field(default_factory=list)
    """Addresses of its indexes."""
    left_out: list[str] = field(default_factory=list)
    """Parts that an image does not get unless they are named elsewhere."""
    problems: list[tuple[str, str]] = field(default_factory=list)
    """Problems, each with a hint."""


def read_project(values: Mapping[str, Any], read_beside: Callable[[str], str | None]) -> Project:
    """Return what the values of a pyproject.toml ask for; `read_beside` reads a file beside it."""
    project = Project()
    table, poetry = _table(values, "project"), _table(values, "tool", "poetry")
    dynamic = table.get("dynamic", ())
    dependencies = table.get("dependencies", [])
    if not isinstance(dependencies, list) or not all(isinstance(line, str) for line in dependencies):
        hint = 'it begins with `dependencies = ["…"]`'
        project.problems.append(("`project.dependencies` is not a list of text", hint))
        return project
    project.requirements += dependencies
    if isinstance(table.get("requires-python"), str):
        project.python = table["requires-python"]
    is_dynamic = isinstance(dynamic, list) and "dependencies" in dynamic
    if poetry and (not table or is_dynamic):
        _read_poetry(project, poetry)
    elif not table or is_dynamic:
        _read_setuptools(project, values, read_beside)
    groups = sorted({*_table(values, "dependency-groups"), *_table(poetry, "group")})
    extras = sorted(_table(table, "optional-dependencies"))
    project.left_out += [f"dependency group {name}" for name in groups]
    project.left_out += [f"extra {name}" for name in extras]
    for row in _rows(_table(values, "tool", "uv").get("index")) + _rows(poetry.get("source")):
        if isinstance(row.get("url"), str):
            project.indexes.append(row["url"])
    return project


def _table(values: Mapping[str, Any], *keys: str) -> Mapping[str, Any]:
    for key in keys:
        inner = values.get(key)
        values = inner if isinstance(inner, dict) else {}
    return values


def _rows(value: object) -> list[dict[str, Any]]:
    return [row for row in value if isinstance(row, dict)] if isinstance(value, list) else []


def _read_poetry(project: Project, poetry: Mapping[str, Any]) -> None:
    for name, entry in _table(poetry, "dependencies").items():
        for row in entry if isinstance(entry, list) else [entry]:
            values = row if isinstance(row, dict) else {"version": row}
            if values.get("optional") is True:
                project.left_out.append(f"optional {name}")
                continue
            address = next((key for key in ("git", "path", "url") if key in values), "")
            bounds = _poetry_bounds(str(values.get("version", "*")))
            if address or bounds is None:
                problem = (
                    f"`{name}` is taken from `{address}`" if address else f"`{shorten(f'{name} = {entry}')}`"
                )
                hint = "write it under `packages.python` of the spec, and remove it there"
                project.problems.append((f"{problem}, which is not read", hint))
            elif name.lower() == "python":
                project.python = bounds
            else:
                extras = values.get("extras", [])
                listed = ",".join(map(str, extras)) if isinstance(extras, list) else ""
                markers = [str(values["markers"])] if "markers" in values else []
                markers += _python_markers(str(values["python"])) if "python" in values else []
                text = f"{name}[{listed}]{bounds}" if listed else f"{name}{bounds}"
                project.requirements.append(" ; ".join([text, *([" and ".join(markers)] if markers else [])]))


def _python_markers(written: str) -> list[str]:
    bounds = _poetry_bounds(written) or ""
    return [
        re.sub(r"([<>=!~]+)\s*(\S+)", r"python_full_version \1 '\2'", bound)
        for bound in bounds.split(",")
        if bound
    ]


def _poetry_bounds(written: str) -> str | None:
    """Return Poetry's bounds as PEP 440 writes them, empty for any version; None if they cannot be read."""
    bounds: list[str] = []
    for part in re.split(r"\s*,\s*|(?<=[0-9*])\s+(?=[<>=!~^])", written.strip()):
        if part in ("", "*"):
            continue
        if match := _POETRY_BOUND.fullmatch(part):
            numbers = [int(number) for number in match[2].split(".")]
            if match[1] == "^":
                kept = next((at for at, number in enumerate(numbers) if number), len(numbers) - 1)
            else:
                kept = min(1, len(numbers) - 1)
            upper = [*numbers[:kept], numbers[kept] + 1]
            bounds.append(f">={match[2]}{match[3]},<{'.'.join(map(str, upper))}")
        elif re.fullmatch(r"[0-9]\S*", part):
            bounds.append(f"=={part}")
        elif re.fullmatch(r"(?:[<>=!~]=|[<>]|===)\s*[0-9]\S*", part):
            bounds.append(part.replace(" ", ""))
        elif re.fullmatch(r"=\s*[0-9]\S*", part):
            bounds.append(f"={part.replace(' ', '')}")
        else:
            return None
    return ",".join(bounds)


def _read_setuptools(
    project: Project, values: Mapping[str, Any], read_beside: Callable[[str], str | None]
) -> None:
    """Read the dependencies that setuptools takes from other files."""
    named = _table(values, "tool", "setuptools", "dynamic", "dependencies").get("file")
    if isinstance(named, str | list):
        project.files += [named] if isinstance(named, str) else [str(name) for name in named]
        return
    for name, read in (("setup.cfg", _read_setup_cfg), ("setup.py", _read_setup_py)):
        text = read_beside(name)
        if text is not None and read(project, text):
            return
    if "project" in values:
        project.problems.append(("the dependencies are `dynamic`: a program decides them", _WRITE_THEM))
    elif groups := sorted(_table(values, "dependency-groups")):
        names = ", ".join(f"`{name}`" for name in groups)
        hint = f"`uv export --only-group {groups[0]} -o requirements.txt` writes a file that is read"
        project.problems.append(
            (f"it has no `[project]`, and its dependency groups {names} are not read", hint)
        )
    else:
        problem = "it has no `[project]`, and no file beside it names the dependencies"
        project.problems.append((problem, _WRITE_THEM))


def _read_setup_cfg(project: Project, text: str) -> bool:
    parser = configparser.ConfigParser(interpolation=None, strict=False)
    try:
        parser.read_string(text)
    except configparser.Error:
        return False
    written = parser.get("options", "install_requires", fallback=None)
    project.python = project.python or parser.get("options", "python_requires", fallback="").strip()
    if written is None:
        return False
    if file := re.fullmatch(r"\s*file:\s*(.+)", written):
        project.files += [name.strip() for name in file[1].split(",")]
    else:
        lines = (line.partition(" #")[0].strip() for line in re.split(r"[\n]", written))
        project.requirements += [line for line in lines if line and not line.startswith("#")]
    return True


def _read_setup_py(project: Project, text: str) -> bool:
    """Read a list that is written out in the call of ``setup``."""
    try:
        with warnings.catch_warnings():
            # Those are about the project's own file.
            warnings.simplefilter("ignore")
            module = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    lists = {
        target.id: node.value
        for node in module.body
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    for keyword in _setup_keywords(module):
        value = keyword.value
        value = lists.get(value.id, value) if isinstance(value, ast.Name) else value
        if keyword.arg == "python_requires" and isinstance(value, ast.Constant):
            project.python = project.python or str(value.value)
        if keyword.arg == "install_requires" and isinstance(value, ast.List | ast.Tuple):
            texts = [item.value for item in value.elts if isinstance(item, ast.Constant)]
            if len(texts) == len(value.elts) and all(isinstance(line, str) for line in texts):
                project.requirements += [str(line) for line in texts]
                return True
    return False


def _setup_keywords(module: ast.Module) -> Iterator[ast.keyword]:
    for node in module.body:
        call = node.value if isinstance(node, ast.Expr) else None
        if isinstance(call, ast.Call) and getattr(call.func, "id", getattr(call.func, "attr", "")) == "setup":
            # The Python first: the list of requirements ends the search.
            yield from sorted(call.keywords, key=lambda keyword: keyword.arg != "python_requires")
