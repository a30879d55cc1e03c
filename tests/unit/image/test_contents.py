"""What layers show over one another, as the model of overlayfs that merges are held to; damaged ones."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envbuild.errors import RequestError, render
from envbuild.image.contents import file_systems, stacked
from envbuild.image.sif import read_sif
from envbuild.image.squashfs import Entry, Kind
from tests.support.overlays import overlay, trees
from tests.support.small_images import small_image

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


def test_a_damaged_file_system_is_told_with_its_image(tmp_path: Path) -> None:
    image = small_image(tmp_path, b"hsqs".ljust(28, b"\0") + b"\4".ljust(68, b"\0"))
    with image.open("r+b") as file:
        file.seek(read_sif(image).partitions[0].offset + 20)
        file.write(b"\x09")
    with pytest.raises(RequestError) as caught, file_systems(image):
        pass
    assert render(caught.value) == (
        "error: a file system of `small.sif` cannot be read:"
        " its compression (number 9) is neither gzip nor zstd\n"
        f"  --> {image}\n"
        "\n"
        "hint: build the image again, or copy it again from where it came\n"
    )
