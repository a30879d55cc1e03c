"""Models of a recipe (an MPI, framework or fabric library) and of the controls of its jobs."""

from __future__ import annotations

from collections.abc import Collection
from typing import Annotated, Literal

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from pydantic import Discriminator, Field, Tag

from envbuild.jobs.arithmetic import evaluate
from envbuild.spec.fields import Checked, Distribution, Format, ProvenVersion
from envbuild.spec.model import (
    CommandName,
    DebianPackage,
    GlibcVersion,
    ImagePath,
    Model,
    ModuleName,
    Name,
    Origin,
    Pick,
    Prepend,
    PythonConstraint,
    PythonRequirement,
    Setting,
    Soname,
    Text,
    VariableName,
    full_match,
    python_requirement,
)


def _variant_requirement(value: str) -> str:
    python_requirement(value.replace("{version}", "1"))
    return value


# An expression may have a value for one number of ranks and none for another.
_RANKS = (1, 2, 3, 64, 4096)
_SHOWN = 60


def _arithmetic(value: str) -> str:
    for ranks in _RANKS:
        for rank, hosts in ((0, 1), (ranks - 1, ranks)):
            try:
                evaluate(value, n=ranks, r=rank, h=hosts)
            except ValueError as error:
                shown = value if len(value) <= _SHOWN else f"{value[:_SHOWN]}…"
                where = f"rank {rank} of {ranks}" + (f", {hosts} hosts" if hosts > 1 else "")
                raise ValueError(f"{error} (`{shown}` on {where})") from error
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
RecipeKind = Literal["mpi", "framework", "fabric"]
LauncherName = Literal["mpiexec", "torchrun"]
PatchName = Annotated[
    str, full_match(r"[a-z0-9][a-z0-9._-]*\.patch", "a file name under patches/, such as `cxx17.patch`")
]
Arithmetic = Annotated[
    Text,
    Checked(
        _arithmetic,
        {"minLength": 1, "maxLength": 500},
        "integer arithmetic in `n` (ranks), `r` (this rank) and `h` (hosts), such as `n*(n+1)//2`",
    ),
]
JobId = Annotated[str, full_match(r"[a-z0-9][a-z0-9-]*\.[a-z0-9-]+", "a job id, such as `pytorch.ddp`")]
JobFile = Annotated[str, full_match(r"[a-z0-9_]+\.py", "a file name under verify/, such as `ddp.py`")]
SaidText = Annotated[Text, Field(min_length=1)]
Tolerance = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Floor = Annotated[float, Field(gt=0, allow_inf_nan=False)]
ReportedName = Annotated[str, full_match(r"[A-Za-z0-9_.:-]+", "a name of a reported value")]
FailingCheck = Annotated[
    str, full_match(r"[a-z0-9][a-z0-9-]*\.[a-z0-9-]+/[A-Za-z0-9_.:-]+", "a check, such as `pytorch.ddp/sum`")
]


class VerifyJob(Model):
    """A mini job of a recipe, and the values that its ranks must report.

    The job reports facts; the parent process judges them. Expected values are integer expressions in ``n``
    (number of ranks), ``r`` (the reporting rank) and ``h`` (number of hosts), such as ``n*(n+1)//2``, and are
    evaluated exactly. An expression must have a value on every rank of 1, 2, 3, 64 and 4096.
    """

    id: JobId
    """``WHAT.NAME`` (``pytorch.ddp``), unique in the image."""
    file: Annotated[JobFile, Field(alias="job")]
    """A file under the recipe's ``verify/``."""
    title: Text
    """Claim that the job proves, in one line."""
    expect: dict[ReportedName, Arithmetic] = {}
    """Reported value's name → expression in ``n``, ``r`` and ``h``; compared for equality on every rank."""
    same_on_all_ranks: tuple[ReportedName, ...] = ()
    """Reported values that must be equal on all ranks."""
    compare_with_single: dict[ReportedName, Tolerance] = {}
    """Reported value's name (a number or list of numbers) → relative tolerance against the same job on one
    rank."""
    compare_with_reported: dict[
        ReportedName, Annotated[dict[ReportedName, Tolerance], Field(min_length=1)]
    ] = {}
    """Reported value's name → name of another value of the same rank, such as the exact result → relative
    tolerance between them."""
    hint: Text = ""
    """Hint for a failed job: the first things to check."""
    timeout_s: Annotated[float, Field(gt=0, le=86_400)] | None = None
    """Wall-clock limit in seconds, if it differs from the default."""
    launcher: LauncherName = "mpiexec"
    """Launcher of its ranks: the image's ``mpiexec``, or PyTorch's ``torchrun``."""
    variants: tuple[Name, ...] = ()
    """Variants of the recipe that the job is for; all if empty."""
    environment: dict[VariableName, Text] = {}
    """Variables of its ranks, such as those that select a transport."""
    says: dict[ReportedName, Annotated[tuple[SaidText, ...], Field(min_length=1)]] = {}
    """Name → texts, one of which the output of every rank must contain, such as a library's log line about
    the transport in use."""
    own_mpi: bool = False
    """Whether it tests the image's own MPI only, not the host's in its place."""
    at_least: dict[ReportedName, Floor] = {}
    """Reported value's name → smallest number that passes on every rank, such as a bandwidth in GB/s."""
    gpus_per_rank: Annotated[int, Field(ge=0, le=64)] = 0
    """GPUs that each rank needs for itself (count). Such a job reports their ids as ``gpus``, starts no more
    ranks than there are GPUs for, and is skipped without any."""


