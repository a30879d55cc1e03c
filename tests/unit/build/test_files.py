"""Layers of files that we write: bytes and modes are those of the plan."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from envbuild.build.files import add_files
from envbuild.build.layer_writer import LayerWriter
from envbuild.errors import BuildError
from envbuild.plan.model import InlineFile
from envbuild.squashfs.packing import ZSTD
from envbuild.store.tree import Tree
from tests.support.squashfs_images import Node, read_with_us, shown_of


def entry(path: str, content: bytes = b"", executable: bool = False) -> InlineFile:
    return InlineFile(path=path, content=base64.b64encode(content).decode(), executable=executable)


def written(entries: Sequence[InlineFile], links: Mapping[str, str], out: Path) -> Tree:
    with ThreadPoolExecutor(1) as pool:
        writer = LayerWriter(out, ZSTD, pool)
        add_files(entries, links, writer)
        writer.finish()
    return writer.tree


def test_modes_and_bytes_are_those_of_the_plan(tmp_path: Path) -> None:
    out = tmp_path / "out"
    tree = written(
        [entry("/a/b/c", b"\0\xff"), entry("/a/run", executable=True)], {"/a/d/l": "/nowhere"}, out
    )
    assert {path: what[:6] for path, what in tree.items()} == {
        "a": "d 0755",
        "a/b": "d 0755",
        "a/b/c": "f 0644",
        "a/d": "d 0755",
        "a/d/l": "l /now",
        "a/run": "f 0755",
    }
    directories = dict.fromkeys(("/", "/a", "/a/b", "/a/d"), Node(kind="directory", mode=0o755))
    assert read_with_us(out) == shown_of(
        {
            **directories,
            "/a/b/c": Node(kind="file", content=b"\0\xff"),
            "/a/run": Node(kind="file", mode=0o755),
            "/a/d/l": Node(kind="link", target="/nowhere"),
        }
    )


def test_the_order_of_entries_changes_no_path(tmp_path: Path) -> None:
    entries = [entry("/b/x", b"1"), entry("/a", b"2"), entry("/b/a/y", b"3")]
    trees = [
        list(written(given, {}, tmp_path / name).items())
        for name, given in (("one", entries), ("two", entries[::-1]))
    ]
    assert trees[0] == trees[1]


def test_nothing_lies_below_a_link(tmp_path: Path) -> None:
    links = {"/opt/a": "/outside", "/opt/a/x": "/etc/passwd"}
    with pytest.raises(BuildError, match="`/opt/a/x` lies below a symbolic link"):
        written([], links, tmp_path / "links")
    with pytest.raises(BuildError, match="`/opt/a/y` lies below a symbolic link"):
        written([entry("/opt/a/y")], {"/opt/a": "/outside"}, tmp_path / "files")
