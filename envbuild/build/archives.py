"""Read untrusted tar archives and squashfs file systems, entry by entry.

Headers cannot make it read an unlimited amount into memory.

Source: tarfile's own reader for the formats; xz, gzip, bzip2 and zstd by their magic numbers.
"""

from __future__ import annotations

import bz2
import errno
import gzip
import lzma
import tarfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import zstandard

from envbuild.build.unpack import RootLimits, UnsafeArchiveError, Writer
from envbuild.squashfs.format import SquashfsError
from envbuild.squashfs.reader import Squashfs
from envbuild.system.tarmembers import HeaderError, TarMembers

_CHUNK_BYTES = 1 << 20
_WINDOW_BYTES = 1 << 27
_XZ_MEMORY_BYTES = 1 << 28
_BLOCK = 512


def unpack_tar(archive: Path, writer: Writer, work: Path, limits: RootLimits, *, is_layer: bool) -> None:
    """Write the content of a tar archive; UnsafeArchiveError if it is damaged or rejected.

    The decompressed archive lies in `work` meanwhile. In an OCI layer (`is_layer`), names that begin with
    ``.wh.`` hide entries below.
    """
    plain = work / "plain.tar"
    try:
        with archive.open("rb") as packed, plain.open("wb") as target:
            size = 0
            for chunk in _unpacked(packed):
                size += len(chunk)
                if size > limits.size_bytes:
                    raise UnsafeArchiveError(
                        f"it is larger than {limits.size_bytes >> 20} MiB when it is unpacked"
                    )
                target.write(chunk)
        with plain.open("rb") as stream:
            members = TarMembers(stream)
            _write_members(members, writer, is_layer=is_layer)
            stream.seek(members.offset)
            # tarfile takes an unreadable header for the end.
            if stream.read(_BLOCK) != bytes(_BLOCK):
                raise UnsafeArchiveError("it is damaged, or ends too early")
    except HeaderError as error:
        raise UnsafeArchiveError(str(error)) from None
    except (tarfile.TarError, EOFError, lzma.LZMAError, zlib.error, zstandard.ZstdError) as error:
        raise UnsafeArchiveError(f"it is damaged, or no tar archive: {error}") from None
    except (ValueError, OverflowError, RecursionError) as error:
        raise UnsafeArchiveError(f"its headers are damaged: {type(error).__name__}") from None
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        raise UnsafeArchiveError("its headers are damaged: they lead out of it") from None
    finally:
        plain.unlink(missing_ok=True)


def _write_members(members: TarMembers, writer: Writer, *, is_layer: bool) -> None:
    for member in members:
        name = member.name
        if is_layer and writer.whiteout(name):
            continue
        if member.isdir():
            writer.directory(name, member.mode)
        elif member.issym():
            writer.symlink(name, member.linkname)
        elif member.islnk():
            writer.hardlink(name, member.linkname)
        elif member.isreg():
            with members.open(member) as content:
                writer.file(name, member.mode, member.size, content)  # type: ignore[arg-type]  # it has read()
        else:
            writer.special(name)


def _unpacked(stream: BinaryIO) -> Iterator[bytes]:
    magic = stream.read(6)
    stream.seek(0)
    source: BinaryIO | gzip.GzipFile | bz2.BZ2File | zstandard.ZstdDecompressionReader = stream
    if magic.startswith(b"\xfd7zXZ\x00"):
        yield from _xz(stream)
        return
    if magic.startswith(b"\x1f\x8b"):
        source = gzip.GzipFile(fileobj=stream)
    elif magic.startswith(b"BZh"):
        source = bz2.BZ2File(stream)
    elif magic.startswith(b"\x28\xb5\x2f\xfd"):
        decompressor = zstandard.ZstdDecompressor(max_window_size=_WINDOW_BYTES)
        source = decompressor.stream_reader(stream, read_across_frames=True)
    try:
        while chunk := source.read(_CHUNK_BYTES):
            yield chunk
    except OSError as error:
        # gzip and bz2 raise it for damage; an error of the disk has a number.
        if error.errno is not None:
            raise
        raise UnsafeArchiveError(f"it is damaged: {error}") from None


def _xz(stream: BinaryIO) -> Iterator[bytes]:
    """Decompress xz with bounded memory, which `lzma.open` has no option for."""
    rest = b""
    while True:
        unpacker = lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=_XZ_MEMORY_BYTES)
        while not unpacker.eof:
            if unpacker.needs_input:
                rest = rest or stream.read(_CHUNK_BYTES)
                if not rest:
                    raise EOFError("it ends too early")
            yield unpacker.decompress(rest, _CHUNK_BYTES)
            rest = b""
        # Another stream may follow, behind zeros.
        rest = unpacker.unused_data.lstrip(b"\0")
        while not rest:
            more = stream.read(_CHUNK_BYTES)
            if not more:
                return
            rest = more.lstrip(b"\0")


def unpack_squashfs(image: Path, writer: Writer, limits: RootLimits) -> None:
    """Write the content of a squashfs; UnsafeArchiveError if it is damaged, unreadable or rejected."""
    names: dict[int, str] = {}  # inode → the first name of a file or link
    try:
        with image.open("rb") as file:
            squashfs = Squashfs(file, 0, image.stat().st_size)
            if squashfs.superblock.inodes > limits.entries:
                raise UnsafeArchiveError(f"it holds {squashfs.superblock.inodes} entries")
            for entry in squashfs.walk():
                name = entry.path.removeprefix("/")
                if entry.inode_offset in names:
                    writer.hardlink(name, names[entry.inode_offset])
                elif entry.kind == "directory":
                    writer.directory(name, entry.mode)
                elif entry.kind == "link":
                    writer.symlink(name, entry.target)
                elif entry.kind == "file":
                    with squashfs.open(entry) as content:
                        writer.file(name, entry.mode, entry.size, content)
                else:
                    writer.special(name)
                if entry.kind in ("file", "link"):
                    names.setdefault(entry.inode_offset, name)
    except SquashfsError as error:
        raise UnsafeArchiveError(f"it is damaged, or no squashfs that can be read: {error}") from None
