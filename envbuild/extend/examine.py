"""Examine an extended image: what its packages would load, and what the addition made worse."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace

from envbuild.elf.mpi import mpi_abi
from envbuild.extend.python import PythonInstallation, owned_files
from envbuild.image.extension import ExtensionNote
from envbuild.image.files import ImageFiles
from envbuild.preflight.distributions import METADATA, Distribution
from envbuild.preflight.python_packages import judge_python
from envbuild.preflight.report import PreflightReport, examine_files, worsened
from envbuild.preflight.scan import FileSystemScan, scan_file_system
from envbuild.squashfs.reader import Squashfs


@dataclass(frozen=True, slots=True, kw_only=True)
class ExaminedImage:
    """An extended image, examined."""

    python: PythonInstallation
    preflight: PreflightReport
    """With the problems alone that the image did not have before."""
    has_openmpi: bool
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
    scan = scan_file_system(squashfs)
    added = {
        path
        for name in names & python.installed.keys()
        if python.installed[name].site == python.site_packages
        for path in owned_files(files, python.installed[name])
    }
    added |= {files.target_path(file.target) for file in note.requests.files}
    before = scan_file_system(base) if base is not None else _without(scan, added)
    abis = (mpi_abi(file.elf.soname, file.symbols.defined) for file in scan.objects.values())
    return ExaminedImage(
        python=python,
        preflight=worsened(_examined(scan, python), _examined(before, python)),
        has_openmpi=any(abi is not None and abi.startswith("openmpi") for abi in abis),
        of_others=tuple(sorted(note.packages.keys() - names)),
    )


def examine_file_system(squashfs: Squashfs, python: PythonInstallation) -> PreflightReport:
    """Examine what the processes of an image of another tool would load, with packages of this Python."""
    return _examined(scan_file_system(squashfs), python)


def _examined(scan: FileSystemScan, python: PythonInstallation) -> PreflightReport:
    unscanned = {
        name: Distribution(package.name, package.version)
        for name, package in python.installed.items()
        if package.metadata_path not in scan.distributions and not METADATA.fullmatch(package.metadata_path)
    }
    packages = judge_python(
        scan,
        python=python.version,
        architecture=python.architecture,
        directories=python.search_path,
        others=unscanned,
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
