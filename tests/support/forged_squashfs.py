"""Squashfs files put together inode by inode, with what no writer would write."""

from __future__ import annotations

import struct
from pathlib import Path

import zstandard

ABSENT = 2**64 - 1
NONE = 0xFFFFFFFF


class Forged:
    """A table of metadata, compressed block by block, and the references into it."""

    def __init__(self, data: bytes) -> None:
        self.starts: list[int] = []
        stored = bytearray()
        for at in range(0, len(data), 8192):
            self.starts.append(len(stored))
            packed = zstandard.compress(data[at : at + 8192], 19)
            stored += struct.pack("<H", len(packed)) + packed
        self.stored = bytes(stored)

    def reference(self, place: int) -> tuple[int, int]:
        return self.starts[place // 8192], place % 8192


def forge(path: Path, inodes: bytes, root: int, listings: bytes, *, begin: int = 96) -> Path:
    """Write a file system of one owner.

    Parameters
    ----------
    root : int
        Where the root's inode lies in the table, in bytes.
    begin : int
        Where the tables lie in the file; there is no data before them.
    """
    inode_table, directory_table = Forged(inodes), Forged(listings)
    directories = begin + len(inode_table.stored)
    ids = directories + len(directory_table.stored)
    tail = struct.pack("<HI", 0x8004, 0) + struct.pack("<Q", ids)
    block, offset = inode_table.reference(root)
    used = ids + len(tail)
    superblock = struct.pack(
        "<IIIIIHHHHHHQQQQQQQQ",
        *(0x73717368, 3, 0, 131072, 0, 6, 17, 0x210, 1, 4, 0, block << 16 | offset, used),
        *(ids + 6, ABSENT, begin, directories, ids + 6, ABSENT),
    )
    with path.open("wb") as file:
        file.write(superblock)
        file.seek(begin)
        file.write(inode_table.stored + directory_table.stored + tail)
    return path


def directory_inode(number: int, *, size: int, block: int = 0, offset: int = 0) -> bytes:
    head = struct.pack("<HHHHII", 8, 0o755, 0, 0, 0, number)
    return head + struct.pack("<IIIIHHI", 2, size + 3, block, 1, 0, offset, NONE)


def file_inode(number: int, *, size: int) -> bytes:
    head = struct.pack("<HHHHII", 9, 0o644, 0, 0, 0, number)
    return head + struct.pack("<QQQIIII", 0, size, 0, 1, NONE, 0, NONE)


def listing(names: list[bytes], block: int, offset: int, kind: int) -> bytes:
    data = b""
    for at in range(0, len(names), 256):
        run = names[at : at + 256]
        data += struct.pack("<III", len(run) - 1, block, 1)
        data += b"".join(struct.pack("<HhHH", offset, 0, kind, len(name) - 1) + name for name in run)
    return data
