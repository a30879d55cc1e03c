"""A checked spec with its recipes and base image: the input of resolving."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from packaging.utils import canonicalize_name
from packaging.version import Version

from envbuild.spec.accelerators import accelerator_of, owned_by_vendor
from envbuild.spec.base import BaseImage
from envbuild.spec.chosen_recipe import Build, ChosenRecipe
from envbuild.spec.load import Loaded
from envbuild.spec.model import EnvSpec, RegistryImage, SourcePackage
from envbuild.spec.python_platform import PythonTarget, target_of
from envbuild.spec.python_request import OriginRule, PythonRequest
from envbuild.spec.requirements import RequirementEntry
from envbuild.spec.site import Site


@dataclass(frozen=True, kw_only=True)  # without slots: what is derived from it is kept
class ResolvedSpec:
    """A checked spec, with everything that it names."""

    spec_file: Loaded[EnvSpec]
    """The `files` of the spec are relative to its directory."""
    base_file: Loaded[BaseImage]
    """A finished root is relative to its directory."""
    base_digest: str
    """``sha256:…`` over the canonical JSON of the base image definition."""
    site_file: Loaded[Site] | None
    recipes: tuple[ChosenRecipe, ...]
    """The MPI first if there is one, then frameworks in the spec's order."""
    requested: tuple[RequirementEntry, ...]
    """The Python requirements of the spec and of the files that it names."""
    wheel_directories: tuple[Path, ...]
    """Directories whose wheels are candidates, in addition to those of the machine and the site."""
    files: Mapping[str, bytes]
    """Source path in the spec → content."""
    architecture: str
    """In Debian's words (``amd64``)."""
    sites: tuple[Loaded[Site], ...] = ()
    """The site of `site_file`, or each of its partitions: the image has to fit one of them."""
    why_release: str = ""
    """Why it is for this release of the accelerator, if the spec leaves the choice."""
    remarks: tuple[str, ...] = ()
    """Sentences on what is unreadable, frozen, untested or without effect."""

    @property
    def spec(self) -> EnvSpec:
        """The spec itself."""
        return self.spec_file.value

    @property
    def path(self) -> Path:
        """The spec's file, as the user named it."""
        return self.spec_file.path

    @property
    def base(self) -> BaseImage:
        """The base image."""
        return self.base_file.value

    @property
    def base_image(self) -> str:
        """``HOST/NAME@sha256:…`` of its base, if that is an image of a registry; else empty."""
        root = self.base.root
        return root.place if root is not None and isinstance(self.spec.base, RegistryImage) else ""

    @property
    def site(self) -> Site | None:
        """Sources of packages, and the facts that all partitions of the site share; None without a site."""
        return self.site_file.value if self.site_file is not None else None

    @property
    def mpi(self) -> ChosenRecipe | None:
        """The MPI recipe, if any."""
        return next((chosen for chosen in self.recipes if chosen.recipe.kind == "mpi"), None)

    @property
    def frameworks(self) -> tuple[ChosenRecipe, ...]:
        """The framework recipes."""
        return tuple(chosen for chosen in self.recipes if chosen.recipe.kind == "framework")

    @cached_property
    def target(self) -> PythonTarget:
        """The Python of the base, for which packages are chosen."""
        return target_of(self.base, self.architecture)

    @cached_property
    def python(self) -> PythonRequest:
        """The Python packages that the spec and its recipes ask for."""
        of_recipes = tuple(entry for chosen in self.recipes for entry in chosen.requirements)
        undecided = self._undecided
        packages = self.spec.packages.from_source
        return PythonRequest(
            target=self.target,
            path=self.path,
            requirements=_sorted((*(entry for entry in undecided if not entry.is_constraint), *of_recipes)),
            constraints=_sorted(entry for entry in undecided if entry.is_constraint),
            written=self.requested,
            of_recipes=of_recipes,
            hashes=_allowed_hashes(undecided),
            built=frozenset(self.builds),
            declared={
                (name, build.declared.version): build.declared.requires
                for name, build in self.builds.items()
                if build.declared is not None
            },
            explicit_wheels={entry.name: entry for entry in self._applying if entry.wheel is not None},
            commits=self._commits,
            origin_rules=(*_origin_rules(self.recipes), *self._rules_of_accelerator()),
            from_source=tuple(package if isinstance(package, str) else package.name for package in packages),
        )

    def _rules_of_accelerator(self) -> Iterator[OriginRule]:
        """Yield the rule by which packages of the accelerator come from origins of the site.

        The newest release that the spec admits comes first.
        """
        row, accelerator = accelerator_of(self.spec.accelerator.name), self.spec.accelerator
        if row is None or not row.origin or self.site is None:
            return
        matches = (re.fullmatch(rf"{row.origin}([0-9]+(?:\.[0-9]+)*)", name) for name in self.site.origins)
        releases = [match[1] for match in matches if match]
        origins = tuple(
            f"{row.origin}{release}"
            for release in sorted(releases, key=Version, reverse=True)
            if accelerator.admits(release)
        )
        names = frozenset(entry.name for entry in self.requested if owned_by_vendor(entry.name, row.name))
        if origins:
            yield OriginRule(origins=origins, names=names, beginnings=row.distributions, requirements=())

    @cached_property
    def builds(self) -> Mapping[str, Build]:
        """Distribution that is built from its source → its build."""
        of_recipes = (build for chosen in self.recipes if (build := chosen.build()) is not None)
        row = accelerator_of(self.spec.accelerator.name)
        of_vendor = row.source_archives if row is not None else ()
        packages = {name: SourcePackage(name=name) for name in (*of_vendor, *self._commits)}
        for entry in self.spec.packages.from_source:
            package = entry if isinstance(entry, SourcePackage) else SourcePackage(name=entry)
            packages[package.name] = package
        of_packages = (
            Build(
                distribution=package.name,
                name=package.name,
                layer=f"source:{package.name}",
                python=package.python,
                system=tuple(sorted(package.system)),
            )
            for package in packages.values()
        )
        return {build.distribution: build for build in (*of_recipes, *of_packages)}

    @property
    def _undecided(self) -> list[RequirementEntry]:
        """The requirements of the spec and its files, without those that recipes decide on."""
        decided = {name for chosen in self.recipes for name in chosen.distributions}
        return [entry for entry in self.requested if entry.name not in decided]

    @cached_property
    def _applying(self) -> list[RequirementEntry]:
        environment = self.target.environment
        return [entry for entry in self._undecided if entry.applies(environment)]

    @property
    def _commits(self) -> dict[str, RequirementEntry]:
        """Distribution → the entry that names a commit of a repository."""
        return {entry.name: entry for entry in self._applying if entry.repository is not None}

    @cached_property
    def system_requests(self) -> tuple[str, ...]:
        """The Debian packages that are asked for beyond the base, sorted."""
        of_recipes = (name for chosen in self.recipes for name in chosen.recipe.system)
        return tuple(sorted({*self.spec.packages.system, *of_recipes} - {*self.base.packages}))

    def owner(self, distribution: str) -> str:
        """Return the layer that owns a Python distribution."""
        name = canonicalize_name(distribution)
        for chosen in self.recipes:
            if name in chosen.recipe.owns:
                return chosen.layer
        if owned_by_vendor(name, self.spec.accelerator.name):
            return "accelerator"
        return "python"


