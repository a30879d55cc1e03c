"""Commits of repositories as source archives: the same bytes everywhere."""

from __future__ import annotations

import configparser
import hashlib
import tarfile
import tracemalloc
from collections.abc import Mapping
from pathlib import Path

import pytest

from envbuild.errors import EnvbuildError, Location, MachineError
from envbuild.lock.model import PythonPin
from envbuild.resolve import commits
from envbuild.resolve.commits import archive_commit
from envbuild.resolve.context import ResolveContext
from envbuild.resolve.files import FileCache
from envbuild.resolve.origins import Machine
from envbuild.spec.requirements import Repository
from tests.support.repositories import a_commit, git

AT = Location(path=Path("spec.yaml"))
PROJECT = '[project]\nname = "My.Tool"\nversion = "1.0.0rc1"\n'


def commit(place: Path, files: Mapping[str, str], *, date: str = "2024-01-01T00:00:00") -> Repository:
    return Repository(url=f"file://{place}", commit=a_commit(place, files, date=date))


def packed(
    place: Path, repository: Repository, *, offline: bool = False, directory: Path | None = None
) -> tuple[PythonPin, Path]:
    context = ResolveContext(
        machine=Machine(),
        cache_dir=place / "cache",
        files=FileCache(place / "files"),
        emit=lambda _: None,
        offline=offline,
    )
    # The directories of all tests: whatever a test makes is inside.
    pin = archive_commit("my-tool", repository, AT, context, directory=directory or place.parent)
    return pin, context.files.path(pin)


def refused(
    place: Path, repository: Repository, *, offline: bool = False, directory: Path | None = None
) -> str:
    with pytest.raises(EnvbuildError) as caught:
        packed(place, repository, offline=offline, directory=directory)
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


def with_submodule(place: Path, address: str, commit: str, path: str = "sub/part") -> Repository:
    """Return a repository with a submodule, as `git submodule add` records it."""
    text = f'[submodule "a.b"]\n\tpath = {path}\n\turl = {address}\n'
    a_commit(place, {"pyproject.toml": PROJECT, "sub/setup.cfg": "", ".gitmodules": text})
    git(place, "update-index", "--add", "--cacheinfo", f"160000,{commit},{path}")
    git(place, "commit", "--quiet", "--message=y")
    return Repository(url=f"file://{place}", commit=git(place, "rev-parse", "HEAD"))


def test_submodules_are_fetched_at_the_recorded_commits(tmp_path: Path) -> None:
    inner = commit(tmp_path / "inner", {"data.txt": "of inner\n"})
    middle = with_submodule(tmp_path / "middle", "../inner", inner.commit, "deep")
    (tmp_path / "middle/newer.txt").write_text("")
    git(tmp_path / "middle", "add", "newer.txt")
    git(tmp_path / "middle", "commit", "--quiet", "--message=z")
    outer = with_submodule(tmp_path / "outer", f"file://{tmp_path}/middle", middle.commit)
    _, path = packed(tmp_path, outer)
    with tarfile.open(path) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
        data = archive.extractfile("my_tool-1.0.0rc1/sub/part/deep/data.txt")
        assert data is not None
        assert data.read() == b"of inner\n"
    assert "sub/part/pyproject.toml" in names
    assert "sub/part/newer.txt" not in names
    below = Repository(url=outer.url, commit=outer.commit, subdirectory="sub", version="1")
    with tarfile.open(packed(tmp_path, below)[1]) as archive:
        assert "my_tool-1/part/deep/data.txt" in archive.getnames()


@pytest.mark.parametrize("address", ["ext::sh -c x", "/srv/x.git", "https://u:p@example.org/x.git", ""])
def test_submodules_at_other_addresses_are_refused(address: str, tmp_path: Path) -> None:
    made = with_submodule(tmp_path / "one", address, "1" * 40)
    said = refused(tmp_path, made)
    assert said.startswith("the submodule `sub/part` of file://")
    assert said.endswith("which is not fetched")
    assert "u:p" not in said


def test_a_submodule_of_a_remote_repository_is_not_read_from_this_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    private = commit(tmp_path / "private", {"secret.txt": ""})
    made = with_submodule(tmp_path / "one", private.url, private.commit)
    configuration = f'[url "file://{tmp_path}/"]\n\tinsteadOf = https://example.org/\n'
    (tmp_path / ".gitconfig").write_text(configuration)
    monkeypatch.setenv("HOME", str(tmp_path))
    remote = Repository(url="https://example.org/one", commit=made.commit)
    assert f"has the address `{private.url}`, which is not fetched" in refused(tmp_path, remote)
    assert packed(tmp_path, made)[0].version == "1.0.0rc1"


