"""Addresses of the logical origins of a lock: ``debian:bookworm-security``, ``pypi``, ``pytorch-cpu``.

In this order:

- `Site.origins` of the site file; a Debian mirror is checked with the keys of what it mirrors.
- ``debian:SUITE``: the machine's apt sources for that suite, with the keys that apt trusts for it. If apt
  has none, the archive of the same kind of suite (plain, ``-updates``, ``-security``) of another Debian
  release: one archive serves all releases.
- ``pypi``: the index in uv's or pip's configuration, else uv's default. pip's ``extra-index-url`` is *not*
  used: of two equal indexes the higher version is installed, so anyone could replace a private package by
  uploading its name to the public index ("dependency confusion").

Directories and pages with wheels (``find-links``) come from the site file, uv and pip. Addresses may hold
credentials; they never go into a lock, a log or a message.

Sources: uv's reference (configuration files, ``UV_*`` variables), pip's user guide (configuration files and
their order). The ``uv.toml`` or ``pyproject.toml`` of a project is not read: it describes the project, not
this machine.
"""

from __future__ import annotations

import configparser
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from envbuild.errors import MachineError
from envbuild.resolve.aptsources import AptSource, read_sources
from envbuild.spec.site import Site
from envbuild.spec.tomlfile import read_toml
from envbuild.system import network
from envbuild.system.files import IrregularError, read_small

DEBIAN_KEYS = "/usr/share/keyrings/debian-archive-keyring.gpg"

_FETCHABLE = frozenset({"http", "https", "file", "copy"})
_RELEASES = frozenset(
    (
        *("buster", "bullseye", "bookworm", "trixie", "forky", "sid"),
        *("oldoldstable", "oldstable", "stable", "testing", "unstable"),
    )
)
_LIMIT_BYTES = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Archive:
    """A Debian archive that serves one suite."""

    root: str
    """Address of the archive's root, without a slash at its end."""
    signed_by: str = ""
    """Key file or inline keys; empty for the keys that apt trusts anyway."""
    trusted: bool = False
    """Whether the machine's configuration waives signatures for this archive."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PythonSources:
    """Where Python distributions come from."""

    indexes: tuple[str, ...] = ()
    """Addresses of the ``pypi`` origin, in order; empty for uv's default."""
    find_links: tuple[str, ...] = ()
    """Directories and pages with wheels."""
    named: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Indexes of other origins (``pytorch-cpu``)."""
    no_index: bool = False
    """Whether only `find_links` may be asked."""

    def local_directories(self) -> tuple[Path, ...]:
        """Return the directories on this machine among `find_links`."""
        paths = (network.local_path(address) for address in self.find_links)
        return tuple(path for path in paths if path is not None and path.is_dir())

    def with_credentials(self, address: str) -> str:
        """Return an address with the credentials that are configured for an index or page on its host."""
        target = urlsplit(address)
        for configured in map(urlsplit, (*self.indexes, *self.find_links)):
            host = configured.netloc.rpartition("@")[2]
            if host != configured.netloc and (configured.scheme, host) == (target.scheme, target.netloc):
                return urlunsplit(target._replace(netloc=configured.netloc))
        return address

    def origin_of(self, address: str) -> str:
        """Return ``find-links`` for one of `find_links`, or a file in one; else ``pypi``."""
        links = {without_credentials(link).rstrip("/") for link in self.find_links}
        bare_address = without_credentials(address).rstrip("/")
        local = network.local_path(address) is not None
        return "find-links" if local or {bare_address, bare_address.rpartition("/")[0]} & links else "pypi"


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """Package sources in this machine's and user's configuration of apt, uv and pip."""

    apt: tuple[AptSource, ...] = ()
    """In apt's order."""
    python: PythonSources = PythonSources()


def read_machine(environ: Mapping[str, str] | None = None, etc: Path = Path("/etc")) -> Machine:
    """Read the machine's configuration in `etc` and the user's, of apt, uv and pip.

    `environ` defaults to the environment of this process.
    """
    settings = list(_settings(os.environ if environ is None else environ, etc))
    for source, key, value in settings:
        if key != "no-index" and not _is_address(value):
            raise MachineError(
                f"{source} names an index or a place with wheels that is not a valid URL",
                hint="correct it there: such as `https://HOST/simple`, with an IPv6 address in brackets",
            )
    indexes = [value for _, key, value in settings if key == "index-url" and value]
    links = [value for _, key, value in settings if key == "find-links" and value]
    python = PythonSources(
        indexes=tuple(indexes[:1]),
        find_links=tuple(dict.fromkeys(links)),
        no_index=any(_truth(value) for _, key, value in settings if key == "no-index"),
    )
    return Machine(apt=tuple(read_sources(etc / "apt")), python=python)


