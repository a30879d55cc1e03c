"""The forms that an image can be written in beside its SIF, and where they go.

Everything that can be known is checked before any work is done; a file appears whole, or not at all.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from envbuild.errors import EnvbuildError, MachineError, RequestError, did_you_mean, raise_all
from envbuild.image.compose import check_target
from envbuild.image.oci import LAYOUT
from envbuild.image.sif import looks_like_sif
from envbuild.system.files import file_named
from envbuild.system.leftovers import half_of
from envbuild.system.squashfs import Compression

# Format → what it is, for help and messages.
FORMATS: dict[str, str] = {
    "squashfs": "one squashfs, for Charliecloud, enroot and others",
    "shifter": "<id>.squashfs and <id>.meta in a directory, as Shifter's gateway writes them",
    "sif-flat": "a SIF of one partition",
    "oci": "an OCI archive, for podman and registries",
    "def": "an Apptainer definition file with the same packages",
}
# What a format is compressed by where nobody says: kernels may lack zstd, and Shifter mounts by the kernel.
_COMPRESSION: dict[str, Compression] = {"squashfs": "zstd", "shifter": "gzip", "sif-flat": "zstd"}
_SQUASHFS_MAGIC = b"hsqs"
_DEFINITION = b"Bootstrap:"


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """One form of an image and its place.

    Attributes
    ----------
    format : str
        One of `FORMATS`.
    path : Path
        A file; for ``shifter`` a directory.
    """

    format: str
    path: Path

    def compression(self, wanted: Compression | None) -> Compression | None:
        """Return what compresses its squashfs; None for a form without one."""
        usual = _COMPRESSION.get(self.format)
        return usual and (wanted or usual)


def parse_output(text: str) -> Output | Path:
    """Read ``FORMAT:PATH``; a path without a format is the SIF's.

    Raises
    ------
    RequestError
        There is no such format, no path, or a directory's where a file is to be written.
    """
    name, colon, path = text.partition(":")
    if not colon or "/" in name:
        return file_named(text)
    if name != "sif" and name not in FORMATS:
        known = did_you_mean(name, [*FORMATS, "sif"])
        hint = known or f"there are {', '.join(FORMATS)}; a file of that name is ./{text}"
        raise RequestError(f"`{name}` is no format of an image", hint=hint)
    if not path:
        raise RequestError(f"`{text}` names no place", hint=f"write {name}:PATH")
    place = Path(path) if name == "shifter" else file_named(path)
    return place if name == "sif" else Output(format=name, path=place)


def places(texts: Sequence[str], *, default: Path, keep: Sequence[Path]) -> tuple[Path, tuple[Output, ...]]:
    """Return where an image's SIF goes, and its further forms.

    Parameters
    ----------
    texts : sequence of str
        ``FORMAT:PATH``, or the SIF's path.
    default : Path
        The SIF's place where none is named.
    keep : sequence of Path
        As in `check_outputs`.

    Raises
    ------
    RequestError
        A text is neither, or nothing can be written there: all that are wrong at once.
    """
    errors: list[EnvbuildError] = []
    read: list[Output | Path] = []
    for text in texts:
        try:
            read.append(parse_output(text))
        except EnvbuildError as error:
            errors.append(error)
    outputs = tuple(one for one in read if isinstance(one, Output))
    path, *more = [one for one in read if isinstance(one, Path)] or [default]
    errors += [
        RequestError(f"`{other}` is a second place for the image", hint=f"the first is `{path}`")
        for other in more
    ]
    try:
        check_target(path, keep=keep)
        if os.path.realpath(path) in map(os.path.realpath, keep):
            problem = f"`{path}` is where the spec's lock will be"
            raise RequestError(problem, hint="name another file with -o IMAGE.sif")
    except EnvbuildError as error:
        errors.append(error)
    try:
        check_outputs(outputs, keep=(*keep, path))
    except EnvbuildError as error:
        errors.append(error)
    raise_all(errors)
    return path, outputs


def check_outputs(outputs: Sequence[Output], *, keep: Sequence[Path]) -> None:
    """Refuse places where nothing can or should be written, before any work is done.

    Parameters
    ----------
    keep : sequence of Path
        Files that must not be replaced: the image, the spec and its lock.

    Raises
    ------
    RequestError
        One of them; all that are wrong at once.
    """
    errors: list[EnvbuildError] = []
    taken = {os.path.realpath(path): f"`{path}`" for path in keep}
    kept = frozenset(taken)
    for output in outputs:
        found = list(_mistakes(output, keep))
        errors += found
        place = os.path.realpath(output.path)
        if place in taken and not (found and place in kept):
            errors.append(RequestError(f"`{output.path}` is named twice", hint=f"once for {taken[place]}"))
        taken[place] = f"the format {output.format}"
    raise_all(errors)


def _mistakes(output: Output, keep: Sequence[Path]) -> Iterator[EnvbuildError]:
    looks_right: dict[str, Callable[[Path], bool]] = {
        "squashfs": lambda path: _begins(path, _SQUASHFS_MAGIC),
        "sif-flat": looks_like_sif,
        "oci": lambda path: _begins(path, LAYOUT.encode()),
        "def": lambda path: _begins(path, _DEFINITION),
    }
    try:
        if output.format == "shifter":
            _check_directory(output.path)
        else:
            check_target(output.path, keep=keep, is_one=looks_right[output.format], what=output.format)
    except EnvbuildError as error:
        yield error


def _check_directory(path: Path) -> None:
    hint = "name a directory for Shifter's two files"
    if str(path) == "-":
        raise RequestError("an image is not written to standard output", hint=hint)
    if path.is_dir():
        if not os.access(path, os.W_OK | os.X_OK):
            raise RequestError(f"nothing can be written in `{path}`", hint=hint)
    elif path.exists() or path.is_symlink():
        raise RequestError(f"`{path}` is there already and is no directory", hint=hint)
    elif not path.parent.is_dir():
        raise RequestError(f"there is no directory `{path.parent}` for `{path.name}`", hint=hint)
    elif not os.access(path.parent, os.W_OK | os.X_OK):
        raise RequestError(f"nothing can be written in `{path.parent}`", hint=hint)


def place_for_work(outputs: Sequence[Output]) -> Path:
    """Return a directory beside an output, which has the space that it needs."""
    path = outputs[0].path
    return path if path.is_dir() else path.absolute().parent


def publish(made: Path, target: Path, *, keep: bool) -> Path:
    """Let a finished file take its place; a reader sees the old one or the new one.

    Parameters
    ----------
    keep : bool
        Whether it has to stay where it is, for another output.

    Raises
    ------
    MachineError
        There is no space, or the disk fails.
    """
    partial = half_of(target)
    try:
        with writing(target):
            if keep or made.stat().st_dev != target.parent.stat().st_dev:
                shutil.copyfile(made, partial)
            else:
                made.replace(partial)
            with partial.open("rb") as file:
                os.fsync(file.fileno())
            partial.replace(target)
    finally:
        partial.unlink(missing_ok=True)
    return target


@contextlib.contextmanager
def writing(target: Path) -> Iterator[None]:
    """Say of which output it is, where what is written for it in the block cannot be written.

    Raises
    ------
    MachineError
        There is no space, or the disk fails.
    """
    try:
        yield
    except OSError as error:
        raise MachineError(
            f"`{target}` cannot be written: {error.strerror or error}",
            hint="free some space, or name another place; the image itself is untouched",
        ) from error


def _begins(path: Path, magic: bytes) -> bool:
    try:
        with path.open("rb") as file:
            start = file.read(len(magic))
    except OSError:
        return False
    return not start or start == magic
