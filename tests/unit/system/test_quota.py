"""A quota is read where the machine has a program that shows it."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from envbuild.errors import MachineError
from envbuild.events import Event, Note, Warned
from envbuild.system import host, quota
from envbuild.system.quota import Left, left_of, quota_left
from envbuild.workflows.arguments import check_room

QUOTA = """\
Disk quotas for user bob (uid 1000):
     Filesystem  blocks   quota   limit   grace   files   quota   limit   grace
server:/home     {used}   50000   {hard}            10       0       0
"""
LFS = "/scratch   {used}   0   {hard}   -   12   0   0   -\n"

Place = Callable[[str, str], None]


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    """Put a program that prints a text on PATH, and let the mount of the test's directory have a kind."""
    programs = tmp_path / "bin"
    programs.mkdir()
    monkeypatch.setenv("PATH", f"{programs}:/usr/bin:/bin")

    def put(kind: str, text: str) -> None:
        device = tmp_path.stat().st_dev
        number = f"{os.major(device)}:{os.minor(device)}"
        mounts = tmp_path / "mountinfo"
        mounts.write_text(f"22 1 {number} / / rw shared:1 - {kind} server:/home rw\n")
        monkeypatch.setattr(quota, "_MOUNTS", mounts)
        program = programs / ("lfs" if kind == "lustre" else "quota")
        program.write_text(f"#!/bin/sh\ncat <<'END'\n{text}END\n")
        program.chmod(0o755)

    return put


@pytest.mark.parametrize(
    ("text", "size_bytes", "inodes"),
    [
        (QUOTA.format(used=1000, hard=60000), 59000 << 10, None),
        (QUOTA.format(used="61000*", hard=60000), 0, None),
        (QUOTA.format(used=1000, hard=0), 49000 << 10, None),
        (LFS.format(used=5, hard=10), 5 << 10, None),
        (LFS.format(used=5, hard=0), None, None),
        ("srv:/home  61000*  50000  60000  6days  10  100  200\n", 0, 190),
        ("srv:/home  61000*  50000  60000   none  10  100    0\n", 0, 90),
        ("srv:/home   1000       0      0          250*  100  200  00:42\n", None, 0),
        ("/scratch   5   0   10   -   12   0   20   -\n", 5 << 10, 8),
        ("srv:/home   1000\n   50000  60000\n", None, None),
        ("Disk quotas for user bob (uid 1000): none\n", None, None),
        ("", None, None),
        ("nonsense 1 2\n", None, None),
    ],
)
def test_what_is_left(text: str, size_bytes: int | None, inodes: int | None) -> None:
    assert left_of(text) == Left(size_bytes=size_bytes, inodes=inodes)


@pytest.mark.parametrize(("kind", "text"), [("nfs4", QUOTA), ("lustre", LFS)])
def test_the_quota_of_a_directory(tmp_path: Path, place: Place, kind: str, text: str) -> None:
    place(kind, text.format(used=0, hard=2000))
    assert quota_left(tmp_path).size_bytes == 2000 << 10


def test_without_a_program_nothing_is_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "search_path", lambda *_, **__: None)
    assert quota_left(tmp_path) == Left()


def test_a_quota_that_is_too_small_stops_before_the_start(tmp_path: Path, place: Place) -> None:
    place("nfs4", QUOTA.format(used=0, hard=2000))
    events: list[Event] = []
    check_room(tmp_path, 1_000_000, events.append)
    text = f"1.0 MB are needed in `{tmp_path}`, 2.0 MB are free in your quota"
    assert events == [Note(text=text, detail=False)]
    with pytest.raises(
        MachineError, match=r"there is no space for 3\.0 MB in .*: 2\.0 MB are free in your quota"
    ):
        check_room(tmp_path, 3_000_000, events.append)
    check_room(tmp_path, 3_000_000, events.append, least=0)
    assert isinstance(events[-1], Warned)


def test_a_quota_of_files_stops_before_the_start(tmp_path: Path, place: Place) -> None:
    place("lustre", "/scratch   5   0   0   -   12   0   2012   -\n")
    events: list[Event] = []
    check_room(tmp_path, 0, events.append, inodes=2000)
    text = f"2000 inodes are needed in `{tmp_path}`, 2000 inodes are free in your quota"
    assert events[1:] == [Note(text=text, detail=False)]
    with pytest.raises(MachineError, match=r"no space for 2001 inodes in .*: 2000 inodes are free in your"):
        check_room(tmp_path, 0, events.append, inodes=2001)
    check_room(tmp_path, 0, events.append, inodes=2001, least_inodes=12)
    assert isinstance(events[-1], Warned)
