"""Checks of a machine that yield its problems, in four groups: resolve, build, run and store.

They change nothing, and write only a lock file in the store, which is removed at once.
"""

from __future__ import annotations

import os
import re
import secrets
import stat
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from envbuild import events
from envbuild.doctor.model import Diagnostic
from envbuild.errors import EnvbuildError, MachineError
from envbuild.events import Emit, Note
from envbuild.resolve.index import unreachable_reason
from envbuild.resolve.origins import PythonSources, python_sources, read_machine
from envbuild.resolve.uv_errors import PYTORCH_HINT
from envbuild.spec.site import Site
from envbuild.store.store import Store
from envbuild.system import apptainer, host, locks, network, process, squashfs, tools
from envbuild.system.apptainer import configuration
from envbuild.system.configured import first_of
from envbuild.system.emulation import emulator_of
from envbuild.system.files import exists, free_bytes, free_inodes, is_directory, is_writable_directory
from envbuild.system.network import Client, NetworkError, RequestLimits
from envbuild.system.redaction import redact
from envbuild.system.space import NEEDED_TEMPORARY_BYTES, named_directories
from envbuild.system.survey import Survey

SUBORDINATE_IDS = 65_536
# A build of the example needs 6 GB for temporary files and 3 GB in the store (measured).
NEEDED_STORE_BYTES = 5_000_000_000
NEEDED_INODES = 200_000

# These read archives and indexes; a build from a lock does not.
_RESOLVE = ("add", "remove", "lock", "fetch", "plan")
# These read Python's indexes.
_INDEX = (*_RESOLVE, "extend")
_BUILD = ("build", "reproduce")
_LOCK = (*_RESOLVE, *_BUILD)
_RUN = ("test", "bench", "vet", "launch", "exec", "shell", "kernel", "module")
_STORE = ("fetch", "build", "layer")
# These read the site file of the user or the machine, even if none was named.
_SITE = ("init", *_INDEX, "build", *_RUN, "layer", "site")

_ADMINISTRATOR = "an administrator"
_IMPORT = "; or import layers that were built elsewhere, with `envbuild layer import`"
_ADDRESSES = ("http://", "https://", "file:")
_PYTORCH = "pytorch-cpu"
_LIMITS = RequestLimits(connect_s=5.0, read_s=10.0)
_UNSHARE_S = 20.0
# Directories of Apptainer's own tools, below its prefix.
_APPTAINER_TOOLS = ("libexec/apptainer/bin", "lib/apptainer/bin", "libexec/singularity/bin")

# Alternative programs; their Debian package; the verbs that need one of them; why.
_PROGRAMS = (
    (
        ("mksquashfs",),
        "squashfs-tools",
        (*_LOCK, "export"),
        "bases and layers of Debian packages are packed by it, and a lock names it",
    ),
    (
        ("unsquashfs",),
        "squashfs-tools",
        (*_BUILD, "export"),
        "bases are unpacked and images exported with it",
    ),
    (
        ("mmdebstrap",),
        "mmdebstrap",
        _LOCK,
        "it makes the roots of Debian bases, and a lock names it; a base that is a finished root needs none",
    ),
    (
        ("apt-get",),
        "apt",
        _LOCK,
        "it resolves Debian packages, and mmdebstrap installs them with it; a finished root needs none",
    ),
    (("gpgv", "gpgv2", "gpgv1", "sqv"), "gpgv", _RESOLVE, "apt checks the signatures of archives with it"),
    (("ldd",), "libc-bin", _LOCK, "it shows which compression library mksquashfs loads"),
    (("unshare",), "util-linux", _BUILD, "mmdebstrap works in a user namespace"),
)
_ID_MAPPERS = ("newuidmap", "newgidmap")

# Of Lmod and Environment Modules, as packages of distributions install them.
_MODULE_STARTS = (
    *("/etc/profile.d/lmod.sh", "/etc/profile.d/z00_lmod.sh", "/etc/profile.d/modules.sh"),
    *("/usr/share/lmod/lmod/init/profile", "/usr/share/modules/init/sh", "/usr/share/Modules/init/sh"),
)
_MODULE_WHY = "`module load` needs one of them; wrappers in `envs/NAME/VERSION/bin` do not"

