"""What an image would load is seen from its layers as from the image, and each layer is read once."""

from __future__ import annotations

from pathlib import Path

import pytest

from envbuild.check.preflight.run import look, preflight_layers
from envbuild.errors import EnvbuildError
from envbuild.image.compose import FinishedLayer
from envbuild.image.sif import LOCK, read_data, read_manifest
from envbuild.lock.text import load
from envbuild.store.store import Store
from envbuild.system.squashfs import digests
from tests.support.elves import Elf
from tests.support.small_images import BASE, LIB, small_image


def finished(name: str, blob: Path) -> FinishedLayer:
    found = digests(blob)
    return FinishedLayer(name=name, blob=blob, digest=found.whole, data=found.data, tables=found.tables)


def test_layers_tell_what_the_image_does_and_those_that_are_known_are_not_read(tmp_path: Path) -> None:
    lacking = {f"{LIB}/libnew.so": Elf(soname="libnew.so", needed=("libgone.so.1",))}
    image = small_image(tmp_path, BASE, lacking)
    manifest, lock = read_manifest(image), load(read_data(image, LOCK), image)
    layers = [finished(f"layer-{number}", tmp_path / f"small.sif-{number}.sqfs") for number in range(2)]
    store = Store(tmp_path / "store")
    problems = preflight_layers(manifest, lock, layers, store)
    assert [problem.need for problem in problems.problems] == ["libgone.so.1"]
    assert problems == look(image, store).preflight()
    assert problems == look(image, Store(tmp_path / "other")).preflight()
    for layer in layers:
        layer.blob.write_bytes(b"")
    assert preflight_layers(manifest, lock, layers, store) == problems
    with pytest.raises(EnvbuildError, match="cannot be read"):
        preflight_layers(manifest, lock, layers, Store(tmp_path / "empty"))
