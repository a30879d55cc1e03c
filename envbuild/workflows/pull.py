"""Pull: an image comes from a registry, by the parts that this machine does not have."""

from __future__ import annotations

import contextlib
import errno
import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from envbuild.errors import MachineError, RequestError
from envbuild.events import Emit, task
from envbuild.image.compose import check_target
from envbuild.image.file import ImageFile
from envbuild.image.parts import Part, Parts, digest_in_index, parts_of
from envbuild.squashfs.format import SUPERBLOCK_BYTES
from envbuild.store.parts import PARTS, fetch_part, forget_part
from envbuild.system.descriptors import descriptor_path
from envbuild.system.files import atomic_file, read_range, write_at
from envbuild.system.process import thread_pool
from envbuild.system.references import Document, Reference
from envbuild.system.registry import Repository
from envbuild.workflows.arguments import check_outside_store, check_room
from envbuild.workflows.push import TRANSFERS
from envbuild.workflows.settings import Settings
from envbuild.workflows.trust import check_signatures

_HINT_OUTPUT = (
    "name another file with -o FILE.sif; with --have, parts of an older image are not fetched again"
)
_HINT_DAMAGED = (
    "push it again; if a layer of the store was used, `envbuild cache verify` says whether that is damaged"
)
HINT_STORE = "name another store with --store DIR or ENVBUILD_STORE, or free some space"


@dataclass(frozen=True, slots=True, kw_only=True)
class Pulled:
    """An image that came from a registry."""

    path: Path
    reference: str
    digest: str
    """``sha256:…`` of the manifest."""
    parts: int
    fetched: int
    """Number of parts, and of those that this machine did not have."""
    size_bytes: int
    fetched_bytes: int
    """Length of the image, and of what came from the registry of its parts."""


@dataclass(frozen=True, slots=True)
class FileRange:
    """Bytes on this machine: in an open file, from an offset on."""

    descriptor: int
    offset: int

    def pieces(self, size_bytes: int) -> Iterator[bytes]:
        """Yield the bytes; OSError if the file ends before."""
        return read_range(self.descriptor, self.offset, size_bytes)

    def digest(self, size_bytes: int) -> str:
        """Return the ``sha256:…`` of the bytes; raises as `pieces`."""
        digest = hashlib.sha256()
        for piece in self.pieces(size_bytes):
            digest.update(piece)
        return f"sha256:{digest.hexdigest()}"


@dataclass(frozen=True, slots=True)
class UnpackedPart:
    """The bytes of a part that travelled compressed."""

    content: bytes = field(repr=False)

    def pieces(self, size_bytes: int) -> Iterator[bytes]:
        """Yield the bytes; OSError if there are fewer."""
        if size_bytes > len(self.content):
            raise OSError(errno.EIO, "a part is shorter than it should be")
        yield self.content[:size_bytes]


Bytes = FileRange | UnpackedPart


def pull_image(
    text: str, path: Path | None, settings: Settings, *, have: Path | None = None, plain: bool = False
) -> Pulled:
    """Pull the image of a name in a registry to a file, by default ``NAME.sif``, in place of no other.

    Parts that the store or the image `have` hold are copied. The file appears once all of it has the digest
    that was pushed. RequestError: the name is not one, or what the registry holds is damaged, no image of
    `push`, or not signed as ``config.yaml`` asks. MachineError: the registry refuses it or does not answer,
    or there is no space.
    """
    reference = Reference.parse(text)
    path = path or Path(f"{reference.short_name}.sif")
    _check_absent(path)
    check_target(path, keep=())
    check_outside_store(path, settings.store.path)
    with Repository(reference, plain=plain) as repository, settings.store.in_use():
        # Another run may write it meanwhile.
        check = partial(_check_absent, path)
        return pull_parts(parts_in(repository), repository, path, settings, have=have, check=check)


def _check_absent(path: Path) -> None:
    if path.exists() or path.is_symlink():
        raise RequestError(f"`{path}` exists already; it was not overwritten", hint=_HINT_OUTPUT)


def parts_in(repository: Repository) -> tuple[Document, Parts]:
    """Return the manifest of an image in a registry, and its parts; raises as `pull_image`."""
    reference = repository.reference
    document = repository.manifest(reference.version)
    if digest := digest_in_index(document):
        document = repository.manifest(digest)
    return document, Parts.parse(document, str(reference))


