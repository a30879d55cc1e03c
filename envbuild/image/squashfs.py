"""Read squashfs 4.0 without mounting or unpacking it: names, and of a file the blocks that are asked for.

Files are hostile until checked: every size is bounded, every place is compared
with the length of the file system, and directories that go in circles end.
"""

from __future__ import annotations

import io
import os
import struct
import zlib
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import BinaryIO, Literal

import zstandard

from envbuild.image.squashcontent import Content

Kind = Literal["directory", "file", "link", "whiteout", "other"]

_MAGIC = 0x73717368
_SUPERBLOCK = struct.Struct("<IIIIIHHHHHHQQQQQQQQ")
_METADATA_BYTES = 8192
_NO_FRAGMENT = 0xFFFFFFFF
_UNCOMPRESSED_METADATA = 0x8000
_UNCOMPRESSED_BLOCK = 1 << 24
_GZIP, _ZSTD = 1, 6
_KINDS: dict[int, Kind] = {1: "directory", 2: "file", 3: "link", 8: "directory", 9: "file", 10: "link"}
_CHARACTER_DEVICES = (5, 12)
_NO_TABLE = 0xFFFFFFFFFFFFFFFF
_NO_ATTRIBUTES = 0xFFFFFFFF
_PREFIXES = {0: "user.", 1: "trusted.", 2: "security."}
_OUT_OF_LINE = 0x100
# What overlayfs writes, as root and in a user namespace (overlayfs.rst, "userxattr").
_OPAQUE = ("trusted.overlay.opaque", "user.overlay.opaque")

# Far above what an image has, far below what would fill a machine.
_MAX_ENTRIES = 4_000_000
_MAX_DEPTH = 256
_MAX_LINK_BYTES = 4096
_MAX_BLOCK_BYTES = 1 << 20
_MAX_ATTRIBUTE_BYTES = 1 << 17
# The table of a file of half a terabyte in blocks of 128 KiB.
_MAX_HOLES_BYTES = 16 << 20
_KEPT_METADATA = 512
_KEPT_BLOCKS = 16


@dataclass(frozen=True, slots=True)
class Entry:
    """One name of a file system.

    Attributes
    ----------
    path : str
        Absolute.
    kind : str
        A ``whiteout`` is a character device 0/0: it hides what lies below it in an overlay.
    mode : int
        Permission bits.
    size : int
        Of a file, in bytes.
    target : str
        Of a link, as written.
    blocks, sizes, fragment
        Of a file: where its first block lies, the length of each as stored,
        and the index and offset of the piece behind them.
    attributes : tuple of (str, bytes)
        Extended attributes of directories and files, with their prefix (``security.capability``).
    owner : tuple of int
        User and group id.
    mtime_s : int
        Seconds since the epoch.
    """

    path: str
    kind: Kind
    mode: int
    size: int = 0
    target: str = ""
    blocks: int = 0
    sizes: tuple[int, ...] = ()
    fragment: tuple[int, int] | None = None
    attributes: tuple[tuple[str, bytes], ...] = ()
    owner: tuple[int, int] = (0, 0)
    mtime_s: int = 0

    @property
    def opaque(self) -> bool:
        """Whether it is a directory that hides the lower ones of its name in an overlay."""
        return any(name in _OPAQUE and value == b"y" for name, value in self.attributes)


