"""What a layer holds, how layers lie over one another, and where two claim the same path."""

from __future__ import annotations

import hashlib
import os
import socket
from pathlib import Path

import pytest

from envbuild.errors import BuildError
from envbuild.store.tree import DEEPEST, WHITEOUT, Tree, collisions, scan, walk
from envbuild.system.removal import remove
from tests.support.trees import deepen

EMPTY = hashlib.sha256(b"").hexdigest()


def tree(**entries: str) -> Tree:
    return entries


class TestScan:
    def test_one_line_a_path(self, tmp_path: Path) -> None:
        (tmp_path / "d").mkdir(mode=0o700)
        (tmp_path / "d").chmod(0o2750)
        (tmp_path / "d" / "file").write_bytes(b"x")
        (tmp_path / "d" / "file").chmod(0o4755)
        (tmp_path / "d.txt").touch()
        (tmp_path / "d.txt").chmod(0o600)
        (tmp_path / "link").symlink_to("./d//file/")
        (tmp_path / "dangling").symlink_to("/no/such")
        assert dict(scan(tmp_path)) == {
            "d": "d 2750",
            "d/file": f"f 4755 {hashlib.sha256(b'x').hexdigest()}",
            "d.txt": f"f 0600 {EMPTY}",
            "dangling": "l /no/such",
            "link": "l ./d//file/",
        }

    def test_names_that_are_no_text(self, tmp_path: Path) -> None:
        os.close(os.open(os.fsencode(tmp_path) + b"/\xff\n", os.O_CREAT | os.O_WRONLY, 0o644))
        assert list(scan(tmp_path)) == ["\udcff\n"]

    def test_the_order_is_that_of_names(self, tmp_path: Path) -> None:
        for name in ("b", "a", "c"):
            (tmp_path / name).mkdir()
            (tmp_path / name / "x").touch()
        assert [path.relative_to(tmp_path).as_posix() for path, _ in walk(tmp_path)] == [
            *("a", "a/x", "b", "b/x", "c", "c/x")
        ]

    def test_links_are_not_followed(self, tmp_path: Path) -> None:
        (tmp_path / "loop").symlink_to(".")
        assert list(scan(tmp_path)) == ["loop"]

    @pytest.mark.parametrize(("name", "depth"), [("d", 1500), ("d" * 200, 16)], ids=["deep", "long"])
    def test_paths_that_programs_cannot_reach(self, tmp_path: Path, name: str, depth: int) -> None:
        deepen(tmp_path / "top", name, depth)
        with pytest.raises(BuildError, match="is a path that is too long or too deep"):
            scan(tmp_path)
        remove(tmp_path / "top")

    def test_a_tree_as_deep_as_any_may_be(self, tmp_path: Path) -> None:
        deepen(tmp_path, "d", DEEPEST)
        assert len(scan(tmp_path)) == DEEPEST

    def test_what_a_layer_cannot_hold(self, tmp_path: Path) -> None:
        os.mkfifo(tmp_path / "pipe")
        with pytest.raises(BuildError, match="`/pipe` is neither"):
            scan(tmp_path)
        (tmp_path / "pipe").unlink()
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(tmp_path / "socket"))
            with pytest.raises(BuildError, match="`/socket` is neither"):
                scan(tmp_path)


class TestCollisions:
    def test_the_same_bytes_and_mode_are_none(self) -> None:
        assert not collisions({"a": tree(x="f 0644 1", d="d 0755"), "b": tree(x="f 0644 1", d="d 0755")})

    @pytest.mark.parametrize("other", ["f 0755 1", "f 0644 2", "d 0644", "l x", WHITEOUT])
    def test_any_difference_is_one(self, other: str) -> None:
        assert collisions({"a": tree(x="f 0644 1"), "b": tree(x=other)}) == [("x", "a", "b")]

    def test_each_pair_is_told_and_named_in_order(self) -> None:
        trees = {"a": tree(x="f 1"), "b": tree(x="f 2"), "c": tree(x="f 1"), "d": tree(y="f 1")}
        assert collisions(trees) == [("x", "a", "b"), ("x", "b", "c")]
