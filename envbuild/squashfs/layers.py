"""Opens the squashfs files of a store's layers, and splices them into one file."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path

from envbuild.errors import MachineError
from envbuild.squashfs.format import SquashfsError
from envbuild.squashfs.reader import Squashfs
from envbuild.squashfs.splice import splice
from envbuild.system.files import is_full


@contextlib.contextmanager
def layer_file_systems(blobs: Mapping[str, Path]) -> Iterator[dict[str, Squashfs]]:
    """Open the squashfs files of layers (name → file) for the block.

    MachineError: one cannot be read or is damaged, as is found here or in the block.
    """
    inputs: dict[str, Squashfs] = {}
    with contextlib.ExitStack() as files:
        try:
            for name, blob in blobs.items():
                inputs[name] = Squashfs(files.enter_context(blob.open("rb")), 0, blob.stat().st_size)
        except (OSError, SquashfsError) as error:
            raise _damaged(error) from error
        try:
            yield inputs
        except SquashfsError as error:
            if error.squashfs not in inputs.values():
                raise
            raise _damaged(error) from error


def _damaged(error: Exception) -> MachineError:
    return MachineError(
        f"a layer cannot be read: {error}",
        hint="`envbuild cache verify --repair` removes what is damaged; then build it again",
    )


def splice_layers(blobs: Mapping[str, Path], target: Path) -> None:
    """Write a new squashfs file that shows layers, given from bottom to top, over one another."""
    with layer_file_systems(blobs) as inputs, target.open("xb") as file:
        try:
            splice(inputs).write(file.fileno(), 0)
        except OSError as error:
            if not is_full(error):
                raise _damaged(error) from error
            problem = f"there is no space for `{target}`: {error.strerror}"
            raise MachineError(problem, hint="free some space for the store") from error
