"""Splice squashfs file systems into one: their data is copied unchanged, their tables are merged.

A block of data names no path and is addressed by its offset alone, so the data of a finished layer can be
moved as a whole; only the tables, a few thousandths of the size, are written anew.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from envbuild.digests import sha256_of
from envbuild.squashfs.format import (
    ABSENT,
    EXTENDED,
    METADATA_BYTES,
    NONE,
    SUPERBLOCK_BYTES,
    UNCOMPRESSED_METADATA,
    Codec,
    Compressor,
    Flag,
    SquashfsError,
    Superblock,
    Type,
)
from envbuild.squashfs.reader import FRAGMENT, DirectoryInode, FileInode, Inode, LinkInode, Squashfs
from envbuild.system.files import copy_range, write_at

# Data keeps its offset modulo this, so that file systems with reflinks can share it; images are padded to it.
ALIGNMENT = 4096
_MAX_NAMES_IN_A_RUN = 256
_MAX_IDS = 1 << 16


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
    """Where each part begins in it."""
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
    names: int = 0
    """Number of hard links."""
    number: int = 0
    reference: int = -1
    """Of the inode written for it; the reference is -1 until then."""
    parent: int = 0
    """Number of a directory's parent."""

    @property
    def is_directory(self) -> bool:
        return self.inode.type is Type.DIRECTORY


def splice(
    inputs: Mapping[str, Squashfs],
    *,
    parts: Sequence[Part] | None = None,
    hidden: Collection[str] = (),
    keep_directories: bool = False,
) -> Splice:
    """Merge file systems, given by name from bottom to top (at least one), as overlayfs would show them.

    Directories merge; any other entry replaces the one below; a whiteout removes it. Hard links stay links as
    far as all their names stay. The bottom file system may hold anything; the others must have its compressor
    and block size, and hold only directories, files, links and whiteouts, without extended attributes.

    `parts` are the data to copy, in the order in which they are to lie; by default all of each input. A file
    whose data lies in a later part than that of a file put on it stays: it is the upper one. `hidden` are
    paths of the bottom that are not shown. With `keep_directories` the bottom's directories keep mode, owner,
    time and attributes, and nothing of it changes its kind; overlayfs shows those of the upper ones.

    Nothing is written. SquashfsError, with the name of the input: it is damaged or cannot be spliced.
    """
    if parts is None:
        parts = [whole(squashfs) for squashfs in inputs.values()]
    offsets, end = [], 0
    for part in parts:
        offsets.append(_aligned(end) + part.offset % ALIGNMENT)
        end = offsets[-1] + part.size
    sources: list[_Source] = []
    root: _Node | None = None
    for name, squashfs in inputs.items():
        try:
            if sources:
                _check_fits(squashfs, sources[0].squashfs)
            sources.append(_Source(squashfs, parts, offsets))
            root = _add(sources[-1], root, keep_directories=keep_directories)
            if len(sources) == 1:
                _hide(root, hidden)
        except SquashfsError as error:
            raise SquashfsError(f"{name}: {error}", error.squashfs or squashfs) from error
    if root is None:
        raise ValueError("nothing to splice")
    superblock, tables = _Writer(sources, len(parts), end).write(root)
    return Splice(
        parts=tuple(parts),
        offsets=tuple(offsets),
        superblock=superblock.pack(),
        tables=tables,
        tables_offset=end,
    )


def whole(squashfs: Squashfs) -> Part:
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
        """Number of a fragment → its number in the spliced file system, set by `_Writer`."""

    def part_of(self, inode: Inode) -> int:
        """Return the number of the part that holds the data of a file; -1 if none does."""
        if isinstance(inode, FileInode) and any(inode.blocks):
            return self.find(inode.start)[0]
        if isinstance(inode, FileInode) and inode.fragment != NONE:
            return self.find(self.squashfs.fragment_start(inode.fragment))[0]
        return -1

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


def _add(source: _Source, root: _Node | None, *, keep_directories: bool) -> _Node:
    """Merge a file system into the tree; return the root."""
    directories: dict[str, _Node] = {}
    linked: dict[int, _Node] = {}
    for entry in source.squashfs.walk():
        inode = source.squashfs.inode(entry.place)
        if entry.path == "/":
            merged = root or _Node(inode, source)
            if not keep_directories:
                merged.inode, merged.source = inode, source
            directories["/"] = merged
            continue
        parent, _, text = entry.path.rpartition("/")
        children, name = directories[parent or "/"].children, text.encode(errors="surrogateescape")
        lower = children.get(name)
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
            node = linked.get(entry.place)
            if node is None:
                node = linked[entry.place] = _Node(inode, source)
            children[name] = node
    return directories["/"]


def _hide(root: _Node, paths: Collection[str]) -> None:
    """Take paths out of a tree; one that is not in it is no error."""
    for path in paths:
        *above, name = path.strip("/").encode(errors="surrogateescape").split(b"/")
        place: _Node | None = root
        for part in above:
            place = place.children.get(part) if place else None
        if place is not None:
            place.children.pop(name, None)


