"""Which launcher starts an image's ranks, and with which words."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from envbuild.errors import MachineError, RequestError
from envbuild.jobs.envbuild_ranks import OF_LAUNCHERS
from envbuild.launch import launchers
from envbuild.launch.context import (
    HostLibraries,
    LaunchContext,
    choose_pmi_of,
    judge_pmi,
    pmi_doubt,
    visible_variables,
)
from envbuild.launch.launchers import Launcher, Shape, launcher_for
from envbuild.launch.launchers.mpiexec import Mpiexec
from envbuild.launch.launchers.srun import Srun
from envbuild.launch.runtimes import Entry, rank_line
from envbuild.launch.schedulers import default_launcher
from envbuild.rules.facts import facts_from, pmi_facts
from envbuild.rules.rulebook import judge_by
from envbuild.spec.site import Site, SiteFabric, SiteMpi, SiteScheduler

RUNTIME = ["apptainer", "exec", "i.sif"]
GOLDEN = Path(__file__).parents[2] / "golden" / "launch.txt"


@pytest.fixture(autouse=True)
def no_job(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    monkeypatch.delenv("PBS_JOBID", raising=False)


def context(**changes: Any) -> LaunchContext:
    return LaunchContext(**({"family": "mpich", "version": "5.0.2"} | changes))


def chosen(context: LaunchContext) -> Launcher | None:
    asked = context.ask_srun is not None
    return launcher_for("srun" if asked else default_launcher(context.site), context)


def line(context: LaunchContext, ranks: int = 4, *, root: bool = False) -> str:
    launcher = chosen(context)
    assert launcher is not None
    return " ".join(rank_line(launcher, Entry(words=RUNTIME), ["job"], Shape(ranks=ranks, as_root=root)))


def slurm(*types: str, mpi: SiteMpi | None = None) -> Site:
    return Site(name="here", scheduler=SiteScheduler(name="slurm", mpi_types=types), mpi=mpi)


CRAY = SiteMpi(implementation="cray-mpich", version="8.1.32")
HOST_MPICH = SiteMpi(implementation="mpich", version="5.0.2")
INTEL = SiteMpi(implementation="intel-mpi", version="2021.18.0", launcher="/opt/intel/bin/mpiexec")
OPEN_MPI = SiteMpi(implementation="openmpi", version="5.0.10", launcher="/opt/ompi/bin/mpirun")

CONTEXTS = {
    "an image with MPICH, no site": context(),
    "an image with Open MPI, no site": context(family="openmpi", version="5.0.11"),
    "an image with Open MPI, no site, as root": context(family="openmpi", version="5.0.11"),
    "MPICH, pmi2 and pmix offered": context(site=slurm("none", "pmi2", "pmix")),
    "MPICH on the host's own, pmix alone, which that may have": context(
        site=slurm("none", "pmix", mpi=HOST_MPICH), from_host=HostLibraries(mpi=True)
    ),
    "Open MPI 5, pmi2 and pmix offered": context(
        family="openmpi", version="5.0.11", site=slurm("cray_shasta", "none", "pmi2", "pmix")
    ),
    "Open MPI 5, one version of pmix": context(
        family="openmpi", version="5.0.11", site=slurm("pmi2", "pmix_v4")
    ),
    "Open MPI 4.1, which may have either, pmi2 and pmix offered": context(
        family="openmpi", version="4.1", site=slurm("none", "pmi2", "pmix")
    ),
    "Intel MPI, pmi2 offered": context(
        family="intel-mpi", version="2021.18.0", site=slurm("none", "pmi2", "pmix")
    ),
    "MPICH on the host's Cray MPICH": context(
        site=slurm("cray_shasta", mpi=CRAY), from_host=HostLibraries(mpi=True)
    ),
    "MPICH on the fabric of a site whose variables need an option": context(
        site=slurm("pmi2").model_copy(
            update={"fabric": SiteFabric(name="slingshot-11", srun_options=("--network=disable_rdzv_get",))}
        ),
        from_host=HostLibraries(fabric=True),
    ),
    "in an allocation, srun asked": context(ask_srun=lambda: ("pmi2", "none")),
    "no MPI, tasks alone": context(family="", version="", site=slurm("none")),
    "MPICH on the host's Intel MPI": context(
        site=Site(name="here", mpi=INTEL), from_host=HostLibraries(mpi=True)
    ),
    "Open MPI on the host's, as root": context(
        family="openmpi", site=Site(name="here", mpi=OPEN_MPI), from_host=HostLibraries(mpi=True)
    ),
    "the host's MPI is there, and not asked for": context(site=Site(name="here", mpi=INTEL)),
}


def test_lines(golden: Any) -> None:
    lines = []
    for title, each in CONTEXTS.items():
        launcher = chosen(each)
        assert launcher is not None
        lines += [f"# {title}", line(each, root="as root" in title)]
        lines += [f"#   {name}={text}" for name, text in sorted(launcher.variables().items())]
    golden(GOLDEN, "\n".join(lines) + "\n")


def test_a_count_may_be_the_allocation_s() -> None:
    assert line(context(site=slurm("pmi2")), 0).split() == ["srun", "--mpi=pmi2", *RUNTIME, "job"]


@pytest.mark.parametrize(
    ("family", "version", "types", "told"),
    [
        (
            "openmpi",
            "5.0.11",
            ("none", "pmi2"),
            "openmpi 5.0.11 speaks pmix, pmix_v3, pmix_v4, pmix_v5, and `srun --mpi` offers none, pmi2",
        ),
        # Each rank of it was seen alone under cray_shasta, which Cray's own speaks.
        (
            "mpich",
            "5.0.2",
            ("cray_shasta", "none"),
            "mpich 5.0.2 speaks pmi2, and `srun --mpi` offers cray_shasta, ",
        ),
        # Our build of it has no PMIx, and ends in MPI_Init.
        ("mpich", "5.0.2", ("none", "pmix"), "mpich 5.0.2 speaks pmi2, and `srun --mpi` offers none, pmix: "),
        ("other", "1.0", ("pmi2",), "the PMI that other 1.0 speaks is not known"),
    ],
)
def test_refused_where_every_rank_would_be_alone(
    family: str, version: str, types: tuple[str, ...], told: str
) -> None:
    with pytest.raises(RequestError) as caught:
        chosen(context(family=family, version=version, site=slurm(*types)))
    assert caught.value.problem.startswith("PMI.intersection: ")
    assert told in caught.value.problem


def test_a_site_without_types_is_told() -> None:
    with pytest.raises(RequestError, match="the site `here` names no type of `srun --mpi`"):
        chosen(context(site=slurm()))


def test_a_type_that_a_site_does_not_rule_out_is_taken_and_doubted() -> None:
    part = SiteScheduler(name="slurm", mpi_types=("pmi2",), more_mpi_types=True)
    open_mpi = context(family="openmpi", version="5.0.11", site=Site(name="lumi", scheduler=part))
    choice = choose_pmi_of(open_mpi)
    assert choice.type == "pmix"
    doubt = pmi_doubt(choice)
    assert doubt.startswith("PMI.intersection: openmpi 5.0.11 speaks pmix, and of the types")
    assert doubt.endswith("only pmi2 are known")
    # A type that is listed is sure, whatever else there may be.
    assert choose_pmi_of(context(site=open_mpi.site)).outcome == "compatible"
    # What srun itself says is all that it takes.
    with pytest.raises(RequestError, match=r"PMI\.intersection"):
        choose_pmi_of(replace(open_mpi, ask_srun=lambda: ("pmi2",)))
    assert pmi_doubt(choose_pmi_of(context(site=slurm("pmi2")))) == ""
    may = context(site=slurm("none", "pmix", mpi=HOST_MPICH), from_host=HostLibraries(mpi=True))
    expected = "PMI.intersection: mpich 5.0.2 speaks pmix only where it was built to"
    assert pmi_doubt(choose_pmi_of(may)) == expected


@pytest.mark.parametrize("offered", ["pmix_v4", "pmix_v6"])
def test_an_mpi_that_speaks_pmix_speaks_each_series_of_it(offered: str) -> None:
    open_mpi = context(family="openmpi", version="5.0.11", site=slurm("none", offered))
    assert (choose_pmi_of(open_mpi).type, choose_pmi_of(open_mpi).outcome) == (offered, "compatible")


def test_a_type_that_the_mpi_surely_speaks_comes_before_a_listed_one_that_it_may_not_speak() -> None:
    """srun refuses the first with a message; by the second each rank would run alone, with exit code 0."""
    part = SiteScheduler(name="slurm", mpi_types=("none", "pmix"), more_mpi_types=True)
    intel = context(family="intel-mpi", version="2021.18.0", site=Site(name="roihu", scheduler=part))
    choice = choose_pmi_of(intel)
    assert (choice.type, choice.outcome) == ("pmi2", "unknown")
    assert choice.reason.endswith("speaks pmi2, and of the types of `srun --mpi` only none, pmix are known")
    # Of a whole list, only the other one is left; an MPI that surely speaks none has only those it may speak.
    whole = choose_pmi_of(replace(intel, site=slurm("none", "pmix")))
    assert (whole.type, whole.outcome) == ("pmix", "unknown")
    older = choose_pmi_of(replace(intel, family="openmpi", version="4.1.4"))
    assert (older.type, older.outcome) == ("pmix", "unknown")


def test_an_srun_that_does_not_answer_leaves_what_the_site_lists() -> None:
    def silent() -> tuple[str, ...]:
        raise MachineError("no answer", hint="wait")

    part = SiteScheduler(name="slurm", mpi_types=("pmi2",), more_mpi_types=True)
    listed = context(site=Site(name="lumi", scheduler=part), ask_srun=silent)
    assert choose_pmi_of(listed).type == "pmi2"
    with pytest.raises(MachineError, match="no answer"):
        choose_pmi_of(context(ask_srun=silent))


def test_an_image_without_mpi_has_nothing_that_starts_ranks() -> None:
    assert chosen(context(family="", version="")) is None


FLUX = """
from dataclasses import dataclass