class Variant(Model):
    """Packages of a recipe for one accelerator."""

    requirements: tuple[VariantRequirement, ...]
    """PEP 508 requirements; ``{version}`` stands for the chosen version."""
    origins: tuple[Origin, ...] = ()
    """Logical origins to ask before ``pypi`` (``pytorch-cpu``)."""
    versions: tuple[ProvenVersion, ...] = ()
    """Versions of the recipe tested with this variant; all if empty."""
    backends: tuple[Name, ...] = ()
    """Communication backends (``gloo``, ``mpi``, ``nccl``), for documentation."""
    untried: Text = ""
    """Reason why it is untested; empty if it is tested."""


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


class Recipe(Model):
    """A recipe: one MPI, framework or fabric library."""

    schema_: Annotated[Format, Field(alias="schema")] = 1
    """Format of the file: 1."""
    name: Name
    """Name in a spec, and of the recipe's directory."""
    kind: RecipeKind
    """``mpi``, ``framework`` or ``fabric``: the key of a spec that names it."""
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
    frozen: Text = ""
    """Reason why it is only kept for existing users; empty if it is maintained."""
    imports: Imports = ()
    """Modules that must import in the finished image; or package → the only modules of it to import, none for
    an empty list. Of all other packages the top-level modules must import, too."""
    verify: tuple[VerifyJob, ...] = ()
    """Its mini jobs."""
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
            canonicalize_name(Requirement(text.replace("{version}", self.versions[0])).name)
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
            canonicalize_name(Requirement(text.replace("{version}", self.versions[0])).name)
            for text in texts
            if "{version}" in text
        )

    def environment_beside(self, names: Collection[str]) -> dict[str, str | Prepend]:
        """Return the variables that it adds to an image of the recipes of these names."""
        further = (settings for name, settings in self.environment_with.items() if name in names)
        return {**self.environment, **next(further, {})}


class Change(Model):
    """One change to a job."""

    this: Annotated[str, Field(min_length=1)]
    """Text that occurs exactly once in the job."""
    becomes: str
    """Text to replace it with."""


class Control(Model):
    """A job with one deliberate error."""

    name: Text
    """The error, unique among the job's controls."""
    job: JobFile
    """File under ``verify/`` to change."""
    fails: Annotated[tuple[FailingCheck, ...], Field(min_length=1)]
    """Findings of one job that must fail (``pytorch.ddp/sum``, ``pytorch.ddp/bor``); others may fail too."""
    needs: tuple[Name, ...] = ()
    """Recipes that the image must also contain for this control."""
    before: str = ""
    """Code to run before the job."""
    changes: tuple[Change, ...] = ()
    """Changes to the job, in order."""

    @property
    def job_id(self) -> str:
        """The job that must fail; several may start one file."""
        return self.fails[0].partition("/")[0]

    def changed(self, text: str) -> str:
        """Return the job's text with all changes made.

        ValueError unless each text to change occurs exactly once.
        """
        for change in self.changes:
            times = text.count(change.this)
            if times != 1:
                raise ValueError(f"`{change.this}` occurs {times} times in {self.job}, not once")
            text = text.replace(change.this, change.becomes)
        return text


class Controls(Model):
    """The file ``controls.yaml`` of a recipe: jobs with deliberate errors, which must fail."""

    schema_: Annotated[Format, Field(alias="schema")] = 1
    """Format of the file: 1."""
    controls: tuple[Control, ...]
    """At least one for each job, which makes one of its values fail. "Every rank alone" is run for each job
    without an entry."""
