"""The user's quota on a file system, which the free space of the file system does not show."""

from __future__ import annotations

import os
import re
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
# What `quota -w` and `lfs quota -q` print: file system, blocks used (`*` if too many), soft and hard limit.
_ROW = re.compile(r"^\s*\S+\s+([0-9]+)\*?\s+([0-9]+)\s+([0-9]+)(\s|$)", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Mount:
    """A mounted file system."""

    point: str
    """Where it is mounted."""
    kind: str
    """Its type (``lustre``)."""


def quota_free_bytes(path: Path) -> int | None:
    """Return how much this user may still write below an existing path; None if no quota is known.

    Asks `lfs quota` on Lustre, and `quota` elsewhere; both may be absent.
    """
    mount = mount_of(path)
    if mount is None:
        return None
    user = str(os.geteuid())
    if mount.kind == "lustre":
        line = ["lfs", "quota", "-q", "-u", user, mount.point]
    else:
        line = ["quota", "-w", "-u", "-f", mount.point]
    program = host.search_path(line[0])
    if program is None:
        return None
    try:
        finished = process.run(
            [program, *line[1:]], env=host.environment(), timeout_s=_TIMEOUT_S, stdout_bytes=_STDOUT_BYTES
        )
    except (EnvbuildError, OSError):
        return None
    # `quota` ends with 1 if a limit is exceeded.
    return None if finished.timed_out else free_of(finished.stdout)


def free_of(text: str) -> int | None:
    """Return the bytes that are left, as `quota -w` or `lfs quota -q` prints them; None without a limit."""
    for used, soft, hard, _ in _ROW.findall(text):
        # Writing stops at the hard limit; a soft one alone stops it after its days of grace.
        if limit := int(hard) or int(soft):
            return max(limit - int(used), 0) * _BLOCK_BYTES
    return None


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