class _MetadataWriter:
    """Compresses a table of metadata, block by block."""

    def __init__(self, codec: Codec) -> None:
        self._codec = codec
        self._pending = bytearray()
        self._stored = bytearray()
        self.starts: list[int] = []
        self.length = 0

    def reference(self) -> int:
        """Return a reference to the bytes that are added next."""
        return len(self._stored) << 16 | len(self._pending)

    def add(self, data: bytes) -> None:
        """Append bytes to the table."""
        self._pending += data
        self.length += len(data)
        while len(self._pending) >= METADATA_BYTES:
            self._store(METADATA_BYTES)

    def finish(self) -> bytes:
        """Return the table as it is stored."""
        if self._pending:
            self._store(len(self._pending))
        return bytes(self._stored)

    def _store(self, length: int) -> None:
        content = bytes(self._pending[:length])
        del self._pending[:length]
        self.starts.append(len(self._stored))
        packed = self._codec.compress(content)
        if len(packed) < length:
            self._stored += struct.pack("<H", len(packed)) + packed
        else:
            self._stored += struct.pack("<H", UNCOMPRESSED_METADATA | length) + content


class _Writer:
    """Writes the tables of a merged tree with that many parts of data; they begin at `offset`."""

    def __init__(self, sources: Sequence[_Source], parts: int, offset: int) -> None:
        self._bottom, self._offset = sources[0].squashfs, offset
        self._codec = Codec(self._bottom.superblock.compressor)
        self._inodes = _MetadataWriter(self._codec)
        self._listings = _MetadataWriter(self._codec)
        self._fragments = _take_fragments(sources, parts)
        self._ids: dict[int, int] = {}
        self._references: list[int] = []

    def write(self, root: _Node) -> tuple[Superblock, bytes]:
        directories = self._number(root)
        # From the bottom up: a directory refers to inodes that are already written.
        for node in reversed(directories):
            for child in node.children.values():
                if not child.is_directory and child.reference < 0:
                    self._write_inode(child)
            self._write_directory(node)
        return self._assemble(root)

    def _number(self, root: _Node) -> list[_Node]:
        """Give each inode a number; return the directories, each before its children."""
        root.number, count = 1, 1
        directories, waiting = [], [root]
        while waiting:
            node = waiting.pop()
            directories.append(node)
            node.children = dict(sorted(node.children.items()))
            for child in node.children.values():
                if child.names == 0:
                    count += 1
                    child.number = count
                child.names += 1
                child.parent = node.number
            waiting += [child for child in reversed(node.children.values()) if child.is_directory]
        # The root's parent is a number that no inode has.
        root.parent = count + 1
        self._references = [0] * count
        return directories

    def _write_inode(self, node: _Node) -> None:
        inode = node.inode
        attributes = inode.attributes != NONE
        match inode:
            case FileInode():
                start = node.source.moved(inode.start) if any(inode.blocks) else 0
                fragment = inode.fragment
                if fragment != NONE:
                    fragment = node.source.new_fragment(fragment)
                extended = (
                    attributes or node.names > 1 or inode.sparse > 0 or max(start, inode.size) > 0xFFFF_FFFF
                )
                if extended:
                    sizes = (start, inode.size, inode.sparse, node.names, fragment, inode.fragment_offset)
                    body = struct.pack("<QQQIIII", *sizes, inode.attributes)
                else:
                    body = struct.pack("<IIII", start, fragment, inode.fragment_offset, inode.size)
                body += bytes(inode.blocks)
            case LinkInode():
                extended = attributes
                body = struct.pack("<II", node.names, len(inode.target)) + inode.target
            case _:
                extended = attributes
                body = struct.pack("<I", node.names)
                if inode.type in (Type.BLOCK_DEVICE, Type.CHARACTER_DEVICE):
                    body += struct.pack("<I", inode.device)
        if extended and not isinstance(inode, FileInode):
            body += struct.pack("<I", inode.attributes)
        self._add_inode(node, body, extended=extended)

    def _write_directory(self, node: _Node) -> None:
        listing, length = self._listings.reference(), self._listings.length
        self._write_listing(list(node.children.items()))
        # `.` and `..` count as 3 bytes, and are not stored.
        size = self._listings.length - length + 3
        links = 2 + sum(child.is_directory for child in node.children.values())
        block, offset = listing >> 16, listing & 0xFFFF
        extended = size > 0xFFFF or node.inode.attributes != NONE
        if extended:
            body = struct.pack("<IIIIHHI", links, size, block, node.parent, 0, offset, node.inode.attributes)
        else:
            body = struct.pack("<IIHHI", block, links, size, offset, node.parent)
        self._add_inode(node, body, extended=extended)

    def _write_listing(self, children: Sequence[tuple[bytes, _Node]]) -> None:
        """Write names in runs; the inodes of a run lie in one block and have near numbers."""
        at = 0
        while at < len(children):
            first = children[at][1]
            end = at + 1
            while (
                end < len(children)
                and end - at < _MAX_NAMES_IN_A_RUN
                and children[end][1].reference >> 16 == first.reference >> 16
                and -0x8000 <= children[end][1].number - first.number <= 0x7FFF
            ):
                end += 1
            self._listings.add(struct.pack("<III", end - at - 1, first.reference >> 16, first.number))
            for name, child in children[at:end]:
                step, kind = child.number - first.number, child.inode.type
                head = struct.pack("<HhHH", child.reference & 0xFFFF, step, kind, len(name) - 1)
                self._listings.add(head + name)
            at = end

    def _add_inode(self, node: _Node, body: bytes, *, extended: bool) -> None:
        inode = node.inode
        kind = inode.type + EXTENDED if extended else inode.type
        node.reference = self._references[node.number - 1] = self._inodes.reference()
        owner = self._id(inode.user), self._id(inode.group)
        self._inodes.add(struct.pack("<HHHHII", kind, inode.mode, *owner, inode.mtime_s, node.number) + body)

    def _id(self, number: int) -> int:
        place = self._ids.setdefault(number, len(self._ids))
        if place >= _MAX_IDS:
            raise SquashfsError(f"there are more than {_MAX_IDS} owners", self._bottom)
        return place

    def _assemble(self, root: _Node) -> tuple[Superblock, bytes]:
        """Join the tables, each directly behind the previous one, as kernels require."""
        bottom, fragments = self._bottom, self._fragments
        tables = bytearray(self._inodes.finish())
        directory_table = self._offset + len(tables)
        tables += self._listings.finish()
        fragment_table = self._add_indexed(tables, fragments)
        export_table = ABSENT
        flags = bottom.superblock.flags & (Flag.COMPRESSOR_OPTIONS | Flag.EXPORTABLE) | Flag.DEDUPLICATED
        if flags & Flag.EXPORTABLE:
            references = struct.pack(f"<{len(self._references)}Q", *self._references)
            export_table = self._add_indexed(tables, references)
        id_table = self._add_indexed(tables, struct.pack(f"<{len(self._ids)}I", *self._ids))
        attribute_table = self._add_attributes(tables) if bottom.attribute_ids else ABSENT
        superblock = replace(
            bottom.superblock,
            inodes=len(self._references),
            fragments=len(fragments) // FRAGMENT.size,
            flags=flags
            | (0 if fragments else Flag.NO_FRAGMENTS)
            | (Flag.NO_ATTRIBUTES if attribute_table == ABSENT else 0),
            ids=len(self._ids),
            root=root.reference,
            bytes_used=self._offset + len(tables),
            id_table=id_table,
            attribute_table=attribute_table,
            inode_table=self._offset,
            directory_table=directory_table,
            fragment_table=fragment_table,
            export_table=export_table,
        )
        return superblock, bytes(tables)

    def _add_indexed(self, tables: bytearray, content: bytes, head: bytes = b"") -> int:
        """Append a table with an index of its blocks; return the offset of the index, or of its head."""
        writer = _MetadataWriter(self._codec)
        writer.add(content)
        begin = self._offset + len(tables)
        tables += writer.finish()
        index = self._offset + len(tables)
        tables += head + struct.pack(f"<{len(writer.starts)}Q", *(begin + start for start in writer.starts))
        return index

    def _add_attributes(self, tables: bytearray) -> int:
        """Append the extended attributes of the bottom; references between their blocks stay valid."""
        bottom = self._bottom
        begin = self._offset + len(tables)
        tables += bottom.raw_attributes()
        count = len(bottom.attribute_ids) // 16
        return self._add_indexed(tables, bytes(bottom.attribute_ids), struct.pack("<QII", begin, count, 0))


def _take_fragments(sources: Sequence[_Source], parts: int) -> bytes:
    """Return the table of all fragments, in the order of the parts; note their numbers in the sources."""
    taken: list[list[tuple[_Source, int, int, int]]] = [[] for _ in range(parts)]
    for source in sources:
        for number, (start, stored, _) in enumerate(FRAGMENT.iter_unpack(source.squashfs.fragments)):
            if (part := source.find(start)[0]) >= 0:
                taken[part].append((source, number, start, stored))
    table = bytearray()
    for source, number, start, stored in (fragment for fragments in taken for fragment in fragments):
        source.fragments[number] = len(table) // FRAGMENT.size
        table += FRAGMENT.pack(source.moved(start), stored, 0)
    return bytes(table)


def digest_of_tables(superblock: bytes, tables: bytes) -> str:
    """Return the digest of a superblock and the tables of its file system: ``sha256:…``."""
    return sha256_of(superblock + tables)


def _aligned(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT
