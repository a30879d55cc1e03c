"""Reads the metadata of installed Python distributions: names, versions and requirements. Pure.

Source: the core metadata (PEP 566), the database of installed distributions (PEP 376), and
setuptools' ``egg-info``, all as `importlib.metadata` reads them.
"""

from __future__ import annotations

import os
import posixpath
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import PurePosixPath
from typing import Any

# Files with the metadata of a distribution; Debian has `egg-info` as a file, too, and an egg is a directory
# of packages itself.
METADATA = re.compile(r".+\.(dist-info/METADATA|(?:egg-info|egg/EGG-INFO)/(PKG-INFO|requires\.txt)|egg-info)")
RECORD = re.compile(r"(.+)/[^/]+\.dist-info/RECORD")
"""The list of a distribution's files."""
# Of all files with metadata of an image, and of each.
MAX_BYTES = 256 << 20
MAX_FILES = 20_000
MAX_LINES = 10_000
MAX_REQUIREMENTS = 100_000
_KEYS = ("Name", "Version", "Requires-Python")
_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?")
# Characters. Python refuses to read numbers of more than 4300 digits, which a version could have.
_MAX_NAME = 255
_MAX_LINE = 4096


class TooMuchMetadataError(ValueError):
    """An image or wheel has far more metadata than any real one."""


@dataclass(frozen=True, slots=True)
class Distribution:
    """An installed distribution."""

    name: str
    version: str
    """As its metadata has them; the version may not follow PEP 440."""
    requires: tuple[str, ...] = ()
    """Its requirements as written; they may not follow PEP 508."""
    python: str = ""
    """Versions of Python that it is for, as written; empty for any."""


class _Metadata(metadata.Distribution):
    def __init__(self, texts: Mapping[str, str]) -> None:
        self._texts = texts

    def read_text(self, filename: str | os.PathLike[str]) -> str | None:
        return self._texts.get(str(filename))

    # The type that it should return has no public name before Python 3.12.
    def locate_file(self, path: str | os.PathLike[str]) -> Any:  # noqa: ANN401
        return PurePosixPath(path)


def metadata_header(path: str, text: str) -> str:
    """Return the part of a metadata file worth keeping: the description after the header may be long.

    TooMuchMetadataError: even that is far too long.
    """
    if not path.endswith("/requires.txt"):
        text = re.split(r"\r?\n\r?\n", text, maxsplit=1)[0] + "\n"
    if text.count("\n") > MAX_LINES:
        raise TooMuchMetadataError(f"`{path}` has more than {MAX_LINES} lines of metadata")
    return text


class MetadataFiles:
    """The headers of an image's files with metadata, by path. TooMuchMetadataError: there is far too much."""

    def __init__(self) -> None:
        self.texts: dict[str, str] = {}
        self._size = 0

    def add(self, path: str, text: str) -> None:
        """Add the text of a file; its description counts, too, since it was read."""
        self.count(text)
        self.texts[path] = metadata_header(path, text)
        if len(self.texts) > MAX_FILES:
            raise TooMuchMetadataError(f"it has more than {MAX_FILES} files with metadata of Python packages")

    def count(self, text: str) -> None:
        """Count a text that was read, and is not kept."""
        self._size += len(text)
        if self._size > MAX_BYTES:
            raise TooMuchMetadataError(
                f"the metadata of its Python packages is more than {MAX_BYTES >> 20} MiB"
            )


def libraries_of_record(path: str, text: str) -> Iterator[str]:
    """Yield the shared libraries that a ``RECORD`` lists, as absolute paths.

    Source: PEP 376: a table with commas; paths are relative to the directory of packages.
    """
    place = RECORD.fullmatch(path)
    for line in text.splitlines() if place else ():
        # Names of libraries have no commas, which would be in quotes.
        name = line.partition(",")[0]
        if place and ".so" in name.rpartition("/")[2] and len(name) <= _MAX_LINE:
            yield posixpath.normpath(f"{place[1]}/{name}")


def read_distributions(texts: Mapping[str, str]) -> dict[str, Distribution]:
    """Return the distributions with valid name and version, by the path of the file that names them.

    `texts` maps paths that match `METADATA` to the headers of these files. TooMuchMetadataError: they have
    far too many requirements.
    """
    distributions = {}
    count = 0
    for path, text in texts.items():
        directory, _, file = path.rpartition("/")
        if file == "requires.txt":
            continue
        # An `egg-info` that is a file holds what a directory has in PKG-INFO.
        files = {file if file in ("METADATA", "PKG-INFO") else "": text}
        if file == "PKG-INFO" and f"{directory}/requires.txt" in texts:
            files["requires.txt"] = texts[f"{directory}/requires.txt"]
        described = _Metadata(files)
        header = described.metadata
        # Asking for an absent key is deprecated.
        name, version, python = (header[key] if key in header else "" for key in _KEYS)  # noqa: SIM401
        if not _NAME.fullmatch(name) or not version or not version.isprintable():
            continue
        if len(name) > _MAX_NAME or len(version) > _MAX_NAME:
            continue
        lines = (line for line in described.requires or () if line.isprintable() and len(line) <= _MAX_LINE)
        requires = tuple(dict.fromkeys(lines))
        count += len(requires)
        if count > MAX_REQUIREMENTS:
            raise TooMuchMetadataError(f"its Python packages have more than {MAX_REQUIREMENTS} requirements")
        distributions[path] = Distribution(name, version, requires, python if python.isprintable() else "")
    return distributions
