"""What was asked: the models of spec and recipe.

Pure values. `envbuild.spec.load` makes them from YAML text and reports every
mistake with its place; nothing here reads a file.
"""

from __future__ import annotations

import re
from typing import Annotated, Literal

from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field

from envbuild.spec.fields import Distribution, Format, ProvenVersion, without_secrets

NAME = r"[a-z0-9](?:[a-z0-9._-]*[a-z0-9])?"
VERSION = r"[A-Za-z0-9](?:[A-Za-z0-9._+-]*[A-Za-z0-9])?"
DEBIAN_NAME = r"[a-z0-9][a-z0-9+.-]+"
VARIABLE = r"[A-Za-z_][A-Za-z0-9_]*"
MODULE = rf"{VARIABLE}(?:\.{VARIABLE})*"
_RELEASE = r"[0-9]+(\.[0-9]+)*"

_NAME_WORDS = "lower-case letters, digits, `.`, `_` and `-`"

MAX_NAME = 128  # characters; names become file names
MAX_TEXT = 4096  # characters

# What users must not set from a spec: they decide whose code runs, or belong to the runtime.
RESERVED_VARIABLES = frozenset(
    {"LD_PRELOAD", "LD_AUDIT", "BASH_ENV", "ENV", "IFS", "HOME", "USER", "PWD", "SHELL"}
)


