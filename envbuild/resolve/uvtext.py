"""Texts that uv reads and writes. Pure."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Literal
from urllib.parse import unquote

from packaging.pylock import Package, PackageSdist, PackageWheel, Pylock, PylockValidationError
from packaging.utils import canonicalize_name, parse_sdist_filename, parse_wheel_filename

from envbuild.errors import MachineError
from envbuild.resolve.distributions import DistFile
from envbuild.spec.python_platform import MACHINES
from envbuild.system.descriptors import with_real_paths
from envbuild.system.redaction import redact, redact_text

PROJECT = "envbuild-request"

_WORD = r"[A-Za-z0-9][A-Za-z0-9._-]*"
# Not behind an operator: that is a version.
_NAME = re.compile(rf"(?<![<>=!~\w.-]){_WORD}")
# In uv's proof; `all of:` and `one of:` begin a list of versions.
_DEPENDS = re.compile(
    rf"(?<![\w.<>=!~,\[\]-])({_WORD})(?:\[[^\s\]]*\])?(?:[<>=!~]\S*)?"
    rf" depends? on (?:(?:all|one) of: )?({_WORD})"
)
# Platforms of `uv pip compile --python-platform`; wheels for an older C library run on a newer one.
_UV_GLIBC = (17, 28, *range(31, 41))
_PINNED = re.compile(r"(?P<name>[A-Za-z0-9._-]+)(?:\[[^\]]*\])?==(?P<version>\S+)(?:\s+# via (?P<via>.+))?")
_FILE = re.compile(r"(?P<path>[^\s#]+\.whl)(?:\s+# via (?P<via>.+))?")
_FROM = re.compile(r"\s+# from (?P<address>\S+)")
_ASKED = "the request needs"
_NOT_IN_INDEX = re.compile(
    rf"(?P<name>{_WORD}) was not found in the package registry and {_ASKED} (?P=name)[^ ,]*,"
    r" we can conclude that your requirements are unsatisfiable\."
)
_LONG = 200
EXTRA = re.compile(r"""\bextra\s*==\s*["']([^"']+)""")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_RELEASE = re.compile(r"[a-z0-9][a-z0-9.-]*(?:==[A-Za-z0-9][^\s,]*)?")
_NO_WHEELS = re.compile(r"\bno (?:usable )?wheels\b")
# Of uv's sentences; none of them is taken for the name of a distribution.
_UV_WORDS = frozenset(
    (
        *("a", "all", "and", "any", "are", "available", "be", "because", "cannot", "conclude", "configured"),
        *("depend", "depends", "following", "for", "found", "from", "has", "have", "in", "index", "is"),
        *("matching", "needs", "no", "not", "of", "on", "only", "or", "package", "packages", "project"),
        *("registry", "request", "require", "requirements", "requires", "tag", "tags", "that", "the"),
        *("there", "unsatisfiable", "usable", "used", "version", "versions", "was", "we", "were", "wheels"),
        *("with", "you", "your"),
    )
)
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
    lines = [f"find-links = [{', '.join(map(_string, links))}]"] if links else []
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


def parse_pylock(text: str) -> dict[str, list[DistFile]]:
    """Read the wheels and source archives of a pylock.toml (PEP 751), by canonical name."""
    try:
        packages = Pylock.from_dict(tomllib.loads(text)).packages
    except (tomllib.TOMLDecodeError, PylockValidationError) as error:
        raise MachineError(f"uv wrote a pylock.toml that is not understood: {error}", hint=_REPORT) from error
    return {package.name: list(_files(package)) for package in packages}


def _files(package: Package) -> Iterator[DistFile]:
    files: list[PackageWheel | PackageSdist] = [*(package.wheels or ())]
    files += [package.sdist] if package.sdist else []
    for file in files:
        digest = file.hashes.get("sha256", "")
        is_wheel = file.filename.endswith(".whl")
        version = (parse_wheel_filename if is_wheel else parse_sdist_filename)(file.filename)[1]
        if _SHA256.fullmatch(digest):
            yield DistFile(
                name=package.name,
                version=str(version),
                file_name=file.filename,
                address=file.url or file.path or "",
                sha256=digest,
                size_bytes=file.size if file.size is not None and file.size >= 0 else None,
                uploaded=file.upload_time if file.upload_time and file.upload_time.tzinfo else None,
            )


FailureKind = Literal[
    "limit", "unauthorized", "unreadable-wheel", "no-solution", "certificate", "unreachable", "other"
]


@dataclass(frozen=True, slots=True, kw_only=True)
class UvFailure:
    """Why uv gives no answer. It reports in English alone, which is read here and nowhere else."""

    kind: FailureKind
    reason: str = ""
    """In one line, without credentials."""
    cause: str = ""
    """The last cause that uv names (``Connection refused (os error 111)``)."""
    is_unknown_name: bool = False
    """Whether the reason is that no index has a distribution that is asked for."""
    names: tuple[str, ...] = ()
    """Distributions that the reason may name, in its order."""
    missing: frozenset[str] = frozenset()
    """Distributions that no origin has, at all or in the version that is asked for."""
    unknown: frozenset[str] = frozenset()
    """Distributions that no origin has in any version."""
    without_wheels: frozenset[str] = frozenset()
    """Distributions of which no wheel fits, and whose requirements are not what clashes."""
    without_sources: frozenset[str] = frozenset()
    """Distributions that were to be built and have no source archive."""
    not_cached: Mapping[str, str] = field(default_factory=dict)
    """Distribution that uv without a network lacks → its version, perhaps empty."""
    address: str = ""
    """The address that could not be reached, with its credentials; empty if there is none."""
    closed_index: str = ""
    """The address of an index that wants credentials, fit to be shown."""
    status: str = ""
    """Status of that index's answer (``401``)."""
    unreadable: str = ""
    """Distribution whose named wheel cannot be read."""
    releases: frozenset[str] = frozenset()
    """All words of uv's messages that can name a distribution, perhaps with its version (``numpy==1.26``)."""
    requires: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Distribution → distributions that it requires directly, as far as the reason has them."""
    lacks_wheels: bool = False
    """Whether releases without usable wheels have a part in it."""
    output: str = ""
    """All that uv wrote, without credentials."""


def read_failure(stderr: str, *, over_limit: str = "", local_wheels: Collection[str] = ()) -> UvFailure:
    """Read uv's messages.

    `over_limit` says which limit ended uv, if one did; `local_wheels` are the distributions of which it was
    given a file.
    """
    reason, is_unknown_name = _reason(stderr)
    closed_index, status = _unauthorized(stderr)
    address = _unreachable(stderr)
    unreadable = next((name for name in local_wheels if f"Failed to read `{name} @ " in stderr), "")
    kind: FailureKind
    if over_limit:
        kind, reason = "limit", over_limit
    elif closed_index:
        kind = "unauthorized"
    elif unreadable:
        kind = "unreadable-wheel"
    elif "No solution found" in stderr:
        kind = "no-solution"
    elif "certificate" in stderr:
        kind = "certificate"
    elif address:
        kind = "unreachable"
    else:
        errors = (line[7:] for line in stderr.splitlines() if line.startswith("error: "))
        kind, reason = "other", redact_text(next(errors, "no reason"))
    return UvFailure(
        kind=kind,
        reason=reason,
        cause=_last_cause(stderr),
        is_unknown_name=is_unknown_name,
        names=_names(reason),
        missing=_missing(stderr),
        unknown=_unknown(stderr),
        without_wheels=_without_wheels(stderr),
        without_sources=_without_sources(stderr),
        not_cached=_not_cached(stderr),
        address=address,
        closed_index=closed_index,
        status=status,
        unreadable=unreadable,
        releases=frozenset(word.rstrip(".") for word in _RELEASE.findall(stderr)),
        requires=_requires(stderr),
        lacks_wheels=_NO_WHEELS.search(stderr) is not None,
        output=redact_text(stderr),
    )


def _names(reason: str) -> tuple[str, ...]:
    """Return words of uv's sentence that can name distributions; its own words are left out."""
    words = map(canonicalize_name, _NAME.findall(reason))
    return tuple(dict.fromkeys(word for word in words if word not in _UV_WORDS))


def _reason(stderr: str) -> tuple[str, bool]:
    """Return why uv found no resolution, in one readable line, and whether that is an unknown name."""
    if match := _NOT_IN_INDEX.fullmatch(_proof(stderr).removeprefix("Because ")):
        return f"`{match['name']}` is not in any configured index", True
    steps = _premises(stderr)
    premises = "; ".join(premise for premise, _ in steps)
    if len(premises) <= _LONG or len(steps) < 2:
        return premises, False
    # The last step of a long proof says what clashes.
    conclusion = steps[-2][1]
    return f"{conclusion}; {steps[-1][0]}" if 0 < len(conclusion) <= _LONG else steps[-1][0], False


def _premises(stderr: str) -> list[tuple[str, str]]:
    """Return the steps of uv's proof: what each starts from, and what it concludes."""
    sentences = re.split(r"\. And (?:because )?", _proof(stderr).rstrip("."))
    steps = [sentence.removeprefix("Because ").partition(", we can conclude that ") for sentence in sentences]
    return [(premise, conclusion) for premise, _, conclusion in steps]


def _requires(stderr: str) -> dict[str, tuple[str, ...]]:
    """Return the direct requirements that uv's proof starts from, without those of the request."""
    requires: dict[str, tuple[str, ...]] = {}
    for premise, _ in _premises(stderr):
        for words in _DEPENDS.findall(premise):
            name, other = map(canonicalize_name, words)
            requires[name] = tuple(dict.fromkeys((*requires.get(name, ()), other)))
    return requires


def _without_wheels(stderr: str) -> frozenset[str]:
    """Return the distributions of which no wheel fits, and whose requirements are not what clashes."""
    names = re.findall(r"^hint: Wheels are (?:required|available) for `([^`]+)`", stderr, re.MULTILINE)
    proof = _proof(stderr)
    return frozenset(
        name for name in names if not re.search(rf"\b{re.escape(name)}[<>=!]?\S* depends? on", proof)
    )


def _without_sources(stderr: str) -> frozenset[str]:
    """Return the distributions that were to be built and have no source archive."""
    names = re.findall(r"^hint: A source distribution is required for `([^`]+)`", stderr, re.MULTILINE)
    return frozenset(names)


def _missing(stderr: str) -> frozenset[str]:
    """Return the distributions that no origin has, at all or in the version that is asked for."""
    matches = re.findall(
        r"([A-Za-z0-9][A-Za-z0-9._-]*)(?:\[\S*\])? was not found in"
        r"|there (?:is|are) no versions? of ([A-Za-z0-9][A-Za-z0-9._-]*)"
        r"|only ([A-Za-z0-9][A-Za-z0-9._-]*?)(?:\[\S*\])?[<>=!~]\S* is available",
        _proof(stderr),
    )
    return frozenset(canonicalize_name(next(filter(None, names))) for names in matches)


def _unknown(stderr: str) -> frozenset[str]:
    """Return the distributions that no origin has in any version."""
    names = re.findall(r"([A-Za-z0-9][A-Za-z0-9._-]*)(?:\[\S*\])? was not found in", _proof(stderr))
    return frozenset(map(canonicalize_name, names))


def _not_cached(stderr: str) -> dict[str, str]:
    """Return the distributions that uv without a network lacks, and the version of each (perhaps empty)."""
    releases = re.findall(
        r"([A-Za-z0-9][A-Za-z0-9._-]*)(?:\[\S*\])?(?:==(\S+))?"
        r" (?:was not found in the cache|needs to be downloaded from a registry)",
        _proof(stderr),
    )
    return {canonicalize_name(name): version for name, version in releases}


def _proof(stderr: str) -> str:
    text = stderr.partition("cause: ")[2].partition("\nhint:")[0]
    text = re.sub(r"\s+", " ", redact_text(text)).strip()
    # No comma and no full stop is behind a list of versions.
    text = re.sub(r"(?<!,) we can conclude that ", ", we can conclude that ", text)
    text = re.sub(r"(?<!\.) And because ", ". And because ", text)
    return text.replace(f"{PROJECT} depends on", _ASKED)


def _unreachable(stderr: str) -> str:
    """Return the address that uv could not reach; empty if there is none."""
    match = re.search(r"Failed to fetch: `?([^\s`]+)", stderr)
    return match[1] if match else ""


def _last_cause(stderr: str) -> str:
    """Return uv's last cause, without addresses' credentials: ``Connection refused (os error 111)``."""
    causes = re.findall(r"^  cause: (.+)$", stderr, re.MULTILINE)
    return redact_text(causes[-1]) if causes else "uv says no reason"


def _unauthorized(stderr: str) -> tuple[str, str]:
    """Return the address of an index that wants credentials, fit to be shown, and its answer's status."""
    match = re.search(
        r"^hint: An index (?:URL )?\((?P<address>\S+)\) (?:could not|returned)\D*(?P<status>40[13])",
        stderr,
        re.MULTILINE,
    )
    return (redact(match["address"]), match["status"]) if match else ("", "")


def warnings(stderr: str) -> list[str]:
    """Return uv's warnings, without addresses' credentials and the directory that it ran in."""
    lines = re.findall(r"^warning: (.+)$", stderr, re.MULTILINE)
    return [re.sub(r"file://[^\s`]*/", "", redact_text(line)) for line in lines]


def _string(text: str) -> str:
    """Return a string of TOML, which has JSON's escapes but for pairs of surrogates, and escapes DEL."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
