"""Examine an extended image: what its packages would load, and what the addition made worse."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from pathlib import PurePosixPath

from envbuild.elf.mpi import mpi_abi
from envbuild.extend.files import ImageFiles
from envbuild.extend.python import PythonInstallation, owned_files
from envbuild.image.extension import ExtensionNote
from envbuild.preflight.python_packages import judge_python
from envbuild.preflight.report import PreflightReport, examine_files, worsened
from envbuild.preflight.scan import FileSystemScan, scan_file_system
from envbuild.squashfs.reader import Squashfs

# `a/b/__init__.py`, `a.py`, `a.cpython-311-x86_64-linux-gnu.so`: modules below a directory of packages.
_MODULE = re.compile(r"(?P<name>[A-Za-z_]\w*(?:/[A-Za-z_]\w*)*?)(?:/__init__)?(?:\.py|(?:\.[\w-]+)?\.so)")

# Some wheels bring their tests as modules of everybody's.
_NOT_IMPORTED = frozenset({"test", "tests"})


@dataclass(frozen=True, slots=True, kw_only=True)
class ExaminedImage:
    """An extended image, examined."""

    python: PythonInstallation
    preflight: PreflightReport
    """With the problems alone that the image did not have before."""
    modules: tuple[str, ...]
    """The Python modules that were added, by the names to import them."""
    has_openmpi: bool
    absent: tuple[str, ...] = ()
    """Packages that were added for this Python, and that it does not find."""
    of_others: tuple[str, ...] = ()
    """Packages that were added for another Python of the image; they are not examined."""


def examine_image(
    squashfs: Squashfs,
    files: ImageFiles,
    python: PythonInstallation,
    note: ExtensionNote,
    base: Squashfs | None,
) -> ExaminedImage:
    """Examine an extended image and compare it with the one before.

    `base` is the file system before anything was added. Without it the image is compared with itself, less
    the files that were added: what a replaced package broke may then be missed.
    """
    own = [extension.packages for extension in note.extensions if extension.python == python.executable]
    names = {package.name for packages in own for package in packages}
    owned = {name: owned_files(files, python.installed[name]) for name in names & python.installed.keys()}
    scan = scan_file_system(squashfs)
    added = {path for paths in owned.values() for path in paths}
    added |= {files.place(file.target) for file in note.requests.files}
    before = scan_file_system(base) if base is not None else _without(scan, added)
    abis = (mpi_abi(file.elf.soname, file.symbols.defined) for file in scan.objects.values())
    return ExaminedImage(
        python=python,
        preflight=worsened(_examined(scan, python), _examined(before, python)),
        modules=tuple(
            sorted({module for paths in owned.values() for module in _modules(paths, python.site_packages)})
        ),
        has_openmpi=any(abi is not None and abi.startswith("openmpi") for abi in abis),
        absent=tuple(sorted(names - python.installed.keys())),
        of_others=tuple(sorted(note.packages.keys() - names)),
    )


def examine_file_system(squashfs: Squashfs, python: PythonInstallation) -> PreflightReport:
    """Examine what the processes of an image of another tool would load, with packages of this Python."""
    return _examined(scan_file_system(squashfs), python)


def _examined(scan: FileSystemScan, python: PythonInstallation) -> PreflightReport:
    sites = dict.fromkeys((python.site_packages, *(package.site for package in python.installed.values())))
    packages = judge_python(
        scan, python=python.version, architecture=python.architecture, directories=tuple(sites)
    )
    return examine_files(scan, packages, architecture=python.architecture, library_path=python.library_path)


def _without(scan: FileSystemScan, paths: Collection[str]) -> FileSystemScan:
    return replace(
        scan,
        files=[path for path in scan.files if path not in paths],
        objects={path: entry for path, entry in scan.objects.items() if path not in paths},
        unreadable={path: entry for path, entry in scan.unreadable.items() if path not in paths},
        distributions={path: entry for path, entry in scan.distributions.items() if path not in paths},
    )


def _modules(paths: Collection[str], site: str) -> Iterator[str]:
    """Yield the outermost modules of a distribution; parts of a namespace package are such."""
    matches = (_MODULE.fullmatch(path.removeprefix(f"{site}/")) for path in paths)
    names = {match["name"] for match in matches if match} - _NOT_IMPORTED
    packages = {name for name in names if f"{site}/{name}/__init__.py" in paths}
    for name in names:
        above = set(map(str, PurePosixPath(name).parents)) - {"."}
        # Below a directory without `__init__.py` a single file may be data, or a script.
        if not above & packages and (name in packages or not above) and not name.startswith("_"):
            yield name.replace("/", ".")
