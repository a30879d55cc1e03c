"""Images of a few kilobytes, whose libraries are made to order: nothing in them can be started."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from envbuild.image.model import Manifest
from envbuild.lock.model import Lock, PythonPin
from envbuild.lock.text import dump
from envbuild.system import squashfs
from tests.support import trees
from tests.support.elves import Elf
from tests.support.resolved_specs import bare_lock, base_pin, recipe_pin

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
UNREAD = b"hsqs".ljust(200)

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
    bill: bytes = b"{}\n",
    plan: str = "{}\n",
    facts: bytes = b"",
    **manifest: object,
) -> Path:
    """Write an image of layers, from bottom to top, and return its path.

    Parameters
    ----------
    *layers : Layer or bytes
        The files of a layer, packed by mksquashfs; or the bytes of the whole file system, alone.
    python, requests : sequence of PythonPin, sequence of str
        What its lock has of Python, and what was asked for.
    python_version : str
        The version of its Python.
    bill : bytes
        The bill of materials that it carries.
    plan : str
        The plan that it carries.
    facts : bytes
        The facts that it carries; none if empty.
    """
    path = directory / name
    changes: dict[str, Any] = {"architecture": "amd64", **manifest, "python": python_version}
    lock = replace(_lock(trees.manifest(**changes)), python=tuple(python), requests=tuple(requests))
    lock_text = dump(lock).encode()
    if len(layers) == 1 and isinstance(layers[0], bytes):
        trees.write_raw_image(path, layers[0], lock=lock_text, plan=plan.encode(), bill=bill, **changes)
        return path
    blobs = {}
    for number, layer in enumerate(layers):
        blob = directory / f"{name}-{number}.sqfs"
        assert not isinstance(layer, bytes)
        _pack(layer, directory / f"{name}-{number}", blob)
        blobs[f"layer-{number}"] = blob
    trees.write_image(path, blobs, lock=lock_text, plan=plan.encode(), bill=bill, facts=facts, **changes)
    return path


def _lock(manifest: Manifest) -> Lock:
    """Return a lock of the manifest's recipes and nothing else."""
    return bare_lock(
        name=manifest.name,
        version=manifest.version,
        architecture=manifest.architecture,
        accelerator=manifest.accelerator,
        base=replace(base_pin(), name=manifest.base, python=manifest.python, glibc=manifest.glibc),
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
    gone = [path for path, content in layer.items() if content is None]
    squashfs.make(tree, blob, whiteouts=gone)
