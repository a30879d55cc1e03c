"""`envbuild add` and `envbuild remove`: the spec keeps its comments and order, and stays right."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import NoReturn

import pytest

from envbuild.cli.main import main
from envbuild.inputs.spec import read_spec
from envbuild.resolve.uv_errors import ResolutionError
from envbuild.workflows import lock

SPEC = """\
# Of the group.
name: demo
version: "1"       # in quotes
mpi: mpich
frameworks: [pytorch]
packages:
  python:
    - scipy        # for Ann
    - {file: requirements.txt}
"""


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Let no settings of this machine take part."""
    monkeypatch.delenv("ENVBUILD_RECIPES", raising=False)
    monkeypatch.delenv("ENVBUILD_SITE", raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("ENVBUILD_STORE", str(tmp_path / "store"))
    monkeypatch.chdir(tmp_path)
    Path("spec.yaml").write_text(SPEC)
    Path("requirements.txt").write_text("tabulate\n")


def run(*words: str, code: int = 0) -> None:
    with pytest.raises(SystemExit) as ended:
        main([words[0], "spec.yaml", *words[1:], "--no-lock"])
    assert ended.value.code == code


def test_what_is_added_goes_where_it_belongs(capsys: pytest.CaptureFixture[str]) -> None:
    run("add", "pandas[excel]>=2", "PyTorch==2.13.0", "jax", "libfabric", "mpich")
    run("add", "git", "--system")
    assert (
        Path("spec.yaml").read_text()
        == """\
# Of the group.
name: demo
version: "1"       # in quotes
mpi: mpich
frameworks: [pytorch@2.13.0, jax]
packages:
  python:
    - scipy        # for Ann
    - {file: requirements.txt}
    - 'pandas[excel]>=2'
  system: [git]
fabric: [libfabric]
"""
    )
    assert capsys.readouterr().err.splitlines() == [
        "spec.yaml: packages.python gained `pandas[excel]>=2`",
        "spec.yaml: frameworks: `pytorch@2.13.0` instead of `pytorch`",
        "spec.yaml: frameworks gained `jax`",
        "spec.yaml: fabric gained `libfabric`",
        "next: envbuild lock spec.yaml",
        "spec.yaml: packages.system gained `git`",
        "next: envbuild lock spec.yaml",
    ]
    assert "tabulate" in read_spec(Path("spec.yaml")).python.texts


def test_packages_to_build_are_named_twice_unless_a_file_asks_for_them(
    capsys: pytest.CaptureFixture[str],
) -> None:
    run("add", "docopt>=0.6", "Tabulate", "--from-source")
    assert Path("spec.yaml").read_text() == (
        SPEC.rstrip("\n") + "\n    - docopt>=0.6\n  from_source: [docopt, tabulate]\n"
    )
    assert capsys.readouterr().err.splitlines() == [
        "spec.yaml: packages.python gained `docopt>=0.6`; packages.from_source gained `docopt`",
        "spec.yaml: packages.from_source gained `tabulate`",
        "next: envbuild lock spec.yaml",
    ]


def test_the_next_command_gets_the_options_that_it_needs_too(capsys: pytest.CaptureFixture[str]) -> None:
    run("add", "jax", "--site", "alps-daint", "--recipes", ".")
    assert "next: envbuild lock spec.yaml --recipes . --site alps-daint" in capsys.readouterr().err


def test_what_is_there_already_changes_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    run("add", "SciPy", "mpich", "torch")
    assert Path("spec.yaml").read_text() == SPEC
    assert capsys.readouterr().err == "spec.yaml: unchanged\n"


def test_what_is_removed_takes_empty_lists_along() -> None:
    run("remove", "scipy", "torch", "mpich")
    assert (
        Path("spec.yaml").read_text()
        == """\
# Of the group.
name: demo
version: "1"       # in quotes
packages:
  python:
    - {file: requirements.txt}
"""
    )


def test_wheels_commits_and_what_is_built_are_removed_by_name() -> None:
    Path("own-1.0-py3-none-any.whl").write_text("")
    text = SPEC.replace("    - {file: requirements.txt}\n", "")
    text += "    - {wheel: own-1.0-py3-none-any.whl}\n    - name: tool\n      git: https://example.org/tool\n"
    text += f"      commit: {'0' * 40}\n  from_source: [docopt, tool]\n"
    Path("spec.yaml").write_text(text)
    run("add", "own", "tool")
    assert Path("spec.yaml").read_text() == text
    run("remove", "own", "Tool")
    assert Path("spec.yaml").read_text().endswith("    - scipy        # for Ann\n  from_source: [docopt]\n")


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["add", "mpi4jax"], "the recipe `mpi4jax` requires `jax@>=0.10`"),
        (["add", "pytorch@1.0"], "no proven version of `pytorch` meets"),
        (["add", "pandas=2"], "`pandas=2` is not a Python requirement"),
        (["add", "Git", "--system"], "`Git` is not a Debian package name"),
        (["add", "./wheel"], "`./wheel` is not a Python requirement"),
        (["remove", "sciyp"], "did you mean `scipy`?"),
        (["remove", "tabulate"], "`tabulate` comes from a file that the spec names: `tabulate`"),
        (["remove", "absent"], "the spec does not name `absent`"),
    ],
    ids=lambda words: " ".join(words) if isinstance(words, list) else "",
)
def test_a_spec_that_would_be_wrong_is_not_written(
    words: list[str], problem: str, capsys: pytest.CaptureFixture[str]
) -> None:
    run(*words, code=2)
    assert problem in capsys.readouterr().err
    assert Path("spec.yaml").read_text() == SPEC


