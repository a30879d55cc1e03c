"""An image shows what its layers show when they are unpacked over each other."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.integration.conftest import Desk
from tests.support.images import read_sif
from tests.support.squashfs_images import assert_kernel_accepts, assert_shows_layers

SYSTEM = """\
name: system
version: "1"
base: debian-12
mpi: mpich
packages:
  system: [less]
  python: [numpy, tabulate]
"""


@pytest.mark.parametrize(
    "name",
    # `make toolkits` compares the images of all frameworks, and image/test_splice.py layers in `make test`.
    [pytest.param(name, marks=pytest.mark.slow) for name in ("small_image", "image")],
)
def test_an_image_of_wheels(name: str, desk: Desk, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    check(desk, request.getfixturevalue(name), tmp_path)


@pytest.mark.slow  # in `make test` test_build.py adds a Debian package, and image/test_splice.py compares
def test_a_debian_package_over_the_base(desk: Desk, tmp_path: Path) -> None:
    spec = desk.write("system.yaml", SYSTEM)
    desk.envbuild("build", spec)
    check(desk, spec.with_suffix(".sif"), tmp_path)


def check(desk: Desk, image: Path, scratch: Path) -> None:
    system = json.loads(desk.envbuild("inspect", image, "--json").stdout)["file_system"]
    digests = [layer["digest"].removeprefix("sha256:") for layer in system["layers"]]
    blobs = [desk.store / "blobs/sha256" / digest[:2] / digest for digest in digests]
    root = read_sif(image).root
    assert root is not None
    assert root.size == system["size_bytes"]
    assert_shows_layers(image, root.offset, blobs, scratch)
    partition = scratch / "partition"
    desk.envbuild("export", image, "--format", "squashfs", "-o", partition)
    assert_kernel_accepts(partition)
