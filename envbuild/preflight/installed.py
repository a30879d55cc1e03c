"""Python's distributions as an image holds them: their names, versions and requirements. Pure.

Source: the core metadata (PEP 566), the database of installed distributions (PEP 376), and
setuptools' ``egg-info``, all as `importlib.metadata` reads them.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import PurePosixPath
from typing import Any

# Files that tell of a distribution; Debian has `egg-info` as a file, too.
TELLS = re.compile(r".+\.(dist-info/METADATA|egg-info/(PKG-INFO|requires\.txt)|egg-info)")
_KEYS = ("Name", "Version", "Requires-Python")
_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?")


@dataclass(frozen=True, slots=True)
class Installed:
    """A distribution."""

    name: str
    version: str
    """As its metadata has them; the version may be none of PEP 440."""
    requires: tuple[str, ...] = ()
    """PEP 508 requirements as written; what is none is left to who reads them."""
    python: str = ""
    """Versions of Python that it is for, as written; empty for any."""

    @property
    def shown(self) -> str:
        """Name and version, for people."""
        return f"{self.name} {self.version}"


class _Distribution(metadata.Distribution):
    """A distribution of which some files are known: name within its directory → text."""

    def __init__(self, texts: Mapping[str, str]) -> None:
        self._texts = texts

    def read_text(self, filename: str | os.PathLike[str]) -> str | None:
        return self._texts.get(str(filename))

    # The type that it should return has no public name before Python 3.12.
    def locate_file(self, path: str | os.PathLike[str]) -> Any:  # noqa: ANN401
        return PurePosixPath(path)


def worth_keeping(path: str, text: str) -> str:
    """Return what of a file tells of a distribution: a description may be long, and hold anything."""
    if path.endswith("/requires.txt"):
        return text
    return re.split(r"\r?\n\r?\n", text, maxsplit=1)[0] + "\n"


def read_installed(texts: Mapping[str, str]) -> dict[str, Installed]:
    """Return the distributions that some files tell of.

    Parameters
    ----------
    texts : mapping of str to str
        Path that matches `TELLS` → what of it is worth keeping.

    Returns
    -------
    dict of str to Installed
        Path of the file that names it → the distribution; without a name and a version it is none.
    """
    found = {}
    for path, text in texts.items():
        directory, _, file = path.rpartition("/")
        if file == "requires.txt":
            continue
        # An `egg-info` that is a file holds what a directory has in PKG-INFO.
        known = {file if file in ("METADATA", "PKG-INFO") else "": text}
        if file == "PKG-INFO" and f"{directory}/requires.txt" in texts:
            known["requires.txt"] = texts[f"{directory}/requires.txt"]
        one = _Distribution(known)
        header = one.metadata
        # Asking for what is not there is deprecated.
        name, version, python = (header[key] if key in header else "" for key in _KEYS)  # noqa: SIM401
        if not _NAME.fullmatch(name) or not version or not version.isprintable():
            continue
        requires = tuple(line for line in one.requires or () if line.isprintable())
        found[path] = Installed(name, version, requires, python if python.isprintable() else "")
    return found
