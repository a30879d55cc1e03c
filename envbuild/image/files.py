"""The files of an image that may come from anyone, with links followed inside of it alone."""

from __future__ import annotations

import hashlib
import posixpath
from typing import BinaryIO

from envbuild.squashfs.format import SquashfsError
from envbuild.squashfs.reader import Entry, Squashfs
from envbuild.system.links import follow

_CHUNK_BYTES = 1 << 20


class ImageFiles:
    """All names of a file system, read once; SquashfsError, here and on reading: it is damaged."""

    def __init__(self, squashfs: Squashfs) -> None:
        self._squashfs = squashfs
        self.entries: dict[str, Entry] = {}
        """Absolute path → entry, a directory before what it holds."""
        self._names: dict[str, list[str]] = {}
        for entry in squashfs.walk():
            self.entries[entry.path] = entry
            if entry.path != "/":
                self._names.setdefault(posixpath.dirname(entry.path), []).append(entry.path)

    def error(self, problem: str) -> SquashfsError:
        """Return the error of a content that cannot be used."""
        return SquashfsError(problem, self._squashfs)

    def real(self, path: str) -> str | None:
        """Return where an absolute path leads; None if it leads nowhere, or round in circles."""
        resolved, missing = follow(path, self._look)
        return None if missing else resolved

    def target_path(self, path: str) -> str:
        """Return where an absolute path leads, or would if what it names existed."""
        resolved, missing = follow(path, self._look)
        return posixpath.normpath(posixpath.join(resolved, missing))

    def _look(self, path: str) -> str | None:
        entry = self.entries.get(path)
        return None if entry is None else entry.target

    def at(self, path: str) -> Entry | None:
        """Return what lies where a path leads."""
        resolved = self.real(path)
        return None if resolved is None else self.entries[resolved]

    def below(self, directory: str) -> list[str]:
        """Return the paths in a directory, sorted; links on the way to it are not followed."""
        return self._names.get(directory, [])

    def read(self, path: str, limit_bytes: int) -> str | None:
        """Return the text of a file; None if it is none, or longer than the limit."""
        entry = self.at(path)
        if entry is None or entry.kind != "file" or entry.size > limit_bytes:
            return None
        return self.content(entry, limit_bytes).decode(errors="replace")

    def content(self, entry: Entry, limit_bytes: int) -> bytes:
        """Return the content of a file; of a longer one the beginning."""
        with self._squashfs.open(entry) as file:
            return file.read(limit_bytes)

    def open(self, entry: Entry) -> BinaryIO:
        """Return a file's content as a stream."""
        return self._squashfs.open(entry)

    def sha256(self, entry: Entry) -> str:
        """Return the hex digest of a file's content; empty for anything else."""
        if entry.kind != "file":
            return ""
        digest = hashlib.sha256()
        with self._squashfs.open(entry) as file:
            while chunk := file.read(_CHUNK_BYTES):
                digest.update(chunk)
        return digest.hexdigest()
