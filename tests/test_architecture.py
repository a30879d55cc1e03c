"""Hold the code to docs/explanation/architecture.md: imports of packages, and what may touch the machine."""

from __future__ import annotations

import ast
import fnmatch
import graphlib
import re
import sys
import tomllib
from collections import Counter
from collections.abc import Iterator, Mapping
from collections.abc import Set as AbstractSet
from functools import cache
from pathlib import Path

import pytest

from envbuild.image.metadata import embedded_files

TOP = Path(__file__).resolve().parents[1]
PACKAGE = TOP / "envbuild"

# Modules beside the packages, which every package may import.
LEAVES = frozenset({"digests", "errors", "events", "formats", "quoting"})
TOUR = (TOP / "docs/explanation/architecture.md").read_text()


def read_table() -> dict[str, frozenset[str]]:
    """Return the table of docs/explanation/architecture.md: package → the packages that it may import."""
    table: dict[str, frozenset[str]] = {}
    for name, imports in re.findall(r"^\| `(\w+)/` \| [^|]+ \| ([^|]+) \|$", TOUR, re.MULTILINE):
        above = imports == "every package above"
        table[name] = frozenset(table) if above else frozenset(re.findall(r"\w+", imports))
    return table


MAY_IMPORT = read_table()
# Single imports beyond the table: (importing module, imported module) → why. One that is gone fails.
BEYOND: dict[tuple[str, str], str] = {
    ("envbuild.cli.progress", "envbuild.system.descriptors"): "paths are shown by their names",
    ("envbuild.cli.output", "envbuild.system.descriptors"): "paths are shown by their names",
}

# What starts processes, opens connections or reads clocks, and so belongs to `system` alone.
MACHINE_MODULES = frozenset(
    (
        *("subprocess", "multiprocessing", "concurrent.futures.process", "asyncio", "pty", "signal"),
        *("socket", "socketserver", "ssl", "requests", "urllib3", "http", "urllib.request", "ftplib"),
        *("platform", "getpass", "pwd", "grp", "ctypes"),
    )
)
MACHINE_CALLS = re.compile(
    r"os\.(system|popen|fork|forkpty|exec\w+|spawn\w+|posix_spawnp?|kill|killpg|uname|times|cpu_count)"
)
# Files that run inside an image, where there is no `system`: what they may use of the machine's.
TRAVELLERS: dict[str, frozenset[str]] = {
    "envbuild/jobs/envbuild_gpus.py": frozenset({"ctypes"}),
    "envbuild/jobs/envbuild_job.py": frozenset({"ctypes", "platform", "runpy", "socket", "time"}),
    "envbuild/jobs/inside.py": frozenset({"signal", "subprocess", "time", "os.kill", "os.killpg"}),
    "envbuild/jobs/imports.py": frozenset({"os.killpg", "signal", "subprocess", "time"}),
    "envbuild/jobs/counters.py": frozenset({"ctypes", "os.cpu_count"}),
    "envbuild/jobs/observe.py": frozenset({"signal", "time", "os.execvp", "os.fork", "os.uname"}),
    "envbuild/jobs/pod.py": frozenset({"signal", "socket", "subprocess", "time"}),
    "envbuild/jobs/pod_link.py": frozenset({"socket", "time"}),
    "envbuild/jobs/pod_test.py": frozenset({"platform", "signal", "socket"}),
}
# Run by the Python of an image, with its packages.
SCRIPTS = ("envbuild/launch/node_check.py",)
FORBIDDEN_CALLS = frozenset({"eval", "exec", "compile", "__import__"})
FORBIDDEN_MODULES = frozenset({"pickle", "marshal", "shelve", "dill", "cloudpickle", "imp", "runpy"})

# Module → the distribution that brings it, where the names differ.
BROUGHT_BY = {
    "yaml": "pyyaml",
    "pydantic_core": "pydantic",
    "zlib_ng": "zlib-ng",
}
# Distributions that are run as a program → why.
RUN = {"pip": "`envbuild.resolve.python27` runs `python -m pip`"}

# In pieces, so that this file does not name what it looks for.
HOSTS = tuple(
    "".join(pieces)
    for pieces in (
        ("pypi", ".org"),
        ("files.python", "hosted"),
        ("download.py", "torch"),
        ("deb.deb", "ian.org"),
        ("ftp.deb", "ian.org"),
        ("security.deb", "ian.org"),
        ("snapshot.deb", "ian.org"),
        ("archive.ubu", "ntu.com"),
        ("registry.npm", "js"),
        ("conda.ana", "conda.org"),
        ("proxy.gol", "ang.org"),
        ("index.cra", "tes.io"),
    )
)
DEVELOPER_PATHS = re.compile(
    "/wo" + r"rk/(main|shared|\.)|/opt/" + r"(wheels|pypi)\b|/Us" + r"ers/\w|/ho" + r"me/\w+/src"
)


