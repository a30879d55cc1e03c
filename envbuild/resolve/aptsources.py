"""Reads apt's list of sources, in both of its formats (sources.list(5))."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_ONE_LINE = re.compile(
    r"deb\s+(?:\[(?P<options>[^\]]*)\]\s*)?(?P<uri>\S+)\s+(?P<suite>\S+)(?P<components>.*)"
)
_NO = frozenset({"no", "false", "without", "off", "disable", "0"})
_YES = frozenset({"yes", "true", "with", "on", "enable", "1"})


@dataclass(frozen=True, slots=True, kw_only=True)
class AptSource:
    """One entry of apt's list, for binary packages."""

    uris: tuple[str, ...]
    suites: tuple[str, ...]
    components: tuple[str, ...]
    signed_by: str = ""
    """A key file, or the keys themselves, each line after the first indented as in deb822; empty for the keys
    that apt trusts anyway."""
    trusted: bool = False


def read_sources(etc_apt: Path) -> list[AptSource]:
    """Read every file that apt reads, in its order; omit unreadable files."""
    parts = sorted((etc_apt / "sources.list.d").glob("*"), key=lambda path: path.name)
    sources: list[AptSource] = []
    for path in (etc_apt / "sources.list", *parts):
        try:
            text = path.read_text(encoding="utf-8", errors="replace")
        except OSError:
            continue
        if path.suffix == ".list":
            sources += parse_one_line(text)
        elif path.suffix == ".sources":
            sources += parse_deb822(text)
    return sources


def parse_one_line(text: str) -> Iterator[AptSource]:
    """Read ``deb [OPTIONS] URI SUITE COMPONENT…``."""
    for line in text.splitlines():
        match = _ONE_LINE.fullmatch(line.partition("#")[0].strip())
        if match is None:
            continue
        options = dict(option.partition("=")[::2] for option in (match["options"] or "").split())
        yield AptSource(
            uris=(match["uri"],),
            suites=(match["suite"],),
            components=tuple(match["components"].split()),
            signed_by=options.get("signed-by", ""),
            trusted=options.get("trusted", "").lower() in _YES,
        )


def parse_deb822(text: str) -> Iterator[AptSource]:
    """Read stanzas of ``Field: value``, apart by empty lines."""
    uncommented = "\n".join(line for line in text.splitlines() if not line.startswith("#"))
    for stanza in re.split(r"\n[ \t]*(?:\n[ \t]*)+", uncommented):
        fields: dict[str, str] = {}
        name = ""
        for line in stanza.splitlines():
            if line[:1].isspace():
                fields[name] = f"{fields.get(name, '')}\n {line.strip()}"
            else:
                name, _, value = line.partition(":")
                name = name.strip().lower()
                fields[name] = value.strip()
        if "deb" not in fields.get("types", "").split() or fields.get("enabled", "yes").lower() in _NO:
            continue
        yield AptSource(
            uris=tuple(fields.get("uris", "").split()),
            suites=tuple(fields.get("suites", "").split()),
            components=tuple(fields.get("components", "").split()),
            signed_by=fields.get("signed-by", ""),
            trusted=fields.get("trusted", "").lower() in _YES,
        )