_VARIABLES = {
    "LD_LIBRARY_PATH": "envbuild's tools may load libraries from there, and images those that they lack",
    "LD_PRELOAD": "every program loads it, in images, too",
    "PYTHONPATH": "envbuild itself would import modules from there",
    "PYTHONHOME": "envbuild's own Python would look for its library there",
}
_IMAGE_VARIABLES = ("LD_LIBRARY_PATH", "LD_PRELOAD", "PATH", "PYTHONPATH")


def check_emulation(architecture: str) -> Iterator[Diagnostic]:
    """Yield why programs for a processor cannot start on this machine."""
    try:
        emulator_of(architecture)
    except MachineError as error:
        yield Diagnostic(
            f"emulation.{architecture}",
            "warning",
            ("build", "test"),
            error.problem,
            "scripts of Debian packages, builds from source and `--emulate` start them",
            f"{error.hint}{_IMPORT}",
            _ADMINISTRATOR,
        )


def check_machine(survey: Survey, store: Store, chosen: Path | None = None) -> Iterator[Diagnostic]:
    """Yield the problems of a machine, except those of its package sources; the user names `chosen`."""
    yield from check_run(survey, chosen)
    yield from check_build(survey)
    yield from check_store(store)


def check_resolve(
    survey: Survey, site: Site | None, *, online: bool, emit: Emit = events.ignore
) -> Iterator[Diagnostic]:
    """Yield problems of package sources; if `online`, ask each address."""
    try:
        machine = read_machine(survey.variables, survey.path("/etc"))
    except EnvbuildError as error:
        yield from _from_errors("index.configuration", _INDEX, error, "it says where packages come from")
        return
    sources = python_sources(site, machine)
    # As written, since missing ones are silently ignored.
    links = [*(site.find_links if site is not None else ()), *machine.python.find_links]
    directories = [path.expanduser() for link in links if (path := network.local_path(link)) is not None]
    for path in directories:
        if not is_directory(path):
            yield Diagnostic(
                "index.find-links",
                "warning",
                _INDEX,
                f"there is no directory `{path}`, and pip's or uv's configuration names it (find-links)",
                "wheels that only it has are not found",
                "make it reachable, or take it out of the configuration (`pip config list` shows it)",
            )
    if sources.no_index and not any(map(is_directory, directories)):
        yield Diagnostic(
            "index.none",
            "error",
            _INDEX,
            "the configuration forbids any Python index (no-index), and names no directory with wheels",
            "there is nowhere to take wheels from",
            "`find-links` in pip's configuration, or `origins` in the site file",
        )
    if not machine.apt:
        yield Diagnostic(
            "index.no-debian",
            "warning",
            _RESOLVE,
            "apt has no source on this machine",
            "Debian packages come from apt's sources, unless the site file names archives",
            "name `debian:SUITE` under `origins` in the site file, or an entry in /etc/apt/sources.list.d",
            _root(),
        )
    if online:
        for origin, addresses in {"pypi": sources.indexes, **sources.named}.items():
            yield from _unreachable(origin, addresses, _INDEX, emit)
        archives = [uri for source in machine.apt for uri in source.uris if uri.startswith(_ADDRESSES)]
        yield from _unreachable("apt's sources", archives, _RESOLVE, emit)
        yield from _ask_uv(sources, emit)


def check_site(error: EnvbuildError, *, named: bool) -> Iterator[Diagnostic]:
    """Yield the errors of a site file; `named` if the command line or the environment named it."""
    why = "it describes the machine, and where packages come from"
    yield from _from_errors("site.configuration", (*_SITE, "check") if named else _SITE, error, why)


def check_supplies(site: Site, emit: Emit) -> Iterator[Diagnostic]:
    """Show the software that a site supplies, and yield each entry with paths that are absent here."""
    for recipe, supply in sorted(site.supplies.items()):
        version = f" {supply.version}" if supply.version else ""
        paths = (*supply.libraries, *supply.python, *supply.commands, *supply.companions)
        emit(
            Note(text=f"the site `{site.name}` supplies {recipe}{version}: {', '.join(paths) or 'no paths'}")
        )
        if absent := [path for path in paths if not exists(Path(path))]:
            yield Diagnostic(
                "site.supplies",
                "warning",
                _RUN,
                f"`supplies.{recipe}` of the site `{site.name}`: absent are {', '.join(absent)}",
                f"images that take {recipe} from the site do not start here",
                "correct the paths in the site file, or run on a node that has them",
            )


