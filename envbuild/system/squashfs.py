"""Makes squashfs files; the same tree gives the same bytes for every user."""

from __future__ import annotations

import functools
import hashlib
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from envbuild.errors import BuildError, MachineError
from envbuild.system import host, process

Compression = Literal["zstd", "gzip"]

_CHUNK_BYTES = 4 << 20
_HINT = "install squashfs-tools 4.5 or newer; `make setup` does"

# Independent of host, user and clock: mksquashfs decides the order, owners are root, times are 0,
# and hard links are stored as copies.
_CANONICAL = (
    "-noappend",
    "-reproducible",
    *("-mkfs-time", "0"),
    *("-all-time", "0"),
    "-all-root",
    # A staging directory is often 0700, and the root of the top layer is that of the image.
    *("-root-mode", "755"),
    "-no-xattrs",
    "-no-hardlinks",
    # The default is a quarter of the memory.
    *("-mem", "512M"),
    # Otherwise an unreadable file becomes an empty one.
    "-exit-on-error",
    "-no-progress",
    "-quiet",
)
_COMPRESSION: dict[Compression, tuple[str, ...]] = {
    "zstd": ("-b", "131072", "-comp", "zstd", "-Xcompression-level", "3"),
    "gzip": ("-b", "131072", "-comp", "gzip"),
}
# Of what is written once: the default, 9, takes twice the time for a per cent.
_GZIP_SOONER = (*_COMPRESSION["gzip"], "-Xcompression-level", "6")


# Releases that corrupt sparse files, and one with a race in its search for duplicates.
# Source: squashfs-tools, CHANGES of 4.7.5 and 4.7.6.
_CORRUPTING = ((4, 7), (4, 7, 5))
_RACING = (4, 7, 5)


def release(text: str) -> tuple[int, ...]:
    """Return the release that ``mksquashfs -version`` names; empty if it names none."""
    match = re.search(r"version (\d+(?:\.\d+)+)", text)
    return tuple(map(int, match[1].split("."))) if match else ()


def corrupts(version: tuple[int, ...]) -> bool:
    """Return whether a release of mksquashfs writes images with wrong contents."""
    first, fixed = _CORRUPTING
    return first <= version < fixed


@functools.cache
def _options_of(program: Path) -> tuple[str, ...]:
    """Return the options with which a mksquashfs writes correct files; MachineError if none helps."""
    finished = process.run([program, "-version"], env=host.environment(), timeout_s=30)
    version = release(finished.output)
    if corrupts(version):
        raise MachineError(
            f"`{program}` is squashfs-tools {'.'.join(map(str, version))}, which corrupts sparse files",
            hint="install squashfs-tools 4.7.6 or newer, or 4.6",
        )
    return ("-no-duplicates",) if version == _RACING else ()


def make(tree: Path, out: Path, *, whiteouts: Sequence[str] = (), compression: Compression = "zstd") -> None:
    """Make a squashfs of a directory tree; an existing `out` is replaced.

    Names, kinds, modes and contents decide its bytes; owners, times, hard links, extended attributes, the
    order of the directories and the mode of `tree` itself do not. `whiteouts` are paths of lower layers,
    relative to the tree, that a character device 0/0 hides; the directory of each must be in the tree.
    `compression` is ``zstd`` (level 3), or ``gzip`` for kernels without zstd. BuildError: a file cannot be
    read, a whiteout has no directory, or mksquashfs failed. MachineError: no mksquashfs, or no space.
    """
    pseudo = []
    for path in whiteouts:
        parent = (tree / path.strip("/")).parent
        if parent.is_symlink() or not parent.is_dir():  # mksquashfs would drop it without a word
            raise BuildError(
                f"the whiteout `{path}` lies in no directory of the tree `{tree}`",
                hint="its directory must be in the tree, and no symbolic link",
            )
        name = re.sub(r"""([\s"'\\])""", r"\\\1", path.strip("/"))
        pseudo += ["-p", f"{name} c 000 0 0 0 0"]
    # Absolute: the path may begin with a dash. `resolve` would follow links.
    _make(os.path.abspath(tree), out, (*_COMPRESSION[compression], *pseudo))  # noqa: PTH100


