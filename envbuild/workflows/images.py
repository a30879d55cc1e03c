"""Images that commands take: files, and references, whose images are pulled into the store once."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from pathlib import Path

from envbuild.errors import MachineError, RequestError
from envbuild.store.images import image_of_file, image_of_manifest, mark_image, new_image
from envbuild.store.parts import forget_part
from envbuild.system.descriptors import with_real_paths
from envbuild.system.files import exists, write_at
from envbuild.system.registry import Reference, Repository
from envbuild.workflows.pull import HINT_STORE, fetch_parts, parts_in, pull_parts
from envbuild.workflows.settings import Settings

# Of a path, which keeps one slash; the other names of images are those of other programs.
_SCHEME = re.compile(r"^(docker|oras):/(?=[^/])")


def image_file(argument: Path, settings: Settings) -> Path:
    """Return the file of the image that a command line names.

    A file that exists is returned as it is, and so is a path that cannot name an image in a registry:
    opening it says why. ``HOST/NAME:TAG`` and ``HOST/NAME@sha256:…`` are pulled into the store, unless it has
    the image. The registry is asked for the manifest of a tag each time, for that of a digest once.
    RequestError, MachineError: as `pull_image`; or others can replace the store's files.
    """
    reference = reference_of(argument)
    if reference is None:
        return argument
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


def by_digest(argument: Path) -> Path:
    """Return a reference with the digest that it has now, for jobs that start later; a file as it is."""
    reference = reference_of(argument)
    if reference is None or reference.digest:
        return argument
    with Repository(reference) as repository:
        document, _ = parts_in(repository)
    return Path(f"{reference.host}/{reference.repository}@{document.digest}")


def reference_of(argument: Path) -> Reference | None:
    """Return the reference that a command line names; None for a file, and for any other path.

    Without a tag or digest it is a path, perhaps a misspelled one.
    """
    text = _SCHEME.sub(r"\1://", str(argument))
    if exists(argument) or not re.search(r":[^/]+$", text.partition("://")[2] or text):
        return None
    with contextlib.suppress(RequestError):
        reference = Reference.parse(text)
        # Docker's name for its hub, and not the host of a registry.
        return reference if reference.host != "docker.io" else None
    return None


def check_is_a_file(argument: Path) -> None:
    """Raise a RequestError for a reference, if what a command writes refers to the image's file later."""
    if (reference := reference_of(argument)) is not None:
        problem = f"`{reference}` has no file that stays: `cache prune` removes images of registries"
        hint = f"`envbuild pull {reference} -o FILE.sif`, and name that file"
        raise RequestError(problem, hint=hint)


@contextlib.contextmanager
def description_file(argument: Path, settings: Settings) -> Iterator[tuple[Path, bool]]:
    """Yield a file with all that describes the image that a command line names, and whether it is whole.

    If envbuild built an image of a registry, and the store lacks it, the data of layers are not fetched: the
    file is a temporary one with zeros there. The rest as `image_file`.
    """
    reference = reference_of(argument)
    if reference is None:
        yield argument, True
        return
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
            yield image_file(argument, settings), True
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