def _unreachable(
    origin: str, addresses: Sequence[str], verbs: tuple[str, ...], emit: Emit
) -> Iterator[Diagnostic]:
    """Ask each address once; any answer, even a refusal, means that it can be reached."""
    with Client(_LIMITS) as client:
        for address in dict.fromkeys(addresses):
            emit(Note(text=f"{origin}: asking {redact(address)}", detail=True))
            problem = ""
            if (path := network.local_path(address)) is not None:
                problem = "" if is_directory(path) else f"there is no directory `{path}`"
            else:
                try:
                    client.status(address)
                except NetworkError as error:
                    problem = error.problem
            if problem:
                yield Diagnostic(
                    "index.unreachable",
                    "error",
                    verbs,
                    problem,
                    f"packages of {origin} come from there",
                    "set https_proxy, name a mirror under `origins` in the site file, or work with"
                    " `fetch --to` elsewhere and `--offline --from` here",
                )


def _ask_uv(sources: PythonSources, emit: Emit) -> Iterator[Diagnostic]:
    """Ask the indexes that no configuration names, and whose addresses uv knows."""
    if sources.no_index:
        return
    if not sources.indexes:
        emit(Note(text="pypi: asking uv's own index, since none is configured", detail=True))
    if not sources.indexes and (reason := unreachable_reason("pip", sources)):
        yield Diagnostic(
            "index.unreachable",
            "error",
            _INDEX,
            f"no index is configured, and uv's own cannot be reached: {reason}",
            "Python packages come from there",
            "`pip config set global.index-url ADDRESS` names an index; https_proxy names a proxy",
        )
    own = any(path.glob("torch-*.whl") for path in sources.local_directories())
    if own or _PYTORCH in sources.named:
        return
    emit(Note(text=f"{_PYTORCH}: asking PyTorch's own index, since none is configured", detail=True))
    if reason := unreachable_reason("torch", sources, backend="cpu"):
        yield Diagnostic(
            "index.pytorch",
            "warning",
            _INDEX,
            f"no index is configured for `{_PYTORCH}`, and PyTorch's own cannot be reached: {reason}",
            "wheels of PyTorch for CPUs come from there",
            PYTORCH_HINT.format(origin=_PYTORCH),
        )


def check_build(survey: Survey) -> Iterator[Diagnostic]:
    """Yield problems that prevent or restrict building layers."""
    for names, package, verbs, why in _PROGRAMS:
        yield from _check_program(survey, names, package, verbs, why)
    release = squashfs.release(survey.output_of(survey.program("mksquashfs"), "-version"))
    if squashfs.corrupts(release):
        yield Diagnostic(
            "program.mksquashfs-corrupts",
            "error",
            _BUILD,
            f"squashfs-tools {'.'.join(map(str, release))} corrupts sparse files",
            "bases and layers of Debian packages are packed by mksquashfs",
            "install squashfs-tools 4.7.6 or newer, or 4.6",
            _root(),
        )
    yield from _check_uv()
    if not host.is_root():
        for name in _ID_MAPPERS:
            why = "it maps subordinate ids into a user namespace"
            yield from _check_program(survey, (name,), "uidmap", _BUILD, why)
        user = host.user()
        count = min(_subordinate_ids(survey.text(f"/etc/{name}"), user) for name in ("subuid", "subgid"))
        if count < SUBORDINATE_IDS:
            yield Diagnostic(
                "user-namespaces.subordinate-ids",
                "error",
                _BUILD,
                f"`{user}` has {count} subordinate ids, of {SUBORDINATE_IDS}",
                "the users and groups of a Debian root are mapped to them",
                f"`usermod --add-subuids 100000-165535 --add-subgids 100000-165535 {user}`, with a"
                f" range that no other user has{_IMPORT}",
                _ADMINISTRATOR,
            )
    if survey.architecture not in ("amd64", "arm64"):
        yield Diagnostic(
            "machine.architecture",
            "error",
            _LOCK,
            f"this machine is {survey.architecture}",
            "bases and wheels are for amd64 and arm64",
            "build on a machine of one of these",
        )
    yield from _check_temporary(survey)


