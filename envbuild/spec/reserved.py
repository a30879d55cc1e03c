"""Places and variables that specs, recipes and `extend` leave alone, in one table for all three."""

from __future__ import annotations

from dataclasses import dataclass

from envbuild.spec.model import Prepend

OWNED = "another layer owns it: choose a place outside of it"
_LINKED = "it is a symbolic link to the directory of that name under /usr; name that one"
_METADATA = "the image keeps its metadata there: choose another place"
_LOADER = "it decides which libraries every program loads: choose another place"
_HIDDEN = "the runtime mounts its own there: choose another place"

# Directory or file → why. In the images that envbuild builds, and in all images.
_OF_OURS = {
    **dict.fromkeys(("/opt/env", "/opt/mpi", "/opt/fabric", "/opt/accel"), OWNED),
    # Other runtimes, for which other images may be made, leave some of these as they are.
    **dict.fromkeys(("/tmp", "/var/tmp", "/home", "/run"), _HIDDEN),  # noqa: S108
    **dict.fromkeys(("/etc/passwd", "/etc/group", "/etc/hosts", "/etc/resolv.conf"), _HIDDEN),
    "/etc/localtime": _HIDDEN,
    **dict.fromkeys(("/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32"), _LINKED),
}
_OF_ALL = {
    **dict.fromkeys(("/.envbuild", "/.singularity.d", "/ch", "/environment", "/singularity"), _METADATA),
    "/etc/environment": _METADATA,
    **dict.fromkeys(("/etc/ld.so.preload", "/etc/ld.so.conf", "/etc/ld.so.conf.d"), _LOADER),
    "/etc/ld.so.cache": _LOADER,
    **dict.fromkeys(("/proc", "/sys", "/dev"), _HIDDEN),
}
DECISIVE = tuple(tree for tree, why in _OF_ALL.items() if why in (_METADATA, _LOADER))
"""Trees whose content decides how an image starts; a link of an image may lead them elsewhere."""

# Setting one of these as a whole would hide the image's own programs and libraries.
_SEARCH_PATHS = ("PATH", "LD_LIBRARY_PATH", "PYTHONPATH")


@dataclass(frozen=True, slots=True)
class Reserved:
    """A reserved tree."""

    tree: str
    """The path of its directory or file."""
    why: str
    """The reason, and what to do instead."""


def reserved_at(path: str, *, ours: bool = True) -> Reserved | None:
    """Return the reserved tree that a path is in, or would replace as its parent; None for any other path.

    `ours`: envbuild builds the image, and the trees of its own layers are reserved, too.
    """
    for tree, why in {**_OF_ALL, **(_OF_OURS if ours else {})}.items():
        if path == tree or path.startswith(tree + "/") or tree.startswith(path + "/"):
            return Reserved(tree, why)
    return None


def search_path_problem(name: str, setting: str | Prepend) -> str:
    """Return why a search path cannot be set like this; empty for other variables and valid settings."""
    if name not in _SEARCH_PATHS:
        return ""
    if isinstance(setting, str):
        return f"`{name}` may not be set as a whole: the image's own programs would be lost"
    if not all(part.startswith("/") for part in setting.prepend.split(":")):
        return f"`{name}`: `{setting.prepend}` is not a list of absolute directories"
    return ""
