"""A question after packages: ``libssl3<3.0.15``, ``deb:libssl*``, ``pypi:torch>=2.6,<2.7``. Pure."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, Self

from packaging.utils import canonicalize_name

from envbuild.errors import RequestError
from envbuild.rules.versions import Scheme, in_range, range_problem

Ecosystem = Literal["deb", "pypi"]
ECOSYSTEMS: dict[Ecosystem, Scheme] = {"deb": "debian", "pypi": "pep440"}
"""Each ecosystem, and how its versions are compared: as dpkg does, and by PEP 440."""

_QUERY = re.compile(r"(?:(deb|pypi):)?([A-Za-z0-9][A-Za-z0-9.+_*?-]*?) *((?:[<>=!].*)?)")
_HINT = "write `libssl3<3.0.15-1~deb12u1`, `libssl*`, `deb:NAME`, or `pypi:NAME>=1,<2`"


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Package:
    """A package in an image."""

    ecosystem: Ecosystem
    name: str
    version: str
    """Empty if it is not known."""

    def __str__(self) -> str:
        return f"{self.name} {self.version or 'of an unknown version'} ({self.ecosystem})"


@dataclass(frozen=True, slots=True, kw_only=True)
class PackageQuery:
    """A name or pattern, and perhaps a range of versions."""

    text: str
    """As the user wrote it."""
    ecosystems: tuple[Ecosystem, ...]
    """In which packages are sought."""
    name: str
    """A name, or a pattern with ``*`` and ``?``."""
    versions: str
    """A range such as ``>=1,<2``; empty for all versions."""

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read a question; RequestError if it is not one, or no ecosystem has such versions."""
        match = _QUERY.fullmatch(text.strip())
        if match is None:
            raise RequestError(f"--package: `{text}` does not name a package", hint=_HINT)
        ecosystem, name, versions = match.groups()
        asked = [known for known in ECOSYSTEMS if ecosystem in (None, known)]
        problems = {known: range_problem(versions, ECOSYSTEMS[known]) for known in asked if versions}
        fitting = tuple(known for known in asked if not problems.get(known))
        if not fitting:
            raise RequestError(f"--package: {next(iter(problems.values()))}", hint=_HINT)
        return cls(text=text.strip(), ecosystems=fitting, name=name, versions=versions)

    @property
    def has_epochs(self) -> bool:
        """Whether each bound states an epoch (``1:1.2.14``)."""
        return all(":" in bound for bound in self.versions.split(","))

    def names(self, package: Package) -> bool:
        """Return whether the name fits: Python's as PEP 503 normalises it, others in lower case."""
        if package.ecosystem not in self.ecosystems:
            return False
        if package.ecosystem == "pypi":
            # A pattern keeps its signs.
            pattern = re.sub(r"[-_.]+", "-", self.name).lower()
            return fnmatch.fnmatchcase(canonicalize_name(package.name), pattern)
        return fnmatch.fnmatchcase(package.name.lower(), self.name.lower())

    def asks_for(self, package: Package) -> bool | None:
        """Return whether a package is one of those asked for; None if its version cannot be compared."""
        if not self.names(package):
            return False
        if not self.versions:
            return True
        if not package.version:
            return None
        epoch, colon, _ = package.version.rpartition(":")
        if package.ecosystem == "deb" and colon and epoch != "0" and not self.has_epochs:
            # An advisory's version without its epoch is below all that have one: that would be a wrong "no".
            return None
        return in_range(package.version, self.versions, ECOSYSTEMS[package.ecosystem])

    def found_in(self, packages: Iterable[Package]) -> tuple[tuple[Package, ...], tuple[Package, ...]]:
        """Return the packages that are asked for, and those that may be; each once, sorted."""
        answers = {package: self.asks_for(package) for package in packages}
        found = sorted(package for package, answer in answers.items() if answer)
        undecided = sorted(package for package, answer in answers.items() if answer is None)
        return tuple(found), tuple(undecided)
