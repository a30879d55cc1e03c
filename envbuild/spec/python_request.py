"""The Python packages to choose for one interpreter, who asks for them, and the indexes to ask. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from packaging.requirements import Requirement

from envbuild.errors import Location
from envbuild.spec.python_platform import PythonTarget
from envbuild.spec.requirements import RequirementEntry

PYTORCH = "pytorch-"
"""Beginning of the origins of PyTorch (``pytorch-cpu``, ``pytorch-cu130``), whose own index uv knows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OriginRule:
    """The origins of some distributions."""

    origins: tuple[str, ...]
    """Logical origins; the first that has an address is the only one to be asked."""
    names: frozenset[str]
    """Canonical names of the distributions."""
    beginnings: tuple[str, ...] = ()
    """Beginnings of the names of further distributions of these origins, if no other origin has them."""
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

    @property
    def texts(self) -> tuple[str, ...]:
        """The requirements, as a lock keeps them."""
        return tuple(entry.text for entry in self.requirements)

    def location_of(self, *names: str) -> Location:
        """Return where the first of some distributions (canonical names) is asked for; else the file."""
        return next(
            (self._locations[name] for name in names if name in self._locations), Location(path=self.path)
        )

    @cached_property
    def _locations(self) -> Mapping[str, Location]:
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

    def origins_of(self, name: str) -> tuple[str, ...]:
        """Return the origins of a distribution by the first rule for it; empty without one."""
        if name in self.origins:
            return self.origins[name]
        rules = (rule for rule in self.origin_rules if name.startswith(rule.beginnings))
        return next((rule.origins for rule in rules), ())

    @cached_property
    def origins(self) -> Mapping[str, tuple[str, ...]]:
        """Distribution → its origins, for distributions with a rule."""
        return {name: rule.origins for rule in reversed(self.origin_rules) for name in rule.names}
