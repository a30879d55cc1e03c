"""Install an image behind a modulefile, in a directory that others read (see `envbuild.activate.layout`).

A release is staged beside its final path and renamed; the link is replaced in one step; the modulefile comes
last. A release that another image replaces stays for the jobs that run on it: removing an image ends its
running jobs, on network file systems at once.
"""

from __future__ import annotations

import contextlib
import errno
import filecmp
import os
import re
import shutil
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from envbuild.activate.launcher import LAUNCHER, VENV_MAKER, data_text, launcher_text, stamp_of
from envbuild.activate.layout import (
    HOST_STAGE,
    IMAGE,
    MADE_BY,
    RECORD,
    VERDICT,
    Layout,
    Record,
    is_there,
    made_by_us,
    newer_format,
    read_default,
    retired_versions,
)
from envbuild.activate.model import Installation, check_version
from envbuild.activate.modulefile import modulefile_text
from envbuild.errors import EnvbuildError, Location, MachineError, RequestError, raise_all
from envbuild.system.files import (
    atomic_file,
    copy_range,
    is_full,
    list_directory,
    make_directory,
    sync,
    write_at,
)
from envbuild.system.leftovers import own_name, sweep

_READ_ALL = 0o644
_EXECUTE_ALL = 0o755
_STAGE = ".stage-"
# Each overrides `.version` in one of the module systems.
_STRONGER_DEFAULTS = ("default", ".modulerc", ".modulerc.lua")


@dataclass(frozen=True, slots=True, kw_only=True)
class InstallResult:
    """The result of an installation."""

    layout: Layout
    commands: tuple[str, ...]
    """Commands with a wrapper."""
    left_out: Mapping[str, str]
    """Command of the image without a wrapper → why."""
    changed: bool
    """False if everything was installed already."""
    replaced: Path | None
    """The kept release of another image that was in use before."""
    default: bool
    """Whether this version was chosen for ``module load NAME``."""
    warnings: tuple[str, ...] = ()
    """Empty for an image that passed its tests and that other users can start."""


def install(
    installation: Installation,
    *,
    source: Path | None = None,
    default: bool = False,
    copied: Callable[[int], None] = lambda _: None,
    check: Callable[[], None] = lambda: None,
    create: Callable[[Path], bool] = lambda _: False,
) -> InstallResult:
    """Install an image so that ``module load NAME/VERSION`` puts its commands on PATH.

    Installing it again changes nothing; another image of the same name and version replaces it. With
    `default` it becomes the version of ``module load NAME``. `copied` is called with the bytes copied since
    the last call. `source` is where the bytes of the image are read, by default at its path. An error of
    `check`, which is called when the image is read, leaves no release of it. `create` is as in `atomic_file`.

    RequestError: the root cannot be written, a name is reserved, or a modulefile or default marker there is
    not envbuild's. MachineError: the disk is full.
    """
    layout = installation.layout
    check_version(layout.version)
    with os_errors_explained(layout.root, "install"):
        _check_foreign_files(layout, default=default)
        make_directory(layout.releases_dir, mode=_EXECUTE_ALL)
        make_directory(layout.modulefile.parent, mode=_EXECUTE_ALL)
        before = layout.in_use

        def bring_image(target: Path) -> bool:
            image = source or installation.image
            is_new = not installation.linked and _copy(
                image, target, copied=copied, check=check, create=create
            )
            check()
            return is_new

        changed = _put_release(installation, bring_image)
        changed |= _link(layout.home, installation.release.name)
        # Last: a visible modulefile refers only to existing files.
        changed |= write_text(
            layout.modulefile, modulefile_text(_stamped(installation, installation.release))
        )
        chosen = layout.version if default else read_default(layout)
        if default or chosen is not None or made_by_us(layout.default_marker):
            # A modulefile that was written anew is no longer retired.
            changed |= write_marker(layout, default=chosen, retired=retired_versions(layout))
    return InstallResult(
        layout=layout,
        commands=installation.commands,
        left_out=installation.left_out,
        changed=changed,
        replaced=before if before and before != installation.release and before.is_dir() else None,
        default=read_default(layout) == layout.version,
    )


