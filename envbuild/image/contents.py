"""What processes of an image see, read from its file systems without mounting them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from envbuild.errors import Location, MachineError, RequestError
from envbuild.image.sif import read_sif
from envbuild.image.squashfs import Entry, Squashfs

AGAIN = "build the image again, or copy it again from where it came"
"""What to do with an image that was changed or damaged."""


@contextlib.contextmanager
def file_systems(image: Path) -> Iterator[list[Squashfs]]:
    """Give the file systems of an image, the root first, as long as the block lasts.

    Raises
    ------
    RequestError
        It is no image, cannot be read, or a file system of it turns out to be damaged in the block.
    """
    partitions = read_sif(image).partitions
    try:
        file = image.open("rb")
    except OSError as error:
        raise unreadable(image, error) from error
    with file:
        try:
            yield [Squashfs(file, part.offset, part.size) for part in partitions]
        except ValueError as error:
            raise unreadable(image, error) from error


def unreadable(image: Path, error: OSError | ValueError) -> RequestError:
    """Return what to tell of an image that cannot be read, or a file system of which is damaged."""
    if isinstance(error, OSError):
        return RequestError(
            f"`{image}` cannot be read: {error.strerror}",
            hint="see that the file is there, and may be read by you",
        )
    return RequestError(
        f"a file system of `{image.name}` cannot be read: {error}",
        at=Location(path=image),
        hint=AGAIN,
    )


def unreadable_layer(error: OSError | ValueError) -> MachineError:
    """Return what to tell where a layer of the store cannot be read, or is damaged."""
    return MachineError(
        f"a layer cannot be read: {error}", hint="`envbuild cache verify` finds what is damaged"
    )


def image_entries(image: Path) -> dict[str, Entry]:
    """Return every path that an image shows.

    Raises
    ------
    RequestError
        As `file_systems`.
    """
    with file_systems(image) as layers:
        return stacked([layer.walk() for layer in layers])


def stacked(layers: Sequence[Iterable[Entry]]) -> dict[str, Entry]:
    """Return what layers show over one another, as overlayfs has it. Pure.

    Parameters
    ----------
    layers : sequence of iterable of Entry
        From bottom to top; in each a directory before what it holds.
    """
    shown: dict[str, Entry] = {}
    for layer in layers:
        for entry in layer:
            lower = shown.get(entry.path)
            merges = entry.kind == "directory" and not entry.opaque
            if lower is not None and lower.kind == "directory" and not merges:
                below = f"{entry.path.rstrip('/')}/"
                for path in [path for path in shown if path.startswith(below) and path != entry.path]:
                    del shown[path]
            if entry.kind == "whiteout":
                shown.pop(entry.path, None)
            else:
                shown[entry.path] = entry
    return shown
