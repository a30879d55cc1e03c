"""Roots of Debian packages: the base, and what further packages change in it.

Source: mmdebstrap(1), deb-control(5), PEP 552 (hash-based .pyc files).
"""

from __future__ import annotations

import os
import re
import secrets
import shlex
import shutil
import stat
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import quote

from envbuild.build import stable_bytecode
from envbuild.build.keystore import KEYSTORE, make_certificates_timeless
from envbuild.build.sandbox import step_failed
from envbuild.build.workdir import traversable_directory
from envbuild.errors import BuildError, MachineError
from envbuild.store.tree import WHITEOUT, Tree, walk
from envbuild.system import host, process
from envbuild.system.emulation import VARIABLES, Emulator, emulator_of
from envbuild.system.removal import remove

# mmdebstrap sets every later time to this one: the start of the epoch's second year, earlier than the times
# of any package.
_EPOCH = "31536000"

# Shipped with mmdebstrap: /bin, /lib and /sbin are links into /usr from the start, so that no package needs
# perl to move them later. It installs a dummy of usr-is-merged and replaces it at the end; a suite without
# that package (bullseye) removes the dummy.
_MERGED_USR = "/usr/share/mmdebstrap/hooks/merged-usr"
_MERGED_USR_HOOKS = (f"--hook-dir={_MERGED_USR}",)
_MERGED_USR_HOOKS_BEFORE_BOOKWORM = (
    f"--setup-hook={_MERGED_USR}/setup00.sh",
    '--essential-hook=chroot "$1" dpkg --purge usr-is-merged',
)

# The first bytes of each .pyc of Python 2.7.
_PYTHON2_MAGIC = b"\x03\xf3\r\n"

# Maintainer scripts or mmdebstrap make these from the host; they do not belong into an image.
_EMPTIED_DIRECTORIES = (
    "var/log",
    "var/cache/apt",
    "var/cache/debconf",
    "var/cache/ldconfig",
    "var/lib/apt/lists",
    "run",
    "tmp",
    "dev",
    "proc",
    "sys",
)
_REMOVED_FILES = (
    # The image's own is in its top layer.
    "etc/environment",
    "etc/hostname",
    "etc/machine-id",
    "etc/apt/sources.list",
    "var/lib/dbus/machine-id",
    "var/lib/dpkg/lock",
    "var/lib/dpkg/lock-frontend",
    "var/lib/dpkg/triggers/Lock",
    "var/lib/apt/extended_states",
)
_REMOVED_SUFFIXES = {"var/lib/dpkg": ("-old",), "etc": ("-",)}
# Apptainer binds over these; an existing mount point needs no overlay.
_MOUNT_POINTS = ("etc/resolv.conf", "etc/hosts", "etc/localtime", "etc/hostname")
_DIRECTORIES = (
    "dev",
    "proc",
    "sys",
    "tmp",
    "run",
    "mnt",
    "home",
    "root",
    "srv",
    "opt",
    "opt/env",
    "opt/mpi",
    "opt/fabric",
    "opt/accel",
    "var/tmp",
)

MANAGED_PATHS = (
    *_DIRECTORIES,
    *_EMPTIED_DIRECTORIES,
    *_REMOVED_SUFFIXES,
    *(name.rpartition("/")[0] for name in (*_REMOVED_FILES, *_MOUNT_POINTS, KEYSTORE)),
)
"""Paths that are written or emptied in a root, relative to it."""

# Debian Policy 5.6.1, 5.6.12.
_PACKAGE = re.compile(r"[a-z0-9][a-z0-9+.-]+")
_VERSION = re.compile(r"[0-9][A-Za-z0-9.+:~-]*")


class MmdebstrapError(BuildError):
    """mmdebstrap failed: because of a package, or of what it needs of the machine."""