def _stamped(installation: Installation, release: Path) -> Installation:
    """Return an installation with the stamp of the copy in its release, which may still be staged."""
    return installation if installation.linked else replace(installation, stamp=stamp_of(release / IMAGE))


def absolute(path: Path) -> Path:
    """Return an absolute path; it keeps symbolic links, which automounters need."""
    return Path(os.path.abspath(path))  # noqa: PTH100


def checked_root(root: Path) -> Path:
    """Return a module root as an absolute path.

    RequestError: a character in it splits PATH, or keeps Lmod or Environment Modules from reading modulefiles
    below it.
    """
    root = absolute(root)
    # Lmod 8.6 passes the path of a Tcl modulefile to a shell, unquoted.
    if bad := re.search(r"[^\w/.,+=%@~-]", str(root), re.ASCII):
        raise RequestError(
            f"modules cannot be installed under {str(root)!r}: module systems fail at {bad[0]!r}",
            hint="name a directory of ASCII letters, digits and /._,+=%@~- with --root DIR",
        )
    return root


def why_only_you(image: Path) -> str | None:
    """Return why other users cannot start an image that a module refers to; None if they can."""
    closed = [parent for parent in reversed(image.parents) if not parent.stat().st_mode & 0o001]
    if closed:
        return f"only you can start this: others may not enter `{closed[0]}`, which holds its image"
    if not image.stat().st_mode & 0o004:
        return f"only you can start this: others may not read `{image}`"
    return None


@contextlib.contextmanager
def os_errors_explained(
    root: Path, verb: str, *, hint: str = "name another directory with --root DIR"
) -> Iterator[None]:
    """Raise an OSError below a module root as a RequestError, or as a MachineError if the disk is full."""
    try:
        yield
    except OSError as error:
        if is_full(error):
            problem = f"no space left under `{root}`"
            raise MachineError(problem, hint="free some space and run it again") from error
        problem = f"cannot {verb} under `{root}`: {error.filename or root}: {error.strerror}"
        raise RequestError(problem, hint=hint) from error


def write_marker(layout: Layout, *, default: str | None, retired: Collection[str]) -> bool:
    """Write the default version of a module's name, and which `avail` hides; return whether that is new.

    Without a default, each module system chooses the highest version that is not hidden, in its own order.
    Environment Modules and Lmod have different commands to hide a version.
    """
    marker = layout.default_marker
    if default is None and not retired:
        was_there = made_by_us(marker)
        if was_there:
            marker.unlink()
        return was_there
    lines = ["#%Module1.0", f"# {MADE_BY}"]
    lines += [f'set ModulesVersion "{default}"'] if default is not None else []
    for version in sorted(retired):
        hides = "".join(
            f' if {{[llength [info commands {command}]]}} {{ {command} "{layout.name}/{version}"; break }};'
            for command in ("module-hide", "hide-version")
        )
        lines.append(f"foreach once 1 {{{hides} }}")
    return write_text(marker, "\n".join(lines) + "\n")


def _check_foreign_files(layout: Layout, *, default: bool) -> None:
    """Reject files of others or of a newer version that would be overwritten or override the default."""
    # Lmod would prefer a modulefile in Lua.
    in_lua = layout.modulefile.with_name(f"{layout.version}.lua")
    errors: list[EnvbuildError] = [
        RequestError(
            f"there is a module {layout.label} already, and envbuild did not make it",
            at=Location(path=path),
            hint="install under another root with --root DIR, or move that file away",
        )
        for path in (layout.modulefile, in_lua)
        if is_there(path) and not made_by_us(path)
    ]
    errors += [newer for release in layout.releases if (newer := newer_format(release)) is not None]
    raise_all([*errors, *(foreign_choices(layout) if default else ())])


def foreign_choices(layout: Layout) -> Iterator[RequestError]:
    """Yield an error for each file of others that chooses among the versions of a module's name."""
    marker = layout.default_marker
    for path in (marker, *map(marker.with_name, _STRONGER_DEFAULTS)):
        if is_there(path) and not (path == marker and made_by_us(path)):
            yield RequestError(
                f"the default version of {layout.name} is chosen by a file that envbuild did not make",
                at=Location(path=path),
                hint="change it there, or move it away",
            )


