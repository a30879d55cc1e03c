"""Layers of files that we write: bytes and modes are those of the plan, whoever writes them."""

from __future__ import annotations

import base64
import os
from pathlib import Path

import pytest

from envbuild.build.files import write_files
from envbuild.errors import BuildError
from envbuild.plan.model import InlineFile
from envbuild.store.tree import scan


def entry(path: str, content: bytes = b"", executable: bool = False) -> InlineFile:
    return InlineFile(path=path, content=base64.b64encode(content).decode(), executable=executable)


@pytest.mark.parametrize("mask", [0o000, 0o077])
def test_modes_and_bytes_whatever_the_umask(tmp_path: Path, mask: int) -> None:
    before = os.umask(mask)
    try:
        write_files(
            [entry("/a/b/c", b"\0\xff"), entry("/a/run", executable=True)], {"/a/d/l": "/nowhere"}, tmp_path
        )
    finally:
        os.umask(before)
    kinds = {path: what[:6] for path, what in scan(tmp_path).items()}
    assert kinds == {
        "a": "d 0755",
        "a/b": "d 0755",
        "a/b/c": "f 0644",
        "a/d": "d 0755",
        "a/d/l": "l /now",
        "a/run": "f 0755",
    }
    assert (tmp_path / "a/b/c").read_bytes() == b"\0\xff"


def test_the_order_of_entries_changes_nothing(tmp_path: Path) -> None:
    entries = [entry("/b/x", b"1"), entry("/a", b"2"), entry("/b/a/y", b"3")]
    for name, given in (("one", entries), ("two", entries[::-1])):
        (tmp_path / name).mkdir()
        write_files(given, {}, tmp_path / name)
    assert scan(tmp_path / "one") == scan(tmp_path / "two")


def test_no_link_is_followed(tmp_path: Path) -> None:
    (tmp_path / "root").mkdir()
    (tmp_path / "outside").mkdir()
    links = {"/opt/a": str(tmp_path / "outside"), "/opt/a/x": "/etc/passwd"}
    with pytest.raises(BuildError, match="below a symbolic link"):
        write_files([], links, tmp_path / "root")
    assert list((tmp_path / "outside").iterdir()) == []
