"""An image file, opened once: a SIF or a bare squashfs, made by envbuild or by another tool; untrusted input.

Source of the numbers: pkg/sif/sif.go of Apptainer's sif library; erofs_fs.h and ext4.h of Linux.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Callable, Iterator
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Self

from envbuild.digests import sha256_of
from envbuild.errors import EnvbuildError, Location, RequestError
from envbuild.formats import hint_for
from envbuild.image import sifformat, startup
from envbuild.image.extension import NOTE_PATH, ExtensionNote
from envbuild.image.files import ImageFiles
from envbuild.image.model import METADATA_DIR, Manifest
from envbuild.image.sif import HINT_REBUILD, LOCK, MANIFEST, NOTE, PLAN, SifFile, damaged, read_tables
from envbuild.image.sifformat import Descriptor, Kind
from envbuild.lock.model import Lock
from envbuild.lock.text import load
from envbuild.plan.model import BuildPlan
from envbuild.spec.corrections import registry_address, registry_hint
from envbuild.squashfs.format import SquashfsError
from envbuild.squashfs.reader import Entry, Squashfs
from envbuild.system.files import IrregularError, neighbour_hint, open_regular

_READ_BYTES = 1024 * 1024
# Longer than any lock, plan, manifest or bill of materials.
_DATA_LIMIT_BYTES = 64 << 20
_NOTE_LIMIT_BYTES = 16 << 20
_SQUASHFS = b"hsqs"
# Where the magic of a file system lies, the magic, and its name.
_OTHER_FILE_SYSTEMS = ((1024, b"\xe2\xe1\xf5\xe0", "EROFS"), (1080, b"\x53\xef", "ext3 or ext4"))
_START_BYTES = 2048
_PARTITIONS = {
    2: "an ext3 file system",
    3: "an archive",
    4: "raw data",
    5: "an encrypted file system",
    6: "an encrypted file system",
}
# What a SIF holds whose root is layers of an OCI image.
_OCI_OBJECTS = (0x400A, 0x400B)
_HINT_KINDS = "name a SIF whose root is one squashfs, or a bare squashfs"
_HINT_CONVERT = f"{_HINT_KINDS}: `apptainer build NEW.sif IMAGE` makes one"
_HINT_BUILD = "name an image, a file: `envbuild build SPEC -o IMAGE.sif` makes one"


class ImageFile:
    """An image that is open for one command.

    Its tables, manifest, lock, plan and note are read when they are first used, and kept. Each property and
    method raises a RequestError for what cannot be read, is damaged, or is not there. Reading the entries of
    its file system may raise a SquashfsError, which becomes a RequestError where the image is closed by
    `with`.

    A file that is put in its place meanwhile, by a rename, changes nothing: the command works on the file
    that it opened.
    """

    def __init__(self, path: Path, file: BinaryIO) -> None:
        self.path = path
        """As it was named, for messages."""
        self.file = file
        self._status = os.fstat(file.fileno())

    @classmethod
    def open(cls, path: Path) -> Self:
        """Open an image; RequestError if it cannot be read or is not a regular file."""
        try:
            return cls(path, open_regular(path))
        except FileNotFoundError as error:
            if address := registry_address(str(path)):
                raise RequestError(f"there is no file `{address}`", hint=registry_hint(address)) from error
            hint = neighbour_hint(path, ".sif") or "`envbuild build SPEC -o IMAGE.sif` makes one"
            raise RequestError(f"there is no image `{path}`", hint=hint) from error
        except IrregularError as error:
            problem = f"`{path.name}` is {error.strerror}"
            raise RequestError(problem, at=Location(path=path), hint=_HINT_BUILD) from error
        except (OSError, ValueError) as error:
            raise _unreadable(path, error) from error

    def __enter__(self) -> Self:
        """Return the image, to be closed at the end of the block."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the image.

        RequestError: something has written to it, so that parts of two files look like a damaged one; or its
        file system was found to be damaged.
        """
        try:
            if isinstance(error, (EnvbuildError, SquashfsError)):
                self.check_unchanged()
            if isinstance(error, SquashfsError) and error.squashfs is self.__dict__.get("root"):
                raise self._damaged(error) from error
        finally:
            self.file.close()

    @contextlib.contextmanager
    def reading_root(self) -> Iterator[None]:
        """Raise a RequestError in the block for what is found to be damaged in its file system."""
        try:
            yield
        except SquashfsError as error:
            if error.squashfs is not self.__dict__.get("root"):
                raise
            raise self._damaged(error) from error

    @property
    def size_bytes(self) -> int:
        """Length of the file."""
        return self._status.st_size

    @property
    def signature(self) -> list[int]:
        """The fields of the file's status that any change of it alters, as they were when it was opened."""
        status = self._status
        return [status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns]

    @property
    def program_path(self) -> Path:
        """The opened file, for programs on this machine, as long as the image is open."""
        return Path(f"/proc/{os.getpid()}/fd/{self.file.fileno()}")

    @property
    def is_unchanged(self) -> bool:
        """Whether nothing has written to the opened file since it was opened."""
        now, before = os.fstat(self.file.fileno()), self._status
        if (now.st_size, now.st_mtime_ns) != (before.st_size, before.st_mtime_ns):
            return False
        # Another file at its path, or a further name, changes the time of its status, too.
        return now.st_nlink != before.st_nlink or now.st_ctime_ns == before.st_ctime_ns

    def check_unchanged(self) -> None:
        """Raise a RequestError if something has written to the opened file meanwhile."""
        if not self.is_unchanged:
            raise self._error("was replaced or changed while it was read", hint="run it again")

    def check_still_there(self) -> None:
        """Raise a RequestError if another file took its place, for what others will find at its path."""
        self.check_unchanged()
        with contextlib.suppress(OSError):
            status = self.path.stat()
            if (status.st_dev, status.st_ino) == (self._status.st_dev, self._status.st_ino):
                return
        raise self._error("was replaced or changed while it was read", hint="run it again")

    # What it holds

    @cached_property
    def sif(self) -> SifFile | None:
        """The tables of the SIF, which any tool may have made; None for a bare squashfs."""
        start = self.read(0, _START_BYTES)
        if start[:4] == _SQUASHFS:
            return None
        for offset, magic, name in _OTHER_FILE_SYSTEMS:
            if start[offset : offset + len(magic)] == magic:
                raise self._error(f"is a file system of the kind {name}", hint=_HINT_KINDS)
        try:
            return read_tables(self.file, self.path)
        except OSError as error:
            raise _unreadable(self.path, error) from error

    @property
    def built_by_envbuild(self) -> bool:
        """Whether envbuild built it from a spec."""
        return self.sif is not None and self.sif.find(MANIFEST) is not None

    @property
    def architecture(self) -> str:
        """In Debian's words, or ``unknown``."""
        return self.sif.architecture if self.sif else "unknown"

    @property
    def signatures(self) -> int:
        """Number of signatures that it bears."""
        objects = self.sif.objects if self.sif else ()
        return sum(descriptor.kind == Kind.SIGNATURE for descriptor in objects)

    @cached_property
    def root(self) -> Squashfs:
        """Its file system."""
        offset, size_bytes = 0, self.size_bytes
        if self.sif is not None:
            offset, size_bytes = self._partition.offset, self._partition.size
        try:
            return Squashfs(self.file, offset, size_bytes)
        except SquashfsError as error:
            raise self._damaged(error) from error

    @property
    def _partition(self) -> Descriptor:
        """The partition of a SIF that runtimes mount."""
        objects = self.sif.objects if self.sif else ()
        if any(descriptor.kind in _OCI_OBJECTS for descriptor in objects):
            raise self._error(
                "is an OCI-SIF, whose root is the layers of an OCI image: envbuild does not read it",
                hint=_HINT_CONVERT,
            )
        primary = self.sif.root if self.sif else None
        if primary is None:
            raise self._error("has no root file system", hint=_HINT_KINDS)
        if primary.filesystem != sifformat.SQUASHFS:
            kind = _PARTITIONS.get(primary.filesystem, "a file system of an unknown kind")
            raise self._error(f"holds {kind}: envbuild does not read it", hint=_HINT_KINDS)
        return primary

    def check_root_is_alone(self) -> None:
        """Raise a RequestError for a SIF with further partitions: an overlay changes what runs."""
        objects = self.sif.objects if self.sif else ()
        partitions = [descriptor for descriptor in objects if descriptor.kind == Kind.PARTITION]
        # One of a kind that is not read is named as such.
        if len(partitions) > 1 and self._partition:
            raise self._error(
                f"has {len(partitions)} partitions, and envbuild reads its root alone: what runs may differ",
                hint=_HINT_CONVERT,
            )

    def check_extensible(self) -> None:
        """Raise a RequestError for an image that cannot be written again with another file system."""
        if self.sif is None:
            return
        self.check_root_is_alone()
        # Objects that share bytes would be copied again and again.
        if sum(descriptor.size for descriptor in self.sif.objects) > self.size_bytes:
            raise self._error("is not a valid SIF: its data overlap", hint=HINT_REBUILD)

    def data(self, name: str) -> bytes:
        """Return a data object of an image that envbuild built: `MANIFEST`, `LOCK`, `PLAN` or `SBOM`."""
        if not self.built_by_envbuild:
            raise self._error(
                f"is a {'SIF' if self.sif else 'squashfs'} that envbuild did not build",
                hint="`apptainer exec` runs it; `extend` and `explain` take images of any tool, and `check`,"
                " `test`, `launch`, `exec` and `module install` those to which `extend` has added packages",
            )
        descriptor = self.sif.find(name) if self.sif else None
        if descriptor is None:
            raise self._error(f"holds no `{name}`")
        if descriptor.kind not in (Kind.JSON, Kind.GENERIC, Kind.SBOM):
            raise self._error(f"holds something else than data under the name `{name}`")
        if descriptor.size > _DATA_LIMIT_BYTES:
            raise self._error(f"says that its `{name}` has {descriptor.size} bytes, which is too much")
        return self.read(descriptor.offset, descriptor.size)

    @cached_property
    def manifest(self) -> Manifest:
        """The manifest of an image that envbuild built, every value validated."""
        try:
            return Manifest.from_json(self.data(MANIFEST).decode())
        except ValueError as error:
            raise self._error(
                f"has a manifest that cannot be used: {error}",
                hint=hint_for(error, "build the image again, or use the version of envbuild that built it"),
            ) from error

    @property
    def manifest_digest(self) -> str:
        """``sha256:…`` of the manifest as it is written, which need not be of a format that is read.

        It equals `Manifest.digest`, the image's identity, as long as nothing changed it.
        """
        return sha256_of(self.data(MANIFEST))

    @property
    def label(self) -> str:
        """``name/version`` of an image that envbuild built, for messages."""
        return f"{self.manifest.name}/{self.manifest.version}"

    @cached_property
    def lock(self) -> Lock:
        """The lock that it was built from."""
        return load(self.data(LOCK), self.path, hint=HINT_REBUILD)

    @cached_property
    def plan_text(self) -> str:
        """The plan that it was built by, as canonical JSON."""
        try:
            return self.data(PLAN).decode()
        except UnicodeDecodeError as error:
            raise self._error("carries a plan that is not text") from error

    @cached_property
    def plan(self) -> BuildPlan:
        """The plan that it was built by."""
        try:
            return BuildPlan.from_json(self.plan_text)
        except ValueError as error:
            raise self._error(
                f"carries a plan that cannot be carried out: {error}",
                hint=hint_for(
                    error,
                    "copy the image again from where it came, or use the version of envbuild that built it",
                ),
            ) from error

    @cached_property
    def note(self) -> ExtensionNote | None:
        """The record of what `envbuild extend` added; None if nothing was added."""
        content = self._note_bytes()
        if content is None:
            return None
        try:
            return ExtensionNote.from_json(content)
        except ValueError as error:
            raise self._error(
                f"has a note on what was added that cannot be used: {error}",
                hint=hint_for(
                    error,
                    "extend the image that it was made from, or use the version of envbuild that extended it",
                ),
            ) from error

    def _note_bytes(self) -> bytes | None:
        descriptor = self.sif.find(NOTE) if self.sif else None
        if descriptor is not None:
            return self.read(descriptor.offset, min(descriptor.size, _NOTE_LIMIT_BYTES))
        return None if self.built_by_envbuild else self._file_of_root(NOTE_PATH, METADATA_DIR)

    @cached_property
    def files(self) -> ImageFiles:
        """All names of its file system, with links followed."""
        with self.reading_root():
            return ImageFiles(self.root)

    def layer_of(self, entry: Entry) -> str:
        """Return the layer that holds the data of a file; empty for what has no data."""
        start, system = self.root.data_offset(entry), self.manifest.file_system
        if start is None or system is None:
            return ""
        holding = (
            layer.name for layer in system.layers if layer.offset <= start < layer.offset + layer.size_bytes
        )
        return next(holding, "")

    @cached_property
    def labels(self) -> dict[str, str]:
        """The labels in its file system; none if it has none in a form that is known."""
        content = self._file_of_root(f"{startup.DIRECTORY}/labels.json", startup.DIRECTORY) or b"{}"
        with contextlib.suppress(ValueError, RecursionError):
            labels = json.loads(content)
            if isinstance(labels, dict):
                return {key: value for key, value in labels.items() if isinstance(value, str)}
        return {}

    def _file_of_root(self, path: str, directory: str) -> bytes | None:
        """Return a file of a directory below ``/``, without reading the other directories."""
        with self.reading_root():
            for entry in self.root.walk(enter=lambda parent: parent in ("/", directory)):
                if entry.path == path and entry.kind == "file":
                    with self.root.open(entry) as stream:
                        return stream.read(_NOTE_LIMIT_BYTES)
        return None

    @cached_property
    def tables_digest(self) -> str:
        """``sha256:…`` of its file system's tables, which identify it without reading the data."""
        begin, end = self.root.data_end, self.root.superblock.bytes_used
        return self.digest_of(self.root.offset + begin, end - begin)

    def digest_of(
        self, offset: int, size_bytes: int, advanced: Callable[[int], None] = lambda _: None
    ) -> str:
        """Return the ``sha256:…`` of bytes of the file; of fewer if it has become shorter.

        `advanced` is called with the number of bytes of each part that was read.
        """
        digest, end = hashlib.sha256(), offset + size_bytes
        while offset < end and (chunk := self.read(offset, min(_READ_BYTES, end - offset))):
            digest.update(chunk)
            offset += len(chunk)
            advanced(len(chunk))
        return "sha256:" + digest.hexdigest()

    def read(self, offset: int, size_bytes: int) -> bytes:
        """Return bytes of the file; fewer at its end."""
        try:
            return os.pread(self.file.fileno(), size_bytes, offset)
        except OSError as error:
            raise _unreadable(self.path, error) from error

    def _damaged(self, error: SquashfsError) -> RequestError:
        problem = f"the file system of `{self.path.name}` cannot be read: {error}"
        return RequestError(problem, at=Location(path=self.path), hint=HINT_REBUILD)

    def _error(self, problem: str, *, hint: str = HINT_REBUILD) -> RequestError:
        return damaged(self.path, problem, hint=hint)


def _unreadable(path: Path, error: OSError | ValueError) -> RequestError:
    reason = error.strerror if isinstance(error, OSError) else str(error)
    hint = "see that you may read it, and that its file system answers"
    return RequestError(f"`{path}` cannot be read: {reason}", hint=hint)


def is_image(path: Path) -> bool:
    """Return whether a file is an image: a SIF whose root is a squashfs, or a bare squashfs."""
    try:
        with ImageFile.open(path) as image:
            return image.root is not None
    except RequestError:
        return False
