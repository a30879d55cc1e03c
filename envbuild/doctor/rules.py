"""What is wrong with a machine: one rule a finding. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from envbuild.doctor import places
from envbuild.doctor.model import Finding, Machine, Weight, yours
from envbuild.system.squashfs import corrupts

SUBORDINATE_IDS = 65_536
# Before this a machine's clock is wrong, whatever certificates say.
_FIRST_YEAR = 2026

RUN = ("test", "launch", "module")
# What asks archives and indexes; a build from a lock need not.
RESOLVE = ("lock", "fetch", "plan")
# A layer is made by the first as by the second.
MAKE = ("build", "reproduce")
_LOCK = (*RESOLVE, *MAKE)
_OF_TEXT = ("lock", *MAKE, "test", "launch")
# What reads the site file, whether it was named or is the user's or the machine's own.
_SITE = ("init", *RESOLVE, "build", *RUN, "layer", "site")
_ADMINISTRATOR = "an administrator"
_CARRIED = "; without, `envbuild layer import` takes layers that were finished elsewhere"

# Program → Debian package, verbs, and what it is for.
_PROGRAMS: dict[str, tuple[str, tuple[str, ...], str]] = {
    "mksquashfs": (
        "squashfs-tools",
        (*_LOCK, "export"),
        "every layer is a squashfs, and a lock names the tool",
    ),
    "unsquashfs": ("squashfs-tools", (*MAKE, "export"), "bases are unpacked and images exported with it"),
    "mmdebstrap": (
        "mmdebstrap",
        _LOCK,
        "it makes the roots of Debian bases, and a lock names it",
    ),
    "apt-get": ("apt", _LOCK, "it resolves Debian packages, and mmdebstrap installs them with it"),
    "gpgv": ("gpgv", RESOLVE, "apt checks with it who signed an archive"),
    "ldd": ("libc-bin", _LOCK, "it tells which compression library mksquashfs loads"),
    "unshare": ("util-linux", MAKE, "mmdebstrap works in a user namespace"),
}


def findings(machine: Machine) -> list[Finding]:
    """Return everything that is wrong, what blocks first, each in the order of the rules."""
    found = [
        *_runtime(machine),
        *_programs(machine),
        *_namespaces(machine),
        *_fuse(machine),
        *places.findings(machine),
        *_surroundings(machine),
        *_variables(machine),
        *_network(machine),
    ]
    return sorted(found, key=lambda finding: finding.weight != "blocks")


def blocked(found: Sequence[Finding], verb: str | None = None) -> list[str]:
    """Return the verbs that cannot work, of all or of one, sorted."""
    verbs = {name for finding in found if finding.weight == "blocks" for name in finding.verbs}
    return sorted(verbs if verb is None else verbs & {verb})


def concerning(found: Sequence[Finding], verb: str) -> list[Finding]:
    """Return the findings that concern a verb."""
    return [finding for finding in found if verb in finding.verbs]


def _runtime(machine: Machine) -> Iterator[Finding]:
    runtime = machine.runtime
    why = "images are built in it, tested in it and started by it"
    verbs = (*MAKE, *RUN)
    mend = f"install Apptainer 1.1 or newer{_setup(machine)}, or name one with --apptainer PATH"
    if not runtime.path:
        yield _finding("apptainer.missing", "blocks", verbs, "there is no Apptainer", why, mend, machine)
    elif not runtime.version:
        problem = f"`{runtime.path}` is not an Apptainer or SingularityCE that starts"
        yield _finding("apptainer.broken", "blocks", verbs, problem, why, mend, machine)
    elif runtime.oldest:
        problem = f"`{runtime.path}` is version {runtime.version}: {runtime.oldest} or newer is needed"
        yield _finding("apptainer.too-old", "blocks", verbs, problem, why, mend, machine)


def _programs(machine: Machine) -> Iterator[Finding]:
    for name, (package, verbs, why) in _PROGRAMS.items():
        if not machine.programs.get(name):
            yield _program(name, verbs, why, f"install {package}", machine)
    if corrupts(machine.mksquashfs):
        release = ".".join(map(str, machine.mksquashfs))
        problem = f"squashfs-tools {release} corrupts sparse files"
        mend = "install squashfs-tools 4.7.6 or newer, or 4.6"
        why = "every layer is packed by mksquashfs"
        yield _finding("program.mksquashfs-corrupts", "blocks", MAKE, problem, why, mend, machine)
    if not machine.programs.get("uv"):
        path = machine.broken.get("uv")
        again = " --force-reinstall" if path else ""
        yield yours(
            "program.uv",
            "blocks",
            _LOCK,
            f"`{path}` cannot be started"
            if path
            else "`uv` is not on this machine, and did not come with envbuild",
            "it resolves and installs Python packages",
            f"`python3 -m pip install{again} uv` in envbuild's environment",
        )


def _program(name: str, verbs: tuple[str, ...], why: str, mend: str, machine: Machine) -> Finding:
    path = machine.broken.get(name)
    if path:
        # The first that PATH leads to is taken, as everywhere.
        problem = f"`{path}` cannot be started"
        mend = f"take it out of PATH, or see that it is a program for this machine; or {mend}"
        return yours(f"program.{name}", "blocks", verbs, problem, why, mend)
    problem, mend = f"`{name}` is not on this machine", f"{mend}{_setup(machine)}"
    return _finding(f"program.{name}", "blocks", verbs, problem, why, mend, machine)


def _namespaces(machine: Machine) -> Iterator[Finding]:
    if not machine.user_namespaces and not machine.root:
        verbs = MAKE if machine.runtime.setuid else (*MAKE, *RUN)
        yield Finding(
            id="user-namespaces.forbidden",
            weight="blocks",
            verbs=verbs,
            problem="this user may not make a user namespace",
            why="roots are made and layers mounted in one"
            + ("; images still start by Apptainer's set-user-id starter" if machine.runtime.setuid else ""),
            mend="`sysctl -w user.max_user_namespaces=15000`, and `kernel.unprivileged_userns_clone=1` and"
            " `kernel.apparmor_restrict_unprivileged_userns=0` where the kernel has them"
            + ("" if machine.runtime.setuid else "; or install Apptainer with its set-user-id starter")
            + _CARRIED,
            by=_ADMINISTRATOR,
        )
    if not machine.root and machine.subordinate_ids < SUBORDINATE_IDS:
        yield Finding(
            id="user-namespaces.subordinate-ids",
            weight="blocks",
            verbs=MAKE,
            problem=f"`{machine.user}` has {machine.subordinate_ids} subordinate ids, of {SUBORDINATE_IDS}",
            why="the users and groups of a Debian root are mapped to them",
            mend=f"`usermod --add-subuids 100000-165535 --add-subgids 100000-165535 {machine.user}`, with a"
            f" range that is nobody else's{_CARRIED}",
            by=_ADMINISTRATOR,
        )
    for name in ("newuidmap", "newgidmap"):
        if not machine.root and not machine.programs.get(name):
            why = "it maps subordinate ids into a user namespace"
            yield _program(name, MAKE, why, "install uidmap", machine)


def _fuse(machine: Machine) -> Iterator[Finding]:
    if machine.runtime.setuid:
        return
    verbs = (*MAKE, *RUN)
    if not machine.fuse:
        yield Finding(
            id="fuse.device",
            weight="blocks",
            verbs=verbs,
            problem="/dev/fuse cannot be used by this user",
            why="without its set-user-id starter Apptainer mounts images through FUSE",
            mend=f"`modprobe fuse && chmod 0666 /dev/fuse`{_setup(machine)}",
            by=_ADMINISTRATOR,
        )
    if not (machine.programs.get("squashfuse_ll") or machine.programs.get("squashfuse")):
        why = "without its set-user-id starter Apptainer mounts images with it"
        mend = f"install squashfuse{_setup(machine)}"
        problem = "there is no squashfuse, on PATH or beside Apptainer"
        yield _finding("program.squashfuse", "blocks", verbs, problem, why, mend, machine)


def _surroundings(machine: Machine) -> Iterator[Finding]:
    if machine.architecture not in ("amd64", "arm64"):
        yield yours(
            "machine.architecture",
            "blocks",
            _LOCK,
            f"this machine is {machine.architecture}",
            "bases and wheels are for amd64 and arm64",
            "build on a machine of one of these",
        )
    if not machine.module_system:
        mend = f"install lmod or environment-modules{_setup(machine)}"
        yield _finding(
            "module-system.missing",
            "hampers",
            ("module",),
            "there is neither Lmod nor Environment Modules in this shell",
            "`module load` is one of them; wrappers in `envs/NAME/VERSION/bin` work without",
            mend,
            machine,
        )
    if machine.slurm and not machine.programs.get("srun"):
        yield Finding(
            id="slurm.no-srun",
            weight="hampers",
            verbs=("test", "launch"),
            problem="this machine belongs to a Slurm cluster, and there is no `srun` on PATH",
            why="ranks on several nodes are started by it",
            mend="`module load slurm`, or a login or compute node",
            by="you",
        )
    if machine.encoding.replace("-", "").lower() != "utf8":
        yield yours(
            "locale.not-utf8",
            "hampers",
            _OF_TEXT,
            f"texts and file names are {machine.encoding} here",
            "names and messages beyond ASCII are spoilt",
            "`export LC_ALL=C.UTF-8`",
        )
    if not machine.locale_works:
        yield yours(
            "locale.missing",
            "hampers",
            _OF_TEXT,
            "the locale that LC_ALL or LANG names does not exist here",
            "programs warn of it in every log, or end",
            "`export LC_ALL=C.UTF-8`",
        )
    if machine.year < _FIRST_YEAR:
        yield Finding(
            id="clock.wrong",
            weight="blocks",
            verbs=RESOLVE,
            problem=f"the clock of this machine says {machine.year}",
            why="certificates and signatures of archives are not valid yet",
            mend="`timedatectl set-ntp true`",
            by=_ADMINISTRATOR,
        )


def _variables(machine: Machine) -> Iterator[Finding]:
    for name in ("LD_LIBRARY_PATH", "LD_PRELOAD", "PATH", "PYTHONPATH"):
        for prefix in ("APPTAINERENV_", "SINGULARITYENV_"):
            if machine.variables.get(prefix + name):
                yield yours(
                    f"variable.{prefix}{name}",
                    "hampers",
                    RUN,
                    f"{prefix}{name} is set",
                    f"it replaces what an image has in {name}: its own MPI or Python is not found",
                    f"`unset {prefix}{name}`",
                )
    reasons = {
        "LD_LIBRARY_PATH": "a host's libraries may be loaded by envbuild's tools, and behind an image's own",
        "LD_PRELOAD": "it is loaded into every program, in images, too",
        "PYTHONPATH": "envbuild itself would import modules from there",
        "PYTHONHOME": "envbuild's own Python would look for its library there",
    }
    for name, why in reasons.items():
        if machine.variables.get(name):
            yield yours(
                f"variable.{name}",
                "hampers",
                (*MAKE, *RUN),
                f"{name} is set",
                why,
                f"`unset {name}`, or `module purge`",
            )
    entries = machine.variables.get("PATH", "").split(":")
    odd = [entry or "an empty entry" for entry in entries if not entry.startswith("/")]
    if odd:
        yield yours(
            "variable.PATH",
            "hampers",
            ("lock", *MAKE, *RUN),
            f"PATH holds {', '.join(odd)}",
            "what is started then depends on the directory that one stands in",
            "take it out of PATH, in the shell's start-up files",
        )


def _network(machine: Machine) -> Iterator[Finding]:
    for problem, mend in machine.unread.items():
        why = "it says where packages come from"
        yield yours("index.configuration", "blocks", RESOLVE, problem, why, mend)
    for problem, mend in machine.site_unread.items():
        verbs = (*_SITE, "check") if machine.site_named else _SITE
        why = "it says what the machine is like, and where packages come from"
        yield yours("site.configuration", "blocks", verbs, problem, why, mend)
    for path, there in machine.wheel_directories.items():
        if not there:
            yield yours(
                "index.find-links",
                "hampers",
                RESOLVE,
                f"there is no directory `{path}`, and pip's or uv's configuration names it (find-links)",
                "wheels that only it has are not found",
                "make it reachable, or take it out of the configuration (`pip config list` shows it)",
            )
    if machine.no_index and not any(machine.wheel_directories.values()):
        yield yours(
            "index.none",
            "blocks",
            RESOLVE,
            "the configuration forbids any Python index (no-index), and names no directory with wheels",
            "there is nowhere to take wheels from",
            "`find-links` in pip's configuration, or `origins` in the site file",
        )
    if machine.debian_sources == 0:
        yield _finding(
            "index.no-debian",
            "hampers",
            RESOLVE,
            "apt has no source on this machine",
            "Debian packages come from what apt is configured for, unless the site file names archives",
            "name `debian:SUITE` under `origins` in the site file, or an entry in /etc/apt/sources.list.d",
            machine,
        )
    for address, why in machine.unreachable.items():
        yield yours(
            "index.unreachable",
            "blocks",
            RESOLVE,
            f"{address} cannot be reached: {why}",
            "packages come from there",
            "set https_proxy, name a mirror under `origins` in the site file, or work with"
            " `fetch --to` elsewhere and `--offline --from` here",
        )


def _setup(machine: Machine) -> str:
    return " (`make setup` does it)" if machine.debian else ""


def _finding(
    id: str,  # noqa: A002  # the field's name
    weight: Weight,
    verbs: tuple[str, ...],
    problem: str,
    why: str,
    mend: str,
    machine: Machine,
) -> Finding:
    by = "you" if machine.root else _ADMINISTRATOR
    return Finding(id=id, weight=weight, verbs=verbs, problem=problem, why=why, mend=mend, by=by)
