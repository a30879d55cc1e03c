"""A checked spec with its recipes and base image: the input of resolving."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

from envbuild.errors import EnvbuildError, Location
from envbuild.jobs.judge import Job
from envbuild.spec.accelerators import owned_by_vendor
from envbuild.spec.base import BaseImage
from envbuild.spec.model import EnvSpec, SourcePackage
from envbuild.spec.python_platform import PythonTarget, target_of
from envbuild.spec.recipe import Recipe, Variant
from envbuild.spec.requirements import RequirementEntry
from envbuild.spec.site import Site


@dataclass(frozen=True, slots=True, kw_only=True)
class DeclaredMetadata:
    """Version and requirements of a distribution that a recipe builds."""

    version: str
    requires: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Build:
    """The build of a distribution from its source archive."""

    distribution: str
    """Canonical name."""
    name: str
    """Name for people: that of the recipe or of the distribution."""
    layer: str
    """Name of the layer that is built (``framework:horovod``, ``source:docopt``)."""
    python: tuple[str, ...]
    """Requirements of the build, in addition to those of the archive if that is read."""
    system: tuple[str, ...]
    """Debian packages of the toolchain, sorted."""
    against: tuple[str, ...] = ()
    """``mpi``, or names of recipes whose layers it compiles against."""
    environment: Mapping[str, str] = field(default_factory=dict)
    patches: Mapping[str, bytes] = field(default_factory=dict)
    """File name → content, in their order."""
    declared: DeclaredMetadata | None = None
    """If None, the archive itself says what it requires and imports."""


@dataclass(frozen=True, kw_only=True)  # without slots: what is derived from it is kept
class ChosenRecipe:
    """A recipe, the version that met the spec's constraint, and its files."""

    recipe: Recipe
    version: str
    variant_name: str
    """Accelerator (``cpu``, ``cuda-13.0``)."""
    variant: Variant
    files: dict[str, bytes]
    """Relative path → content of recipe.yaml, tutorial.py and everything under verify/ and patches/."""
    digest: str
    """``sha256:…`` over `files`."""
    at: Location
    jobs: tuple[Job, ...] = ()
    """The jobs of its files, for all variants."""
    is_proven: bool = True
    """Whether the version has a test result; another is a release with its fixes (``2.5``)."""

    @property
    def layer(self) -> str:
        """Name of the layer that it owns."""
        return "mpi" if self.recipe.kind == "mpi" else f"framework:{self.recipe.name}"

    @cached_property
    def requirements(self) -> tuple[RequirementEntry, ...]:
        """The Python requirements of this recipe and its companions."""
        return (*self.own_requirements, *map(self._entry, self.recipe.python))

    @cached_property
    def own_requirements(self) -> tuple[RequirementEntry, ...]:
        """The requirements of the variant, without the companions."""
        texts: Iterable[str] = self.variant.requirements
        if self.is_proven:
            texts = (text.replace("{version}", self.version) for text in texts)
        else:
            texts = (self._any_build(text) if "{version}" in text else text for text in texts)
        return tuple(map(self._entry, texts))

    def _entry(self, text: str) -> RequirementEntry:
        return RequirementEntry(text=text, at=self.at, recipe=self.recipe.name)

    def _any_build(self, text: str) -> str:
        """Return a requirement for a release and its fixes, in whatever build the origin has."""
        if self.version.count(".") > 1:  # the release of a fix has its own builds, as a proven one
            return text.replace("{version}", self.version)
        wanted = Requirement(text.replace("{version}", self.version))
        wanted.specifier = SpecifierSet(f"=={self.version}.*")
        return str(wanted)

    @cached_property
    def distributions(self) -> frozenset[str]:
        """The distributions (canonical names) that have exactly the recipe's version."""
        if not self.is_proven:
            return frozenset()
        written = zip(self.variant.requirements, self.own_requirements, strict=True)
        return frozenset(entry.name for text, entry in written if "{version}" in text)

    def build(self) -> Build | None:
        """Return its source build, if it has one."""
        source = self.recipe.source
        if source is None:
            return None
        return Build(
            distribution=source.distribution,
            name=self.recipe.name,
            layer=self.layer,
            python=source.python,
            system=tuple(sorted({*source.system, *(("patch",) if source.patches else ())})),
            against=source.against,
            environment=source.environment,
            patches={name: self.files[f"patches/{name}"] for name in source.patches},
            declared=DeclaredMetadata(version=self.version, requires=self.recipe.python),
        )


