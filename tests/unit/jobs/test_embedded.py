"""What travels in an image must run there: alone, on an older Python."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest

from envbuild.image.metadata import embedded_files
from envbuild.jobs.judge import Job

FILES = embedded_files()
CARRIED = {
    path.removeprefix("lib/").removesuffix(".py").replace("/", ".")
    for path in FILES
    if path.startswith("lib/")
}
CARRIED |= {name.removesuffix(".__init__") for name in CARRIED}


@pytest.mark.parametrize("path", sorted(name for name in FILES if name.endswith(".py")))
def test_it_needs_the_standard_library_and_itself_alone(path: str) -> None:
    tree = ast.parse(FILES[path], feature_version=(3, 9))
    for node in ast.walk(tree):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0
            names = [node.module or ""]
        for name in names:
            assert name.split(".")[0] in sys.stdlib_module_names or name in CARRIED, name
        # Both came with Python 3.10.
        assert not isinstance(node, ast.Match)
        if isinstance(node, ast.keyword):
            assert node.arg not in ("slots", "kw_only", "strict")


def test_what_imports_in_images_of_other_tools_runs_on_their_python() -> None:
    """`extend` takes CPython 3.7 and newer."""
    tree = ast.parse(FILES["lib/envbuild/jobs/imports.py"], feature_version=(3, 7))
    newer = {"removeprefix", "removesuffix", "is_relative_to", "missing_ok", "strict"}
    names = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    assert not newer & (names | {node.arg for node in ast.walk(tree) if isinstance(node, ast.keyword)})


def test_it_is_what_the_host_runs() -> None:
    top = Path(__file__).parents[3]
    carried = {path: content for path, content in FILES.items() if path.startswith("lib/") and content}
    assert {"lib/envbuild/jobs/judge.py", "lib/envbuild/jobs/arithmetic.py"} <= carried.keys()
    for path, content in carried.items():
        assert content == (top / path.removeprefix("lib/")).read_bytes()


def test_it_runs_isolated_from_wherever_it_lies(tmp_path: Path) -> None:
    for path, content in FILES.items():
        target = tmp_path / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content)
    argv = [sys.executable, "-I", "-S", str(tmp_path / "judge.py")]
    shown = subprocess.run([*argv, "test", "--help"], capture_output=True, text=True, check=False)
    assert (shown.returncode, shown.stderr) == (0, "")
    assert "--ranks" in shown.stdout
    for wrong in (["test", "--ranks", "0"], ["test", "--timeout", "-1"], ["nonsense"], []):
        assert subprocess.run([*argv, *wrong], capture_output=True, check=False).returncode == 2


def test_jobs_of_a_manifest_are_understood() -> None:
    data = json.loads(
        '{"id": "mpi.collectives", "recipe": "mpich", "file": "a.py", "expect": {"sum": "n"}, "later": 1}'
    )
    assert Job.from_data(data).expect == {"sum": "n"}
