"""Merge finished layers into one: for the flat form, and to group small layers.

Works on dumps (`system.squashfs.dump`), not on unpacked trees, so that set-id
bits, whiteouts and files that nobody may read come out the same for root and
for an ordinary user.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from envbuild.errors import BuildError
from envbuild.system import squashfs
from envbuild.system.squashfs import Compression

_END = b"# START OF DATA - DO NOT MODIFY\n"
# NAME TYPE TIME MODE UID GID …; a name holds blanks and quotes behind a backslash.
_NAME = rb"((?:\\.|[^\\\s])+)"
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
    """

    at: int
    path: bytes
    directory: bool = False
    whiteout: bool = False
    link: bytes = b""


class _NotMergeableError(ValueError):
    """What the layers say together cannot be said by one."""


def merge(
    layers: Sequence[Path],
    out: Path,
    *,
    with_root: bool,
    compression: Compression = "zstd",
    processors: int | None = None,
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

    Raises
    ------
    BuildError
        A layer is damaged, or one layer cannot say what these say together.
    MachineError
        The squashfs tools or space are missing.
    """
    with tempfile.TemporaryDirectory(dir=out.parent, prefix=".merge-") as work:
        dumps = [Path(work) / f"{index}.dump" for index in range(len(layers))]
        for layer, dump in zip(layers, dumps, strict=True):
            squashfs.dump(layer, dump)
        try:
            listings = [list(_entries(dump)) for dump in dumps]
            hidden = hidden_entries(listings, with_root=with_root)
        except _NotMergeableError as error:
            raise BuildError(
                f"the layers {', '.join(layer.name for layer in layers)} cannot be merged: {error}"
            ) from error
        for dump, entries in zip(dumps, hidden, strict=True):
            _hide(dump, entries)
        # From top to bottom: a directory's entry is the topmost layer's, and comes before what it holds.
        squashfs.make_of_dumps(dumps[::-1], out, compression=compression, processors=processors)


def hidden_entries(listings: Sequence[Sequence[Entry]], *, with_root: bool) -> list[list[Entry]]:
    """Return, for each layer, the entries that do not show in the merged one.

    Pure. Listings come from bottom to top.

    Raises
    ------
    ValueError
        One layer cannot say it: a directory that hides what lies below the
        layers, or a hard link whose target is hidden.
    """
    hidden: list[list[Entry]] = []
    directories: set[bytes] = set()
    # Paths at which what lies lower ends: files, links, whiteouts.
    ends: set[bytes] = set()
    for listing in reversed(listings):
        here: list[Entry] = []
        ends_here: set[bytes] = set()
        for entry in listing:
            if any(path in ends for path in _with_parents(entry.path)):
                here.append(entry)
                continue
            seen = entry.path in directories
            if entry.directory:
                directories.add(entry.path)
            else:
                ends_here.add(entry.path)
            if seen or (entry.whiteout and with_root):
                here.append(entry)
            if seen and not entry.directory and not with_root:
                name = _shown(entry.path)
                raise _NotMergeableError(f"the directory {name} would have to hide what lies below")
        ends |= ends_here
        _check_links(listing, here)
        hidden.append(here)
    return hidden[::-1]


def _check_links(listing: Iterable[Entry], hidden: Sequence[Entry]) -> None:
    gone = {entry.path for entry in hidden}
    for entry in listing:
        if entry.link in gone and entry.path not in gone:
            raise _NotMergeableError(f"{_shown(entry.path)} is a hard link to a file that is hidden")


def _with_parents(path: bytes) -> Iterator[bytes]:
    yield path
    while b"/" in path:
        path = path.rpartition(b"/")[0]
        yield path


def _entries(dump: Path) -> Iterator[Entry]:
    """Read the lines of a dump.

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
            )
            at += len(line)
    raise _NotMergeableError("a layer's listing does not end")


def _hide(dump: Path, entries: Sequence[Entry]) -> None:
    """Turn lines into remarks, in place: the contents behind them need not move."""
    with dump.open("r+b") as file:
        for entry in entries:
            file.seek(entry.at)
            file.write(b"#")


def _shown(text: bytes) -> str:
    return repr(text[:200].decode(errors="replace"))
