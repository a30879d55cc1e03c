"""The squashfs files of layers in a store: opened together, and spliced into one file."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path

from envbuild.errors import MachineError
from envbuild.squashfs.reader import Squashfs
from envbuild.squashfs.splice import splice
from envbuild.system.files import is_full


@contextlib.contextmanager
def layer_file_systems(blobs: Mapping[str, Path]) -> Iterator[dict[str, Squashfs]]:
    """Open the squashfs files of layers for the block.

    Parameters
    ----------
    blobs : mapping of str to Path
        Name of the layer → its squashfs.

    Raises
    ------
    MachineError
        One cannot be read, or turns out to be damaged in the block.
    """
    try:
        with contextlib.ExitStack() as files:
            yield {
                name: Squashfs(files.enter_context(blob.open("rb")), 0, blob.stat().st_size)
                for name, blob in blobs.items()
            }
    except (OSError, ValueError) as error:
        raise unreadable_layer(error) from error


def splice_layers(blobs: Mapping[str, Path], target: Path) -> None:
    """Write the squashfs file that shows layers over one another.

    Parameters
    ----------
    blobs : mapping of str to Path
        As in `layer_file_systems`, from bottom to top.
    target : Path
        A file that does not exist.

    Raises
    ------
    MachineError
        As `layer_file_systems`; or the disk is full.
    """
    with layer_file_systems(blobs) as inputs, target.open("xb") as file:
        try:
            splice(inputs).write(file.fileno(), 0)
        except OSError as error:
            if not is_full(error):
                raise
            problem = f"there is no space for `{target}`: {error.strerror}"
            raise MachineError(problem, hint="free some space where the store lies") from error


def unreadable_layer(error: OSError | ValueError) -> MachineError:
    """Return the error for a layer of the store that cannot be read, or is damaged."""
    return MachineError(
        f"a layer cannot be read: {error}",
        hint="`envbuild cache verify --repair` removes what is damaged; then build it again",
    )
