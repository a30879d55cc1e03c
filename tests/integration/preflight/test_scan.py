"""What a scan keeps, and that it comes back from the store as it was."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envbuild.errors import CheckError, RequestError
from envbuild.image.model import ImageLayer
from envbuild.image.sif import read_manifest, read_sif
from envbuild.preflight import components, run
from envbuild.preflight.run import look
from envbuild.preflight.scan import LayerScan, from_json, scan_host_file, scan_layer
from envbuild.squashfs.reader import Squashfs
from envbuild.store.store import Store
from tests.support.elves import Elf
from tests.support.looking import preflight
from tests.support.small_images import BASE, LIB, Layer, small_image

MPI = Elf(soname="libmpi.so.12", defined=("MPI_Init", "helper", "MPI_UNWEIGHTED"), undefined=("puts",))
LAYER: Layer = {
    "/opt/libmpi.so.12": MPI,
    "/opt/user.so": Elf(needed=("libmpi.so.12",), undefined=("MPI_Init", "puts")),
    "/opt/other.so": Elf(undefined=("MPI_Init",)),
    "/opt/libnccl-net-ofi.so": Elf(texts=("libcudart.so",)),
    "/opt/libnccl-net.so": Elf(texts=("libcudart.so.12",)),
    "/opt/broken.so": MPI.bytes()[:120],
    "/opt/script.so": b"#!/bin/sh\n" * 20,
    "/opt/notes.txt": b"\x7fELF is a format",
    "/usr/lib/libstdc++.so": None,
    "/opt/env/pyvenv.cfg": b"home = /usr/bin\n",
    "/opt/env/lib/python3.11/site-packages/a-1.dist-info/METADATA": (
        b"Name: a\nVersion: 1\nRequires-Python: >=3\n\nLong\n"
    ),
    "/opt/env/lib/python3.11/site-packages/b.egg-info/PKG-INFO": b"Name: b\nVersion: 2\n",
    "/opt/env/lib/python3.11/site-packages/b.egg-info/requires.txt": b"a>=1\n\n[x]\nc\n",
}


def scanned(tmp_path: Path) -> tuple[Path, list[LayerScan]]:
    image = small_image(tmp_path, BASE, LAYER)
    layers = [image.with_name(f"{image.name}-{number}.sqfs") for number in range(2)]
    return image, [scan_file(layer) for layer in layers]


def scan_file(layer: Path) -> LayerScan:
    with layer.open("rb") as file:
        return scan_layer(Squashfs(file, 0, layer.stat().st_size))


def test_what_a_scan_keeps(tmp_path: Path) -> None:
    _, (base, layer) = scanned(tmp_path)
    assert base.links == {"/lib": "usr/lib"}
    assert base.distributions == {}
    assert base.texts["/etc/ld.so.conf.d/local.conf"] == "/usr/local/lib\n"
    assert base.files == ["/etc/ld.so.cache"]
    assert layer.whiteouts == ["/usr/lib/libstdc++.so"]
    told = [path for path in layer.files if path.startswith("/opt/env/")]
    assert sorted(set(layer.files) - set(told)) == ["/opt/broken.so", "/opt/notes.txt", "/opt/script.so"]
    # Layers above may hide the files of a distribution like any others.
    assert layer.distributions.keys() < set(told)
    assert {one.name: one.requires for one in layer.distributions.values()} == {
        "a": (),
        "b": ("a>=1", 'c; extra == "x"'),
    }
    assert list(layer.texts) == ["/opt/env/pyvenv.cfg"]
    assert list(layer.unreadable) == ["/opt/broken.so"]
    symbols = {path: found.symbols for path, found in layer.objects.items()}
    # Of a family's library and its users the family's names alone; of nobody else anything.
    assert symbols["/opt/libmpi.so.12"].defined == {"MPI_Init", "MPI_UNWEIGHTED"}
    assert symbols["/opt/user.so"].undefined == {"MPI_Init"}
    assert symbols["/opt/other.so"].undefined == frozenset()
    written = {path: found.written for path, found in layer.objects.items() if found.written}
    assert written == {"/opt/libnccl-net-ofi.so": ("libcudart.so",)}


def test_a_scan_comes_back_as_it_was(tmp_path: Path) -> None:
    for scan in scanned(tmp_path)[1]:
        assert from_json(scan.to_json()) == scan


@given(st.data())
def test_a_damaged_scan_is_none(data: st.DataObject) -> None:
    text = LayerScan(directories=["/"], links={"/a": "b"}).to_json()
    place = data.draw(st.integers(0, len(text) - 2))
    assert from_json(text[:place]) is None
    document = json.loads(text)
    document[data.draw(st.sampled_from(sorted(document)))] = data.draw(st.sampled_from([None, 7, "x", [1]]))
    assert from_json(json.dumps(document)) is None


def test_a_scan_that_looked_for_other_names_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    text = LayerScan().to_json()
    assert from_json(text) == LayerScan()
    monkeypatch.setattr(components, "digest", lambda: "other")
    assert from_json(text) is None


def test_what_is_no_library_of_a_host(tmp_path: Path) -> None:
    path = tmp_path / "libx.so"
    path.write_text("a text\n")
    assert scan_host_file(path) is None


class Kept:
    """The scans that a store keeps."""

    def __init__(self, root: Path) -> None:
        self.store = Store(root)

    def files(self) -> list[Path]:
        return sorted((self.store.path / "scans").rglob("*.json"))


def test_each_file_system_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    image, kept = small_image(tmp_path, BASE, LAYER), Kept(tmp_path / "store")
    first = preflight(image, kept.store)[1]
    assert [path.stem for path in kept.files()] == [read_manifest(image).digest.removeprefix("sha256:")]
    monkeypatch.setattr("envbuild.preflight.run.scan_layer", lambda _: pytest.fail("read again"))
    assert preflight(image, kept.store)[1] == first
    assert preflight(image, kept.store, changed=())[1] == first


@pytest.mark.parametrize(
    "spoil", [lambda text: text[:-40], lambda text: text.replace("libc.so.6", "libc.so.7")]
)
def test_a_damaged_scan_is_read_anew(tmp_path: Path, spoil: Callable[[str], str]) -> None:
    image, kept = small_image(tmp_path, BASE, LAYER), Kept(tmp_path / "store")
    first = preflight(image, kept.store)[1]
    whole = [path.read_text() for path in kept.files()]
    for path in kept.files():
        path.write_text(spoil(path.read_text()))
    assert [path.read_text() for path in kept.files()] != whole
    assert preflight(image, kept.store)[1] == first
    assert [path.read_text() for path in kept.files()] == whole


def test_an_image_that_lies_about_its_layers_spoils_no_others(tmp_path: Path) -> None:
    """A stranger's image says that its layers are ones we know; it is read as it is."""
    honest, kept = small_image(tmp_path, BASE, {f"{LIB}/libx.so": Elf()}), Kept(tmp_path / "store")
    broken: Layer = {"/bin/tool": Elf(needed=("libgone.so",), interpreter="/lib/ld.so")}
    liar = small_image(tmp_path, BASE, broken, name="liar.sif")
    content = liar.read_bytes()
    for own, other in zip(layers_of(liar), layers_of(honest), strict=True):
        content = content.replace(own.digest.encode(), other.digest.encode())
        content = content.replace(own.data.encode(), other.data.encode())
    liar.write_bytes(content)
    assert layers_of(liar)[1].digest == layers_of(honest)[1].digest
    assert not preflight(liar, kept.store)[1].passed
    assert kept.files() == []
    assert preflight(honest, kept.store)[1].passed
    assert not preflight(liar, kept.store)[1].passed
    assert not preflight(liar, kept.store, changed=("layer layer-1",))[1].passed