def sources() -> list[Path]:
    """Every Python module of the package, but for scripts that only an image's Python runs."""
    return sorted(path for path in PACKAGE.rglob("*.py") if path.relative_to(TOP).as_posix() not in SCRIPTS)


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(), filename=str(path))


@cache
def nodes_of(path: Path) -> tuple[ast.AST, ...]:
    return tuple(ast.walk(tree_of(path)))


def module_name(path: Path) -> str:
    parts = path.relative_to(TOP).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def room_of(module: str) -> str:
    """``envbuild.plan.model`` → ``plan``; the package itself → ````."""
    return module.split(".")[1] if "." in module else ""


@cache
def modules() -> frozenset[str]:
    return frozenset(module_name(path) for path in sources())


@cache
def imported(path: Path) -> tuple[tuple[str, int], ...]:
    """Return every module that a file imports, wherever in it, with the line."""
    return tuple(_imported(path))


def _imported(path: Path) -> Iterator[tuple[str, int]]:
    name = module_name(path)
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    for node in nodes_of(path):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            origin = node.module or ""
            if node.level:
                above = package.split(".")[: len(package.split(".")) - node.level + 1]
                origin = ".".join([*above, *([origin] if origin else [])])
            for alias in node.names:
                whole = f"{origin}.{alias.name}"
                # What is imported from a package may be a module or a name.
                is_module = whole in modules() or whole in MACHINE_MODULES
                yield (whole if is_module else origin), node.lineno


@cache
def calls(path: Path) -> tuple[tuple[str, ast.Call], ...]:
    return tuple((ast.unparse(node.func), node) for node in nodes_of(path) if isinstance(node, ast.Call))


def where(path: Path, line: int) -> str:
    return f"{path.relative_to(TOP)}:{line}"


def test_the_tour_names_files_that_exist() -> None:
    paths = re.findall(r"`(envbuild/[\w/]+(?:\.py)?)/?`", TOUR)
    assert len(paths) > 30
    assert [path for path in paths if not (TOP / path).exists()] == []


def test_every_directory_is_a_package_of_the_table() -> None:
    rooms = {path.parent.relative_to(PACKAGE).parts[0] for path in sources() if path.parent != PACKAGE}
    assert rooms - {"data"} <= MAY_IMPORT.keys()
    loose = {path.stem for path in PACKAGE.glob("*.py")}
    assert loose == {"__init__", *LEAVES}, "only the leaves lie beside the packages"


def test_packages_import_only_what_the_table_allows() -> None:
    broken = []
    used = set()
    for path in sources():
        name = module_name(path)
        room = room_of(name)
        allowed = MAY_IMPORT.get(room, frozenset()) | LEAVES | {room, ""} if room not in LEAVES else {room}
        for target, line in imported(path):
            if target.split(".")[0] != "envbuild" or room_of(target) in allowed:
                continue
            if room == "cli" and line in _type_lines(tree_of(path)):
                continue  # results of workflows hold values of every package, and cli renders them
            if (name, target) in BEYOND:
                used.add((name, target))
                continue
            broken.append(f"{where(path, line)}: {room or 'envbuild'} imports {target}")
    assert not broken, "\n".join(broken)
    assert used == BEYOND.keys(), "an exception that is no longer needed"


def test_the_table_itself_has_no_loops() -> None:
    done: set[str] = set()
    while left := MAY_IMPORT.keys() - done:
        ready = {room for room in left if MAY_IMPORT[room] <= done}
        assert ready, f"{sorted(left)} import one another"
        done |= ready


def test_no_module_imports_itself_through_others() -> None:
    """Imports inside functions count, too; those for types alone do not."""
    graph: dict[str, set[str]] = {}
    for path in sources():
        for_types = {
            line
            for node in nodes_of(path)
            if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
            for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)
        }
        targets = {target for target, line in imported(path) if line not in for_types}
        # A module's own package is loaded first, whatever it imports.
        graph[module_name(path)] = {target for target in targets & modules() if target.count(".") > 1}
    graphlib.TopologicalSorter(graph).prepare()


def test_every_import_of_envbuild_exists() -> None:
    missing = [
        f"{where(path, line)}: {target}"
        for path in sources()
        for target, line in imported(path)
        if target.split(".")[0] == "envbuild" and target not in modules()
    ]
    assert not missing, "\n".join(missing)


