"""Push: an image goes to a registry, by parts that the registry may have already."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from envbuild.errors import RequestError
from envbuild.events import Emit, task
from envbuild.image.file import ImageFile
from envbuild.image.parts import EMPTY, Part, parts_of
from envbuild.image.verify import check_around
from envbuild.system.process import thread_pool
from envbuild.system.registry import Reference, Repository

TRANSFERS = 4  # at a time


@dataclass(frozen=True, slots=True, kw_only=True)
class Pushed:
    """An image in a registry."""

    reference: str
    digest: str
    """``sha256:…`` of the manifest: with the name, what `pull` gets whatever the tag becomes."""
    parts: int
    sent: int
    """Number of parts, and of those that the registry did not have."""
    size_bytes: int
    sent_bytes: int
    """Length of the image, and of the parts that were sent."""


def push_image(image: Path, text: str, emit: Emit, *, plain: bool = False) -> Pushed:
    """Push an image to `text`, the name of an image in a registry, and return what was sent.

    The tag appears last: nobody pulls half an image. RequestError: it is not an image of one squashfs, or was
    changed since envbuild built it. MachineError: the registry refuses it, or does not answer.
    """
    reference = Reference.parse(text)
    if reference.digest:
        raise RequestError(
            f"`{text}` names a digest, which the registry gives", hint="name a tag: HOST/NAME:TAG"
        )
    with (
        ImageFile.open(image) as opened,
        Repository(reference, plain=plain) as repository,
    ):
        if opened.built_by_envbuild:
            check_around(opened)
        opened.check_root_is_alone()
        with task(emit, "read", f"read {image.name}", total_bytes=opened.size_bytes) as reading:
            parts = parts_of(opened, advanced=reading.advance)
        with task(emit, "push", f"push {reference}", total_bytes=opened.size_bytes) as pushing:

            def push(part: Part) -> bool:
                return repository.push_blob(
                    part.digest, part.size_bytes, opened.file, part.offset, pushing.advance
                )

            # Each once: two equal parts would race.
            distinct = list({part.digest: part for part in parts.parts}.values())
            with thread_pool(TRANSFERS) as pool:
                was_sent = list(pool.map(push, distinct))
            sent = [part for part, is_new in zip(distinct, was_sent, strict=True) if is_new]
            repository.push_bytes(EMPTY)
            sent_bytes = sum(part.size_bytes for part in sent)
            pushing.detail = f"{sent_bytes / 1e6:.1f} MB sent"
        opened.check_unchanged()
        document = repository.put_manifest(parts.document(image.name), reference.tag)
    return Pushed(
        reference=str(reference),
        digest=document.digest,
        parts=len(parts.parts),
        sent=len(sent),
        size_bytes=parts.file_bytes,
        sent_bytes=sent_bytes,
    )
