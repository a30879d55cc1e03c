"""Push: an image goes to a registry, by parts that the registry may have already."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from envbuild.errors import RequestError
from envbuild.events import Emit, Note, task
from envbuild.image.file import ImageFile
from envbuild.image.parts import Part, Parts, index_of, packed, parts_of
from envbuild.image.statements import bundles_of
from envbuild.image.verify import check_around
from envbuild.system.process import thread_pool
from envbuild.system.references import EMPTY, Document, Reference
from envbuild.system.registry import Repository

TRANSFERS = 4  # at a time


@dataclass(frozen=True, slots=True, kw_only=True)
class Pushed:
    """An image in a registry."""

    reference: str
    digest: str
    """``sha256:…`` of the manifest: with the name, what is pulled whatever the tag becomes."""
    parts: int
    sent: int
    """Number of parts, or of layers of an OCI image, and of those that the registry did not have."""
    size_bytes: int
    sent_bytes: int
    """Length of all parts, which is that of the image; and of what was sent of them, and of the whole file if
    it was, too. Of an OCI image, the compressed length of its layers."""


def push_image(
    image: Path,
    text: str,
    emit: Emit,
    *,
    source: str = "",
    plain: bool = False,
    with_sif: bool = False,
) -> Pushed:
    """Push an image to `text`, the name of an image in a registry, and return what was sent.

    The tag appears last: no pull gets half an image. Signed statements on it follow as manifests of their
    own, which refer to it. Parts that `source`, another name in the registry, has are not sent. `with_sif`
    adds the whole file, for Apptainer. RequestError: a name is not one; or the image is not one of one
    squashfs, was changed since envbuild built it, or is not a SIF but should be added as one. MachineError:
    the registry refuses it, or does not answer.
    """
    reference, repository = target_of(text, source, plain=plain)
    with ImageFile.open(image) as opened, repository:
        if with_sif and opened.sif is None:
            hint = "push it without --sif; `apptainer build NEW.sif FILE` makes a SIF of it"
            raise RequestError(f"`{image}` is not a SIF but a bare squashfs", hint=hint)
        if opened.built_by_envbuild:
            check_around(opened)
        opened.check_root_is_alone()
        with task(emit, "read", f"read {image.name}", total_bytes=opened.size_bytes) as reading:
            parts = parts_of(opened, advanced=reading.advance)
        # Each once: two equal parts would race.
        blobs = {
            part.blob_digest: _Blob(part.blob_digest, part.offset, part.blob_bytes, part)
            for part in parts.parts
        }
        if with_sif:
            _say_price(parts, repository, source, emit)
            blobs[parts.file_digest] = _Blob(parts.file_digest, 0, parts.file_bytes)
        total_bytes = sum(blob.size_bytes for blob in blobs.values())
        with task(emit, "push", f"push {reference}", total_bytes=total_bytes) as pushing:

            def push(blob: _Blob) -> bool:
                if blob.part is not None and blob.part.packed_digest:
                    pushing.advance(blob.size_bytes)
                    return repository.push_bytes(packed(opened.read(blob.offset, blob.part.size_bytes)))
                return repository.push_blob(
                    blob.digest, blob.size_bytes, opened.file, blob.offset, pushing.advance
                )

            with thread_pool(TRANSFERS) as pool:
                was_sent = list(pool.map(push, blobs.values()))
            sent = [blob for blob, is_new in zip(blobs.values(), was_sent, strict=True) if is_new]
            repository.push_bytes(EMPTY)
            sent_bytes = sum(blob.size_bytes for blob in sent)
            pushing.detail = f"{sent_bytes / 1e6:.1f} MB sent"
        opened.check_unchanged()
        document, tagged = _put_manifests(parts, opened, repository, with_sif=with_sif)
        for bundle in bundles_of(opened):
            repository.push_bytes(bundle.content)
            repository.put_referrer(bundle.document, tagged)
    return Pushed(
        reference=str(reference),
        digest=document.digest,
        parts=len(parts.parts),
        sent=sum(blob.digest != parts.file_digest for blob in sent),
        size_bytes=parts.file_bytes,
        sent_bytes=sent_bytes,
    )


def target_of(text: str, source: str, *, plain: bool) -> tuple[Reference, Repository]:
    """Return the reference and the repository that an image is pushed to; arguments as in `push_image`."""
    reference = Reference.parse(text)
    if reference.digest:
        raise RequestError(
            f"`{text}` names a digest, which the registry gives", hint="name a tag: HOST/NAME:TAG"
        )
    return reference, Repository(reference, source=_repository(source, reference), plain=plain)


def _repository(source: str, reference: Reference) -> str:
    """Return the repository of another name in the same registry; empty for no name."""
    if not source:
        return ""
    other = Reference.parse(source)
    if other.host != reference.host:
        problem = f"`{source}` is in another registry than `{reference}`"
        raise RequestError(problem, hint=f"--from names an image that {reference.host} has, too")
    return other.repository


@dataclass(frozen=True, slots=True)
class _Blob:
    """A range of an image file that is sent: a part, or all of it."""

    digest: str
    offset: int
    size_bytes: int
    """Length of what travels."""
    part: Part | None = None
    """None for all of the file."""


def _say_price(parts: Parts, repository: Repository, source: str, emit: Emit) -> None:
    """Say that the whole file is sent beside its parts, of which a registry cannot make it."""
    if not repository.has_blob(parts.file_digest):
        size = f"{parts.file_bytes / 1e6:.1f} MB"
        text = f"--sif sends the whole file besides its parts: {size}, which the registry keeps as well"
        text += f"; none of it is sent if `{source}` has it" if source else ""
        emit(Note(text=text))


def _put_manifests(
    parts: Parts, image: ImageFile, repository: Repository, *, with_sif: bool
) -> tuple[Document, Document]:
    """Write what describes the parts, and the index if the whole file is there, too; the tag is the last.

    Returns the manifest of the parts, and what the tag names.
    """
    name, tag = image.path.name, repository.reference.tag
    if not with_sif:
        document = repository.put_manifest(parts.document(name), tag)
        return document, document
    document = repository.put_manifest(parts.document(name))
    sif = repository.put_manifest(parts.sif_document(name))
    return document, repository.put_manifest(index_of(sif, document, image.architecture), tag)
