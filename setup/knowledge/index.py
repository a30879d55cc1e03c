"""Reads releases from the Python index that uv is configured for: its list of wheels, and their METADATA.

A wheel's METADATA is a few kilobytes of up to a gigabyte, so only these parts of the file are requested.
"""

from __future__ import annotations

import io
import json
import re
import tempfile
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from email.parser import Parser
from pathlib import Path
from typing import Any
from urllib.parse import urljoin

from packaging.specifiers import SpecifierSet
from packaging.tags import Tag
from packaging.utils import (
    InvalidSdistFilename,
    InvalidWheelFilename,
    canonicalize_name,
    parse_sdist_filename,
    parse_wheel_filename,
)
from packaging.version import InvalidVersion, Version
from requests import PreparedRequest
from requests.auth import AuthBase

from envbuild.digests import sha256_of
from envbuild.errors import MachineError
from envbuild.resolve import uvtext
from envbuild.resolve.origins import python_sources, read_machine
from envbuild.resolve.uv import UvRequest, UvRequirement, run_uv
from envbuild.resolve.uvtext import UvFailure
from envbuild.system.network import Client
from envbuild.system.redaction import redact

PYTHONS = ("2.7", *(f"3.{minor}" for minor in range(5, 17)))
MACHINES = {"x86_64": "amd64", "aarch64": "arm64"}
_MAX_PAGE_BYTES = 64 << 20
_MAX_METADATA_BYTES = 1 << 20
_BLOCK_BYTES = 256 * 1024
_PAGE_TYPE = "application/vnd.pypi.simple.v1+json"
_AS_BYTES = {"Accept-Encoding": "identity"}
_SINCE = "2019"
EACH = 0
_MANYLINUX = {"manylinux1": "2.5", "manylinux2010": "2.12", "manylinux2014": "2.17"}


@dataclass(frozen=True, slots=True)
class Wheel:
    """A wheel of a release, as the index lists it."""

    version: Version
    address: str
    tags: frozenset[Tag]
    requires_python: str
    uploaded: str
    has_metadata: bool = False
    """Whether the index serves its METADATA as a file beside it (PEP 658)."""

    @property
    def architectures(self) -> frozenset[str]:
        """The processors that it is for, under Linux."""
        platforms = {tag.platform for tag in self.tags}
        if "any" in platforms:
            return frozenset(MACHINES.values())
        linux = {platform for platform in platforms if "linux" in platform and "musl" not in platform}
        return frozenset(MACHINES[name] for name in MACHINES for platform in linux if platform.endswith(name))

    @property
    def pythons(self) -> frozenset[str]:
        """The Pythons that it is for."""
        allowed = SpecifierSet(self.requires_python)
        known = [python for python in PYTHONS if allowed.contains(f"{python}.99")]
        return frozenset(python for python in known if any(_takes(python, tag) for tag in self.tags))

    @property
    def glibc(self) -> str:
        """The C library that its tags name; empty for none."""
        matches = (re.match(r"manylinux_2_([0-9]+)_|(manylinux[0-9]+)_", tag.platform) for tag in self.tags)
        floors = [f"2.{match[1]}" if match[1] else _MANYLINUX.get(match[2], "") for match in matches if match]
        return min(filter(None, floors), key=Version, default="")


def _takes(python: str, tag: Tag) -> bool:
    """Return whether a CPython, not the free-threaded build, takes wheels with a tag."""
    number = python.replace(".", "")
    if tag.abi == "abi3":
        return tag.interpreter.startswith("cp3") and int(tag.interpreter[3:] or 0) <= int(number[1:])
    if tag.abi == "none" and tag.interpreter.startswith("py"):
        return tag.interpreter == f"py{number[0]}"
    return tag.interpreter == f"cp{number}" and tag.abi.removeprefix(f"cp{number}") in ("", "m", "mu", "none")


@dataclass(frozen=True, slots=True)
class Reading:
    """Which releases of a distribution are read, and which of their requirements."""

    oldest: str
    """The first release."""
    relevant: tuple[str, ...] = ()
    """Distributions whose requirements are kept; a name that ends with ``-`` stands for all that begin so."""
    depth: int = 2
    """Numbers of a version that make a series."""


@dataclass(frozen=True, slots=True)
class Kept:
    """Facts that releases of a distribution state, as far as they are kept."""

    requirements: tuple[str, ...]
    """Distributions whose requirements are kept."""
    depth: int = 2
    """Numbers of a version that make a series, of which the newest release is read; `EACH` reads all."""
    tags: bool = False
    """Whether its wheels are for one Python each: their tags are kept, not Requires-Python."""


def read_releases(name: str, reading: Reading) -> dict[str, Any]:
    """Return the facts of each series of a distribution: version, Pythons, glibc, requirements.

    MachineError: the index cannot be read.
    """
    with Client() as client:
        series: dict[str, list[Wheel]] = {}
        for wheel in _wheels(client, name):
            if wheel.version >= Version(reading.oldest):
                series.setdefault(series_of(str(wheel.version), reading.depth), []).append(wheel)
        newest_first = sorted(series, key=Version, reverse=True)
        return {key: _facts(client, series[key], reading.relevant) for key in newest_first}


