"""Writes a squashfs without a tree on disk and without mksquashfs; the same entries give the same bytes.

Threads compress blocks. Which of them is ready first changes nothing: blocks are stored in the order in
which they are added. As mksquashfs does, files shorter than a block share blocks (fragments), equal files
share their data, and blocks of zeros are holes.

Source: squashfs-tools-ng, doc/format.adoc.
"""

from __future__ import annotations

import hashlib
import io
import struct
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor, Future
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, Protocol

from envbuild.squashfs.format import (
    ABSENT,
    ALIGNMENT,
    NONE,
    SUPERBLOCK_BYTES,
    UNCOMPRESSED_BLOCK,
    UNCOMPRESSED_METADATA,
    Flag,
    Superblock,
    Type,
)
from envbuild.squashfs.packing import Packing, block_compressor
from envbuild.squashfs.reader import FRAGMENT, DirectoryInode, FileInode, LinkInode
from envbuild.squashfs.tables import Node, write_tables

# Of one file system; bounds its memory.
_MAX_WAITING_BLOCKS = 32
_BUFFER_BYTES = 4 << 20
_MAX_NAME_BYTES = 255


class Stream(Protocol):
    """A file's content, read from the beginning to the end."""

    def read(self, size: int, /) -> bytes:
        """Return the next bytes: `size` of them unless the end comes before."""


class Content(Protocol):
    """The content of a file, which can be read more than once."""

    @property
    def size_bytes(self) -> int:
        """Its length."""

    def open(self) -> AbstractContextManager[Stream]:
        """Return a stream that begins with it."""


@dataclass(frozen=True, slots=True)
class BytesContent:
    """Content in memory."""

    data: bytes

    @property
    def size_bytes(self) -> int:
        """Its length."""
        return len(self.data)

    def open(self) -> BinaryIO:
        """Return a stream of it."""
        return io.BytesIO(self.data)


@dataclass(frozen=True, slots=True)
class FilePart:
    """Content that is a part of a file, or all of it."""

    path: Path
    offset: int
    size_bytes: int

    def open(self) -> BinaryIO:
        """Return a stream that begins with it; more may follow."""
        stream = self.path.open("rb")
        stream.seek(self.offset)
        return stream


@dataclass(slots=True)
class _Data:
    """The position of the content of a file; equal files share it."""

    start: int = 0
    blocks: bytearray = field(default_factory=bytearray)
    """Stored length of each block, 4 bytes each."""
    fragment: int = NONE
    fragment_offset: int = 0
    hole_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredFile:
    """A file whose data is in a file system, but which has no path yet."""

    mode: int
    """Permission bits."""
    size_bytes: int
    digest: str
    """SHA-256 of its content in hexadecimal digits."""
    data: _Data


@dataclass(slots=True, kw_only=True)
class _File(FileInode):
    """A file whose data may still be compressed."""

    data: _Data