class Model(BaseModel):
    """Base of all models: frozen, and unknown keys are mistakes."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, str_strip_whitespace=False)


class Choice(Model):
    """A name with an optional version constraint: ``pytorch``, ``pytorch@2.13``, ``mpich@>=4,<6``.

    Attributes
    ----------
    name : str
        The recipe's or base image's name.
    constraint : str
        A PEP 440 specifier set; empty for any version. A bare version ``2.13``
        means that release and its fixes (``==2.13.*``).
    """

    name: str
    constraint: str = ""

    def __str__(self) -> str:
        return f"{self.name}@{self.constraint}" if self.constraint else self.name

    def admits(self, version: str) -> bool:
        """Return whether a version (PEP 440) meets the constraint."""
        return SpecifierSet(self.constraint).contains(version, prereleases=True)


def parse_choice(value: object) -> object:
    """Turn ``name@constraint`` into a `Choice`."""
    if isinstance(value, Choice):
        return value
    if not isinstance(value, str):
        # Never a mapping: a `Choice` made from one would not have been looked at.
        raise ValueError("expected a name, such as `pytorch` or `pytorch@2.13`")
    name, at, constraint = value.partition("@")
    if len(value) > MAX_NAME:
        raise ValueError(f"`{value[:40]}…` is longer than {MAX_NAME} characters")
    if not re.fullmatch(NAME, name):
        raise ValueError(f"`{value}` is not a name: {_NAME_WORDS}, then perhaps `@CONSTRAINT`")
    if at and not constraint:
        raise ValueError(f"`{value}` ends in `@` without a version constraint")
    if not constraint:
        return Choice(name=name)
    if re.fullmatch(_RELEASE, constraint):
        constraint = f"=={constraint}.*"
    elif re.fullmatch(VERSION, constraint):
        constraint = f"=={constraint}"
    _check_constraint(constraint, value.partition("@")[2], "`2.13` or `>=2.11,<2.14`")
    return Choice(name=name, constraint=constraint)


def _check_constraint(constraint: str, written: str, example: str) -> None:
    try:
        SpecifierSet(constraint)
    except InvalidSpecifier:
        pass
    else:
        # The parser lets white space of all kinds through; it would end up in file names and messages.
        if re.fullmatch(r"[A-Za-z0-9.*+!=<>~,_ -]*", constraint):
            return
    raise ValueError(f"`{written}` is not a version constraint, such as {example}")


def full_match(pattern: str, what: str) -> AfterValidator:
    """Return a check that the whole of a text matches a pattern; `what` says what it is for people."""

    def check(value: str) -> str:
        if len(value) > MAX_NAME:
            raise ValueError(f"`{value[:40]}…` is longer than {MAX_NAME} characters")
        if not re.fullmatch(pattern, value):
            raise ValueError(f"`{value}` is not {what}")
        return value

    return AfterValidator(check)


def _requirement(value: str) -> str:
    try:
        parsed = Requirement(value)
    except (InvalidRequirement, RecursionError):
        shown = without_secrets(value)
        raise ValueError(f"`{shown}` is not a Python requirement, such as `scipy>=1.11`") from None
    if parsed.url is not None:
        shown = without_secrets(value)
        raise ValueError(f"`{shown}` names an address: addresses are settings of the site, not of a spec")
    return value


def _variant_requirement(value: str) -> str:
    _requirement(value.replace("{version}", "1"))
    return value


def _python_constraint(value: str) -> str:
    constraint = f"=={value}.*" if re.fullmatch(_RELEASE, value) else value
    _check_constraint(constraint, value, "`3.11` or `>=3.11`")
    return constraint


def _variable(value: str) -> str:
    if not re.fullmatch(VARIABLE, value):
        raise ValueError(f"`{value}` is not a name of an environment variable")
    if value in RESERVED_VARIABLES or value.startswith(("APPTAINER", "SINGULARITY", "BASH_FUNC_")):
        raise ValueError(
            f"`{value}` belongs to the runtime or decides whose code runs: an image may not set it"
        )
    return value


def _clean_text(value: str) -> str:
    if len(value) > MAX_TEXT:
        raise ValueError(f"it is longer than {MAX_TEXT} characters")
    if any(ord(char) < 32 or ord(char) == 127 for char in value):
        raise ValueError("it holds a control character or a line break")
    return value


def _image_path(value: str) -> str:
    parts = value.split("/")
    if not value.startswith("/") or value.endswith("/") or any(part in ("", ".", "..") for part in parts[1:]):
        raise ValueError(f"`{value}` is not an absolute path without `.`, `..` and `//`")
    return value


def _bind_target(value: str) -> str:
    if value in ("/proc", "/sys", "/dev"):
        raise ValueError(f"nothing may be bound over `{value}`: the runtime mounts its own there")
    return value


def _relative_path(value: str) -> str:
    if value.startswith("/") or any(part in ("", ".", "..") for part in value.split("/")):
        raise ValueError(f"`{value}` is not a relative path below the file that names it")
    return value


Text = Annotated[str, AfterValidator(_clean_text)]
Name = Annotated[str, full_match(NAME, f"a name: {_NAME_WORDS}")]
ReleaseVersion = Annotated[str, full_match(VERSION, "a version: letters, digits, `.`, `_`, `+` and `-`")]
Pick = Annotated[Choice, BeforeValidator(parse_choice)]
PythonRequirement = Annotated[Text, AfterValidator(_requirement)]
DebianPackage = Annotated[str, full_match(DEBIAN_NAME, "a Debian package name")]
VariableName = Annotated[str, AfterValidator(_variable)]
ImagePath = Annotated[Text, AfterValidator(_image_path)]
BindTarget = Annotated[ImagePath, AfterValidator(_bind_target)]
RelativePath = Annotated[Text, AfterValidator(_relative_path)]
Origin = Annotated[
    str,
    full_match(
        r"[a-z0-9][a-z0-9.-]*(?::[a-z0-9][a-z0-9.-]*)?", "an origin, such as `pypi` or `debian:bookworm`"
    ),
]
PythonConstraint = Annotated[str, AfterValidator(_python_constraint)]
GlibcVersion = Annotated[str, full_match(r"2\.[0-9]+", "a glibc version, such as `2.36`")]
Soname = Annotated[str, full_match(r"[A-Za-z0-9/][A-Za-z0-9._+/-]*", "a library, such as `libz.so.1`")]
VariantRequirement = Annotated[Text, AfterValidator(_variant_requirement)]
RecipeKind = Literal["mpi", "framework", "fabric"]
# Kind of a recipe → the key of a spec that names such ones.
SPEC_KEYS: dict[str, str] = {"mpi": "mpi", "framework": "frameworks", "fabric": "fabric"}
LauncherName = Literal["mpiexec", "torchrun"]
PatchName = Annotated[
    str, full_match(r"[a-z0-9][a-z0-9._-]*\.patch", "a file name under patches/, such as `cxx17.patch`")
]
SaidText = Annotated[Text, Field(min_length=1)]
ReportedName = Annotated[str, full_match(r"[A-Za-z0-9_.:-]+", "a name of a reported value")]


class Prepend(Model):
    """An environment variable's value that goes in front of what the variable already holds."""

    prepend: Text


class Packages(Model):
    """Packages beside the frameworks.

    Attributes
    ----------
    python : tuple of str
        PEP 508 requirements without addresses.
    system : tuple of str
        Debian package names.
    """

    python: tuple[PythonRequirement, ...] = ()
    system: tuple[DebianPackage, ...] = ()


class FileEntry(Model):
    """A file that the image carries.

    Attributes
    ----------
    source : str
        Path relative to the spec's directory.
    target : str
        Absolute path in the image.
    executable : bool
        Mode 0755 instead of 0644.
    """

    source: RelativePath
    target: ImagePath
    executable: bool = False


class TestSettings(Model):
    """How the image is tested when nobody says otherwise.

    Attributes
    ----------
    ranks : int
        Processes to start (count).
    timeout_s : float
        Wall-clock limit of one mini job, in seconds.
    """

    __test__ = False  # not a test class for pytest

    ranks: Annotated[int, Field(ge=2, le=4096)] = 2
    timeout_s: Annotated[float, Field(gt=0, le=86_400)] = 300.0