def series_of(version: str, depth: int = 2) -> str:
    """Return the first numbers of a version."""
    numbers = (*Version(version).release, *[0] * depth)
    return ".".join(map(str, numbers[:depth]))


def read_requirements(client: Client, index: str, name: str, kept: Kept) -> dict[str, dict[str, Any]]:
    """Return the facts that releases of a distribution since 2019 state, the oldest first.

    A release without a wheel states no requirements. MachineError: the index cannot be read.
    """
    releases: dict[Version, list[Mapping[str, Any]]] = {}
    base, files = _files(client, f"{index}/{name}/")
    for file in files:
        version = _version_of(file["filename"])
        if version is not None and not version.is_prerelease and not file.get("yanked"):
            releases.setdefault(version, []).append(file)
    series: dict[object, Version] = {}
    for version in sorted(releases):
        series[version if kept.depth == EACH else version.release[: kept.depth]] = version
    return {
        str(version): _stated(client, base, releases[version], kept)
        for version in series.values()
        if min(file.get("upload-time") or "9" for file in releases[version]) >= _SINCE
    }


def _stated(client: Client, base: str, files: Sequence[Mapping[str, Any]], kept: Kept) -> dict[str, Any]:
    """Return the facts that one release states: Requires-Python, tags of its wheels, requirements."""
    wheels = [_wheel_of(file, base) for file in files if file["filename"].endswith(".whl")]
    facts: dict[str, Any] = {}
    if kept.tags:
        facts["tags"] = _pythons_of(wheels)
    else:
        facts["python"] = files[0].get("requires-python") or ""
    for_linux = [wheel for wheel in wheels if wheel.architectures]
    fitting = [wheel for wheel in for_linux if "amd64" in wheel.architectures] or for_linux
    if fitting and kept.requirements:
        text = read_metadata(client, max(fitting, key=lambda wheel: wheel.address.rpartition("/")[2]))
        for line in requires(text):
            if is_relevant(line, kept.requirements):
                facts.setdefault(required_name(line), []).append(line)
    return facts


def _pythons_of(wheels: Sequence[Wheel]) -> str:
    """Return the range from the first to the last Python 3 that wheels are for; empty if one is for all."""
    minors: set[int] = set()
    for tag in (tag for wheel in wheels for tag in wheel.tags):
        if "linux" not in tag.platform and tag.platform != "any":
            continue
        if tag.abi in ("none", "abi3"):
            return ""
        match = re.fullmatch(r"cp3([0-9]+)", tag.interpreter)
        minors |= {int(match[1])} if match else set()
    return f">=3.{min(minors)},<3.{max(minors) + 1}" if minors else ""


def _version_of(filename: str) -> Version | None:
    """Return the version of a wheel or source archive; None for another file."""
    try:
        if filename.endswith(".whl"):
            return parse_wheel_filename(filename)[1]
        return parse_sdist_filename(filename)[1] if filename.endswith(".tar.gz") else None
    except (InvalidWheelFilename, InvalidSdistFilename, InvalidVersion):
        return None


def _wheel_of(file: Mapping[str, Any], base: str) -> Wheel:
    _, version, _, tags = parse_wheel_filename(file["filename"])
    return Wheel(
        version,
        urljoin(base, file["url"]),
        tags,
        file.get("requires-python") or "",
        (file.get("upload-time") or "")[:10],
        bool(file.get("core-metadata")),
    )


def _wheels(client: Client, name: str) -> Iterator[Wheel]:
    """Yield the wheels for Linux of all final releases in the index from which uv takes a distribution."""
    base, files = _files(client, f"{index_of(name)}/{name}/")
    for file in files:
        if not file["filename"].endswith(".whl") or file.get("yanked") or not _version_of(file["filename"]):
            continue
        wheel = _wheel_of(file, base)
        if not wheel.version.is_prerelease and wheel.architectures:
            yield wheel


def _files(client: Client, address: str) -> tuple[str, list[dict[str, Any]]]:
    """Return the address and the files of a page of an index."""
    headers = {"Accept": _PAGE_TYPE, **_AS_BYTES}
    with client.exchange("GET", address, headers=headers, authorize=_AsItIs()) as response:
        if response.status_code != 200 or _PAGE_TYPE not in response.headers.get("Content-Type", ""):
            raise MachineError(
                f"the index does not list {redact(address)} as JSON (PEP 691; HTTP {response.status_code})",
                hint="name an index that does, in the configuration of uv or pip",
            )
        return response.url, json.loads(client.read(response, _MAX_PAGE_BYTES))["files"]


def index_of(name: str) -> str:
    """Return the address of the index from which uv takes a distribution."""
    request = UvRequest(
        target=None,
        requirements=(UvRequirement(name, name),),
        options=("--no-deps",),
        default_index=next(iter(python_sources(None, read_machine()).indexes), ""),
        prefers_wheels=False,
        sources_without_metadata=frozenset((name,)),
    )
    with tempfile.TemporaryDirectory(prefix="envbuild-knowledge-") as directory:
        answer = run_uv(request, Path(directory))
    if isinstance(answer, UvFailure):
        raise MachineError(f"the index has no {name}: {answer.reason}", hint=answer.cause)
    return uvtext.parse_resolution(answer.text)[0][3].rstrip("/")