def make_root(
    debs: Mapping[Path, str],
    *,
    suite: str,
    architecture: str,
    texts: Mapping[str, str],
    tree: Path,
    log: Path,
    base: tuple[Path, Tree] | None = None,
) -> None:
    """Install packages into a new root `tree` with mmdebstrap, rootless and without network.

    `debs` maps every verified package file to its SHA-256 (hex). `texts` maps absolute paths to the content
    of files to add (mode 0644; 0755 for ``.sh``). The packages are added to `base`, the squashfs of a base
    and its paths, or to an empty root.

    MmdebstrapError: it failed. BuildError: a file is not a package, or the root cannot be unpacked.
    """
    with traversable_directory() as work:
        repository = work / "repository"
        repository.mkdir(mode=0o755)
        repository.chmod(0o755)
        names = _write_repository(debs, repository)
        tar = work / "root.tar"
        scratch = work / f"made-{secrets.token_hex(16)}"
        scratch.mkdir()
        scratch.chmod(0o1777)  # root of the namespace is another user
        # Suites before bookworm have no package usr-is-merged.
        if base is not None:
            hooks = [_unpack_hook(base[0], work)]
            is_older = "var/lib/dpkg/info/usr-is-merged.list" not in base[1]
        else:
            is_older = not any(name.startswith("usr-is-merged=") for name in names)
            hooks = [*(_MERGED_USR_HOOKS_BEFORE_BOOKWORM if is_older else _MERGED_USR_HOOKS)]
        if is_older:
            hooks.append(stable_bytecode.hook(work))
        emulator = emulator_of_scripts(architecture)
        # The check wants a tool that starts a program for the architecture; `emulator_of` did that.
        skipped = ["--skip=check/qemu"] if emulator is not None else []
        # The mode is unshare for root too, so that the bytes are the same.
        argv = [
            *("mmdebstrap", "--mode=unshare", "--variant=custom", "--format=tar"),
            *hooks,
            f"--architectures={architecture}",
            *skipped,
            f"--include={','.join(names)}",
            '--aptopt=Acquire::Languages "none"',
            *(suite, "-", f"deb [trusted=yes] copy://{quote(str(repository))} ./"),
        ]
        variables = VARIABLES if emulator is not None else {}
        env = host.environment(extra={**variables, "SOURCE_DATE_EPOCH": _EPOCH, "TMPDIR": str(scratch)})
        # The shell opens the file, which root of the namespace cannot write.
        argv = ["sh", "-c", 'exec "$@" >"$0"', str(tar), *_in_namespace(argv, emulator)]
        try:
            _run(argv, env=env, cwd=work, log=log, what="mmdebstrap could not install the packages")
        except BuildError as error:
            raise MmdebstrapError(error.problem, hint=error.hint) from None
        tree.mkdir(mode=0o755)
        argv = [
            *("tar", "--extract", f"--file={tar}", f"--directory={tree}", "--preserve-permissions"),
            *("--no-same-owner", "--exclude=./dev/*", "--numeric-owner"),
        ]
        _run(argv, env=host.environment(), cwd=work, log=log, what="the root could not be unpacked")
    normalize_root(tree, texts)


def emulator_of_scripts(architecture: str) -> Emulator | None:
    """Return what starts the scripts of packages; MachineError as `emulator_of`."""
    try:
        return emulator_of(architecture)
    except MachineError as error:
        error.hint = (
            f"{error.hint}; or take the layer from where it was made: `--upstream`, `envbuild layer import`"
        )
        raise


def _in_namespace(argv: Sequence[str], emulator: Emulator | None) -> list[str]:
    """Return the command that starts a command as root of a user namespace, without network.

    Scripts of packages run in it. mmdebstrap makes none for root, and never one without network.
    MachineError: this is root, and its unshare(1) cannot map subordinate ids.
    """
    shown = process.run(["unshare", "--help"], env=host.environment(), timeout_s=30)
    if "--map-users" in shown.stdout:
        maps = ("--map-users=auto", "--map-groups=auto")
        command = emulator.in_namespace(argv) if emulator is not None else argv
        return ["unshare", "--user", *maps, "--setuid=0", "--setgid=0", "--net", "--", *command]
    if host.is_root():
        raise MachineError(
            "packages cannot be installed for root: their scripts would be root of this machine",
            hint="build as another user, or install util-linux 2.38",
        )
    if emulator is not None and emulator.program is not None:
        raise MachineError(
            "packages for another processor cannot be installed here: unshare(1) cannot map subordinate ids",
            hint="install util-linux 2.38",
        )
    return [*argv]


def _unpack_hook(base: Path, work: Path) -> str:
    """Return mmdebstrap's argument for a hook that begins with the files of a base."""
    # The user id that unpacks it may be unable to enter the directories of a store.
    copied = work / "base.squashfs"
    shutil.copyfile(base, copied)
    copied.chmod(0o644)
    # mmdebstrap passes its hooks to a shell.
    options = '-quiet -no-progress -no-xattrs -force -dest "$1"'
    return f"--setup-hook=unsquashfs {options} {shlex.quote(str(copied))}"


def normalize_root(tree: Path, texts: Mapping[str, str]) -> None:
    """Remove what came from the host, the time or the tools, and add what an image needs.

    No directory of `MANAGED_PATHS` may be a link.
    """
    _clean(tree)
    _add_texts(tree, texts)
    _make_bytecode_timeless(tree)
    make_certificates_timeless(tree)


def subtract(tree: Path, tree_entries: Tree, base: Tree) -> Tree:
    """Reduce a root in place to its difference from a base; return what is left, with whiteouts.

    Directories stay if something below them differs. A path of the base that the root lacks becomes a
    whiteout.
    """
    kept: dict[str, str] = {}
    for path, what in tree_entries.items():
        if base.get(path) != what:
            kept[path] = what
    gone = [
        path
        for path in base
        # Only the topmost path: it hides everything below, as does a file in place of a directory.
        if path not in tree_entries and _is_directory(path.rpartition("/")[0], tree_entries)
    ]
    for path in (*kept, *gone):
        for parent in Path(path).parents:
            if parent != Path():
                kept.setdefault(parent.as_posix(), tree_entries[parent.as_posix()])
    for path in sorted(tree_entries, reverse=True):
        if path not in kept:
            target = tree / path
            target.rmdir() if target.is_dir() and not target.is_symlink() else target.unlink()
    kept.update(dict.fromkeys(gone, WHITEOUT))
    return dict(sorted(kept.items()))


