"""Where an installation lies below its root, and which of the files there are ours.

    modulefiles/NAME/VERSION.lua    for Lmod
    modulefiles/NAME/VERSION        the same in Tcl, for Environment Modules
    modulefiles/NAME/.version       which version is the default; only if one was chosen
    envs/NAME/VERSION               link to the release in use
    envs/NAME/.VERSION-<digest>     a release: image.sif, make_venv.py, installed.json, bin/

Lmod takes the Lua file where both are there; Environment Modules passes over what does not begin with
``#%Module``. So one directory serves both.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from envbuild.activate.modulefile import DIALECTS, MADE_BY

IMAGE = "image.sif"
STAGE = "host"
MARKER = ".version"

_HEAD_BYTES = 512


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """The places of one module.

    Attributes
    ----------
    root : Path
        Where modules live; absolute.
    name, version : str
        Checked by `envbuild.activate.model.check_names` or `parse_module`.
    """

    root: Path
    name: str
    version: str

    @property
    def label(self) -> str:
        """``name/version``: what ``module load`` takes."""
        return f"{self.name}/{self.version}"

    @property
    def shelf(self) -> Path:
        """Where all releases of the name lie."""
        return self.root / "envs" / self.name

    @property
    def home(self) -> Path:
        """The installation as users reach it."""
        return self.shelf / self.version

    @property
    def modulefiles(self) -> tuple[Path, ...]:
        """A modulefile for each of `DIALECTS`."""
        directory = self.root / "modulefiles" / self.name
        return tuple(directory / f"{self.version}{dialect.suffix}" for dialect in DIALECTS)

    def release(self, digest: str, *, linked: bool, hosted: bool) -> Path:
        """Return where the release of an image lies.

        Parameters
        ----------
        digest : str
            The image's ``sha256:…``.
        linked, hosted : bool
            Whether it refers to an image elsewhere; whether the host lends it libraries.
        """
        name = f".{self.version}-{digest.removeprefix('sha256:')[:16]}"
        # They differ in their commands: one must not find what another left.
        return self.shelf / f"{name}{'-link' if linked else ''}{'-host' if hosted else ''}"

    def is_release(self, name: str) -> bool:
        """Return whether a name on the shelf is that of a release of this version."""
        return re.fullmatch(rf"\.{re.escape(self.version)}-[0-9a-f]{{16}}(-link)?(-host)?", name) is not None

    @property
    def in_use(self) -> Path | None:
        """The release that the link points to; None where there is no link, or one to anything else."""
        if not self.home.is_symlink():
            return None
        name = str(self.home.readlink())
        return self.shelf / name if self.is_release(name) else None


def made_by_us(path: Path) -> bool:
    """Return whether a modulefile or default marker says that we made it; not so for what cannot be read."""
    if path.is_symlink() or not path.is_file():
        return False
    try:
        with path.open("rb") as file:
            head = file.read(_HEAD_BYTES).decode(errors="replace").splitlines()
    except OSError:
        return False
    return any(line.lstrip("-# ") == MADE_BY for line in head[:2])
