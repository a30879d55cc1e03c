"""The file system of an image is read without mounting it; one that is damaged is told with its image."""

from __future__ import annotations

from pathlib import Path

import pytest

from envbuild.errors import RequestError, render
from tests.support import trees
from tests.support.forged_squashfs import directory_inode, file_inode, forge, listing
from tests.support.images import file_system, image_entries, read_sif


@pytest.fixture
def image(tmp_path: Path) -> Path:
    """An image of two layers, each of which holds an empty file of its name."""
    layers = {}
    for name in ("base", "top"):
        names = listing([name.encode()], 0, 40, 2)
        inodes = directory_inode(1, size=len(names)) + file_inode(2, size=0)
        layers[name] = forge(tmp_path / f"{name}.squashfs", inodes, 0, names)
    trees.write_image(tmp_path / "demo.sif", layers)
    return tmp_path / "demo.sif"


def test_the_paths_of_all_layers_are_shown(image: Path) -> None:
    assert image_entries(image).keys() == {"/", "/base", "/top"}


def test_a_damaged_file_system_is_told_with_its_image(image: Path) -> None:
    root = read_sif(image).root
    assert root is not None
    with image.open("r+b") as file:
        file.seek(root.offset + 20)
        file.write(b"\x09")
    with pytest.raises(RequestError) as caught, file_system(image):
        pass
    assert render(caught.value) == (
        "error: the file system of `demo.sif` cannot be read:"
        " its compressor, 9, is not supported: gzip, lz4, xz and zstd are\n"
        f"  --> {image}\n"
        "\n"
        "hint: build it again, or copy it again from where it came\n"
    )
