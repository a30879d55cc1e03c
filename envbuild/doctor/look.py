"""Look at this machine; nothing is changed, and nothing but a try-out file of ours is written."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import locale
import os
import re
import secrets
import stat
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from envbuild.doctor.model import Directory, Machine, Runtime
from envbuild.errors import EnvbuildError, MachineError
from envbuild.system import apptainer, clock, host, process, squashfs, tools
from envbuild.system.apptainer_conf import configuration
from envbuild.system.survey import Survey

_PROGRAMS = (
    "mksquashfs",
    "unsquashfs",
    "mmdebstrap",
    "apt-get",
    "gpgv",
    "ldd",
    "unshare",
    "newuidmap",
    "newgidmap",
    "squashfuse",
    "squashfuse_ll",
    "srun",
)
# What does the same: apt takes any of them.
_ALSO = {"gpgv": ("gpgv2", "gpgv1", "sqv")}
# Where Apptainer keeps tools of its own, seen from its prefix.
_OWN_TOOLS = ("libexec/apptainer/bin", "lib/apptainer/bin")
_TRY_S = 20.0


def look(*, store: Path, named: Path | None, survey: Survey | None = None) -> Machine:
    """Return what this machine is like; addresses and configuration are added by who knows them.

    Parameters
    ----------
    store : Path
        The store that would be used.
    named : Path or None
        The Apptainer that was named.
    survey : Survey, optional
        The machine to look at: its files, programs and variables; this one if absent.
    """
    machine = survey or Survey()
    runtime = _runtime(named, machine)
    programs, broken = _programs(runtime, machine)
    user = host.user()
    return Machine(
        user=user,
        root=host.is_root(),
        debian="debian" in machine.text("/etc/os-release").lower(),
        architecture=machine.architecture,
        programs=programs,
        broken=broken,
        mksquashfs=squashfs.release(machine.says(programs["mksquashfs"] or None, "-version")),
        runtime=runtime,
        store=directory(store, machine),
        temporary=directory(_temporary(machine.variables), machine),
        user_namespaces=_may_unshare(programs["unshare"]),
        subordinate_ids=min(
            _subordinate(machine.text(f"/etc/{name}"), user) for name in ("subuid", "subgid")
        ),
        fuse=os.access(machine.path("/dev/fuse"), os.R_OK | os.W_OK),
        module_system=_module_system(machine.variables),
        slurm="SLURM_JOB_ID" in machine.variables or machine.exists("/etc/slurm/slurm.conf"),
        variables=machine.variables,
        encoding=sys.getfilesystemencoding() if survey is None else _encoding(machine.variables),
        locale_works=_locale_works(machine.variables),
        year=int(clock.now()[:4]),
    )


def directory(path: Path, machine: Survey) -> Directory:
    """Return what a directory is like; of one that is not there what it would be made in."""
    there = path
    while not os.path.lexists(there) and there != there.parent:
        there = there.parent
    # A link that leads nowhere, as to a file system that is not mounted, is in the way of what would be made.
    in_the_way = not there.exists()
    while not there.exists():
        there = there.parent
    status = os.statvfs(there)
    writable = not in_the_way and os.access(there, os.W_OK | os.X_OK) and there.is_dir()
    kind, options = _mount(there, machine.text("/proc/mounts"))
    links, locks, attributes = _try_out(there) if writable else (True, True, True)
    return Directory(
        path=str(path),
        writable=writable,
        file_system=kind,
        no_exec=bool(status.f_flag & os.ST_NOEXEC) or "noexec" in options,
        free_bytes=status.f_bavail * status.f_frsize,
        # File systems that make inodes as they go tell of none.
        free_inodes=status.f_favail if status.f_files else -1,
        passable=_passable(there),
        hard_links=links,
        locks=locks,
        attributes=attributes,
    )


def _runtime(named: Path | None, machine: Survey) -> Runtime:
    path = str(
        named
        or machine.variables.get("ENVBUILD_APPTAINER")
        or machine.program("apptainer")
        or machine.program("singularity")
        or ""
    )
    try:
        found = apptainer.find(named)
    except apptainer.OldApptainerError as error:
        return Runtime(path=path, version=error.version, oldest=error.oldest)
    except MachineError:
        return Runtime(path=path)
    except EnvbuildError:
        return Runtime()
    conf = configuration(found.buildcfg(), machine)
    return Runtime(path=str(found.program), version=found.version, setuid=conf.starter)


def _programs(runtime: Runtime, machine: Survey) -> tuple[dict[str, str], dict[str, str]]:
    """Return the programs that are here and start, and those that do not, each with its path."""
    found = {}
    for name in _PROGRAMS:
        paths = map(machine.program, (name, *_ALSO.get(name, ())))
        found[name] = next((path for path in paths if path), "")
    found |= {name: path for name, path in _beside(runtime, machine).items() if not found[name]}
    broken = {name: path for name, path in found.items() if path and not machine.starts(path)}
    with contextlib.suppress(EnvbuildError):
        # It came with envbuild, whichever machine is looked at.
        found["uv"] = str(tools.locate("uv"))
        if not Survey().starts(found["uv"]):
            broken["uv"] = found["uv"]
    return {name: "" if name in broken else path for name, path in found.items()}, broken


def _beside(runtime: Runtime, machine: Survey) -> dict[str, str]:
    prefix = Path(os.path.realpath(runtime.path)).parents[1] if runtime.path.count("/") > 2 else None
    names = ("squashfuse", "squashfuse_ll")
    found = {}
    for name in names if prefix is not None else ():
        for own in _OWN_TOOLS:
            path = f"{prefix}/{own}/{name}"
            if machine.is_program(path):
                found[name] = path
    return found


def _temporary(variables: Mapping[str, str]) -> Path:
    named = variables.get("ENVBUILD_TMPDIR") or variables.get("TMPDIR")
    return Path(named) if named else Path("/var/tmp")  # noqa: S108  # where builds work


def _may_unshare(program: str) -> bool:
    if not program:
        return True  # `program.unshare` tells of it, and nothing else is known
    done = process.run(
        [program, "--user", "--map-root-user", "true"], env=host.environment(), timeout_s=_TRY_S
    )
    return done.ok


def _subordinate(text: str, user: str) -> int:
    ids = {user, str(os.geteuid())}
    rows = (line.split(":") for line in text.splitlines())
    return sum(int(row[2]) for row in rows if len(row) == 3 and row[0] in ids and row[2].isdigit())


def _module_system(variables: Mapping[str, str]) -> str:
    if variables.get("LMOD_CMD") or variables.get("LMOD_VERSION"):
        return "lmod"
    return "tmod" if variables.get("MODULESHOME") or variables.get("MODULES_CMD") else ""


def _encoding(variables: Mapping[str, str]) -> str:
    chosen = variables.get("LC_ALL") or variables.get("LC_CTYPE") or variables.get("LANG") or "C"
    # Python takes UTF-8 where nothing was chosen (PEP 538, 540).
    return chosen.partition(".")[2].partition("@")[0].lower() or (
        "utf-8" if chosen in ("C", "POSIX") else chosen
    )


def _locale_works(variables: Mapping[str, str]) -> bool:
    chosen = variables.get("LC_ALL") or variables.get("LANG")
    if not chosen:
        return True
    before = locale.setlocale(locale.LC_CTYPE)
    try:
        locale.setlocale(locale.LC_CTYPE, chosen)
    except locale.Error:
        return False
    finally:
        locale.setlocale(locale.LC_CTYPE, before)
    return True


def _mount(path: Path, mounts: str) -> tuple[str, tuple[str, ...]]:
    """Return type and options of the file system that a path is on; the last of two mounts counts."""
    real = os.path.realpath(path)
    best: tuple[int, str, tuple[str, ...]] = (0, "", ())
    for line in mounts.splitlines():
        fields = line.split(" ")
        if len(fields) < 4:
            continue
        point = re.sub(r"\\([0-7]{3})", lambda octal: chr(int(octal[1], 8)), fields[1])
        inside = real == point or real.startswith(point.rstrip("/") + "/")
        if inside and len(point) >= best[0]:
            best = (len(point), fields[2], tuple(fields[3].split(",")))
    return best[1], best[2]


def _passable(path: Path) -> bool:
    try:
        real = path.absolute()
        return all(place.stat().st_mode & stat.S_IXOTH for place in (real, *real.parents))
    except OSError:
        return False


def _try_out(path: Path) -> tuple[bool, bool, bool]:
    """Try hard links, locks and extended attributes with a file of ours, which is gone afterwards."""
    one = path / f".envbuild-doctor-{secrets.token_hex(8)}"
    two = one.with_name(one.name + "-link")
    try:
        descriptor = os.open(one, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except OSError:
        return True, True, True  # a full disk or a quota: told elsewhere
    try:
        links = _works(lambda: os.link(one, two), (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK))
        locks = _works(
            lambda: fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB),
            (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP),
        )
        attributes = _works(
            lambda: os.setxattr(descriptor, "user.envbuild", b"1"), (errno.EOPNOTSUPP, errno.ENOSYS)
        )
    finally:
        os.close(descriptor)
        one.unlink(missing_ok=True)
        two.unlink(missing_ok=True)
    return links, locks, attributes


def _works(attempt: Callable[[], object], refusals: tuple[int, ...]) -> bool:
    try:
        attempt()
    except OSError as error:
        return error.errno not in refusals
    return True