def _check_program(
    survey: Survey, names: Sequence[str], package: str, verbs: tuple[str, ...], why: str
) -> Iterator[Diagnostic]:
    path = next(filter(None, map(survey.program, names)), None)
    if path is None:
        problem = f"`{names[0]}` is not on this machine"
        fix = f"install {package}{_setup(survey)}"
        yield Diagnostic(f"program.{names[0]}", "error", verbs, problem, why, fix, _root())
    elif not survey.can_start(path):
        # The first one on PATH is used, as everywhere.
        fix = f"take it out of PATH, or replace it by a program for this machine; or install {package}"
        yield Diagnostic(f"program.{names[0]}", "error", verbs, f"`{path}` cannot be started", why, fix)


def _check_uv() -> Iterator[Diagnostic]:
    problem, force = "`uv` is not on this machine, and did not come with envbuild", ""
    fix = f"`python3 -m pip install{{}} 'uv=={tools.UV_RELEASE}.*'` in envbuild's environment"
    with suppress(EnvbuildError):
        path, survey = str(tools.locate("uv")), Survey()
        if survey.can_start(path):
            release = re.match(r"uv (\d+\.\d+)\.", survey.output_of(path, "--version"))
            if release is not None and release[1] != tools.UV_RELEASE:
                problem = f"`{path}` is uv {release[1]}, whose messages envbuild does not understand"
                why = "errors of packages show neither their place nor what to do"
                yield Diagnostic("program.uv-release", "warning", _LOCK, problem, why, fix.format(""))
            return
        problem, force = f"`{path}` cannot be started", " --force-reinstall"
    why = "it resolves and installs Python packages"
    yield Diagnostic("program.uv", "error", _LOCK, problem, why, fix.format(force))


def _subordinate_ids(text: str, user: str) -> int:
    """Return how many ids a user, named by name or number, has in /etc/subuid or /etc/subgid."""
    ids = {user, str(os.geteuid())}
    rows = (line.split(":") for line in text.splitlines())
    return sum(int(row[2]) for row in rows if len(row) == 3 and row[0] in ids and row[2].isdigit())


def _check_temporary(survey: Survey) -> Iterator[Diagnostic]:
    named = next(iter(named_directories(survey.variables)), None)
    origin = named.origin if named is not None else ""
    path = Path(named.value if named is not None else "/var/tmp")  # noqa: S108  # where builds work
    elsewhere = "name a local directory with ENVBUILD_TMPDIR"
    if not is_writable_directory(path):
        suffix = f", which {origin} names," if origin else ""
        is_replaced = origin == "TMPDIR"
        yield Diagnostic(
            "tmp.read-only",
            "warning" if is_replaced else "error",
            _BUILD,
            f"`{path}`{suffix} is not a directory that you can write to",
            "builds take /var/tmp or /tmp instead" if is_replaced else "builds work there",
            elsewhere,
        )
        return
    if not host.is_root() and not _others_pass(path):
        yield Diagnostic(
            "tmp.not-passable",
            "warning",
            _BUILD,
            f"other users' processes cannot pass through `{path}`",
            "a build works under subordinate ids, and takes /var/tmp or /tmp instead",
            f"{elsewhere}, all of whose parents have mode 0711 or more",
        )
    if os.statvfs(path).f_flag & os.ST_NOEXEC:
        problem = f"nothing can be started below `{path}` (noexec)"
        yield Diagnostic(
            "tmp.no-exec", "error", _BUILD, problem, "packages' own scripts run there", elsewhere
        )
    yield from _check_space("tmp.space", path, NEEDED_TEMPORARY_BYTES, elsewhere, _BUILD)


