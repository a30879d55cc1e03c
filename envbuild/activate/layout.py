"""The paths of a module below its root, and which files there are envbuild's.

    modulefiles/NAME/VERSION        the modulefile, in Tcl: Lmod and Environment Modules both read it
    modulefiles/NAME/.version       the default version, if one was chosen, and the retired ones, which
                                    `avail` hides; both read it
    envs/NAME/VERSION               link to the release in use
    envs/NAME/.VERSION-<digest>     a release: image.sif, make_venv.py, installed.json, verdict.json, bin/

A release that is being deleted is called ``.gone.VERSION-<digest>``.
"""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import date
from pathlib import Path
from typing import Final, Literal

from packaging.version import InvalidVersion, Version
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from envbuild.errors import Location, RequestError
from envbuild.formats import NEWER, format_error, is_newer
from envbuild.spec.model import MAX_NAME, NAME, VERSION
from envbuild.system.files import list_directory, read_input

IMAGE = "image.sif"
HOST_STAGE = "host"
RECORD = "installed.json"
RECORD_FORMAT: Final = 3
VERDICT = "verdict.json"
"""The test verdict at the installation, for users who cannot read the store of the account that tested."""
GONE = ".gone"
MADE_BY = "Made by envbuild: `envbuild module install` writes this file anew."
"""The first comment of every modulefile and default marker of envbuild."""

_HEAD_BYTES = 512
_MODULEFILE_LIMIT_BYTES = 1 << 20
RETIRED = "# Retired: to be uninstalled on "
"""The beginning of the line in a modulefile that states the date of a retirement."""
_RETIRED = re.compile(rf"^{RETIRED}([0-9]{{4}}-[0-9]{{2}}-[0-9]{{2}})$", re.MULTILINE)
DEPRECATED = "# Deprecated: "
"""The beginning of the line in a modulefile that states the day of a deprecation and the replacement."""
_DEPRECATED = re.compile(
    rf"^{DEPRECATED}([0-9]{{4}}-[0-9]{{2}}-[0-9]{{2}}), use ([\w./+-]{{1,255}})$", re.MULTILINE | re.ASCII
)
_RECORD_LIMIT_BYTES = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Deprecation:
    """From which day users should load another module; the deprecated one stays in `avail`."""

    on: date
    use: str
    """The other module, as ``module load`` takes it: of envbuild or of others."""

    @staticmethod
    def of(on: date, use: str) -> Deprecation:
        """Return a deprecation; RequestError for a replacement that cannot be the name of a module."""
        if not re.fullmatch(r"\w[\w.+-]*(/\w[\w.+-]*)*", use, re.ASCII) or len(use) > MAX_NAME:
            raise RequestError(f"`{use}` names no module", hint="write --use NAME or --use NAME/VERSION")
        return Deprecation(on=on, use=use)

    def __str__(self) -> str:
        """Return it in words: ``deprecated on 2027-01-31: use pytorch/2026.12``."""
        return f"deprecated on {self.on}: use {self.use}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """The paths of one module; `root` is absolute, `name` and `version` are valid."""

    root: Path
    name: str
    version: str

    @property
    def label(self) -> str:
        """``name/version``: the argument of ``module load``."""
        return f"{self.name}/{self.version}"

    @property
    def releases_dir(self) -> Path:
        """The directory of all releases of the name."""
        return self.root / "envs" / self.name

    @property
    def home(self) -> Path:
        """The installation as users reach it: a link to a release."""
        return self.releases_dir / self.version

    @property
    def modulefile(self) -> Path:
        """The modulefile, in Tcl."""
        return self.root / "modulefiles" / self.name / self.version

    @property
    def default_marker(self) -> Path:
        """The file that chooses the default version of the name."""
        return self.modulefile.with_name(".version")

    def release(self, digest: str, *, linked: bool, hosted: bool) -> Path:
        """Return the directory of the release of an image.

        Releases that are linked or use host libraries have other commands, and so other names.
        """
        suffix = f"{'-link' if linked else ''}{'-host' if hosted else ''}"
        return self.releases_dir / f".{self.version}-{digest.removeprefix('sha256:')[:16]}{suffix}"

    def _is_release(self, name: str) -> bool:
        return re.fullmatch(rf"\.{re.escape(self.version)}-[0-9a-f]{{16}}(-link)?(-host)?", name) is not None

    @property
    def releases(self) -> tuple[Path, ...]:
        """All releases of the version."""
        names = list_directory(self.releases_dir)
        return tuple(self.releases_dir / name for name in names if self._is_release(name))

    @property
    def half_deleted(self) -> tuple[Path, ...]:
        """Releases that an interrupted removal left."""
        names = [name for name in list_directory(self.releases_dir) if name.startswith(GONE)]
        return tuple(self.releases_dir / name for name in names if self._is_release(name.removeprefix(GONE)))

    @property
    def in_use(self) -> Path | None:
        """The release that `home` links to; None if it is not a link to a release."""
        if not self.home.is_symlink():
            return None
        name = str(self.home.readlink())
        return self.releases_dir / name if self._is_release(name) else None


class Record(BaseModel):
    """The description of what was installed, in every release."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, defer_build=True)

    format: Literal[3] = RECORD_FORMAT
    name: str
    version: str
    digest: str = Field(pattern=r"\Asha256:[0-9a-f]{64}\z")
    """The image's identity."""
    image: str = ""
    """The image that the release refers to; empty if it holds a copy."""
    host_libraries: dict[str, str] = {}
    """The host's libraries that it uses, as test verdicts identify them."""


