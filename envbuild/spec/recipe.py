"""The model of a recipe: an MPI, a framework, a fabric library, or software that sites supply.

`job.py` beside it has that of its jobs.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Annotated

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from pydantic import Discriminator, Field, Tag

from envbuild.spec.fields import Checked, Distribution, Format, ProvenVersion
from envbuild.spec.model import (
    CommandName,
    DebianPackage,
    GlibcVersion,
    HostVariableName,
    ImagePath,
    LibraryName,
    Model,
    ModuleName,
    Name,
    Origin,
    Pick,
    Prepend,
    PythonConstraint,
    PythonRequirement,
    RecipeKind,
    Setting,
    Soname,
    Text,
    TopModule,
    VariableName,
    full_match,
    python_requirement,
)


def filled(requirement: str, version: str, extras: Collection[str] = ()) -> str:
    """Return a requirement of a variant for a version and for the extras of devices."""
    return requirement.replace("{version}", version).replace("{devices}", ",".join(extras))


def _variant_requirement(value: str) -> str:
    python_requirement(filled(value, "1"))
    return value


VariantRequirement = Annotated[
    Text,
    Checked(
        _variant_requirement,
        {"pattern": r"^ *[A-Za-z0-9{][^\u0000-\u001f\u007f-\u009f]*$"},
        "a Python requirement (PEP 508), such as `jax=={version}`",
    ),
]


def _kind_of_imports(value: object) -> str | None:
    if isinstance(value, dict):
        return "dict"
    return "tuple" if isinstance(value, list | tuple) else None


Imports = Annotated[
    Annotated[tuple[ModuleName, ...], Tag("tuple")]
    | Annotated[dict[Distribution, tuple[ModuleName, ...]], Tag("dict")],
    Discriminator(
        _kind_of_imports,
        custom_error_type="setting_type",
        custom_error_message="expected a list of modules, or a mapping from packages to such lists",
    ),
]
PatchName = Annotated[
    str, full_match(r"[a-z0-9][a-z0-9._-]*\.patch", "a file name under patches/, such as `cxx17.patch`")
]


class Variant(Model):
    """Packages of a recipe for one accelerator."""

    requirements: tuple[VariantRequirement, ...]
    """PEP 508 requirements; ``{version}`` stands for the chosen version. ``{devices}`` stands for the extras
    of the site's GPUs: ``torch[{devices}]`` becomes ``torch[device-gfx90a]``, without a site
    ``torch[device-all]``."""
    origins: tuple[Origin, ...] = ()
    """Logical origins to ask before ``pypi`` (``pytorch-cpu``)."""
    versions: tuple[ProvenVersion, ...] = ()
    """Versions of the recipe tested with this variant; all if empty."""
    backends: tuple[Name, ...] = ()
    """Communication backends (``gloo``, ``mpi``, ``nccl``), for documentation."""
    untried: Text = ""
    """Reason why it is untested; empty if it is tested."""

    @property
    def has_device_extras(self) -> bool:
        """Whether the code for each GPU is in a package of its own, which an extra adds."""
        return any("{devices}" in text for text in self.requirements)


class SourceBuild(Model):
    """Build of a distribution that has no wheel: offline, on the base plus the packages below.

    Only the distribution itself is added to the image.
    """

    distribution: Distribution
    """Distribution to build, at the recipe's version; its run-time requirements are the recipe's `python`."""
    python: Annotated[tuple[PythonRequirement, ...], Field(min_length=1)]
    """Build requirements (setuptools, wheel, …)."""
    system: tuple[DebianPackage, ...] = ()
    """Debian packages of the toolchain (compilers)."""
    against: tuple[Name, ...] = ()
    """Layers to compile against: ``mpi``, or names of required recipes."""
    environment: dict[VariableName, Text] = {}
    """Variables of the build."""
    patches: tuple[PatchName, ...] = ()
    """Files under ``patches/``, applied in this order to the unpacked source (``-p1``)."""


class BaseRequirement(Model):
    """Requirements on the base image."""

    python: PythonConstraint = ""
    """PEP 440 constraint on its Python for the preferred version, empty for any; the resolver checks other
    versions."""
    suites: tuple[Name, ...] = ()
    """Suites that it supports (``bullseye``); any if empty."""
    glibc: GlibcVersion | None = None
    """Oldest C library that its files run with; any if omitted."""


class Supplied(Model):
    """The parts that a site supplies when the image starts; its site file says where they are."""

    libraries: tuple[LibraryName, ...] = ()
    """Shared libraries, by the names that programs need or open (``libmpi_gtl_cuda.so.0``); the image finds
    them in ``/media/envbuild``."""
    python: tuple[TopModule, ...] = ()
    """Top-level Python modules that programs import."""
    commands: tuple[CommandName, ...] = ()
    """Commands that are put in front of the image's PATH."""
    variables: tuple[HostVariableName, ...] = ()
    """Variables that the site must set, such as those with a path that only the site knows."""