def check_run(survey: Survey, chosen: Path | None) -> Iterator[Diagnostic]:
    """Yield problems that prevent or restrict starting images, as builds do, too."""
    setuid, prefix, verbs = False, None, (*_BUILD, *_RUN)
    try:
        runtime = apptainer.find(chosen)
        setuid = configuration(runtime.buildcfg(), survey).starter
        prefix = Path(os.path.realpath(runtime.program)).parent.parent
    except EnvbuildError as error:
        is_old = isinstance(error, apptainer.OldApptainerError)
        is_named = first_of("apptainer", "--apptainer", chosen, variables=survey.variables)
        is_there = is_named or any(map(survey.program, ("apptainer", "singularity")))
        yield Diagnostic(
            f"apptainer.{'too-old' if is_old else 'broken' if is_there else 'missing'}",
            "error",
            verbs,
            error.problem,
            "images are built, tested and started with it",
            f"install Apptainer 1.1 or newer{_setup(survey)}, or name one with --apptainer PATH",
            _root(),
        )
    if not host.is_root() and not _may_unshare(survey):
        starter = "; or install Apptainer with its set-user-id starter"
        still = "; images still start by Apptainer's set-user-id starter"
        yield Diagnostic(
            "user-namespaces.forbidden",
            "error",
            _BUILD if setuid else verbs,
            "this user may not make a user namespace",
            f"roots are made in one{still if setuid else ', and images start in one'}",
            "`sysctl -w user.max_user_namespaces=15000`, and `kernel.unprivileged_userns_clone=1` and"
            " `kernel.apparmor_restrict_unprivileged_userns=0` if the kernel has them"
            f"{'' if setuid else starter}{_IMPORT}",
            _ADMINISTRATOR,
        )
    if not setuid:
        yield from _check_fuse(survey, prefix, verbs)
    yield from _check_surroundings(survey)


def _check_fuse(survey: Survey, prefix: Path | None, verbs: tuple[str, ...]) -> Iterator[Diagnostic]:
    why = "without its set-user-id starter, Apptainer mounts images through FUSE"
    if not os.access(survey.path("/dev/fuse"), os.R_OK | os.W_OK):
        fix = f"`modprobe fuse && chmod 0666 /dev/fuse`{_setup(survey)}"
        problem = "/dev/fuse cannot be used by this user"
        yield Diagnostic("fuse.device", "error", verbs, problem, why, fix, _ADMINISTRATOR)
    names = ("squashfuse_ll", "squashfuse")
    directories = [f"{prefix}/{directory}" for directory in _APPTAINER_TOOLS if prefix is not None]
    paths = [*map(survey.program, names), *(f"{parent}/{name}" for parent in directories for name in names)]
    if not any(path and survey.is_program(path) and survey.can_start(path) for path in paths):
        fix = f"install squashfuse{_setup(survey)}"
        problem = "there is no squashfuse, on PATH or beside Apptainer"
        yield Diagnostic("program.squashfuse", "error", verbs, problem, why, fix, _root())


def _may_unshare(survey: Survey) -> bool:
    program = survey.program("unshare")
    if program is None or not survey.can_start(program):
        return True  # unknown; a missing program is reported already
    argv: list[Path | str] = [survey.path(program), "--user", "--map-root-user", "true"]
    return process.run(argv, env=host.environment(), timeout_s=_UNSHARE_S).ok


def _check_surroundings(survey: Survey) -> Iterator[Diagnostic]:
    variables = survey.variables
    start = next(filter(survey.exists, _MODULE_STARTS), None)
    if survey.module_system() is None and start is not None:
        yield Diagnostic(
            "module-system.not-started",
            "warning",
            ("module",),
            f"neither Lmod nor Environment Modules is set up in this shell, but `{start}` exists",
            _MODULE_WHY,
            f"`. {start}`, or a login shell (`bash -l`)",
        )
    elif survey.module_system() is None:
        yield Diagnostic(
            "module-system.missing",
            "warning",
            ("module",),
            "there is neither Lmod nor Environment Modules in this shell",
            _MODULE_WHY,
            f"install lmod or environment-modules{_setup(survey)}",
            _root(),
        )
    in_cluster = "SLURM_JOB_ID" in variables or survey.exists("/etc/slurm/slurm.conf")
    if in_cluster and not survey.program("srun"):
        yield Diagnostic(
            "slurm.no-srun",
            "warning",
            ("test", "launch"),
            "this machine belongs to a Slurm cluster, and there is no `srun` on PATH",
            "it starts ranks on several nodes",
            "`module load slurm`, or a login or compute node",
        )
    for variable in _IMAGE_VARIABLES:
        for name in (f"APPTAINERENV_{variable}", f"SINGULARITYENV_{variable}"):
            if variables.get(name):
                why = f"it replaces an image's {variable}: its own MPI or Python is not found"
                yield Diagnostic(
                    f"variable.{name}", "warning", _RUN, f"{name} is set", why, f"`unset {name}`"
                )
    for name, why in _VARIABLES.items():
        if variables.get(name):
            fix, verbs = f"`unset {name}`, or `module purge`", (*_BUILD, *_RUN)
            yield Diagnostic(f"variable.{name}", "warning", verbs, f"{name} is set", why, fix)