def layers_of(image: Path) -> tuple[ImageLayer, ...]:
    system = read_manifest(image).file_system
    assert system is not None
    return system.layers


@pytest.mark.parametrize("same", [True, False])
def test_a_file_that_stays_as_it_is_is_compared_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, same: bool
) -> None:
    image, store = small_image(tmp_path, BASE), Store(tmp_path / "store")
    compared = []

    def verify_image(path: Path) -> tuple[str, ...]:
        compared.append(path)
        return () if same else ("layer layer-0",)

    monkeypatch.setattr(run, "verify_image", verify_image)
    look(image, store)
    # Just written: a change could still go unseen.
    look(image, store)
    assert len(compared) == 2
    monkeypatch.setattr(run, "_SETTLED_NS", -(10**12))
    look(image, store)
    assert len(compared) == (2 if same else 3), "what differs is compared each time"
    del compared[:]
    os.utime(image)
    look(image, store)
    assert len(compared) == 1


def test_a_store_that_cannot_be_written_costs_time_alone(tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    store.directory("plans").with_name("scans").write_text("a file, not a directory")
    image = small_image(tmp_path, BASE)
    assert preflight(image, store)[1].passed


def test_a_damaged_file_system_is_told(tmp_path: Path) -> None:
    image = small_image(tmp_path, BASE)
    root = read_sif(image).root
    assert root is not None
    with image.open("r+b") as file:
        file.seek(root.offset + 20)
        file.write(b"\x09")
    with pytest.raises(
        CheckError, match=r"of `small\.sif` is not the one that was built, and cannot be read: its comp"
    ):
        preflight(image, Store(tmp_path / "store"))
    # Bytes that are known to be those of the manifest were built like that.
    with pytest.raises(RequestError, match=r"of `small\.sif` cannot be read: its comp"):
        preflight(image, Store(tmp_path / "store"), changed=())


@pytest.mark.parametrize(
    ("content", "problem"),
    [(None, "No such file"), (b"a text", "is no library"), (MPI.bytes()[:150], "cannot be read")],
)
def test_a_library_of_the_host_that_cannot_be_used(
    tmp_path: Path, content: bytes | None, problem: str
) -> None:
    image, path = small_image(tmp_path, BASE), tmp_path / "libmpi.so.12"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(RequestError, match=problem):
        preflight(image, Store(tmp_path / "store"), injected={"libmpi.so.12": path})
