"""What a layer holds, how layers lie over one another, and where two claim the same path."""

from __future__ import annotations

import hashlib
import os
import socket
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envbuild.errors import BuildError
from envbuild.store.tree import DEEPEST, WHITEOUT, Tree, collisions, scan, stack, walk
from envbuild.system.leftovers import remove
from tests.support.trees import deepen

EMPTY = hashlib.sha256(b"").hexdigest()


def tree(**entries: str) -> Tree:
    return Tree(entries=entries)


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
        assert dict(scan(tmp_path).entries) == {
            "d": "d 2750",
            "d/file": f"f 4755 {hashlib.sha256(b'x').hexdigest()}",
            "d.txt": f"f 0600 {EMPTY}",
            "dangling": "l /no/such",
            "link": "l ./d//file/",
        }

    def test_names_that_are_no_text(self, tmp_path: Path) -> None:
        os.close(os.open(os.fsencode(tmp_path) + b"/\xff\n", os.O_CREAT | os.O_WRONLY, 0o644))
        assert list(scan(tmp_path).entries) == ["\udcff\n"]

    def test_the_order_is_that_of_names(self, tmp_path: Path) -> None:
        for name in ("b", "a", "c"):
            (tmp_path / name).mkdir()
            (tmp_path / name / "x").touch()
        assert [path.relative_to(tmp_path).as_posix() for path, _ in walk(tmp_path)] == [
            *("a", "a/x", "b", "b/x", "c", "c/x")
        ]

    def test_links_are_not_followed(self, tmp_path: Path) -> None:
        (tmp_path / "loop").symlink_to(".")
        assert list(scan(tmp_path).entries) == ["loop"]

    @pytest.mark.parametrize(("name", "depth"), [("d", 1500), ("d" * 200, 16)], ids=["deep", "long"])
    def test_paths_that_programs_cannot_reach(self, tmp_path: Path, name: str, depth: int) -> None:
        deepen(tmp_path / "top", name, depth)
        with pytest.raises(BuildError, match="is a path that is too long or too deep"):
            scan(tmp_path)
        remove(tmp_path / "top")

    def test_a_tree_as_deep_as_any_may_be(self, tmp_path: Path) -> None:
        deepen(tmp_path, "d", DEEPEST)
        assert len(scan(tmp_path).entries) == DEEPEST

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


class TestStack:
    def test_the_upper_one_wins_and_directories_merge(self) -> None:
        low = Tree(entries={"d": "d 0755", "d/a": "f low", "d/b": "f low"})
        high = Tree(entries={"d": "d 0700", "d/b": "f high", "d/c": "f high"})
        assert dict(stack([low, high], with_root=True).entries) == {
            "d": "d 0700",
            "d/a": "f low",
            "d/b": "f high",
            "d/c": "f high",
        }

    @pytest.mark.parametrize("instead", [WHITEOUT, "f 0644 1", "l elsewhere"])
    def test_what_takes_a_directorys_place_hides_all_below_it(self, instead: str) -> None:
        low = Tree(entries={"d": "d 0755", "d/a": "f low", "d-e": "f low"})
        shown = stack([low, tree(d=instead)], with_root=False)
        assert dict(shown.entries) == {"d": instead, "d-e": "f low"}

    def test_a_whiteout_matters_only_while_something_lies_below(self) -> None:
        layers = [tree(a="f 1", b="f 1"), tree(a=WHITEOUT, c=WHITEOUT)]
        assert dict(stack(layers, with_root=False).entries) == {"a": WHITEOUT, "b": "f 1", "c": WHITEOUT}
        assert dict(stack(layers, with_root=True).entries) == {"b": "f 1"}

    def test_what_comes_back_is_there(self) -> None:
        layers = [tree(a="f 1"), tree(a=WHITEOUT), tree(a="f 2")]
        assert dict(stack(layers, with_root=False).entries) == {"a": "f 2"}


kinds = st.sampled_from(["d 0755", "d 0700", "f 0644 1", "l x", WHITEOUT])


@st.composite
def layers(draw: st.DrawFn) -> Tree:
    """A tree that a disk could hold: what lies below a path lies in a directory."""
    entries: dict[str, str] = {}
    for path in ("a", "b", "a/a", "a/b", "a/a/a"):
        parent = path.rpartition("/")[0]
        if (not parent or entries.get(parent, "").startswith("d ")) and draw(st.booleans()):
            entries[path] = draw(kinds)
    return Tree(entries=entries)


@given(st.lists(layers(), min_size=1, max_size=4))
def test_a_stack_is_a_tree_that_a_disk_could_hold(trees: list[Tree]) -> None:
    shown = stack(
        [Tree(entries={"a": "d 0755", "b": "d 0755", "a/a": "d 0755"}), *trees], with_root=True
    ).entries
    for path in shown:
        parent = path.rpartition("/")[0]
        assert not parent or shown[parent].startswith("d ")
    assert list(shown) == sorted(shown)
    assert WHITEOUT not in shown.values()


def test_whiteouts_are_no_paths() -> None:
    both = tree(a=WHITEOUT, b="f 1")
    assert both.whiteouts == ("a",)
    assert dict(both.without_whiteouts().entries) == {"b": "f 1"}