def machine_uses(path: Path) -> Iterator[tuple[str, int]]:
    """Yield what a file uses that belongs to `system`, with the line."""
    for target, line in imported(path):
        parents = [target[:i] for i, char in enumerate(target) if char == "."]
        yield from ((name, line) for name in (*parents, target) if name in MACHINE_MODULES)
    yield from ((name, node.lineno) for name, node in calls(path) if MACHINE_CALLS.fullmatch(name))


def test_only_system_touches_the_machine() -> None:
    broken = [
        f"{where(path, line)}: {name}"
        for path in sources()
        for name, line in machine_uses(path)
        if room_of(module_name(path)) != "system" and name not in granted(path)
    ]
    assert not broken, "\n".join(broken)


def granted(path: Path) -> frozenset[str]:
    return TRAVELLERS.get(path.relative_to(TOP).as_posix(), frozenset())


def carried() -> list[Path]:
    """The files of envbuild that an image carries, to test itself."""
    paths = [name.removeprefix("lib/") for name in embedded_files() if name.startswith("lib/envbuild/jobs/")]
    return [TOP / path for path in paths]


def test_what_travels_in_an_image_is_standard_library_only() -> None:
    here = {module_name(path) for path in carried()}
    foreign = [
        f"{where(path, line)}: {target}"
        for path in carried()
        for target, line in imported(path)
        if target.split(".")[0] not in sys.stdlib_module_names and target not in here
    ]
    assert not foreign, "\n".join(foreign)


def test_grants_are_needed_and_only_travellers_hold_them() -> None:
    for name, grants in TRAVELLERS.items():
        assert TOP / name in carried(), f"{name} does not travel"
        used = {use for use, _ in machine_uses(TOP / name)} | {target for target, _ in imported(TOP / name)}
        assert grants <= used, f"{name} no longer needs {sorted(grants - used)}"


def test_nothing_that_runs_text_as_code() -> None:
    broken = []
    for path in sources():
        broken += [
            f"{where(path, line)}: imports {target}"
            for target, line in imported(path)
            if target.split(".")[0] in FORBIDDEN_MODULES - granted(path)
        ]
        for name, node in calls(path):
            keywords = {word.arg: ast.unparse(word.value) for word in node.keywords}
            if name in FORBIDDEN_CALLS or keywords.get("shell", "False") != "False":
                broken.append(f"{where(path, node.lineno)}: {ast.unparse(node)[:80]}")
    assert not broken, "\n".join(broken)


YAML_READERS = frozenset({"load", "load_all", "compose", "compose_all", "parse", "scan"})


def safe_loaders(path: Path) -> set[str]:
    """The names of a file that stand for a safe YAML loader: yaml's own, and what is made from them."""
    safe = {"yaml.SafeLoader", "yaml.CSafeLoader"}
    for node in nodes_of(path):
        if isinstance(node, ast.ClassDef) and {ast.unparse(base) for base in node.bases} & safe:
            safe.add(node.name)
        if isinstance(node, ast.Assign) and re.fullmatch(
            r"getattr\(yaml, 'CSafeLoader', yaml\.SafeLoader\)", ast.unparse(node.value)
        ):
            safe.update(ast.unparse(target) for target in node.targets)
    return safe


def test_yaml_is_read_with_a_safe_loader_alone() -> None:
    broken = []
    readers = 0
    for path in sources():
        for name, node in calls(path):
            if not name.startswith("yaml."):
                continue
            loaders = [*node.args[1:], *(word.value for word in node.keywords if word.arg == "Loader")]
            readers += name.removeprefix("yaml.") in YAML_READERS
            unsafe = re.search(r"unsafe|full_load", name) or (
                name.removeprefix("yaml.") in YAML_READERS
                and not any(ast.unparse(loader) in safe_loaders(path) for loader in loaders)
            )
            if unsafe:
                broken.append(f"{where(path, node.lineno)}: {ast.unparse(node)[:80]}")
    assert not broken, "\n".join(broken)
    assert readers, "nobody reads YAML: this test looks at the wrong thing"


def test_dependencies_are_those_that_are_imported() -> None:
    project = tomllib.loads((TOP / "pyproject.toml").read_text())["project"]
    listed = [*project["dependencies"], *project["optional-dependencies"]["sign"]]
    declared = {re.split(r"[<>=!~ \[]", text)[0] for text in listed}
    targets = {target.split(".")[0] for path in sources() for target, _ in imported(path)}
    foreign = targets - set(sys.stdlib_module_names) - {"envbuild"}
    used = {BROUGHT_BY.get(module, module) for module in foreign} | RUN.keys()
    assert used <= declared, "imported and not declared"
    assert declared <= used, "declared, and neither imported nor run"


