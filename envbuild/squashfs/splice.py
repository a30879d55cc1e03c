"""Splice squashfs file systems into one: their data is copied unchanged, their tables are merged.

A block of data names no path and is addressed by its offset alone, so the data of a finished layer can be
moved as a whole; only the tables, a few thousandths of the size, are written anew. They follow the data: two
file systems that share their large inputs have tables that begin with the same bytes.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from envbuild.digests import sha256_of
from envbuild.squashfs.format import ALIGNMENT, NONE, SUPERBLOCK_BYTES, Compressor, SquashfsError, Type
from envbuild.squashfs.reader import FRAGMENT, DirectoryInode, FileInode, Inode, LinkInode, Squashfs
from envbuild.squashfs.tables import NO_GROUP, Attributes, Node, write_tables
from envbuild.system.files import copy_range, write_at


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Data of an input that the spliced file system takes over: `size` bytes from `offset` of it on."""

    squashfs: Squashfs
    offset: int
    size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Splice:
    """A spliced file system, ready to be written."""

    parts: tuple[Part, ...]
    offsets: tuple[int, ...]
    """Offset of each part in it; a later part may have a lower one."""
    superblock: bytes
    tables: bytes
    """Everything behind the data."""
    tables_offset: int
    """In bytes."""

    @property
    def size_bytes(self) -> int:
        """Length of the file system, with the zeros up to a multiple of `ALIGNMENT`."""
        return _aligned(self.tables_offset + len(self.tables))

    @property
    def tables_digest(self) -> str:
        """``sha256:…`` of the superblock and the tables."""
        return digest_of_tables(self.superblock, self._padded_tables)

    @property
    def _padded_tables(self) -> bytes:
        return self.tables.ljust(self.size_bytes - self.tables_offset, b"\0")

    def write(self, file: int, offset: int, advanced: Callable[[int], None] = lambda _: None) -> None:
        """Write it into a new file at `offset`: a multiple of `ALIGNMENT`, so that data can be shared.

        `advanced` is called with the number of bytes of each part that was copied. OSError: an input cannot
        be read or has become shorter, or the file cannot be written.
        """
        for part, begin in zip(self.parts, self.offsets, strict=True):
            source, start = part.squashfs.file.fileno(), part.squashfs.offset + part.offset
            copy_range(source, start, part.size, file, offset + begin, advanced)
        write_at(file, self._padded_tables, offset + self.tables_offset)
        write_at(file, self.superblock, offset)


@dataclass(slots=True)
class _Node:
    """An inode of the merged tree; one with several names is one node."""

    inode: Inode
    source: _Source
    """The input that it comes from."""
    children: dict[bytes, _Node] = field(default_factory=dict)

    @property
    def is_directory(self) -> bool:
        return self.inode.type is Type.DIRECTORY


def splice(
    inputs: Mapping[str, Squashfs],
    *,
    parts: Sequence[Part] | None = None,
    hidden: Collection[str] = (),
    unchanged: Collection[str] = (),
    keep_directories: bool = False,
) -> Splice:
    """Merge file systems, given by name from bottom to top (at least one), as overlayfs would show them.

    Directories merge; any other entry replaces the one below; a whiteout removes it. Hard links stay links as
    far as all their names stay. The bottom file system may hold anything; the others must have its compressor
    and block size, and hold only directories, files, links and whiteouts, without extended attributes.

    `parts` are the data to copy, from bottom to top; by default all of each input. The bottom's lie first,
    since they begin with the compressor's options. The others follow from the longest to the shortest, so
    that one more short part moves few of them. A file whose data are in a part above that of a file put on it
    stays. `hidden` are paths of the bottom that are not shown, and `unchanged` files of it that stay whatever
    is put on them. With `keep_directories` the bottom's directories keep mode, owner, time and attributes,
    and nothing of it changes its kind; overlayfs shows those of the upper ones.

    Nothing is written. SquashfsError, with the name of the input: it is damaged or cannot be spliced.
    """
    if parts is None:
        parts = [all_data(squashfs) for squashfs in inputs.values()]
    places = sorted(range(len(parts)), key=lambda number: (number > 0, -parts[number].size))
    offsets, end = [0] * len(parts), 0
    for number in places:
        offsets[number] = _aligned(end) + parts[number].offset % ALIGNMENT
        end = offsets[number] + parts[number].size
    sources: list[_Source] = []
    root: _Node | None = None
    for name, squashfs in inputs.items():
        try:
            if sources:
                _check_fits(squashfs, sources[0].squashfs)
            sources.append(_Source(squashfs, parts, offsets))
            root = _add(sources[-1], root, unchanged, keep_directories=keep_directories)
            if len(sources) == 1:
                _hide(root, hidden)
        except SquashfsError as error:
            raise SquashfsError(f"{name}: {error}", error.squashfs or squashfs) from error
    if root is None:
        raise ValueError("nothing to splice")
    bottom, fragments = sources[0].squashfs, _take_fragments(sources, places)
    attributes = None
    if bottom.attribute_ids:
        attributes = Attributes(ids=bytes(bottom.attribute_ids), blocks=bottom.raw_attributes())
    relocated = _relocated(root, places)
    try:
        superblock, tables = write_tables(
            relocated, bottom.superblock, offset=end, fragments=fragments, attributes=attributes
        )
    except SquashfsError as error:
        raise SquashfsError(str(error), bottom) from error
    return Splice(
        parts=tuple(parts),
        offsets=tuple(offsets),
        superblock=superblock.pack(),
        tables=tables,
        tables_offset=end,
    )


