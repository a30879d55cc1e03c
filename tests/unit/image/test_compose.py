"""An image is composed of layers that are as they were published, or not at all."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from envbuild.errors import MachineError, RequestError
from envbuild.image.compose import FinishedLayer, check_target
from envbuild.image.sif import FILE_SYSTEM_OFFSET, LOCK, PLAN
from envbuild.lock.text import dump
from envbuild.system import squashfs
from envbuild.system.squashfs import digests
from tests.support import trees
from tests.support.forged_squashfs import directory_inode, file_inode, forge, listing
from tests.support.images import compose_layers, read_data, read_manifest, verify_image
from tests.support.resolved_specs import bare_lock

LOCKED = bare_lock()


def layer(directory: Path, name: str) -> FinishedLayer:
    names = listing([name.encode()], 0, 40, 2)
    inodes = directory_inode(1, size=len(names)) + file_inode(2, size=0)
    blob = forge(directory / f"{name}.squashfs", inodes, 0, names, begin=5000)
    found = digests(blob)
    return FinishedLayer(name=name, blob=blob, digest=found.whole, data=found.data, tables=found.tables)


def composed(directory: Path, *layers: FinishedLayer) -> Path:
    path = directory / "image.sif"
    compose_layers(
        path,
        layers,
        manifest=trees.manifest_of(dump(LOCKED).encode()),
        lock=LOCKED,
        plan="{}\n",
    )
    return path


def test_an_image_carries_lock_and_plan_and_names_its_layers(tmp_path: Path) -> None:
    layers = [layer(tmp_path, name) for name in ("base", "top")]
    image = composed(tmp_path, *layers)
    system = read_manifest(image).file_system
    assert system is not None
    named = [(one.name, one.digest, one.data) for one in system.layers]
    assert named == [(one.name, one.digest, one.data) for one in layers]
    assert read_data(image, LOCK) == dump(LOCKED).encode()
    assert read_data(image, PLAN) == b"{}\n"
    assert verify_image(image) == ()


@pytest.mark.parametrize("place", [10, 5010, -1])
def test_a_layer_with_damaged_tables_is_refused_and_nothing_is_written(tmp_path: Path, place: int) -> None:
    base, top = (layer(tmp_path, name) for name in ("base", "top"))
    content = bytearray(top.blob.read_bytes())
    content[place] ^= 1
    top.blob.write_bytes(content)
    with pytest.raises(MachineError, match="a layer cannot be read: ") as raised:
        composed(tmp_path, base, top)
    assert "cache verify --repair" in (raised.value.hint or "")
    assert not (tmp_path / "image.sif").exists()


def test_a_layer_with_damaged_data_shows_in_the_image(tmp_path: Path) -> None:
    base, top = (layer(tmp_path, name) for name in ("base", "top"))
    content = bytearray(top.blob.read_bytes())
    content[1000] ^= 1
    top.blob.write_bytes(content)
    assert verify_image(composed(tmp_path, base, top)) == ("layer top",)


def test_a_layer_that_is_gone(tmp_path: Path) -> None:
    base = layer(tmp_path, "base")
    base.blob.unlink()
    with pytest.raises(MachineError, match="a layer cannot be read: "):
        composed(tmp_path, base)


class TestOnAnImage:
    """What is damaged is named: a layer of the store, or the image that is extended."""

    def on(self, image: Path, *layers: FinishedLayer) -> None:
        manifest = read_manifest(image)
        compose_layers(
            image.with_name("new.sif"),
            layers,
            manifest=manifest.model_copy(update={"file_system": None}),
            lock=LOCKED,
            plan="{}\n",
            note=b"{}",
            on=image,
        )

    @pytest.mark.parametrize("place", [10, 5010, -1, None])
    def test_a_layer(self, tmp_path: Path, place: int | None) -> None:
        image, top = composed(tmp_path, layer(tmp_path, "base")), layer(tmp_path, "top")
        content = bytearray(top.blob.read_bytes())
        if place is None:
            del content[50:]
        else:
            content[place] ^= 1
        top.blob.write_bytes(content)
        with pytest.raises(MachineError, match="a layer cannot be read: ") as raised:
            self.on(image, top)
        assert "cache verify --repair" in raised.value.hint
        assert not (tmp_path / "new.sif").exists()

    def test_data_of_a_layer(self, tmp_path: Path) -> None:
        """The bill of materials is made from files in it."""
        image, tree = composed(tmp_path, layer(tmp_path, "base")), tmp_path / "tree"
        info = tree / "opt/env/lib/python3.11/site-packages/x-1.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text("Name: x\nVersion: 1\n" * 1000)
        blob = tmp_path / "wheel.squashfs"
        squashfs.make(tree, blob)
        found = digests(blob)
        content = bytearray(blob.read_bytes())
        content[110:114] = b"\0\1\2\3"
        blob.write_bytes(content)
        top = FinishedLayer(
            name="wheel:x", blob=blob, digest=found.whole, data=found.data, tables=found.tables
        )
        with pytest.raises(MachineError, match="a layer cannot be read: "):
            self.on(image, top)

    def test_the_image(self, tmp_path: Path) -> None:
        image, top = composed(tmp_path, layer(tmp_path, "base")), layer(tmp_path, "top")
        content = bytearray(image.read_bytes())
        system = read_manifest(image).file_system
        assert system is not None
        content[FILE_SYSTEM_OFFSET + system.tables_offset] ^= 1
        image.write_bytes(content)
        with pytest.raises(RequestError, match=r"the file system of `image\.sif` cannot be read: "):
            self.on(image, top)


class TestTarget:
    """Where an image cannot or should not be written is told before any work is done."""

    def refused(self, path: Path, *keep: Path) -> str:
        with pytest.raises(RequestError) as raised:
            check_target(path, keep=keep)
        assert (raised.value.hint or "").endswith("name another file with -o IMAGE.sif")
        return raised.value.problem

    def test_a_new_file_or_another_image_is_fine(self, tmp_path: Path) -> None:
        image = composed(tmp_path, layer(tmp_path, "base"))
        check_target(image, keep=[tmp_path / "spec.yaml"])
        check_target(tmp_path / "new.sif", keep=[tmp_path / "spec.yaml"])

    def test_what_is_no_image_is_left_alone(self, tmp_path: Path) -> None:
        (tmp_path / "letter").write_text("Dear")
        os.mkfifo(tmp_path / "pipe")
        for name in ("letter", "pipe"):
            told = f"`{tmp_path}/{name}` already exists and is not an image; it was not overwritten"
            assert self.refused(tmp_path / name) == told

    def test_what_is_to_be_kept_is_kept_by_every_name(self, tmp_path: Path) -> None:
        image = composed(tmp_path, layer(tmp_path, "base"))
        (tmp_path / "link").symlink_to("image.sif")
        for path in (image, tmp_path / "link"):
            assert "is an input of this command; it was not overwritten" in self.refused(path, image)

    def test_a_directory_is_no_file(self, tmp_path: Path) -> None:
        assert self.refused(tmp_path) == f"`{tmp_path}` is a directory, not a file"
        told = f"there is no directory `{tmp_path}/nowhere` for `x.sif`"
        assert self.refused(tmp_path / "nowhere/x.sif") == told

    def test_nothing_goes_to_standard_output(self) -> None:
        assert self.refused(Path("-")) == "an image is not written to standard output"

    def test_where_nobody_may_write(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        # Root may write everywhere.
        monkeypatch.setattr(os, "access", lambda *_: False)
        assert self.refused(tmp_path / "x.sif") == f"nothing can be written in `{tmp_path}`"

    def test_another_kind_is_told_by_its_name(self, tmp_path: Path) -> None:
        (tmp_path / "bill").write_text("mine")
        with pytest.raises(RequestError, match="already exists and is not a bill; it was not") as raised:
            check_target(
                tmp_path / "bill", keep=(), is_one=lambda _: False, what="bill", hint="name it with -o"
            )
        assert raised.value.hint == "name it with -o"