def repository_files() -> Iterator[Path]:
    """Yield what belongs to the repository: all but what .gitignore names."""
    patterns = [".git", *(line.strip("/") for line in (TOP / ".gitignore").read_text().split() if line)]

    def walk(directory: Path) -> Iterator[Path]:
        for path in sorted(directory.iterdir()):
            relative = path.relative_to(TOP).as_posix()
            if any(fnmatch.fnmatch(relative, one) or fnmatch.fnmatch(path.name, one) for one in patterns):
                continue
            if path.is_dir() and not path.is_symlink():
                yield from walk(path)
            elif path.is_file():
                yield path

    return walk(TOP)


def test_no_file_names_a_registry_or_a_developers_machine() -> None:
    assert len(HOSTS) == len(set(HOSTS))
    found = []
    for path in repository_files():
        text = path.read_bytes().decode(errors="replace")
        for number, line in enumerate(text.splitlines(), 1):
            hits = [host for host in HOSTS if host in line.lower()]
            hits += [hit.group() for hit in DEVELOPER_PATHS.finditer(line)]
            found += [f"{where(path, number)}: {hit}" for hit in hits]
    assert not found, "\n".join(found)


def python_tests() -> list[Path]:
    tests = TOP / "tests"
    python = [path for path in repository_files() if path.suffix == ".py" and path.is_relative_to(tests)]
    return [path for path in python if not path.is_relative_to(tests / "formats")]  # files of older versions


def test_mypy_sees_every_test_under_a_name_of_its_own() -> None:
    """Tests are found by their path from the top, so two may share a stem, and setup/ by its stem alone."""
    settings = tomllib.loads((TOP / "pyproject.toml").read_text())["tool"]["mypy"]
    assert (settings["explicit_package_bases"], settings["mypy_path"]) == (True, "setup")
    names = []
    tests = [path for path in python_tests() if "bad-specs" not in path.parts]
    for path in (*tests, *(TOP / "setup").glob("*.py")):
        base = TOP / "setup" if path.is_relative_to(TOP / "setup") else TOP
        parts = path.relative_to(base).with_suffix("").parts
        assert all(part.isidentifier() for part in parts), path
        names.append(".".join(parts))
    assert not [name for name, count in Counter(names).items() if count > 1]


def skips(path: Path) -> Iterator[tuple[int, str]]:
    """Yield each skip of a test file: its line and its text."""
    for node in nodes_of(path):
        if isinstance(node, ast.Call | ast.Attribute):
            function = node.func if isinstance(node, ast.Call) else node
            head = ast.unparse(function) if isinstance(function, ast.Attribute) else ""
            if re.fullmatch(r"(pytest|unittest)\.(mark\.)?(skip\w*|xfail|importorskip|SkipTest)", head):
                yield node.lineno, ast.unparse(node)
        elif isinstance(node, ast.ImportFrom) and node.module in ("pytest", "unittest"):
            yield from ((node.lineno, alias.name) for alias in node.names if "skip" in alias.name.lower())


def test_a_test_is_skipped_for_want_of_hardware_alone() -> None:
    """A part that is missing is a failure; only what a machine cannot be given is a reason."""
    for path in python_tests():
        lines: dict[int, str] = {}
        for line, text in skips(path):
            # The call comes before the name that is called: the longest text of a line tells the reason.
            lines[line] = max(lines.get(line, ""), text, key=len)
        for line, text in lines.items():
            assert "hardware" in text, f"{where(path, line)}: {text}"


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("import pytest\n@pytest.mark.skip(reason='hardware: a GPU')\ndef test(): ...\n", 1),
        ("import pytest\ndef test():\n    pytest.skip('no apptainer')\n", 1),
        ("from pytest import skip\n", 1),
        ("import os\nos.walk('skip')\n", 0),
    ],
)
def test_skips_are_found(tmp_path: Path, text: str, found: int) -> None:
    path = tmp_path / "test_one.py"
    path.write_text(text)
    assert len({line for line, _ in skips(path)}) == found


def test_every_file_of_tests_is_collected(pytestconfig: pytest.Config) -> None:
    paths = [TOP / path for path in pytestconfig.getini("testpaths")]
    files = [*(TOP / "tests").rglob("test_*.py")]
    assert not [file for file in files if not any(file.is_relative_to(path) for path in paths)]
    excluded = pytestconfig.getini("norecursedirs")
    directories = {parent for path in files for parent in path.parents}
    names = {path.name for path in directories if path.is_relative_to(TOP / "tests")}
    assert not [name for name in names if any(fnmatch.fnmatch(name, pattern) for pattern in excluded)]