def python_sources(site: Site | None, machine: Machine) -> PythonSources:
    """Return the sources of Python distributions: the site's settings, then the machine's.

    A ``file:`` address of a directory with wheels is a find-links entry, not an index.
    """
    links = list(site.find_links) if site else []
    indexes: tuple[str, ...] | None = None
    named: dict[str, tuple[str, ...]] = {}
    for origin, addresses in site.origins.items() if site else ():
        if origin.startswith("debian:"):
            continue
        links += [address for address in addresses if _holds_wheels(address)]
        usable = tuple(address for address in addresses if not _holds_wheels(address))
        if site is not None and origin not in site.mirrors:
            # In place of a private index that is down, a public one may have other packages of its names.
            usable = usable[:1]
        if origin == "pypi":
            indexes = usable
        elif usable:
            named[origin] = usable
    find_links = map(_find_link, (*links, *machine.python.find_links))
    return PythonSources(
        indexes=machine.python.indexes if indexes is None else indexes,
        find_links=tuple(dict.fromkeys(link for link in find_links if link)),
        named=named,
        no_index=machine.python.no_index if indexes is None else not indexes,
    )


def without_credentials(address: str) -> str:
    """Return an address without credentials, query and fragment, to be compared but not shown."""
    parts = urlsplit(address)
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))


def archives(
    origin: str, components: Sequence[str], site: Site | None, machine: Machine
) -> tuple[Archive, ...]:
    """Return the archives that serve ``debian:SUITE`` with all `components`, in the order to ask them."""
    suite = origin.partition(":")[2]
    if site is not None and origin in site.origins:
        keys = _keys(suite, machine)
        return tuple(Archive(root=address.rstrip("/"), signed_by=keys) for address in site.origins[origin])
    usable = [source for source in machine.apt if set(components) <= set(source.components)]
    serving = _archives([source for source in usable if suite in source.suites])
    if not serving:
        for archive in _archives([source for source in usable if _serves_sibling(source, suite)]):
            serving.append(archive)
            if Path(DEBIAN_KEYS).exists():
                # The configured key may be only one release's.
                serving.append(replace(archive, signed_by=DEBIAN_KEYS))
    if not serving:
        raise MachineError(
            f"no address is configured for the origin `{origin}`: this machine's apt does not use it",
            hint=f'set an address in a site file: `origins: {{"{origin}": [ADDRESS]}}`',
        )
    return tuple(dict.fromkeys(serving))


def _archives(sources: Sequence[AptSource]) -> list[Archive]:
    return [
        Archive(root=uri.rstrip("/"), signed_by=source.signed_by, trusted=source.trusted)
        for source in sources
        for uri in source.uris
        if urlsplit(uri).scheme in _FETCHABLE
    ]


def _serves_sibling(source: AptSource, suite: str) -> bool:
    """Return whether a source serves the same kind of suite of another Debian release."""
    release, _, kind = suite.partition("-")
    siblings = [other.partition("-")[::2] for other in source.suites]
    return release in _RELEASES and any(name in _RELEASES and kind == other for name, other in siblings)


def _keys(suite: str, machine: Machine) -> str:
    """Return the keys for an address of the site: those of the archive that it mirrors."""
    configured = (source.signed_by for source in machine.apt if suite in source.suites and source.signed_by)
    return next(configured, DEBIAN_KEYS if Path(DEBIAN_KEYS).exists() else "")


def _find_link(link: str) -> str:
    """Return a find-links entry with an absolute path; empty if it is missing: pip skips those, too."""
    path = network.local_path(link)
    if path is None:
        return link
    return str(path.expanduser().absolute()) if path.expanduser().exists() else ""


def _holds_wheels(address: str) -> bool:
    path = network.local_path(address)
    return path is not None and next(path.glob("*.whl"), None) is not None


def _settings(variables: Mapping[str, str], etc: Path) -> Iterator[tuple[str, str, str]]:
    """Yield source, key (as in pip) and value of the settings of uv, then of pip, the strongest first."""
    for name in ("UV_DEFAULT_INDEX", "UV_INDEX_URL"):
        # It may carry a name: `name=https://…`.
        index = re.sub(r"^[A-Za-z0-9_.-]+=(?=[a-z]+://)", "", variables.get(name, ""))
        yield name, "index-url", index.strip()
    for link in re.split(r"[,\s]+", variables.get("UV_FIND_LINKS", "")):
        yield "UV_FIND_LINKS", "find-links", link
    yield "UV_NO_INDEX", "no-index", variables.get("UV_NO_INDEX", "")
    if not _truth(variables.get("UV_NO_CONFIG", "")):
        files = [(path, _toml(path)) for path in _uv_files(variables, etc)]
        # Settings for `uv pip` override others, in any file.
        for path, table in [*((path, table.get("pip", {})) for path, table in files), *files]:
            try:
                yield from _uv_table(path, table)
            except (AttributeError, KeyError, TypeError) as error:
                raise _unreadable("uv", path, "its settings have wrong types") from error
    pip = _pip(variables, etc)
    for key, (source, value) in pip.items():
        for word in value.split() if key == "find-links" else [value.strip()]:
            yield source, key, word


