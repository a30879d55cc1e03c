"""Work in progress that a killed process left goes with the next run; nothing else does."""

from __future__ import annotations

import ctypes
import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from envbuild.system import host
from envbuild.system.leftovers import own_name, private_work, remove, sweep
from tests.support.trees import deepen

ENDED = "99999999"


def ended(name: str) -> str:
    """Return a name as a process that lives no more made it."""
    return name.replace(f"-{os.getpid()}-", f"-{ENDED}-")


def test_half_files_of_ended_processes_go_and_no_others(tmp_path: Path) -> None:
    mine = f".image.sif.{own_name()}.partial"
    kept = [
        mine,
        ended(f".other.sif.{own_name()}.partial"),
        ended(f".image.sif.{own_name()}"),
        f".image.sif.envbuild-elsewhere-{ENDED}-ab.partial",
        f".image.sif.envbuild-{host.name()}-x-ab.partial",
        "image.sif",
    ]
    for name in (*kept, ended(mine)):
        (tmp_path / name).touch()
    sweep(tmp_path, before=".image.sif.", after=".partial")
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(kept)


def test_work_of_a_host_whose_name_begins_like_ours_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host, "name", lambda: "login")
    theirs, ours = f"envbuild-login-2-{ENDED}-0123456789abcdef", f"envbuild-login-{ENDED}-0123456789abcdef"
    for name in (theirs, ours):
        (tmp_path / name).mkdir()
    sweep(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [theirs]


def test_a_target_may_have_any_name(tmp_path: Path) -> None:
    for name in ("a[b]*.sif", "-", "envbuild-x-1-2"):
        left = tmp_path / ended(f".{name}.{own_name()}.partial")
        left.touch()
        sweep(tmp_path, before=f".{name}.", after=".partial")
        assert not left.exists()


def test_another_users_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    left = tmp_path / ended(own_name())
    left.touch()
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    sweep(tmp_path)
    assert left.exists()
    monkeypatch.undo()
    sweep(tmp_path)
    assert not left.exists()


def test_a_link_goes_and_not_what_it_leads_to(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    left = tmp_path / ended(own_name())
    left.symlink_to("there")
    sweep(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["there"]


def test_private_work_ends_with_the_block_and_takes_what_was_left(tmp_path: Path) -> None:
    left = tmp_path / ended(f".export-{own_name()}")
    (left / "half").mkdir(parents=True)
    with private_work(tmp_path, before=".export-") as work:
        assert [path.name for path in tmp_path.iterdir()] == [work.name]
        assert work.stat().st_mode & 0o777 == 0o700
        (work / "file").touch()
    assert list(tmp_path.iterdir()) == []


def test_nowhere_is_nothing_to_sweep(tmp_path: Path) -> None:
    sweep(tmp_path / "nowhere")


@pytest.fixture
def _without_overriding_permissions() -> Iterator[None]:
    """Root may write where modes forbid it; an ordinary user may not: take that power away.

    Source: capget(2), linux/capability.h: version 3, CAP_DAC_OVERRIDE 1, CAP_DAC_READ_SEARCH 2.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    head = (ctypes.c_uint32 * 2)(0x20080522, 0)
    before = (ctypes.c_uint32 * 6)()
    assert libc.capget(head, before) == 0
    less = (ctypes.c_uint32 * 6)(*before)
    less[0] &= ~0b110
    assert libc.capset(head, less) == 0
    yield
    assert libc.capset(head, before) == 0


class TestRemove:
    @pytest.mark.usefixtures("_without_overriding_permissions")
    def test_read_only_directories(self, tmp_path: Path) -> None:
        tree = tmp_path / "tree"
        (tree / "a" / "b").mkdir(parents=True)
        (tree / "a" / "b" / "file").touch()
        (tree / "a" / "link").symlink_to("b")
        for path, mode in ((tree / "a" / "b", 0o000), (tree / "a", 0o555), (tree, 0o500)):
            path.chmod(mode)
        with pytest.raises(PermissionError):
            (tree / "new").touch()
        remove(tree)
        assert not tree.exists()

    @pytest.mark.usefixtures("_without_overriding_permissions")
    def test_directories_deeper_than_recursion_and_paths_reach(self, tmp_path: Path) -> None:
        outside = tmp_path / "outside"
        (outside / "kept").mkdir(parents=True)
        tree = tmp_path / "tree"
        (tree / "locked/below").mkdir(parents=True)
        (tree / "locked/file").touch()
        (tree / "locked/out").symlink_to(outside)
        deepen(tree, "long name " * 20, 1500)
        (tree / "locked/below").chmod(0o500)
        (tree / "locked").chmod(0o500)
        remove(tree)
        assert not tree.exists()
        assert (outside / "kept").is_dir()

    @pytest.mark.usefixtures("_without_overriding_permissions")
    def test_links_are_not_followed(self, tmp_path: Path) -> None:
        outside = tmp_path / "outside"
        outside.mkdir(mode=0o500)
        tree = tmp_path / "tree"
        (tree / "locked").mkdir(parents=True)
        (tree / "locked" / "out").symlink_to(outside)
        (tree / "locked").chmod(0o500)
        remove(tree)
        assert stat.S_IMODE(outside.stat().st_mode) == 0o500

    @pytest.mark.parametrize(
        "make",
        [
            Path.touch,
            lambda path: path.symlink_to("nowhere"),
            lambda path: path.symlink_to("/"),
            lambda path: None,
        ],
        ids=["file", "dangling link", "link to a directory", "nothing"],
    )
    def test_what_is_no_directory(self, tmp_path: Path, make: Callable[[Path], None]) -> None:
        make(tmp_path / "x")
        remove(tmp_path / "x")
        assert not os.path.lexists(tmp_path / "x")