from envbuild.launch.launchers import Launcher, variables_of_separate_ranks


@dataclass(frozen=True, slots=True, kw_only=True)
class Flux(Launcher):
    spans_nodes: bool = True
    job_variables: tuple[str, ...] = ("FLUX_",)

    def words(self, shape):
        nodes = ["-N", str(shape.nodes)] if shape.nodes else []
        return [self.program, "run", *nodes, "-n", str(shape.ranks)]


def choose(context):
    return Flux(program="flux", family=context.family)
"""


def test_a_new_launcher_is_one_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "flux.py").write_text(FLUX)
    monkeypatch.setattr(launchers, "__path__", [*launchers.__path__, str(tmp_path)])
    assert launchers.launcher_names() == ("flux", "mpiexec", "srun", "torchrun")
    flux = launcher_for("flux", context())
    assert flux is not None
    started = rank_line(flux, Entry(words=RUNTIME), ["job"], Shape(ranks=4, nodes=2))
    assert started == ["flux", "run", "-N", "2", "-n", "4", *RUNTIME, "job"]
    assert flux.variables()["MPIR_CVAR_CH4_CMA_ENABLE"] == "0"


def test_nodes_are_measured_by_one_rank_on_each() -> None:
    shape = Shape(ranks=2, nodes=2, names=("n1", "n2"), measures=True)
    by_srun = Srun(pmi="pmi2", family="mpich").words(shape)
    expected = "srun --mpi=pmi2 --nodes=2 --ntasks-per-node=1 --cpu-bind=none --nodelist=n1,n2 -n 2"
    assert by_srun == expected.split()
    of_host = Mpiexec(program="/h/mpirun", family="openmpi", spans_nodes=True).words(shape)
    assert of_host == ["/h/mpirun", "-n", "2", "--map-by", "ppr:1:node", "--host", "n1,n2"]
    assert Mpiexec(program="mpiexec", family="mpich").words(shape) == ["mpiexec", "-n", "2"]


def test_what_misleads_an_image_s_loader_or_python_stays_outside() -> None:
    misleading = ("LD_PRELOAD", "LD_LIBRARY_PATH", "LD_PREFER_MAP_32BIT_EXEC", "PYTHONPATH", "CUDA_HOME")
    names = ("PATH", "SLURM_JOB_ID", "PMI_RANK", *misleading, "ROCM_ROOT", "HIP_HOME", "BASH_FUNC_which%%")
    assert visible_variables(names) == ("PATH", "SLURM_JOB_ID", "PMI_RANK")


def judged(family: str, version: str, offered: str, default: str = "") -> dict[str, str]:
    checks = judge_pmi(family, version, host=False, offered=offered.split(), default=default)
    return {check.id: check.status for check in checks}


@pytest.mark.parametrize(
    ("family", "version", "offered", "default", "statuses"),
    [
        (
            "openmpi",
            "5.0.11",
            "none pmi2 pmix pmix_v4",
            "pmix",
            {"slurm.pmi": "PASS", "slurm.default-pmi": "PASS"},
        ),
        ("openmpi", "5.0.11", "none pmi2 pmix", "pmi2", {"slurm.pmi": "PASS", "slurm.default-pmi": "SKIP"}),
        ("openmpi", "5.0.11", "none pmi2 pmix", "none", {"slurm.pmi": "PASS", "slurm.default-pmi": "SKIP"}),
        ("openmpi", "5.0.11", "none pmi2 pmix", "", {"slurm.pmi": "PASS", "slurm.default-pmi": "SKIP"}),
        ("openmpi", "5.0.11", "none pmi2 cray_shasta", "pmi2", {"slurm.pmi": "FAIL"}),
        ("mpich", "5.0.2", "none pmi2", "pmi2", {"slurm.pmi": "PASS", "slurm.default-pmi": "PASS"}),
        ("mpich", "5.0.2", "none", "none", {"slurm.pmi": "FAIL"}),
        ("mpich", "5.0.2", "none pmix", "pmix", {"slurm.pmi": "FAIL"}),
        ("", "", "none pmi2", "none", {"slurm.pmi": "SKIP"}),
        ("nobody-knows", "1", "none pmi2", "none", {"slurm.pmi": "SKIP"}),
        # Types that this MPI speaks only if it was built to: Debian's build does not speak pmi2.
        ("openmpi", "4.1.4", "none pmi2", "none", {"slurm.pmi": "SKIP"}),
        ("openmpi", "4.1.4", "none pmi2 pmix", "pmix", {"slurm.pmi": "SKIP"}),
        ("openmpi", "4.1.4", "none", "none", {"slurm.pmi": "FAIL"}),
        # The default is such a type, and another one is sure.
        (
            "intel-mpi",
            "2021.18",
            "none pmi2 pmix",
            "pmix",
            {"slurm.pmi": "PASS", "slurm.default-pmi": "SKIP"},
        ),
        ("intel-mpi", "2021.18", "none pmix", "pmix", {"slurm.pmi": "SKIP"}),
    ],
)
def test_every_case(family: str, version: str, offered: str, default: str, statuses: dict[str, str]) -> None:
    assert judged(family, version, offered, default) == statuses


def test_a_failure_says_what_both_know_and_a_remark_what_to_write() -> None:
    (failed,) = judge_pmi("openmpi", "5.0.11", host=False, offered=["none", "pmi2"], default="none")
    assert failed.observed == "srun offers none, pmi2"
    assert "each rank would run as rank 0 of 1" in failed.hint
    # A host's MPICH may be built with PMIx; that of an image is known.
    (unknown,) = judge_pmi("mpich", "5.0.2", host=True, offered=["none", "pmix"], default="pmix")
    assert (unknown.status, unknown.observed) == ("SKIP", "srun offers none, pmix")
    assert "only where it was built to" in unknown.hint
    _, remark = judge_pmi("openmpi", "5.0.11", host=False, offered=["none", "pmix"], default="none")
    assert "`srun --mpi=pmix`" in remark.hint


@pytest.mark.parametrize("host", [False, True])
@pytest.mark.parametrize(
    "offered", [("none",), ("pmi2",), ("none", "pmix"), ("cray_shasta",), ("pmix_v5", "pmi2")]
)
@pytest.mark.parametrize(
    ("family", "version"),
    [
        ("openmpi", "1.10.7"),
        ("openmpi", "4.1.4"),
        ("openmpi", "5.0.11"),
        ("mpich", "3.2"),
        ("mpich", "4.0"),
        ("mpich", "5.0.2"),
        ("intel-mpi", "2021.18"),
        ("cray-mpich", "8.1.32"),
    ],
)
def test_the_check_says_what_the_rule_says(
    family: str, version: str, offered: tuple[str, ...], host: bool
) -> None:
    facts = facts_from({"mpi.family": family, "mpi.version": version, "pmi.offered": offered}, "here")
    verdict = judge_by({**facts, **pmi_facts(family, version, host=host)}, "PMI.intersection")
    assert verdict is not None
    expected = {"compatible": "PASS", "incompatible": "FAIL", "unknown": "SKIP"}[verdict.outcome]
    assert judge_pmi(family, version, host=host, offered=offered, default="")[0].status == expected


def test_ranks_in_their_own_containers_do_not_read_each_other_s_memory() -> None:
    def variables(family: str, *, spans_nodes: bool = True) -> dict[str, str]:
        return dict(Mpiexec(program="m", family=family, spans_nodes=spans_nodes).variables())

    assert variables("mpich")["MPIR_CVAR_CH4_CMA_ENABLE"] == "0"
    assert variables("openmpi")["OMPI_MCA_smsc"] == "^cma"
    assert variables("intel-mpi") == {}
    assert "MPIR_CVAR_CH4_CMA_ENABLE" not in variables("mpich", spans_nodes=False)


def test_a_launcher_inside_an_image_forgets_the_job_of_each_launcher_outside() -> None:
    outside = (*CONTEXTS.values(), context(family="", version="", commands=("torchrun",)))
    found = [chosen(each) for each in outside[:-1]] + [launcher_for("torchrun", outside[-1])]
    known = {name for launcher in found if launcher is not None for name in launcher.job_variables}
    assert {"SLURM_", "PBS_"} <= known <= {*OF_LAUNCHERS}