def _put_release(installation: Installation, bring_image: Callable[[Path], bool]) -> bool:
    """Create or complete the release, where `bring_image` puts the image; return whether anything changed."""
    release = installation.release
    if not release.is_dir():
        sweep(release.parent, before=_STAGE)
        stage = release.with_name(_STAGE + own_name())
        try:
            make_directory(stage, mode=_EXECUTE_ALL)
            _fill(stage, installation, bring_image)
            sync(stage)
            stage.rename(release)
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
            # Another process has installed the same release in the meantime.
        else:
            sync(release.parent)
            return True
        finally:
            shutil.rmtree(stage, ignore_errors=True)
    return _fill(release, installation, bring_image)


def _fill(directory: Path, installation: Installation, bring_image: Callable[[Path], bool]) -> bool:
    """Write what a release lacks; return whether anything was written."""
    layout, host_libs = installation.layout, installation.host_libs
    record = Record(
        name=layout.name,
        version=layout.version,
        digest=installation.runnable.digest,
        image=str(installation.image) if installation.linked else "",
        host_libraries=host_libs.identities if host_libs is not None else {},
    )
    commands = directory / "bin"
    make_directory(commands, mode=_EXECUTE_ALL)
    changed = bring_image(directory / IMAGE)
    changed |= write_text(
        commands / LAUNCHER, launcher_text(_stamped(installation, directory)), mode=_EXECUTE_ALL
    )
    changed |= write_text(directory / VENV_MAKER, data_text(VENV_MAKER))
    changed |= write_text(directory / RECORD, record.model_dump_json(indent=1) + "\n")
    if installation.verdict_record:
        # Another test changes nothing of what is installed.
        write_text(directory / VERDICT, installation.verdict_record)
    if host_libs is not None:
        host_libs.fill_stage(directory / HOST_STAGE)
    for command in installation.commands:
        changed |= _link(commands / command, LAUNCHER)
    for name in list_directory(commands):
        if name not in (LAUNCHER, *installation.commands) and is_wrapper(commands / name):
            (commands / name).unlink(missing_ok=True)
            changed = True
    return changed


def is_wrapper(path: Path) -> bool:
    """Return whether a file is a command of a module, which is a link to its launcher."""
    return path.is_symlink() and str(path.readlink()) == LAUNCHER


def _copy(
    image: Path,
    target: Path,
    *,
    copied: Callable[[int], None],
    check: Callable[[], None],
    create: Callable[[Path], bool],
) -> bool:
    """Copy an image unless it is there, sharing blocks if possible; return whether it was copied."""
    # The release's name contains the digest of the image's runnable. If the bytes differ nevertheless, data
    # was added around it, such as a signature, or the copy is damaged.
    with contextlib.suppress(FileNotFoundError):
        if filecmp.cmp(image, target, shallow=False):
            return False
    replacement = atomic_file(target, mode=_READ_ALL, check=check, create=create)
    with image.open("rb") as source, replacement as file:
        copy_range(source.fileno(), 0, image.stat().st_size, file, 0, copied)
        os.fchmod(file, _READ_ALL)
    return True


def write_text(path: Path, text: str, *, mode: int = _READ_ALL) -> bool:
    """Write a file: all of it, or nothing; return whether it was different before."""
    data = text.encode()
    with contextlib.suppress(FileNotFoundError):
        if not path.is_symlink() and path.read_bytes() == data and path.stat().st_mode & 0o777 == mode:
            return False
    with atomic_file(path, mode=mode) as file:
        write_at(file, data, 0)
        os.fchmod(file, mode)
    return True


def _link(path: Path, target: str) -> bool:
    """Make a symbolic link, replacing a file in one step; return whether it was different before."""
    if path.is_symlink() and str(path.readlink()) == target:
        return False
    partial = path.with_name(f".{path.name}.{own_name()}.partial")
    try:
        partial.symlink_to(target)
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
    return True
