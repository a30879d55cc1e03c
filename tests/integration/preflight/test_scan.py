"""What a scan keeps, and that it comes back from the store as it was."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from envbuild.errors import CheckError, RequestError
from envbuild.image.model import ImageLayer
from envbuild.preflight import components
from envbuild.preflight import scan as scanning
from envbuild.preflight.scan import scan_host_file
from envbuild.store.store import Store
from tests.support.elves import Elf
from tests.support.images import read_manifest, read_sif, scan_image
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
    f"{LIB}/libstdc++.so.6": None,
    "/opt/env/pyvenv.cfg": b"home = /usr/bin\n",
    "/opt/env/lib/python3.11/site-packages/a-1.dist-info/METADATA": (
        b"Name: a\nVersion: 1\nRequires-Python: >=3\n\nLong\n"
    ),
    "/opt/env/lib/python3.11/site-packages/a-1.dist-info/RECORD": b"a.py,,\na.abi3.so,,\ngone.so,,\n",
    "/opt/env/lib/python3.11/site-packages/a.abi3.so": Elf(constants=b"numpy._core._multiarray_umath\0"),
    "/opt/env/lib/python3.11/site-packages/b.egg-info/PKG-INFO": b"Name: b\nVersion: 2\n",
    "/opt/env/lib/python3.11/site-packages/b.egg-info/requires.txt": b"a>=1\n\n[x]\nc\n",
}


def test_what_a_scan_keeps(tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    scan = scan_image(small_image(tmp_path, BASE, LAYER), store).files
    assert scan.links == {"/lib": "usr/lib"}
    assert scan.texts["/etc/ld.so.conf.d/local.conf"] == "/usr/local/lib\n"
    assert "/opt/env/pyvenv.cfg" in scan.texts
    assert f"{LIB}/libstdc++.so.6" not in scan.objects
    plain = [path for path in scan.files if not path.startswith("/opt/env/")]
    assert sorted(plain) == ["/etc/ld.so.cache", "/opt/broken.so", "/opt/notes.txt", "/opt/script.so"]
    assert {distribution.name: distribution.requires for distribution in scan.distributions.values()} == {
        "a": (),
        "b": ("a>=1", 'c; extra == "x"'),
    }
    assert list(scan.unreadable) == ["/opt/broken.so"]
    symbols = {path: file.symbols for path, file in scan.objects.items()}
    # Of a family's library and its users the family's names alone; of other files none.
    assert symbols["/opt/libmpi.so.12"].defined == {"MPI_Init", "MPI_UNWEIGHTED"}
    assert symbols["/opt/user.so"].undefined == {"MPI_Init"}
    assert symbols["/opt/other.so"].undefined == frozenset()
    module = "/opt/env/lib/python3.11/site-packages/a.abi3.so"
    metadata = "/opt/env/lib/python3.11/site-packages/a-1.dist-info/METADATA"
    assert (scan.owners, scan.objects[module].compiled.numpy) == ({module: metadata}, "2")
    written = {path: file.names_in_file for path, file in scan.objects.items() if file.names_in_file}
    assert written == {"/opt/libnccl-net-ofi.so": ("libcudart.so",)}


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


def test_an_image_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    image, kept = small_image(tmp_path, BASE, LAYER), Kept(tmp_path / "store")
    first, report = scan_image(image, kept.store), preflight(image, kept.store)
    assert [path.stem for path in kept.files()] == [read_manifest(image).digest.removeprefix("sha256:")]
    monkeypatch.setattr(scanning, "scan_file_system", lambda _: pytest.fail("read again"))
    assert scan_image(image, kept.store) == first
    assert preflight(image, kept.store) == preflight(image, kept.store, changed=()) == report


def test_a_scan_that_sought_other_names_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    image, kept = small_image(tmp_path, BASE), Kept(tmp_path / "store")
    scan_image(image, kept.store)
    monkeypatch.setattr(components, "digest", lambda: "another-table")
    scan_image(image, kept.store)
    assert len(kept.files()) == 2


@pytest.mark.parametrize(
    "spoil", [lambda text: text[:-40], lambda text: text.replace("libc.so.6", "libc.so.7")]
)
def test_a_damaged_scan_is_read_anew(tmp_path: Path, spoil: Callable[[str], str]) -> None:
    image, kept = small_image(tmp_path, BASE, LAYER), Kept(tmp_path / "store")
    first = preflight(image, kept.store)
    whole = [path.read_text() for path in kept.files()]
    for path in kept.files():
        path.write_text(spoil(path.read_text()))
    assert [path.read_text() for path in kept.files()] != whole
    assert preflight(image, kept.store) == first
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
    assert not preflight(liar, kept.store).passed
    assert kept.files() == []
    assert preflight(honest, kept.store).passed
    assert not preflight(liar, kept.store).passed
    assert not preflight(liar, kept.store, changed=("layer layer-1",)).passed


def layers_of(image: Path) -> tuple[ImageLayer, ...]:
    system = read_manifest(image).file_system
    assert system is not None
    return system.layers


@pytest.mark.parametrize("changed", [(), ("layer layer-0",)])
def test_a_file_that_stays_as_it_is_is_compared_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changed: tuple[str, ...]
) -> None:
    image, store = small_image(tmp_path, BASE), Store(tmp_path / "store")
    compared = []

    def verify_image(path: Path) -> tuple[str, ...]:
        compared.append(path)
        return changed

    monkeypatch.setattr(scanning, "verify_image", verify_image)
    assert scan_image(image, store).changed == scan_image(image, store).changed == changed
    assert len(compared) == (2 if changed else 1), "a changed one is compared each time"
    del compared[:]
    os.utime(image)
    scan_image(image, store)
    assert len(compared) == 1
    copy = shutil.copy(image, tmp_path / "copy.sif")
    scan_image(Path(copy), store)
    assert len(compared) == 2


def test_a_changed_byte_is_noticed_after_a_scan(tmp_path: Path) -> None:
    image, kept = small_image(tmp_path, BASE), Kept(tmp_path / "store")
    assert scan_image(image, kept.store).changed == ()
    root = read_sif(image).root
    assert root is not None
    with image.open("r+b") as file:
        file.seek(root.offset + 200)
        byte = file.read(1)
        file.seek(root.offset + 200)
        file.write(bytes([byte[0] ^ 1]))
    os.utime(image, ns=(image.stat().st_mtime_ns + 10**9,) * 2)
    assert scan_image(image, kept.store).changed == ("layer layer-0",)


def test_a_store_that_cannot_be_written_costs_time_alone(tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    store.directory("plans").with_name("scans").write_text("a file, not a directory")
    image = small_image(tmp_path, BASE)
    assert preflight(image, store).passed


def test_a_damaged_file_system_is_told(tmp_path: Path) -> None:
    image = small_image(tmp_path, BASE)
    root = read_sif(image).root
    assert root is not None
    with image.open("r+b") as file:
        file.seek(root.offset + 20)
        file.write(b"\x09")
    with pytest.raises(
        CheckError, match=r"`small\.sif` was changed or damaged \(.*\), and cannot be read: .* its comp"
    ):
        preflight(image, Store(tmp_path / "store"))
    # Bytes that are known to be those of the manifest were built like that.
    with pytest.raises(RequestError, match=r"of `small\.sif` cannot be read: its comp"):
        preflight(image, Store(tmp_path / "store"), changed=())


@pytest.mark.parametrize(
    ("content", "problem"),
    [(None, "No such file"), (b"a text", "is not a shared library"), (MPI.bytes()[:150], "cannot be read")],
)
def test_a_library_of_the_host_that_cannot_be_used(
    tmp_path: Path, content: bytes | None, problem: str
) -> None:
    image, path = small_image(tmp_path, BASE), tmp_path / "libmpi.so.12"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(RequestError, match=problem):
        preflight(image, Store(tmp_path / "store"), host_libs={"libmpi.so.12": path})