class ModuleSettings(Model):
    """What the modulefile says beyond name and version.

    Attributes
    ----------
    commands : tuple of str
        Further commands of the image that get a wrapper.
    conflicts : tuple of str
        Modules that must not be loaded beside it.
    """

    commands: tuple[Annotated[str, full_match(r"[A-Za-z0-9][A-Za-z0-9._+-]*", "a command name")], ...] = ()
    conflicts: tuple[Annotated[str, full_match(r"[A-Za-z0-9][A-Za-z0-9._+/-]*", "a module name")], ...] = ()


class EnvSpec(Model):
    """The ten lines that a user writes.

    Attributes
    ----------
    name, version : str
        The image's and the module's name and version.
    base : Choice or None
        A base image; None for the first that every recipe admits.
    mpi : Choice or None
        An MPI recipe; None for an image without MPI.
    frameworks : tuple of Choice
        Framework recipes.
    fabric : tuple of Choice
        Libraries of the interconnect that the image brings itself (``libfabric``, ``ucx``).
    python : str
        PEP 440 constraint on the base's Python; empty for any.
    accelerator : Choice
        ``cpu``, ``cuda@13.0``, ``rocm@6.4``.
    packages : Packages
        Python and system packages beside the frameworks.
    environment : dict of str to str or Prepend
        Variables of the image.
    """

    schema_: Annotated[Format, Field(alias="schema")] = 1
    name: Name
    version: ReleaseVersion
    summary: Text = ""
    base: Pick | None = None
    mpi: Pick | None = None
    frameworks: tuple[Pick, ...] = ()
    fabric: tuple[Pick, ...] = ()
    python: PythonConstraint = ""
    accelerator: Pick = Choice(name="cpu")
    site: Name | None = None
    packages: Packages = Packages()
    environment: dict[VariableName, Text | Prepend] = {}
    files: tuple[FileEntry, ...] = ()
    test: TestSettings = TestSettings()
    module: ModuleSettings = ModuleSettings()
    labels: dict[Annotated[str, full_match(r"[A-Za-z0-9][A-Za-z0-9._/-]*", "a label name")], Text] = {}


class VerifyJob(Model):
    """A mini job of a recipe: what it runs, and what it must report.

    The job reports facts; what they must be stands here, so that the parent
    judges. Expected values are integer arithmetic in ``n``, the number of
    ranks, and ``r``, the rank that reports (``n*(n+1)//2``), evaluated exactly.

    Attributes
    ----------
    id : str
        Its check id (``D2.ddp-oracle``), unique in the image.
    job : str
        A file under the recipe's ``verify/``.
    title : str
        What it proves, for people.
    expect : dict of str to str
        Reported value's name → expression in ``n`` and ``r``; compared for equality on every rank.
    same_on_all_ranks : tuple of str
        Reported values that must be equal on all ranks.
    compare_with_single : dict of str to float
        Reported value's name (a number or list of numbers) → relative
        tolerance against the same job on one rank.
    hint : str
        What to look at when it fails.
    timeout_s : float or None
        Wall-clock limit in seconds, where the job needs another than the default.
    launcher : str
        What starts its ranks: the image's ``mpiexec``, or PyTorch's ``torchrun``.
    variants : tuple of str
        The recipe's variants whose images carry it; empty for all.
    environment : dict of str to str
        Variables that its ranks get, such as those that choose a transport.
    says : dict of str to tuple of str
        A name for it → texts, one of which every rank's own output must hold:
        what a library logs of the transport that it took.
    own_mpi : bool
        Whether it is about the image's own MPI, and says nothing where the host's takes its place.
    """

    id: Annotated[str, full_match(r"[A-Z][0-9]+(?:\.[a-z0-9-]+)?", "a check id, such as `D2.ddp`")]
    job: Annotated[str, full_match(r"[a-z0-9_]+\.py", "a file name under verify/, such as `ddp.py`")]
    title: Text
    expect: dict[ReportedName, Text] = {}
    same_on_all_ranks: tuple[ReportedName, ...] = ()
    compare_with_single: dict[ReportedName, Annotated[float, Field(gt=0)]] = {}
    hint: Text = ""
    timeout_s: Annotated[float, Field(gt=0)] | None = None
    launcher: LauncherName = "mpiexec"
    variants: tuple[Name, ...] = ()
    environment: dict[VariableName, Text] = {}
    says: dict[ReportedName, Annotated[tuple[SaidText, ...], Field(min_length=1)]] = {}
    own_mpi: bool = False