class Squashfs:
    """A squashfs within a file.

    Parameters
    ----------
    file : BinaryIO
        A real file; its position is left alone.
    offset, size : int
        Where in it the file system lies, in bytes.

    Raises
    ------
    ValueError
        It is no squashfs 4.0, contradicts itself, or is compressed otherwise than by gzip or zstd.
        So do all methods.
    """

    def __init__(self, file: BinaryIO, offset: int, size: int) -> None:
        self._source, self._offset, self._size = file, offset, size
        fields = _SUPERBLOCK.unpack(self._raw(0, _SUPERBLOCK.size))
        magic, self._fragments, self._compressor = fields[0], *fields[4:6]
        self._block_bytes: int = fields[3]
        if magic != _MAGIC or fields[9:11] != (4, 0):
            raise ValueError("it is no squashfs 4.0")
        if self._compressor not in (_GZIP, _ZSTD):
            raise ValueError(f"its compression (number {self._compressor}) is neither gzip nor zstd")
        if not 4096 <= self._block_bytes <= _MAX_BLOCK_BYTES or self._block_bytes & (self._block_bytes - 1):
            raise ValueError(f"blocks of {self._block_bytes} bytes")
        self._root, used = fields[11:13]
        if used > size:
            raise ValueError("it is cut short")
        self._id_count, self._id_table = fields[8], fields[13]
        self._ids: tuple[int, ...] = ()
        self._attributes: int = fields[14]
        self._inodes, self._directories, self._fragment_table = fields[15:18]
        self._metadata: OrderedDict[int, tuple[bytes, int]] = OrderedDict()
        self._blocks: OrderedDict[int, bytes] = OrderedDict()
        self._fragment_places: list[tuple[int, int]] | None = None
        self._zstd = zstandard.ZstdDecompressor()

    def walk(self, *, enter: Callable[[str], bool] = lambda _: True) -> Iterator[Entry]:
        """Yield every name, a directory before what it holds, sorted by name within it.

        `enter` says by its path whether to look into a directory.
        """
        count = 0
        root, listing = self._inode(self._root, "/")
        waiting: list[tuple[Entry, tuple[int, int, int]]] = [(root, listing)]
        while waiting:
            entry, listing = waiting.pop()
            yield entry
            if entry.kind != "directory" or not enter(entry.path):
                continue
            if entry.path.count("/") > _MAX_DEPTH:
                raise ValueError(f"directories more than {_MAX_DEPTH} deep")
            below = []
            for name, reference in self._listing(*listing):
                count += 1
                if count > _MAX_ENTRIES:
                    raise ValueError(f"more than {_MAX_ENTRIES} names")
                below.append(self._inode(reference, f"{entry.path.rstrip('/')}/{name}"))
            waiting += reversed(below)

    def open(self, entry: Entry) -> BinaryIO:
        """Return a file's content, of which only the blocks are unpacked that are read."""
        return io.BufferedReader(Content(self, entry), 4096)

    def block(self, entry: Entry, index: int) -> bytes:
        """Return one block of a file's content, counted from 0."""
        length = min(self._block_bytes, entry.size - index * self._block_bytes)
        if index >= len(entry.sizes):
            if entry.fragment is None:
                raise ValueError(f"{entry.path} is cut short")
            number, start = entry.fragment
            data = self._data(*self._fragment(number))[start : start + length]
        else:
            stored = entry.sizes[index]
            if stored == 0:
                return bytes(length)
            place = entry.blocks + sum(size & (_UNCOMPRESSED_BLOCK - 1) for size in entry.sizes[:index])
            data = self._data(place, stored)
        if len(data) != length:
            raise ValueError(f"a block of {entry.path} has another length")
        return data

    @property
    def has_attributes(self) -> bool:
        """Whether there is a table of extended attributes."""
        return self._attributes != _NO_TABLE

    @property
    def block_bytes(self) -> int:
        """Length of a block, in bytes."""
        return self._block_bytes

    def _inode(self, reference: int, path: str) -> tuple[Entry, tuple[int, int, int]]:
        """Return an entry, and of a directory where its listing lies: block, offset, length."""
        block, offset = self._inodes + (reference >> 16), reference & 0xFFFF
        head = self._read_metadata(block, offset, 16 + 40)
        number, mode, user, group, mtime = _unpacked_at("<HHHHI", head)
        kind = _KINDS.get(number, "other")
        owner = self._id(user), self._id(group)
        if kind == "directory":
            held = _NO_ATTRIBUTES
            if number == 1:
                start, _, length, at, _ = _unpacked_at("<IIHHI", head, 16)
            else:
                _, length, start, _, _, at, held = _unpacked_at("<IIIIHHI", head, 16)
            entry = Entry(path, kind, mode, attributes=self._attributes_of(held), owner=owner, mtime_s=mtime)
            return entry, (self._directories + start, at, max(length - 3, 0))
        nothing = (0, 0, 0)
        if kind == "file":
            return self._file(
                number, block, offset, head, Entry(path, kind, mode, owner=owner, mtime_s=mtime)
            ), nothing
        if kind == "link":
            _, length = _unpacked_at("<II", head, 16)
            if length > _MAX_LINK_BYTES:
                raise ValueError(f"the link {path} has {length} bytes")
            text = self._read_metadata(block, offset, 24 + length)[24:]
            if len(text) != length:
                raise ValueError(f"the link {path} is cut short")
            target = text.decode(errors="surrogateescape")
            return Entry(path, kind, mode, target=target, owner=owner, mtime_s=mtime), nothing
        if number in _CHARACTER_DEVICES and _unpacked_at("<I", head, 20) == (0,):
            kind = "whiteout"
        return Entry(path, kind, mode, owner=owner, mtime_s=mtime), nothing

    def _id(self, index: int) -> int:
        """Return a user or group id by its place in the table of all that occur."""
        if not self._ids:
            blocks = -(-4 * self._id_count // _METADATA_BYTES)
            places = struct.unpack(f"<{blocks}Q", self._raw(self._id_table, 8 * blocks))
            table = b"".join(self._metadata_block(place)[0] for place in places)
            self._ids = tuple(number for (number,) in struct.iter_unpack("<I", table[: len(table) & ~3]))
        if index >= min(len(self._ids), self._id_count):
            raise ValueError("an owner that is not there")
        return self._ids[index]

    def _file(self, number: int, block: int, offset: int, head: bytes, entry: Entry) -> Entry:
        attributes = _NO_ATTRIBUTES
        if number == 2:
            start, fragment, at, size = _unpacked_at("<IIII", head, 16)
            fixed = 32
        else:
            start, size, _, _, fragment, at, attributes = _unpacked_at("<QQQIIII", head, 16)
            fixed = 56
        held = fragment != _NO_FRAGMENT
        count = size // self._block_bytes if held else -(-size // self._block_bytes)
        # Each block has four bytes in the inode, which those of a hole share once they are compressed: a size
        # that no file system of this length holds ends here.
        if count * 4 > max(self._size, _MAX_HOLES_BYTES):
            raise ValueError(f"{entry.path} says that it has {size} bytes")
        table = self._read_metadata(block, offset, fixed + 4 * count)[fixed:]
        if len(table) != 4 * count:
            raise ValueError(f"the blocks of {entry.path} are cut short")
        return Entry(
            entry.path,
            "file",
            entry.mode,
            size=size,
            blocks=start,
            sizes=struct.unpack(f"<{count}I", table),
            fragment=(fragment, at) if held else None,
            attributes=self._attributes_of(attributes),
            owner=entry.owner,
            mtime_s=entry.mtime_s,
        )

    def _attributes_of(self, index: int) -> tuple[tuple[str, bytes], ...]:
        if index == _NO_ATTRIBUTES or self._attributes == _NO_TABLE:
            return ()
        base, count = struct.unpack("<QI", self._raw(self._attributes, 12))
        if index >= count:
            raise ValueError("extended attributes that are not there")
        (block,) = struct.unpack("<Q", self._raw(self._attributes + 16 + 8 * (index // 512), 8))
        place, number, _ = _unpacked_at("<QII", self._read_metadata(block, 16 * (index % 512), 16))
        return tuple(self._attribute_list(base, place, number))

    def _attribute_list(self, base: int, place: int, number: int) -> Iterator[tuple[str, bytes]]:
        data = self._read_metadata(base + (place >> 16), place & 0xFFFF, _MAX_ATTRIBUTE_BYTES)
        at = 0
        for _ in range(number):
            kind, length = _unpacked_at("<HH", data, at)
            name = data[at + 4 : at + 4 + length].decode(errors="replace")
            at += 4 + length
            (size,) = _unpacked_at("<I", data, at)
            value = data[at + 4 : at + 4 + size]
            at += 4 + size
            if kind & _OUT_OF_LINE:
                (elsewhere,) = _unpacked_at("<Q", value)
                stored = self._read_metadata(
                    base + (elsewhere >> 16), elsewhere & 0xFFFF, _MAX_ATTRIBUTE_BYTES
                )
                (size,) = _unpacked_at("<I", stored)
                value = stored[4 : 4 + size]
            if len(value) != size:
                raise ValueError("an extended attribute is cut short")
            yield _PREFIXES.get(kind & ~_OUT_OF_LINE, "other.") + name, value

    def _listing(self, block: int, offset: int, length: int) -> Iterator[tuple[str, int]]:
        data = self._read_metadata(block, offset, length)
        if len(data) != length:
            raise ValueError("a directory is cut short")
        at = 0
        while at < length:
            count, start, _ = _unpacked_at("<III", data, at)
            at += 12
            if count >= 256:
                raise ValueError("a directory's header is odd")
            for _ in range(count + 1):
                inode, _, _, size = _unpacked_at("<HhHH", data, at)
                name = data[at + 8 : at + 9 + size]
                at += 9 + size
                if at > length or name in (b"", b".", b"..") or b"/" in name or b"\0" in name:
                    raise ValueError("a name in a directory is odd")
                yield name.decode(errors="surrogateescape"), start << 16 | inode

    def _fragment(self, number: int) -> tuple[int, int]:
        if self._fragment_places is None:
            places = []
            for index in range(-(-self._fragments // 512)):
                (block,) = struct.unpack("<Q", self._raw(self._fragment_table + 8 * index, 8))
                length = 16 * min(512, self._fragments - 512 * index)
                table = self._read_metadata(block, 0, length)
                if len(table) != length:
                    raise ValueError("the table of fragments is cut short")
                places += [(start, size) for start, size, _ in struct.iter_unpack("<QII", table)]
            self._fragment_places = places
        if number >= len(self._fragment_places):
            raise ValueError("a fragment that is not there")
        return self._fragment_places[number]

    def _read_metadata(self, block: int, offset: int, length: int) -> bytes:
        """Return at most so many bytes of a metadata table, across its blocks."""
        data, following = self._metadata_block(block)
        if offset > len(data):
            raise ValueError("a place outside of its block")
        pieces, held = [data[offset : offset + length]], len(data) - offset
        while held < length and len(data) == _METADATA_BYTES and following < self._inodes_end(block):
            data, following = self._metadata_block(following)
            pieces.append(data[: length - held])
            held += len(data)
        return b"".join(pieces)

    def _inodes_end(self, block: int) -> int:
        return self._directories if block < self._directories else self._size

    def _metadata_block(self, at: int) -> tuple[bytes, int]:
        kept = self._metadata.get(at)
        if kept is None:
            (header,) = struct.unpack("<H", self._raw(at, 2))
            length = header & (_UNCOMPRESSED_METADATA - 1)
            if not 0 < length <= _METADATA_BYTES:
                raise ValueError("a block of metadata has an odd length")
            data = self._raw(at + 2, length)
            if not header & _UNCOMPRESSED_METADATA:
                data = self._unpacked(data, _METADATA_BYTES)
            kept = data, at + 2 + length
            self._metadata[at] = kept
            if len(self._metadata) > _KEPT_METADATA:
                self._metadata.popitem(last=False)
        return kept

    def _data(self, at: int, stored: int) -> bytes:
        kept = self._blocks.get(at)
        if kept is None:
            length = stored & (_UNCOMPRESSED_BLOCK - 1)
            if length > self._block_bytes:
                raise ValueError("a block of data has an odd length")
            kept = self._raw(at, length)
            if not stored & _UNCOMPRESSED_BLOCK:
                kept = self._unpacked(kept, self._block_bytes)
            self._blocks[at] = kept
            if len(self._blocks) > _KEPT_BLOCKS:
                self._blocks.popitem(last=False)
        else:
            self._blocks.move_to_end(at)
        return kept

    def _unpacked(self, data: bytes, most: int) -> bytes:
        try:
            if self._compressor == _ZSTD:
                # It would make room for whatever the frame says.
                if zstandard.frame_content_size(data) > most:
                    raise ValueError("a block is larger than it may be")
                return self._zstd.decompress(data, max_output_size=most)
            return zlib.decompressobj().decompress(data, most)
        except (zstandard.ZstdError, zlib.error) as error:
            raise ValueError(f"a block is damaged: {error}") from error

    def _raw(self, at: int, length: int) -> bytes:
        if at + length > self._size:
            raise ValueError("a place outside of the file system")
        data = os.pread(self._source.fileno(), length, self._offset + at)
        if len(data) != length:
            raise ValueError("it is cut short")
        return data


def _unpacked_at(form: str, data: bytes, at: int = 0) -> tuple[int, ...]:
    if at + struct.calcsize(form) > len(data):
        raise ValueError("a table is cut short")
    return struct.unpack_from(form, data, at)
