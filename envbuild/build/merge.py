"""Merge finished layers into one: for the flat form, and to group small layers.

Works on dumps (`system.squashfs.dump`), not on unpacked trees, so that set-id
bits, whiteouts and files that nobody may read come out the same for root and
for an ordinary user.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import tempfile
import threading
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path

from envbuild.errors import BuildError, EnvbuildError
from envbuild.system import host, squashfs
from envbuild.system.squashfs import Compression
from envbuild.system.threads import threads

Unpacked = Mapping[Path, "Future[Path]"]

_END = b"# START OF DATA - DO NOT MODIFY\n"
# NAME TYPE TIME MODE UID GID …; a name holds blanks and quotes behind a backslash.
_NAME = rb"((?:\\.|[^\\\s])+)"
# Small layers take as long to start as to unpack; each holds up to 128 MiB, whoever merges.
_DUMPED_AT_ONCE = 4
_dumping = threading.BoundedSemaphore(_DUMPED_AT_ONCE)
_ENTRY = re.compile(_NAME + rb" (?:([A-Z]) \d+ [0-7]+ \d+ \d+(.*)|L " + _NAME + rb")\n", re.DOTALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One line of a dump.

    Attributes
    ----------
    at : int
        Where the line begins, in bytes from the start of the dump.
    path : bytes
        As the line has it, escapes included; ``/`` for the root.
    directory, whiteout : bool
        What it is.
    link : bytes
        The path that it is a hard link to; empty for none.
    opaque : bool
        Of a directory: whether it hides the lower ones of its name.
    """

    at: int
    path: bytes
    directory: bool = False
    whiteout: bool = False
    link: bytes = b""
    opaque: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Blob:
    """A squashfs to be merged.

    Attributes
    ----------
    path : Path
        The file that it lies in.
    offset : int
        Where in that file it begins, in bytes.
    opaque : collection of str
        Its opaque directories, as absolute paths: dumps do not tell of extended attributes.
    """

    path: Path
    offset: int = 0
    opaque: Collection[str] = ()


class _NotMergeableError(ValueError):
    """What the layers say together cannot be said by one."""


def merge(
    layers: Sequence[Path],
    out: Path,
    *,
    with_root: bool,
    compression: Compression = "zstd",
    processors: int | None = None,
    unpacked: Unpacked | None = None,
) -> None:
    """Merge squashfs layers into one, as overlayfs would show them.

    Parameters
    ----------
    layers : sequence of Path
        From bottom to top.
    out : Path
        The squashfs; beside it there must be space for the unpacked layers.
    with_root : bool
        Whether the lowest is the root of the image: then whiteouts have done
        their work and are left out, else they are kept for what lies below.
    compression : str
        ``zstd`` or ``gzip``.
    processors : int, optional
        Threads (count).
    unpacked : Unpacked, optional
        What `unpacking` gave; those of the layers are used up.

    Raises
    ------
    BuildError
        A layer is damaged, or one layer cannot say what these say together.
    MachineError
        The squashfs tools or space are missing.
    """
    blobs = [Blob(path=layer) for layer in layers]
    with merged(blobs, beside=out.parent, with_root=with_root, unpacked=unpacked) as dumps:
        squashfs.make_of_dumps(dumps, out, compression=compression, processors=processors)


@contextlib.contextmanager
def unpacking(layers: Collection[Path], beside: Path) -> Iterator[Unpacked]:
    """Unpack layers for a merge to come while the block runs, such as while the others are built.

    Parameters
    ----------
    beside : Path
        A directory with space for them; what is put there is gone afterwards.

    Returns
    -------
    Unpacked
        Squashfs → the dump that is being made of it.
    """
    with (
        tempfile.TemporaryDirectory(dir=beside, prefix=".merge-") as work,
        threads(min(host.cores(), _DUMPED_AT_ONCE)) as pool,
    ):

        def unpack(layer: Path, into: Path) -> Path:
            _dump(Blob(path=layer), into, None)
            return into

        yield {
            layer: pool.submit(unpack, layer, Path(work) / f"{index}.dump")
            for index, layer in enumerate(layers)
        }


@contextlib.contextmanager
def merged(
    layers: Sequence[Blob], *, beside: Path, with_root: bool, unpacked: Unpacked | None = None
) -> Iterator[list[Path]]:
    """Give what layers show together, once, for `system.squashfs.make_of_dumps` to make any form of it.

    Parameters
    ----------
    layers : sequence of Blob
        From bottom to top.
    beside : Path
        A directory with space for the unpacked layers; what is put there is gone afterwards.
    with_root : bool
        As in `merge`.
    unpacked : Unpacked, optional
        As in `merge`.

    Raises
    ------
    BuildError, MachineError
        As `merge`.
    """
    with tempfile.TemporaryDirectory(dir=beside, prefix=".merge-") as work:
        dumps = [Path(work) / f"{index}.dump" for index in range(len(layers))]
        with threads(min(host.cores(), _DUMPED_AT_ONCE)) as pool:
            ahead = [(unpacked or {}).get(layer.path) for layer in layers]
            list(pool.map(_dump, layers, dumps, ahead))
        try:
            listings = [
                list(_entries(dump, {_written(path) for path in layer.opaque}))
                for layer, dump in zip(layers, dumps, strict=True)
            ]
            hidden = hidden_entries(listings, with_root=with_root)
        except _NotMergeableError as error:
            names = ", ".join(dict.fromkeys(layer.path.name for layer in layers))
            raise BuildError(
                f"the layers {names} cannot be merged: {error}",
                hint="`envbuild cache verify` finds what is damaged; if all is whole, please report it",
            ) from error
        for dump, listing, gone in zip(dumps, listings, hidden, strict=True):
            heirs = _heirs(listing, gone)
            if heirs:
                _bequeath(dump, listing, gone, heirs)
            else:
                _hide(dump, gone)
        # From top to bottom: a directory's entry is the topmost layer's, and comes before what it holds.
        yield dumps[::-1]


