"""Texts that uv reads and writes, and the choice of a wheel: pure functions, no process."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote, urlsplit

from packaging.tags import Tag, compatible_tags, cpython_tags
from packaging.utils import (
    InvalidSdistFilename,
    InvalidWheelFilename,
    canonicalize_name,
    parse_sdist_filename,
    parse_wheel_filename,
)
from packaging.version import InvalidVersion, Version

from envbuild.errors import MachineError
from envbuild.lock.model import PythonPin
from envbuild.system.redaction import redact, redact_text

PROJECT = "envbuild-request"

# What `uv pip compile --python-platform` knows; wheels for an older C library run on a newer one.
_UV_GLIBC = (17, 28, *range(31, 41))
_MACHINES = {"amd64": "x86_64", "arm64": "aarch64"}
_LEGACY = {17: "manylinux2014", 12: "manylinux2010", 5: "manylinux1"}

_PINNED = re.compile(r"(?P<name>[A-Za-z0-9._-]+)(?:\[[^\]]*\])?==(?P<version>\S+)(?:\s+# via (?P<via>.+))?")
_FROM = re.compile(r"\s+# from (?P<address>\S+)")
_ASKED = "what was asked needs"
_LONG = 200
_SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(slots=True, kw_only=True)
class Resolved:
    """One distribution of a resolution.

    Attributes
    ----------
    name, version : str
        Canonical name and PEP 440 version.
    via : tuple of str
        Canonical names of the distributions that asked for it; empty for none but the request itself.
    source : str
        Address of the index or directory that uv took it from; empty where it does not say.
    """

    name: str
    version: str
    via: tuple[str, ...]
    source: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """A wheel or source archive, and where it is.

    Attributes
    ----------
    address : str
        May hold credentials.
    size_bytes : int or None
        None where the index does not say.
    """

    name: str
    version: str
    file: str
    address: str
    sha256: str
    size_bytes: int | None

    @property
    def is_wheel(self) -> bool:
        """Whether it can be installed as it is."""
        return self.file.endswith(".whl")

    def is_same(self, other: Offer | PythonPin) -> bool:
        """Whether another offer, or what is locked, is the very same file, wherever it is."""
        return (self.file, self.sha256) == (other.file, other.sha256)


_REPORT = "`pip install --force-reinstall uv` in envbuild's environment; if it stays, please report it"


def platform(architecture: str, glibc: str) -> str:
    """Return uv's name of a platform: ``x86_64-manylinux_2_36``.

    Parameters
    ----------
    architecture : str
        In Debian's words.
    glibc : str
        Version of the C library that wheels must not exceed (``2.36``).

    Raises
    ------
    MachineError
        uv knows no platform that old.
    """
    minor = int(glibc.partition(".")[2])
    known = [number for number in _UV_GLIBC if number <= minor]
    if not known:
        raise MachineError(
            f"uv knows no platform with glibc {glibc}", hint="take a base image with glibc 2.17 or newer"
        )
    return f"{_MACHINES[architecture]}-manylinux_2_{known[-1]}"


def tags(architecture: str, glibc: str, abi: str) -> tuple[Tag, ...]:
    """Return the wheel tags that a base's Python accepts, the best first.

    Parameters
    ----------
    abi : str
        ABI tag (``cp311``).
    """
    machine = _MACHINES[architecture]
    interpreter = abi.removesuffix("mu")
    python = (int(interpreter[2]), int(interpreter[3:]))
    oldest = 5 if machine == "x86_64" else 17
    platforms: list[str] = []
    for minor in range(int(glibc.partition(".")[2]), oldest - 1, -1):
        platforms.append(f"manylinux_2_{minor}_{machine}")
        if minor in _LEGACY:
            platforms.append(f"{_LEGACY[minor]}_{machine}")
    platforms.append(f"linux_{machine}")
    return (
        *cpython_tags(python, abis=[abi], platforms=platforms),
        *compatible_tags(python, interpreter=interpreter, platforms=platforms),
    )


def best(wheels: Sequence[Offer], accepted: Sequence[Tag]) -> Offer | None:
    """Return the wheel that fits best: by tag, then by build number, then by file name."""
    rank = {tag: number for number, tag in reversed(list(enumerate(accepted)))}

    def key(wheel: Offer) -> tuple[int, tuple[int, str], str]:
        _, _, build, found = parse_wheel_filename(wheel.file)
        number, text = build or (0, "")
        nearest = min((rank[tag] for tag in found if tag in rank), default=len(rank))
        return (-nearest, (number, text), wheel.file)

    fitting = [wheel for wheel in wheels if -key(wheel)[0] < len(rank)]
    return max(fitting, key=key, default=None)


def fits(file: str, accepted: Sequence[Tag]) -> bool:
    """Return whether a wheel of this file name can be installed."""
    return not parse_wheel_filename(file)[3].isdisjoint(accepted)


def project(
    requirements: Sequence[str], *, python: str, sources: Mapping[str, str], indexes: Mapping[str, str]
) -> str:
    """Return a pyproject.toml that stands for one request.

    Parameters
    ----------
    requirements : sequence of str
        PEP 508.
    python : str
        Version (``3.11``).
    sources : mapping
        Distribution → index name that it, and nothing else, is taken from.
    indexes : mapping
        Index name → address.
    """
    lines = [
        "[project]",
        f'name = "{PROJECT}"',
        'version = "0"',
        f'requires-python = "=={python}.*"',
        "dependencies = [",
        *(f"  {_string(text)}," for text in requirements),
        "]",
        # Its own workspace: a project in a directory above must not take part.
        "[tool.uv.workspace]",
        "members = []",
        "[tool.uv.sources]",
        *(f"{_string(name)} = {{ index = {_string(index)} }}" for name, index in sorted(sources.items())),
    ]
    for name, address in sorted(indexes.items()):
        lines += [
            "[[tool.uv.index]]",
            f"name = {_string(name)}",
            f"url = {_string(address)}",
            "explicit = true",
        ]
    return "\n".join(lines) + "\n"


def metadata(built: Mapping[str, tuple[str, Sequence[str]]]) -> str:
    """Return a uv.toml that tells what source archives require, so that uv need not build them to know.

    Parameters
    ----------
    built : mapping
        Distribution → its version and requirements.
    """
    lines = []
    for name, (version, requirements) in sorted(built.items()):
        lines += [
            "[[dependency-metadata]]",
            f"name = {_string(name)}",
            f"version = {_string(version)}",
            f"requires-dist = [{', '.join(map(_string, requirements))}]",
        ]
    return "".join(f"{line}\n" for line in lines)


def parse_resolution(text: str) -> tuple[Resolved, ...]:
    """Read ``uv pip compile --annotation-style line --emit-index-annotation``.

    Raises
    ------
    MachineError
        A line is none that is known.
    """
    found: list[Resolved] = []
    for line in text.splitlines():
        if not line.strip():
            continue
        origin = _FROM.fullmatch(line.rstrip())
        if origin is not None and found:
            found[-1].source = origin["address"]
            continue
        match = _PINNED.fullmatch(line.rstrip())
        if match is None:
            raise MachineError(
                f"uv wrote a line that is not understood: {redact_text(line.strip())}", hint=_REPORT
            )
        words = [part.strip() for part in (match["via"] or "").split(",")]
        via = {canonicalize_name(word.partition("[")[0]) for word in words if word and " " not in word}
        found.append(
            Resolved(name=canonicalize_name(match["name"]), version=match["version"], via=tuple(sorted(via)))
        )
    return tuple(found)


def parse_pylock(text: str) -> dict[str, list[Offer]]:
    """Read the files of a pylock.toml (PEP 751): canonical name → wheels and source archives.

    Raises
    ------
    MachineError
        It is no such file.
    """
    try:
        packages = tomllib.loads(text).get("packages", [])
        return {canonicalize_name(entry["name"]): list(_offers(entry)) for entry in packages}
    except (tomllib.TOMLDecodeError, KeyError, TypeError, AttributeError) as error:
        raise MachineError(f"uv wrote a pylock.toml that is not understood: {error}", hint=_REPORT) from error


def _offers(entry: Mapping[str, Any]) -> Iterator[Offer]:
    archives = [entry["sdist"]] if "sdist" in entry else []
    for found in (*entry.get("wheels", ()), *archives):
        address = found.get("url") or found["path"]
        file = unquote(found.get("name") or urlsplit(address).path.rpartition("/")[2])
        digest, size = found["hashes"].get("sha256", ""), found.get("size")
        try:
            name, version = _parse_name(file)
        except (InvalidWheelFilename, InvalidSdistFilename, InvalidVersion):
            continue
        if name != canonicalize_name(entry["name"]) or not _SHA256.fullmatch(digest):
            continue
        yield Offer(
            name=name,
            version=str(version),
            file=file,
            address=address,
            sha256=digest,
            size_bytes=size if isinstance(size, int) and size >= 0 else None,
        )


def _parse_name(file: str) -> tuple[str, Version]:
    if file.endswith(".whl"):
        return parse_wheel_filename(file)[:2]
    return parse_sdist_filename(file)


def same_version(one: str, other: str) -> bool:
    """Return whether two texts are the same PEP 440 version."""
    return Version(one) == Version(other)


def reason(stderr: str) -> str:
    """Return why uv found no resolution, in one line that people can read."""
    sentences = re.split(r"\. And (?:because )?", _account(stderr).rstrip("."))
    steps = [sentence.removeprefix("Because ").partition(", we can conclude that ") for sentence in sentences]
    premises = "; ".join(premise for premise, _, _ in steps)
    if len(premises) <= _LONG or len(steps) < 2:
        return premises
    # Of a long proof the last step says what clashes.
    conclusion = steps[-2][2]
    return f"{conclusion}; {steps[-1][0]}" if 0 < len(conclusion) <= _LONG else steps[-1][0]


def without_wheels(stderr: str) -> list[str]:
    """Return the distributions that fail for want of a fitting wheel alone, as uv says."""
    if "depend" in _account(stderr).replace(_ASKED, ""):
        return []  # a clash of constraints, in which wheels may or may not matter
    return sorted(
        set(re.findall(r"^hint: Wheels are (?:required|available) for `([^`]+)`", stderr, re.MULTILINE))
    )


def _account(stderr: str) -> str:
    """Return uv's proof in one line."""
    text = stderr.partition("cause: ")[2].partition("\nhint:")[0]
    text = re.sub(r"\s+", " ", redact_text(text)).strip()
    return text.replace(f"{PROJECT} depends on", _ASKED)


def lacking(stderr: str) -> tuple[str, ...]:
    """Return the distributions of which uv says that there are none, or none of the version that is asked."""
    found = re.findall(
        r"([A-Za-z0-9][A-Za-z0-9._-]*) was not found in"
        r"|there (?:is|are) no versions? of ([A-Za-z0-9][A-Za-z0-9._-]*)"
        r"|only ([A-Za-z0-9][A-Za-z0-9._-]*?)[<>=!~]\S* is available",
        _account(stderr),
    )
    return tuple(sorted({canonicalize_name(next(filter(None, names))) for names in found}))


def refused(stderr: str) -> str:
    """Return which index did not say what it has, and how: ``http://… answered 401``; empty for none."""
    found = re.search(
        r"^hint: An index (?:URL )?\((?P<address>\S+)\) (?:could not|returned)\D*(?P<status>40[13])",
        stderr,
        re.MULTILINE,
    )
    return f"{redact(found['address'])} answered {found['status']}" if found else ""


def warnings(stderr: str) -> list[str]:
    """Return uv's warnings, without addresses' credentials."""
    return [redact_text(line) for line in re.findall(r"^warning: (.+)$", stderr, re.MULTILINE)]


def _string(text: str) -> str:
    return json.dumps(text)
