"""Commits of repositories as source archives: the same bytes everywhere."""

from __future__ import annotations

import tarfile
from collections.abc import Mapping
from pathlib import Path

import pytest

from envbuild.errors import EnvbuildError, Location, MachineError
from envbuild.lock.model import PythonPin
from envbuild.resolve.context import ResolveContext
from envbuild.resolve.files import FileCache
from envbuild.resolve.origins import Machine
from envbuild.resolve.repository import pack
from envbuild.spec.requirements import Repository
from tests.support.repositories import a_commit, git

AT = Location(path=Path("spec.yaml"))
PROJECT = '[project]\nname = "My.Tool"\nversion = "1.0.0rc1"\n'


def commit(place: Path, files: Mapping[str, str], *, date: str = "2024-01-01T00:00:00") -> Repository:
    return Repository(url=f"file://{place}", commit=a_commit(place, files, date=date))


def packed(place: Path, repository: Repository, *, offline: bool = False) -> tuple[PythonPin, Path]:
    context = ResolveContext(
        machine=Machine(),
        cache_dir=place / "cache",
        files=FileCache(place / "files"),
        emit=lambda _: None,
        offline=offline,
    )
    pin = pack("my-tool", repository, AT, context)
    return pin, context.files.path(pin)


def refused(place: Path, repository: Repository, *, offline: bool = False) -> str:
    with pytest.raises(EnvbuildError) as caught:
        packed(place, repository, offline=offline)
    return caught.value.problem


def test_the_same_files_make_the_same_archive(tmp_path: Path) -> None:
    files = {
        "pyproject.toml": PROJECT,
        # What git itself would leave out, or write the commit and its branches into.
        ".gitattributes": "left.txt export-ignore\nstamp.txt export-subst\n",
        "left.txt": "",
        "stamp.txt": "$Format:%H %D$\n",
        f"deep/{'x' * 120}": "",
    }
    one, first = packed(tmp_path / "a", commit(tmp_path / "one", files))
    other, second = packed(tmp_path / "b", commit(tmp_path / "other", files, date="2025-02-02T00:00:00"))
    assert one.origin != other.origin
    assert (one.sha256, one.file) == (other.sha256, "my_tool-1.0.0rc1.tar.gz")
    assert first.read_bytes() == second.read_bytes()
    with tarfile.open(first) as archive:
        members = {member.name.partition("/")[2]: member for member in archive}
        assert {"left.txt", "stamp.txt", ".gitattributes", "link", "run.sh"} <= members.keys()
        stamp = archive.extractfile(members["stamp.txt"])
        assert stamp is not None
        assert stamp.read() == b"$Format:%H %D$\n"
    assert (members["run.sh"].mode, members["pyproject.toml"].mode) == (0o755, 0o644)
    assert members["link"].linkname == "run.sh"
    assert {member.mtime for member in members.values()} == {0}


def test_a_project_in_a_directory(tmp_path: Path) -> None:
    root = commit(
        tmp_path / "one", {"pyproject.toml": PROJECT, "sub/setup.cfg": "[metadata]\nversion = 3.0\n"}
    )
    below = Repository(url=root.url, commit=root.commit, subdirectory="sub")
    pin, path = packed(tmp_path, below)
    assert (pin.version, pin.origin.startswith(f"git:{root.commit}.")) == ("3.0", True)
    with tarfile.open(path) as archive:
        assert archive.getnames() == ["my_tool-3.0/setup.cfg"]
    missing = Repository(url=root.url, commit=root.commit, subdirectory="nowhere")
    assert "has no directory `nowhere`" in refused(tmp_path, missing)


@pytest.mark.parametrize("text", ["", '[project]\ndynamic = ["version"]\n', "[project]\nversion = 3\n", "[["])
def test_a_version_that_a_program_decides_is_written_in_the_spec(text: str, tmp_path: Path) -> None:
    made = commit(
        tmp_path / "one", {"pyproject.toml": text, "setup.cfg": "[metadata]\nversion = attr: x.y\n"}
    )
    assert "states the version of `my-tool`" in refused(tmp_path, made)
    stated = Repository(url=made.url, commit=made.commit, version="2.0")
    assert packed(tmp_path, stated)[0].file == "my_tool-2.0.tar.gz"


def test_commits_that_cannot_be_fetched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = commit(tmp_path / "one", {"pyproject.toml": PROJECT})
    assert "git cannot fetch commit" in refused(tmp_path, Repository(url=made.url, commit="0" * 40))
    git(tmp_path / "one", "tag", "--annotate", "--message=x", "v1")
    tag = git(tmp_path / "one", "rev-parse", "v1")
    assert "is not a commit" in refused(tmp_path, Repository(url=made.url, commit=tag))
    assert "offline: commit" in refused(tmp_path, made, offline=True)
    monkeypatch.setattr("envbuild.system.host.search_path", lambda *_, **__: None)
    with pytest.raises(MachineError, match="`git` is not on this machine") as caught:
        packed(tmp_path, made)
    assert "install git" in (caught.value.hint or "")
