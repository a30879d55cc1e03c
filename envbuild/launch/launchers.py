"""Launchers as data: which one starts an image's ranks, with which words and variables. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from envbuild.errors import RequestError
from envbuild.image.environment import MISLEADING
from envbuild.jobs.launchers import mpiexec_words, torchrun_words
from envbuild.jobs.report import CheckResult
from envbuild.rules.facts import Fact, facts_from, pmi_facts, texts_of
from envbuild.rules.judge import refusal
from envbuild.rules.rulebook import judge
from envbuild.spec.site import Site, SiteMpi

OFFERED = "slurm.pmi"
DEFAULT = "slurm.default-pmi"

# Ranks in one container each have their own user namespaces: the kernel lets none read another's memory
# (CMA), nor follow /proc/PID/fd. Files in /dev/shm work.
_APART: Mapping[str, Mapping[str, str]] = {
    "openmpi": {
        "OMPI_MCA_smsc": "^cma",
        "OMPI_MCA_btl_vader_single_copy_mechanism": "none",
        "UCX_POSIX_USE_PROC_LINK": "n",
        "UCX_TLS": "^cma",
    },
    "mpich": {"MPIR_CVAR_CH4_CMA_ENABLE": "0", "UCX_POSIX_USE_PROC_LINK": "n", "UCX_TLS": "^cma"},
}
# MPICH 5.0 publishes the addresses of its UCX in lines that Slurm's PMI cuts: with some environments the
# memory that follows goes along, and ranks end in MPI_Init or hang. Those of libfabric are short.
_UNDER_SLURM: Mapping[str, Mapping[str, str]] = {"mpich": {"MPIR_CVAR_CH4_NETMOD": "ofi"}}


@dataclass(frozen=True, slots=True, kw_only=True)
class Launcher:
    """A program that starts ranks."""

    program: str
    """``mpiexec``, ``torchrun``, ``srun``, or the path of the host's mpiexec."""
    family: str = ""
    """MPI implementation that the ranks run on, whose words a mpiexec takes; empty for none."""
    outside: bool = False
    """Whether it runs on the host and starts one container per rank; if not, it runs inside the image and all
    ranks share one container on this machine.
    """
    mpi_type: str = ""
    """Of srun: the PMI for ``--mpi``; empty for a job without MPI."""
    image_mpi: bool = True
    """Whether the ranks run on the image's own MPI."""
    options: tuple[str, ...] = ()
    """Of srun: what the site's fabric needs."""

    @property
    def is_srun(self) -> bool:
        """Whether Slurm starts the ranks, perhaps on other machines."""
        return self.program == "srun"

    @property
    def label(self) -> str:
        """``srun --mpi=pmi2``: the program and its PMI."""
        return f"{self.program} --mpi={self.mpi_type}" if self.mpi_type else self.program

    def words(self, ranks: int, *, root: bool, oversubscribe: bool) -> list[str]:
        """Return the words before the command of a rank; 0 ranks leave their number to srun's allocation."""
        if self.program == "torchrun":
            return torchrun_words(ranks)
        if self.is_srun:
            return [*self.label.split(), *self.options, *(["-n", str(ranks)] if ranks else [])]
        return mpiexec_words(self.family, ranks, root=root, oversubscribe=oversubscribe, program=self.program)

    def environment(self) -> dict[str, str]:
        """Return the variables that ranks in their own containers need, and those for Slurm's PMI."""
        by_slurm = self.is_srun and self.image_mpi
        return env_of_ranks(self.family, apart=self.outside, by_slurm=by_slurm)


def env_of_ranks(family: str, *, apart: bool, by_slurm: bool) -> dict[str, str]:
    """Return the variables that ranks of an MPI family need.

    `apart` is for ranks in one container each, `by_slurm` for tasks of srun on the image's own MPI.
    """
    return {**(_APART.get(family, {}) if apart else {}), **(_UNDER_SLURM.get(family, {}) if by_slurm else {})}


def launcher_family(implementation: str, abis: Sequence[str] = ()) -> str:
    """Return the implementation whose words a host's launcher takes (``cray-mpich`` → ``mpich``).

    `abis` are those by which the image's programs load the host's MPI, if known.
    """
    if any(abi.startswith("openmpi") for abi in abis):
        return "openmpi"
    return "mpich" if implementation == "cray-mpich" else implementation