def _only_for_types(tree: ast.Module) -> set[str]:
    """Names that a module imports where types are checked, and not at run time."""
    aliases = [alias for node in _type_imports(tree) for alias in node.names]
    return {(alias.asname or alias.name).partition(".")[0] for alias in aliases}


def _type_lines(tree: ast.Module) -> set[int]:
    return {node.lineno for node in _type_imports(tree)}


def _type_imports(tree: ast.Module) -> list[ast.Import | ast.ImportFrom]:
    blocks = [
        node for node in tree.body if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
    ]
    return [node for block in blocks for node in block.body if isinstance(node, ast.Import | ast.ImportFrom)]


def _used(node: ast.AST, names: AbstractSet[str]) -> Iterator[ast.Name]:
    """Yield uses at run time of names that nothing around them imports."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
        within = [child for child in ast.walk(node) if isinstance(child, ast.Import | ast.ImportFrom)]
        names = names - {
            (alias.asname or alias.name).partition(".")[0] for one in within for alias in one.names
        }
    if isinstance(node, ast.Name) and node.id in names and isinstance(node.ctx, ast.Load):
        yield node
    for field, value in ast.iter_fields(node):
        if field not in ("annotation", "returns"):
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.AST):
                    yield from _used(child, names)


def test_what_is_imported_for_types_alone_is_not_used_at_run_time() -> None:
    found = [
        f"{where(path, name.lineno)}: {name.id}"
        for path in sources()
        if (names := _only_for_types(tree_of(path)))
        for name in _used(tree_of(path), names)
    ]
    assert not found


def errors_without_hint(trees: Mapping[Path, ast.Module]) -> Iterator[str]:
    """Yield where an `EnvbuildError`, or one of a subclass, is made without a hint."""
    nodes = [(path, node) for path, tree in trees.items() for node in ast.walk(tree)]
    classes = {node.name: node for _, node in nodes if isinstance(node, ast.ClassDef)}
    errors = {"EnvbuildError"}
    while more := {
        name
        for name, node in classes.items()
        if name not in errors and errors & {ast.unparse(base).rpartition(".")[2] for base in node.bases}
    }:
        errors |= more
    # A subclass with an `__init__` passes the hint to that of its parent.
    own = {
        function
        for name in errors - {"EnvbuildError"}
        for function in (classes[name].body if name in classes else ())
        if isinstance(function, ast.FunctionDef) and function.name == "__init__"
    }
    passing = {node for function in own for node in ast.walk(function)}
    optional = {name for name, node in classes.items() if own & set(node.body)}
    for path, node in nodes:
        if isinstance(node, ast.Call):
            to_parent = node in passing and ast.unparse(node.func) == "super().__init__"
            name = ast.unparse(node.func).rpartition(".")[2]
            hints = [word.value for word in node.keywords if word.arg == "hint"]
            is_empty = any(
                isinstance(hint, ast.Constant) and not str(hint.value or "").strip() for hint in hints
            )
            is_missing = not hints and name not in optional
            if (to_parent or name in errors) and (is_empty or is_missing):
                yield f"{path}:{node.lineno}: {ast.unparse(node)[:80]}"


def test_every_error_has_a_hint() -> None:
    places = list(errors_without_hint({path: tree_of(path) for path in sources()}))
    assert not places, "\n".join(places)


@pytest.mark.parametrize(
    ("text", "is_found"),
    [
        ("raise EnvbuildError('no file')", True),
        ("raise errors.EnvbuildError('no file', hint='')", True),
        ("raise EnvbuildError('no file', hint=' ')", True),
        ("raise EnvbuildError('no file', hint=hint)", False),
        ("class Lost(EnvbuildError): ...\nraise Lost('no file')", True),
        ("class Lost(EnvbuildError):\n def __init__(self): super().__init__('lost')\nraise Lost()", True),
        (
            "class Lost(EnvbuildError):\n def __init__(self): super().__init__('lost', hint=H)\nraise Lost()",
            False,
        ),
        ("class Lost(Exception):\n def __init__(self): super().__init__('lost')\nraise Lost()", False),
    ],
)
def test_errors_without_a_hint_are_found(text: str, is_found: bool) -> None:
    assert bool([*errors_without_hint({Path("x.py"): ast.parse(text)})]) == is_found