class Recipe(Model):
    """A recipe: one MPI, framework or fabric library, or software that sites supply."""

    schema_: Annotated[Format, Field(alias="schema")] = 1
    """Format of the file: 1."""
    name: Name
    """Name in a spec, and of the recipe's directory."""
    kind: RecipeKind
    """``mpi``, ``framework``, ``fabric`` or ``site``: the key of a spec that names it; ``from_site`` for
    ``site``."""
    summary: Text
    """Description in one line."""
    homepage: Text = ""
    """Home page of the project."""
    versions: Annotated[tuple[ProvenVersion, ...], Field(min_length=1)]
    """Tested versions, preferred first."""
    variants: dict[Name, Variant]
    """Accelerator → packages to install; MPI recipes use ``cpu``."""
    owns: tuple[Distribution, ...]
    """Distributions that only this recipe installs, and that others get by requiring it; empty if it only
    adds jobs to required recipes, or consists of Debian packages."""
    companions: tuple[Distribution, ...] = ()
    """Distributions that are built with the one that it owns: they come from the same origins, in builds with
    the same local version (``+cpu``)."""
    family: Name | None = None
    """Family of an MPI whose launcher it has (``openmpi``); its own name if omitted."""
    base: BaseRequirement = BaseRequirement()
    """Constraints on Python, suite and C library of the base image."""
    requires: tuple[Pick, ...] = ()
    """Other recipes that must be in the spec; constraints limit their versions."""
    requires_one_of: tuple[Name, ...] = ()
    """Recipes of which at least one must be in the spec."""
    python: tuple[PythonRequirement, ...] = ()
    """Further requirements, which belong to the ``python`` layer."""
    source: SourceBuild | None = None
    """Build of the one distribution that has no wheel."""
    system: tuple[DebianPackage, ...] = ()
    """Debian packages to install into the image."""
    debian_python: bool = False
    """Whether the image's Python can import the Python packages in `system`."""
    links: dict[ImagePath, Text] = {}
    """Symbolic links to add: path → target, such as other names of a library."""
    lacks: tuple[Soname, ...] = ()
    """Libraries that parts of it need and no package provides; the jobs prove the rest."""
    supplied: Supplied | None = None
    """For the kind ``site``: the parts that the site supplies."""
    frozen: Text = ""
    """Reason why it is only kept for existing users; empty if it is maintained."""
    imports: Imports = ()
    """Modules that must import in the finished image; or package → the only modules of it to import, none for
    an empty list. Of all other packages the top-level modules must import, too."""
    needs_mpi: bool = False
    """Whether it needs an MPI in the image."""
    environment: dict[VariableName, Setting] = {}
    """Variables to add to the image; ``PATH`` and ``LD_LIBRARY_PATH`` accept ``{prepend: DIR}`` only."""
    environment_with: dict[Name, dict[VariableName, Text]] = {}
    """Recipe → further variables if the spec names that recipe, too; of several the first counts. The spec's
    own `environment` replaces them."""
    commands: tuple[CommandName, ...] = ()
    """Commands of the image for users."""

    @property
    def required_distributions(self) -> frozenset[str]:
        """The distributions (canonical names) that it requires in some variant."""
        texts = [text for variant in self.variants.values() for text in variant.requirements]
        return frozenset(
            canonicalize_name(Requirement(filled(text, self.versions[0])).name)
            for text in (*texts, *self.python)
        )

    @property
    def modules(self) -> tuple[str, ...]:
        """The modules that must import, of whatever package."""
        return () if isinstance(self.imports, dict) else self.imports

    @property
    def modules_of_packages(self) -> dict[str, tuple[str, ...]]:
        """Package → the only modules of it to import."""
        return self.imports if isinstance(self.imports, dict) else {}

    @property
    def main_distributions(self) -> frozenset[str]:
        """The distributions (canonical names) that have the recipe's version in some variant."""
        texts = (text for variant in self.variants.values() for text in variant.requirements)
        return frozenset(
            canonicalize_name(Requirement(filled(text, self.versions[0])).name)
            for text in texts
            if "{version}" in text
        )

    def environment_beside(self, names: Collection[str]) -> dict[str, str | Prepend]:
        """Return the variables that it adds to an image of the recipes of these names."""
        further = (settings for name, settings in self.environment_with.items() if name in names)
        return {**self.environment, **next(further, {})}
