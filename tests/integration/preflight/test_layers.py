"""What an image would load is seen from its layers as from the image, and from what is known of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from envbuild.check.preflight.run import kept_scan, look, preflight_layers
from envbuild.errors import EnvbuildError
from envbuild.image.sif import LOCK, read_data, read_manifest
from envbuild.lock.text import load
from envbuild.store.store import Store
from tests.support.elves import Elf
from tests.support.small_images import BASE, LIB, small_image


def test_layers_tell_what_the_image_does_and_those_that_are_known_are_not_read(tmp_path: Path) -> None:
    lacking = {f"{LIB}/libnew.so": Elf(soname="libnew.so", needed=("libgone.so.1",))}
    image = small_image(tmp_path, BASE, lacking)
    manifest, lock = read_manifest(image), load(read_data(image, LOCK), image)
    blobs = [(part, tmp_path / f"small.sif-{index}.sqfs") for index, part in enumerate(manifest.parts)]
    store = Store(tmp_path / "store")
    assert [kept_scan(store, part.digest) for part, _ in blobs] == [None, None]
    found = preflight_layers(manifest, lock, blobs, store)
    assert [problem.need for problem in found.problems] == ["libgone.so.1"]
    assert found == look(image, store).preflight()
    known = {part.digest: scan for part, _ in blobs if (scan := kept_scan(store, part.digest)) is not None}
    assert len(known) == 2
    nowhere = [(part, tmp_path / "nowhere") for part, _ in blobs]
    assert preflight_layers(manifest, lock, nowhere, store, known) == found
    with pytest.raises(EnvbuildError, match="cannot be read"):
        preflight_layers(manifest, lock, nowhere, store)
