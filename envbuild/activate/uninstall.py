"""Take away what an installation wrote, and nothing else.

All that goes is renamed first, the modulefiles before what they name: whoever
looks finds the whole module or none, and what could not be renamed puts the
rest back. Only then is anything deleted; a run that was cut off there is ended
by the next one.
"""

from __future__ import annotations

import contextlib
import re
import secrets
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from envbuild.activate.default import ascending, read_default, write_default
from envbuild.activate.installed import find_versions
from envbuild.activate.layout import IMAGE, MARKER, STAGE, Layout, made_by_us
from envbuild.activate.placing import told
from envbuild.activate.record import RECORD, read_record
from envbuild.activate.wrapper import LAUNCHER, VENV_MAKER
from envbuild.errors import EnvbuildError, Location, RequestError, did_you_mean, raise_all
from envbuild.system.files import list_directory

_STAGED = r"\..+\.[0-9a-f]{16}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Uninstalled:
    """What an uninstallation took away.

    Attributes
    ----------
    module : str
        ``name/version``.
    removed : tuple of Path
        Default marker, modulefiles, the link to the release, and releases; as they were called.
    default : str or None
        The version that is the default now, where one was chosen.
    default_moved : bool
        Whether the chosen default was the version that went.
    """

    module: str
    removed: tuple[Path, ...]
    default: str | None
    default_moved: bool

    def to_data(self) -> dict[str, object]:
        """Return the same as plain data, for JSON."""
        return {
            "module": self.module,
            "removed": [str(path) for path in self.removed],
            "default": self.default,
            "default_moved": self.default_moved,
        }


def choose(root: Path, name: str, version: str | None, *, every: bool) -> tuple[Layout, ...]:
    """Return which versions are meant.

    Parameters
    ----------
    version : str or None
        None for the only one there is.
    every : bool
        Take all versions of the name.

    Raises
    ------
    RequestError
        There is no such module, or there are several versions and neither one nor all were asked for.
    """
    found = [each.layout for each in find_versions(root, name)]
    if version is not None:
        one = Layout(root=root, name=name, version=version)
        places = (*one.modulefiles, one.home, *_releases(one), *_leftovers(one))
        if any(map(_is_there, places)):
            return (one,)
        hint = f"installed: {', '.join(each.label for each in found)}" if found else _near(root, name)
        raise RequestError(f"no module `{one.label}` is installed under `{root}`", hint=hint)
    if not found:
        raise RequestError(f"no module `{name}` is installed under `{root}`", hint=_near(root, name))
    if len(found) > 1 and not every:
        raise RequestError(
            f"`{name}` is installed in {len(found)} versions: {', '.join(each.version for each in found)}",
            hint=f"name one, as `{found[0].label}`, or take all with --all",
        )
    return tuple(found)


def uninstall(layout: Layout) -> Uninstalled:
    """Remove a module: its modulefiles, its wrappers, its images, and its place as the default version.

    If it was chosen as the default, the highest of the other versions becomes it.
    Jobs that run on its image lose it.

    Raises
    ------
    RequestError
        Something that would go is not ours, or the file system refuses: then nothing has changed, unless
        it refuses only to delete what was set aside.
    """
    directory = layout.modulefiles[0].parent
    going = [path for path in (*layout.modulefiles, layout.home, *_releases(layout)) if _is_there(path)]
    with told(layout.root, "uninstall", hint="who installed it can remove it"):
        raise_all([*strangers(layout)])
        chosen = read_default(directory)
        found = [each.layout.version for each in find_versions(layout.root, layout.name)]
        others = ascending(version for version in found if version != layout.version)
        moved = chosen == layout.version
        if moved and not others:
            going.insert(0, directory / MARKER)
        with contextlib.ExitStack() as undo:
            if moved and others:
                write_default(directory, others[-1])
                undo.callback(write_default, directory, layout.version)
            aside = [_set_aside(path, layout, undo) for path in going]
            undo.pop_all()
        for path in {*aside, *_leftovers(layout)}:
            _delete(path)
        for empty in (directory, layout.shelf):
            with contextlib.suppress(OSError):
                empty.rmdir()
    return Uninstalled(
        module=layout.label,
        removed=tuple(going),
        default=(others[-1] if others else None) if moved else chosen,
        default_moved=moved,
    )


def _near(root: Path, name: str) -> str:
    near = did_you_mean(name, list_directory(root / "envs"))
    return near or "`envbuild module ls --root DIR` lists what is"


def strangers(layout: Layout) -> Iterator[EnvbuildError]:
    """Yield an error for each thing in the way of an uninstallation that we did not make."""
    hint = "move it away, or remove it yourself"
    for path in layout.modulefiles:
        if _is_there(path) and not made_by_us(path):
            yield RequestError("envbuild did not make this modulefile", at=Location(path=path), hint=hint)
    if _is_there(layout.home) and layout.in_use is None:
        yield RequestError("this is no installation of envbuild's", at=Location(path=layout.home), hint=hint)
    for release in _releases(layout):
        record = read_record(release)
        known = record is not None and (record.name, record.version) == (layout.name, layout.version)
        if release.is_symlink() or not known:
            yield RequestError("this is no installation of envbuild's", at=Location(path=release), hint=hint)
            continue
        for path in _foreign(release):
            yield RequestError(
                "envbuild did not put this into the installation", at=Location(path=path), hint=hint
            )


def _releases(layout: Layout) -> list[Path]:
    return [layout.shelf / name for name in list_directory(layout.shelf) if layout.is_release(name)]


def _foreign(release: Path) -> Iterator[Path]:
    """Yield what lies in a release and is not of an installation."""
    ours = {IMAGE, VENV_MAKER, RECORD, STAGE, "bin"}
    for name in list_directory(release):
        if name not in ours and not re.fullmatch(_STAGED, name):
            yield release / name
    commands = release / "bin"
    for name in list_directory(commands):
        path = commands / name
        is_wrapper = path.is_symlink() and str(path.readlink()) == LAUNCHER
        if name != LAUNCHER and not is_wrapper and not re.fullmatch(_STAGED, name):
            yield path


def _set_aside(path: Path, layout: Layout, undo: contextlib.ExitStack) -> Path:
    """Rename something to a name that nobody looks for, until `undo` is emptied."""
    aside = path.with_name(f"{_aside(layout)}{secrets.token_hex(8)}")
    path.rename(aside)
    undo.callback(aside.rename, path)
    return aside


def _aside(layout: Layout) -> str:
    return f".gone-{layout.version}-"


def _leftovers(layout: Layout) -> list[Path]:
    """Return what a run that was cut off has set aside."""
    pattern = re.escape(_aside(layout)) + "[0-9a-f]{16}"
    return [
        directory / name
        for directory in (layout.modulefiles[0].parent, layout.shelf)
        for name in list_directory(directory)
        if re.fullmatch(pattern, name)
    ]


def _delete(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _is_there(path: Path) -> bool:
    return path.is_symlink() or path.exists()
