"""Read squashfs 4.0 without mounting or unpacking it.

A file system is untrusted input. Every offset, count and size is checked against the length of what it refers
to before it is used, and no part of a table is used twice, so the real length of the tables bounds the
memory.
"""

from __future__ import annotations

import io
import os
import struct
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import BinaryIO, Literal

from envbuild.squashfs.format import (
    ABSENT,
    EXTENDED,
    METADATA_BYTES,
    NONE,
    SUPERBLOCK_BYTES,
    UNCOMPRESSED_BLOCK,
    UNCOMPRESSED_METADATA,
    Codec,
    Flag,
    SquashfsError,
    Superblock,
    Type,
)

Kind = Literal["directory", "file", "link", "whiteout", "other"]

_KINDS: dict[Type, Kind] = {Type.DIRECTORY: "directory", Type.FILE: "file", Type.LINK: "link"}
_PREFIXES = {0: "user.", 1: "trusted.", 2: "security."}
_OUT_OF_LINE = 0x100

# Far more than any image needs, far less than the memory of a machine.
_MAX_TABLE_BYTES = 1 << 30
_MAX_DEPTH = 256
_MAX_LINK_BYTES = 4096
# The blocks of a file of half a terabyte, if it is all holes.
_MAX_HOLES_BYTES = 16 << 20
_MAX_ATTRIBUTES = 1000
_MAX_ATTRIBUTE_BYTES = 64 << 20
_CACHED_BLOCKS = 16
# Of content that is read: many files, and many names of one, may share their blocks.
_MAX_WORK_BYTES = 64 << 30
_MAX_WORK_RATIO = 256  # in addition, to the size of the file system
_READ_WORK_BYTES = 512  # of a read, however short
_WORK_OF_LENGTH = 16  # bytes, for each of a list of lengths of blocks

FRAGMENT = struct.Struct("<QII")
_ATTRIBUTE_ID = struct.Struct("<QII")


@dataclass(frozen=True, slots=True)
class Entry:
    """One name of a file system."""

    path: str
    """Absolute."""
    kind: Kind
    """A ``whiteout`` is a character device 0/0: it hides a path of the layers below."""
    mode: int
    """Permission bits."""
    size: int = 0
    """Length of a file in bytes."""
    target: str = ""
    """Target of a link, as written."""
    attributes: tuple[tuple[str, bytes], ...] = ()
    """Extended attributes, with their prefix (``security.capability``)."""
    owner: tuple[int, int] = (0, 0)
    """User and group id."""
    mtime_s: int = 0
    """Seconds since the epoch."""
    inode_offset: int = -1
    """Offset of the inode in the inode table. Hard links share it."""


@dataclass(slots=True)
class Inode:
    """An inode as it is stored; this class itself stands for devices, FIFOs and sockets."""

    type: Type
    mode: int
    user: int
    group: int
    """Ids, not indexes of the id table."""
    mtime_s: int
    attributes: int = NONE
    """Index in the table of extended attributes, or `NONE`."""
    device: int = 0
    """Number of a device."""


@dataclass(slots=True)
class DirectoryInode(Inode):
    """A directory; its names are `length` bytes of the directory table, from `listing` on."""

    listing: int = 0
    length: int = 0


@dataclass(slots=True)
class LinkInode(Inode):
    """A symbolic link."""

    target: bytes = b""


@dataclass(slots=True)
class FileInode(Inode):
    """A file."""

    size: int = 0
    """Length in bytes."""
    start: int = 0
    """Offset of its first block."""
    blocks: bytes | memoryview = b""
    """Stored length of each block, 4 bytes each, as in the table."""
    fragment: int = NONE
    fragment_offset: int = 0
    """The fragment that holds the end of the file (`NONE`: there is none), and the offset in it."""
    sparse: int = 0
    """Bytes of the file that are holes, as far as its writer counted them."""


@dataclass(frozen=True, slots=True)
class MetadataTable:
    """A table of metadata, decompressed."""

    squashfs: Squashfs
    data: bytearray
    blocks: Mapping[int, int]
    """Offset of a block from the start of the stored table → offset of its content in `data`."""

    def offset_of(self, block: int, offset: int) -> int:
        """Return the offset in `data` that a reference points to."""
        begin = self.blocks.get(block)
        if begin is None or offset >= METADATA_BYTES or begin + offset >= len(self.data):
            raise SquashfsError("a reference leads outside of its table", self.squashfs)
        return begin + offset