def _allowed_hashes(entries: Iterable[RequirementEntry]) -> dict[str, frozenset[str]]:
    """Return the sha256 of the files that may be installed, by distribution, where a file lists them."""
    allowed: dict[str, frozenset[str]] = {}
    for entry in entries:
        if entry.hashes:
            allowed[entry.name] = allowed.get(entry.name, entry.hashes) & entry.hashes
    return allowed


def _origin_rules(recipes: Iterable[ChosenRecipe]) -> tuple[OriginRule, ...]:
    """Return the rules of recipes whose variants name origins."""
    return tuple(
        OriginRule(
            origins=chosen.variant.origins,
            names=frozenset(
                {
                    *(entry.name for entry in chosen.own_requirements),
                    *chosen.recipe.owns,
                    *chosen.recipe.companions,
                }
            ),
            beginnings=row.distributions if (row := accelerator_of(chosen.variant_name)) is not None else (),
            requirements=tuple(entry.requirement for entry in chosen.own_requirements),
        )
        for chosen in recipes
        if chosen.variant.origins and chosen.own_requirements
    )


def _sorted(entries: Iterable[RequirementEntry]) -> tuple[RequirementEntry, ...]:
    """Return entries in the order of their texts; of equal texts the first."""
    by_text: dict[str, RequirementEntry] = {}
    for entry in entries:
        by_text.setdefault(entry.text, entry)
    return tuple(by_text[text] for text in sorted(by_text))
