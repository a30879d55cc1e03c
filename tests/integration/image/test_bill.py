"""The bill of materials of an image, read from its file systems."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from envbuild.cli.main import main
from envbuild.errors import RequestError
from envbuild.image.compose import FinishedLayer
from envbuild.image.packages import Contents, read_packages
from envbuild.image.sbom import sbom
from envbuild.lock.text import dump
from envbuild.squashfs.layers import layer_file_systems
from envbuild.squashfs.reader import Squashfs
from envbuild.system import squashfs
from envbuild.system.squashfs import digests
from tests.support import trees
from tests.support.images import compose_layers, file_system, read_sbom
from tests.support.resolved_specs import bare_lock
from tests.support.small_images import BASE, UNREAD, Layer, small_image

SITE = "/opt/env/lib/python3.11/site-packages"
DEP5 = "Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/\n\n"
STATUS = """\
Package: libc6
Status: install ok installed
Architecture: amd64
Version: 2.36-9

Package: libgcc-s1
Status: install ok installed
Architecture: amd64
Version: 12.2.0
Depends: gcc-12-base (= 12.2.0), libc6:any (>= 2.35)
"""


def metadata(name: str, licence: str) -> bytes:
    return f"Metadata-Version: 2.4\nName: {name}\nVersion: 1\nLicense: {licence}\n".encode()


LOWER: Layer = {
    **BASE,
    "/var/lib/dpkg/status": STATUS.encode(),
    "/usr/share/doc/libc6/copyright": f"{DEP5}License: LGPL-2.1+\n".encode(),
    "/usr/share/doc/gcc-12-base/copyright": f"{DEP5}License: GPL-3+\n".encode(),
    "/usr/share/doc/libgcc-s1": ("gcc-12-base",),
    f"{SITE}/six-1.dist-info/METADATA": metadata("six", "of the layer below"),
    f"{SITE}/deep/er/six-1.dist-info/METADATA": metadata("six", "of a copy that is no distribution"),
}
UPPER: Layer = {f"{SITE}/six-1.dist-info/METADATA": metadata("six", "MIT")}


def test_file_systems_are_read_and_the_upper_wins(tmp_path: Path) -> None:
    small_image(tmp_path, LOWER, UPPER)
    contents = contents_of(*(tmp_path / f"small.sif-{number}.sqfs" for number in (0, 1)))
    assert contents.deb_licences == {"libc6": ("LGPL-2.1+",), "libgcc-s1": ("GPL-3+",)}
    assert contents.wheel_licences == {"six": ("MIT",)}


def contents_of(*blobs: Path) -> Contents:
    with layer_file_systems({blob.name: blob for blob in blobs}) as layers:
        return read_packages(list(layers.values()))


def test_layers_tell_what_their_image_does(tmp_path: Path) -> None:
    """The bill is made of layers: they say what is seen in the image."""
    image = small_image(tmp_path, LOWER, UPPER)
    with file_system(image) as whole:
        seen = read_packages([whole])
    assert seen == contents_of(*(tmp_path / f"small.sif-{number}.sqfs" for number in (0, 1)))
    assert seen.wheel_licences


def test_only_what_tells_is_looked_into(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    image = small_image(tmp_path, {**LOWER, "/usr/lib/python3/x/y": b"x"})
    seen: list[str] = []
    walk = Squashfs.walk

    def watched(self: Squashfs, **options: Any) -> Any:
        for entry in walk(self, **options):
            seen.append(entry.path)
            yield entry

    monkeypatch.setattr(Squashfs, "walk", watched)
    with file_system(image) as whole:
        read_packages([whole])
    assert "/usr/lib" in seen
    assert not [path for path in seen if path.startswith("/usr/lib/")]


def test_a_composed_image_carries_the_bill_of_its_layers(tmp_path: Path) -> None:
    small_image(tmp_path, LOWER, UPPER)
    layers = []
    for number in (0, 1):
        blob = tmp_path / f"small.sif-{number}.sqfs"
        found = digests(blob)
        layers.append(
            FinishedLayer(
                name=f"layer-{number}", blob=blob, digest=found.whole, data=found.data, tables=found.tables
            )
        )
    image, lock = tmp_path / "composed.sif", bare_lock(name="composed")
    compose_layers(
        image,
        layers,
        manifest=trees.manifest_of(dump(lock).encode()),
        lock=lock,
        plan="{}\n",
    )
    bill = read_sbom(image)
    assert bill == sbom(lock, contents_of(*(layer.blob for layer in layers)))
    assert json.loads(bill)["metadata"]["component"]["name"] == "composed"


@pytest.mark.parametrize("bill", [b"", b"{", b"[" * 99_999, b"\xff"])
def test_a_bill_that_is_none(tmp_path: Path, bill: bytes) -> None:
    image = small_image(tmp_path, UNREAD, bill=bill)
    with pytest.raises(RequestError, match=r"the bill of materials in `small\.sif` is damaged"):
        read_sbom(image)


BILL = b'{"bomFormat":"CycloneDX","specVersion":"1.6"}\n'


def test_the_verb_writes_and_shows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    image = small_image(tmp_path, UNREAD, bill=BILL)
    for words in (["sbom", str(image)], ["sbom", str(image), "-o", str(tmp_path / "bill.json")]):
        with pytest.raises(SystemExit) as ended:
            main(words)
        assert ended.value.code == 0
    shown = capsys.readouterr().out
    assert json.loads(shown) == json.loads(BILL)
    assert (tmp_path / "bill.json").read_bytes() == BILL


def test_the_verb_replaces_bills_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    image = small_image(tmp_path, UNREAD, bill=BILL)
    kept = image.read_bytes()
    (tmp_path / "spec.yaml").write_text("name: x\n")
    os.mkfifo(tmp_path / "pipe")
    for place in (image, tmp_path / "spec.yaml", tmp_path / "pipe", Path("/")):
        with pytest.raises(SystemExit) as ended:
            main(["sbom", str(image), "-o", str(place)])
        assert ended.value.code == 2
    assert "already exists and is not a bill of materials; it was not overwritten" in capsys.readouterr().err
    assert image.read_bytes() == kept
    assert (tmp_path / "spec.yaml").read_text() == "name: x\n"
    (tmp_path / "bill.json").write_bytes(b"")
    for _ in range(2):
        with pytest.raises(SystemExit) as ended:
            main(["sbom", str(image), "-o", str(tmp_path / "bill.json")])
        assert ended.value.code == 0


def test_the_walk_enters_only_where_it_may(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    for name in ("a/x", "b/c/x"):
        (tree / name).parent.mkdir(parents=True)
        (tree / name).write_text("x")
    blob = tmp_path / "blob"
    squashfs.make(tree, blob)
    with blob.open("rb") as file:
        layer = Squashfs(file, 0, blob.stat().st_size)

        def paths(entered: Sequence[str] | None) -> list[str]:
            found = layer.walk() if entered is None else layer.walk(enter=lambda path: path in entered)
            return [entry.path for entry in found]

        assert paths(None) == ["/", "/a", "/a/x", "/b", "/b/c", "/b/c/x"]
        assert paths(["/", "/b"]) == ["/", "/a", "/b", "/b/c"]
