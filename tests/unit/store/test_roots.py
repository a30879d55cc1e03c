"""Roots: who needs what, and whether it is still there."""

from __future__ import annotations

from pathlib import Path

import pytest

from envbuild.errors import RequestError
from envbuild.store.gc_roots import Root, add_root, find_roots, needs_of, remove_roots, root_files
from envbuild.store.store import Store
from tests.support.stores import key


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


@pytest.fixture
def root(tmp_path: Path) -> Root:
    return Root(path=str(tmp_path / "x.sif"), digest=key("9"), keys=(key("a"),), files=("f" * 64,))


def test_what_is_written_is_read(store: Store, root: Root) -> None:
    add_root(store, root)
    add_root(store, root)
    (found,) = find_roots(store, lambda path: key("9"))
    assert (found.root, found.state) == (root, "live")
    add_root(store, root.model_copy(update={"keys": ()}))
    (found,) = find_roots(store, lambda path: key("9"))
    assert found.root.keys == (), "an image that is built again has other needs"


@pytest.mark.parametrize(("digest", "state"), [(key("9"), "live"), (key("8"), "gone"), (None, "gone")])
def test_an_image_counts_as_long_as_it_is_that_image(
    store: Store, root: Root, digest: str | None, state: str
) -> None:
    add_root(store, root)
    roots = find_roots(store, lambda path: digest)
    assert [found.state for found in roots] == [state]
    needed = dict.fromkeys((key("a"), root.digest, "f" * 64), (f"image {root.path}",))
    assert needs_of(roots) == ({} if state == "gone" else needed)
    remove_roots(roots)
    assert root_files(store) == []


@pytest.mark.parametrize("link", [False, True])
def test_a_disk_that_is_not_mounted_counts(store: Store, root: Root, tmp_path: Path, link: bool) -> None:
    if link:
        (tmp_path / "scratch").symlink_to(tmp_path / "unmounted")
    add_root(store, root.model_copy(update={"path": str(tmp_path / "scratch/x.sif")}))
    roots = find_roots(store, lambda path: None)
    assert [found.state for found in roots] == ["unreachable"]
    assert needs_of(roots)


def test_where_we_may_not_look_nothing_is_gone(store: Store, root: Root) -> None:
    def refuse(path: Path) -> str | None:
        raise PermissionError(13, "no")

    add_root(store, root)
    assert [found.state for found in find_roots(store, refuse)] == ["unreachable"]


def test_what_is_pinned_counts_without_its_image(store: Store, root: Root) -> None:
    add_root(store, root.model_copy(update={"pinned": True}))
    (found,) = find_roots(store, lambda path: None)
    assert (found.state, found.root.label) == ("live", f"image {root.path} (pinned)")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "{}",
        '{"format":0,"path":"/x"}',
        '{"path":5}',
        '{"path":"/x","keys":["sha256:../x"]}',
        '{"path":"/x","pinned":"yes"}',
        '{"path":"/x","more":1}',
        "[" * 100_000,
    ],
    ids=range(10),
)
def test_one_that_cannot_be_read_is_an_error(store: Store, root: Root, text: str) -> None:
    add_root(store, root)
    (path,) = root_files(store)
    path.write_text(text)
    with pytest.raises(RequestError, match="cannot be read") as caught:
        find_roots(store, lambda path: None)
    assert "nothing was removed" in caught.value.hint


def test_all_who_need_something_are_named(store: Store, root: Root) -> None:
    for name in ("/b", "/a"):
        add_root(store, root.model_copy(update={"path": name, "pinned": True}))
    needs = needs_of(find_roots(store, lambda path: None))
    both = ("image /a (pinned)", "image /b (pinned)")
    assert needs == dict.fromkeys((key("a"), root.digest, "f" * 64), both)
