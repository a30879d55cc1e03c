"""A machine that lacks nothing."""

from __future__ import annotations

from typing import Any

from envbuild.doctor.model import Directory, Machine, Runtime

PROGRAMS = (
    *("mksquashfs", "unsquashfs", "mmdebstrap", "apt-get", "gpgv", "ldd", "unshare", "newuidmap"),
    *("newgidmap", "squashfuse", "srun", "uv"),
)
ROOM: dict[str, Any] = {"free_bytes": 10**12, "free_inodes": 10**9, "file_system": "ext4"}
SOUND = Machine(
    programs={name: f"/usr/bin/{name}" for name in PROGRAMS},
    runtime=Runtime(path="/usr/bin/apptainer", version="1.4.5"),
    store=Directory(path="/store", **ROOM),
    temporary=Directory(path="/var/tmp", **ROOM),
    variables={"PATH": "/usr/local/bin:/usr/bin"},
)
