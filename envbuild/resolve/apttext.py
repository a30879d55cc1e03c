"""Texts that apt reads and writes: pure functions, no process."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit

from envbuild.errors import MachineError
from envbuild.resolve.origins import Archive
from envbuild.system.redaction import redact_text

_URI = re.compile(r"'(?P<uri>[^']+)' (?P<file>\S+)\.deb (?P<size>\d{1,15}) SHA256:(?P<sha256>[0-9a-f]{64})")

# Hooks of the machine must not run for a private state directory (some clean /var/cache/apt).
_CLEARED = ("APT::Update::Pre-Invoke", "APT::Update::Post-Invoke", "APT::Update::Post-Invoke-Success",
            "APT::Architectures", "APT::Default-Release")  # fmt: skip

_SETTINGS = {
    "Dir::Etc::SourceParts": "/dev/null",
    "Dir::Etc::PreferencesParts": "/dev/null",
    "Dir::Cache::srcpkgcache": "",
    "APT::Install-Recommends": "false",
    "APT::Install-Suggests": "false",
    # Lists below a private directory are out of reach for the user that apt would change to.
    "APT::Sandbox::User": "root",
    "APT::Update::Error-Mode": "any",
    "Acquire::Languages": "none",
    "Acquire::ForceHash": "SHA256",
    "Acquire::Retries": "3",
    "Acquire::http::Timeout": "30",
    "Acquire::https::Timeout": "30",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Uri:
    """A file that apt would download.

    Attributes
    ----------
    address : str
        As apt wrote it.
    name, version, architecture : str
        In Debian's words; version with its epoch.
    size_bytes : int
        Length of the file.
    sha256 : str
        Hex digest of the file.
    """

    address: str
    name: str
    version: str
    architecture: str
    size_bytes: int
    sha256: str


def configuration(paths: Mapping[str, Path], architecture: str) -> str:
    """Return an apt.conf(5) that is read after the machine's own.

    Raises
    ------
    MachineError
        A path holds a character that apt.conf cannot hold.
    """
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
    """Return apt_preferences(5) that keep versions, older ones included, where an archive has them."""
    return "\n".join(
        f"Package: {name}\nPin: version {version}\nPin-Priority: 1001\n"
        for name, version in sorted(versions.items())
    )


def proxies(dump: str, addresses: Iterable[str]) -> dict[str, str]:
    """Read the proxies of ``apt-config dump``; a host's own setting wins, and ``DIRECT`` is none.

    Returns
    -------
    dict
        ``scheme://host`` of the addresses → address of the proxy.
    """
    settings = dict(re.findall(r'^Acquire::(\S+) "([^"]*)";$', dump, re.MULTILINE))
    found = {}
    for address in addresses:
        parts = urlsplit(address)
        names = [f"{parts.scheme}::Proxy::{parts.hostname}", f"{parts.scheme}::Proxy"]
        if parts.scheme == "https":
            names.append("http::Proxy")  # as apt-transport-https(1) has it
        proxy = next((settings[name] for name in names if settings.get(name)), "DIRECT")
        if parts.hostname and proxy != "DIRECT":
            found[f"{parts.scheme}://{parts.hostname}"] = proxy
    return found


def parse_uris(text: str) -> tuple[Uri, ...]:
    """Read the output of ``apt-get --print-uris``.

    Raises
    ------
    MachineError
        A line names a file without its SHA-256.
    """
    found = []
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
        found.append(
            Uri(
                address=match["uri"],
                name=name,
                version=version,
                architecture=architecture,
                size_bytes=int(match["size"]),
                sha256=match["sha256"],
            )
        )
    return tuple(found)


def parse_madison(text: str) -> dict[tuple[str, str], list[str]]:
    """Read the output of ``apt-cache madison``: (name, version) → suites that list it, in apt's order."""
    found: dict[tuple[str, str], list[str]] = {}
    for line in text.splitlines():
        parts = [part.strip() for part in line.split(" | ")]
        words = parts[2].split() if len(parts) == 3 else []
        if len(words) >= 2 and words[-1] == "Packages":
            found.setdefault((parts[0], parts[1]), []).append(words[1].rpartition("/")[0])
    return found


def unknown(output: str) -> list[str]:
    """Return the names that apt says no archive has."""
    return sorted(set(re.findall(r"^E: Unable to locate package (\S+)$", output, re.MULTILINE)))


def virtual(output: str) -> dict[str, list[str]]:
    """Return names that are no packages, each with the packages that provide it."""
    found: dict[str, list[str]] = {}
    for name in re.findall(r"^E: Package '(\S+)' has no installation candidate$", output, re.MULTILINE):
        block = re.search(
            rf"^Package {re.escape(name)} is a virtual package provided by:\n((?: .*\n)*)",
            output,
            re.MULTILINE,
        )
        lines = block[1].splitlines() if block else []
        found[name] = sorted(line.split()[0] for line in lines if line.split())
    return found


def providers(output: str) -> list[str]:
    """Read ``apt-cache showpkg`` of a name that is no package: the packages that provide it."""
    _, _, after = output.partition("Reverse Provides:")
    return sorted({line.split()[0] for line in after.splitlines() if line.strip()})


def no_package(name: str, output: str) -> tuple[str, str]:
    """Return what is wrong with a name that apt met with other packages, and what to write.

    Parameters
    ----------
    output : str
        What ``apt-cache showpkg`` says of it.
    """
    names = providers(output)
    if names:
        return f"`{name}` is not a package but a name that another provides", f"name it: {', '.join(names)}"
    hint = "apt takes `.` and `+` for more than letters where no package is called so"
    return f"no package is called `{name}`", hint


def conflict(output: str) -> str:
    """Return apt's account of unmet dependencies in one line; empty where there is none."""
    _, found, after = output.partition("The following packages have unmet dependencies:\n")
    lines = [line.strip() for line in after.splitlines() if line.startswith(" ")] if found else []
    return redact_text("; ".join(re.sub(r"\s+", " ", line) for line in lines[:4]))


def complaint(output: str) -> str:
    """Return the first error that apt wrote, without credentials."""
    errors = re.findall(r"^E: (.+)$", output, re.MULTILINE) or re.findall(r"^W: (.+)$", output, re.MULTILINE)
    first = re.sub(r"\s+", " ", errors[0]) if errors else "apt does not say why"
    return redact_text(first).rstrip(". ")