def check_store(store: Store) -> Iterator[Diagnostic]:
    """Yield problems that prevent or restrict using a store."""
    elsewhere = "name another with --store DIR or ENVBUILD_STORE"
    try:
        store.check()
    except EnvbuildError as error:
        why = "a user who can write to a store decides what images hold"
        yield from _from_errors("store.refused", (*_STORE, "cache"), error, why)
        return
    if not _is_writable(store.path):
        yield Diagnostic(
            "store.read-only",
            "error",
            _STORE,
            f"the store `{store.path}` cannot be written",
            "it keeps layers and files; without it only images of existing layers can be composed",
            elsewhere,
        )
        return
    fix = f"`envbuild cache prune`, or {elsewhere}"
    yield from _check_space("store.space", store.path, NEEDED_STORE_BYTES, fix, _STORE)
    if not _has_locks(_existing(store.path)):
        yield Diagnostic(
            "store.locks",
            "warning",
            ("lock", "build", "cache"),
            f"the file system of the store `{store.path}` has no locks",
            "runs do not wait for one another, and `cache prune` may remove what a build uses",
            f"{elsewhere}; on Lustre an administrator mounts it with `-o flock`",
        )


def _existing(path: Path) -> Path:
    """Return the existing directory in which the rest of a path would be made."""
    return next(directory for directory in (path, *path.absolute().parents) if exists(directory))


def _is_writable(path: Path) -> bool:
    directory = _existing(path)
    # A broken link, such as to a file system that is not mounted, blocks the path.
    blocked = any(parent.is_symlink() and not parent.exists() for parent in (path, *path.absolute().parents))
    return not blocked and directory.is_dir() and os.access(directory, os.W_OK | os.X_OK)


def _others_pass(path: Path) -> bool:
    """Return whether processes of other users can pass through a directory."""
    try:
        return all(directory.stat().st_mode & stat.S_IXOTH for directory in (path, *path.absolute().parents))
    except OSError:
        return False


def _has_locks(directory: Path) -> bool:
    path = directory / f".envbuild-doctor-{secrets.token_hex(8)}"
    try:
        file = locks.open_lock(path)
    except OSError:
        return True  # a full disk or a quota, which is reported separately
    try:
        return locks.try_lock(file, shared=False) is not None
    finally:
        os.close(file)
        path.unlink(missing_ok=True)


def _check_space(
    id: str,  # noqa: A002  # the field's name
    path: Path,
    needed_bytes: int,
    fix: str,
    verbs: tuple[str, ...],
) -> Iterator[Diagnostic]:
    size_bytes, inodes = free_bytes(_existing(path)), free_inodes(_existing(path))
    free = f"{size_bytes / 1e9:.1f} GB are free, of {needed_bytes / 1e9:.0f} GB"
    if size_bytes >= needed_bytes:
        if inodes is None or inodes >= NEEDED_INODES:
            return
        free = f"{inodes} files can still be made, of {NEEDED_INODES}"
    problem = f"in `{path}` {free} that an image with a framework takes"
    why = "a build that finds the disk full ends, and resumes once there is room"
    yield Diagnostic(id, "warning", verbs, problem, why, fix)


def _from_errors(
    id: str,  # noqa: A002  # the field's name
    verbs: tuple[str, ...],
    error: EnvbuildError,
    why: str,
) -> Iterator[Diagnostic]:
    """Yield a blocking problem for each error in a group."""
    for single in error.each():
        problem = f"{single.problem} ({single.at})" if single.at else single.problem
        yield Diagnostic(id, "error", verbs, problem, why, single.hint)


def _root() -> str:
    """Return who can do what needs root."""
    return "you" if host.is_root() else _ADMINISTRATOR


def _setup(survey: Survey) -> str:
    return " (`make setup` does it)" if "debian" in survey.text("/etc/os-release").lower() else ""
