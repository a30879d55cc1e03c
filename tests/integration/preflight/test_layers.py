"""What an image would load is seen from its layers as from the image, and each layer is read once."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from envbuild.errors import EnvbuildError
from envbuild.image.compose import FinishedLayer
from envbuild.image.model import FileSystem
from envbuild.image.sif import LOCK, PLAN, SBOM, read_data, read_manifest, write_sif
from envbuild.image.verify import verify_image
from envbuild.lock.text import load
from envbuild.preflight import run
from envbuild.preflight.run import keep_composed, look, preflight_layers
from envbuild.preflight.scan import LayerScan, scan_layer
from envbuild.squashfs.layers import layer_file_systems
from envbuild.squashfs.reader import Squashfs
from envbuild.squashfs.splice import splice
from envbuild.store.store import Store
from envbuild.system.squashfs import digests
from tests.support.elves import Elf
from tests.support.small_images import BASE, LIB, Layer, small_image

LACKING: Layer = {f"{LIB}/libnew.so": Elf(soname="libnew.so", needed=("libgone.so.1",))}


def finished_layers(image: Path) -> list[FinishedLayer]:
    """Return the layers that `small_image` made an image of two from."""
    return [finished(name, blob) for name, blob in blobs_of(image).items()]


def blobs_of(image: Path) -> Mapping[str, Path]:
    return {f"layer-{number}": image.with_name(f"{image.name}-{number}.sqfs") for number in range(2)}


def file_system_of(image: Path) -> FileSystem:
    system = read_manifest(image).file_system
    assert system is not None
    return system


def finished(name: str, blob: Path) -> FinishedLayer:
    found = digests(blob)
    return FinishedLayer(name=name, blob=blob, digest=found.whole, data=found.data, tables=found.tables)


def test_layers_tell_what_the_image_does_and_those_that_are_known_are_not_read(tmp_path: Path) -> None:
    image = small_image(tmp_path, BASE, LACKING)
    manifest, lock = read_manifest(image), load(read_data(image, LOCK), image)
    layers = finished_layers(image)
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


@pytest.mark.parametrize("composed", [True, False])
def test_of_an_image_that_was_composed_here_nothing_is_read(
    composed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    image, store = small_image(tmp_path, BASE, LACKING), Store(tmp_path / "store")
    manifest, lock = read_manifest(image), load(read_data(image, LOCK), image)
    problems = preflight_layers(manifest, lock, finished_layers(image), store)
    if composed:
        keep_composed(manifest, store)
    read = []

    def counted(content: Squashfs) -> LayerScan:
        read.append(content)
        return scan_layer(content)

    monkeypatch.setattr(run, "scan_layer", counted)
    assert look(image, store).preflight() == problems
    assert len(read) == (0 if composed else 1)
    # What differs from the image that was composed is read, whatever it says.
    assert look(image, store, changed=("layer layer-1",)).preflight() == problems
    assert len(read) == (1 if composed else 2)


def test_an_image_that_names_the_layers_of_another_is_read_as_it_is(tmp_path: Path) -> None:
    """A layer's digest covers tables that no image has, so one with all other digests right may lie there."""
    good, store = small_image(tmp_path, BASE, {f"{LIB}/libx.so": Elf()}), Store(tmp_path / "store")
    manifest, lock = read_manifest(good), load(read_data(good, LOCK), good)
    assert preflight_layers(manifest, lock, finished_layers(good), store).passed
    keep_composed(manifest, store)

    bad = small_image(tmp_path, BASE, LACKING, name="bad.sif")
    named = [
        own.model_copy(update={"digest": other.digest})
        for own, other in zip(file_system_of(bad).layers, file_system_of(good).layers, strict=True)
    ]
    system = file_system_of(bad).model_copy(update={"layers": tuple(named)})
    lying = read_manifest(bad).model_copy(update={"file_system": system})
    liar = tmp_path / "liar.sif"
    with layer_file_systems(blobs_of(bad)) as inputs:
        data = {name: read_data(bad, name) for name in (LOCK, PLAN, SBOM)}
        write_sif(liar, lying, splice(inputs), data)
    assert verify_image(liar) == ()
    assert [problem.need for problem in look(liar, store).preflight().problems] == ["libgone.so.1"]
    assert look(good, store).preflight().passed
