"""The packages of an image's file systems: their dependencies and licences.

Only the directories with this information are read, so it takes little time compared to composing.

Source: the Debian policy manual (7, 12.5), deb822(5), copyright-format 1.0; Python's core metadata
(``License-Expression``: PEP 639).
"""

from __future__ import annotations

import email.parser
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from envbuild.squashfs.reader import Entry, Squashfs

_STATUS = "/var/lib/dpkg/status"
_DOC = "/usr/share/doc"
_METADATA = re.compile(r"/opt/[^/]+/lib/python[0-9.]+/site-packages/[^/]+\.dist-info/METADATA")
# Directories that lead to the files that are read; the listings of all others are skipped.
_LEADS = re.compile(
    r"/|/usr|/usr/share|/usr/share/doc|/usr/share/doc/[^/]+|/var|/var/lib|/var/lib/dpkg"
    r"|/opt|/opt/[^/]+|/opt/[^/]+/lib|/opt/[^/]+/lib/python[0-9.]+|/opt/[^/]+/lib/python[0-9.]+/site-packages"
    r"|/opt/[^/]+/lib/python[0-9.]+/site-packages/[^/]+\.dist-info"
)
_MAX_STATUS_BYTES = 64 << 20
_MAX_TEXT_BYTES = 1 << 20
_FORMAT = re.compile(r"^Format:\s*https?://\S*copyright-format/1\.0", flags=re.MULTILINE)
_LICENCE = re.compile(r"^License:[ \t]*(\S[^\n]*)$", flags=re.MULTILINE)
# Not the full stop of a sentence that ends behind it.
_COMMON = re.compile(r"/usr/share/common-licenses/([A-Za-z0-9](?:[A-Za-z0-9.+-]*[A-Za-z0-9+])?)")
_LONGEST = 80


@dataclass(frozen=True, slots=True, kw_only=True)
class InstalledDeb:
    """An installed Debian package."""

    name: str
    version: str
    depends: tuple[tuple[str, ...], ...] = ()
    """Groups of package names; one of each group is needed."""
    provides: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Contents:
    """The packages of an image."""

    debs: Mapping[str, InstalledDeb] = field(default_factory=dict)
    """Name → package, from the list of packages of the uppermost layer."""
    deb_licences: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Package → licences that its copyright file names in a known form."""
    wheel_licences: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Canonical name of a Python distribution → licences; ``=`` marks an SPDX expression."""


def read_packages(layers: Sequence[Squashfs]) -> Contents:
    """Return the packages of file systems, given from bottom to top; SquashfsError if one is damaged."""
    status = ""
    texts: dict[str, str] = {}
    links: dict[str, str] = {}
    wheels: dict[str, tuple[str, ...]] = {}
    for layer in layers:
        for entry in layer.walk(enter=lambda path: _LEADS.fullmatch(path) is not None):
            if entry.kind == "link" and entry.path.startswith(f"{_DOC}/"):
                links[entry.path] = entry.target
            elif entry.kind != "file":
                continue
            elif entry.path == _STATUS:
                status = _text(layer, entry, _MAX_STATUS_BYTES)
            elif entry.path.startswith(f"{_DOC}/") and entry.path.endswith("/copyright"):
                texts[entry.path] = _text(layer, entry, _MAX_TEXT_BYTES)
            elif _METADATA.fullmatch(entry.path):
                name, licences = wheel_licences(_text(layer, entry, _MAX_TEXT_BYTES))
                wheels[name] = licences
    debs = {deb.name: deb for deb in installed_debs(status)}
    return Contents(
        debs=debs,
        deb_licences={name: deb_licences(_copyright(name, texts, links)) for name in debs},
        wheel_licences=wheels,
    )


def installed_debs(status: str) -> list[InstalledDeb]:
    """Return the installed packages of a dpkg status file."""
    debs = []
    for stanza in re.split(r"\n\s*\n", status):
        fields = dict(re.findall(r"^([A-Za-z-]+):[ \t]*(.*)$", stanza, flags=re.MULTILINE))
        if not fields.get("Status", "").endswith(" installed") or not fields.get("Package"):
            continue
        needed = ", ".join(fields[name] for name in ("Pre-Depends", "Depends") if name in fields)
        groups = (tuple(map(_package, group.split("|"))) for group in needed.split(",") if group.strip())
        provided = (_package(name) for name in fields.get("Provides", "").split(",") if name.strip())
        debs.append(
            InstalledDeb(
                name=fields["Package"],
                version=fields.get("Version", ""),
                depends=tuple(groups),
                provides=tuple(provided),
            )
        )
    return debs


def deb_licences(text: str) -> tuple[str, ...]:
    """Return the licences that a copyright file names, sorted.

    For free text these are the files of Debian's common licences that it refers to (Debian Policy 12.5):
    ``common-licenses/GPL-2`` says which text, but not whether later versions may be chosen.
    """
    if not _FORMAT.search(text):
        return _tidy(f"common-licenses/{name}" for name in _COMMON.findall(text))
    return _tidy(_LICENCE.findall(text))


def wheel_licences(text: str) -> tuple[str, tuple[str, ...]]:
    """Return the canonical name of a distribution, and the licences in its metadata."""
    header = email.parser.HeaderParser().parsestr(text)
    name = re.sub(r"[-_.]+", "-", str(header.get("Name", ""))).lower()
    expression = str(header.get("License-Expression", "")).strip()
    if expression and expression.isprintable():
        return name, (f"={expression}",)
    licence = str(header.get("License", "")).strip()
    if licence and "\n" not in licence and len(licence) <= _LONGEST and licence.upper() != "UNKNOWN":
        return name, _tidy([licence])
    classifiers = (str(line) for line in header.get_all("Classifier", []))
    ends = [line.rpartition(" :: ")[2] for line in classifiers if line.startswith("License ::")]
    return name, _tidy(end for end in ends if end != "OSI Approved")


def _text(layer: Squashfs, entry: Entry, limit: int) -> str:
    with layer.open(entry) as file:
        return file.read(limit).decode(errors="replace")


def _copyright(name: str, texts: Mapping[str, str], links: Mapping[str, str]) -> str:
    """Return a package's copyright file; it, or its directory, may be a link to another package's."""
    for _ in range(4):
        directory = f"{_DOC}/{name}"
        if f"{directory}/copyright" in texts:
            return texts[f"{directory}/copyright"]
        target = links.get(directory) or links.get(f"{directory}/copyright", "")
        match = re.fullmatch(r"(?:\.\./|/usr/share/doc/)?([a-z0-9][a-z0-9+.-]*)/?(?:copyright)?", target)
        if match is None:
            return ""
        name = match[1]
    return ""


def _package(text: str) -> str:
    """``libc6:any (>= 2.34)`` → ``libc6``."""
    return re.split(r"[\s:(\[]", text.strip(), maxsplit=1)[0]


def _tidy(licences: Iterable[str]) -> tuple[str, ...]:
    words = {" ".join(text.split()) for text in licences}
    return tuple(sorted(word for word in words if word and word.isprintable() and len(word) <= _LONGEST))
