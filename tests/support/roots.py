"""Roots as somebody else packs them, and a place to unpack them into."""

from __future__ import annotations

import copy
import io
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from envbuild.build.roots import make_imported_root
from envbuild.build.unpack import RootLimits

TEXTS = {"/.singularity.d/env/90-environment.sh": "true\n", "/.singularity.d/libs/": ""}


def entry(
    name: str, kind: str = "file", content: str | bytes = b"", **fields: object
) -> tuple[tarfile.TarInfo, bytes]:
    """Return a member: file, dir, link, hard, char, block, fifo."""
    info = tarfile.TarInfo(name)
    kinds = {"dir": b"5", "link": b"2", "hard": b"1", "char": b"3", "block": b"4", "fifo": b"6", "file": b"0"}
    info.type = kinds[kind]
    info.mode = 0o755 if kind == "dir" else 0o644
    data = content.encode() if isinstance(content, str) else content
    if kind in ("link", "hard"):
        info.linkname, data = data.decode("utf-8", "surrogateescape"), b""
    info.size = len(data)
    for field, value in fields.items():
        setattr(info, field, value)
    return info, data


# Stands for a directory beside the root: what leads out leads there, and never into this machine.
OUTSIDE = "OUTSIDE"

ROOT = [
    entry("./", "dir"),
    entry("./usr", "dir"),
    entry("./usr/bin", "dir"),
    entry("./bin", "link", "usr/bin"),
    entry("./usr/bin/python3.11", content="#!/bin/true\n", mode=0o4755),
    entry("./usr/bin/python3", "link", "python3.11"),
    entry("./etc", "dir"),
]


def pack(path: Path, *members: tuple[tarfile.TarInfo, bytes], root: bool = True) -> Path:
    with tarfile.open(path, "w", format=tarfile.PAX_FORMAT) as tar:
        for known, data in (*(ROOT if root else ()), *members):
            info = copy.copy(known)
            info.name = info.name.replace(OUTSIDE, f"{path.parent}/outside")
            info.linkname = info.linkname.replace(OUTSIDE, f"{path.parent}/outside")
            tar.addfile(info, io.BytesIO(data))
    return path


def unpack(
    tree: Path, *archives: Path, kind: str = "tar", python: str = "3.11", limits: RootLimits | None = None
) -> Path:
    make_imported_root(archives, kind=kind, python=python, texts=TEXTS, tree=tree, limits=limits)
    return tree


@contextmanager
def guarded(tmp_path: Path) -> Iterator[Path]:
    """Yield where to unpack a root, and check that nothing beside it was written."""
    place = tmp_path / "outside"
    place.mkdir()
    (place / "mine").write_text("mine")
    work = tmp_path / "work"
    work.mkdir()
    yield work / "root"
    assert [path.name for path in place.iterdir()] == ["mine"]
    assert (place / "mine").read_text() == "mine"
    assert {path.name for path in tmp_path.iterdir()} <= {
        "outside",
        "work",
        "a.tar",
        "b.tar",
        "a.sqfs",
        "made",
    }
    assert {path.name for path in work.iterdir()} <= {"root"}
