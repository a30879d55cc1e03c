"""Requirements of source archives and of their builds, read from the archives.

Nothing of an archive is run. Sources: the PyPA specifications of source distributions, core metadata and
pyproject.toml; setuptools' documentation of ``requires.txt``.
"""

from __future__ import annotations

import gzip
import re
import tarfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path, PurePosixPath
from typing import Any

from packaging.metadata import parse_email
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from envbuild.errors import Location, RequestError
from envbuild.spec.model import MAX_PACKAGES, python_requirement
from envbuild.spec.tomlfile import read_toml
from envbuild.system.tarmembers import TarMembers

_MAX_FILE_BYTES = 4 << 20
_MAX_BYTES = 8 << 30  # unpacked
_MAX_MEMBERS = 200_000
_STATIC_SINCE = Version("2.2")  # of core metadata
# Of an archive without a pyproject.toml (PEP 517); older ones make no wheels without `wheel`.
_DEFAULT_IMPORTS = ("setuptools>=40.8.0", "wheel")
_SECTION = re.compile(r"\[(?P<extra>[^:\]]*)(?::(?P<marker>.*))?\]")


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceMetadata:
    """Requirements of a source archive and of its build."""

    requires: tuple[str, ...]
    """PEP 508; those of extras have a marker."""
    imports: tuple[str, ...]
    """Requirements of the build (``build-system.requires``)."""


def read_archive(path: Path, *, at: Location) -> SourceMetadata:
    """Read a source archive (``.tar.gz``).

    RequestError: it cannot be read, or asks for something that is not in an index.
    """
    try:
        files = _files(path)
        project = read_toml(files.get("pyproject.toml", b"").decode())
        requirements = _requires(files, project.get("project", {}))
        requires = tuple(islice(requirements, MAX_PACKAGES + 1))
        system = project.get("build-system", {"requires": _DEFAULT_IMPORTS})
        imports = tuple(system.get("requires", _DEFAULT_IMPORTS))
        if not all(isinstance(text, str) for text in (*requires, *imports)):
            raise ValueError("its `pyproject.toml` is malformed")
        if len(requires) > MAX_PACKAGES or len(imports) > MAX_PACKAGES:
            raise ValueError(f"it has more than {MAX_PACKAGES} requirements")
        for text in (*requires, *imports):
            python_requirement(text)
    except (
        tarfile.TarError,
        OSError,
        EOFError,
        zlib.error,
        AttributeError,
        TypeError,
        ValueError,
        RecursionError,
    ) as error:
        problem = f"`{path.name}` cannot be built: {error}"
        hint = "take another version, or build a wheel of it yourself and name that (`{wheel: PATH}`)"
        raise RequestError(problem, at=at, hint=hint) from error
    return SourceMetadata(requires=requires, imports=imports)


def _files(path: Path) -> dict[str, bytes]:
    """Return what an archive has of the files that state something, by name."""
    files: dict[str, bytes] = {}
    with gzip.open(path, "rb") as stream:
        members = TarMembers(stream)
        for count, member in enumerate(members):
            if members.offset > _MAX_BYTES:
                raise ValueError(f"it unpacks to more than {_MAX_BYTES} bytes")
            if count >= _MAX_MEMBERS:
                raise ValueError(f"it has more than {_MAX_MEMBERS} files")
            # All lie in one directory.
            member_path = PurePosixPath(member.name)
            in_root = len(member_path.parts) == 2 and member_path.name in ("pyproject.toml", "PKG-INFO")
            if not in_root and not member_path.match("*.egg-info/requires.txt"):
                continue
            if member.isreg() and member.size <= _MAX_FILE_BYTES:
                files.setdefault(member_path.name, members.open(member).read())
    return files


def _requires(files: dict[str, bytes], project: dict[str, Any]) -> Iterator[str]:
    """Yield what an archive requires, from the first of its files that is certain of it."""
    metadata, _ = parse_email(files.get("PKG-INFO", b""))
    static = Version(metadata.get("metadata_version", "1.0")) >= _STATIC_SINCE
    dynamic = {name.lower() for name in metadata.get("dynamic", ())}
    if static and "requires-dist" not in dynamic:
        yield from metadata.get("requires_dist", ())
    elif project and "dependencies" not in project.get("dynamic", ()):
        yield from project.get("dependencies", ())
        for extra, texts in project.get("optional-dependencies", {}).items():
            for text in texts:
                yield _of_extra(text, extra)
    elif "requires.txt" in files:
        yield from _of_setuptools(files["requires.txt"].decode())
    else:
        # Of setuptools without requirements, or of other programs.
        yield from metadata.get("requires_dist", ())


def _of_setuptools(text: str) -> Iterator[str]:
    """Yield the requirements in a ``requires.txt``: sections are extras with markers (``[test:marker]``)."""
    extra = marker = ""
    for line in filter(None, map(str.strip, text.splitlines())):
        section = _SECTION.fullmatch(line)
        if section:
            extra, marker = section["extra"], section["marker"] or ""
        else:
            yield _of_extra(f"{line} ; {marker}" if marker else line, extra)


def _of_extra(text: str, extra: str) -> str:
    """Return a requirement that only holds for an extra, if there is one."""
    if not extra:
        return text
    requirement = Requirement(text)
    condition = f"extra == '{canonicalize_name(extra)}'"
    marker = f"({requirement.marker}) and {condition}" if requirement.marker else condition
    requirement.marker = None
    return f"{requirement} ; {marker}"
