"""A site file against made-up machines: what has changed, what is missing, what cannot be seen."""

from __future__ import annotations

from pathlib import Path

import pytest

from envbuild.site.compare import compare
from envbuild.site.probe import probe
from envbuild.spec.site import Site, SiteBind, SiteFabric, SiteMpi, SiteRuntime, SiteScheduler, SiteSupply
from tests.support.elves import Elf
from tests.unit.site.machines import MPICH, OPENMPI, Machine


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    one = Machine(tmp_path / "root")
    one.libc()
    one.mpi("/opt/mpi", "libmpi.so.12", MPICH, "libfabric.so.1")
    one.library("/opt/mpi/lib/libfabric.so.1", Elf(soname="libfabric.so.1"))
    one.program("/opt/mpi/bin/mpichversion", "MPICH Version:      4.3.2")
    one.program("/opt/mpi/bin/mpiexec", "HYDRA build details:")
    one.program("/usr/bin/srun", "slurm 24.05.1")
    return one


def told(site: Site, machine: Machine) -> list[str]:
    return [
        f"{one.id[5:]} {one.subject}: {one.expected} | {one.observed}"
        for one in compare(site, machine.survey)
    ]


def described(machine: Machine) -> Site:
    return probe(machine.survey, name="here", mpi=("/opt/mpi",)).site


def test_a_machine_is_what_its_own_draft_says(machine: Machine) -> None:
    assert told(described(machine), machine) == []
    assert told(Site(name="says-nothing"), machine) == []


def test_what_has_changed(machine: Machine) -> None:
    site = described(machine)
    cxx = Elf(soname="libstdc++.so.6", versions_defined=("libstdc++.so.6", "GLIBCXX_3.4.33"))
    machine.library("/usr/lib/x86_64-linux-gnu/libstdc++.so.6", cxx, cached=True)
    machine.program("/usr/bin/srun", "slurm 25.11.0")
    machine.program("/opt/mpi/bin/mpichversion", "MPICH Version:      5.0.2")
    assert told(site, machine) == [
        "changed libstdcxx: 3.4.30 | 3.4.33",
        "changed scheduler.version: 24.05.1 | 25.11.0",
        "changed mpi.version: 4.3.2 | 5.0.2",
    ]


def test_what_is_gone(machine: Machine) -> None:
    site = described(machine).model_copy(update={"binds": (SiteBind(source="/scratch"),)})
    (machine.root / "opt/mpi/lib/libmpi.so.12").unlink()
    (machine.root / "opt/mpi/bin/mpiexec").unlink()
    assert told(site, machine) == [
        "missing binds: /scratch | it is not there",
        "missing mpi.libraries: /opt/mpi/lib/libmpi.so.12 | it is not there",
        "missing mpi.launcher: /opt/mpi/bin/mpiexec | it is not there",
    ]


def test_software_that_is_gone(machine: Machine) -> None:
    supply = SiteSupply(libraries=("/opt/mpi/lib",), python=("/opt/fast",), environment={"FAST": "/opt"})
    site = described(machine).model_copy(update={"supplies": {"fast": supply}})
    assert told(site, machine) == ["missing supplies.fast.python: /opt/fast | it is not there"]


def test_a_closure_that_is_no_longer_whole(machine: Machine) -> None:
    site = described(machine)
    (machine.root / "opt/mpi/lib/libfabric.so.1").unlink()
    assert told(site, machine) == [
        "incomplete mpi.libraries: /opt/mpi/lib/libmpi.so.12"
        " | /opt/mpi/lib/libmpi.so.12 needs libfabric.so.1, which nothing has"
    ]


def test_another_abi_under_the_same_name(machine: Machine) -> None:
    site = described(machine)
    machine.mpi("/opt/mpi", "libmpi.so.12", OPENMPI)
    assert told(site, machine)[0] == "changed mpi.abis: mpich | openmpi-12"


def test_what_cannot_be_seen_is_no_difference(machine: Machine) -> None:
    site = Site(
        name="x",
        scheduler=SiteScheduler(name="slurm", mpi_types=("pmi2",)),
        fabric=SiteFabric(name="slingshot-11"),
        # How images start under it is the centre's word, which no machine reports.
        runtimes=(SiteRuntime(name="shifter", options=("--module=gpu",), host_mpi=("mpich",)),),
        modules="lmod",
    )
    assert [(one.status, one.id) for one in compare(site, machine.survey)] == [("SKIP", "site.unseen")] * 4


def test_a_name_that_may_be_misspelt_is_no_difference(machine: Machine) -> None:
    site = Site(
        name="x",
        scheduler=SiteScheduler(name="slrum", mpi_types=("pmix_v5", "pmi3")),
        runtimes=(SiteRuntime(name="aptainer"), SiteRuntime(name="charliecloud")),
    )
    unusual = [line for line in told(site, machine) if line.startswith("unusual")]
    assert unusual == [
        "unusual scheduler.name: slrum | envbuild does not know it; did you mean `slurm`?",
        "unusual scheduler.mpi_types: pmi3 | envbuild does not know it; did you mean `pmix`?",
        "unusual runtimes.aptainer: aptainer | envbuild does not know it; did you mean `apptainer`?",
    ]


@pytest.mark.parametrize(
    ("said", "more", "differs"),
    [
        (("none", "pmi2"), False, False),
        (("pmi2",), False, True),
        (("pmi2",), True, False),
        (("pmi2", "pmix"), True, True),
    ],
)
def test_a_list_of_types_that_is_not_whole(
    machine: Machine, said: tuple[str, ...], more: bool, differs: bool
) -> None:
    machine.program("/usr/bin/srun", "slurm 24.05.1\nMPI plugin types are...\n\tnone\n\tpmi2")
    scheduler = SiteScheduler(name="slurm", mpi_types=said, more_mpi_types=more)
    assert bool(told(Site(name="x", scheduler=scheduler), machine)) is differs


def test_devices_and_plugins(machine: Machine) -> None:
    fabric = SiteFabric(
        name="infiniband", devices=("/dev/infiniband/uverbs0",), nccl_plugin="/sw/libnccl-net.so"
    )
    site = Site(name="x", fabric=fabric, mpi=SiteMpi(implementation="mpich"))
    assert [line for line in told(site, machine) if line.startswith("missing")] == [
        "missing fabric.devices: /dev/infiniband/uverbs0 | it is not there",
        "missing fabric.nccl_plugin: /sw/libnccl-net.so | it is not there",
    ]
