"""Writes the tables of a squashfs: inodes, names, fragments, owners.

Each table lies directly behind the previous one, as kernels require; the same tree gives the same bytes.

Source: squashfs-tools-ng, doc/format.adoc; Linux, fs/squashfs/{inode,dir}.c.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from envbuild.squashfs.format import (
    ABSENT,
    EXTENDED,
    METADATA_BYTES,
    NONE,
    UNCOMPRESSED_METADATA,
    Codec,
    Flag,
    SquashfsError,
    Superblock,
    Type,
)
from envbuild.squashfs.reader import FRAGMENT, FileInode, Inode, LinkInode

NO_GROUP = -1
_MAX_NAMES_IN_A_RUN = 256
_MAX_IDS = 1 << 16


@dataclass(slots=True)
class Node:
    """An inode of a tree; one with several names is one node."""

    inode: Inode
    """As it is to be stored: offsets and fragments are those of the new file system."""
    group: int = 0
    """Groups are numbered, and stored, in this order; `NO_GROUP` for the lowest one in its directory."""
    children: dict[bytes, Node] = field(default_factory=dict)
    names: int = 0
    """Number of hard links, counted while the tables are written, as are the next three."""
    number: int = 0
    reference: int = -1
    """Reference of the inode written for it; -1 until then."""
    parent: int = 0
    """Number of a directory's parent."""

    @property
    def is_directory(self) -> bool:
        """Whether it is a directory, which alone has children."""
        return self.inode.type is Type.DIRECTORY


@dataclass(frozen=True, slots=True, kw_only=True)
class Attributes:
    """The extended attributes to which inodes refer, as another file system stores them."""

    ids: bytes
    """The table of sets."""
    blocks: bytes
    """Names and values, compressed; references between these blocks stay valid."""


class MetadataWriter:
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


def write_tables(
    root: Node, superblock: Superblock, *, offset: int, fragments: bytes, attributes: Attributes | None = None
) -> tuple[Superblock, bytes]:
    """Return the superblock of a file system and its tables, which begin at `offset`.

    `superblock` says compressor, block size and time; of its flags, whether there are options of the
    compressor and an export table. `fragments` is the table of fragments. SquashfsError: too many owners.
    """
    return _TablesWriter(superblock, offset, fragments, attributes).write(root)