def _facts(client: Client, wheels: Sequence[Wheel], relevant: Sequence[str]) -> dict[str, Any]:
    """Return the facts of a series: Pythons of all its releases, and the rest of the newest one."""
    version = max(wheel.version for wheel in wheels)
    newest = [wheel for wheel in wheels if wheel.version == version]
    facts: dict[str, Any] = {"version": str(version)}
    if uploaded := min(wheel.uploaded for wheel in newest):
        facts["uploaded"] = uploaded
    metadata: dict[str, str] = {}
    for key in ("python", "glibc", "requires", "metadata"):
        facts[key] = {}
    for architecture in sorted(MACHINES.values()):
        fitting = [wheel for wheel in newest if architecture in wheel.architectures and wheel.pythons]
        if not fitting:
            continue
        chosen = max(fitting, key=lambda wheel: max(map(Version, wheel.pythons)))
        of_series = [wheel.pythons for wheel in wheels if architecture in wheel.architectures]
        pythons = sorted(frozenset().union(*of_series), key=Version)
        text = metadata.setdefault(chosen.address, "") or read_metadata(client, chosen)
        metadata[chosen.address] = text
        facts["python"][architecture] = pythons
        if chosen.glibc:
            facts["glibc"][architecture] = chosen.glibc
        kept = [line for line in requires(text) if is_relevant(line, relevant)]
        # Mostly both processors have the same.
        if kept != facts["requires"].get("amd64"):
            facts["requires"][architecture] = kept
        facts["metadata"][architecture] = sha256_of(text)[:23]
    return facts


def requires(metadata: str) -> list[str]:
    """Return the requirements that a METADATA states."""
    return [str(text) for text in Parser().parsestr(metadata).get_all("Requires-Dist", [])]


def required_name(requirement: str) -> str:
    """Return the distribution that a requirement is of; empty for none."""
    match = re.match(r"[A-Za-z0-9._-]+", requirement)
    return canonicalize_name(match[0]) if match else ""


def is_relevant(requirement: str, relevant: Sequence[str]) -> bool:
    """Return whether a requirement is of one of some distributions."""
    name = required_name(requirement)
    return any(name.startswith(part) if part.endswith("-") else name == part for part in relevant)


def read_metadata(client: Client, wheel: Wheel) -> str:
    """Return the METADATA of a wheel; MachineError if it cannot be read."""
    address = wheel.address
    if wheel.has_metadata:
        beside = f"{address}.metadata"
        with client.exchange("GET", beside, headers=_AS_BYTES, authorize=_AsItIs()) as response:
            if response.status_code == 200:
                return client.read(response, _MAX_METADATA_BYTES).decode("utf-8", "replace")
    with zipfile.ZipFile(io.BufferedReader(_RemoteFile(client, address), _BLOCK_BYTES)) as archive:
        names = [name for name in archive.namelist() if name.count("/") == 1 and name.endswith("/METADATA")]
        for name in names:
            if archive.getinfo(name).file_size <= _MAX_METADATA_BYTES:
                return archive.read(name).decode("utf-8", "replace")
    raise MachineError(
        f"{redact(address)} has no METADATA of at most {_MAX_METADATA_BYTES} bytes",
        hint="report the wheel to its makers, or raise `oldest` of its distribution",
    )


class _AsItIs(AuthBase):
    def __call__(self, request: PreparedRequest) -> PreparedRequest:
        return request


class _RemoteFile(io.RawIOBase):
    """A file of a server that answers requests for parts."""

    def __init__(self, client: Client, address: str) -> None:
        self._client, self._address = client, address
        self._position, self._size = 0, 1
        _, self._size = self._part(0, 1)

    def _part(self, start: int, end: int) -> tuple[bytes, int]:
        """Return the bytes from a start to before an end, and the size of the whole file."""
        headers = {"Range": f"bytes={start}-{end - 1}", **_AS_BYTES}
        with self._client.exchange("GET", self._address, headers=headers, authorize=_AsItIs()) as response:
            size = response.headers.get("Content-Range", "").rpartition("/")[2]
            if response.status_code != 206 or not size.isdigit():
                raise MachineError(
                    f"the index does not serve parts of files (HTTP {response.status_code})",
                    hint="name an index that does, in the configuration of uv or pip",
                )
            return self._client.read(response, end - start), int(size)

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size}[whence]
        self._position = start + offset
        return self._position

    def readinto(self, buffer: Any) -> int:  # noqa: ANN401  # Python 3.11 has no name for its type
        end = min(self._position + len(buffer), self._size)
        if end <= self._position:
            return 0
        content, _ = self._part(self._position, end)
        buffer[: len(content)] = content
        self._position += len(content)
        return len(content)
