"""The facts that decide how the ranks of an image are started, and the PMI that follows from them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from envbuild.errors import MachineError, RequestError
from envbuild.image.environment import MISLEADING
from envbuild.jobs.report import CheckResult
from envbuild.rules.facts import Value, facts_from, pmi_facts, texts_of
from envbuild.rules.judge import RuleResult, refusal
from envbuild.rules.pmi import PmiChoice, choose_pmi
from envbuild.rules.rulebook import judge_by
from envbuild.spec.site import Site, SiteMpi

PMI_CHECK = "slurm.pmi"
DEFAULT_PMI_CHECK = "slurm.default-pmi"
_RULE = "PMI.intersection"


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
    commands: tuple[str, ...] = ()
    """Commands of the image's recipes (``torchrun``)."""
    programs: str = ""
    """The directory of the image's own launchers; empty for its PATH."""
    site: Site | None = None
    """None for a machine without a site file."""
    from_host: HostLibraries = NO_HOST_LIBS
    """Libraries of the site's host that replace the image's own; a fabric comes with its variables."""
    ask_srun: Callable[[], tuple[str, ...]] | None = None
    """Returns the types of ``srun --mpi``, or raises a MachineError; None where only the site counts."""
    abis: tuple[str, ...] = ()
    """By which the image's programs load the host's MPI, if known."""
    across_nodes: bool = False
    """Whether ranks must be able to start on several nodes: a launcher inside of the image does not do."""
    user_names_pmi: bool = False
    """Whether the user writes the words of srun, as before a command of a module."""

    def program(self, name: str) -> str:
        """Return how a launcher of the image is called."""
        return f"{self.programs}/{name}" if self.programs else name

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


def running_mpi(family: str, version: str, host_mpi: SiteMpi | None) -> tuple[str, str]:
    """Return family and version of the MPI that ranks run on: the image's, or the host's in its place."""
    if host_mpi is None:
        return family, version
    return host_mpi.implementation, host_mpi.version or host_mpi.base_version or ""


def choose_pmi_of(context: LaunchContext) -> PmiChoice:
    """Choose the type of ``srun --mpi`` by which the ranks of an image find each other.

    RequestError: there is none, or the site's file, which alone counts, names no types. MachineError: srun
    does not list its types.
    """
    types, more, source = _offer(context)
    family, version = context.running_mpi
    choice, result = _judge_pmi(family, version, context.host_mpi is not None, types, more, source)
    if not choice.type:
        hint = result.hint or "name the type in a line of yours, `srun --mpi=TYPE`, or choose another MPI"
        raise refusal(replace(result, reason=choice.reason, hint=hint))
    return choice


def _offer(context: LaunchContext) -> tuple[tuple[str, ...], bool, str]:
    """Return the types that srun takes, whether it may take others, and the source of both."""
    site = context.site
    scheduler = site.scheduler if site is not None else None
    listed = scheduler.mpi_types if scheduler is not None else ()
    is_complete = bool(listed) and scheduler is not None and not scheduler.more_mpi_types
    name = site.name if site is not None else ""
    if context.ask_srun is not None and not is_complete:
        try:
            return context.ask_srun(), False, "srun --mpi=list"
        except MachineError:
            if not listed:
                raise
    if not listed:
        raise RequestError(
            f"the site `{name}` names no type of `srun --mpi`",
            hint="add those of `srun --mpi=list` to its file: `scheduler: {mpi_types: […]}`",
        )
    return listed, not is_complete, f"site:{name}"


def _judge_pmi(
    family: str, version: str, host: bool, offered: Sequence[str], more_offered: bool, source: str
) -> tuple[PmiChoice, RuleResult]:
    """Return the PMI of an MPI, and what the rule says of it."""
    spoken = pmi_facts(family, version, host=host)
    names = ("host_mpi.implementation", "host_mpi.version") if host else ("mpi.family", "mpi.version")
    offer: dict[str, Value | None] = {"pmi.offered": tuple(offered), "pmi.more_offered": more_offered or None}
    facts = {
        **facts_from(dict(zip(names, (family, version), strict=True)), "host" if host else "image"),
        **facts_from({"mpi.source": "host" if host else "image"}, ""),
        **spoken,
        **facts_from(offer, source),
    }
    result = judge_by(facts, _RULE)
    if result is None:
        raise ValueError(f"{_RULE} concerns every stack")
    choice = choose_pmi(
        mpi=f"{family} {version}".rstrip(),
        spoken=texts_of(facts, "pmi.spoken") if "pmi.spoken" in facts else None,
        optional=texts_of(facts, "pmi.optional") if "pmi.optional" in facts else None,
        offered=offered,
        more_offered=more_offered,
    )
    return choice, result


def pmi_doubt(choice: PmiChoice) -> str:
    """Return why ranks may not find each other by a type that was chosen; empty if they will."""
    return f"{_RULE}: {choice.reason}" if choice.outcome == "unknown" else ""


def judge_pmi(
    family: str, version: str, *, host: bool, offered: Sequence[str], default: str
) -> list[CheckResult]:
    """Judge whether the scheduler offers a PMI that an image's or a `host`'s MPI speaks.

    An empty family means no MPI. `default` is the type that srun uses without ``--mpi``, empty if unknown.
    The wrong type gives as many jobs of one rank as there are ranks, often with exit code 0.
    """
    expected, offers = "a PMI that the MPI speaks", f"srun offers {', '.join(offered) or 'nothing'}"
    if not family:
        return [CheckResult("SKIP", PMI_CHECK, expected, "the image has no MPI")]
    choice, _ = _judge_pmi(family, version, host, offered, False, "srun --mpi=list")
    facts = pmi_facts(family, version, host=host)
    spoken = texts_of(facts, "pmi.spoken")
    speaks = " or ".join((*spoken, *texts_of(facts, "pmi.optional"))) or expected
    if choice.outcome == "incompatible":
        hint = f"ask the site for one of these types, or choose another MPI: {choice.reason}"
        return [CheckResult("FAIL", PMI_CHECK, speaks, offers, hint)]
    if choice.outcome == "unknown":
        hint = f"{choice.reason}: `envbuild test --launcher srun` shows whether ranks find each other"
        return [CheckResult("SKIP", PMI_CHECK, speaks, offers, hint)]
    check = CheckResult("PASS", PMI_CHECK, speaks, offers)
    if default in spoken:
        return [check, CheckResult("PASS", DEFAULT_PMI_CHECK, speaks, f"the default of srun is {default}")]
    observed = f"the default of srun is {default}" if default else "the default of srun is not known"
    hint = f"`srun --mpi={choice.type}`, or SLURM_MPI_TYPE={choice.type}; `envbuild launch` writes it"
    return [check, CheckResult("SKIP", DEFAULT_PMI_CHECK, speaks, observed, hint)]


def visible_variables(names: Sequence[str]) -> tuple[str, ...]:
    """Return which variables of a user's environment an image may see: not those that mislead its loader."""
    return tuple(name for name in names if name not in MISLEADING and not name.startswith("BASH_FUNC_"))
