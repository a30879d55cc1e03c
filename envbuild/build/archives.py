"""Read untrusted tar archives and squashfs file systems, entry by entry.

Headers cannot make it read an unlimited amount into memory.
"""

from __future__ import annotations

from pathlib import Path

from envbuild.build.unpack import RootLimits, Writer
from envbuild.squashfs.format import SquashfsError
from envbuild.squashfs.reader import Squashfs
from envbuild.system.tarmembers import TarMembers, UnsafeArchiveError, archive_members


def unpack_tar(archive: Path, writer: Writer, limits: RootLimits, *, is_layer: bool) -> None:
    """Write the content of a tar archive; UnsafeArchiveError if it is damaged or rejected.

    In an OCI layer (`is_layer`), names that begin with ``.wh.`` hide entries below.
    """
    with archive_members(archive, limit_bytes=limits.size_bytes) as members:
        _write_members(members, writer, is_layer=is_layer)


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
