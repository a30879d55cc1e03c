"""What is known of an MPI, a framework or a fabric's library: the model of a recipe."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from envbuild.spec.arithmetic import evaluate
from envbuild.spec.fields import Checked, Distribution, Format, ProvenVersion
from envbuild.spec.model import (
    MODULE,
    CommandName,
    DebianPackage,
    GlibcVersion,
    ImagePath,
    Model,
    Name,
    Origin,
    Pick,
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


# Arithmetic that is right for one number of ranks may fail for another.
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
ModuleName = Annotated[str, full_match(MODULE, "a module name")]
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
JobId = Annotated[str, full_match(r"[A-Z][0-9]+(?:\.[a-z0-9-]+)?", "a check id, such as `D2.ddp`")]
JobFile = Annotated[str, full_match(r"[a-z0-9_]+\.py", "a file name under verify/, such as `ddp.py`")]
SaidText = Annotated[Text, Field(min_length=1)]
Tolerance = Annotated[float, Field(gt=0, allow_inf_nan=False)]
ReportedName = Annotated[str, full_match(r"[A-Za-z0-9_.:-]+", "a name of a reported value")]


class VerifyJob(Model):
    """A mini job of a recipe: what it runs, and what it must report.

    The job reports facts; what they must be stands here, so that the parent
    judges. Expected values are integer arithmetic in ``n``, the number of
    ranks, ``r``, the rank that reports, and ``h``, the number of hosts that the
    ranks report from (``n*(n+1)//2``), evaluated exactly; what has no value on
    some rank of 1, 2, 3, 64 or 4096 is a mistake of the recipe.

    Attributes
    ----------
    id : str
        Its check id (``D2.ddp-oracle``), unique in the image.
    job : str
        A file under the recipe's ``verify/``.
    title : str
        What it proves, for people.
    expect : dict of str to str
        Reported value's name → expression in ``n``, ``r`` and ``h``; compared for equality on every rank.
    same_on_all_ranks : tuple of str
        Reported values that must be equal on all ranks.
    compare_with_single : dict of str to float
        Reported value's name (a number or list of numbers) → relative
        tolerance against the same job on one rank.
    compare_with_reported : dict of str to dict of str to float
        Reported value's name → the name of what the same rank reports beside it,
        such as an oracle's result → relative tolerance between them.
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

    id: JobId
    job: JobFile
    title: Text
    expect: dict[ReportedName, Arithmetic] = {}
    same_on_all_ranks: tuple[ReportedName, ...] = ()
    compare_with_single: dict[ReportedName, Tolerance] = {}
    compare_with_reported: dict[
        ReportedName, Annotated[dict[ReportedName, Tolerance], Field(min_length=1)]
    ] = {}
    hint: Text = ""
    timeout_s: Annotated[float, Field(gt=0, le=86_400)] | None = None
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
    untried : str
        Why nobody has built and run it so; empty for one that was proven.
    """

    requirements: tuple[VariantRequirement, ...]
    origins: tuple[Origin, ...] = ()
    versions: tuple[ProvenVersion, ...] = ()
    backends: tuple[Name, ...] = ()
    untried: Text = ""


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
        PEP 440 constraint on its Python that the preferred version needs, empty for any;
        what another version needs beyond it is told by the resolver and its rules.
    suites : tuple of str
        Suites whose packages it is made for (``bullseye``); empty for any.
    glibc : str or None
        Oldest C library that its files run with; without it any.
    """

    python: PythonConstraint = ""
    suites: tuple[Name, ...] = ()
    glibc: GlibcVersion | None = None


class Recipe(Model):
    """What envbuild knows about one MPI or framework.

    Attributes
    ----------
    schema_ : int
        The format of the file; 1, the only one so far.
    name : str
        What a spec calls it; its directory is called so, too.
    summary : str
        What it is, in one line.
    homepage : str
        Where its project is at home.
    kind : str
        ``mpi``, ``framework`` or ``fabric``: under which key of a spec it is named.
    versions : tuple of str
        Versions that were proven, preferred first.
    variants : dict of str to Variant
        Accelerator name → what to install; MPI recipes use ``cpu``.
    owns : tuple of str
        Distributions that are this recipe's alone, and that others get through it; empty for one that
        only brings jobs to what it requires, or consists of Debian packages.
    family : str or None
        Of an MPI: whose launcher it has (``openmpi``); without it that is its own name.
    base : BaseRequirement
        What it needs of the base image.
    requires : tuple of Choice
        Other recipes that must be in the spec; a constraint takes part in
        choosing their version.
    requires_one_of : tuple of str
        Recipes of which at least one must be in the spec.
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
        Variables that it adds to the image; ``PATH`` and ``LD_LIBRARY_PATH`` take ``{prepend: DIR}`` only.
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
    requires_one_of: tuple[Name, ...] = ()
    python: tuple[PythonRequirement, ...] = ()
    source: SourceBuild | None = None
    system: tuple[DebianPackage, ...] = ()
    debian_python: bool = False
    links: dict[ImagePath, Text] = {}
    lacks: tuple[Soname, ...] = ()
    frozen: Text = ""
    imports: tuple[ModuleName, ...] = ()
    verify: tuple[VerifyJob, ...] = ()
    needs_mpi: bool = False
    environment: dict[VariableName, Setting] = {}
    commands: tuple[CommandName, ...] = ()