@dataclass(frozen=True, slots=True)
class HostLibraries:
    """The libraries of the site's host that an image uses in place of its own."""

    mpi: bool = False
    fabric: bool = False

    def __bool__(self) -> bool:
        return self.mpi or self.fabric


NO_HOST_LIBS = HostLibraries()


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchContext:
    """The facts that decide how ranks are started."""

    family: str
    version: str
    """Of the image's MPI; empty for none."""
    site: Site | None = None
    """None for a machine without a site file."""
    from_host: HostLibraries = NO_HOST_LIBS
    """Libraries of the site's host that replace the image's own; a fabric comes with its variables."""
    srun: bool = False
    """Whether srun starts the ranks."""
    offered: tuple[str, ...] = ()
    """PMI types that srun itself lists; empty if it was not asked."""
    abis: tuple[str, ...] = ()
    """By which the image's programs load the host's MPI, if known."""

    @property
    def host_mpi(self) -> SiteMpi | None:
        """The site's MPI, if ranks run on it."""
        return self.site.mpi if self.from_host.mpi and self.site is not None else None

    @property
    def srun_options(self) -> tuple[str, ...]:
        """Options of srun that the variables of the site's fabric need."""
        fabric = self.site.fabric if self.from_host.fabric and self.site is not None else None
        return fabric.srun_options if fabric is not None else ()

    @property
    def running_mpi(self) -> tuple[str, str]:
        """Family and version of the MPI that ranks run on."""
        return running_mpi(self.family, self.version, self.host_mpi)

    @property
    def mpi_types(self) -> tuple[str, ...]:
        """PMI types that ``srun --mpi`` takes, according to srun or else to the site."""
        scheduler = self.site.scheduler if self.site else None
        return self.offered or (scheduler.mpi_types if scheduler else ())

    @property
    def mpi_types_complete(self) -> bool:
        """Whether srun takes no other types than `mpi_types`."""
        scheduler = self.site.scheduler if self.site else None
        listed = scheduler is not None and bool(scheduler.mpi_types) and not scheduler.more_mpi_types
        return bool(self.offered) or listed


def running_mpi(family: str, version: str, host_mpi: SiteMpi | None) -> tuple[str, str]:
    """Return family and version of the MPI that ranks run on: the image's, or the host's in its place."""
    if host_mpi is None:
        return family, version
    return host_mpi.implementation, host_mpi.version or host_mpi.base_version or ""


def choose_launcher(context: LaunchContext) -> Launcher | None:
    """Return srun, the host's mpiexec, or the image's own inside it; None if the image has no MPI.

    RequestError: the scheduler offers no PMI that the MPI speaks.
    """
    family, _ = context.running_mpi
    if context.srun:
        return Launcher(
            program="srun",
            family=launcher_family(family),
            outside=True,
            mpi_type=choose_pmi(context) if family else "",
            image_mpi=not context.from_host.mpi,
            options=context.srun_options,
        )
    host_mpi = context.host_mpi
    if host_mpi is not None and host_mpi.launcher is not None:
        family = launcher_family(host_mpi.implementation, context.abis)
        return Launcher(program=host_mpi.launcher, family=family, outside=True, image_mpi=False)
    return Launcher(program="mpiexec", family=context.family) if context.family else None


def check_types_of_site(site: Site, context: LaunchContext) -> None:
    """Raise a RequestError if a site, whose srun cannot be asked here, names no types that an MPI needs."""
    if context.srun and context.running_mpi[0] and not context.mpi_types:
        raise RequestError(
            f"the site `{site.name}` names no type of `srun --mpi`",
            hint="add those of `srun --mpi=list` to its file: `scheduler: {mpi_types: […]}`",
        )


