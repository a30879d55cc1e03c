"""Make and unpack squashfs files: the same tree gives the same bytes, whoever makes it."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import re
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from envbuild.errors import BuildError, MachineError
from envbuild.system import host, process

Compression = Literal["zstd", "gzip"]

_CHUNK_BYTES = 4 << 20
_HINT = "install squashfs-tools 4.5 or newer; `make setup` does"

# Nothing of the host, the user or the clock: order is mksquashfs's own, owners are root, times are 0,
# and two files that are hard links here are the same as two copies.
_CANONICAL = (
    "-noappend",
    "-reproducible",
    *("-mkfs-time", "0"),
    *("-all-time", "0"),
    "-all-root",
    # A staging directory is often 0700, and the top layer's root is the image's.
    *("-root-mode", "755"),
    "-no-xattrs",
    "-no-hardlinks",
    *("-b", "131072"),
    # Bounded: it would take a quarter of the memory.
    *("-mem", "512M"),
    # A file that cannot be read would become an empty one otherwise.
    "-exit-on-error",
    "-no-progress",
    "-quiet",
)
_COMPRESSION: dict[Compression, tuple[str, ...]] = {
    "zstd": ("-comp", "zstd", "-Xcompression-level", "3"),
    "gzip": ("-comp", "gzip"),
}


# Releases that pack sparse files wrongly, and one whose search for duplicates has a race.
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
    """Return the options that a mksquashfs needs to pack what it is given.

    Raises
    ------
    MachineError
        No options help.
    """
    told = process.run([program, "-version"], env=host.environment(), timeout_s=30)
    version = release(told.output)
    if corrupts(version):
        raise MachineError(
            f"`{program}` is squashfs-tools {'.'.join(map(str, version))}, which corrupts sparse files",
            hint="install squashfs-tools 4.7.6 or newer, or 4.6",
        )
    return ("-no-duplicates",) if version == _RACING else ()


def make(
    tree: Path,
    out: Path,
    *,
    exclude: Sequence[str] = (),
    pseudo: Sequence[str] = (),
    processors: int | None = None,
    compression: Compression = "zstd",
) -> None:
    """Make a squashfs of a directory tree.

    Names, kinds, modes and contents decide its bytes; owners, times, hard
    links, extended attributes, the order of the directories and the mode of
    the tree's own directory do not.

    Parameters
    ----------
    tree : Path
        Its root; it stays as it is.
    out : Path
        The file; one that is there is replaced.
    exclude : sequence of str
        Paths relative to the tree that are left out with all below them.
    pseudo : sequence of str
        Further entries in mksquashfs's notation, such as those of `whiteout`;
        blanks in names stand behind a backslash.
    processors : int, optional
        Threads (count); as many as this process may use if absent.
    compression : str
        ``zstd`` (level 3), or ``gzip`` for kernels without zstd.

    Raises
    ------
    BuildError
        A file cannot be read, a pseudo entry lies in no directory of the
        tree, or mksquashfs failed otherwise.
    MachineError
        There is no mksquashfs, or no space.
    """
    for entry in pseudo:
        _check_parent(tree, entry)
    words = [os.path.abspath(tree)]  # noqa: PTH100  # resolve() would follow links
    entries = [word for entry in pseudo for word in ("-p", entry)]
    # Last: everything behind it is a name.
    excludes = ["-e", *exclude] if exclude else []
    _mksquashfs(words, out, [*entries, *excludes], processors=processors, compression=compression)


def make_of_dumps(
    dumps: Sequence[Path],
    out: Path,
    *,
    processors: int | None = None,
    compression: Compression = "zstd",
) -> None:
    """Make a squashfs of what `dump` wrote; needs neither root nor the tree.

    Parameters
    ----------
    dumps : sequence of Path
        Their entries must not collide, and a directory's entry must come
        before those of what it holds.

    Raises
    ------
    BuildError, MachineError
        As `make`.
    """
    files = [word for path in dumps for word in ("-pf", str(path))]
    _mksquashfs(["-"], out, files, processors=processors, compression=compression)


def dump(squashfs: Path, into: Path, *, offset: int = 0) -> None:
    """Write all that a squashfs holds as one file: its entries as lines of text, then all contents.

    So modes, owners and device nodes pass through an ordinary user's hands
    unchanged, which they do not where the tree is unpacked.

    Parameters
    ----------
    offset : int
        Where in its file the squashfs begins, in bytes: images hold several.

    Raises
    ------
    BuildError
        It is no squashfs, or damaged.
    MachineError
        There is no unsquashfs, or no space.
    """
    into.unlink(missing_ok=True)
    place = ["-o", str(offset)] if offset else []
    _unsquashfs(squashfs, [*place, "-pf", str(into)], into)


# Where the data of a squashfs begins, and where its superblock says that they end.
_DATA_START = 96
_INODE_TABLE = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Digests:
    """The digests of a squashfs of ours: ``sha256:…``.

    Attributes
    ----------
    whole : str
        Of the file.
    data : str
        Of its data, which images hold as they are: all that lies between superblock and tables.
    tables : str
        Of its superblock and its tables.
    """

    whole: str
    data: str
    tables: str


def digests(squashfs: Path) -> Digests:
    """Read a squashfs of ours.

    Raises
    ------
    OSError
        It cannot be read.
    """
    whole, data, tables, at = hashlib.sha256(), hashlib.sha256(), hashlib.sha256(), 0
    with squashfs.open("rb") as file:
        end = int.from_bytes(os.pread(file.fileno(), 8, _INODE_TABLE), "little")
        while chunk := file.read(_CHUNK_BYTES):
            view = memoryview(chunk)
            begins, ends = max(_DATA_START - at, 0), max(end - at, 0)
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


def extract(squashfs: Path, into: Path) -> None:
    """Unpack a squashfs into a new directory.

    An ordinary user becomes the owner of everything and cannot make device
    nodes; set-user-id bits are lost.

    Raises
    ------
    BuildError
        It is no squashfs, is damaged, or holds what this user cannot make.
    MachineError
        There is no unsquashfs, or no space.
    """
    _unsquashfs(squashfs, ["-no-xattrs", "-d", str(into)], into)


def whiteout(path: str) -> str:
    """Return the pseudo entry that hides a path of the layers below: a character device 0/0.

    Parameters
    ----------
    path : str
        Relative to the root of the tree; the directory that holds it must be there.
    """
    name = re.sub(r"""([\s"'\\])""", r"\\\1", path.strip("/"))
    return f"{name} c 000 0 0 0 0"


def _check_parent(tree: Path, entry: str) -> None:
    """Refuse what mksquashfs would drop without a word."""
    name = re.match(r"(?:\\.|[^\\\s])*", entry)
    parent = (tree / re.sub(r"\\(.)", r"\1", name[0] if name else "").lstrip("/")).parent
    if parent.is_symlink() or not parent.is_dir():
        raise BuildError(
            f"`{entry}` lies in no directory of the tree `{tree}`",
            hint="its directory must be in the tree, and no symbolic link",
        )


def _mksquashfs(
    sources: Sequence[str],
    out: Path,
    options: Sequence[str],
    *,
    processors: int | None,
    compression: Compression,
) -> None:
    program = host.find_program("mksquashfs", hint=_HINT)
    argv = [str(program), *sources, str(out), *_CANONICAL, *_COMPRESSION[compression]]
    argv += ["-processors", str(processors or host.cores()), *_options_of(program), *options]
    # A complete environment of ours: it lacks SOURCE_DATE_EPOCH, with which mksquashfs refuses -mkfs-time.
    with _removed_on_failure(out):
        finished = process.run(argv, env=host.environment())
        if not finished.ok:
            raise _failure(f"`{out.name}` cannot be made", finished)


def _unsquashfs(squashfs: Path, options: Sequence[str], into: Path) -> None:
    program = host.find_program("unsquashfs", hint=_HINT)
    argv = [str(program), "-no-progress", "-quiet", "-processors", str(host.cores())]
    # Queues of 64 MiB in place of 256: several layers may be unpacked at the same time.
    argv += ["-da", "64", "-fr", "64", *options, str(squashfs)]
    with _removed_on_failure(into):
        finished = process.run(argv, env=host.environment())
        if not finished.ok:
            raise _failure(f"`{squashfs}` cannot be unpacked", finished)


@contextlib.contextmanager
def _removed_on_failure(path: Path) -> Iterator[None]:
    """Leave no piece of a file or tree behind, also on an interrupt."""
    try:
        yield
    except BaseException:
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)
        raise


def _failure(problem: str, finished: process.Finished) -> BuildError | MachineError:
    said = finished.last_lines(5)
    hint = f"it said:\n{said}\nto try again: {finished.command}"
    if "No space left" in said or "quota exceeded" in said:
        return MachineError(f"{problem}: there is no space", hint=hint)
    return BuildError(problem, hint=hint)
