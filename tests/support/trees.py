"""Small trees and images, made of what this machine has: no download, nothing to install."""

import hashlib
import json
import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from envbuild.image import environment, layout, startup
from envbuild.image.model import JUDGE, MANIFEST_FORMAT, FileSystem, ImageLayer, Manifest
from envbuild.image.sif import LOCK, PLAN, SBOM
from envbuild.squashfs.layers import layer_file_systems
from envbuild.squashfs.splice import Splice, splice
from envbuild.system.squashfs import digests

_PROGRAMS = ("/bin/sh", "/bin/cat", "/bin/ls", "/usr/bin/env", "/usr/bin/printenv", "/bin/sleep")
_EMPTY = ("dev", "proc", "sys", "tmp", "root", "home", "etc", "var/tmp")
_OWNED = ("opt/env", "opt/mpi", "opt/fabric", "opt/accel")


def write(tree: Path, files: Mapping[str, tuple[str, int]]) -> None:
    """Write files, path in the image → text and mode."""
    for name, (text, mode) in files.items():
        path = tree / name.lstrip("/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(mode)


def base_tree(tree: Path) -> Path:
    """Make a root with a shell and a few programs of this machine, and what every base carries."""
    tree.mkdir(mode=0o755)
    for name in (*_EMPTY, *_OWNED):
        (tree / name).mkdir(parents=True, exist_ok=True)
    (tree / "tmp").chmod(0o1777)
    (tree / "etc/passwd").write_text("root:x:0:0:root:/root:/bin/sh\n")
    (tree / "etc/group").write_text("root:x:0:\n")
    for program in _PROGRAMS:
        _copy_program(Path(program), tree)
    for directory in startup.EMPTY_DIRECTORIES:
        (tree / directory.lstrip("/")).mkdir(parents=True)
    write(tree, startup.base_files())
    return tree


def top_tree(tree: Path, manifest: Manifest) -> Path:
    """Make a top layer: start-up files, environment, and a judge that tells its arguments."""
    tree.mkdir(mode=0o755)
    write(tree, startup.top_files(manifest))
    write(tree, {startup.ENVIRONMENT: (environment.render_script(manifest.environment), 0o755)})
    write(tree, {JUDGE: ("judged\n", 0o644)})
    # In place of a Python: shows what it was started with, and ends as it is told.
    write(tree, {"/usr/bin/python3": ('#!/bin/sh\necho "python3 $*"\nexit "${VERDICT:-0}"\n', 0o755)})
    return tree


FILE_SYSTEM = FileSystem(
    size_bytes=20480,
    layers=tuple(
        ImageLayer(
            name=name,
            digest=f"sha256:{digit * 64}",
            offset=offset,
            size_bytes=4000,
            data=f"sha256:{digit * 64}",
        )
        for name, digit, offset in (("base", "1", 96), ("wheel:mpich", "2", 4192), ("metadata", "3", 8288))
    ),
    tables_offset=12288,
    tables="sha256:" + "4" * 64,
)


def manifest(**changes: object) -> Manifest:
    """Return a manifest with every field set."""
    fields: dict[str, object] = {
        "format": MANIFEST_FORMAT,
        "name": "demo",
        "version": "2026.11",
        "summary": "a demonstration",
        "architecture": "amd64",
        "accelerator": "cpu",
        "file_system": FILE_SYSTEM,
        "environment": environment.default_environment({"GREETING": "it's $HOME `here`"}),
        "base": "debian-12",
        "glibc": "2.36",
        "python": "3.11",
        "mpi": "mpich",
        "mpi_family": "mpich",
        "recipes": {"mpich": "5.0.1", "pytorch": "2.13.0"},
        "imports": ("torch",),
        "tutorials": (),
        "lacks": (),
        "excuses": (),
        "commands": ("torchrun",),
        "conflicts": ("python",),
        "jobs": (),
        "ranks": 2,
        "timeout_s": 300.0,
        "launch": None,
        "labels": {"org.example.contact": "help@example.org"},
        "lock_digest": "sha256:" + "ab" * 32,
        **changes,
    }
    return Manifest(**fields)  # type: ignore[arg-type]


def manifest_of(lock: bytes, **changes: object) -> Manifest:
    """Return the manifest of an image that carries a lock."""
    return manifest(lock_digest="sha256:" + hashlib.sha256(lock).hexdigest(), **changes)


def write_image(
    path: Path,
    layers: Mapping[str, Path],
    *,
    lock: bytes = b"name: demo\n",
    plan: bytes = b"{}\n",
    bill: bytes = b"{}\n",
    note: bytes = b"",
    facts: bytes = b"",
    **changes: Any,
) -> Manifest:
    """Write an image of packed layers, from bottom to top.

    Parameters
    ----------
    layers : mapping of str to Path
        Name → squashfs.
    facts : bytes
        The facts that it carries; none if empty.
    **changes
        Fields of the manifest.
    """
    with layer_file_systems(layers) as inputs:
        spliced = splice(inputs)
        file_system = _described(spliced, layers)
        made = manifest_of(lock, file_system=file_system, **changes)
        data = {LOCK: lock, PLAN: plan, SBOM: bill}
        describe = (lambda _: facts) if facts else None
        around = layout.built_layout(made, data, spliced, note=note, describe=describe)
        layout.write_image(path, around, spliced)
    return made


def write_raw_image(
    path: Path,
    content: bytes,
    *,
    lock: bytes = b"name: demo\n",
    plan: bytes = b"{}\n",
    bill: bytes = b"{}\n",
    **changes: Any,
) -> Manifest:
    """Write an image whose file system is these bytes, whatever they are; it has no layers."""
    raw = Splice(parts=(), offsets=(), superblock=content[:96], tables=content[96:], tables_offset=96)
    made = manifest_of(lock, file_system=_described(raw, {}), **changes)
    data = {LOCK: lock, PLAN: plan, SBOM: bill}
    layout.write_image(path, layout.built_layout(made, data, raw), raw)
    return made


def _described(spliced: Splice, layers: Mapping[str, Path]) -> FileSystem:
    described = []
    for (name, blob), part, offset in zip(layers.items(), spliced.parts, spliced.offsets, strict=True):
        found = digests(blob)
        described.append(
            ImageLayer(name=name, digest=found.whole, offset=offset, size_bytes=part.size, data=found.data)
        )
    return FileSystem(
        size_bytes=spliced.size_bytes,
        layers=tuple(described),
        tables_offset=spliced.tables_offset,
        tables=spliced.tables_digest,
    )


def labels_of(text: str) -> dict[str, str]:
    """Read labels from what `apptainer inspect --json` writes."""
    found: dict[str, str] = json.loads(text)["data"]["attributes"]["labels"]
    return found


def _copy_program(program: Path, tree: Path) -> None:
    listed = subprocess.run(["ldd", program], capture_output=True, text=True, check=True).stdout
    for path in (program, *(Path(name) for name in re.findall(r"(/\S+) \(0x", listed))):
        target = tree / str(path).lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        if not target.exists():
            shutil.copy(path.resolve(), target)


def fill(root: Path, entries: dict[str, str]) -> Path:
    """Make a tree: path → content, ``/`` for a directory, ``-> target`` for a link."""
    root.mkdir(parents=True)
    for path, what in entries.items():
        place = root / path
        place.parent.mkdir(parents=True, exist_ok=True)
        if what == "/":
            place.mkdir(exist_ok=True)
        elif what.startswith("-> "):
            place.symlink_to(what.removeprefix("-> "))
        else:
            place.write_text(what)
    return root


def deepen(top: Path, name: str, depth: int) -> None:
    """Make directories in each other, below one that may be there: more of them than a path can name."""
    top.mkdir(exist_ok=True)
    above = os.open(top, os.O_RDONLY)
    for _ in range(depth):
        os.mkdir(name, dir_fd=above)
        below = os.open(name, os.O_RDONLY, dir_fd=above)
        os.close(above)
        above = below
    os.close(above)