def _uv_files(variables: Mapping[str, str], etc: Path) -> list[Path]:
    """Return uv's configuration files: the user's, then the first of the machine's."""
    if chosen := variables.get("UV_CONFIG_FILE", ""):
        return [Path(chosen).absolute()]
    names = variables.get("XDG_CONFIG_DIRS", "").split(":")
    directories = [Path(name) for name in names if name] or [etc / "xdg"]
    paths = [*(directory / "uv/uv.toml" for directory in directories), etc / "uv/uv.toml"]
    return [_user_configuration(variables) / "uv/uv.toml", *[path for path in paths if path.exists()][:1]]


def _toml(path: Path) -> dict[str, Any]:
    try:
        return read_toml(_text("uv", path))
    except ValueError as error:
        raise _unreadable("uv", path, f"it is not a TOML file: {error}") from error


def _uv_table(path: Path, table: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    for index in table.get("index", ()):
        if index.get("default") is True:
            yield f"`{path}`", "index-url", index["url"].strip()
    yield f"`{path}`", "index-url", table.get("index-url", "").strip()
    for link in table.get("find-links", ()):
        # A path is relative to the file.
        is_path = network.local_path(link) is not None and "://" not in link
        yield f"`{path}`", "find-links", str(path.parent / link) if is_path else link
    yield f"`{path}`", "no-index", str(table.get("no-index"))


def _pip(variables: Mapping[str, str], etc: Path) -> dict[str, tuple[str, str]]:
    """Return source and value of each of pip's settings; later sources win, as in pip."""
    home = Path(variables.get("HOME") or "/nonexistent")
    files = [etc / "xdg/pip/pip.conf", etc / "pip.conf", home / ".pip/pip.conf"]
    files.append(_user_configuration(variables) / "pip/pip.conf")
    if chosen := variables.get("PIP_CONFIG_FILE", ""):
        files = [] if chosen == os.devnull else [*files, Path(chosen)]
    settings: dict[str, tuple[str, str]] = {}
    for path in files:
        parser = configparser.RawConfigParser()
        try:
            parser.read_string(_text("pip", path))
        except configparser.Error as error:
            raise _unreadable("pip", path, "it is not an INI file") from error
        for section in filter(parser.has_section, ("global", "install")):
            for name, value in parser.items(section):
                settings[name.replace("_", "-")] = (f"`{path}`", value)
    keys = ("index-url", "find-links", "no-index")
    for key in keys:
        variable = "PIP_" + key.upper().replace("-", "_")
        if variable in variables:
            settings[key] = (variable, variables[variable])
    return {key: settings[key] for key in keys if key in settings}


def _user_configuration(variables: Mapping[str, str]) -> Path:
    home = Path(variables.get("HOME") or "/nonexistent")
    return Path(variables.get("XDG_CONFIG_HOME") or home / ".config")


def _text(tool: str, path: Path) -> str:
    """Return the text of a configuration file; empty if it is missing or only other users may read it."""
    try:
        return read_small(path, limit_bytes=_LIMIT_BYTES).decode()
    except IrregularError as error:
        raise _unreadable(tool, path, f"it is {error.strerror}") from error
    except OSError:
        return ""
    except ValueError as error:
        reason = "it is not UTF-8 text" if isinstance(error, UnicodeDecodeError) else str(error)
        raise _unreadable(tool, path, reason) from error


def _unreadable(tool: str, path: Path, reason: str) -> MachineError:
    hint = "correct that file" + (": `pip config debug` shows its settings" if tool == "pip" else "")
    return MachineError(f"{tool}'s configuration `{path}` cannot be read: {reason}", hint=hint)


def _is_address(text: str) -> bool:
    try:
        # `urlsplit` drops control characters, and reads the port only on access.
        return text.isprintable() and (urlsplit(text).port or 0) >= 0
    except ValueError:
        return False


def _truth(value: str) -> bool:
    return value.strip().lower() in {"1", "yes", "true", "on", "y", "t"}
