"""What layers show over one another: as the model of overlayfs that merges are held to."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from envbuild.image.contents import stacked
from envbuild.image.squashfs import Entry, Kind
from tests.unit.build.test_merge import overlay, trees

KINDS: dict[str, Kind] = {"d": "directory", "o": "directory", "f": "file", "w": "whiteout"}


def entries(tree: dict[bytes, str], number: int) -> list[Entry]:
    """A layer in the order of a walk; the layer's number is the mode."""
    opaque = (("trusted.overlay.opaque", b"y"),)
    return [
        Entry("/" + path.decode().strip("/"), KINDS[kind], number, attributes=opaque if kind == "o" else ())
        for path, kind in sorted(tree.items())
    ]


@given(st.lists(trees(), min_size=1, max_size=4))
def test_equals_what_overlayfs_shows(layers: list[dict[bytes, str]]) -> None:
    shown = stacked([entries(tree, number) for number, tree in enumerate(layers)])
    found = {path: (entry.mode, entry.kind) for path, entry in shown.items()}
    assert found == {
        "/" + path.decode().strip("/"): (number, KINDS[kind])
        for path, (number, kind) in overlay(layers).items()
    }
