"""The modules below a root: list them, and remove them.

A removal deletes only envbuild's files: first the modulefile, then the releases, each under another name, so
that a half-deleted one is never used. The link to the release goes last: until then an interrupted removal
shows in the list, and the next one completes it.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date
from pathlib import Path

from envbuild.activate.install import is_wrapper, os_errors_explained, write_marker
from envbuild.activate.launcher import LAUNCHER, VENV_MAKER
from envbuild.activate.layout import (
    GONE,
    HOST_STAGE,
    IMAGE,
    RECORD,
    VERDICT,
    Deprecation,
    Layout,
    Record,
    deprecation,
    is_there,
    made_by_us,
    newer_format,
    read_default,
    read_record,
    retired_until,
    version_order,
)
from envbuild.errors import EnvbuildError, Location, RequestError, did_you_mean, raise_all
from envbuild.quoting import shell_path
from envbuild.spec.model import NAME, VERSION
from envbuild.system.files import list_directory
from envbuild.system.removal import remove

# The names of `atomic_file` for unfinished files.
_PARTIAL = r"\..+\.envbuild-.+\.partial"


@dataclass(frozen=True, slots=True, kw_only=True)
class InstalledModule:
    """An installed module."""

    layout: Layout
    record: Record | None
    """The record of the release in use; None if it cannot be read."""
    image: Path | None
    """The image that its commands start; None without a record."""
    default: bool
    """Whether it was chosen as the default version."""
    retired_until: date | None
    """The day on which it is to be uninstalled; None unless it is retired."""
    deprecation: Deprecation | None
    """From which day users should load another one; None unless it is deprecated."""
    kept: tuple[Path, ...]
    """Releases of other images that it replaced."""
    problems: tuple[str, ...]
    """Why it cannot be loaded or started; empty if it can."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Uninstalled:
    """The result of a removal."""

    module: str
    """``name/version``."""
    removed: tuple[Path, ...]
    """Default marker, modulefiles, link and releases."""
    default: str | None
    """The version that is now the chosen default."""
    default_moved: bool
    """Whether the removed version was the chosen default."""


def find_installed(root: Path) -> tuple[InstalledModule, ...]:
    """Return the modules below a root, sorted by name, then by version."""
    names = {*list_directory(root / "modulefiles"), *list_directory(root / "envs")}
    valid = [name for name in sorted(names) if re.fullmatch(NAME, name, re.ASCII)]
    return tuple(module for name in valid for module in _versions_of(root, name))


def not_installed(name: str, root: Path) -> RequestError:
    """Return the error that a module is not installed below a root."""
    hint = f"`envbuild module ls --root {shell_path(root)}` lists the modules"
    return RequestError(f"no module `{name}` is installed in `{root}`", hint=hint)


def select(root: Path, name: str, version: str | None, *, every: bool) -> tuple[Layout, ...]:
    """Return the modules that a user means: one version, the only one, or with `every` all of a name.

    RequestError: there is no such module, or one of several versions must be chosen.
    """
    layouts = [module.layout for module in _versions_of(root, name)]
    hint = did_you_mean(name, list_directory(root / "envs"))
    hint = hint or "`envbuild module ls --root DIR` lists the modules there"
    if version is not None:
        layout = Layout(root=root, name=name, version=version)
        if any(map(is_there, (layout.modulefile, layout.home, *layout.releases, *layout.half_deleted))):
            return (layout,)
        if layouts:
            hint = f"installed: {', '.join(other.label for other in layouts)}"
        raise RequestError(f"no module `{layout.label}` is installed under `{root}`", hint=hint)
    if not layouts:
        raise RequestError(f"no module `{name}` is installed under `{root}`", hint=hint)
    if len(layouts) > 1 and not every:
        versions = ", ".join(layout.version for layout in layouts)
        raise RequestError(
            f"`{name}` is installed in {len(layouts)} versions: {versions}",
            hint=f"name one, as `{layouts[0].label}`, or take all with --all",
        )
    return tuple(layouts)


