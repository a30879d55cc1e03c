"""The file system of an image, read without mounting it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from envbuild.errors import Location, RequestError
from envbuild.image.sif import read_sif
from envbuild.squashfs.reader import Entry, Squashfs

AGAIN = "build it again, or copy it again from where it came"
"""What to do with an image that was changed or damaged."""


@contextlib.contextmanager
def file_system(image: Path) -> Iterator[Squashfs]:
    """Open the file system of an image for the block.

    Raises
    ------
    RequestError
        It is not an image, cannot be read, or its file system turns out to be damaged in the block.
    """
    root = read_sif(image).root
    if root is None:
        raise RequestError(f"`{image.name}` holds no file system", at=Location(path=image), hint=AGAIN)
    try:
        with image.open("rb") as file:
            yield Squashfs(file, root.offset, root.size)
    except (OSError, ValueError) as error:
        raise unreadable(image, error) from error


def unreadable(image: Path, error: OSError | ValueError) -> RequestError:
    """Return the error for an image that cannot be read, or whose file system is damaged."""
    if isinstance(error, OSError):
        return RequestError(
            f"`{image}` cannot be read: {error.strerror}",
            hint="see that the file is there, and may be read by you",
        )
    return RequestError(
        f"the file system of `{image.name}` cannot be read: {error}",
        at=Location(path=image),
        hint=AGAIN,
    )


def image_entries(image: Path) -> dict[str, Entry]:
    """Return every path that an image shows.

    Raises
    ------
    RequestError
        As `file_system`.
    """
    with file_system(image) as squashfs:
        return {entry.path: entry for entry in squashfs.walk()}
