"""Work in progress that a killed process left goes with the next run; nothing else does."""

from __future__ import annotations

import ctypes
import os
import stat
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from envbuild.system import host
from envbuild.system.files import atomic_file
from envbuild.system.leftovers import own_name, private_work, sweep
from envbuild.system.removal import remove
from tests.support.trees import deepen

ENDED = "99999999"


def ended(name: str) -> str:
    """Return a name as a process that lives no more made it."""
    return name.replace(f"-{os.getpid()}-", f"-{ENDED}-")


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


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


class TestAtomicFile:
    @pytest.mark.parametrize(("mask", "mode"), [(0o022, 0o644), (0o077, 0o600)])
    def test_it_has_its_place_and_mode_at_the_end(self, tmp_path: Path, mask: int, mode: int) -> None:
        place = tmp_path / "file"
        place.write_text("before")
        umask = os.umask(mask)
        try:
            with atomic_file(place, mode=0o666) as file:
                os.write(file, b"after")
                assert place.read_text() == "before"
        finally:
            os.umask(umask)
        assert place.read_text() == "after"
        assert place.stat().st_mode & 0o777 == mode
        assert names(tmp_path) == ["file"]

    def test_it_can_be_run_at_once(self, tmp_path: Path) -> None:
        with atomic_file(tmp_path / "program", mode=0o777) as file:
            os.write(file, b"#!/bin/sh\necho yes\n")
        said = subprocess.run([tmp_path / "program"], capture_output=True, check=True)
        assert said.stdout == b"yes\n"

    @pytest.mark.parametrize("error", [OSError, ValueError, KeyboardInterrupt])
    def test_nothing_is_left_of_a_failure(self, tmp_path: Path, error: type[BaseException]) -> None:
        place = tmp_path / "file"
        place.write_text("before")

        def fail() -> None:
            with atomic_file(place, mode=0o666) as file:
                os.write(file, b"half")
                raise error

        with pytest.raises(error):
            fail()
        assert place.read_text() == "before"
        assert names(tmp_path) == ["file"]

    def test_nothing_is_left_where_it_can_take_no_place(self, tmp_path: Path) -> None:
        place = tmp_path / "file"
        with pytest.raises(IsADirectoryError), atomic_file(place, mode=0o666):
            place.mkdir()
        assert names(tmp_path) == ["file"]
        assert place.is_dir()

    @pytest.mark.parametrize("make", [Path.mkdir, os.mkfifo], ids=["directory", "pipe"])
    def test_only_a_regular_file_is_replaced(self, tmp_path: Path, make: Callable[[Path], None]) -> None:
        make(place := tmp_path / "there")
        kind = stat.S_IFMT(place.stat().st_mode)
        with pytest.raises(OSError, match="it is "), atomic_file(place, mode=0o666):
            pass
        assert stat.S_IFMT(place.stat().st_mode) == kind
        assert names(tmp_path) == ["there"]

    def test_half_files_of_killed_processes_go_first(self, tmp_path: Path) -> None:
        (tmp_path / ended(f".file.{own_name()}.partial")).touch()
        with atomic_file(tmp_path / "file", mode=0o666):
            assert len(names(tmp_path)) == 1


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

    @pytest.mark.redteam
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
