"""One image of three layers, made of this machine's own programs, for all tests here."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from envbuild.image.model import Manifest
from envbuild.system import apptainer, squashfs
from tests.support import trees, users

LOCK = b"name: demo\n"


@dataclass(frozen=True, slots=True)
class Sample:
    """What the tests look at; all of it can be read by everybody.

    Attributes
    ----------
    layers : dict of str to Path
        Name → squashfs, from bottom to top.
    image : Path
        The image that is spliced from them.
    """

    directory: Path
    layers: Mapping[str, Path]
    image: Path
    manifest: Manifest


def make_trees(directory: Path) -> None:
    """A base, a middle layer that adds, replaces and hides, and a top layer."""
    trees.base_tree(directory / "base")
    trees.write(
        directory / "base",
        {
            "/etc/replaced": ("base\n", 0o644),
            "/etc/hidden": ("base\n", 0o644),
            "/srv/hidden/deep": ("base\n", 0o644),
            "/usr/bin/set-id": ("program\n", 0o4755),
            "/opt/env/lib/one": ("base\n", 0o644),
        },
    )
    (directory / "middle").mkdir(mode=0o755)
    trees.write(
        directory / "middle",
        {
            "/etc/replaced": ("middle\n", 0o600),
            "/opt/env/lib/two": ("middle\n", 0o644),
            "/opt/env/bin/hello": ('#!/bin/sh\necho "hello $*"\n', 0o755),
        },
    )
    (directory / "middle/srv").mkdir()
    (directory / "middle/opt/env/lib64").symlink_to("lib")
    trees.top_tree(directory / "metadata", trees.manifest_of(LOCK))


@pytest.fixture(scope="session")
def sample() -> Iterator[Sample]:
    with users.shared_directory() as directory:
        make_trees(directory)
        layers = {name: directory / f"{name}.squashfs" for name in ("base", "middle", "metadata")}
        hidden = ["/etc/hidden", "/srv/hidden"]
        for name, blob in layers.items():
            squashfs.make(directory / name, blob, whiteouts=hidden if name == "middle" else [])
        image = directory / "demo.sif"
        manifest = trees.write_image(image, layers, lock=LOCK)
        yield Sample(directory, layers, image, manifest)


@pytest.fixture
def room() -> Iterator[Path]:
    """An empty directory that other users reach, too."""
    with users.shared_directory() as directory:
        yield directory


@pytest.fixture(scope="session")
def program() -> str:
    return str(apptainer.find().program)