def _is_directory(path: str, tree: Tree) -> bool:
    return not path or tree.get(path, "").startswith("d ")


def _write_repository(debs: Mapping[Path, str], repository: Path) -> list[str]:
    """Copy packages to a directory and index them; return ``name=version`` of each."""
    with ThreadPoolExecutor(max_workers=host.cores()) as pool:
        controls = list(pool.map(_control, debs))
    stanzas = []
    names = []
    for deb, control in sorted(zip(debs, controls, strict=True), key=lambda pair: pair[0].name):
        target = repository / deb.name
        shutil.copyfile(deb, target)
        target.chmod(0o644)
        names.append(_name_and_version(control, deb))
        stanzas.append(
            f"{control.rstrip()}\nFilename: ./{deb.name}\nSize: {deb.stat().st_size}\nSHA256: {debs[deb]}\n"
        )
    index = repository / "Packages"
    index.write_text("\n".join(stanzas))
    index.chmod(0o644)
    return names


def _name_and_version(control: str, deb: Path) -> str:
    lines = (line.partition(":") for line in control.splitlines() if not line.startswith(" "))
    fields = {name.lower(): value.strip() for name, _, value in lines}
    name, version = fields.get("package", ""), fields.get("version", "")
    if not (_PACKAGE.fullmatch(name) and _VERSION.fullmatch(version)):
        raise BuildError(
            f"`{deb.name}` says neither its name nor its version as Debian's policy wants it",
            hint="take the package from another mirror, or lock another version",
        )
    return f"{name}={version}"


def _control(deb: Path) -> str:
    finished = process.run(["dpkg-deb", "--field", deb], env=host.environment(), timeout_s=60)
    if not finished.ok:
        raise BuildError(
            f"`{deb.name}` is not a Debian package: {finished.last_lines(1)}",
            hint="`envbuild cache verify --repair` removes it; the next build fetches it again",
        )
    return finished.stdout


def _run(argv: Sequence[str], *, env: Mapping[str, str], cwd: Path, log: Path, what: str) -> None:
    finished = process.run(argv, env=env, cwd=cwd, log=log, timeout_s=1800)
    if not finished.ok:
        raise step_failed(what, finished, log)


def _clean(tree: Path) -> None:
    """Remove what came from the host, the time or the tools, and make the mount points."""
    for name in _EMPTIED_DIRECTORIES:
        directory = tree / name
        if directory.is_dir():
            for child in directory.iterdir():
                remove(child)
    for name in _REMOVED_FILES:
        remove(tree / name)
    for place, suffixes in _REMOVED_SUFFIXES.items():
        for path in (tree / place).iterdir() if (tree / place).is_dir() else ():
            if path.name.endswith(suffixes) and (path.is_symlink() or path.is_file()):
                path.unlink()
    for name in _DIRECTORIES:
        (tree / name).mkdir(parents=True, exist_ok=True)
        (tree / name).chmod(0o1777 if name in ("tmp", "var/tmp") else 0o755)
    for name in _MOUNT_POINTS:
        path = tree / name
        path.parent.mkdir(exist_ok=True)
        remove(path)
        path.touch()
        path.chmod(0o644)
    for path, status in walk(tree):
        mode = stat.S_IMODE(status.st_mode)
        if not stat.S_ISLNK(status.st_mode) and mode & 0o6000:
            # Rootless, and mounted nosuid: these bits have no effect, but alarm auditors.
            path.chmod(mode & ~0o6000)
        elif stat.S_ISREG(status.st_mode) and not mode & 0o444:
            # Everything belongs to the user who runs the image; an unreadable file cannot be copied.
            path.chmod(mode | 0o400)


def _add_texts(tree: Path, texts: Mapping[str, str]) -> None:
    for name, text in sorted(texts.items()):
        path = tree / name.lstrip("/")
        for parent in reversed(path.relative_to(tree).parents):
            (tree / parent).mkdir(exist_ok=True)
            if parent != Path():
                (tree / parent).chmod(0o755)
        if name.endswith("/"):
            path.mkdir(exist_ok=True)
            path.chmod(0o755)
        else:
            path.write_text(text)
            path.chmod(0o755 if name.endswith(".sh") else 0o644)


def _make_bytecode_timeless(tree: Path) -> None:
    """Turn time-stamped .pyc files into unchecked hash-based ones (PEP 552).

    All times in an image are the same, so a time-stamped .pyc would look stale and Python would compile its
    source at every start. Python 2.7 supports time stamps only: it gets that one time, the epoch.
    """
    for path, status in walk(tree):
        if path.suffix == ".pyc" and stat.S_ISREG(status.st_mode):
            content = path.read_bytes()
            if content[:4] == _PYTHON2_MAGIC:
                header = bytes(4)
            elif len(content) > 16 and content[4:8] == bytes(4):
                header = b"\1\0\0\0" + bytes(8)
            else:
                continue
            descriptor = os.open(path, os.O_WRONLY)
            try:
                os.pwrite(descriptor, header, 4)
            finally:
                os.close(descriptor)