class _TablesWriter:
    def __init__(
        self, superblock: Superblock, offset: int, fragments: bytes, attributes: Attributes | None
    ) -> None:
        self._superblock, self._offset = superblock, offset
        self._fragments, self._attributes = fragments, attributes
        self._codec = Codec(superblock.compressor)
        self._inodes = MetadataWriter(self._codec)
        self._listings = MetadataWriter(self._codec)
        self._ids: dict[int, int] = {}
        self._references: list[int] = []

    def write(self, root: Node) -> tuple[Superblock, bytes]:
        for node in _stored_order(self._number(root)):
            if node.is_directory:
                self._write_directory(node)
            else:
                self._write_inode(node)
        return self._assemble(root)

    def _number(self, root: Node) -> list[Node]:
        """Give each inode a number; return the directories, each before its children."""
        inodes, directories, waiting = [root], [], [root]
        while waiting:
            node = waiting.pop()
            directories.append(node)
            node.children = dict(sorted(node.children.items()))
            inodes += [child for child in node.children.values() if child.names == 0]
            for child in node.children.values():
                child.names += 1
            waiting += [child for child in reversed(node.children.values()) if child.is_directory]
        _complete_groups(directories)
        inodes.sort(key=lambda node: node.group)
        for number, node in enumerate(inodes, 1):
            node.number = number
        for node in directories:
            for child in node.children.values():
                child.parent = node.number
        # The root's parent is a number that no inode has.
        root.parent = len(inodes) + 1
        self._references = [0] * len(inodes)
        return directories

    def _write_inode(self, node: Node) -> None:
        inode = node.inode
        attributes = inode.attributes != NONE
        match inode:
            case FileInode():
                is_large = max(inode.start, inode.size) > 0xFFFF_FFFF
                extended = attributes or node.names > 1 or inode.sparse > 0 or is_large
                end = (inode.fragment, inode.fragment_offset)
                if extended:
                    sizes = (inode.start, inode.size, inode.sparse, node.names)
                    body = struct.pack("<QQQIIII", *sizes, *end, inode.attributes)
                else:
                    body = struct.pack("<IIII", inode.start, *end, inode.size)
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

    def _write_directory(self, node: Node) -> None:
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

    def _write_listing(self, children: Sequence[tuple[bytes, Node]]) -> None:
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

    def _add_inode(self, node: Node, body: bytes, *, extended: bool) -> None:
        inode = node.inode
        kind = inode.type + EXTENDED if extended else inode.type
        node.reference = self._references[node.number - 1] = self._inodes.reference()
        owner = self._id(inode.user), self._id(inode.group)
        self._inodes.add(struct.pack("<HHHHII", kind, inode.mode, *owner, inode.mtime_s, node.number) + body)

    def _id(self, number: int) -> int:
        position = self._ids.setdefault(number, len(self._ids))
        if position >= _MAX_IDS:
            raise SquashfsError(f"there are more than {_MAX_IDS} owners")
        return position

    def _assemble(self, root: Node) -> tuple[Superblock, bytes]:
        """Join the tables, each directly behind the previous one, as kernels require."""
        tables = bytearray(self._inodes.finish())
        directory_table = self._offset + len(tables)
        tables += self._listings.finish()
        fragment_table = self._add_indexed(tables, self._fragments)
        export_table = ABSENT
        flags = self._superblock.flags & (Flag.COMPRESSOR_OPTIONS | Flag.EXPORTABLE) | Flag.DEDUPLICATED
        if flags & Flag.EXPORTABLE:
            references = struct.pack(f"<{len(self._references)}Q", *self._references)
            export_table = self._add_indexed(tables, references)
        id_table = self._add_indexed(tables, struct.pack(f"<{len(self._ids)}I", *self._ids))
        attribute_table = self._add_attributes(tables)
        superblock = replace(
            self._superblock,
            inodes=len(self._references),
            fragments=len(self._fragments) // FRAGMENT.size,
            flags=flags
            | (0 if self._fragments else Flag.NO_FRAGMENTS)
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
        writer = MetadataWriter(self._codec)
        writer.add(content)
        begin = self._offset + len(tables)
        tables += writer.finish()
        index = self._offset + len(tables)
        tables += head + struct.pack(f"<{len(writer.starts)}Q", *(begin + start for start in writer.starts))
        return index

    def _add_attributes(self, tables: bytearray) -> int:
        if self._attributes is None:
            return ABSENT
        begin = self._offset + len(tables)
        tables += self._attributes.blocks
        count = len(self._attributes.ids) // 16
        return self._add_indexed(tables, self._attributes.ids, struct.pack("<QII", begin, count, 0))


def _complete_groups(directories: Sequence[Node]) -> None:
    """Give a group to all inodes of a tree, whose directories are given, each before its children.

    A directory gets the lowest group below it. So further nodes in higher groups change no other group.
    """
    for node in reversed(directories):
        groups = [child.group for child in node.children.values() if child.group != NO_GROUP]
        node.group = min(groups, default=NO_GROUP)
    directories[0].group = max(directories[0].group, 0)
    for node in directories:
        for child in node.children.values():
            if child.group == NO_GROUP:
                child.group = node.group


def _stored_order(directories: Sequence[Node]) -> list[Node]:
    """Return all inodes in the order in which they are stored; `directories` as above.

    A directory refers to inodes that are already stored, so it follows the highest group below it.
    """
    groups: dict[int, int] = {}
    nodes: dict[int, Node] = {}
    for node in reversed(directories):
        for child in node.children.values():
            if not child.is_directory:
                nodes.setdefault(id(child), child)
                groups[id(child)] = child.group
        below = (groups[id(child)] for child in node.children.values())
        groups[id(node)] = max(below, default=node.group)
        nodes[id(node)] = node
    return sorted(nodes.values(), key=lambda node: groups[id(node)])