def all_data(squashfs: Squashfs) -> Part:
    """Return all data of a file system."""
    return Part(squashfs=squashfs, offset=SUPERBLOCK_BYTES, size=squashfs.data_end - SUPERBLOCK_BYTES)


class _Source:
    """An input, and the places of its data in a file system in which these parts begin at these offsets."""

    def __init__(self, squashfs: Squashfs, parts: Sequence[Part], offsets: Sequence[int]) -> None:
        self.squashfs = squashfs
        self._moves = sorted(
            (part.offset, part.size, number, offsets[number] - part.offset)
            for number, part in enumerate(parts)
            if part.squashfs is squashfs
        )
        self._begins = [begin for begin, *_ in self._moves]
        self.fragments: dict[int, int] = {}
        """Number of a fragment → its number in the spliced file system, set by `_take_fragments`."""

    def part_of(self, inode: Inode) -> int:
        """Return the number of the part that holds the data of a file; -1 if none does."""
        if isinstance(inode, FileInode) and any(inode.blocks):
            return self.find(inode.start)[0]
        if isinstance(inode, FileInode) and inode.fragment != NONE:
            return self.find(self.squashfs.fragment_start(inode.fragment))[0]
        return -1

    def relocated(self, inode: Inode) -> Inode:
        """Return an inode as the spliced file system stores it; SquashfsError if its data is in no part."""
        if not isinstance(inode, FileInode):
            return inode
        start = self.moved(inode.start) if any(inode.blocks) else 0
        fragment = self.new_fragment(inode.fragment) if inode.fragment != NONE else NONE
        return replace(inode, start=start, fragment=fragment)

    def moved(self, start: int) -> int:
        """Return the new offset of a block of data; SquashfsError if it is in no part."""
        number, shift = self.find(start)
        if number < 0:
            raise SquashfsError(f"the data at byte {start} is in no part of it that is kept", self.squashfs)
        return start + shift

    def new_fragment(self, number: int) -> int:
        """Return the new number of a fragment; SquashfsError if it is in no part."""
        if number not in self.fragments:
            raise SquashfsError(f"the fragment {number} is in no part of it that is kept", self.squashfs)
        return self.fragments[number]

    def find(self, start: int) -> tuple[int, int]:
        """Return the number of the part that holds a block, and by how much it moves; -1 if none does."""
        index = bisect_right(self._begins, start) - 1
        begin, size, number, shift = self._moves[index] if index >= 0 else (0, 0, -1, 0)
        return (number, shift) if start < begin + size else (-1, 0)


def _check_fits(squashfs: Squashfs, bottom: Squashfs) -> None:
    own, other = squashfs.superblock, bottom.superblock
    if own.compressor is not other.compressor:
        names = own.compressor.name.lower(), other.compressor.name.lower()
        raise SquashfsError(f"it is compressed by {names[0]}, and what it is put on by {names[1]}", squashfs)
    if own.block_bytes != other.block_bytes:
        raise SquashfsError(
            f"its blocks have {own.block_bytes} bytes, and those below it {other.block_bytes}", squashfs
        )
    if own.compressor is Compressor.XZ and _xz_dictionary_bytes(squashfs) > _xz_dictionary_bytes(bottom):
        raise SquashfsError("its dictionary of xz is larger than that of what it is put on", squashfs)
    if squashfs.has_attributes:
        raise SquashfsError(
            "it has extended attributes, which only the lowest file system may have", squashfs
        )