def pull_parts(
    image: tuple[Document, Parts],
    repository: Repository,
    path: Path,
    settings: Settings,
    *,
    have: Path | None = None,
    mode: int = 0o777,
    hint: str = _HINT_OUTPUT,
    check: Callable[[], None] = lambda: None,
) -> Pulled:
    """Write an image to a file, in place of any other; the rest as `pull_image`.

    `mode` is the file's, subject to the umask, and `hint` what to do if there is no room for it. An error of
    `check`, which is called last, leaves `path` as it is. The caller holds the store (`Store.in_use`).
    """
    (document, parts), reference = image, repository.reference
    with contextlib.ExitStack() as opened:
        ranges = _local_ranges(parts, settings, opened, have)
        missing = list({part.digest: part for part in parts.parts if part.digest not in ranges}.values())
        check_room(path.parent, parts.file_bytes, settings.emit, hint=hint)
        ranges |= fetch_parts(missing, repository, settings, opened)
        with task(settings.emit, "write", f"write {path.name}", total_bytes=parts.file_bytes) as writing:
            _write(path, parts, ranges, str(reference), settings.emit, writing.advance, mode, check)
        for part in missing:
            forget_part(part.blob_digest, settings.store)
    return Pulled(
        path=path,
        reference=str(reference),
        digest=document.digest,
        parts=len(parts.parts),
        fetched=len(missing),
        size_bytes=parts.file_bytes,
        fetched_bytes=sum(part.blob_bytes for part in missing),
    )


def fetch_parts(
    parts: Sequence[Part], repository: Repository, settings: Settings, opened: contextlib.ExitStack
) -> dict[str, Bytes]:
    """Fetch parts, each of another digest, and return digest → bytes; `opened` closes the files."""
    fetched_bytes = sum(part.blob_bytes for part in parts)
    if parts:
        parts_directory = settings.store.directory(PARTS)
        check_room(parts_directory, fetched_bytes, settings.emit, inodes=len(parts), hint=HINT_STORE)
    title = f"pull {repository.reference}"
    with task(settings.emit, "pull", title, total_bytes=fetched_bytes) as pulling:

        def fetch(part: Part) -> Bytes:
            store, advance = settings.store, pulling.advance
            file = fetch_part(part.blob_digest, part.blob_bytes, repository, store, advance)
            if not part.packed_digest:
                return FileRange(opened.enter_context(file).fileno(), 0)
            with file:
                try:
                    return UnpackedPart(part.unpacked(file.read(part.packed_bytes)))
                except ValueError as error:
                    problem = f"`{repository.reference}` is damaged: {error}"
                    raise RequestError(problem, hint=_HINT_DAMAGED) from None

        with thread_pool(TRANSFERS) as pool:
            fetched = list(pool.map(fetch, parts))
        pulling.detail = f"{fetched_bytes / 1e6:.1f} MB fetched"
    return {part.digest: found for part, found in zip(parts, fetched, strict=True)}


def _local_ranges(
    parts: Parts, settings: Settings, opened: contextlib.ExitStack, have: Path | None
) -> dict[str, Bytes]:
    """Return digest → place of each part that lies on this machine, with the bytes that it should have."""
    ranges: dict[str, Bytes] = {}
    layers = {part.layer for part in parts.parts}
    blobs = {
        record.data: settings.store.blob_of(record)
        for record in settings.store.records()
        if record.data in layers
    }
    for part in parts.parts:
        if part.layer in blobs and part.digest not in ranges:
            with contextlib.suppress(OSError):
                file = opened.enter_context(blobs[part.layer].open("rb"))
                found = FileRange(file.fileno(), SUPERBLOCK_BYTES + part.layer_offset)
                # A stranger's manifest may name any layer, and a layer may be damaged.
                if found.digest(part.size_bytes) == part.digest:
                    ranges[part.digest] = found
    if have is not None:
        asked = {part.digest for part in parts.parts}
        image = opened.enter_context(ImageFile.open(have))
        with task(settings.emit, "read", f"read {have.name}", total_bytes=image.size_bytes) as reading:
            for part in parts_of(image, advanced=reading.advance).parts:
                if part.digest in asked:
                    ranges.setdefault(part.digest, FileRange(image.file.fileno(), part.offset))
    return ranges


def _write(
    path: Path,
    parts: Parts,
    ranges: Mapping[str, Bytes],
    name: str,
    emit: Emit,
    advanced: Callable[[int], None],
    mode: int,
    check: Callable[[], None],
) -> None:
    try:
        with atomic_file(path, mode=mode, check=check) as target:
            whole, at = hashlib.sha256(), 0
            for part in parts.parts:
                whole.update(bytes(part.offset - at))
                at = part.offset
                for piece in ranges[part.digest].pieces(part.size_bytes):
                    whole.update(piece)
                    write_at(target, piece, at)
                    at += len(piece)
                    advanced(len(piece))
            if at != parts.file_bytes or f"sha256:{whole.hexdigest()}" != parts.file_digest:
                raise RequestError(
                    f"`{name}` is damaged: its parts are not the file that was pushed", hint=_HINT_DAMAGED
                )
            # Before it has a name: none can start what this machine refuses.
            with ImageFile(path, descriptor_path(target).open("rb")) as image:
                if check_signatures(image, name, emit):
                    raise RequestError(
                        f"no signed verdict says that `{name}` passed its test, as `require_pass` asks",
                        hint="its builder runs `envbuild test`, `envbuild sign` and `envbuild push`",
                    )
    except OSError as error:
        raise MachineError(
            f"`{path}` cannot be written: {error.strerror or error}",
            hint="free some space, or name another file",
        ) from error