def read_record(release: Path) -> Record | None:
    """Return the record of a release; None if it has no valid one."""
    with suppress(ValueError, RequestError):
        return _parsed_record(release)
    return None


def newer_format(release: Path) -> RequestError | None:
    """Return the error for a release whose record has a format to come; None for others."""
    try:
        _parsed_record(release)
    except (ValueError, RequestError) as error:
        if is_newer(error):
            at = Location(path=release / RECORD)
            return RequestError(f"the record of the module cannot be read: {error}", at=at, hint=NEWER)
    return None


def _parsed_record(release: Path) -> Record:
    try:
        return Record.model_validate_json(read_input(release / RECORD, limit_bytes=_RECORD_LIMIT_BYTES))
    except ValidationError as error:
        raise format_error(error, RECORD_FORMAT) or ValueError("it is not a record") from None


def parse_module(text: str) -> tuple[str, str | None]:
    """Return name and version of ``NAME/VERSION``, or the name and None; RequestError for other text."""
    name, slash, version = text.partition("/")
    is_valid = re.fullmatch(NAME, name, re.ASCII) and (not slash or re.fullmatch(VERSION, version, re.ASCII))
    if not is_valid or max(len(name), len(version)) > MAX_NAME:
        raise RequestError(f"`{text}` names no module", hint="write NAME or NAME/VERSION")
    return name, version if slash else None


def made_by_us(path: Path) -> bool:
    """Return whether a readable regular file is a modulefile or default marker of envbuild."""
    if path.is_symlink() or not path.is_file():
        return False
    try:
        with path.open("rb") as file:
            head = file.read(_HEAD_BYTES).decode(errors="replace").splitlines()
    except OSError:
        return False
    return any(line.lstrip("-# ") == MADE_BY for line in head[:2])


def is_there(path: Path) -> bool:
    """Return whether a path exists, even as a broken link."""
    return path.is_symlink() or path.exists()


def read_default(layout: Layout) -> str | None:
    """Return the version that envbuild's marker chooses for a module's name; None without a marker."""
    marker = layout.default_marker
    if not made_by_us(marker):
        return None
    chosen = re.search(r'^set ModulesVersion "([^"\\]+)"$', marker.read_text(errors="replace"), re.MULTILINE)
    return chosen[1] if chosen else None


def retired_until(layout: Layout) -> date | None:
    """Return the day on which a retired module is to be uninstalled; None if it is not retired."""
    try:
        stated = _RETIRED.search(_own_modulefile(layout))
        return date.fromisoformat(stated[1]) if stated else None
    except (RequestError, ValueError):
        return None


def deprecation(layout: Layout) -> Deprecation | None:
    """Return the deprecation that a modulefile states; None without one."""
    try:
        stated = _DEPRECATED.search(_own_modulefile(layout))
        return Deprecation.of(date.fromisoformat(stated[1]), stated[2]) if stated else None
    except (RequestError, ValueError):
        return None


def _own_modulefile(layout: Layout) -> str:
    """Return the text of a modulefile of envbuild; empty for another file. Raises as `read_input`."""
    text = read_input(layout.modulefile, limit_bytes=_MODULEFILE_LIMIT_BYTES).decode(errors="replace")
    return text if made_by_us(layout.modulefile) else ""


def retired_versions(layout: Layout) -> tuple[str, ...]:
    """Return the versions of a module's name that are retired."""
    names = list_directory(layout.modulefile.parent)
    versions = [name for name in names if re.fullmatch(VERSION, name, re.ASCII)]
    return tuple(version for version in versions if retired_until(replace(layout, version=version)))


def version_order(version: str) -> tuple[bool, Version, list[str | int]]:
    """Return a sort key: versions valid in Python (PEP 440) in Python's order, after all others.

    Digits in the others compare as numbers.
    """
    # Text and digits alternate, so that text is never compared with numbers.
    pieces = [int(piece) if piece.isdecimal() else piece for piece in re.split(r"([0-9]+)", version)]
    try:
        return True, Version(version), pieces
    except InvalidVersion:
        return False, Version("0"), pieces
