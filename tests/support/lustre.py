"""A directory that seems to be on Lustre, and a stand-in for `lfs`."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from envbuild.system import quota

# It writes its words to a file, and makes the file that is the last of them.
_SETSTRIPE = """\
#!/bin/sh
for path; do :; done
[ -e "$path" ] && echo "lfs setstripe: $path exists" >&2 && exit 17
echo "$*" >>{log}
: >"$path"
"""


def lustre(directory: Path, patch: pytest.MonkeyPatch, *, lfs: str | None = _SETSTRIPE) -> Path:
    """Let a directory be on Lustre, with a program `lfs` (None: without); return the file with its words."""
    status = directory.stat()
    number = f"{os.major(status.st_dev)}:{os.minor(status.st_dev)}"
    mounts, programs, log = directory / "mountinfo", directory / "lfs-bin", directory / "lfs.log"
    mounts.write_text(f"22 1 {number} / / rw shared:1 - lustre server:/scratch rw\n")
    patch.setattr(quota, "_MOUNTS", mounts)
    programs.mkdir()
    if lfs is not None:
        (programs / "lfs").write_text(lfs.format(log=log))
        (programs / "lfs").chmod(0o755)
    patch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    log.touch()
    return log