def recompress_gzip(squashfs: Path, out: Path, *, offset: int = 0) -> None:
    """Compress a squashfs at a byte offset of its file by gzip, without root or an unpacked tree.

    Modes, owners and device nodes pass as text beside `out`: an ordinary user cannot unpack them.
    BuildError: it is damaged or no squashfs. MachineError: no unsquashfs or mksquashfs, or no space.
    """
    dump = out.with_name(f"{out.name}.dump")
    argv = [str(host.find_program("unsquashfs", hint=_HINT)), "-no-progress", "-quiet"]
    argv += ["-o", str(offset), "-pf", str(dump), str(squashfs)]
    try:
        finished = process.run(argv, env=host.environment())
        if not finished.ok:
            raise _failure(f"`{squashfs}` cannot be unpacked", finished, dump.parent)
        _make("-", out, (*_GZIP_SOONER, "-pf", str(dump)))
    finally:
        dump.unlink(missing_ok=True)


# Offset of the data of a squashfs, and the field of its superblock with their end.
DATA_START = 96
_INODE_TABLE = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Digests:
    """The digests of a squashfs of ours: ``sha256:…``."""

    whole: str
    data: str
    """Length of its data, which images contain unchanged: everything between superblock and tables."""
    tables: str
    """Length of its superblock and its tables."""


def digests(squashfs: Path) -> Digests:
    """Return the digests of a squashfs that envbuild made."""
    whole, data, tables, at = hashlib.sha256(), hashlib.sha256(), hashlib.sha256(), 0
    with squashfs.open("rb") as file:
        end = int.from_bytes(os.pread(file.fileno(), 8, _INODE_TABLE), "little")
        while chunk := file.read(_CHUNK_BYTES):
            view = memoryview(chunk)
            begins, ends = max(DATA_START - at, 0), max(end - at, 0)
            whole.update(view)
            tables.update(view[:begins])
            data.update(view[begins:ends])
            tables.update(view[max(begins, ends) :])
            at += len(chunk)
    return Digests(
        whole=f"sha256:{whole.hexdigest()}",
        data=f"sha256:{data.hexdigest()}",
        tables=f"sha256:{tables.hexdigest()}",
    )


def data_range(squashfs: Path) -> tuple[int, int]:
    """Return where the data of a squashfs that envbuild made begin and end."""
    with squashfs.open("rb") as file:
        end = int.from_bytes(os.pread(file.fileno(), 8, _INODE_TABLE), "little")
        size_bytes = file.seek(0, os.SEEK_END)
    begin = min(DATA_START, size_bytes)
    return begin, min(max(begin, end), size_bytes)


def _make(source: str, out: Path, options: Sequence[str]) -> None:
    """Run mksquashfs; a failure or an interrupt leaves no piece of the file."""
    program = host.find_program("mksquashfs", hint=_HINT)
    argv = [str(program), source, str(out), *_CANONICAL, *options]
    argv += ["-processors", str(host.cores()), *_options_of(program)]
    try:
        # This environment lacks SOURCE_DATE_EPOCH, with which mksquashfs refuses -mkfs-time.
        finished = process.run(argv, env=host.environment())
        if not finished.ok:
            raise _failure(f"`{out.name}` cannot be made", finished, out.parent)
    except BaseException:
        out.unlink(missing_ok=True)
        raise


def _failure(problem: str, finished: process.Finished, directory: Path) -> BuildError | MachineError:
    """Return the error of a program that writes below a directory."""
    output = finished.last_lines(5)
    hint = f"its output:\n{output}\nto try again: {finished.command}"
    if "No space left" in output or "quota exceeded" in output:
        return MachineError(f"{problem}: there is no space in `{directory.absolute()}`", hint=hint)
    return BuildError(problem, hint=hint)