def choose_pmi(context: LaunchContext) -> str:
    """Return the type for ``srun --mpi`` that both the MPI and the scheduler know.

    Types that the MPI surely speaks come before those that it may be built with.
    If the scheduler may offer more than is known, the first that the MPI speaks is used, and `pmi_doubt`
    says so. RequestError: there is none, so every rank would be alone.
    """
    (family, version), (spoken, optional) = context.running_mpi, spoken_types(context)
    known = context.mpi_types
    for mpi_type in (*spoken, *optional):
        if mpi_type in known:
            return mpi_type
    if spoken and known and not context.mpi_types_complete:
        return spoken[0]
    site = context.site.name if context.site else ""
    facts = {
        **facts_from({"mpi.family": family, "mpi.version": version}, "host" if context.host_mpi else "image"),
        **facts_from({"pmi.spoken": spoken, "pmi.optional": optional}, "table:pmi-of-mpi"),
        "pmi.offered": Fact(known, "srun --mpi=list" if context.offered else f"site:{site}"),
    }
    (verdict,) = judge(facts, about=("PMI.intersection",))
    raise refusal(verdict)


def pmi_doubt(context: LaunchContext, mpi_type: str) -> str:
    """Return why ranks may not find each other by a type from `choose_pmi`; empty if they will."""
    family, version = context.running_mpi
    known = context.mpi_types
    if mpi_type not in known:
        offers = f"the site names {', '.join(known)}, and says that this is not all that `srun --mpi` offers"
        return f"PMI.intersection: {family} {version} speaks {mpi_type}, and {offers}"
    if mpi_type not in spoken_types(context)[0]:
        return f"PMI.intersection: {family} {version} speaks {mpi_type} only where it was built to"
    return ""


def spoken_types(context: LaunchContext) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the types of PMI that the MPI surely speaks, and those that it may be built with."""
    facts = pmi_facts(*context.running_mpi, host=context.host_mpi is not None)
    return texts_of(facts, "pmi.spoken"), texts_of(facts, "pmi.optional")


def judge_pmi(
    family: str, version: str, *, host: bool, offered: Sequence[str], default: str
) -> list[CheckResult]:
    """Judge whether the scheduler offers a PMI that an image's or a `host`'s MPI speaks.

    An empty family means no MPI. `default` is the type that srun uses without ``--mpi``, empty if unknown.
    The wrong type gives as many jobs of one rank as there are ranks, often with exit code 0.
    """
    expected = "a PMI that the MPI speaks"
    if not family:
        return [CheckResult("SKIP", OFFERED, expected, "the image holds no MPI")]
    facts = pmi_facts(family, version, host=host)
    spoken, optional = texts_of(facts, "pmi.spoken"), texts_of(facts, "pmi.optional")
    if not spoken and not optional:
        return [CheckResult("SKIP", OFFERED, expected, f"the PMI of {family} {version} is not known")]
    (verdict,) = judge({**facts, "pmi.offered": Fact(tuple(offered))}, about=("PMI.intersection",))
    speaks, offers = " or ".join((*spoken, *optional)), f"srun offers {', '.join(offered) or 'nothing'}"
    if verdict.outcome == "incompatible":
        hint = "ask the site for one of these types, or choose another MPI: every rank would be alone"
        return [CheckResult("FAIL", OFFERED, speaks, offers, hint)]
    if verdict.outcome == "unknown":
        both = ", ".join(mpi_type for mpi_type in optional if mpi_type in offered)
        hint = (
            f"{family} {version} speaks {both} only if it was built to: `envbuild test --launcher srun` shows"
        )
        return [CheckResult("SKIP", OFFERED, speaks, offers, f"{hint} whether ranks find each other")]
    check = CheckResult("PASS", OFFERED, speaks, offers)
    if default in spoken:
        return [check, CheckResult("PASS", DEFAULT, speaks, f"the default of srun is {default}")]
    observed = f"the default of srun is {default}" if default else "the default of srun is not known"
    common = next(mpi_type for mpi_type in spoken if mpi_type in offered)
    hint = f"`srun --mpi={common}`, or SLURM_MPI_TYPE={common}; `envbuild launch` writes it"
    return [check, CheckResult("SKIP", DEFAULT, speaks, observed, hint)]


def visible_variables(names: Sequence[str]) -> tuple[str, ...]:
    """Return which variables of a user's environment an image may see: not those that mislead its loader."""
    return tuple(name for name in names if name not in MISLEADING and not name.startswith("BASH_FUNC_"))
