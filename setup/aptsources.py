"""Read apt's own list of sources, so that further packages come from the mirror this machine already uses.

Pure but for `read_sources`; both of apt's formats are understood (sources.list(5)).
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

DEBIAN_KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"
SUITE_ALIASES = frozenset({"oldstable", "stable", "testing", "unstable", "sid"})
SWITCHED_OFF = frozenset({"no", "false", "without", "off", "disable", "0"})
"""How apt lets people write that a stanza is not enabled."""
URI_SCHEMES = frozenset(
    {"http", "https", "file", "copy", "mirror", "mirror+file", "mirror+http", "mirror+https"}
)
"""Ways to an archive that also lead to its other suites; a CD-ROM does not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """One archive that apt fetches binary packages from.

    Attributes
    ----------
    uris : tuple of str
        Addresses that hold the same archive.
    suites : tuple of str
        Release names, such as ``bookworm``, or a path that ends in a slash.
    components : tuple of str
        Parts of the archive, such as ``main``; empty for a flat repository.
    signed_by : str
        File of the keys that may sign it; empty for apt's default, or where the keys are inline.
    """

    uris: tuple[str, ...]
    suites: tuple[str, ...]
    components: tuple[str, ...]
    signed_by: str = ""


def parse_one_line(text: str) -> Iterator[Source]:
    """Read the one-line format: ``deb [signed-by=FILE] URI SUITE COMPONENT …``."""
    pattern = re.compile(
        r"deb\s+(?:\[(?P<options>[^\]]*)\]\s*)?(?P<uri>\S+)\s+(?P<suite>\S+)(?P<components>.*)"
    )
    for line in text.splitlines():
        match = pattern.fullmatch(line.partition("#")[0].strip())
        if match is None:
            continue
        options = dict(o.split("=", 1) for o in (match["options"] or "").split() if "=" in o)
        yield Source(
            uris=(match["uri"],),
            suites=(match["suite"],),
            components=tuple(match["components"].split()),
            signed_by=options.get("signed-by", ""),
        )


def parse_deb822(text: str) -> Iterator[Source]:
    """Read the deb822 format: stanzas of ``Field: value`` apart by blank lines."""
    kept = "\n".join(line for line in text.splitlines() if not line.startswith("#"))
    for stanza in re.split(r"\n\s*\n", kept):
        fields: dict[str, str] = {}
        name = ""
        for line in stanza.splitlines():
            if line[:1].isspace():
                fields[name] = f"{fields.get(name, '')}\n{line.strip()}"
            else:
                name, _, value = line.partition(":")
                name = name.strip().lower()
                fields[name] = value.strip()
        if "deb" not in fields.get("types", "").split() or fields.get("enabled", "").lower() in SWITCHED_OFF:
            continue
        signed_by = fields.get("signed-by", "").strip()
        yield Source(
            uris=tuple(fields.get("uris", "").split()),
            suites=tuple(fields.get("suites", "").split()),
            components=tuple(fields.get("components", "").split()),
            signed_by=signed_by if signed_by.startswith("/") else "",
        )


def read_sources(etc_apt: Path = Path("/etc/apt")) -> list[Source]:
    """Read every file that apt itself would read, in its order."""
    parts = sorted((etc_apt / "sources.list.d").glob("*"), key=lambda path: path.name)
    sources: list[Source] = []
    for path in [etc_apt / "sources.list", *parts]:
        if not path.is_file():
            continue
        text = path.read_text(encoding="utf-8", errors="replace")
        if path.suffix == ".list":
            sources += parse_one_line(text)
        elif path.suffix == ".sources":
            sources += parse_deb822(text)
    return sources


def debian_mirrors(sources: Sequence[Source], codename: str) -> list[tuple[str, str]]:
    """Choose the addresses likely to be a whole Debian archive, the likeliest first.

    Third parties name their suites after Debian's too, so that several candidates may remain;
    whether one carries what is wanted, only asking it tells.

    Parameters
    ----------
    sources : sequence of Source
        What this machine's apt uses.
    codename : str
        Release that this machine runs, such as ``bookworm``.

    Returns
    -------
    list of (str, str)
        Address, and the file of keys that its signature is checked with.
    """
    suites = SUITE_ALIASES | {codename}
    found: dict[str, str] = {}
    for source in sources:
        if "main" not in source.components or not suites.intersection(source.suites):
            continue
        for uri in source.uris:
            if urlsplit(uri).scheme in URI_SCHEMES:
                found.setdefault(uri.rstrip("/"), source.signed_by or DEBIAN_KEYRING)
    return sorted(found.items(), key=lambda item: not item[0].endswith("/debian"))


def source_stanza(uri: str, suite: str, signed_by: str) -> str:
    """Write one deb822 stanza for the binary packages of a suite's main component."""
    return f"Types: deb\nURIs: {uri}\nSuites: {suite}\nComponents: main\nSigned-By: {signed_by}\n"
