"""What is installed below a root."""

from __future__ import annotations

import itertools
import re
from dataclasses import dataclass
from pathlib import Path

from envbuild.activate.default import ascending, read_default
from envbuild.activate.layout import IMAGE, Layout, made_by_us
from envbuild.activate.modulefile import DIALECTS
from envbuild.activate.record import Record, read_record
from envbuild.errors import RequestError
from envbuild.spec.model import NAME, VERSION
from envbuild.system.files import list_directory


@dataclass(frozen=True, slots=True, kw_only=True)
class InstalledModule:
    """A module of ours that is there.

    Attributes
    ----------
    layout : Layout
        Its places.
    record : Record or None
        What its release says; None where that cannot be read.
    default : bool
        Whether it was chosen as the default version.
    kept : tuple of Path
        Releases of other images that it replaced.
    problems : tuple of str
        Why it cannot be loaded or started; empty for a sound one.
    """

    layout: Layout
    record: Record | None
    default: bool
    kept: tuple[Path, ...]
    problems: tuple[str, ...]

    @property
    def linked(self) -> bool:
        """Whether it refers to an image where that lies, instead of a copy."""
        return self.record is not None and bool(self.record.image)

    @property
    def image(self) -> Path | None:
        """The image that it starts; None where its release cannot be read."""
        return _image(self.layout, self.record) if self.record is not None else None


def parse_module(text: str) -> tuple[str, str | None]:
    """Return name and version of ``NAME/VERSION``, or the name and None.

    Raises
    ------
    RequestError
        It is neither.
    """
    name, slash, version = text.partition("/")
    if not re.fullmatch(NAME, name, flags=re.ASCII) or (
        slash and not re.fullmatch(VERSION, version, flags=re.ASCII)
    ):
        raise RequestError(f"`{text}` names no module", hint="write NAME or NAME/VERSION")
    return name, version if slash else None


def find_installed(root: Path) -> tuple[InstalledModule, ...]:
    """Return all modules of ours below a root, by name, then from the lowest version to the highest.

    What is not ours is passed over.

    Raises
    ------
    RequestError
        A directory cannot be read.
    """
    names = {*list_directory(root / "modulefiles"), *list_directory(root / "envs")}
    known = sorted(name for name in names if re.fullmatch(NAME, name, flags=re.ASCII))
    return tuple(itertools.chain.from_iterable(find_versions(root, name) for name in known))


def find_versions(root: Path, name: str) -> tuple[InstalledModule, ...]:
    """Return the installed versions of one name, from the lowest to the highest.

    Raises
    ------
    RequestError
        A directory cannot be read.
    """
    directory = root / "modulefiles" / name
    chosen = read_default(directory)
    versions = {_version_of(file) for file in list_directory(directory) if made_by_us(directory / file)}
    shelf = root / "envs" / name
    versions |= {
        entry
        for entry in list_directory(shelf)
        if Layout(root=root, name=name, version=entry).in_use is not None
    }
    known = [version for version in versions if re.fullmatch(VERSION, version, flags=re.ASCII)]
    return tuple(
        _look_at(Layout(root=root, name=name, version=version), default=version == chosen)
        for version in ascending(known)
    )


def _version_of(file: str) -> str:
    # The first suffix that fits: Tcl has none, and comes last.
    return next(file.removesuffix(each.suffix) for each in DIALECTS if file.endswith(each.suffix))


def _look_at(layout: Layout, *, default: bool) -> InstalledModule:
    record = read_record(layout.home)
    problems = [f"{path} is missing" for path in layout.modulefiles if not path.is_file()]
    if record is None:
        problems.append(f"{layout.home} holds no installation")
    elif not _image(layout, record).is_file():
        problems.append(f"{_image(layout, record)} is missing")
    releases = [layout.shelf / name for name in list_directory(layout.shelf) if layout.is_release(name)]
    return InstalledModule(
        layout=layout,
        record=record,
        default=default,
        kept=tuple(release for release in releases if release != layout.in_use),
        problems=tuple(problems),
    )


def _image(layout: Layout, record: Record) -> Path:
    return Path(record.image) if record.image else layout.home / IMAGE