def test_a_submodule_that_cannot_be_fetched_is_refused(tmp_path: Path) -> None:
    made = with_submodule(tmp_path / "one", "../gone", "1" * 40)
    assert f"git cannot fetch commit {'1' * 40} of file://{tmp_path}/gone" in refused(tmp_path, made)


def elsewhere(kind: str, mine: Path, private: Path) -> str:
    """Make a repository that leads from one directory into another, as a kind; return its address."""
    here = mine / "tool"
    if kind == "named":
        return f"file://{private}"
    if kind == "parent":
        return f"file://{mine}/../private"
    if kind == "encoded":
        return f"file://{mine}/%2e%2e/private"
    if kind == "localhost":
        return f"file://localhost{private}"
    if kind == "link":
        here.symlink_to(private)
    elif kind == "link to .git":
        here.mkdir()
        (here / ".git").symlink_to(private / ".git")
    elif kind == "link with a suffix":
        (mine / "tool.git").symlink_to(private / ".git")
    elif kind == "file .git":
        here.mkdir()
        (here / ".git").write_text(f"gitdir: {private}/.git\n")
    elif kind == "links in .git":
        git(mine, "init", "--quiet", "tool")
        (here / ".git/objects/pack").rmdir()
        (here / ".git/objects/pack").symlink_to(private / ".git/objects/pack")
    elif kind == "alternates":
        git(mine, "init", "--quiet", "tool")
        (here / ".git/objects/info").mkdir(exist_ok=True)
        (here / ".git/objects/info/alternates").write_text(f"{private}/.git/objects\n")
    elif kind == "common directory":
        git(mine, "init", "--quiet", "tool")
        (here / ".git/commondir").write_text(f"{private}/.git\n")
    return f"file://{here}"


KINDS = (
    *("named", "parent", "encoded", "localhost", "link", "link to .git", "link with a suffix", "file .git"),
    *("links in .git", "alternates", "common directory"),
)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("is_submodule", [False, True], ids=["spec", "submodule"])
def test_a_repository_outside_the_directory_of_the_spec_is_refused(
    kind: str, is_submodule: bool, tmp_path: Path
) -> None:
    private = commit(tmp_path / "private", {"pyproject.toml": PROJECT})
    git(tmp_path / "private", "repack", "-adq")
    mine = tmp_path / "mine"
    mine.mkdir()
    made = Repository(url=elsewhere(kind, mine, tmp_path / "private"), commit=private.commit)
    if is_submodule:
        made = with_submodule(mine / "outer", made.url, made.commit)
    assert "outside the spec's directory" in refused(tmp_path, made, directory=mine)
    assert not list((tmp_path / "files").rglob("*.tar.gz"))


def test_a_repository_inside_may_be_bare_or_linked_inside(tmp_path: Path) -> None:
    made = commit(tmp_path / "mine/tool", {"pyproject.toml": PROJECT})
    git(tmp_path / "mine", "clone", "--quiet", "--bare", "tool", "bare.git")
    (tmp_path / "mine/link").symlink_to("tool")
    for name in ("tool", "bare", "bare.git", "link"):
        repository = Repository(url=f"file://{tmp_path}/mine/{name}", commit=made.commit)
        assert packed(tmp_path, repository, directory=tmp_path / "mine")[0].version == "1.0.0rc1"


def test_pointers_of_git_lfs_are_refused(tmp_path: Path) -> None:
    pointer = f"version https://git-lfs.github.com/spec/v1\noid sha256:{'0' * 64}\nsize 5\n"
    made = commit(tmp_path / "one", {"pyproject.toml": PROJECT, "model.bin": pointer})
    assert refused(tmp_path, made) == "files of `my-tool` are in Git LFS, which is not fetched: model.bin"


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