def _xz_dictionary_bytes(squashfs: Squashfs) -> int:
    """Return the size of the dictionary that a kernel allocates for the blocks of a file system."""
    options = squashfs.compressor_options()
    if len(options) < 4:
        return squashfs.superblock.block_bytes
    return int(struct.unpack_from("<I", options)[0])


def _add(source: _Source, root: _Node | None, unchanged: Collection[str], *, keep_directories: bool) -> _Node:
    """Merge a file system into the tree; return the root."""
    directories: dict[str, _Node] = {}
    linked: dict[int, _Node] = {}
    for entry in source.squashfs.walk():
        inode = source.squashfs.inode(entry.inode_offset)
        if entry.path == "/":
            merged = root or _Node(inode, source)
            if not keep_directories:
                merged.inode, merged.source = inode, source
            directories["/"] = merged
            continue
        parent, _, text = entry.path.rpartition("/")
        children, name = directories[parent or "/"].children, text.encode(errors="surrogateescape")
        lower = children.get(name)
        if lower is not None and entry.path in unchanged:
            continue
        if keep_directories and lower is not None and lower.is_directory != (entry.kind == "directory"):
            raise SquashfsError(
                f"{entry.path} is a directory in one of the two, and not in the other", source.squashfs
            )
        if root is not None and entry.kind == "whiteout":
            children.pop(name, None)
        elif isinstance(inode, DirectoryInode):
            if lower is None or not lower.is_directory:
                lower = children[name] = _Node(inode, source)
            elif not keep_directories:
                lower.inode, lower.source = inode, source
            directories[entry.path] = lower
        elif root is not None and not isinstance(inode, FileInode | LinkInode):
            raise SquashfsError(f"{entry.path} is a device, a socket or a FIFO", source.squashfs)
        # What an earlier input holds of a later part is above what is put on it.
        elif lower is None or not lower.source.part_of(lower.inode) > source.part_of(inode) >= 0:
            node = linked.get(entry.inode_offset)
            if node is None:
                node = linked[entry.inode_offset] = _Node(inode, source)
            children[name] = node
    return directories["/"]


def _hide(root: _Node, paths: Collection[str]) -> None:
    """Take paths out of a tree; one that is not in it is no error."""
    for path in paths:
        *above, name = path.strip("/").encode(errors="surrogateescape").split(b"/")
        directory: _Node | None = root
        for part in above:
            directory = directory.children.get(part) if directory else None
        if directory is not None:
            directory.children.pop(name, None)


def _relocated(root: _Node, places: Sequence[int]) -> Node:
    """Return a merged tree as it is to be stored; `places` are the numbers of the parts as they lie.

    Groups follow from the tree and the parts alone, so that it does not matter of which inputs it was merged.
    """
    groups = {number: group for group, number in enumerate(places)} | {-1: NO_GROUP}

    def relocated(node: _Node) -> Node:
        group = groups[node.source.part_of(node.inode)]
        return Node(node.source.relocated(node.inode), group)

    stored = {id(root): relocated(root)}
    waiting = [root]
    while waiting:
        node = waiting.pop()
        children = stored[id(node)].children
        for name, child in node.children.items():
            if id(child) not in stored:
                stored[id(child)] = relocated(child)
                waiting.append(child)
            children[name] = stored[id(child)]
    return stored[id(root)]


def _take_fragments(sources: Sequence[_Source], places: Sequence[int]) -> bytes:
    """Return the table of all fragments, as the parts lie (`places`); note their numbers in the sources."""
    taken: list[list[tuple[_Source, int, int, int]]] = [[] for _ in places]
    for source in sources:
        for number, (start, stored, _) in enumerate(FRAGMENT.iter_unpack(source.squashfs.fragments)):
            if (part := source.find(start)[0]) >= 0:
                taken[part].append((source, number, start, stored))
    table = bytearray()
    for source, number, start, stored in (fragment for place in places for fragment in taken[place]):
        source.fragments[number] = len(table) // FRAGMENT.size
        table += FRAGMENT.pack(source.moved(start), stored, 0)
    return bytes(table)


def digest_of_tables(superblock: bytes, tables: bytes) -> str:
    """Return the digest of a superblock and the tables of its file system: ``sha256:…``."""
    return sha256_of(superblock + tables)


def _aligned(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT
