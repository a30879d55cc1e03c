"""The main job's image, changed in one way: told by its rule and nothing else; or unharmed, and not told."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from envbuild.preflight.report import run_preflight
from envbuild.preflight.scan import FileSystemScan, ImageScan, scan_file_system
from envbuild.squashfs.reader import Squashfs
from envbuild.store.store import Store
from envbuild.system import squashfs
from tests.support.images import file_system, scan_image
from tests.support.patches import with_search_path, with_version

SITE = "/opt/env/lib/python3.11/site-packages"
LIB = "/usr/lib/x86_64-linux-gnu"
MPI4PY = f"{SITE}/mpi4py/MPI.mpich.cpython-311-x86_64-linux-gnu.so"
ODEPACK = f"{SITE}/scipy/integrate/_odepack.cpython-311-x86_64-linux-gnu.so"
# Path → content, or None for what hides the path below.
Change = Mapping[str, bytes | None]


class Files:
    """The files of an image, as its processes see them."""

    def __init__(self, content: Squashfs) -> None:
        self.content = content
        self.entries = {entry.path: entry for entry in content.walk()}

    def read(self, path: str) -> bytes:
        """Return what a file holds."""
        with self.content.open(self.entries[path]) as file:
            return file.read()

    def path(self, pattern: str) -> str:
        """Return the one path of a pattern."""
        (path,) = (path for path in self.entries if re.fullmatch(pattern, path))
        return path


@dataclass(frozen=True, kw_only=True)
class Case:
    """A change, and what must be told of it; what is told of a good one is nothing."""

    change: Callable[[Files], Change]
    tells: Mapping[str, str] = field(default_factory=dict)  # rule → what each of its lines says


def openblas(files: Files) -> str:
    return files.path(rf"{SITE}/numpy\.libs/libscipy_openblas[^/]*")


def numpy(files: Files) -> str:
    return files.path(rf"{SITE}/numpy-[0-9.]+\.dist-info/METADATA")


BROKEN = {
    "the standard ABI's library of the real MPICH in place of its own": Case(
        change=lambda files: {"/opt/mpi/lib/libmpi.so.12": files.read("/opt/mpi/lib/libmpi_abi.so.1")},
        # What is an object of MPICH's is a constant of the standard's header.
        tells={
            "loader.mpi-abi": "libmpi.so.12 of the mpich ABI|of the standard ABI",
            "loader.symbols": f"MPI_UNWEIGHTED, MPI_WEIGHTS_EMPTY of mpi|{MPI4PY} gets",
        },
    ),
    "a real extension of a wheel that was built on a newer system": Case(
        change=lambda files: {ODEPACK: with_version(files.read(ODEPACK), "GLIBC_2.14", "GLIBC_2.99")},
        tells={"loader.versions": f"libc.so.6 with GLIBC_2.99|{ODEPACK} gets {LIB}/libc.so.6"},
    ),
    "a real library that a wheel brings is gone": Case(
        change=lambda files: {openblas(files): None},
        tells={"loader.libraries": "libscipy_openblas|/numpy/|gets nothing"},
    ),
    "a real extension that is cut short": Case(
        change=lambda files: {ODEPACK: files.read(ODEPACK)[:3000]},
        tells={"loader.objects": f"{ODEPACK} gets"},
    ),
    "a real extension of a wheel for another Python": Case(
        change=lambda files: {
            ODEPACK: None,
            ODEPACK.replace("cpython-311", "cpython-312"): files.read(ODEPACK),
        },
        tells={"python.abi": "need cpython-312|_odepack.cpython-312-x86_64-linux-gnu.so gets Python 3.11"},
    ),
    "a real distribution replaced by a release that another excludes": Case(
        change=lambda files: {
            numpy(files): re.sub(rb"(?m)^Version: .*$", b"Version: 1.13.3", files.read(numpy(files)))
        },
        tells={"python.requires": "numpy<|/scipy-|gets numpy 1.13.3"},
    ),
}

GOOD = {
    "as it was built": Case(change=lambda _: {"/opt/nothing": b""}),
    "a real extension with a DT_RUNPATH to the image's MPI": Case(
        change=lambda files: {
            MPI4PY: with_search_path(files.read(MPI4PY), "libpthread.so.0", "/opt/mpi/lib", rpath=False)
        },
    ),
    "a real extension of a wheel that was built on the base's own system": Case(
        change=lambda files: {ODEPACK: with_version(files.read(ODEPACK), "GLIBC_2.14", "GLIBC_2.34")},
    ),
    "a real extension for another Python beside the one for this": Case(
        change=lambda files: {ODEPACK.replace("cpython-311", "cpython-312"): files.read(ODEPACK)},
    ),
    "the extension of another MPI is gone": Case(
        change=lambda _: {MPI4PY.replace("MPI.mpich", "MPI.openmpi"): None}
    ),
}


@pytest.fixture(scope="module")
def scan(image: Path, tmp_path_factory: pytest.TempPathFactory) -> ImageScan:
    return scan_image(image, Store(tmp_path_factory.mktemp("store")))


@pytest.fixture(scope="module")
def files(image: Path) -> Iterator[Files]:
    with file_system(image) as content:
        yield Files(content)


def told(scan: ImageScan, change: Change, directory: Path) -> list[tuple[str, str]]:
    """Return rule and line of each problem of the changed image."""
    tree = directory / "tree"
    for name, content in change.items():
        path = tree / name.lstrip("/")
        path.parent.mkdir(parents=True, exist_ok=True)
        if content is not None:
            path.write_bytes(content)
            path.chmod(0o755)
    blob = directory / "top.sqfs"
    squashfs.make(tree, blob)
    with blob.open("rb") as file:
        top = scan_file_system(Squashfs(file, 0, os.fstat(file.fileno()).st_size))
    problems = run_preflight(replace(scan, files=with_change(scan.files, change, top))).problems
    return [
        (problem.id, f"need {problem.expected}; {problem.subject} gets {problem.observed}")
        for problem in problems
    ]


def with_change(whole: FileSystemScan, change: Change, top: FileSystemScan) -> FileSystemScan:
    """Return a scan of an image whose changed files are those of another scan."""
    lists = {
        name: sorted((set(getattr(whole, name)) - change.keys()) | set(getattr(top, name)))
        for name in ("directories", "files")
    }
    tables = {
        name: {path: value for path, value in getattr(whole, name).items() if path not in change}
        | getattr(top, name)
        for name in ("links", "objects", "texts", "unreadable", "distributions")
    }
    fields: dict[str, Any] = {**lists, **tables}
    return FileSystemScan(**fields)


@pytest.mark.parametrize("name", BROKEN)
def test_what_is_broken_is_told_by_its_rule(name: str, scan: ImageScan, files: Files, tmp_path: Path) -> None:
    case = BROKEN[name]
    found = told(scan, case.change(files), tmp_path)
    assert {rule for rule, _ in found} == case.tells.keys()
    for rule, line in found:
        assert all(word in line for word in case.tells[rule].split("|")), line


@pytest.mark.parametrize("name", GOOD)
def test_a_look_alike_is_not_told(name: str, scan: ImageScan, files: Files, tmp_path: Path) -> None:
    assert told(scan, GOOD[name].change(files), tmp_path) == []
