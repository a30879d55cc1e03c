"""Packages: which images hold a package, by what they say of themselves; none is scanned or started."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from envbuild.errors import EnvbuildError, Location, RequestError
from envbuild.image.compose import sbom_document
from envbuild.image.file import ImageFile
from envbuild.image.sif import HINT_REBUILD
from envbuild.image.verify import changed_around
from envbuild.preflight.image_facts import carried_facts
from envbuild.rules.facts import Facts, texts_of
from envbuild.rules.package_query import Ecosystem, Package, PackageQuery
from envbuild.workflows.images import NamedImage
from envbuild.workflows.members import Member, Members
from envbuild.workflows.settings import Settings

State = Literal["holds", "unknown", "lacks"]
# The first part of the reference of a package in a bill of materials.
_KINDS: dict[str, Ecosystem] = {"deb": "deb", "pypi": "pypi"}


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownPackages:
    """The packages that an image names."""

    packages: frozenset[Package]
    gaps: Mapping[Ecosystem, str]
    """Kind of packages of which it may hold others → why they are not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PackageAnswer:
    """Whether an image holds packages that are asked for."""

    found: tuple[Package, ...]
    undecided: tuple[Package, ...]
    """Packages whose versions cannot be compared."""
    gaps: tuple[str, ...] = ()
    """Why the image may hold others; empty if it names all."""

    @property
    def state(self) -> State:
        """``unknown`` if it names none that is asked for, and may hold one."""
        if self.found:
            return "holds"
        return "unknown" if self.undecided or self.gaps else "lacks"

    @property
    def text(self) -> str:
        """The packages, or why it is not known."""
        undecided = [
            f"{package} cannot be compared"
            + (": write the range with its epoch, as in `<1:2.0`" if ":" in package.version else "")
            for package in self.undecided
        ]
        return "; ".join([", ".join(map(str, self.found))] * bool(self.found) + undecided + [*self.gaps])


def find_packages(
    images: Members[NamedImage], questions: Sequence[str], settings: Settings
) -> Members[PackageAnswer]:
    """Return for each image the packages that one of several questions is after (`PackageQuery.parse`).

    Of many images, one that cannot be read is unknown, with the reason. RequestError: a question is not one.
    """
    queries = [PackageQuery.parse(question) for question in questions]

    def answer(member: Member[NamedImage], settings: Settings) -> PackageAnswer:
        try:
            return _answer(member.get(), queries, settings)
        except EnvbuildError as error:
            if not images.many:
                raise
            return PackageAnswer(found=(), undecided=(), gaps=(error.problem,))

    return images.each(answer, settings)


def _answer(named: NamedImage, queries: Sequence[PackageQuery], settings: Settings) -> PackageAnswer:
    with ImageFile.open(named.file(settings)) as image:
        known = packages_of(image)
    pairs = [query.found_in(known.packages) for query in queries]
    found = {package for packages, _ in pairs for package in packages}
    undecided = {package for _, packages in pairs for package in packages} - found
    asked = {ecosystem for query in queries for ecosystem in query.ecosystems}
    gaps = dict.fromkeys(why for ecosystem, why in known.gaps.items() if ecosystem in asked)
    return PackageAnswer(found=tuple(sorted(found)), undecided=tuple(sorted(undecided)), gaps=tuple(gaps))


def packages_of(image: ImageFile) -> KnownPackages:
    """Return the packages that an image names: in its bill of materials, its facts, and what was added to it.

    Packages that only a build used do not count. RequestError: the bill is missing or damaged.
    """
    if not image.built_by_envbuild:
        added = image.note.packages.values() if image.note is not None else ()
        packages = {Package(ecosystem="pypi", name=one.name, version=one.version) for one in added}
        why = "another tool built the image, which does not say what it holds"
        return KnownPackages(packages=frozenset(packages), gaps={"deb": why, "pypi": why})
    if changed := changed_around(image):
        why = f"the image was changed or damaged: {', '.join(changed)}"
        return KnownPackages(packages=frozenset(), gaps={"deb": why, "pypi": why})
    components = _components(image)
    packages = {package for component in components for package in _package(component)}
    gaps: dict[Ecosystem, str] = {}
    if any(str(component.get("bom-ref", "")).startswith("root:") for component in components):
        # The packages of a finished root: Debian's by its list, Python's by the scan of its files.
        facts = carried_facts(image)
        listed = {package.name for package in packages if package.ecosystem == "pypi"}
        packages.update(_python_of_facts(facts or {}, listed))
        if not any(one.ecosystem == "deb" for one in packages):
            gaps["deb"] = "its root has no list of Debian packages"
        if facts is None:
            gaps["pypi"] = "it carries no facts on the Python packages of its root"
    return KnownPackages(packages=frozenset(packages), gaps=gaps)


def _components(image: ImageFile) -> list[dict[str, Any]]:
    bill = sbom_document(image)
    components = bill.get("components") if isinstance(bill, dict) else None
    if not isinstance(components, list) or not all(isinstance(entry, dict) for entry in components):
        problem = f"the bill of materials in `{image.path.name}` lists no components"
        raise RequestError(problem, at=Location(path=image.path), hint=HINT_REBUILD)
    return components


def _package(component: Mapping[str, Any]) -> Iterator[Package]:
    kind = str(component.get("bom-ref", "")).partition(":")[0]
    name, version = component.get("name"), component.get("version", "")
    if kind in _KINDS and component.get("scope") != "excluded" and isinstance(name, str):
        yield Package(ecosystem=_KINDS[kind], name=name, version=str(version))


def _python_of_facts(facts: Facts, listed: set[str]) -> Iterator[Package]:
    """Yield the Python packages that only a scan of the files found, as those of a finished root."""
    for name in texts_of(facts, "packages"):
        if name not in listed:
            fact = facts.get(f"packages.{name}")
            yield Package(ecosystem="pypi", name=name, version=str(fact.value) if fact is not None else "")
