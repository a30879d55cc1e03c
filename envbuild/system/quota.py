"""The user's quota on a file system, which the free space of the file system does not show."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from envbuild.errors import EnvbuildError
from envbuild.system import host, process

_MOUNTS = Path("/proc/self/mountinfo")
# A server of quotas that does not answer must not hold up a build.
_TIMEOUT_S = 5.0
_STDOUT_BYTES = 64 << 10
_BLOCK_BYTES = 1024
# Octal escapes of proc(5) for blanks and backslashes.
_ESCAPED = re.compile(r"\\([0-7]{3})")
# What `quota -w` and `lfs quota -q` print: file system, blocks used (`*` if too many), soft and hard limit,
# the time of grace if there is one (`6days`, `-`), and the same of files.
_LIMITS = r"([0-9]+)\*?[ \t]+([0-9]+)[ \t]+([0-9]+)(?!\S)"
_GRACE = r"(?:[ \t]+(?![0-9]+\*?(?:\s|$))\S+)?"
_ROW = re.compile(rf"^[ \t]*\S+[ \t]+{_LIMITS}(?:{_GRACE}[ \t]+{_LIMITS})?", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Mount:
    """A mounted file system."""

    point: str
    """Where it is mounted."""
    kind: str
    """Its type (``lustre``)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Left:
    """The rest of a user's quota; None without a limit, or if it is unknown."""

    size_bytes: int | None = None
    inodes: int | None = None
    """Number of files and directories."""


def quota_left(path: Path) -> Left:
    """Return what this user may still write below an existing path.

    Asks `lfs quota` on Lustre, and `quota` elsewhere; both may be absent.
    """
    mount = mount_of(path)
    if mount is None:
        return Left()
    user = str(os.geteuid())
    if mount.kind == "lustre":
        line = ["lfs", "quota", "-q", "-u", user, mount.point]
    else:
        line = ["quota", "-w", "-u", "-f", mount.point]
    program = host.search_path(line[0])
    if program is None:
        return Left()
    try:
        finished = process.run(
            [program, *line[1:]], env=host.environment(), timeout_s=_TIMEOUT_S, stdout_bytes=_STDOUT_BYTES
        )
    except (EnvbuildError, OSError):
        return Left()
    # `quota` ends with 1 if a limit is exceeded.
    return Left() if finished.timed_out else left_of(finished.stdout)


def left_of(text: str) -> Left:
    """Return what is left, as `quota -w` or `lfs quota -q` prints it: of the first rows with a limit."""
    rows = [row.groups() for row in _ROW.finditer(text)]
    blocks = next((left for row in rows if (left := _difference(row[:3])) is not None), None)
    inodes = next((left for row in rows if (left := _difference(row[3:])) is not None), None)
    return Left(size_bytes=None if blocks is None else blocks * _BLOCK_BYTES, inodes=inodes)


def _difference(numbers: Sequence[str | None]) -> int | None:
    """Return a limit less what is used; None without a limit."""
    used, soft, hard = (int(number or 0) for number in numbers)
    # Writing stops at the hard limit; a soft one alone stops it after its days of grace.
    limit = hard or soft
    return max(limit - used, 0) if limit else None


def mount_of(path: Path) -> Mount | None:
    """Return the mount that an existing path is on: the last of the deepest; None if it is unknown."""
    device = path.stat().st_dev
    number = f"{os.major(device)}:{os.minor(device)}"
    real, deepest = os.path.realpath(path), None
    try:
        lines = _MOUNTS.read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    except OSError:
        return None
    for line in lines:
        fields, _, rest = line.partition(" - ")
        words, kind = fields.split(" "), rest.partition(" ")[0]
        if len(words) < 5 or words[2] != number:
            continue
        point = _ESCAPED.sub(lambda match: chr(int(match[1], 8)), words[4])
        is_above = real == point or real.startswith(point.rstrip("/") + "/")
        if is_above and (deepest is None or len(point) >= len(deepest.point)):
            deepest = Mount(point, kind)
    return deepest
