"""Texts that apt reads and writes. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

from envbuild.errors import MachineError
from envbuild.resolve.origins import Archive
from envbuild.system.redaction import redact_text

_URI = re.compile(r"'(?P<uri>[^']+)' (?P<file>\S+)\.deb (?P<size>\d{1,15}) SHA256:(?P<sha256>[0-9a-f]{64})")

# Hooks of the machine must not run: some clean /var/cache/apt.
_CLEARED = ("APT::Update::Pre-Invoke", "APT::Update::Post-Invoke", "APT::Update::Post-Invoke-Success",
            "APT::Architectures", "APT::Default-Release")  # fmt: skip

_SETTINGS = {
    "Dir::Etc::SourceParts": "/dev/null",
    "Dir::Etc::PreferencesParts": "/dev/null",
    "Dir::Cache::srcpkgcache": "",
    "APT::Install-Recommends": "false",
    "APT::Install-Suggests": "false",
    # apt's own user could not read lists below a private directory.
    "APT::Sandbox::User": "root",
    "APT::Update::Error-Mode": "any",
    "Acquire::Languages": "none",
    "Acquire::ForceHash": "SHA256",
    "Acquire::Retries": "3",
    "Acquire::http::Timeout": "30",
    "Acquire::https::Timeout": "30",
}


class Uri(NamedTuple):
    """A file that apt would download; name, version (with its epoch) and architecture in Debian's words."""

    address: str
    name: str
    version: str
    architecture: str
    size_bytes: int
    sha256: str


def configuration(paths: Mapping[str, Path], architecture: str) -> str:
    """Return an apt.conf(5) to be read after the machine's own."""
    for path in paths.values():
        if re.search(r'["\n\\]', str(path)):
            raise MachineError(
                f"apt cannot work below `{path}`: a quote or line break is in the path",
                hint="name another store with --store DIR or ENVBUILD_STORE",
            )
    settings = {
        **_SETTINGS,
        **{name: str(path) for name, path in paths.items()},
        "APT::Architecture": architecture,
    }
    lines = [f"#clear {name};" for name in _CLEARED]
    lines += [f'{name} "{value}";' for name, value in settings.items()]
    lines.append(f'APT::Architectures {{ "{architecture}"; }};')
    return "\n".join(lines) + "\n"


def stanza(archive: Archive, suite: str, components: Sequence[str]) -> str:
    """Return one deb822 stanza of sources.list(5)."""
    fields = {
        "Types": "deb",
        "URIs": archive.root,
        "Suites": suite,
        "Components": " ".join(components),
        "Signed-By": archive.signed_by,
        "Trusted": "yes" if archive.trusted else "",
    }
    return "".join(f"{name}: {value}\n" for name, value in fields.items() if value)


def preferences(versions: Mapping[str, str]) -> str:
    """Return apt_preferences(5) that keep versions, even older ones, if an archive has them."""
    return "\n".join(
        f"Package: {name}\nPin: version {version}\nPin-Priority: 1001\n"
        for name, version in sorted(versions.items())
    )


def proxies(dump: str, addresses: Iterable[str]) -> dict[str, str]:
    """Read ``apt-config dump``, and return the proxy of each address: ``scheme://host`` → proxy.

    A host's own setting overrides others, and ``DIRECT`` means no proxy.
    """
    settings = dict(re.findall(r'^Acquire::(\S+) "([^"]*)";$', dump, re.MULTILINE))
    result = {}
    for address in addresses:
        parts = urlsplit(address)
        names = [f"{parts.scheme}::Proxy::{parts.hostname}", f"{parts.scheme}::Proxy"]
        if parts.scheme == "https":
            names.append("http::Proxy")  # as apt-transport-https(1) has it
        proxy = next((settings[name] for name in names if settings.get(name)), "DIRECT")
        if parts.hostname and proxy != "DIRECT":
            result[f"{parts.scheme}://{parts.hostname}"] = proxy
    return result


def parse_uris(text: str) -> tuple[Uri, ...]:
    """Read the output of ``apt-get --print-uris``; every file must have a SHA-256."""
    files = []
    for line in text.splitlines():
        if not line.startswith("'"):
            continue
        match = _URI.fullmatch(line.strip())
        parts = unquote(match["file"]).split("_") if match else []
        if match is None or len(parts) != 3:
            raise MachineError(
                f"apt names no SHA-256 for a package: {redact_text(line)}",
                hint="its archive must list SHA-256 sums: name another one under `origins` of the site file",
            )
        name, version, architecture = parts
        files.append(Uri(match["uri"], name, version, architecture, int(match["size"]), match["sha256"]))
    return tuple(files)


def parse_madison(text: str) -> dict[tuple[str, str], list[str]]:
    """Read the output of ``apt-cache madison``: (name, version) → suites that list it, in apt's order."""
    suites: dict[tuple[str, str], list[str]] = {}
    for line in text.splitlines():
        parts = [part.strip() for part in line.split(" | ")]
        words = parts[2].split() if len(parts) == 3 else []
        if len(words) >= 2 and words[-1] == "Packages":
            suites.setdefault((parts[0], parts[1]), []).append(words[1].rpartition("/")[0])
    return suites


def unknown(output: str) -> list[str]:
    """Return the names that no archive has, according to apt."""
    return sorted(set(re.findall(r"^E: Unable to locate package (\S+)$", output, re.MULTILINE)))


def virtual(output: str) -> dict[str, list[str]]:
    """Return names that are only provided by packages, each with these packages."""
    providers: dict[str, list[str]] = {}
    for name in re.findall(r"^E: Package '(\S+)' has no installation candidate$", output, re.MULTILINE):
        block = re.search(
            rf"^Package {re.escape(name)} is a virtual package provided by:\n((?: .*\n)*)",
            output,
            re.MULTILINE,
        )
        lines = block[1].splitlines() if block else []
        providers[name] = sorted(line.split()[0] for line in lines if line.split())
    return providers


def no_package(name: str, showpkg: str) -> tuple[str, str]:
    """Return the problem and hint for a name instead of which apt chose other packages.

    `showpkg` is the output of ``apt-cache showpkg`` for the name.
    """
    _, _, after = showpkg.partition("Reverse Provides:")
    providers = sorted({line.split()[0] for line in after.splitlines() if line.strip()})
    if providers:
        problem = f"`{name}` is not a package but a name that another provides"
        return problem, f"name it: {', '.join(providers)}"
    hint = "apt read the name as a regular expression; check its spelling"
    return f"there is no package `{name}`", hint


def conflict(output: str) -> str:
    """Return apt's account of unmet dependencies in one line, or an empty string."""
    _, heading, after = output.partition("The following packages have unmet dependencies:\n")
    lines = [line.strip() for line in after.splitlines() if line.startswith(" ")] if heading else []
    return redact_text("; ".join(re.sub(r"\s+", " ", line) for line in lines[:4]))


def complaint(output: str) -> str:
    """Return the first error that apt wrote, without credentials."""
    errors = re.findall(r"^E: (.+)$", output, re.MULTILINE) or re.findall(r"^W: (.+)$", output, re.MULTILINE)
    first = re.sub(r"\s+", " ", errors[0]) if errors else "apt does not say why"
    return redact_text(first).rstrip(". ")
