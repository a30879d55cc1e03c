"""Which launcher starts an image's ranks: from what image, site and scheduler say. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from envbuild.check.launchers.base import Launcher
from envbuild.check.launchers.hostmpiexec import HostMpiexec
from envbuild.check.launchers.mpiexec import Mpiexec
from envbuild.check.launchers.srun import Srun
from envbuild.errors import RequestError
from envbuild.rules.facts import Fact, facts_from, pmi_facts, texts_of
from envbuild.rules.judge import refusal
from envbuild.rules.rulebook import judge
from envbuild.spec.site import Site, SiteMpi


@dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    """What decides how ranks are started.

    Attributes
    ----------
    label : str
        The image, for messages.
    family, version : str
        Of the image's MPI; empty for none.
    site : Site or None
        None for a machine that nobody described.
    on_host_mpi : bool
        Whether ranks run on the site's MPI in place of the image's.
    srun : bool
        Whether srun is to start them: it was asked for, or this is inside a job of Slurm.
    offered : tuple of str
        What srun itself names as its types; empty where it was not asked.
    root : bool
        Whether ranks run as root.
    """

    label: str
    family: str
    version: str
    site: Site | None = None
    on_host_mpi: bool = False
    srun: bool = False
    offered: tuple[str, ...] = ()
    root: bool = False

    @property
    def host_mpi(self) -> SiteMpi | None:
        """The site's MPI, where ranks run on it."""
        return self.site.mpi if self.on_host_mpi and self.site is not None else None

    @property
    def by_scheduler(self) -> bool:
        """Whether srun starts the ranks."""
        scheduler = self.site.scheduler if self.site else None
        return self.srun or (scheduler is not None and scheduler.name == "slurm")

    @property
    def known_types(self) -> tuple[str, ...]:
        """What ``srun --mpi`` is known to take, by its own word or else by the site's."""
        scheduler = self.site.scheduler if self.site else None
        return self.offered or (scheduler.mpi_types if scheduler else ())

    @property
    def offer_is_whole(self) -> bool:
        """Whether srun takes no other types than `known_types`."""
        scheduler = self.site.scheduler if self.site else None
        named = scheduler is not None and bool(scheduler.mpi_types) and not scheduler.more_mpi_types
        return bool(self.offered) or named


def launcher_for(situation: Situation) -> Launcher:
    """Return what starts the ranks: srun, the host's mpiexec, or the image's own inside it.

    Raises
    ------
    RequestError
        Nothing fits: the scheduler offers no PMI that the MPI speaks, or the image holds no launcher.
    """
    if situation.by_scheduler:
        return srun_for(situation)
    mpi = situation.host_mpi
    if mpi is not None and mpi.launcher is not None:
        family = _words(mpi.implementation)
        return HostMpiexec(program=mpi.launcher, family=family, root=situation.root, crowded=False)
    if not situation.family:
        raise RequestError(
            f"`{situation.label}` holds no MPI, whose mpiexec would start the ranks",
            hint="add `mpi: mpich` to its spec, or start the command with `apptainer exec`",
        )
    return Mpiexec(family=situation.family, root=situation.root, crowded=False)


def srun_for(situation: Situation) -> Srun:
    """Return the srun that starts the ranks, with a PMI that their MPI speaks.

    Raises
    ------
    RequestError
        The scheduler offers none.
    """
    family, _ = _running_mpi(situation)
    own = not situation.on_host_mpi
    return Srun(mpi_type=pmi_type(situation) if family else "", family=_words(family), own=own)


def pmi_type(situation: Situation) -> str:
    """Return the type for ``srun --mpi`` that both the MPI and the scheduler know.

    What the MPI surely speaks comes before what it may have been built to speak.
    Where the scheduler may offer more than is known, it is the first that the MPI
    speaks; `pmi_doubt` tells of that.

    Raises
    ------
    RequestError
        There is none: every rank would be alone.
    """
    (family, version), (spoken, optional) = _running_mpi(situation), _spoken(situation)
    known = situation.known_types
    for each in (*spoken, *optional):
        if each in known:
            return each
    if spoken and known and not situation.offer_is_whole:
        return spoken[0]
    site = situation.site.name if situation.site else ""
    facts = {
        **facts_from(
            {"mpi.family": family, "mpi.version": version}, "host" if situation.host_mpi else "image"
        ),
        **facts_from({"pmi.spoken": spoken, "pmi.optional": optional}, "table:pmi-of-mpi"),
        "pmi.offered": Fact(known, "srun --mpi=list" if situation.offered else f"site:{site}"),
    }
    (verdict,) = judge(facts, about=("PMI.intersection",))
    raise refusal(verdict)


def pmi_doubt(situation: Situation, mpi_type: str) -> str:
    """Return why ranks may not find each other by a type that `pmi_type` gave; empty where they will."""
    family, version = _running_mpi(situation)
    known = situation.known_types
    if mpi_type not in known:
        offers = f"the site names {', '.join(known)}, and says that this is not all that `srun --mpi` offers"
        return f"PMI.intersection: {family} {version} speaks {mpi_type}, and {offers}"
    if mpi_type not in _spoken(situation)[0]:
        return f"PMI.intersection: {family} {version} speaks {mpi_type} only where it was built to"
    return ""


def _spoken(situation: Situation) -> tuple[tuple[str, ...], tuple[str, ...]]:
    family, version = _running_mpi(situation)
    facts = pmi_facts(family, version, host=situation.host_mpi is not None)
    return texts_of(facts, "pmi.spoken"), texts_of(facts, "pmi.optional")


def _running_mpi(situation: Situation) -> tuple[str, str]:
    return running_mpi(situation.family, situation.version, situation.host_mpi)


def running_mpi(family: str, version: str, host_mpi: SiteMpi | None) -> tuple[str, str]:
    """Return family and version of the MPI that ranks run on: the image's, or the host's in its place."""
    if host_mpi is None:
        return family, version
    return host_mpi.implementation, host_mpi.version or host_mpi.base_version or ""


def _words(implementation: str) -> str:
    """Return whose words a launcher of an implementation takes."""
    return "mpich" if implementation == "cray-mpich" else implementation


def visible_variables(names: Sequence[str]) -> tuple[str, ...]:
    """Return which variables of a user's environment an image may see: not those that mislead its loader."""
    return tuple(name for name in names if not _MISLEADING.fullmatch(name))


# As the module's launcher takes them away (activate/launcher.sh).
_MISLEADING = re.compile(
    r"LD_[A-Z_]+|PYTHONPATH|PYTHONHOME|BASH_ENV|ENV|OPAL_PREFIX|(CUDA|ROCM|HIP)_(HOME|PATH|ROOT)|BASH_FUNC_.*"
)
