"""One layered and one flat image, made of this machine's own programs, for all tests here."""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import pytest

from envbuild.build import merge
from envbuild.image import sif
from envbuild.image.model import Manifest, Part
from envbuild.system import apptainer, squashfs
from tests.support import trees, users

LOCK = b"name: demo\n"


@dataclass(frozen=True, slots=True)
class Images:
    """What the tests look at; all of it can be read by everybody."""

    directory: Path
    layers: tuple[Path, ...]
    layered: Path
    flat: Path
    manifest: Manifest


def part(role: Literal["root", "overlay"], *names: str, blob: Path) -> Part:
    content = blob.read_bytes()
    digest = "sha256:" + hashlib.sha256(content).hexdigest()
    return Part(role=role, layers=names, digest=digest, size_bytes=len(content))


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
    trees.top_tree(directory / "top", trees.manifest_of(LOCK))


@pytest.fixture(scope="session")
def images() -> Iterator[Images]:
    with users.shared_directory() as directory:
        make_trees(directory)
        blobs = [directory / f"{name}.squashfs" for name in ("base", "middle", "top")]
        squashfs.make(directory / "base", blobs[0])
        hidden = [squashfs.whiteout("/etc/hidden"), squashfs.whiteout("/srv/hidden")]
        squashfs.make(directory / "middle", blobs[1], pseudo=hidden)
        squashfs.make(directory / "top", blobs[2])
        parts = [
            (part("root", "base", blob=blobs[0]), blobs[0]),
            (part("overlay", "middle", blob=blobs[1]), blobs[1]),
            (part("overlay", "metadata", blob=blobs[2]), blobs[2]),
        ]
        manifest = trees.manifest_of(LOCK, [one for one, _ in parts])
        layered = directory / "layered.sif"
        data = [sif.DataObject(name=sif.LOCK, content=LOCK)]
        sif.write_sif(layered, architecture="amd64", manifest=manifest, parts=parts, data=data)

        whole = directory / "flat.squashfs"
        merge.merge(blobs, whole, with_root=True)
        one = part("root", "base", "middle", "metadata", blob=whole)
        flat = directory / "flat.sif"
        sif.write_sif(
            flat,
            architecture="amd64",
            manifest=trees.manifest_of(LOCK, [one], form="flat"),
            parts=[(one, whole)],
            data=data,
        )
        yield Images(directory, tuple(blobs), layered, flat, manifest)


@pytest.fixture(scope="session")
def program() -> str:
    return str(apptainer.find().program)
