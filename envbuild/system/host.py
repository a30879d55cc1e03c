"""Facts of this host, read from its environment and files."""

from __future__ import annotations

import grp
import os
import platform
import pwd
import resource
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from envbuild.errors import MachineError

# Proxies and CA bundles, which a child needs to reach the network.
NETWORK_VARIABLES = (
    *("http_proxy", "https_proxy", "no_proxy", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY"),
    *("SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"),
)

_MOST_NAMESPACES = Path("/proc/sys/user/max_user_namespaces")
_SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def environment(*, network: bool = False, extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return a small, fixed environment for a child process; `extra` variables override it.

    `network` adds proxy and CA settings, HOME (for netrc) and the user's configuration directory.
    """
    result = {
        # The user's PATH comes first, for tools installed there; the
        # system directories follow because cron and CI often lack /usr/sbin.
        "PATH": f"{os.environ.get('PATH', '')}:{_SYSTEM_PATH}".lstrip(":"),
        "LC_ALL": "C.UTF-8",
        "TZ": "UTC",
        "HOME": os.environ.get("HOME", "/nonexistent"),
    }
    if network:
        names = (*NETWORK_VARIABLES, "XDG_CONFIG_HOME", "NETRC")
        result.update({name: os.environ[name] for name in names if name in os.environ})
    result.update(extra or {})
    return result


def find_program(name: str, *, hint: str | None = None) -> Path:
    """Return the path of a program; MachineError if it is not on this machine."""
    path = search_path(name)
    if path is None:
        raise MachineError(
            f"`{name}` is not on this machine",
            hint=hint or "`make setup` installs what envbuild needs",
        )
    return Path(path)


def search_path(
    name: str, *, variables: Mapping[str, str] | None = None, root: Path = Path("/")
) -> str | None:
    """Return the absolute path of a program on PATH, or in a system directory, of a file system at `root`.

    `variables` default to our environment; the returned path is within `root`.
    """
    searched = (os.environ if variables is None else variables).get("PATH", "")
    for directory in f"{searched}:{_SYSTEM_PATH}".split(":"):
        path = f"{directory.rstrip('/')}/{name}"
        if directory.startswith("/") and is_program(root / path.lstrip("/")):
            return path
    return None


def is_program(path: Path) -> bool:
    """Return whether there is a file that may be started."""
    # In a directory that we may not enter, `Path.is_file` would raise.
    return os.path.isfile(path) and os.access(path, os.X_OK)  # noqa: PTH113


def architecture() -> str:
    """Return this machine's architecture in Debian's words (``amd64``, ``arm64``)."""
    machine = platform.machine()
    return {"x86_64": "amd64", "aarch64": "arm64"}.get(machine, machine)


def name() -> str:
    """Return this machine's network name."""
    return platform.node()


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits of this process, which its children inherit; None for none."""

    locked_bytes: int | None
    """Memory that it may lock."""
    open_files: int | None
    """Files that it may open, at most (the hard limit)."""


def limits() -> Limits:
    """Return the limits of this process (getrlimit(2))."""
    locked, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    _, files = resource.getrlimit(resource.RLIMIT_NOFILE)
    return Limits(
        locked_bytes=None if locked == resource.RLIM_INFINITY else locked,
        open_files=None if files == resource.RLIM_INFINITY else files,
    )


def has_rdma() -> bool:
    """Return whether this machine has an adapter that sends locked memory: InfiniBand, RoCE or Slingshot."""
    return any(any(Path(devices).glob("*")) for devices in ("/sys/class/infiniband", "/sys/class/cxi"))


def cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0))


def may_have_user_namespaces() -> bool:
    """Return whether this host's kernel allows user namespaces (user_namespaces(7), namespaces(7))."""
    try:
        return _MOST_NAMESPACES.read_text().strip() != "0"
    except OSError:
        return True  # a kernel before 4.9 counts none


def is_root() -> bool:
    """Return whether this process runs as root."""
    return os.geteuid() == 0


def user_id(account: str) -> int | None:
    """Return the user id of an account, a login name or a number; None if there is no such account."""
    if account.isdecimal():
        return int(account)
    try:
        return pwd.getpwnam(account).pw_uid
    except KeyError:
        return None


def group(gid: int) -> str:
    """Return the name of a group; the number if it has none."""
    try:
        return grp.getgrgid(gid).gr_name
    except KeyError:
        return str(gid)


def user(uid: int | None = None) -> str:
    """Return the login name of a user, this process's if absent; the number if there is none."""
    uid = os.geteuid() if uid is None else uid
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)
