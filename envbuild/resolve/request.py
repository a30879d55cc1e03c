"""The Python packages to choose for one interpreter, who asks for them, and the indexes to ask. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from packaging.requirements import Requirement

from envbuild.errors import Location
from envbuild.lock.model import PythonPin
from envbuild.spec.python_platform import PythonTarget
from envbuild.spec.requirements import RequirementEntry
from envbuild.spec.resolved import ChosenRecipe, ResolvedSpec

PYTORCH = "pytorch-"
"""Beginning of the origins of PyTorch (``pytorch-cpu``, ``pytorch-cu130``), whose own index uv knows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OriginRule:
    """The origins of some distributions."""

    origins: tuple[str, ...]
    """Logical origins; the first that has an address is the only one to be asked."""
    names: frozenset[str]
    """Canonical names of the distributions."""
    requirements: tuple[Requirement, ...]
    """Requirements that local wheels must satisfy to be taken in place of PyTorch's own index."""
    label: str = ""
    """Local version (``cu126``) that such a wheel must have; empty for any."""


@dataclass(frozen=True, kw_only=True)  # without slots: what is derived from it is kept
class PythonRequest:
    """The Python packages that an image asks for."""

    target: PythonTarget
    path: Path
    """The file that asks; the place of errors without a better one."""
    requirements: tuple[RequirementEntry, ...] = ()
    """Requirements to resolve together, without repeats."""
    constraints: tuple[RequirementEntry, ...] = ()
    """Requirements that bound versions and ask for nothing."""
    written: tuple[RequirementEntry, ...] = ()
    """Entries of the spec and its files; those of recipes are missing."""
    of_recipes: tuple[RequirementEntry, ...] = ()
    """Entries of recipes."""
    hashes: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """Distribution → sha256 of the files that may be installed, if some are listed."""
    built: frozenset[str] = frozenset()
    """Distributions that are built from source archives."""
    declared: Mapping[tuple[str, str], tuple[str, ...]] = field(default_factory=dict)
    """Releases of them that need not be read: distribution and version → requirements (PEP 508)."""
    explicit_wheels: Mapping[str, RequirementEntry] = field(default_factory=dict)
    """Distribution → the entry that names a wheel of it."""
    commits: Mapping[str, RequirementEntry] = field(default_factory=dict)
    """Distribution → the entry that names a commit of a repository."""
    origin_rules: tuple[OriginRule, ...] = ()
    """The first rule for a distribution counts."""
    from_source: tuple[str, ...] = ()
    """The names under `packages.from_source` of the spec."""

    def location_of(self, *names: str) -> Location:
        """Return where the first of some distributions (canonical names) is asked for; else the file."""
        return next((self._places[name] for name in names if name in self._places), Location(path=self.path))

    @cached_property
    def _places(self) -> Mapping[str, Location]:
        return {entry.name: entry.at for entry in reversed(self.written)}

    def required_by(self, names: Collection[str], *, bounds: bool) -> tuple[RequirementEntry, ...]:
        """Return the requirements of recipes for distributions (canonical names).

        With `bounds`, only requirements that limit the version count.
        """
        return tuple(
            entry
            for entry in self.of_recipes
            if entry.name in names and (entry.requirement.specifier or not bounds)
        )

    @cached_property
    def undeclared(self) -> frozenset[str]:
        """Distributions whose source archives alone say what they require."""
        return self.built - {name for name, _ in self.declared}

    @cached_property
    def origins(self) -> Mapping[str, tuple[str, ...]]:
        """Distribution → its origins, for distributions with a rule."""
        return {name: rule.origins for rule in reversed(self.origin_rules) for name in rule.names}


def request_of(resolved: ResolvedSpec) -> PythonRequest:
    """Return the Python packages that a spec and its recipes ask for."""
    packages = resolved.spec.packages.from_source
    return PythonRequest(
        target=resolved.target,
        path=resolved.path,
        requirements=resolved.python_requirements,
        constraints=resolved.constraints,
        written=resolved.requested,
        of_recipes=tuple(entry for chosen in resolved.recipes for entry in chosen.requirements),
        hashes=resolved.allowed_hashes(),
        built=frozenset(resolved.built),
        declared={
            (name, build.declared.version): build.declared.requires
            for name, build in resolved.built.items()
            if build.declared is not None
        },
        explicit_wheels=resolved.explicit_wheels,
        commits=resolved.repositories,
        origin_rules=rules_of_recipes(resolved.recipes),
        from_source=tuple(package if isinstance(package, str) else package.name for package in packages),
    )


def rules_of_recipes(recipes: Iterable[ChosenRecipe]) -> tuple[OriginRule, ...]:
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
            requirements=tuple(entry.requirement for entry in chosen.own_requirements),
        )
        for chosen in recipes
        if chosen.variant.origins and chosen.own_requirements
    )


def rules_of_pins(pins: Iterable[PythonPin]) -> tuple[OriginRule, ...]:
    """Return rules by which locked files of PyTorch's origins are looked for there."""
    return tuple(
        OriginRule(
            origins=(pin.origin,),
            names=frozenset({pin.name}),
            requirements=(Requirement(f"{pin.name}==={pin.version}"),),
        )
        for pin in pins
        if pin.origin.startswith(PYTORCH)
    )
