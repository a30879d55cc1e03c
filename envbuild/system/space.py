"""Full file systems and quotas: recognized in errors and in what programs write, and named."""

from __future__ import annotations

import errno
import os
import re
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from envbuild.errors import MachineError
from envbuild.system.configured import ConfiguredValue, first_of
from envbuild.system.files import exists, free_bytes, free_inodes, what_is_full
from envbuild.system.redaction import redact_text

_SAYS_FULL = re.compile(
    r"no space left|not enough (?:free )?(?:disk )?space|there is no space|disk quota exceeded|quota exceeded"
    r"|os error (?:28|122)\b|errno (?:28|122)\b|\((?:28|122): ",
    re.IGNORECASE,
)
_NO_ROOM_BYTES = 65536
_QUOTA = re.compile(r"quota|(?:error|errno|\() ?122", re.IGNORECASE)


NEEDED_TEMPORARY_BYTES = 8_000_000_000
"""Free space for temporary files that is enough for an image with a framework."""


class NoSpaceError(MachineError):
    """A file system is full, or a quota is used up; the error names it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SpaceDirectory:
    """A directory that may be full."""

    name: str
    """Its name for the user: ``the store``."""
    path: Path
    hint: str
    """A hint if it is full."""


def named_directories(variables: Mapping[str, str] = os.environ) -> list[ConfiguredValue]:
    """Return the configured directory for temporary files, and that of TMPDIR, with what names each."""
    configured = first_of("tmpdir", variables=variables)
    named = [configured] if configured is not None else []
    if path := variables.get("TMPDIR"):
        named.append(ConfiguredValue(value=path, origin="TMPDIR"))
    return named


def temporary_directories() -> list[SpaceDirectory]:
    """Return the directories for temporary files of this process and of builds."""
    hint = (
        "free some space, or name another directory with ENVBUILD_TMPDIR and TMPDIR;"
        f" {NEEDED_TEMPORARY_BYTES / 1e9:.0f} GB are recommended for a build"
    )
    named = [
        SpaceDirectory(name=f"the directory of {entry.origin},", path=Path(entry.value), hint=hint)
        for entry in named_directories()
    ]
    others = dict.fromkeys((tempfile.gettempdir(), "/var/tmp"))  # noqa: S108  # where builds work
    return named + [SpaceDirectory(name="", path=Path(path), hint=hint) for path in others]


def is_full(error: OSError) -> bool:
    """Return whether an error means that space or a quota is used up."""
    return error.errno in (errno.ENOSPC, errno.EDQUOT)


def says_full(text: str) -> bool:
    """Return whether a program writes that space or a quota is used up."""
    return _SAYS_FULL.search(text) is not None


def has_no_room(directory: Path) -> bool:
    """Return whether next to nothing can be written in a directory."""
    return _free_bytes(directory) < _NO_ROOM_BYTES


def refuse_full(problem: str, output: str) -> None:
    """Raise a MachineError if the output of a program that failed says that space or a quota is used up."""
    line = next(filter(says_full, output.splitlines()), None)
    if line is not None:
        raise MachineError(f"{problem}: {redact_text(line.strip())}", hint="free some space there")


def no_space(
    directories: Sequence[SpaceDirectory], *, output: str = "", path: str | None = None
) -> NoSpaceError:
    """Return the error for a full file system: that of a `path`, else that of one of the directories.

    It is a directory that the `output` of a program names, else the one with the least space. What failed
    may have removed its files by now, so none may look full.
    """
    output = "\n".join(line for line in output.splitlines() if says_full(line))
    existing = [entry for entry in directories if exists(entry.path)]
    # A store in a directory of temporary files is one of these files: the user knows the directory.
    chosen = [entry.path for entry in existing if entry in temporary_directories() and entry.name]
    existing = [entry for entry in existing if not any(path in entry.path.parents for path in chosen)]
    likely = [entry for entry in existing if str(entry.path) in output]
    if path is not None:
        device = _device(Path(path))
        likely = [entry for entry in existing if _device(entry.path) == device]
    if path is not None and not likely:
        directory = Path(path).parent
        likely = [
            SpaceDirectory(name="", path=directory, hint="free some space there, or name another directory")
        ]
    quota = ": the quota is used up" if _QUOTA.search(output) else ""
    # A quota does not show in what is free.
    entry = min(likely or existing, key=lambda entry: 0 if quota else _free_bytes(entry.path))
    shown = f"{entry.name} `{entry.path}`".lstrip()
    return NoSpaceError(f"no {what_is_full(entry.path)} left in {shown}{quota}", hint=entry.hint)


def explained(error: OSError, directories: Sequence[SpaceDirectory]) -> NoSpaceError | None:
    """Return the error that names the full file system; None for an error of another kind."""
    if not is_full(error):
        return None
    output = "quota exceeded" if error.errno == errno.EDQUOT else ""
    # Of a copy the second file is the one that is written.
    file = error.filename if error.filename2 is None else error.filename2
    return no_space(directories, output=output, path=None if file is None else os.fsdecode(file))


def _device(path: Path) -> int:
    """Return the device of a path, or of the nearest directory above it that exists."""
    path = path.absolute()
    return next(parent.stat().st_dev for parent in (path, *path.parents) if exists(parent))


def _free_bytes(path: Path) -> int:
    try:
        # Inodes may be used up while there is space.
        return 0 if free_inodes(path) == 0 else free_bytes(path)
    except OSError:
        return 0
