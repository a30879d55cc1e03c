"""Logical origins → addresses, from the site's settings and this machine's own configuration.

A lock names origins (``debian:bookworm-security``, ``pypi``, ``pytorch-cpu``);
which address serves one is a matter of the site, the machine or the user:

- what `Site.origins` says comes first, its addresses in their order; a
  Debian mirror is checked with the keys of what it mirrors;
- ``debian:SUITE`` is otherwise what this machine's apt asks for that suite,
  with the keys that apt trusts for it; and where apt does not use that suite,
  the archive that serves the same kind of suite (plain, ``-updates``,
  ``-security``) of another Debian release, since an archive serves them all;
- ``pypi`` is otherwise the index of uv's or pip's configuration, or uv's own
  default. pip's ``extra-index-url`` is *not* used: with two indexes of equal
  rank, whoever uploads a private package's name to the public one, under a
  higher version, decides what is installed ("dependency confusion");
- directories and pages with wheels come from the site, uv and pip
  (``find-links``).

Addresses may hold credentials: they stay in these values and never go into a
lock, a log or a message.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from urllib.parse import urlsplit

from envbuild.errors import MachineError
from envbuild.resolve.aptsources import AptSource, read_sources
from envbuild.resolve.pythonconf import python_settings
from envbuild.spec.site import Site
from envbuild.system import network

DEBIAN_KEYS = "/usr/share/keyrings/debian-archive-keyring.gpg"

_FETCHABLE = frozenset({"http", "https", "file", "copy"})
_RELEASES = frozenset(
    (
        *("buster", "bullseye", "bookworm", "trixie", "forky", "sid"),
        *("oldoldstable", "oldstable", "stable", "testing", "unstable"),
    )
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Archive:
    """A Debian archive that serves one suite.

    Attributes
    ----------
    root : str
        Address of the archive's root, without a slash at its end.
    signed_by : str
        Key file or inline keys; empty for the keys that apt trusts anyway.
    trusted : bool
        Whether the machine or the site said that signatures do not matter here.
    """

    root: str
    signed_by: str = ""
    trusted: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class PythonSources:
    """Where uv looks for Python distributions.

    Attributes
    ----------
    indexes : tuple of str
        Addresses of the ``pypi`` origin, in order; empty for uv's default.
    find_links : tuple of str
        Directories and pages with wheels.
    named : dict of str to tuple of str
        Other origins' indexes (``pytorch-cpu``).
    no_index : bool
        Whether only `find_links` may be asked.
    located : dict
        Where files were found so far: SHA-256 → addresses.
    """

    indexes: tuple[str, ...] = ()
    find_links: tuple[str, ...] = ()
    named: Mapping[str, tuple[str, ...]]
    no_index: bool = False
    located: dict[str, Sequence[str]] = field(default_factory=dict, repr=False, compare=False)

    def local_directories(self) -> tuple[Path, ...]:
        """Return the directories on this machine among `find_links`."""
        paths = (network.local_path(address) for address in self.find_links)
        return tuple(path for path in paths if path is not None and path.is_dir())


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """What this machine's own configuration says; a plain value, so that tests make their own.

    Attributes
    ----------
    apt : tuple of AptSource
        In apt's order.
    index : str
        Index of uv's or pip's configuration; empty for none.
    find_links : tuple of str
        Of uv's and pip's configuration.
    no_index : bool
        Whether pip is told to use no index.
    """

    apt: tuple[AptSource, ...] = ()
    index: str = ""
    find_links: tuple[str, ...] = ()
    no_index: bool = False


def read_machine(environ: Mapping[str, str] | None = None, etc: Path = Path("/etc")) -> Machine:
    """Read the machine's and the user's configuration of apt, uv and pip.

    Parameters
    ----------
    environ : mapping, optional
        The environment; our own if absent.
    etc : Path
        Directory of the machine's configuration.

    Raises
    ------
    MachineError
        Some of it cannot be read, or an address is none.
    """
    variables = os.environ if environ is None else environ
    said = list(python_settings(variables, etc))
    return Machine(
        apt=tuple(read_sources(etc / "apt")),
        index=next((each.index for each in said if each.index), ""),
        find_links=tuple(dict.fromkeys(link for each in said for link in each.find_links)),
        no_index=any(each.no_index for each in said),
    )


def python_sources(site: Site | None, machine: Machine) -> PythonSources:
    """Return where Python distributions are looked for.

    A ``file:`` address whose directory holds wheels is a place to look in,
    not an index, whichever origin it is given for.
    """
    asked = dict(site.origins) if site else {}
    links = list(site.find_links) if site else []
    indexes: list[str] = []
    named: dict[str, tuple[str, ...]] = {}
    for origin, addresses in asked.items():
        if origin.startswith("debian:"):
            continue
        kept = [address for address in addresses if not _holds_wheels(address)]
        if site is not None and origin not in site.mirrors:
            # A public index that stands in for a private one that is down has other packages of its names.
            kept = kept[:1]
        links += [address for address in addresses if _holds_wheels(address)]
        if origin == "pypi":
            indexes += kept
        elif kept:
            named[origin] = tuple(kept)
    only_local = "pypi" in asked and not indexes
    if "pypi" not in asked and machine.index:
        indexes = [machine.index]
    places = (_place(link) for link in (*links, *machine.find_links))
    return PythonSources(
        indexes=tuple(indexes),
        find_links=tuple(dict.fromkeys(place for place in places if place)),
        named=named,
        no_index=only_local or ("pypi" not in asked and machine.no_index),
    )


def archives(
    origin: str, components: Sequence[str], site: Site | None, machine: Machine
) -> tuple[Archive, ...]:
    """Return the archives that serve a Debian origin, in the order in which they are asked.

    Parameters
    ----------
    origin : str
        ``debian:SUITE``.
    components : sequence of str
        Components that one archive must have, such as ``main``.

    Raises
    ------
    MachineError
        None is known.
    """
    suite = origin.partition(":")[2]
    if site is not None and origin in site.origins:
        keys = _keys(suite, machine)
        return tuple(Archive(root=address.rstrip("/"), signed_by=keys) for address in site.origins[origin])
    usable = [source for source in machine.apt if set(components) <= set(source.components)]
    found = _serving([source for source in usable if suite in source.suites])
    if not found:
        found = _with_all_keys(_serving([source for source in usable if _serves_sibling(source, suite)]))
    if not found:
        raise MachineError(
            f"no address is known for the origin `{origin}`: this machine's apt does not use it",
            hint=f'a site file names one: `origins: {{"{origin}": [ADDRESS]}}`',
        )
    return tuple(dict.fromkeys(found))


def _serving(sources: Sequence[AptSource]) -> list[Archive]:
    return [
        Archive(root=uri.rstrip("/"), signed_by=source.signed_by, trusted=source.trusted)
        for source in sources
        for uri in source.uris
        if urlsplit(uri).scheme in _FETCHABLE
    ]


def _serves_sibling(source: AptSource, suite: str) -> bool:
    """Whether apt uses a source for the same kind of suite of another Debian release."""
    release, kind = _split_suite(suite)
    siblings = [_split_suite(other) for other in source.suites]
    return release in _RELEASES and any(name in _RELEASES and kind == other for name, other in siblings)


def _split_suite(suite: str) -> tuple[str, str]:
    release, _, kind = suite.partition("-")
    return release, kind


def _with_all_keys(found: Sequence[Archive]) -> list[Archive]:
    """Let each archive be checked with Debian's keys too: its own may be those of one release alone."""
    if not Path(DEBIAN_KEYS).exists():
        return list(found)
    return [each for one in found for each in (one, replace(one, signed_by=DEBIAN_KEYS))]


def _keys(suite: str, machine: Machine) -> str:
    """Return the keys for an address that the site gave: a mirror is signed by whom it mirrors."""
    found = next(
        (source.signed_by for source in machine.apt if suite in source.suites and source.signed_by), ""
    )
    return found or (DEBIAN_KEYS if Path(DEBIAN_KEYS).exists() else "")


def _place(link: str) -> str:
    """Return a find-links entry that does not depend on where we run.

    Nothing for a directory that is not there: pip passes over those too.
    """
    path = network.local_path(link)
    if path is None:
        return link
    return str(path.expanduser().absolute()) if path.expanduser().exists() else ""


def _holds_wheels(address: str) -> bool:
    path = network.local_path(address)
    return path is not None and next(path.glob("*.whl"), None) is not None