@dataclass(frozen=True, kw_only=True)  # without slots: what is derived from it is kept
class ResolvedSpec:
    """A checked spec, with everything that it names."""

    spec: EnvSpec
    path: Path
    """The spec's file, as the user named it; `files` are relative to its directory."""
    base: BaseImage
    base_digest: str
    """``sha256:…`` over the canonical JSON of the base image definition."""
    recipes: tuple[ChosenRecipe, ...]
    """The MPI first if there is one, then frameworks in the spec's order."""
    requested: tuple[RequirementEntry, ...]
    """The Python requirements of the spec and of the files that it names."""
    site: Site | None
    files: dict[str, bytes]
    """Source path in the spec → content."""
    architecture: str
    """In Debian's words (``amd64``)."""
    spec_places: Mapping[tuple[str | int, ...], Location] = field(default_factory=dict)
    """Steps to a value of the spec → its place."""
    site_places: Mapping[tuple[str | int, ...], Location] = field(default_factory=dict)
    """Steps to a value of the site's file → its place."""
    base_path: Path = Path("base.yaml")
    """The file of the base image definition; a finished root is relative to its directory."""
    base_errors: tuple[EnvbuildError, ...] = ()
    """Errors of base images that were read in the search for this one."""
    file_remarks: tuple[str, ...] = ()
    """Sentences on lines of files with requirements that change nothing."""
    wheel_directories: tuple[Path, ...] = ()
    """Directories whose wheels are candidates, in addition to those of the machine and the site."""
    why_release: str = ""
    """Why it is for this release of the accelerator, if the spec leaves the choice."""

    @property
    def mpi(self) -> ChosenRecipe | None:
        """The MPI recipe, if any."""
        return next((chosen for chosen in self.recipes if chosen.recipe.kind == "mpi"), None)

    @property
    def recipe_names(self) -> tuple[str, ...]:
        """The names of all recipes."""
        return tuple(chosen.recipe.name for chosen in self.recipes)

    @property
    def frameworks(self) -> tuple[ChosenRecipe, ...]:
        """The framework recipes."""
        return tuple(chosen for chosen in self.recipes if chosen.recipe.kind == "framework")

    @cached_property
    def target(self) -> PythonTarget:
        """The Python of the base, for which packages are chosen."""
        return target_of(self.base, self.architecture)

    @cached_property
    def built(self) -> Mapping[str, Build]:
        """Distribution that is built from its source → its build."""
        builds = [build for chosen in self.recipes if (build := chosen.build()) is not None]
        packages = {name: SourcePackage(name=name) for name in self.repositories}
        for entry in self.spec.packages.from_source:
            package = entry if isinstance(entry, SourcePackage) else SourcePackage(name=entry)
            packages[package.name] = package
        builds += (
            Build(
                distribution=package.name,
                name=package.name,
                layer=f"source:{package.name}",
                python=package.python,
                system=tuple(sorted(package.system)),
            )
            for package in packages.values()
        )
        return {build.distribution: build for build in builds}

    def modules_of_packages(self) -> dict[str, tuple[str, ...]]:
        """Return package → the only modules of it to import; the spec decides, then its recipes in order."""
        modules = dict(self.spec.imports)
        for chosen in self.recipes:
            modules = {**chosen.recipe.modules_of_packages, **modules}
        return modules

    @cached_property
    def python_requirements(self) -> tuple[RequirementEntry, ...]:
        """All Python requirements, sorted by text and without repeats."""
        entries = (entry for entry in self._asked_for() if not entry.is_constraint)
        of_recipes = (entry for chosen in self.recipes for entry in chosen.requirements)
        return _sorted((*entries, *of_recipes))

    def python_requests(self) -> tuple[str, ...]:
        """Return the texts of all Python requirements, as a lock keeps them."""
        return tuple(entry.text for entry in self.python_requirements)

    @cached_property
    def explicit_wheels(self) -> Mapping[str, RequirementEntry]:
        """The requests that name a wheel itself, by distribution."""
        return {request.name: request for request in self._applying if request.wheel is not None}

    @cached_property
    def repositories(self) -> Mapping[str, RequirementEntry]:
        """The requests that name a commit of a repository, by distribution."""
        return {request.name: request for request in self._applying if request.repository is not None}

    @cached_property
    def _applying(self) -> tuple[RequirementEntry, ...]:
        environment = self.target.environment
        return tuple(request for request in self._asked_for() if request.applies(environment))

    @cached_property
    def constraints(self) -> tuple[RequirementEntry, ...]:
        """The requirements that bound versions and ask for nothing, sorted by text and without repeats."""
        return _sorted(entry for entry in self._asked_for() if entry.is_constraint)

    def allowed_hashes(self) -> dict[str, frozenset[str]]:
        """Return the sha256 of the files that may be installed, by distribution, where a file lists them."""
        allowed: dict[str, frozenset[str]] = {}
        for request in self._asked_for():
            if request.hashes:
                allowed[request.name] = allowed.get(request.name, request.hashes) & request.hashes
        return allowed

    def _asked_for(self) -> Iterator[RequirementEntry]:
        """Yield the requirements of the spec and its files, without what the recipes decide."""
        decided = {name for chosen in self.recipes for name in chosen.distributions}
        return (request for request in self.requested if request.name not in decided)

    def system_requests(self) -> tuple[str, ...]:
        """Return the Debian packages that are asked for beyond the base, sorted."""
        wanted = set(self.spec.packages.system)
        for chosen in self.recipes:
            wanted.update(chosen.recipe.system)
        return tuple(sorted(wanted - set(self.base.packages)))

    def owner(self, distribution: str) -> str:
        """Return the layer that owns a Python distribution."""
        name = canonicalize_name(distribution)
        for chosen in self.recipes:
            if name in chosen.recipe.owns:
                return chosen.layer
        if owned_by_vendor(name, self.spec.accelerator.name):
            return "accelerator"
        return "python"


def _sorted(entries: Iterable[RequirementEntry]) -> tuple[RequirementEntry, ...]:
    """Return entries in the order of their texts; of equal texts the first."""
    by_text: dict[str, RequirementEntry] = {}
    for entry in entries:
        by_text.setdefault(entry.text, entry)
    return tuple(by_text[text] for text in sorted(by_text))
