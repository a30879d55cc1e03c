"""Texts that uv reads and writes. Pure."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from types import MappingProxyType
from typing import Any
from urllib.parse import unquote, urlsplit

from packaging.utils import (
    InvalidSdistFilename,
    InvalidWheelFilename,
    canonicalize_name,
    parse_sdist_filename,
    parse_wheel_filename,
)
from packaging.version import InvalidVersion

from envbuild.errors import MachineError
from envbuild.resolve.wheels import Candidate
from envbuild.spec.python_platform import MACHINES
from envbuild.system.descriptors import with_real_paths
from envbuild.system.redaction import redact, redact_text

PROJECT = "envbuild-request"

# Platforms of `uv pip compile --python-platform`; wheels for an older C library run on a newer one.
_UV_GLIBC = (17, 28, *range(31, 41))
_PINNED = re.compile(r"(?P<name>[A-Za-z0-9._-]+)(?:\[[^\]]*\])?==(?P<version>\S+)(?:\s+# via (?P<via>.+))?")
_FILE = re.compile(r"(?P<path>[^\s#]+\.whl)(?:\s+# via (?P<via>.+))?")
_FROM = re.compile(r"\s+# from (?P<address>\S+)")
_ASKED = "what was asked needs"
_LONG = 200
EXTRA = re.compile(r"""\bextra\s*==\s*["']([^"']+)""")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_REPORT = "`pip install --force-reinstall uv` in envbuild's environment; if it persists, please report it"


def platform(architecture: str, glibc: str) -> str:
    """Return uv's name of a platform: ``x86_64-manylinux_2_36``."""
    supported = [minor for minor in _UV_GLIBC if minor <= int(glibc.partition(".")[2])]
    if not supported:
        raise MachineError(
            f"uv knows no platform with glibc {glibc}", hint="take a base image with glibc 2.17 or newer"
        )
    return f"{MACHINES[architecture]}-manylinux_2_{supported[-1]}"


def project(
    requirements: Sequence[str],
    *,
    python: str,
    sources: Mapping[str, str],
    indexes: Mapping[str, str],
    wheels: Mapping[str, str],
) -> str:
    """Return a pyproject.toml for one resolution.

    `python` is a version (``3.11``), `indexes` maps names to addresses, and `sources` maps a distribution to
    the name of the only index from which it may come; `wheels` maps others to the path of their only file.
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
        *(f"{_string(name)} = {{ path = {_string(path)} }}" for name, path in sorted(wheels.items())),
    ]
    for name, address in sorted(indexes.items()):
        lines += [
            "[[tool.uv.index]]",
            f"name = {_string(name)}",
            f"url = {_string(address)}",
            "explicit = true",
        ]
    return "\n".join(lines) + "\n"


def configuration(
    known: Mapping[tuple[str, str], Sequence[str]] = MappingProxyType({}),
    sources: Iterable[str] = (),
    constraints: Sequence[str] = (),
    find_links: Sequence[str] = (),
) -> str:
    """Return a uv.toml that states what distributions require, so that uv need not build or read them.

    `known` maps a distribution and its version to requirements; other versions and distributions of `sources`
    count without any. `find_links` are directories and pages with wheels; in a variable of uv they could not
    hold a comma.
    """
    # A path through a descriptor of ours means nothing to uv.
    names = map(with_real_paths, find_links)
    links = [Path(name).as_uri() if name.startswith("/") and "#" in name else name for name in names]
    lists = {"constraint-dependencies": constraints, "find-links": links}
    lines = [f"{key} = [{', '.join(map(_string, texts))}]" for key, texts in lists.items() if texts]
    for name in sorted({*sources}):
        lines += ["[[dependency-metadata]]", f"name = {_string(name)}", "requires-dist = []"]
    for (name, version), requirements in sorted(known.items()):
        lines += [
            "[[dependency-metadata]]",
            f"name = {_string(name)}",
            f"version = {_string(version)}",
            f"requires-dist = [{', '.join(map(_string, requirements))}]",
        ]
        if extras := sorted(set(EXTRA.findall("\n".join(requirements)))):
            lines.append(f"provides-extra = [{', '.join(map(_string, extras))}]")
    return "".join(f"{line}\n" for line in lines)


def parse_resolution(text: str) -> list[tuple[str, str, tuple[str, ...], str]]:
    """Read the output of ``uv pip compile --annotation-style line --emit-index-annotation``.

    Each item: canonical name, version, canonical names of the distributions that require it, and the
    address of the index or directory that it comes from.
    """
    entries: list[tuple[str, str, tuple[str, ...], str]] = []
    for line in filter(str.strip, text.splitlines()):
        origin = _FROM.fullmatch(line.rstrip())
        if origin is not None and entries:
            entries[-1] = (*entries[-1][:3], origin["address"])
            continue
        match = _PINNED.fullmatch(line.rstrip()) or _FILE.fullmatch(line.rstrip())
        if match is None:
            raise MachineError(
                f"uv wrote a line that is not understood: {redact_text(line.strip())}", hint=_REPORT
            )
        words = [part.strip() for part in (match["via"] or "").split(",")]
        via = {canonicalize_name(word.partition("[")[0]) for word in words if word and " " not in word}
        if match.re is _FILE:
            file = unquote(match["path"].rpartition("/")[2])
            name, version = map(str, parse_wheel_filename(file)[:2])
        else:
            name, version = canonicalize_name(match["name"]), match["version"]
        entries.append((name, version, tuple(sorted(via)), ""))
    return entries


def parse_pylock(text: str) -> dict[str, list[Candidate]]:
    """Read the wheels and source archives of a pylock.toml (PEP 751), by canonical name."""
    try:
        packages = tomllib.loads(text).get("packages", [])
        return {canonicalize_name(entry["name"]): list(_candidates(entry)) for entry in packages}
    except (tomllib.TOMLDecodeError, KeyError, TypeError, AttributeError) as error:
        raise MachineError(f"uv wrote a pylock.toml that is not understood: {error}", hint=_REPORT) from error


def _candidates(entry: Mapping[str, Any]) -> Iterator[Candidate]:
    archives = [entry["sdist"]] if "sdist" in entry else []
    for table in (*entry.get("wheels", ()), *archives):
        address = table.get("url") or table["path"]
        file = unquote(table.get("name") or urlsplit(address).path.rpartition("/")[2])
        digest, size = table["hashes"].get("sha256", ""), table.get("size")
        uploaded = table.get("upload-time")
        try:
            parsed = parse_wheel_filename(file) if file.endswith(".whl") else parse_sdist_filename(file)
        except (InvalidWheelFilename, InvalidSdistFilename, InvalidVersion):
            continue
        if parsed[0] == canonicalize_name(entry["name"]) and _SHA256.fullmatch(digest):
            yield Candidate(
                name=parsed[0],
                version=str(parsed[1]),
                file=file,
                address=address,
                sha256=digest,
                size_bytes=size if isinstance(size, int) and size >= 0 else None,
                uploaded=uploaded if isinstance(uploaded, datetime) and uploaded.tzinfo else None,
            )


def reason(stderr: str) -> str:
    """Return why uv found no resolution, in one readable line."""
    sentences = re.split(r"\. And (?:because )?", _proof(stderr).rstrip("."))
    steps = [sentence.removeprefix("Because ").partition(", we can conclude that ") for sentence in sentences]
    premises = "; ".join(premise for premise, _, _ in steps)
    if len(premises) <= _LONG or len(steps) < 2:
        return premises
    # The last step of a long proof says what clashes.
    conclusion = steps[-2][2]
    return f"{conclusion}; {steps[-1][0]}" if 0 < len(conclusion) <= _LONG else steps[-1][0]


def without_wheels(stderr: str) -> set[str]:
    """Return the distributions of which no wheel fits, and whose requirements are not what clashes."""
    names = re.findall(r"^hint: Wheels are (?:required|available) for `([^`]+)`", stderr, re.MULTILINE)
    proof = _proof(stderr)
    return {name for name in names if not re.search(rf"\b{re.escape(name)}[<>=!]?\S* depends? on", proof)}


def without_sources(stderr: str) -> set[str]:
    """Return the distributions that were to be built and have no source archive."""
    return set(re.findall(r"^hint: A source distribution is required for `([^`]+)`", stderr, re.MULTILINE))


def missing(stderr: str) -> set[str]:
    """Return the distributions that no origin has, at all or in the version that is asked for."""
    matches = re.findall(
        r"([A-Za-z0-9][A-Za-z0-9._-]*)(?:\[\S*\])? was not found in"
        r"|there (?:is|are) no versions? of ([A-Za-z0-9][A-Za-z0-9._-]*)"
        r"|only ([A-Za-z0-9][A-Za-z0-9._-]*?)(?:\[\S*\])?[<>=!~]\S* is available",
        _proof(stderr),
    )
    return {canonicalize_name(next(filter(None, names))) for names in matches}


def without_origin(stderr: str) -> set[str]:
    """Return the distributions that no origin has in any version."""
    names = re.findall(r"([A-Za-z0-9][A-Za-z0-9._-]*)(?:\[\S*\])? was not found in", _proof(stderr))
    return set(map(canonicalize_name, names))


def not_in_cache(stderr: str) -> dict[str, str]:
    """Return the distributions that uv without a network lacks, and the version of each (perhaps empty)."""
    found = re.findall(
        r"([A-Za-z0-9][A-Za-z0-9._-]*)(?:\[\S*\])?(?:==(\S+))?"
        r" (?:was not found in the cache|needs to be downloaded from a registry)",
        _proof(stderr),
    )
    return {canonicalize_name(name): version for name, version in found}


def _proof(stderr: str) -> str:
    text = stderr.partition("cause: ")[2].partition("\nhint:")[0]
    text = re.sub(r"\s+", " ", redact_text(text)).strip()
    # No comma is behind a list of versions.
    text = re.sub(r"(?<!,) we can conclude that ", ", we can conclude that ", text)
    return text.replace(f"{PROJECT} depends on", _ASKED)


def unreachable(stderr: str) -> str:
    """Return the address that uv could not reach; empty if there is none."""
    match = re.search(r"Failed to fetch: `?([^\s`]+)", stderr)
    return match[1] if match else ""


def why_unreachable(stderr: str) -> str:
    """Return uv's last cause, without addresses' credentials: ``Connection refused (os error 111)``."""
    causes = re.findall(r"^  cause: (.+)$", stderr, re.MULTILINE)
    return redact_text(causes[-1]) if causes else "uv says no reason"


def unauthorized(stderr: str) -> tuple[str, str] | None:
    """Return the address of the index that refused an answer, fit to be shown, and its status (``401``)."""
    match = re.search(
        r"^hint: An index (?:URL )?\((?P<address>\S+)\) (?:could not|returned)\D*(?P<status>40[13])",
        stderr,
        re.MULTILINE,
    )
    return (redact(match["address"]), match["status"]) if match else None


def warnings(stderr: str) -> list[str]:
    """Return uv's warnings, without addresses' credentials and the directory that it ran in."""
    lines = re.findall(r"^warning: (.+)$", stderr, re.MULTILINE)
    return [re.sub(r"file://[^\s`]*/", "", redact_text(line)) for line in lines]


def _string(text: str) -> str:
    """Return a string of TOML, which has JSON's escapes but for pairs of surrogates, and escapes DEL."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