class Variant(Model):
    """How a recipe is met for one accelerator.

    Attributes
    ----------
    requirements : tuple of str
        PEP 508 requirements; ``{version}`` stands for the chosen version.
    origins : tuple of str
        Logical origins to ask before ``pypi`` (``pytorch-cpu``).
    versions : tuple of str
        Which of the recipe's versions were proven so; empty for all.
    backends : tuple of str
        What its ranks can talk over (``gloo``, ``mpi``, ``nccl``), for people.
    """

    requirements: tuple[VariantRequirement, ...]
    origins: tuple[Origin, ...] = ()
    versions: tuple[ProvenVersion, ...] = ()
    backends: tuple[Name, ...] = ()


class SourceBuild(Model):
    """How a distribution that has no wheel is built: offline, on the base plus what is named here.

    None of it comes into the image but the distribution itself.

    Attributes
    ----------
    distribution : str
        What is built, at the recipe's version; its run-time requirements are
        the recipe's `python`.
    python : tuple of str
        Requirements of the build alone (setuptools, wheel, …).
    system : tuple of str
        Debian packages of the toolchain (compilers).
    against : tuple of str
        What it compiles against: ``mpi``, or names of required recipes.
    environment : dict of str to str
        Variables of the build.
    patches : tuple of str
        Files under ``patches/``, applied in this order to the unpacked source (``-p1``).
    """

    distribution: Distribution
    python: Annotated[tuple[PythonRequirement, ...], Field(min_length=1)]
    system: tuple[DebianPackage, ...] = ()
    against: tuple[Name, ...] = ()
    environment: dict[VariableName, Text] = {}
    patches: tuple[PatchName, ...] = ()


class BaseRequirement(Model):
    """What a recipe needs of the base image.

    Attributes
    ----------
    python : str
        PEP 440 constraint on its Python that all proven versions meet; empty for any.
    suites : tuple of str
        Suites whose packages it is made for (``bullseye``); empty for any.
    glibc : str or None
        Oldest C library that its files run with; None for any.
    """

    python: PythonConstraint = ""
    suites: tuple[Name, ...] = ()
    glibc: GlibcVersion | None = None


class Recipe(Model):
    """What envbuild knows about one MPI or framework.

    Attributes
    ----------
    kind : str
        ``mpi``, ``framework`` or ``fabric``: under which key of a spec it is named.
    versions : tuple of str
        Versions that were proven, preferred first.
    variants : dict of str to Variant
        Accelerator name → what to install; MPI recipes use ``cpu``.
    owns : tuple of str
        Distributions that make up this recipe's own layer; empty for one that
        only brings jobs to what it requires, or consists of Debian packages.
    family : str or None
        Of an MPI: whose launcher it has (``openmpi``); None where that is its own name.
    base : BaseRequirement
        What it needs of the base image.
    requires : tuple of Choice
        Other recipes that must be in the spec; a constraint takes part in
        choosing their version.
    python : tuple of str
        Requirements that come along and belong to the ``python`` layer.
    source : SourceBuild or None
        How the one of its distributions that has no wheel is built.
    system : tuple of str
        Debian packages that it needs in the image.
    debian_python : bool
        Whether the image's `python` sees the Python packages among them.
    links : dict of str to str
        Symbolic links that it adds: path → target, as names that others have for a library.
    lacks : tuple of str
        Libraries that parts of it want and nothing brings: what works without them is proven.
    frozen : str
        Why it is no more than kept alive, and for whom; empty for a living one.
    imports : tuple of str
        Modules that must import in the finished image.
    verify : tuple of VerifyJob
        Its mini jobs.
    needs_mpi : bool
        Whether it cannot be without an MPI in the image.
    environment : dict
        Variables that it adds to the image.
    commands : tuple of str
        Commands in the image that users call.
    """

    schema_: Annotated[Format, Field(alias="schema")] = 1
    name: Name
    kind: RecipeKind
    summary: Text
    homepage: Text = ""
    versions: Annotated[tuple[ProvenVersion, ...], Field(min_length=1)]
    variants: dict[Name, Variant]
    owns: tuple[Distribution, ...]
    family: Name | None = None
    base: BaseRequirement = BaseRequirement()
    requires: tuple[Pick, ...] = ()
    python: tuple[PythonRequirement, ...] = ()
    source: SourceBuild | None = None
    system: tuple[DebianPackage, ...] = ()
    debian_python: bool = False
    links: dict[ImagePath, Text] = {}
    lacks: tuple[Soname, ...] = ()
    frozen: Text = ""
    imports: tuple[Annotated[str, full_match(MODULE, "a module name")], ...] = ()
    verify: tuple[VerifyJob, ...] = ()
    needs_mpi: bool = False
    environment: dict[VariableName, Text | Prepend] = {}
    commands: tuple[Annotated[str, full_match(r"[A-Za-z0-9][A-Za-z0-9._+-]*", "a command name")], ...] = ()
