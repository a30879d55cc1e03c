"""Which launcher starts an image's ranks, and with which words."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from envbuild.check.launching import Situation, launcher_for, pmi_doubt, srun_for, visible_variables
from envbuild.errors import RequestError
from envbuild.spec.site import Site, SiteMpi, SiteScheduler

RUNTIME = ["apptainer", "exec", "i.sif"]
GOLDEN = Path(__file__).parents[2] / "golden" / "launch.txt"


def situation(**changes: Any) -> Situation:
    fields: dict[str, Any] = {"label": "demo/1", "family": "mpich", "version": "5.0.2"}
    return Situation(**(fields | changes))


def slurm(*types: str, mpi: SiteMpi | None = None) -> Site:
    return Site(name="here", scheduler=SiteScheduler(name="slurm", mpi_types=types), mpi=mpi)


CRAY = SiteMpi(implementation="cray-mpich", version="8.1.32")
HOST_MPICH = SiteMpi(implementation="mpich", version="5.0.2")
INTEL = SiteMpi(implementation="intel-mpi", version="2021.18.0", launcher="/opt/intel/bin/mpiexec")
OPEN_MPI = SiteMpi(implementation="openmpi", version="5.0.10", launcher="/opt/ompi/bin/mpirun")

SITUATIONS = {
    "an image with MPICH, no site": situation(),
    "an image with Open MPI, no site": situation(family="openmpi", version="5.0.11"),
    "an image with Open MPI, no site, as root": situation(family="openmpi", version="5.0.11", root=True),
    "MPICH, pmi2 and pmix offered": situation(site=slurm("none", "pmi2", "pmix")),
    "MPICH on the host's own, pmix alone, which that may have": situation(
        site=slurm("none", "pmix", mpi=HOST_MPICH), on_host_mpi=True
    ),
    "Open MPI 5, pmi2 and pmix offered": situation(
        family="openmpi", version="5.0.11", site=slurm("cray_shasta", "none", "pmi2", "pmix")
    ),
    "Open MPI 5, one version of pmix": situation(
        family="openmpi", version="5.0.11", site=slurm("pmi2", "pmix_v4")
    ),
    "Open MPI 4.1, which may have either, pmi2 and pmix offered": situation(
        family="openmpi", version="4.1", site=slurm("none", "pmi2", "pmix")
    ),
    "Intel MPI, pmi2 offered": situation(
        family="intel-mpi", version="2021.18.0", site=slurm("none", "pmi2", "pmix")
    ),
    "MPICH on the host's Cray MPICH": situation(site=slurm("cray_shasta", mpi=CRAY), on_host_mpi=True),
    "in an allocation, srun asked": situation(srun=True, offered=("pmi2", "none")),
    "no MPI, tasks alone": situation(family="", version="", site=slurm("none")),
    "MPICH on the host's Intel MPI": situation(site=Site(name="here", mpi=INTEL), on_host_mpi=True),
    "Open MPI on the host's, as root": situation(
        family="openmpi", site=Site(name="here", mpi=OPEN_MPI), on_host_mpi=True, root=True
    ),
    "the host's MPI is there, and not asked for": situation(site=Site(name="here", mpi=INTEL)),
}


def test_lines(golden: Any) -> None:
    lines = []
    for title, each in SITUATIONS.items():
        launcher = launcher_for(each)
        lines += [f"# {title}", " ".join(launcher.command(RUNTIME, ["job"], 4))]
        lines += [f"#   {name}={text}" for name, text in sorted(launcher.environment().items())]
    golden(GOLDEN, "\n".join(lines) + "\n")


def test_a_count_may_be_the_allocation_s() -> None:
    words = launcher_for(situation(site=slurm("pmi2"))).command(RUNTIME, ["job"], 0)
    assert words == ["srun", "--mpi=pmi2", *RUNTIME, "job"]


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
        ("mpich", "5.0.2", (), "offers no known type"),
        ("other", "1.0", ("pmi2",), "other 1.0 speaks no known type"),
    ],
)
def test_refused_where_every_rank_would_be_alone(
    family: str, version: str, types: tuple[str, ...], told: str
) -> None:
    with pytest.raises(RequestError) as caught:
        launcher_for(situation(family=family, version=version, site=slurm(*types)))
    assert caught.value.problem.startswith("PMI.intersection: ")
    assert told in caught.value.problem


def test_a_type_that_a_site_does_not_rule_out_is_taken_and_doubted() -> None:
    part = SiteScheduler(name="slurm", mpi_types=("pmi2",), more_mpi_types=True)
    open_mpi = situation(family="openmpi", version="5.0.11", site=Site(name="lumi", scheduler=part))
    assert srun_for(open_mpi).mpi_type == "pmix"
    doubt = pmi_doubt(open_mpi, "pmix")
    assert doubt.startswith("PMI.intersection: openmpi 5.0.11 speaks pmix, and the site names pmi2, and says")
    # What srun itself says is all that it takes.
    with pytest.raises(RequestError, match=r"PMI\.intersection"):
        srun_for(replace(open_mpi, offered=("pmi2",)))
    assert pmi_doubt(situation(site=slurm("pmi2")), "pmi2") == ""
    may = situation(site=slurm("none", "pmix", mpi=HOST_MPICH), on_host_mpi=True)
    assert pmi_doubt(may, "pmix") == "PMI.intersection: mpich 5.0.2 speaks pmix only where it was built to"


def test_an_image_without_mpi_has_nothing_that_starts_ranks() -> None:
    with pytest.raises(RequestError, match="holds no MPI, whose mpiexec"):
        launcher_for(situation(family="", version=""))


def test_what_misleads_an_image_s_loader_or_python_stays_outside() -> None:
    names = ("PATH", "LD_PRELOAD", "LD_LIBRARY_PATH", "PYTHONPATH", "SLURM_JOB_ID", "PMI_RANK", "CUDA_HOME")
    assert visible_variables(names) == ("PATH", "SLURM_JOB_ID", "PMI_RANK")