def _dump(layer: Blob, into: Path, ahead: Future[Path] | None) -> None:
    if ahead is not None:
        with contextlib.suppress(EnvbuildError, OSError):  # it is done here, and told
            ahead.result().rename(into)
            return
    with _dumping:
        squashfs.dump(layer.path, into, offset=layer.offset)


def hidden_entries(listings: Sequence[Sequence[Entry]], *, with_root: bool) -> list[list[Entry]]:
    """Return, for each layer, the entries that do not show in the merged one.

    Pure. Listings come from bottom to top.

    Raises
    ------
    ValueError
        One layer cannot say it: a directory that hides what lies below the layers.
    """
    hidden: list[list[Entry]] = []
    directories: set[bytes] = set()
    # Paths at which what lies lower ends: files, links, whiteouts; and below which it ends.
    ends: set[bytes] = set()
    opaque: set[bytes] = set()
    for listing in reversed(listings):
        here: list[Entry] = []
        ends_here: set[bytes] = set()
        for entry in listing:
            first, *above = _with_parents(entry.path)
            if first in ends or any(path in ends or path in opaque for path in above):
                here.append(entry)
                continue
            seen = entry.path in directories
            if entry.directory:
                directories.add(entry.path)
            else:
                ends_here.add(entry.path)
            if seen or (entry.whiteout and with_root):
                here.append(entry)
            if ((seen and not entry.directory) or entry.opaque) and not with_root:
                name = _shown(entry.path)
                raise _NotMergeableError(f"the directory {name} would have to hide what lies below")
        ends |= ends_here
        opaque |= {entry.path for entry in listing if entry.opaque}
        hidden.append(here)
    return hidden[::-1]


def _heirs(listing: Iterable[Entry], hidden: Iterable[Entry]) -> dict[bytes, bytes]:
    """Return, for hidden files with hard links that show, which of these has to become the file."""
    gone = {entry.path for entry in hidden}
    heirs: dict[bytes, bytes] = {}
    for entry in listing:
        if entry.link in gone and entry.path not in gone:
            heirs.setdefault(entry.link, entry.path)
    return heirs


def _with_parents(path: bytes) -> Iterator[bytes]:
    yield path
    while b"/" in path:
        path = path.rpartition(b"/")[0]
        yield path


def _entries(dump: Path, opaque: Collection[bytes]) -> Iterator[Entry]:
    """Read the lines of a dump.

    Parameters
    ----------
    opaque : collection of bytes
        Paths of opaque directories, as the lines have them.

    Raises
    ------
    ValueError
        A line is none that we know: a name with a line break or tab, or one
        that begins with ``#``, which mksquashfs would take for a remark.
    """
    with dump.open("rb") as file:
        at = 0
        for line in file:
            if line == b"#\n" and file.readline() == _END:
                return
            found = _ENTRY.fullmatch(line)
            if found is None or line.startswith(b"#"):
                raise _NotMergeableError(f"a file has an unusual name: {_shown(line)}")
            path, kind, rest, link = found.groups()
            yield Entry(
                at=at,
                path=path,
                directory=kind == b"D",
                whiteout=kind == b"C" and rest.strip() == b"0 0",
                link=link or b"",
                opaque=kind == b"D" and path in opaque,
            )
            at += len(line)
    raise _NotMergeableError("a layer's listing does not end")


def _hide(dump: Path, entries: Sequence[Entry]) -> None:
    """Turn lines into remarks, in place: the contents behind them need not move."""
    with dump.open("r+b") as file:
        for entry in entries:
            file.seek(entry.at)
            file.write(b"#")


def _bequeath(
    dump: Path, listing: Sequence[Entry], hidden: Collection[Entry], heirs: Mapping[bytes, bytes]
) -> None:
    """Leave lines out, and let the first hard link of each file that goes become that file."""
    gone = {entry.path for entry in hidden}
    heads = set(heirs.values())
    changed = dump.with_suffix(".heirs")
    with dump.open("rb") as old, changed.open("wb") as new:
        lines = {entry.path: old.readline() for entry in listing}
        for entry in listing:
            heir = heirs.get(entry.link, b"")
            if entry.path in gone:
                continue
            if entry.path in heads:
                new.write(entry.path + lines[entry.link].removeprefix(entry.link))
            else:
                new.write(entry.path + b" L " + heir + b"\n" if heir else lines[entry.path])
        shutil.copyfileobj(old, new, 1 << 20)
    changed.replace(dump)


def _written(path: str) -> bytes:
    """Return a path as the lines of a dump have it."""
    return re.sub(rb"""([\s"'\\])""", rb"\\\1", os.fsencode(path.strip("/")))


def _shown(text: bytes) -> str:
    return repr(text[:200].decode(errors="replace"))
