"""Images of a few kilobytes, whose libraries are made to order: nothing in them can be started."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from envbuild.image import sif
from envbuild.image.model import Manifest, Part
from envbuild.lock.model import Lock, PythonPin
from envbuild.lock.text import dump
from envbuild.system import squashfs
from envbuild.system.files import sha256
from tests.support import trees
from tests.support.asking import bare_lock, base_pin, recipe_pin
from tests.support.elves import Elf

LIB = "/usr/lib/x86_64-linux-gnu"
GLIBC = ("GLIBC_2.2.5", "GLIBC_2.34", "GLIBC_2.36")
LIBC = Elf(soname="libc.so.6", versions_defined=("libc.so.6", *GLIBC))
LIBSTDCXX = Elf(
    soname="libstdc++.so.6",
    needed=("libc.so.6",),
    versions_defined=("libstdc++.so.6", "GLIBCXX_3.4", "GLIBCXX_3.4.29", "CXXABI_1.3"),
)

# Path → an ELF file, file content, the target of a link (a tuple of one), or None to hide the path below.
Layer = Mapping[str, Elf | bytes | tuple[str] | None]
# A file system that nothing reads: its image needs no mksquashfs.
UNREAD = b"hsqs"

BASE: Layer = {
    f"{LIB}/libc.so.6": LIBC,
    f"{LIB}/libstdc++.so.6": LIBSTDCXX,
    "/lib": ("usr/lib",),
    "/etc/ld.so.conf": b"include /etc/ld.so.conf.d/*.conf\n",
    "/etc/ld.so.conf.d/local.conf": b"/usr/local/lib\n",
    "/etc/ld.so.cache": b"",
    "/bin/app": Elf(
        needed=("libc.so.6",),
        interpreter="/lib64/ld-linux-x86-64.so.2",
        versions_needed={"libc.so.6": ("GLIBC_2.34",)},
    ),
}


def small_image(
    directory: Path,
    *layers: Layer | bytes,
    name: str = "small.sif",
    python: Sequence[PythonPin] = (),
    requests: Sequence[str] = (),
    python_version: str = "3.11",
    bill: bytes | None = None,
    plan: str = "{}\n",
    **manifest: object,
) -> Path:
    """Write an image with a root and overlays, from bottom to top, and return its path.

    Parameters
    ----------
    *layers : Layer or bytes
        The files of a layer, packed by mksquashfs; or the bytes of its file system.
    python, requests : sequence of PythonPin, sequence of str
        What its lock has of Python, and what was asked for.
    python_version : str
        The version of its Python.
    bill : bytes, optional
        The bill of materials that it carries.
    plan : str
        The plan that it carries.
    """
    parts = []
    for number, layer in enumerate(layers):
        blob = directory / f"{name}-{number}.sqfs"
        if isinstance(layer, bytes):
            blob.write_bytes(layer)
        else:
            _pack(layer, directory / f"{name}-{number}", blob)
        part = Part(
            role="overlay" if number else "root",
            layers=(f"layer-{number}",),
            digest=f"sha256:{sha256(blob)}",
            size_bytes=blob.stat().st_size,
        )
        parts.append((part, blob))
    path = directory / name
    made = _manifest([part for part, _ in parts], {**manifest, "python": python_version})
    lock = replace(_lock(made), python=tuple(python), requests=tuple(requests))
    made = replace(made, lock_digest="sha256:" + hashlib.sha256(dump(lock).encode()).hexdigest())
    data = [
        sif.DataObject(name=sif.LOCK, content=dump(lock).encode()),
        sif.DataObject(name=sif.PLAN, content=plan.encode(), kind="json"),
    ]
    if bill is not None:
        data.append(sif.DataObject(name=sif.SBOM, content=bill, kind="sbom"))
    sif.write_sif(path, architecture=made.architecture, manifest=made, parts=parts, data=data)
    return path


def _manifest(parts: Sequence[Part], changes: Mapping[str, object]) -> Manifest:
    return trees.manifest(parts, **{"architecture": "amd64", **changes})


def _lock(manifest: Manifest) -> Lock:
    """Return a lock of the manifest's recipes and nothing else."""
    return bare_lock(
        name=manifest.name,
        version=manifest.version,
        base=replace(
            base_pin(architecture=manifest.architecture),
            name=manifest.base,
            python=manifest.python,
            glibc=manifest.glibc,
        ),
        recipes=tuple(
            recipe_pin(name, version, kind="mpi" if name == manifest.mpi else "framework")
            for name, version in sorted(manifest.recipes.items())
        ),
    )


def _pack(layer: Layer, tree: Path, blob: Path) -> None:
    tree.mkdir()
    for name, content in layer.items():
        path = tree / name.lstrip("/")
        path.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(content, tuple):
            path.symlink_to(content[0])
        elif content is not None:
            path.write_bytes(content.bytes() if isinstance(content, Elf) else content)
            path.chmod(0o755 if isinstance(content, Elf) else 0o644)
    gone = [squashfs.whiteout(path) for path, content in layer.items() if content is None]
    squashfs.make(tree, blob, pseudo=gone)