class Squashfs:
    """A squashfs within a real file, whose position stays unchanged.

    All methods raise SquashfsError if it cannot be read, is not squashfs 4.0, is inconsistent, or uses
    another compressor than gzip, lz4, xz or zstd.
    """

    def __init__(self, file: BinaryIO, offset: int, size: int) -> None:
        self.file, self.offset = file, offset
        self.size_bytes = size  # with the padding behind it
        self._size = size
        self.superblock = Superblock.parse(self._raw(0, SUPERBLOCK_BYTES))
        if self.superblock.bytes_used > size:
            raise SquashfsError("it is cut short", self)
        self._size = self.superblock.bytes_used
        self._codec = Codec(self.superblock.compressor)
        self._inodes: dict[int, Inode] = {}
        self._inode_bytes = 0
        self._attributes: dict[int, tuple[tuple[str, bytes], ...]] = {}
        self._attribute_bytes = 0
        self._data_blocks: OrderedDict[int, bytes] = OrderedDict()
        self._left_bytes = _MAX_WORK_BYTES + _MAX_WORK_RATIO * size

    def charge(self, work_bytes: int) -> None:
        """Count work on contents; SquashfsError once it is far more than any use of a file system needs."""
        self._left_bytes -= work_bytes
        if self._left_bytes < 0:
            raise SquashfsError("its files share their content so often that reading does not end", self)

    @property
    def has_attributes(self) -> bool:
        """Whether there is a table of extended attributes."""
        return self.superblock.attribute_table != ABSENT

    @property
    def data_end(self) -> int:
        """Offset at which the blocks of data end and the tables begin."""
        return self.superblock.inode_table

    def walk(self, *, enter: Callable[[str], bool] = lambda _: True) -> Iterator[Entry]:
        """Yield every name, a directory before its content, sorted by name within it.

        Directories for whose path `enter` returns False are not read.
        """
        block, offset = self.superblock.root >> 16, self.superblock.root & 0xFFFF
        waiting = [("/", self._inode_table.offset_of(block, offset))]
        directories: set[int] = set()
        listed_bytes = 0
        while waiting:
            path, inode_offset = waiting.pop()
            inode = self.inode(inode_offset)
            if path == "/" and not isinstance(inode, DirectoryInode):
                raise SquashfsError("its root is not a directory", self)
            yield self._entry(path, inode_offset, inode)
            if not isinstance(inode, DirectoryInode):
                continue
            if inode_offset in directories:
                raise SquashfsError(f"the directory {path} has another name, too", self)
            directories.add(inode_offset)
            if not enter(path):
                continue
            if path.count("/") > _MAX_DEPTH:
                raise SquashfsError(f"it has directories more than {_MAX_DEPTH} deep", self)
            # No two directories share bytes of the table.
            listed_bytes += inode.length
            if listed_bytes > len(self._directory_table.data):
                raise SquashfsError("its directories overlap", self)
            prefix = path.rstrip("/")
            waiting += [
                (f"{prefix}/{name}", inode_offset) for name, inode_offset in reversed(self._listing(inode))
            ]

    def open(self, entry: Entry) -> BinaryIO:
        """Return a file's content; only the blocks that are read are decompressed."""
        inode = self.inode(entry.inode_offset)
        if not isinstance(inode, FileInode):
            raise SquashfsError(f"{entry.path} is not a file", self)
        return io.BufferedReader(_Content(self, inode), 4096)

    def data_offset(self, entry: Entry) -> int | None:
        """Return the offset of a file's data in bytes, or None for an empty file and for other kinds."""
        inode = self.inode(entry.inode_offset)
        if not isinstance(inode, FileInode):
            return None
        if any(inode.blocks):
            return inode.start
        return None if inode.fragment == NONE else self.fragment_start(inode.fragment)

    def fragment_start(self, number: int) -> int:
        """Return where a fragment lies, in bytes from the start."""
        return self.fragment_range(number)[0]

    def fragment_range(self, number: int) -> tuple[int, int]:
        """Return where a fragment lies, in bytes from the start, and its stored length."""
        start, stored, _ = FRAGMENT.unpack_from(self.fragments, FRAGMENT.size * number)
        return start, stored & (UNCOMPRESSED_BLOCK - 1)

    def inode(self, inode_offset: int) -> Inode:
        """Return the inode at an offset of the inode table."""
        inode = self._inodes.get(inode_offset)
        if inode is None:
            inode, end = self._read_inode(inode_offset)
            # No two inodes share bytes, so that many small ones cannot claim one large list of blocks.
            self._inode_bytes += end - inode_offset
            if self._inode_bytes > len(self._inode_table.data):
                raise SquashfsError("its inodes overlap", self)
            self._inodes[inode_offset] = inode
        return inode

    @cached_property
    def fragments(self) -> bytearray:
        """The table of fragments: offset and stored length of each, in `FRAGMENT.size` bytes."""
        table = self._indexed_table(self.superblock.fragment_table, FRAGMENT.size * self.superblock.fragments)
        total = 0
        for start, stored, _ in FRAGMENT.iter_unpack(table):
            length = stored & (UNCOMPRESSED_BLOCK - 1)
            if not length:
                raise SquashfsError("it has a fragment without content", self)
            self._check_data(start, struct.pack("<I", length))
            total += length
        if total > self.data_end:
            raise SquashfsError("its fragments overlap", self)
        return table

    @cached_property
    def attribute_ids(self) -> bytearray:
        """The table of sets of extended attributes: reference, count and length of each, in 16 bytes."""
        if not self.has_attributes:
            return bytearray()
        _, count = struct.unpack("<QI", self._raw(self.superblock.attribute_table, 12))
        return self._indexed_table(self.superblock.attribute_table + 16, _ATTRIBUTE_ID.size * count)

    def compressor_options(self) -> bytes:
        """Return the options of the compressor; empty for the defaults."""
        if not self.superblock.flags & Flag.COMPRESSOR_OPTIONS:
            return b""
        return self._metadata_block(SUPERBLOCK_BYTES)[0]

    def raw_tables(self) -> tuple[bytes, bytes]:
        """Return the superblock, and everything behind the data, as stored."""
        length = self.size_bytes - self.data_end
        tables = self._read(self.data_end, length)
        return self._raw(0, SUPERBLOCK_BYTES), tables

    def raw_attributes(self) -> bytes:
        """Return the blocks that hold the names and values of extended attributes, as stored."""
        begin, end = self._attribute_bounds
        return self._raw(begin, end - begin)

    def content_block(self, inode: FileInode, index: int, offset: int) -> bytes:
        """Return the block of a file with an index (from 0), stored at `offset` unless in a fragment."""
        length = min(self.superblock.block_bytes, inode.size - index * self.superblock.block_bytes)
        if 4 * index < len(inode.blocks):
            (stored,) = struct.unpack_from("<I", inode.blocks, 4 * index)
            if stored == 0:
                return bytes(length)
            data = self._data(offset, stored)
        else:
            start, stored, _ = FRAGMENT.unpack_from(self.fragments, FRAGMENT.size * inode.fragment)
            data = self._data(start, stored)
            data = data[inode.fragment_offset : inode.fragment_offset + length]
        if len(data) != length:
            raise SquashfsError("a block has another length than its file claims", self)
        return data

    # Tables

    @cached_property
    def _inode_table(self) -> MetadataTable:
        return self._table(self.superblock.inode_table, self.superblock.directory_table)

    @cached_property
    def _directory_table(self) -> MetadataTable:
        # It ends where the first block of a table with an index begins.
        ends = [self._first_block(self.superblock.id_table)]
        if self.superblock.fragments:
            ends.append(self._first_block(self.superblock.fragment_table))
        if self.superblock.export_table != ABSENT:
            ends.append(self._first_block(self.superblock.export_table))
        return self._table(self.superblock.directory_table, min(ends))

    @cached_property
    def _ids(self) -> tuple[int, ...]:
        return struct.unpack(
            f"<{self.superblock.ids}I",
            self._indexed_table(self.superblock.id_table, 4 * self.superblock.ids),
        )

    @cached_property
    def _attribute_bounds(self) -> tuple[int, int]:
        table = self.superblock.attribute_table
        (begin,) = struct.unpack("<Q", self._raw(table, 8))
        end = self._first_block(table + 16) if self.attribute_ids else begin
        if not SUPERBLOCK_BYTES <= begin <= end <= table:
            raise SquashfsError("its extended attributes lie outside of their table", self)
        return begin, end

    @cached_property
    def _attribute_table(self) -> MetadataTable:
        return self._table(*self._attribute_bounds)

    def _first_block(self, index: int) -> int:
        (first,) = struct.unpack("<Q", self._raw(index, 8))
        return int(first)

    def _indexed_table(self, index: int, length: int) -> bytearray:
        """Read a table whose blocks are listed in an index of their offsets."""
        count = -(-length // METADATA_BYTES)
        data, following = bytearray(), SUPERBLOCK_BYTES
        for (offset,) in struct.iter_unpack("<Q", self._raw(index, 8 * count)):
            if offset < following:
                raise SquashfsError("the blocks of a table are not in order", self)
            content, following = self._metadata_block(offset)
            data += content
        if len(data) != length:
            raise SquashfsError("a table has another length than it claims", self)
        return data

    def _table(self, begin: int, end: int) -> MetadataTable:
        if not SUPERBLOCK_BYTES <= begin <= end <= self._size:
            raise SquashfsError("its tables overlap, or lie outside of the file system", self)
        data, blocks, offset = bytearray(), {}, begin
        while offset < end:
            blocks[offset - begin] = len(data)
            content, offset = self._metadata_block(offset)
            data += content
            if len(content) != METADATA_BYTES and offset != end:
                raise SquashfsError("a block of metadata has another length than it must have", self)
            if len(data) > _MAX_TABLE_BYTES:
                raise SquashfsError(f"a table holds more than {_MAX_TABLE_BYTES} bytes", self)
        if offset != end:
            raise SquashfsError("a block of metadata reaches into the next table", self)
        return MetadataTable(self, data, blocks)

    def _metadata_block(self, offset: int) -> tuple[bytes, int]:
        """Return the content of a block, and the offset of the next one."""
        (header,) = struct.unpack("<H", self._raw(offset, 2))
        length = header & (UNCOMPRESSED_METADATA - 1)
        if not 0 < length <= METADATA_BYTES:
            raise SquashfsError(f"it claims a block of metadata of {length} bytes", self)
        data = self._raw(offset + 2, length)
        if not header & UNCOMPRESSED_METADATA:
            data = self._decompress(data, METADATA_BYTES)
        return data, offset + 2 + length

    # Inodes and names

    def _read_inode(self, inode_offset: int) -> tuple[Inode, int]:
        """Return an inode and the offset at which its bytes end."""
        data = self._inode_table.data
        number, mode, user, group, mtime, _ = self._unpack("<HHHHII", data, inode_offset)
        extended = number > EXTENDED
        if not 1 <= number <= Type.SOCKET + EXTENDED:
            raise SquashfsError(f"it has an inode of an unknown type {number}", self)
        kind = Type(number - EXTENDED if extended else number)
        common = (kind, mode & 0o7777, self._id(user), self._id(group), mtime)
        if kind is Type.DIRECTORY:
            return self._read_directory(common, inode_offset + 16, extended=extended)
        if kind is Type.FILE:
            return self._read_file(common, inode_offset + 16, extended=extended)
        end = inode_offset + 20
        if kind is Type.LINK:
            (length,) = self._unpack("<I", data, end)
            if not 0 < length <= _MAX_LINK_BYTES:
                raise SquashfsError(f"it has a link whose target has {length} bytes", self)
            end += 4 + length
            target = bytes(data[end - length : end])
            if len(target) != length or b"\0" in target:
                raise SquashfsError("the target of a link is damaged", self)
            inode: Inode = LinkInode(*common, target=target)
        elif kind in (Type.BLOCK_DEVICE, Type.CHARACTER_DEVICE):
            (device,) = self._unpack("<I", data, end)
            inode, end = Inode(*common, device=device), end + 4
        else:
            inode = Inode(*common)
        if extended:
            (inode.attributes,) = self._unpack("<I", data, end)
            end += 4
        if end > len(data):
            raise SquashfsError("an inode is cut short", self)
        self._check_attributes(inode)
        return inode, end

    def _read_directory(
        self, common: tuple[Type, int, int, int, int], position: int, *, extended: bool
    ) -> tuple[Inode, int]:
        data = self._inode_table.data
        if extended:
            _, size, block, _, indexes, offset, attributes = self._unpack("<IIIIHHI", data, position)
            end = position + 24
            for _ in range(indexes):
                _, _, length = self._unpack("<III", data, end)
                end += 12 + length + 1
        else:
            block, _, size, offset, _ = self._unpack("<IIHHI", data, position)
            attributes, end = NONE, position + 16
        if end > len(data):
            raise SquashfsError("an inode is cut short", self)
        # The size counts 3 bytes more, for `.` and `..`, which are not stored.
        inode = DirectoryInode(*common, attributes=attributes, length=max(size - 3, 0))
        if inode.length:
            inode.listing = self._directory_table.offset_of(block, offset)
            if inode.listing + inode.length > len(self._directory_table.data):
                raise SquashfsError("a directory is cut short", self)
        self._check_attributes(inode)
        return inode, end

    def _read_file(
        self, common: tuple[Type, int, int, int, int], position: int, *, extended: bool
    ) -> tuple[Inode, int]:
        data = self._inode_table.data
        sparse, attributes = 0, NONE
        if extended:
            start, size, sparse, _, fragment, offset, attributes = self._unpack("<QQQIIII", data, position)
            begin = position + 40
        else:
            start, fragment, offset, size = self._unpack("<IIII", data, position)
            begin = position + 16
        block_bytes = self.superblock.block_bytes
        count = size // block_bytes if fragment != NONE else -(-size // block_bytes)
        end = begin + 4 * count
        if end > len(data) or 4 * count > max(self._size, _MAX_HOLES_BYTES):
            raise SquashfsError(f"it has a file that claims {size} bytes", self)
        blocks = memoryview(data)[begin:end]
        inode = FileInode(
            *common,
            attributes=attributes,
            size=size,
            start=start,
            blocks=blocks,
            fragment=fragment,
            fragment_offset=offset,
            sparse=sparse,
        )
        self._check_data(start, blocks)
        if fragment != NONE and (
            FRAGMENT.size * fragment >= len(self.fragments) or offset + size % block_bytes > block_bytes
        ):
            raise SquashfsError("the end of a file lies in a fragment that is not there", self)
        self._check_attributes(inode)
        return inode, end

    def _check_attributes(self, inode: Inode) -> None:
        if inode.attributes != NONE and _ATTRIBUTE_ID.size * inode.attributes >= len(self.attribute_ids):
            raise SquashfsError("an inode has extended attributes that are not there", self)

    def _check_data(self, start: int, blocks: bytes | memoryview) -> None:
        """Check that blocks of these stored lengths, 4 bytes each, lie in the data area from `start` on."""
        total = longest = 0
        for (length,) in struct.iter_unpack("<I", blocks):
            length &= UNCOMPRESSED_BLOCK - 1  # noqa: PLW2901  # the flag is no part of it
            total, longest = total + length, max(longest, length)
        if longest > self.superblock.block_bytes:
            raise SquashfsError("a block of data is longer than it may be", self)
        if total and not SUPERBLOCK_BYTES <= start <= start + total <= self.data_end:
            raise SquashfsError("a block of data lies outside of the data", self)

    def _id(self, index: int) -> int:
        if index >= len(self._ids):
            raise SquashfsError("it has an owner that is not in its table", self)
        return self._ids[index]

    def _listing(self, directory: DirectoryInode) -> list[tuple[str, int]]:
        """Return the names of a directory, sorted, each with the offset of its inode."""
        data, at, end = self._directory_table.data, directory.listing, directory.listing + directory.length
        names: list[tuple[str, int]] = []
        last = b""
        while at < end:
            count, block, _ = self._unpack("<III", data, at)
            at += 12
            if count >= 256:
                raise SquashfsError("a directory claims too many names at once", self)
            for _ in range(count + 1):
                offset, _, _, length = self._unpack("<HhHH", data, at)
                name = bytes(data[at + 8 : at + 9 + length])
                at += 9 + length
                if at > end:
                    raise SquashfsError("a directory is cut short", self)
                if name in (b".", b"..") or b"/" in name or b"\0" in name or length > 255:
                    raise SquashfsError(f"a directory has the name {name!r}", self)
                if name <= last:
                    raise SquashfsError(
                        f"the names of a directory are not in order: {last!r}, {name!r}", self
                    )
                last = name
                inode_offset = self._inode_table.offset_of(block, offset)
                names.append((name.decode(errors="surrogateescape"), inode_offset))
        return names

    def _entry(self, path: str, inode_offset: int, inode: Inode) -> Entry:
        kind = _KINDS.get(inode.type, "other")
        if inode.type is Type.CHARACTER_DEVICE and inode.device == 0:
            kind = "whiteout"
        return Entry(
            path,
            kind,
            inode.mode,
            size=inode.size if isinstance(inode, FileInode) else 0,
            target=inode.target.decode(errors="surrogateescape") if isinstance(inode, LinkInode) else "",
            attributes=self._attributes_of(inode.attributes) if inode.attributes != NONE else (),
            owner=(inode.user, inode.group),
            mtime_s=inode.mtime_s,
            inode_offset=inode_offset,
        )

    def _attributes_of(self, number: int) -> tuple[tuple[str, bytes], ...]:
        attributes = self._attributes.get(number)
        if attributes is None:
            attributes = self._attributes[number] = self._read_attributes(number)
            # Many sets may refer to one long value.
            self._attribute_bytes += sum(len(name) + len(value) for name, value in attributes)
            if self._attribute_bytes > _MAX_ATTRIBUTE_BYTES:
                raise SquashfsError("its extended attributes are too large", self)
        return attributes

    def _read_attributes(self, number: int) -> tuple[tuple[str, bytes], ...]:
        reference, count, _ = _ATTRIBUTE_ID.unpack_from(self.attribute_ids, _ATTRIBUTE_ID.size * number)
        if count > _MAX_ATTRIBUTES:
            raise SquashfsError(f"an inode claims {count} extended attributes", self)
        table = self._attribute_table
        at = table.offset_of(reference >> 16, reference & 0xFFFF)
        attributes = []
        for _ in range(count):
            kind, length = self._unpack("<HH", table.data, at)
            name = bytes(table.data[at + 4 : at + 4 + length]).decode(errors="replace")
            at += 4 + length
            value = self._value(table.data, at)
            at += 4 + len(value)
            if kind & _OUT_OF_LINE:
                (elsewhere,) = self._unpack("<Q", value)
                value = self._value(table.data, table.offset_of(elsewhere >> 16, elsewhere & 0xFFFF))
            attributes.append((_PREFIXES.get(kind & ~_OUT_OF_LINE, "other.") + name, value))
        return tuple(attributes)

    # Data

    def _data(self, offset: int, stored: int) -> bytes:
        data = self._data_blocks.get(offset)
        if data is None:
            data = self._raw(offset, stored & (UNCOMPRESSED_BLOCK - 1))
            if not stored & UNCOMPRESSED_BLOCK:
                data = self._decompress(data, self.superblock.block_bytes)
            self.charge(len(data))
            self._data_blocks[offset] = data
            if len(self._data_blocks) > _CACHED_BLOCKS:
                self._data_blocks.popitem(last=False)
        else:
            self._data_blocks.move_to_end(offset)
        return data

    def _raw(self, at: int, length: int) -> bytes:
        if at + length > self._size:
            raise SquashfsError("a part of it lies outside of the file system", self)
        data = self._read(at, length)
        if len(data) != length:
            raise SquashfsError("it is cut short", self)
        return data

    def _read(self, at: int, length: int) -> bytes:
        try:
            return os.pread(self.file.fileno(), length, self.offset + at)
        except OSError as error:
            raise SquashfsError(error.strerror or str(error), self) from error

    def _decompress(self, data: bytes, limit_bytes: int) -> bytes:
        try:
            return self._codec.decompress(data, limit_bytes)
        except SquashfsError as error:
            raise SquashfsError(str(error), self) from error

    def _value(self, data: bytes | bytearray, at: int) -> bytes:
        (size,) = self._unpack("<I", data, at)
        value = bytes(data[at + 4 : at + 4 + size])
        if len(value) != size:
            raise SquashfsError("an extended attribute is cut short", self)
        return value

    def _unpack(self, form: str, data: bytes | bytearray, at: int = 0) -> tuple[int, ...]:
        try:
            return struct.unpack_from(form, data, at)
        except struct.error:
            raise SquashfsError("a table is cut short", self) from None


class _Content(io.RawIOBase):
    """A file of a squashfs as a stream."""

    def __init__(self, image: Squashfs, inode: FileInode) -> None:
        self._image, self._inode, self._at = image, inode, 0
        # The index of a block and its offset, from which the offsets of later blocks are counted.
        self._block, self._offset = 0, inode.start

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, at: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._inode.size}[whence]
        if base + at < 0:
            raise ValueError("a position before the beginning")
        self._at = base + at
        return self._at

    def tell(self) -> int:
        return self._at

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]  # typeshed's buffer protocol
        if self._at >= self._inode.size:
            return 0
        index, start = divmod(self._at, self._image.superblock.block_bytes)
        self._find(index)
        data = self._image.content_block(self._inode, index, self._offset)[start : start + len(buffer)]
        buffer[: len(data)] = data
        self._image.charge(len(data) + _READ_WORK_BYTES)
        self._at += len(data)
        return len(data)

    def _find(self, index: int) -> None:
        if index < self._block:
            self._block, self._offset = 0, self._inode.start
        passed = self._inode.blocks[4 * self._block : 4 * index]
        self._image.charge(_WORK_OF_LENGTH * len(passed))
        self._offset += sum(
            length & (UNCOMPRESSED_BLOCK - 1) for (length,) in struct.iter_unpack("<I", passed)
        )
        self._block = index