@pytest.mark.parametrize(
    "text",
    [
        *("", '[project]\ndynamic = ["version"]\n', "[project]\nversion = 3\n", "[["),
        *("a = " + "[" * 10_000, "a = " + "9" * 5000, "a." * 10_000 + "b = 1"),
    ],
)
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
    gone = refused(tmp_path, Repository(url=f"file://{tmp_path}/gone", commit="0" * 40))
    assert gone.endswith(f": '{tmp_path}/gone' does not appear to be a git repository")
    git(tmp_path / "one", "tag", "--annotate", "--message=x", "v1")
    tag = git(tmp_path / "one", "rev-parse", "v1")
    assert "is not a commit" in refused(tmp_path, Repository(url=made.url, commit=tag))
    assert "offline: commit" in refused(tmp_path, made, offline=True)
    monkeypatch.setattr("envbuild.system.host.search_path", lambda *_, **__: None)
    with pytest.raises(MachineError, match="`git` is not on this machine") as caught:
        packed(tmp_path, made)
    assert "install git" in (caught.value.hint or "")


def test_a_large_commit_stays_on_the_disk(tmp_path: Path) -> None:
    made = commit(tmp_path / "one", {"pyproject.toml": PROJECT, "large": "x" * (24 << 20)})
    tracemalloc.start()
    try:
        pin, path = packed(tmp_path, made)
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert pin.size_bytes == path.stat().st_size > 24 << 20
    assert peak_bytes < 12 << 20
    content = path.read_bytes()
    # Stored blocks alone, all full but the last.
    lengths: list[int] = []
    at = 10
    while not lengths or not content[at - lengths[-1] - 5]:
        lengths.append(int.from_bytes(content[at + 1 : at + 3], "little"))
        at += 5 + lengths[-1]
    assert set(lengths[:-1]) == {0xFFFF}
    assert len(content) == at + 8
    with tarfile.open(path) as archive:
        large = archive.extractfile("my_tool-1.0.0rc1/large")
        assert large is not None
        assert large.read() == b"x" * (24 << 20)
    assert list((tmp_path / "cache").iterdir()) == []


@pytest.mark.redteam
def test_a_commit_is_fetched_up_to_a_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    noise = "".join(hashlib.sha256(b"%d" % number).hexdigest() for number in range(40_000))
    made = commit(tmp_path / "one", {"pyproject.toml": PROJECT, "noise": noise})
    assert packed(tmp_path / "whole", made)[0].size_bytes > 2 << 20
    monkeypatch.setattr(commits, "_MAX_WRITTEN_BYTES", 256 << 10)
    assert "has more than 1024 MiB or 200000 files" in refused(tmp_path, made)
    assert list((tmp_path / "cache").iterdir()) == []


@pytest.mark.redteam
def test_a_tree_that_holds_itself_many_times_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ten trees of ten entries each are ten thousand million files, and a few hundred bytes."""
    made = commit(tmp_path / "one", {"pyproject.toml": PROJECT})
    place = tmp_path / "one"
    blob = git(place, "rev-parse", f"{made.commit}:pyproject.toml")
    entry = f"100644 blob {blob}"
    for _ in range(10):
        lines = "".join(f"{entry}\tf{number}\n" for number in range(10))
        tree = git(place, "mktree", stdin=lines)
        entry = f"040000 tree {tree}"
    bomb = git(place, "commit-tree", "-m", "x", entry.rpartition(" ")[2])
    git(place, "update-ref", "refs/heads/main", bomb)
    monkeypatch.setattr(commits, "_MAX_GIT_MEMORY_BYTES", 128 << 20)
    assert "has more than 1024 MiB or 200000 files" in refused(
        tmp_path, Repository(url=made.url, commit=bomb, version="1.0")
    )


def test_the_files_of_a_commit_are_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = commit(tmp_path / "one", {"pyproject.toml": PROJECT, **{f"f{number}": "" for number in range(5)}})
    monkeypatch.setattr(commits, "_MAX_FILES", 8)
    packed(tmp_path / "whole", made)
    monkeypatch.setattr(commits, "_MAX_FILES", 7)
    assert "or 7 files" in refused(tmp_path, made)


@pytest.mark.parametrize(
    "text", ["[metadata]\na" + " " * 2000 + "b\nversion = 1.0\n", "#" * (300 << 10)], ids=["line", "size"]
)
def test_a_hostile_setup_cfg_states_no_version(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its parser takes quadratic time for a line with many spaces."""
    made = commit(tmp_path / "one", {"setup.cfg": text})
    parsed: list[str] = []
    monkeypatch.setattr(configparser.RawConfigParser, "read_string", lambda self, text: parsed.append(text))
    assert "states the version of `my-tool`" in refused(tmp_path, made)
    assert parsed in ([], [""])
