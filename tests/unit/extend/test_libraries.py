"""Which libraries added modules need that nothing brings."""

from __future__ import annotations

from pathlib import Path

from envbuild.extend.libraries import missing_libraries
from envbuild.extend.packages import Addition
from tests.support.elves import Elf
from tests.support.foreign_images import PYTHON, SITE, Tree, opened, probed

LIB = "/usr/lib/x86_64-linux-gnu"


def library(*needed: str, soname: str = "") -> bytes:
    return Elf(soname=soname, needed=needed).bytes()


IMAGE: Tree = {
    **PYTHON,
    f"{LIB}/libc.so.6": library(soname="libc.so.6"),
    "/lib": ("usr/lib",),
    "/etc/ld.so.conf": "include /etc/ld.so.conf.d/*.conf\n",
    "/etc/ld.so.conf.d/own.conf": "/opt/own\n",
    "/opt/own/libown.so.1": library("libc.so.6"),
    "/opt/app/libapp.so": library("libc.so.6"),
    f"{SITE}/vendor/libvendor.so.3": library("libc.so.6"),
    f"{SITE}/broken.so": b"\x7fELF and no more",
}


def test_what_nothing_brings_is_named_with_who_needs_it(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    package = tree / SITE.lstrip("/") / "cv2"
    package.mkdir(parents=True)
    (package / "fine.so").write_bytes(
        library("libc.so.6", "libown.so.1", "libapp.so", "libvendor.so.3", "libcuda.so.1", "libbeside.so")
    )
    (package / "libbeside.so").write_bytes(library("libc.so.6"))
    (package / "cv2.abi3.so").write_bytes(library("libc.so.6", "libGL.so.1"))
    (package / "text.so").write_text("INPUT(libm.so)")
    with opened(tmp_path, IMAGE) as image:
        addition = Addition(python=probed(image, library_path="/opt/app"), pins=())
        assert missing_libraries(addition, image, tree) == {"libGL.so.1": f"{SITE}/cv2/cv2.abi3.so"}
        addition = Addition(python=probed(image), pins=())
        assert set(missing_libraries(addition, image, tree)) == {"libGL.so.1", "libapp.so"}
