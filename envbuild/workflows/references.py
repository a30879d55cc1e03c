"""Images that command lines name by references to registries: pulled into the store once.

Apart from `images`, since most commands get files, and the client of registries takes long to import.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from envbuild.errors import MachineError
from envbuild.store.images import image_of_file, image_of_manifest, mark_image, new_image
from envbuild.store.parts import forget_part
from envbuild.system.descriptors import with_real_paths
from envbuild.system.files import write_at
from envbuild.system.references import Reference
from envbuild.system.registry import Repository
from envbuild.workflows.pull import HINT_STORE, fetch_parts, parts_in, pull_parts
from envbuild.workflows.settings import Settings


def image_file(reference: Reference, settings: Settings) -> Path:
    """Return the image of a reference as a file of the store, pulled unless it is there.

    The registry is asked for the manifest of a tag each time, for that of a digest once.
    RequestError, MachineError: as `pull_image`; or others can replace the store's files.
    """
    store = settings.store
    if store.can_be_renamed:
        problem = f"others can replace the store `{store.path}`, and with it the image of `{reference}`"
        hint = (
            f"`envbuild pull {reference} -o FILE.sif`, and name that file; or another store with --store DIR"
        )
        raise MachineError(problem, hint=hint)
    with store.in_use():
        image = _image_by_digest(reference, settings) or _pulled(reference, settings)
    return Path(with_real_paths(str(image)))


def current_digest(reference: Reference) -> str:
    """Return the digest of the manifest that the registry has for a reference now: ``sha256:…``."""
    with Repository(reference) as repository:
        document, _ = parts_in(repository)
    return document.digest


@contextlib.contextmanager
def description_file(reference: Reference, settings: Settings) -> Iterator[tuple[Path, bool]]:
    """Yield a file with all that describes an image, and whether it is whole: `images.description_file`."""
    store = settings.store
    with store.in_use(), contextlib.ExitStack() as opened:
        image = _image_by_digest(reference, settings)
        if image is None:
            repository = opened.enter_context(Repository(reference))
            document, parts = parts_in(repository)
            image = image_of_file(store, parts.file_digest, document.digest)
        if image is not None:
            yield image, True
            return
        if not any(part.layer for part in parts.parts):
            # Images of other tools are described by a file in their data.
            yield image_file(reference, settings), True
            return
        described = list({part.digest: part for part in parts.parts if not part.layer}.values())
        ranges = fetch_parts(described, repository, settings, opened)
        path = opened.enter_context(store.stage()) / f"{reference.short_name}.sif"
        with path.open("xb") as file:
            file.truncate(parts.file_bytes)
            for part in parts.parts:
                at = part.offset
                for piece in ranges[part.digest].pieces(part.size_bytes) if not part.layer else ():
                    write_at(file.fileno(), piece, at)
                    at += len(piece)
        for part in described:
            forget_part(part.blob_digest, store)
        yield path, False


def _image_by_digest(reference: Reference, settings: Settings) -> Path | None:
    return image_of_manifest(settings.store, reference.digest) if reference.digest else None


def _pulled(reference: Reference, settings: Settings) -> Path:
    """Return the image of a reference in the store, pulled unless it is there."""
    store = settings.store
    with Repository(reference) as repository:
        document, parts = parts_in(repository)
        # Another process may pull it now.
        with store.claim(document.digest):
            image = image_of_file(store, parts.file_digest, document.digest)
            if image is None:
                image = new_image(store, parts.file_digest, reference.short_name)
                # Never writable for others, whatever the umask.
                pull_parts((document, parts), repository, image, settings, mode=0o555, hint=HINT_STORE)
                mark_image(store, parts.file_digest, document.digest)
    return image
