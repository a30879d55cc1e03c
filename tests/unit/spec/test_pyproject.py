"""pyproject.toml of other tools than PEP 621's, and the files beside it: what a spec takes from them."""

from __future__ import annotations

from pathlib import Path

import pytest

from envbuild.errors import EnvbuildError, Location, render
from envbuild.inputs.spec import read_spec
from envbuild.spec.requirements import RequirementFiles

POETRY = """\
[tool.poetry.dependencies]
python = ">=3.9,<3.12"
a = "^1.2.3"
b = "^0.2.3"
c = "^0.0.3"
d = "~1.2"
e = "~1"
f = "1.4"
g = "*"
h = {version = ">=1,<2", extras = ["x"], markers = "sys_platform == 'linux'"}
i = {version = "^1", optional = true}
j = [{version = "1.0", python = "<3.10"}, {version = "2.0", python = ">=3.10"}]
"""


def read(directory: Path, **contents: str) -> RequirementFiles:
    for name, text in contents.items():
        (directory / name.replace("_", ".")).write_text(text)
    files = RequirementFiles(lambda path, _at: _content(path))
    files.add(directory / "pyproject.toml", Location(path=directory / "spec.yaml"))
    return files


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise EnvbuildError(str(error), hint="name another") from error


def test_poetry(tmp_path: Path) -> None:
    files = read(tmp_path, pyproject_toml=POETRY)
    assert files.errors == []
    assert [text for text, _ in files.asked()] == [
        "a>=1.2.3,<2",
        "b>=0.2.3,<0.3",
        "c>=0.0.3,<0.0.4",
        "d>=1.2,<1.3",
        "e>=1,<2",
        "f==1.4",
        "g",
        "h[x]>=1,<2 ; sys_platform == 'linux'",
        "j==1.0 ; python_full_version < '3.10'",
        "j==2.0 ; python_full_version >= '3.10'",
    ]
    assert [text for text, _ in files.pythons] == [">=3.9,<3.12"]
    assert files.left_out == ["optional i"]


@pytest.mark.parametrize(
    ("contents", "requirements", "python"),
    [
        (
            {"setup_cfg": "[options]\npython_requires = >=3.8\ninstall_requires =\n  a>=1\n  # why\n  b\n"},
            ["a>=1", "b"],
            [">=3.8"],
        ),
        (
            {"setup_cfg": "[options]\ninstall_requires = file: r.txt\n", "r_txt": "c<2\n"},
            ["c<2"],
            [],
        ),
        (
            {
                "setup_py": "from setuptools import setup\nneeded = ['a']\n"
                "setup(install_requires=needed, python_requires='>=3.9')\n"
            },
            ["a"],
            [">=3.9"],
        ),
        (
            {
                "pyproject_toml": "[project]\nname='x'\ndynamic=['dependencies']\n"
                "[tool.setuptools.dynamic]\ndependencies={file=['r.txt']}\n",
                "r_txt": "a\n",
            },
            ["a"],
            [],
        ),
        (
            {"pyproject_toml": "[project]\nname='x'\nrequires-python='>= 3.9'\ndependencies=['a']\n"},
            ["a"],
            [">=3.9"],
        ),
    ],
)
def test_dependencies_that_stand_elsewhere(
    contents: dict[str, str], requirements: list[str], python: list[str], tmp_path: Path
) -> None:
    files = read(tmp_path, **{"pyproject_toml": "[build-system]\nrequires=['setuptools']\n"} | contents)
    assert files.errors == []
    assert [text for text, _ in files.asked()] == requirements
    assert [text for text, _ in files.pythons] == python


@pytest.mark.parametrize(
    ("contents", "problem"),
    [
        ({"pyproject_toml": "[build-system]\nrequires=[]\n"}, "it has no `[project]`, and no file beside it"),
        (
            {"pyproject_toml": "[dependency-groups]\ntest=['pytest']\n"},
            "its dependency groups `test` are not read",
        ),
        (
            {
                "pyproject_toml": "[project]\nname='x'\ndynamic=['dependencies']\n",
                "setup_py": "setup(install_requires=f())",
            },
            "the dependencies are `dynamic`: a program decides them",
        ),
        (
            {"pyproject_toml": "[build-system]\n", "setup_py": "setup(" + "(" * 5000},
            "it has no `[project]`",
        ),
        (
            {"pyproject_toml": "[tool.poetry.dependencies]\na = {git = 'https://example.org/a'}\n"},
            "`a` is taken from `git`",
        ),
        ({"pyproject_toml": "[tool.poetry.dependencies]\na = '^1 || ^3'\n"}, "`a = ^1 || ^3`"),
        ({"pyproject_toml": f"[tool.poetry.dependencies]\na = '^{'9' * 5000}'\n"}, "`a = ^999"),
        ({"pyproject_toml": "[project]\nrequires-python='new'\n"}, "`new` does not bound the Python"),
    ],
)
def test_dependencies_that_are_not_read_are_errors(
    contents: dict[str, str], problem: str, tmp_path: Path
) -> None:
    (error,) = read(tmp_path, **contents).errors
    assert problem in error.problem
    assert len(error.problem) < 300


def test_a_project_chooses_the_base_by_its_python(tmp_path: Path) -> None:
    spec = "name: x\nversion: '1'\npackages: {python: [{file: pyproject.toml}]}\n"
    (tmp_path / "spec.yaml").write_text(spec)
    (tmp_path / "pyproject.toml").write_text("[project]\nname = 'x'\nrequires-python = '>=3.12'\n")
    assert read_spec(tmp_path / "spec.yaml").base.name == "debian-13"
    (tmp_path / "spec.yaml").write_text(spec + "base: debian-12\n")
    with pytest.raises(EnvbuildError) as caught:
        read_spec(tmp_path / "spec.yaml")
    assert "`pyproject.toml` needs Python >=3.12, and the base image `debian-12` has" in render(caught.value)