class SquashfsWriter:
    """Writes one file system into a new file, entry by entry; all owners are root, all times 0.

    Paths are relative to the root. A directory that an entry lies in is made with mode 0755 unless it was
    added before. ValueError: a path exists already, or something else in the place of a directory above it.
    OSError: the file cannot be written.

    The file is open only while something is written, so that many writers can wait for the rest of their
    entries.
    """

    def __init__(self, path: Path, packing: Packing, threads: Executor) -> None:
        self._path, self._packing, self._threads = path, packing, threads
        self._compress = block_compressor(packing)
        self._root = _directory(0o755)
        # Each with its path, which ends with a slash; empty for the root.
        self._directories = {"": self._root}
        self._fragment = bytearray()
        self._fragments: list[bytes] = []
        self._fragment_count = 0
        self._by_content: dict[tuple[int, bytes], _Data] = {}
        self._sizes: set[int] = set()
        self._files: list[_File] = []
        self._waiting: deque[tuple[Future[tuple[bytes, int]], Callable[[int, int], None]]] = deque()
        options = packing.options
        head = struct.pack("<H", UNCOMPRESSED_METADATA | len(options)) + options if options else b""
        # The superblock is written last: until then the file is not a file system.
        self._unwritten = bytearray(SUPERBLOCK_BYTES) + head
        self._end = len(self._unwritten)
        with path.open("xb"):
            pass

    def add_directory(self, path: str, mode: int) -> None:
        """Add a directory."""
        self._add(path, _directory(mode))

    def add_link(self, path: str, target: str) -> None:
        """Add a symbolic link."""
        inode = LinkInode(Type.LINK, 0o777, 0, 0, 0, target=target.encode(errors="surrogateescape"))
        self._add(path, Node(inode))

    def store(self, content: Content, mode: int) -> StoredFile:
        """Store the content of a file; return a value for `add_file`.

        ValueError: the content has another length than it states. What the content raises passes through.
        """
        if content.size_bytes < self._packing.block_bytes:
            data, digest = self._store_short(content)
        else:
            data, digest = self._store_long(content)
        return StoredFile(mode=mode, size_bytes=content.size_bytes, digest=digest.hex(), data=data)

    def add_file(self, path: str, file: StoredFile) -> None:
        """Add a file that this writer stored."""
        inode = _File(Type.FILE, file.mode, 0, 0, 0, size=file.size_bytes, data=file.data)
        self._add(path, Node(inode))
        self._files.append(inode)

    def flush(self) -> None:
        """Write all but the last short files to the file, so that little of it is in memory."""
        while self._waiting:
            self._take_first()
        self._write()

    def finish(self) -> None:
        """Write the tables and the superblock, after which the file is complete."""
        self._store_fragment()
        self.flush()
        for inode in self._files:
            data = inode.data
            inode.start, inode.blocks, inode.sparse = data.start, bytes(data.blocks), data.hole_bytes
            inode.fragment, inode.fragment_offset = data.fragment, data.fragment_offset
        flags = Flag.EXPORTABLE | (Flag.COMPRESSOR_OPTIONS if self._packing.options else 0)
        superblock, tables = write_tables(
            self._root,
            Superblock(
                inodes=0,
                mtime_s=0,
                block_bytes=self._packing.block_bytes,
                fragments=0,
                compressor=self._packing.compressor,
                flags=flags,
                ids=0,
                root=0,
                bytes_used=0,
                id_table=ABSENT,
                attribute_table=ABSENT,
                inode_table=ABSENT,
                directory_table=ABSENT,
                fragment_table=ABSENT,
                export_table=ABSENT,
            ),
            offset=self._end,
            fragments=b"".join(self._fragments),
        )
        self._unwritten += tables + bytes(-superblock.bytes_used % ALIGNMENT)
        self._write()
        with self._path.open("r+b") as file:
            file.write(superblock.pack())

    def _add(self, path: str, node: Node) -> None:
        above, slash, name = path.rpartition("/")
        directory = self._directories.get(above + slash)
        if directory is None:
            directory = _directory(0o755)
            self._add(above, directory)
        if directory.children.setdefault(_checked(name, path), node) is not node:
            raise ValueError(f"`{path}` already exists")
        if node.is_directory:
            self._directories[f"{path}/"] = node

    def _store_short(self, content: Content) -> tuple[_Data, bytes]:
        """Store a file that is shorter than a block, with others."""
        size = content.size_bytes
        with content.open() as stream:
            block = _read(stream, size)
        digest = hashlib.sha256(block).digest()
        data = self._by_content.get((size, digest))
        if data is None:
            data = self._by_content[size, digest] = _Data()
            if size:
                if len(self._fragment) + size > self._packing.block_bytes:
                    self._store_fragment()
                data.fragment, data.fragment_offset = self._fragment_count, len(self._fragment)
                self._fragment += block
        return data, digest

    def _store_long(self, content: Content) -> tuple[_Data, bytes]:
        size = content.size_bytes
        if size in self._sizes:
            # It may be equal to a file that is there: only then is it read once more.
            with content.open() as stream:
                digest = self._digest(stream, size)
            if (known := self._by_content.get((size, digest))) is not None:
                return known, digest
        data, sha256 = _Data(), hashlib.sha256()
        with content.open() as stream:
            for at in range(0, size, self._packing.block_bytes):
                block = _read(stream, min(self._packing.block_bytes, size - at))
                sha256.update(block)
                self._store_block(data, block)
        digest = sha256.digest()
        self._sizes.add(size)
        self._by_content[size, digest] = data
        return data, digest

    def _digest(self, stream: Stream, size: int) -> bytes:
        sha256 = hashlib.sha256()
        for at in range(0, size, self._packing.block_bytes):
            sha256.update(_read(stream, min(self._packing.block_bytes, size - at)))
        return sha256.digest()

    def _store_block(self, data: _Data, block: bytes) -> None:
        index = len(data.blocks)
        data.blocks += bytes(4)
        if not block[0] and block == bytes(len(block)):
            data.hole_bytes += len(block)
            return

        def stored(start: int, length: int) -> None:
            data.start = data.start or start
            struct.pack_into("<I", data.blocks, index, length)

        self._store(block, stored)

    def _store_fragment(self) -> None:
        """Store the block of short files that is not full yet."""
        if not self._fragment:
            return
        self._store(
            bytes(self._fragment),
            lambda start, length: self._fragments.append(FRAGMENT.pack(start, length, 0)),
        )
        self._fragment.clear()
        self._fragment_count += 1

    def _store(self, block: bytes, stored: Callable[[int, int], None]) -> None:
        """Have a block compressed; `stored` is called with its offset and its length as in tables."""
        self._waiting.append((self._threads.submit(self._packed, block), stored))
        if len(self._waiting) >= _MAX_WAITING_BLOCKS:
            self._take_first()

    def _packed(self, block: bytes) -> tuple[bytes, int]:
        packed = self._compress(block)
        if len(packed) < len(block):
            return packed, len(packed)
        return block, len(block) | UNCOMPRESSED_BLOCK

    def _take_first(self) -> None:
        future, stored = self._waiting.popleft()
        packed, length = future.result()
        stored(self._end, length)
        self._unwritten += packed
        self._end += len(packed)
        if len(self._unwritten) >= _BUFFER_BYTES:
            self._write()

    def _write(self) -> None:
        with self._path.open("ab") as file:
            file.write(self._unwritten)
        self._unwritten.clear()


def _directory(mode: int) -> Node:
    return Node(DirectoryInode(Type.DIRECTORY, mode, 0, 0, 0))


def _checked(text: str, path: str) -> bytes:
    name = text.encode(errors="surrogateescape")
    if name in (b"", b".", b"..") or len(name) > _MAX_NAME_BYTES or b"\0" in name:
        raise ValueError(f"`{path}` is not a path that a file system can hold")
    return name


def _read(stream: Stream, size: int) -> bytes:
    block = stream.read(size)
    if len(block) != size:
        raise ValueError("a file is shorter than it should be")
    return block