def foreign_files(layout: Layout) -> Iterator[EnvbuildError]:
    """Yield an error for each file that prevents a removal because envbuild did not make it."""
    hint = "move it away, or remove it yourself"
    path = layout.modulefile
    if is_there(path) and not made_by_us(path):
        yield RequestError("envbuild did not make this modulefile", at=Location(path=path), hint=hint)
    if is_there(layout.home) and layout.in_use is None:
        yield RequestError("envbuild did not install this", at=Location(path=layout.home), hint=hint)
    for release in layout.releases:
        record = None if release.is_symlink() else read_record(release)
        if record is None and not release.is_symlink() and (newer := newer_format(release)) is not None:
            yield newer
            continue
        if record is None or (record.name, record.version) != (layout.name, layout.version):
            yield RequestError("envbuild did not install this", at=Location(path=release), hint=hint)
            continue
        for path in _foreign_files_in(release):
            yield RequestError(
                "envbuild did not put this into the installation", at=Location(path=path), hint=hint
            )


def uninstall(layout: Layout) -> Uninstalled:
    """Remove a module: its modulefile, its wrappers, its images, and its default marker.

    If it was the chosen default, the highest other version becomes the default, one that is not retired if
    there is one. Jobs that run on its image lose it. RequestError: a file is not envbuild's, or this user may
    not remove it; then nothing has changed. If the file system fails later, repeat it.
    """
    marker, directories = layout.default_marker, (layout.modulefile.parent, layout.releases_dir)
    modulefiles = [layout.modulefile] if is_there(layout.modulefile) else []
    releases, links = layout.releases, [layout.home] if is_there(layout.home) else []
    with os_errors_explained(layout.root, "uninstall", hint="who installed it can remove it"):
        raise_all([*foreign_files(layout)])
        for directory in directories:
            if directory.is_dir() and not os.access(directory, os.W_OK):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(directory))
        chosen = default = read_default(layout)
        others = [module for module in _versions_of(layout.root, layout.name) if module.layout != layout]
        retired = [module.layout.version for module in others if module.retired_until is not None]
        if chosen == layout.version:
            current = [module for module in others if module.retired_until is None] or others
            default = current[-1].layout.version if current else None
        had_marker = made_by_us(marker)
        if had_marker:
            write_marker(layout, default=default, retired=retired)
        for path in modulefiles:
            path.unlink()
        for release in releases:
            aside = release.with_name(GONE + release.name)
            remove(aside)
            release.rename(aside)
        for path in (*layout.half_deleted, *links):
            remove(path)
        for directory in directories:
            with contextlib.suppress(OSError):
                directory.rmdir()
    moved = chosen == layout.version
    return Uninstalled(
        module=layout.label,
        removed=(
            *([marker] if had_marker and not made_by_us(marker) else []),
            *modulefiles,
            *links,
            *releases,
        ),
        default=default,
        default_moved=moved,
    )


def _versions_of(root: Path, name: str) -> tuple[InstalledModule, ...]:
    """Return the installed versions of one name, from the lowest to the highest."""
    names = {*list_directory(root / "modulefiles" / name), *list_directory(root / "envs" / name)}
    versions = [version for version in names if re.fullmatch(VERSION, version, re.ASCII)]
    layouts = [Layout(root=root, name=name, version=version) for version in versions]
    ours = [layout for layout in layouts if made_by_us(layout.modulefile) or layout.in_use is not None]
    return tuple(_read(layout) for layout in sorted(ours, key=lambda layout: version_order(layout.version)))


def _read(layout: Layout) -> InstalledModule:
    record = read_record(layout.home)
    image = (Path(record.image) if record.image else layout.home / IMAGE) if record else None
    problems = [f"{path} is missing" for path in (layout.modulefile, image) if path and not path.is_file()]
    return InstalledModule(
        layout=layout,
        record=record,
        image=image,
        default=read_default(layout) == layout.version,
        retired_until=retired_until(layout),
        deprecation=deprecation(layout),
        kept=tuple(release for release in layout.releases if release != layout.in_use),
        problems=tuple(problems if record else [*problems, _why_unread(layout.home)]),
    )


def _why_unread(home: Path) -> str:
    newer = newer_format(home)
    return f"{newer.problem} ({newer.hint})" if newer is not None else f"{home} holds no installation"


def _foreign_files_in(release: Path) -> Iterator[Path]:
    """Yield the files of a release that no installation writes."""
    ours = {IMAGE, VENV_MAKER, RECORD, VERDICT, HOST_STAGE, "bin"}
    for name in list_directory(release):
        if name not in ours and not re.fullmatch(_PARTIAL, name):
            yield release / name
    for name in list_directory(release / "bin"):
        path = release / "bin" / name
        if name != LAUNCHER and not is_wrapper(path) and not re.fullmatch(_PARTIAL, name):
            yield path