def test_a_spec_that_cannot_be_locked_is_not_written(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    nowhere = tmp_path / "nowhere"
    site = f"name: here\norigins: {{pypi: ['file://{nowhere}'], 'debian:bookworm': ['file://{nowhere}']}}\n"
    Path("here.yaml").write_text(site)
    monkeypatch.setenv("ENVBUILD_SITE", "here.yaml")
    with pytest.raises(SystemExit) as ended:
        main(["add", "spec.yaml", "less"])
    assert ended.value.code not in (0, None)
    assert Path("spec.yaml").read_text() == SPEC
    assert not Path("spec.lock.yaml").exists()


def test_what_a_file_of_the_spec_asks_for_is_removed_there(capsys: pytest.CaptureFixture[str]) -> None:
    Path("requirements.txt").write_text("# ours\n-r more.txt\ntabulate>=0.8\n")
    Path("more.txt").write_text("rich\nTabulate\n")
    run("remove", "tabulate", code=2)
    printed = capsys.readouterr().err
    assert "error: `tabulate` comes from a file that the spec names: `tabulate>=0.8`\n" in printed
    assert "  --> requirements.txt:3:1\n" in printed
    assert "  --> more.txt:2:1\n" in printed
    assert "hint: remove line 3 of `requirements.txt`, then `envbuild lock spec.yaml`\n" in printed
    assert Path("spec.yaml").read_text() == SPEC


def test_what_a_file_still_asks_for_is_warned_of(capsys: pytest.CaptureFixture[str]) -> None:
    Path("requirements.txt").write_text("tabulate\nscipy>=1\ntorch==2.13.0\n")
    run("remove", "scipy", "pytorch")
    printed = capsys.readouterr().err
    assert "warning: `scipy` is still asked for by requirements.txt:2:1: `scipy>=1`" in printed
    assert "warning: `pytorch` is still asked for by requirements.txt:3:1: `torch==2.13.0`" in printed
    assert "spec.yaml: packages.python lost `scipy`" in printed


def test_all_names_that_the_spec_lacks_are_reported(capsys: pytest.CaptureFixture[str]) -> None:
    run("remove", "einops", "numpy", "scipy", code=2)
    printed = capsys.readouterr().err
    assert "the spec does not name `einops`" in printed
    assert "the spec does not name `numpy`" in printed
    assert Path("spec.yaml").read_text() == SPEC


def test_a_package_of_debian_that_no_index_has_is_offered(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[str] = []

    def refuse(*_: object, **__: object) -> NoReturn:
        raise ResolutionError(
            "no wheel", at=None, hint="drop it", names=["ffmpeg"], unavailable=["ffmpeg"], failures=[]
        )

    def known(_: object, names: Iterable[str], __: object) -> list[str]:
        asked.extend(names)
        return ["ffmpeg"]

    monkeypatch.setattr(lock, "make_lock", refuse)
    monkeypatch.setattr(lock, "debian_packages", known)
    with pytest.raises(SystemExit) as ended:
        main(["add", "spec.yaml", "ffmpeg", "nosuch", "rich"])
    assert ended.value.code == 2
    assert asked == ["ffmpeg"], "the others are not at fault"
    hint = "name it under `packages.system` (`envbuild add spec.yaml ffmpeg --system`); drop it\n"
    assert hint in capsys.readouterr().err
    assert Path("spec.yaml").read_text() == SPEC
