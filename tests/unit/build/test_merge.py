"""Which entries show when layers are laid over each other: checked against a model of overlayfs."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envbuild.build.merge import Entry, hidden_entries
from tests.support.overlays import overlay, trees


def listing(*lines: str) -> list[Entry]:
    """``d a``, ``f a/b``, ``w a/c`` (whiteout), ``l a/d a/b`` (hard link), ``o a`` (opaque)."""
    made = []
    for at, line in enumerate(lines):
        kind, path, *target = line.encode().split()
        made.append(
            Entry(
                at=at,
                path=path,
                directory=kind in (b"d", b"o"),
                whiteout=kind == b"w",
                opaque=kind == b"o",
                link=target[0] if target else b"",
            )
        )
    return made


def shown(layers: list[list[Entry]], *, with_root: bool) -> list[str]:
    """``LAYER KIND PATH`` of all that stays, sorted by path."""
    hidden = hidden_entries(layers, with_root=with_root)
    kept = [
        (entry.path, number, "d" if entry.directory else "w" if entry.whiteout else "f")
        for number, (entries, gone) in enumerate(zip(layers, hidden, strict=True))
        for entry in entries
        if entry not in gone
    ]
    return [f"{number} {kind} {path.decode()}" for path, number, kind in sorted(kept)]


def test_directories_merge_and_the_top_decides() -> None:
    layers = [
        listing("d /", "d opt", "f opt/a", "f opt/b"),
        listing("d /", "d opt", "f opt/b", "f opt/c"),
    ]
    assert shown(layers, with_root=True) == ["1 d /", "1 d opt", "0 f opt/a", "1 f opt/b", "1 f opt/c"]


def test_a_file_hides_a_directory_and_all_in_it() -> None:
    layers = [listing("d /", "d x", "f x/a", "d x/y", "f x/y/z", "f xa"), listing("d /", "f x")]
    assert shown(layers, with_root=True) == ["1 d /", "1 f x", "0 f xa"]


def test_whiteouts_work_and_go_with_the_root() -> None:
    layers = [listing("d /", "d x", "f x/a", "f y"), listing("d /", "w x", "w none"), listing("d /")]
    assert shown(layers, with_root=True) == ["2 d /", "0 f y"]


def test_whiteouts_stay_for_what_lies_below() -> None:
    layers = [listing("d /", "d x", "f x/a"), listing("d /", "d x", "w x/a", "w y")]
    assert shown(layers, with_root=False) == ["1 d /", "1 d x", "1 w x/a", "1 w y"]


def test_a_directory_over_a_whiteout_starts_empty() -> None:
    layers = [listing("d /", "d x", "f x/a"), listing("d /", "w x"), listing("d /", "d x", "f x/b")]
    assert shown(layers, with_root=True) == ["2 d /", "2 d x", "2 f x/b"]


@pytest.mark.parametrize("lower", ["w x", "f x"])
def test_a_directory_that_would_have_to_hide_what_lies_below(lower: str) -> None:
    layers = [listing("d /", lower), listing("d /", "d x")]
    with pytest.raises(ValueError, match="the directory 'x' would have to hide what lies below"):
        hidden_entries(layers, with_root=False)


def test_hard_links_stay_together() -> None:
    layers = [listing("d /", "f a", "l b a"), listing("d /", "f c")]
    assert shown(layers, with_root=True) == ["1 d /", "0 f a", "0 f b", "1 f c"]
    over = [layers[0], listing("d /", "f a")]
    assert shown(over, with_root=True) == ["1 d /", "1 f a", "0 f b"], "a link outlives its first name"


def test_an_opaque_directory_hides_what_lies_lower_and_nothing_beside_it() -> None:
    layers = [
        listing("d /", "d x", "f x/a", "d x/y", "f x/y/b", "f z"),
        listing("d /", "o x", "f x/c", "d x/y"),
        listing("d /", "d x", "f x/d"),
    ]
    assert shown(layers, with_root=True) == ["2 d /", "2 d x", "1 f x/c", "2 f x/d", "1 d x/y", "0 f z"]
    with pytest.raises(ValueError, match="the directory 'x' would have to hide what lies below"):
        hidden_entries(layers, with_root=False)


@given(st.lists(trees(), min_size=1, max_size=4))
def test_equals_what_overlayfs_shows(layers: list[dict[bytes, str]]) -> None:
    listings = [
        [
            Entry(at=0, path=path, directory=kind in "do", whiteout=kind == "w", opaque=kind == "o")
            for path, kind in sorted(tree.items())
        ]
        for tree in layers
    ]
    expected = [
        f"{number} {kind} {path.decode()}" for path, (number, kind) in sorted(overlay(layers).items())
    ]
    assert shown(listings, with_root=True) == expected


@given(st.lists(trees(), min_size=3, max_size=4))
def test_merging_some_layers_first_changes_nothing(layers: list[dict[bytes, str]]) -> None:
    """Upper layers merged by themselves and laid over the rest show the same."""
    listings = [
        [
            Entry(at=0, path=path, directory=kind in "do", whiteout=kind == "w", opaque=kind == "o")
            for path, kind in sorted(tree.items())
        ]
        for tree in layers[1:]
    ]
    try:
        lines = shown(listings, with_root=False)
    except ValueError:
        return
    merged = {path.encode(): kind for _, kind, path in (line.split() for line in lines)}
    kinds = {path: kind for path, (_, kind) in overlay([layers[0], merged]).items()}
    assert kinds == {path: kind for path, (_, kind) in overlay(layers).items()}
