"""A recipe of a spec in the version that was chosen for it, and its build from source."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from envbuild.errors import Location
from envbuild.jobs.judge import Job
from envbuild.spec.recipe import Recipe, Variant, filled
from envbuild.spec.requirements import RequirementEntry


@dataclass(frozen=True, slots=True, kw_only=True)
class DeclaredMetadata:
    """Version and requirements of a distribution that need not be looked up."""

    version: str
    requires: tuple[str, ...]
    """PEP 508; those of extras have a marker."""


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
    """Relative path → content of recipe.yaml, tutorial.py and the files under verify/, patches/, plugins/."""
    digest: str
    """``sha256:…`` over `files`."""
    at: Location
    jobs: tuple[Job, ...] = ()
    """The jobs of its files, for all variants."""
    device_extras: tuple[str, ...] = ()
    """Extras for the GPUs that the image is for, if its variant has the code of each in a package."""
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
            texts = map(self._filled, texts)
        else:
            texts = (self._any_build(text) if "{version}" in text else text for text in texts)
        return tuple(map(self._entry, texts))

    def _filled(self, text: str) -> str:
        return filled(text, self.version, self.device_extras)

    def _entry(self, text: str) -> RequirementEntry:
        return RequirementEntry(text=text, at=self.at, recipe=self.recipe.name)

    def _any_build(self, text: str) -> str:
        """Return a requirement for a release and its fixes, in whatever build the origin has."""
        if self.version.count(".") > 1:  # the release of a fix has its own builds, as a proven one
            return self._filled(text)
        requirement = Requirement(self._filled(text))
        requirement.specifier = SpecifierSet(f"=={self.version}.*")
        return str(requirement)

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
