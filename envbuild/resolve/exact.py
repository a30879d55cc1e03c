"""From exact versions to wheels, for Python 2.7, which uv does not know: nothing is resolved.

Whoever asks for something on such a base names the whole list, each as
``name==version``. What indexes and pages with wheels say is read by pypi-simple;
connections are ours (`envbuild.system.network`).

Source: the simple repository API (PEP 503, PEP 691).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

from packaging.requirements import Requirement
from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename
from packaging.version import InvalidVersion, Version

from envbuild.errors import EnvbuildError, Location, MachineError, RequestError, raise_all
from envbuild.events import Emit, Warned
from envbuild.lock.satisfy import python_environment
from envbuild.resolve.origins import PythonSources
from envbuild.resolve.uvtext import Offer, Resolved
from envbuild.spec.asked import Asked
from envbuild.system import network
from envbuild.system.files import sha256
from envbuild.system.redaction import redact

_SHA256 = re.compile(r"[0-9a-f]{64}")
_JSON = "application/vnd.pypi.simple.v1+json"


@dataclass(slots=True, kw_only=True)
class Finder:
    """Finds the wheels of exact versions; takes the place of `uv.Uv`.

    Attributes
    ----------
    sources : PythonSources
        Where distributions come from; the indexes of named origins are not asked.
    offline : bool
        Whether only directories of this machine are looked into.
    """

    asked: Asked
    sources: PythonSources
    client: network.Client
    emit: Emit
    offline: bool = False

    def resolve(self, requirements: Sequence[str], *, keep: Mapping[str, str]) -> tuple[Resolved, ...]:
        """Return what the requirements name, each exactly.

        Parameters
        ----------
        keep : mapping
            Not needed: there is nothing to choose.

        Raises
        ------
        RequestError
            One is not exact, or two contradict each other.
        """
        del keep
        environment = python_environment(self.asked)
        versions: dict[str, str] = {}
        errors: list[EnvbuildError] = []
        for text in requirements:
            wanted = Requirement(text)
            if wanted.marker is not None and not wanted.marker.evaluate(environment):
                continue
            name, version = canonicalize_name(wanted.name), _exact(wanted)
            if version is None or wanted.extras:
                problem = f"`{text}` is not of the form `name==version`"
                hint = f"nothing resolves for Python {self.asked.base.python.version}: name all, exactly"
                errors.append(RequestError(problem, at=self._at(), hint=hint))
            elif versions.setdefault(name, version) != version:
                problem = f"`{name}` is to be {versions[name]} and {version}"
                errors.append(RequestError(problem, at=self._at(), hint="name it once"))
        raise_all(errors)
        return tuple(Resolved(name=name, version=version, via=()) for name, version in versions.items())

    def locate(self, versions: Mapping[str, str]) -> dict[str, list[Offer]]:
        """Return the wheels of exact versions, with their addresses.

        Raises
        ------
        RequestError
            One of them is nowhere to be found.
        MachineError
            An index cannot be reached.
        """
        silent: list[network.NetworkError] = []
        found = {
            name: list(self._wheels(name, version, silent)) for name, version in sorted(versions.items())
        }
        if silent and not all(found.values()):
            # Who does not answer may have what is lacking.
            raise MachineError(silent[0].problem, hint=_WHERE) from silent[0]
        lacking = [f"{name} {versions[name]}" for name, wheels in found.items() if not wheels]
        raise_all(
            [RequestError(f"no origin has a wheel of {each}", at=self._at(), hint=_WHERE) for each in lacking]
        )
        return found

    def origin(self, found: Resolved, address: str) -> str:
        """Return the logical origin of what was found at an address."""
        links = {redact(link).rstrip("/") for link in self.sources.find_links}
        place = found.source or address
        local = network.local_path(place) is not None
        return "find-links" if local or redact(place).rpartition("/")[0] in links else "pypi"

    def _wheels(self, name: str, version: str, silent: list[network.NetworkError]) -> Iterator[Offer]:
        places = [*self.sources.find_links, *self._index_pages(name)]
        for place in places:
            directory = network.local_path(place)
            if directory is not None and directory.is_dir() and not (directory / "index.html").exists():
                yield from _local_wheels(directory, name, version)
            elif directory is not None or not self.offline:
                yield from self._listed(place, name, version, silent)

    def _index_pages(self, name: str) -> Iterator[str]:
        from pypi_simple import PYPI_SIMPLE_ENDPOINT  # noqa: PLC0415  # late: few images need it

        if not self.sources.no_index:
            for index in self.sources.indexes or (PYPI_SIMPLE_ENDPOINT,):
                yield f"{index.rstrip('/')}/{name}/"

    def _listed(
        self, address: str, name: str, version: str, silent: list[network.NetworkError]
    ) -> Iterator[Offer]:
        """Read the page of an index, or one with wheels."""
        try:
            page = self._page(address)
        except network.NetworkError as error:
            if not error.gone:
                self.emit(Warned(text=error.problem, hint="another origin has to serve what it would have"))
                silent.append(error)
            return
        for file, link, digests, size in _files(page, name):
            digest = digests.get("sha256", "")
            if _is_of(file, name, version) and _SHA256.fullmatch(digest):
                yield Offer(
                    name=name,
                    version=version,
                    file=file,
                    address=_with_credentials(link, address),
                    sha256=digest,
                    size_bytes=size,
                )

    def _page(self, address: str) -> network.Page:
        from pypi_simple import ACCEPT_JSON_PREFERRED  # noqa: PLC0415  # late: few images need it

        path = network.local_path(address)
        if path is None:
            return self.client.page(address, accept=ACCEPT_JSON_PREFERRED)
        page = path / "index.html" if path.is_dir() else path
        try:
            return network.Page(address=page.as_uri(), content=page.read_bytes(), kind="text/html")
        except OSError as error:
            raise network.NetworkError(
                f"`{page}` cannot be read: {error.strerror}", gone=True, hint=network.OTHER
            ) from error

    def _at(self) -> Location:
        return Location(path=self.asked.path)


_WHERE = "an index or a directory with wheels (find-links) has to have it for this Python"


def _exact(wanted: Requirement) -> str | None:
    """Return the version that a requirement names, where it names one."""
    parts = list(wanted.specifier)
    if len(parts) == 1 and parts[0].operator == "==" and not parts[0].version.endswith(".*"):
        return str(Version(parts[0].version))
    return None


def _files(page: network.Page, name: str) -> Iterator[tuple[str, str, dict[str, str], int | None]]:
    """Yield file name, address, digests and length of what a page lists."""
    from pypi_simple import ProjectPage, UnsupportedRepoVersionError  # noqa: PLC0415  # late: few images need it

    try:
        if page.kind.partition(";")[0].strip() == _JSON:
            listed = ProjectPage.from_json_data(json.loads(page.content), page.address)
        else:
            listed = ProjectPage.from_html(name, page.content, page.address)
    except (ValueError, KeyError, TypeError, UnsupportedRepoVersionError) as error:
        raise MachineError(
            f"{redact(page.address)} is no page of an index: {error}",
            hint="see the address under `origins` of the site file, or in pip's configuration",
        ) from error
    for package in listed.packages:
        yield package.filename, package.url, package.digests, package.size


def _local_wheels(directory: Path, name: str, version: str) -> Iterator[Offer]:
    for path in sorted(directory.glob("*.whl")):
        if _is_of(path.name, name, version):
            size, digest = path.stat().st_size, sha256(path)
            yield Offer(
                name=name,
                version=version,
                file=path.name,
                address=str(path),
                sha256=digest,
                size_bytes=size,
            )


def _is_of(file: str, name: str, version: str) -> bool:
    try:
        of_name, of_version, _, _ = parse_wheel_filename(file)
    except (InvalidWheelFilename, InvalidVersion):
        return False
    return of_name == name and of_version == Version(version)


def _with_credentials(link: str, index: str) -> str:
    """Let a link to an index's own host have the user and password that the index was named with."""
    ours, theirs = urlsplit(index), urlsplit(link)
    if "@" in ours.netloc and (theirs.scheme, theirs.netloc) == (ours.scheme, ours.netloc.rpartition("@")[2]):
        return urlunsplit(theirs._replace(netloc=ours.netloc))
    return link
