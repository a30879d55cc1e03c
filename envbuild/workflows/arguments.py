"""Checks of arguments that several commands share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass
from pathlib import Path

from envbuild.errors import Location, MachineError, RequestError, pluralize, raise_all
from envbuild.events import Emit, Note, Warned
from envbuild.store.opening import MARKER
from envbuild.system import host
from envbuild.system.files import exists, free_bytes, free_inodes, is_below, is_directory
from envbuild.system.links import real_path
from envbuild.system.quota import quota_left
from envbuild.workflows.settings import store_root

_LITTLE_BYTES = 1_000_000  # so little space is shown with `-v` alone
_MANY_INODES = 1000  # fewer are not mentioned if there are enough


def check_sources(directories: Sequence[Path]) -> None:
    """Raise a RequestError unless all directories that `envbuild fetch` filled exist."""
    for directory in directories:
        if not is_directory(directory):
            raise RequestError(
                f"there is no directory `{directory}`", hint="`envbuild fetch SPEC --to DIR` fills one"
            )


def lock_path(spec: Path) -> Path:
    """Return the path of a spec's lock: ``STEM.lock.yaml`` beside it."""
    return spec.parent / f"{spec.stem}.lock.yaml"


def output_path(text: str) -> Path:
    """Return the path of an output file.

    RequestError: it ends in a slash and no such directory exists; else a file of that name would be created.
    """
    if text.endswith("/") and not is_directory(Path(text)):
        hint = "name a file, or leave the slash out"
        raise RequestError(f"`{text}` ends in `/`, and names no directory", hint=hint)
    return Path(text)


def output_or_directory(text: str | None) -> tuple[Path | None, Path | None]:
    """Return the path of an output file, or of the directory for several, as a command line names one.

    A directory exists, or is written with a slash at its end. RequestError: the path is empty.
    """
    if text is None:
        return None, None
    if not text:
        raise RequestError("the output path is empty", hint="name a file, or a directory: -o DIR/")
    path = Path(text)
    return (None, path) if text.endswith("/") or is_directory(path) else (path, None)


def check_architecture(image: Path, architecture: str, *, hint: str) -> None:
    """Raise a RequestError if an image is for another processor than that of this machine."""
    if architecture != host.architecture():
        raise RequestError(
            f"`{image.name}` is for {architecture}, and this machine is {host.architecture()}",
            at=Location(path=image),
            hint=hint,
        )


def check_outside_store(
    path: Path, root: Path | None = None, *, hint: str = "name a place outside it"
) -> None:
    """Raise a RequestError for an output path inside a store, by default the default store.

    Such a file would stop `cache prune`, or be removed by it. Symbolic links are followed.
    """
    try:
        root = store_root(root)
    except RequestError:
        return  # a user without a home has no default store
    # Any store counts: the output of one run may lie in the store of another.
    if is_below(path, root) or any(exists(parent / MARKER) for parent in real_path(path).parents):
        raise RequestError(f"`{path}` is inside the store", hint=hint)


def check_room(
    directory: Path,
    needed: int,
    emit: Emit,
    *,
    least: int | None = None,
    inodes: int = 1,
    least_inodes: int | None = None,
    copied_from: Path | None = None,
    hint: str = "name a file elsewhere with -o NEW.sif, or free some space",
) -> None:
    """Say what new files need in a directory, which need not exist; MachineError if there is less.

    `needed` is their size in bytes, and `inodes` the number of files and directories. For estimates, `least`
    and `least_inodes` are what they need in any case. A quota that can be read counts if it leaves less than
    the file system has. On the file system of a path `copied_from`, copies may share blocks, and need none.
    """
    there = next(path for path in (directory.absolute(), *directory.absolute().parents) if exists(path))
    if copied_from is not None and copied_from.stat().st_dev == there.stat().st_dev:
        least = 0
    left = quota_left(there)
    size = _Need(needed, least, free_bytes(there), left.size_bytes, shown=_megabytes)
    files = _Need(inodes, least_inodes, free_inodes(there), left.inodes, shown=_inodes)
    is_little = needed < _LITTLE_BYTES
    errors = [size.check(directory, emit, hint, detail=is_little)]
    if inodes >= _MANY_INODES or not files.is_met:
        errors.append(files.check(directory, emit, hint))
    raise_all([error for error in errors if error is not None])


@dataclass(frozen=True, slots=True)
class _Need:
    """How much new files need of a file system, in bytes or in inodes, and how much of it is free."""

    needed: int
    least: int | None
    """The amount that they need in any case; None if `needed` is exact."""
    free: int | None
    """None if the file system has no limit."""
    quota: int | None
    """None if the user has no limit, or none is known."""
    _: KW_ONLY
    shown: Callable[[int], str]
    """Puts an amount in words."""

    @property
    def limit(self) -> tuple[int, str] | None:
        """The smaller of the two amounts that are free, and its name; None without a limit."""
        limits = ((self.free, "free"), (self.quota, "free in your quota"))
        return min(((limit, name) for limit, name in limits if limit is not None), default=None)

    @property
    def is_met(self) -> bool:
        """Whether there is as much as is needed."""
        return self.limit is None or self.limit[0] >= self.needed

    def check(self, directory: Path, emit: Emit, hint: str, *, detail: bool = False) -> MachineError | None:
        """Say what is needed in a directory, and what is free; return the error if that is too little."""
        if self.limit is None:
            return None
        free, name = self.limit
        about, least = ("", self.needed) if self.least is None else ("about ", self.least)
        are_free = f"{self.shown(free)} {_be(free)} {name}"
        text = f"{about}{self.shown(self.needed)} {_be(self.needed)} needed in `{directory}`, {are_free}"
        is_short = free < least
        emit(Note(text=text, detail=detail) if self.is_met or is_short else Warned(text=text, hint=hint))
        if not is_short:
            return None
        problem = f"there is no space for {self.shown(least)} in `{directory}`: {are_free}"
        return MachineError(problem, hint=hint)


def _megabytes(size_bytes: int) -> str:
    """Return a size in words; of a few megabytes, the tenths decide."""
    return f"{size_bytes / 1e6:.{0 if size_bytes >= 10_000_000 else 1}f} MB"


def _be(number: int) -> str:
    return "is" if number == 1 else "are"


def _inodes(count: int) -> str:
    """Return a number of files and directories in words."""
    return pluralize(count, "inode")
