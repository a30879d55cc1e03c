"""What is told of made-up machines, and what is said of what cannot be told."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from envbuild.site.probe import SiteDraft, mpi_types, probe
from envbuild.spec.load import load
from envbuild.spec.site import Site, SiteFabric, SiteGpus, SiteRuntime, SiteScheduler
from tests.support.elves import Elf
from tests.unit.site.machines import LIB, MPICH, OPENMPI, STANDARD, Machine

NVIDIA = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05  Sat Aug 19 01:15:15 UTC 2023"


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    one = Machine(tmp_path / "root")
    one.libc()
    return one


def seen(machine: Machine, *mpi: str) -> SiteDraft:
    return probe(machine.survey, name="here", mpi=mpi)


def test_a_bare_machine_claims_little_and_says_why(tmp_path: Path) -> None:
    (tmp_path / "root").mkdir()
    probed = seen(Machine(tmp_path / "root"))
    assert probed.site.model_dump(exclude_defaults=True) == {"name": "here", "architecture": "amd64"}
    assert set(probed.unknown) == {
        "glibc",
        "libstdcxx",
        "kernel",
        "memlock",
        "shm",
        "gpus",
        "scheduler",
        "mpi",
        "fabric",
        "runtimes",
        "modules",
    }
    text = probed.text()
    assert "# glibc: unknown: the loader's cache (`ldconfig -p`) has no libc.so.6\n" in text
    assert load(Site, text.encode(), Path("here.yaml")).value == probed.site


def test_c_libraries_by_the_versions_that_they_define(machine: Machine) -> None:
    site = seen(machine).site
    assert (site.glibc, site.libstdcxx) == ("2.36", "3.4.30")


def test_nvidia(machine: Machine) -> None:
    machine.file("/proc/driver/nvidia/version", NVIDIA)
    for number in range(4):
        machine.file(f"/proc/driver/nvidia/gpus/0000:0{number}:00.0/information")
    machine.program("/usr/bin/nvidia-smi", "9.0\n9.0\n9.0\n9.0")
    gpus = seen(machine).site.gpus
    assert gpus == SiteGpus(
        vendor="nvidia", count=4, architectures=("sm_90",), driver="535.104.05", open_modules=False
    )


def test_names_and_modes_of_nvidias_gpus(machine: Machine) -> None:
    machine.file("/proc/driver/nvidia/version", NVIDIA.replace("x86_64 Kernel", "Open Kernel"))
    machine.program(
        "/usr/bin/nvidia-smi", "9.0, NVIDIA H100 80GB HBM3, Enabled\n9.0, NVIDIA H100 80GB HBM3, Enabled"
    )
    machine.program("/usr/bin/nv-fabricmanager", "Fabric Manager version is : 535.104.05")
    gpus = seen(machine).site.gpus
    assert gpus is not None
    assert (gpus.architectures, gpus.names, gpus.mig) == (("sm_90",), ("H100 80GB HBM3",), True)
    assert (gpus.open_modules, gpus.fabric_manager) == (True, "535.104.05")


@pytest.mark.parametrize(
    ("mount", "size"),
    [
        ("tmpfs /dev/shm tmpfs rw,nosuid,nodev,inode64 0 0", 4_194_304),
        ("shm /dev/shm tmpfs rw,nosuid,size=65536k,mode=1777 0 0", 67_108_864),
        ("tmpfs /run tmpfs rw,size=1g 0 0", None),
    ],
)
def test_kernel_and_limits(machine: Machine, mount: str, size: int | None) -> None:
    machine.file("/proc/sys/kernel/osrelease", "5.14.0-362.8.1.el9_3.x86_64\n")
    machine.file("/dev/fuse")
    machine.file("/proc/mounts", f"proc /proc proc rw 0 0\n{mount}\n")
    machine.file("/proc/meminfo", "MemTotal:        8192 kB\nMemFree: 1 kB\n")
    limit = "Max locked memory         unlimited            unlimited            bytes"
    machine.file("/proc/self/limits", f"Limit                     Soft Limit           Hard Limit\n{limit}\n")
    site = seen(machine).site
    assert (site.kernel, site.fuse, site.shm, site.memlock) == ("5.14.0", True, size, None)
    machine.variables["SLURM_JOB_ID"] = "1"
    assert seen(machine).site.memlock == "unlimited"


def test_releases_of_efa_and_ofed(machine: Machine) -> None:
    machine.file("/sys/class/infiniband/rdmap0s6/ports/1/link_layer", "Unspecified")
    machine.file(
        "/opt/amazon/efa_installed_packages", "# EFA installer version: 1.43.1\n# Debug packages: no\n"
    )
    machine.program("/usr/bin/ofed_info", "MLNX_OFED_LINUX-5.8-1.1.2.1:")
    fabric = seen(machine).site.fabric
    assert fabric is not None
    assert (fabric.name, fabric.efa_installer, fabric.ofed) == ("efa", "1.43.1", "5.8")


@pytest.mark.parametrize(
    ("rates", "rate"),
    [
        (("400 Gb/sec (4X NDR)", "400 Gb/sec (4X NDR)"), "NDR"),
        (("56 Gb/sec (4X FDR)", "200 Gb/sec (4X HDR)"), None),
        (("10 Gb/sec (4X SDR)", ""), None),
    ],
)
def test_the_rate_of_infinibands_links(machine: Machine, rates: tuple[str, str], rate: str | None) -> None:
    for number, text in enumerate(rates):
        port = f"/sys/class/infiniband/mlx5_{number}/ports/1"
        machine.file(f"{port}/link_layer", "InfiniBand")
        machine.file(f"{port}/rate", text)
        machine.file(f"{port}/state", "1: DOWN" if "SDR" in text else "4: ACTIVE")
    fabric = seen(machine).site.fabric
    assert fabric is not None
    assert (fabric.name, fabric.rate) == ("infiniband", rate)


def test_a_draft_is_of_one_node_of_a_cluster(machine: Machine) -> None:
    machine.program("/usr/bin/srun", "slurm 24.05.3\nsrun: pmi2")
    machine.program("/usr/bin/sinfo", "gpu\ncpu\ncpu\nsinfo: error: a word")
    machine.variables["SLURM_JOB_PARTITION"] = "gpu"
    text = seen(machine).text()
    assert (
        "# Drafted on a node of Slurm's partition `gpu`.\n"
        "# Slurm has the partitions cpu, gpu. `envbuild site probe --partition NAME`, on a login node,\n"
        "# describes nodes that differ.\n"
    ) in text
    # One kind of node alone needs no partition.
    del machine.variables["SLURM_JOB_PARTITION"]
    machine.program("/usr/bin/sinfo", "batch")
    assert "Slurm has the partitions" not in seen(machine).text()


def test_a_driver_whose_tools_are_not_there(machine: Machine) -> None:
    machine.file("/proc/driver/nvidia/version", NVIDIA)
    machine.program("/usr/bin/nvidia-smi", "Failed to initialize NVML", code=9)
    probed = seen(machine)
    assert probed.site.gpus == SiteGpus(vendor="nvidia", driver="535.104.05", open_modules=False)
    assert set(probed.unknown) >= {"gpus.architectures", "gpus.count"}


def test_amd(machine: Machine) -> None:
    for number, target in enumerate((0, 90010, 90010, 90402)):
        nodes = "/sys/class/kfd/kfd/topology/nodes"
        machine.file(f"{nodes}/{number}/properties", f"cpu_cores_count 0\ngfx_target_version {target}\n")
    machine.file("/sys/module/amdgpu/parameters/noretry", "0\n")
    probed = seen(machine)
    assert probed.site.gpus == SiteGpus(vendor="amd", count=3, architectures=("gfx90a", "gfx942"), xnack=True)
    assert "gpus.driver" in probed.unknown


@pytest.mark.parametrize(
    ("vendor", "kind", "gpus"),
    [
        ("0x10de", "0x030200", SiteGpus(vendor="nvidia")),
        ("0x1002", "0x120000", SiteGpus(vendor="amd")),
        ("0x10de", "0x020000", SiteGpus(vendor="none", count=0)),
        ("0x1a03", "0x030000", SiteGpus(vendor="none", count=0)),
    ],
)
def test_without_a_driver_the_bus_tells(machine: Machine, vendor: str, kind: str, gpus: SiteGpus) -> None:
    machine.file("/sys/bus/pci/devices/0000:01:00.0/vendor", f"{vendor}\n")
    machine.file("/sys/bus/pci/devices/0000:01:00.0/class", f"{kind}\n")
    machine.variables["SLURM_JOB_ID"] = "7"
    assert seen(machine).site.gpus == gpus


def test_that_a_login_node_has_no_gpu_is_a_comment(machine: Machine) -> None:
    machine.file("/sys/bus/pci/devices/0000:01:00.0/vendor", "0x1a03\n")
    machine.file("/sys/bus/pci/devices/0000:01:00.0/class", "0x030000\n")
    probed = seen(machine)
    assert probed.site.gpus is None
    text = probed.text()
    fix = "`site probe --partition NAME`"
    assert f"# gpus: unknown: none is seen here, and compute nodes may have some: {fix}\n" in text
    assert "vendor" not in text


def test_slurm(machine: Machine) -> None:
    machine.program("/usr/bin/srun", "slurm-wlm 22.05.8")
    probed = seen(machine)
    assert probed.site.scheduler == SiteScheduler(name="slurm", version="22.05.8")
    assert set(probed.unknown) >= {"scheduler.mpi_types", "scheduler.default_mpi_type"}
    said = "\\nslurm 24.05.1\\nMPI plugin types are...\\n\\tnone\\n\\tpmi2\\n"
    machine.file("/usr/bin/srun", f"#!/bin/sh\nprintf '{said}'\n")
    machine.program(
        "/usr/bin/scontrol", "Configuration data\nMpiDefault              = pmi2\nMpiParams = (null)"
    )
    assert seen(machine).site.scheduler == SiteScheduler(
        name="slurm", version="24.05.1", mpi_types=("none", "pmi2"), default_mpi_type="pmi2"
    )


def test_a_task_of_slurm_knows_which_pmix_serves_it(machine: Machine) -> None:
    machine.program("/usr/bin/srun", "slurm 25.05.3")
    assert "srun --mpi=pmix" in seen(machine).unknown["scheduler.pmix"]
    machine.variables |= {"PMIX_VERSION": "5.0.8", "PMIX_SECURITY_MODE": "munge,native"}
    scheduler = seen(machine).site.scheduler
    security = ("munge", "native")
    assert scheduler == SiteScheduler(name="slurm", version="25.05.3", pmix="5.0.8", pmix_security=security)


def test_an_srun_without_a_cluster_is_no_scheduler(machine: Machine) -> None:
    machine.program("/usr/bin/srun", "")
    machine.file("/usr/bin/srun", "#!/bin/sh\n[ $1 = --version ] || exit 1\necho slurm-wlm 22.05.8\n")
    probed = seen(machine)
    assert probed.site.scheduler is None
    assert "finds no cluster" in probed.unknown["scheduler"]


@pytest.mark.parametrize("question", ["--version", "--mpi=list"])
def test_an_srun_that_hangs_is_told_and_asked_no_more(machine: Machine, question: str) -> None:
    machine.program("/usr/bin/srun", "")
    script = (
        f"#!/bin/sh\necho $1 >>{machine.root}/asked\n[ $1 = {question} ] && sleep 60\necho slurm 24.05.1\n"
    )
    machine.file("/usr/bin/srun", script)
    probed = probe(dataclasses.replace(machine.survey, timeout_s=2.0), name="here")
    assert probed.site.scheduler is None
    assert probed.unknown["scheduler"] == "`/usr/bin/srun` did not answer within 2 s"
    assert (machine.root / "asked").read_text().split()[-1] == question


@pytest.mark.parametrize(
    ("listed", "types"),
    [
        ("srun: MPI types are...\nsrun: none\nsrun: pmi2\nsrun: cray_shasta\n", "cray_shasta none pmi2"),
        (
            "MPI plugin types are...\n\tnone\n\tcray_shasta\n\tpmi2\n\tpmix\n"
            "specific pmix plugin versions available: pmix_v4,pmix_v5\n",
            "cray_shasta none pmi2 pmix pmix_v4 pmix_v5",
        ),
        ("srun: error: Unable to contact slurm controller\n", ""),
    ],
)
def test_what_srun_lists(listed: str, types: str) -> None:
    assert mpi_types(listed) == tuple(types.split())


def test_an_mpi_that_is_named_comes_first(machine: Machine) -> None:
    machine.mpi("/opt/impi", "libmpi.so.12", MPICH, "libfabric.so.1")
    machine.mpi("/opt/impi", "libmpi_abi.so.1", STANDARD)
    machine.library("/opt/impi/lib/libfabric.so.1", Elf(soname="libfabric.so.1"))
    machine.library("/opt/impi/lib/libtcp-fi.so", Elf())
    machine.file("/opt/impi/opt/tuning.dat")
    said = "Intel(R) MPI Library for Linux* OS, Version 2021.19 Build 20260101"
    machine.program("/opt/impi/bin/mpiexec", said)
    machine.mpi("/sw/mpich", "libmpi.so.12", MPICH)
    machine.program("/sw/mpich/bin/mpichversion", "MPICH Version:      5.0.2\nMPICH Release date: unreleased")
    machine.variables["PATH"] = "/sw/mpich/bin:/usr/bin"
    probed = seen(machine, "/opt/impi")
    mpi = probed.site.mpi
    assert mpi is not None
    assert (mpi.implementation, mpi.version, mpi.base_version) == ("intel-mpi", "2021.19", None)
    assert mpi.abis == ("mpich", "standard")
    names = ("libmpi.so.12", "libmpi_abi.so.1", "libfabric.so.1")
    assert mpi.libraries == tuple(f"/opt/impi/lib/{name}" for name in names)
    assert (mpi.search, mpi.launcher) == (("/opt/impi/lib",), "/opt/impi/bin/mpiexec")
    assert mpi.environment == {"I_MPI_ROOT": "/opt/impi", "FI_PROVIDER_PATH": "/opt/impi/lib"}
    assert probed.remarks["mpi"] == ["Also here: mpich 5.0.2 (mpich), /sw/mpich/lib/libmpi.so.12."]
    assert seen(machine).site.mpi != mpi
    machine.variables["I_MPI_ROOT"] = "/opt/impi"
    assert seen(machine).site.mpi == mpi


def test_two_of_one_name_are_told_apart_by_their_symbols(machine: Machine) -> None:
    machine.mpi("/opt/old", "libmpi.so.12", OPENMPI)
    machine.mpi("/opt/new", "libmpi.so.12", MPICH)
    old, new = seen(machine, "/opt/old").site.mpi, seen(machine, "/opt/new").site.mpi
    assert old is not None
    assert new is not None
    assert (old.implementation, old.abis) == ("openmpi", ("openmpi-12",))
    assert (new.implementation, new.abis) == ("mpich", ("mpich",))


def test_open_mpi_is_told_where_it_is(machine: Machine) -> None:
    machine.mpi("/opt/x", "libmpi.so.40", OPENMPI, "libpmix.so.2")
    machine.library("/opt/x/lib/libpmix.so.2", Elf(soname="libpmix.so.2"))
    machine.program("/opt/x/bin/ompi_info", "Open MPI v5.0.10")
    mpi = seen(machine, "/opt/x").site.mpi
    assert mpi is not None
    assert (mpi.version, mpi.companions) == ("5.0.10", ("/opt/x",))
    assert mpi.environment == {"OPAL_PREFIX": "/opt/x", "PMIX_PREFIX": "/opt/x"}


def test_an_mpi_whose_programs_say_nothing_is_told_by_its_abi_alone(machine: Machine) -> None:
    machine.mpi("/opt/x", "libmpi.so.40", OPENMPI, "libopen-pal.so.80")
    probed = seen(machine, "/opt/x")
    assert probed.remarks["mpi"] == [
        "/opt/x/lib/libmpi.so.40 needs libopen-pal.so.80, which is missing: add its directory to `search`."
    ]
    assert probed.unknown["mpi.version"].startswith("no program of it reports one")


def test_an_mpi_of_the_loaders_cache(machine: Machine) -> None:
    elf = Elf(soname="libmpi.so.40", defined=OPENMPI)
    machine.library(f"{LIB}/libmpi.so.40", elf, cached=True)
    machine.library(f"{LIB}/libnothing_mpi.so.1", Elf(soname="other"), cached=True)
    cudnn = "libcudnn_engines_precompiled.so.9"
    machine.library(f"{LIB}/{cudnn}", Elf(soname=cudnn), cached=True)
    machine.program("/usr/bin/ompi_info", "Open MPI v4.1.4\n\nhttps://www.open-mpi.org/community/help/")
    machine.program("/usr/bin/mpiexec", "mpiexec (OpenRTE) 4.1.4")
    mpi = seen(machine).site.mpi
    assert mpi is not None
    assert (mpi.implementation, mpi.version, mpi.base_version) == ("openmpi", "4.1.4", "4.1.4")
    assert (mpi.libraries, mpi.search) == ((f"{LIB}/libmpi.so.40",), ())
    assert mpi.launcher == "/usr/bin/mpiexec"


def test_a_damaged_library_is_none(machine: Machine) -> None:
    machine.file("/opt/x/lib/libmpi.so.12", "\x7fELF broken")
    assert seen(machine, "/opt/x").site.mpi is None


def test_fabrics(machine: Machine) -> None:
    machine.program(
        "/usr/bin/fi_info",
        "fi_info: 1.20.1\nlibfabric: 1.20.1\nlibfabric api: 1.20\ncxi:\n    version: 120.1\ntcp:\n",
    )
    machine.library("/opt/cray/libfabric.so.1", Elf(soname="libfabric.so.1"), cached=True)
    probed = seen(machine)
    assert probed.site.fabric is None
    assert probed.remarks["fabric"] == ["Here: libfabric 1.20.1 (cxi, tcp), no ucx_info on PATH."]
    machine.file("/sys/class/cxi/cxi0/device/fw_version", "1.5.41")
    for name in ("cxi0", "cxi1", "null"):
        machine.file(f"/dev/{name}")
    assert seen(machine).site.fabric == SiteFabric(
        name="slingshot-11",
        provider="cxi",
        libfabric="1.20.1",
        libraries=("/opt/cray/libfabric.so.1",),
        devices=("/dev/cxi0", "/dev/cxi1"),
    )


@pytest.mark.parametrize(
    ("card", "layer", "name"),
    [
        ("mlx5_0", "InfiniBand", "infiniband"),
        ("mlx5_0", "Ethernet", "roce"),
        ("hfi1_0", "InfiniBand", "omni-path"),
        ("efa_0", "Unspecified", "efa"),
    ],
)
def test_a_fabric_by_its_cards(machine: Machine, card: str, layer: str, name: str) -> None:
    machine.file(f"/sys/class/infiniband/{card}/ports/1/link_layer", f"{layer}\n")
    fabric = seen(machine).site.fabric
    assert fabric is not None
    assert (fabric.name, fabric.provider) == (name, None)
    machine.program("/usr/bin/ucx_info", "# Library version: 1.17.0\n# UCT version=1.17.0 revision 7bb2722")
    fabric = seen(machine).site.fabric
    assert fabric is not None
    assert fabric.provider == ("ucx" if name in ("infiniband", "roce") else None)


@pytest.mark.parametrize(
    ("most", "clone", "restricted", "allowed"),
    [("63000", "1", "", True), ("0", "1", "", False), ("63000", "0", "", False), ("63000", "", "1", False)],
)
def test_apptainer(machine: Machine, most: str, clone: str, restricted: str, allowed: bool) -> None:
    said = (
        "case $1 in --version) echo apptainer version 1.4.5;; *) echo APPTAINER_CONF_FILE=/etc/a.conf;; esac"
    )
    machine.file("/usr/bin/apptainer", f"#!/bin/sh\n{said}\n")
    (machine.root / "usr/bin/apptainer").chmod(0o755)
    assert seen(machine).site.runtimes == (SiteRuntime(name="apptainer", version="1.4.5"),)
    machine.file("/proc/sys/user/max_user_namespaces", most)
    machine.file("/proc/sys/kernel/unprivileged_userns_clone", clone)
    machine.file("/proc/sys/kernel/apparmor_restrict_unprivileged_userns", restricted)
    assert seen(machine).site.runtimes == (
        SiteRuntime(name="apptainer", version="1.4.5", user_namespaces=allowed),
    )


@pytest.mark.parametrize(
    ("installed", "allowed", "setuid"),
    [("1", "yes", True), ("1", "no", False), ("0", "yes", False), ("0", "", False), ("1", "", None)],
)
def test_whether_apptainer_starts_set_user_id(
    machine: Machine, installed: str, allowed: str, setuid: bool | None
) -> None:
    built = f"echo APPTAINER_CONF_FILE=/etc/a.conf; echo APPTAINER_SUID_INSTALL={installed}"
    said = f"case $1 in --version) echo apptainer version 1.4.5;; *) {built};; esac"
    machine.file("/usr/bin/apptainer", f"#!/bin/sh\n{said}\n")
    (machine.root / "usr/bin/apptainer").chmod(0o755)
    machine.file("/etc/a.conf", f"allow setuid = {allowed}\n" if allowed else "# allow setuid = yes\n")
    (runtime,) = seen(machine).site.runtimes
    assert runtime.setuid is setuid


def test_singularityce_is_a_runtime_if_there_is_no_apptainer(machine: Machine) -> None:
    built = "echo SINGULARITY_CONF_FILE=/etc/s.conf; echo SINGULARITY_SUID_INSTALL=1"
    said = f"case $1 in --version) echo singularity-ce version 4.3.7-noble;; *) {built};; esac"
    machine.file("/usr/bin/singularity", f"#!/bin/sh\n{said}\n")
    (machine.root / "usr/bin/singularity").chmod(0o755)
    probed = seen(machine)
    assert probed.site.runtimes == (SiteRuntime(name="singularityce", version="4.3.7"),)
    assert "# runtimes.singularityce.setuid: unknown: singularity's settings cannot be read" in probed.text()
    machine.file("/etc/s.conf", "allow setuid = yes\n")
    assert seen(machine).site.runtimes[0].setuid is True
    machine.program("/usr/bin/apptainer", "apptainer version 1.4.5")
    assert [runtime.name for runtime in seen(machine).site.runtimes] == ["apptainer"]


def test_two_mpis_in_one_place_are_told_apart(machine: Machine) -> None:
    """As three wheels in one virtual environment put them."""
    machine.mpi("/opt/x", "libmpi.so.12", MPICH)
    machine.mpi("/opt/x", "libmpi_abi.so.1", STANDARD)
    machine.mpi("/opt/x", "libmpifort.so.12", (), "libmpi.so.12")
    machine.mpi("/opt/x", "libmpi.so.40", OPENMPI)
    machine.mpi("/opt/x", "libmpi_mpifh.so.40", (), "libmpi.so.40")
    machine.mpi("/opt/x", "libmpi_usempi.so.40", (), "libmpi_mpifh.so.40")
    machine.program("/opt/x/bin/mpichversion", "MPICH Version:      5.0.2")
    machine.program("/opt/x/bin/ompi_info", "Open MPI v5.0.11")
    machine.program("/opt/x/bin/mpiexec", "mpiexec (Open MPI) 5.0.11")
    probed = seen(machine, "/opt/x")
    mpi = probed.site.mpi
    assert mpi is not None
    # Whose mpiexec it is comes first.
    assert (mpi.implementation, mpi.version, mpi.abis) == ("openmpi", "5.0.11", ("openmpi-40",))
    names = ("libmpi.so.40", "libmpi_mpifh.so.40", "libmpi_usempi.so.40")
    assert mpi.libraries == tuple(f"/opt/x/lib/{name}" for name in names)
    assert mpi.launcher == "/opt/x/bin/mpiexec"
    assert probed.remarks["mpi"] == ["Also here: mpich 5.0.2 (mpich, standard), /opt/x/lib/libmpi.so.12."]
    machine.program("/opt/x/bin/mpiexec", "HYDRA build details:\n    Version:  5.0.2")
    mpi = seen(machine, "/opt/x").site.mpi
    assert mpi is not None
    assert mpi.implementation == "mpich"
    names = ("libmpi.so.12", "libmpi_abi.so.1", "libmpifort.so.12")
    assert mpi.libraries == tuple(f"/opt/x/lib/{name}" for name in names)


def test_two_mpis_that_share_a_library_s_name_are_doubted(machine: Machine) -> None:
    machine.mpi("/opt/x", "libmpi.so.12", MPICH)
    machine.program("/opt/x/bin/mpichversion", "MPICH Version:      5.0.2")
    said = "Intel(R) MPI Library for Linux* OS, Version 2021.18 Build 20260626"
    machine.program("/opt/x/bin/mpiexec", said)
    probed = seen(machine, "/opt/x")
    assert probed.site.mpi is not None
    assert probed.site.mpi.version is None
    assert "several MPIs do" in probed.unknown["mpi.version"]


@pytest.mark.parametrize(
    ("said", "code", "told"),
    [
        (None, 0, "no fi_info on PATH"),
        ("\x01 what is this", 0, "/usr/bin/fi_info, which fails or reports no version"),
        ("libfabric: 1.22.0", 3, "/usr/bin/fi_info, which fails or reports no version"),
        ("fi_info: 1.22.0\nlibfabric: 1.22.0", 0, "libfabric 1.22.0 ()"),
    ],
)
def test_why_libfabric_is_not_told(machine: Machine, said: str | None, code: int, told: str) -> None:
    if said is not None:
        machine.program("/usr/bin/fi_info", said, code=code)
    assert seen(machine).remarks["fabric"] == [f"Here: {told}, no ucx_info on PATH."]


def test_module_systems(machine: Machine) -> None:
    machine.variables["MODULESHOME"] = "/usr/share/modules"
    assert seen(machine).site.modules == "environment-modules"
    machine.variables["LMOD_CMD"] = "/usr/share/lmod/lmod/libexec/lmod"
    assert seen(machine).site.modules == "lmod"


def test_a_draft_is_the_same_twice_and_loads_back(machine: Machine) -> None:
    machine.file("/proc/driver/nvidia/version", NVIDIA)
    machine.mpi("/opt/x", "libmpi.so.40", OPENMPI, "libopen-pal.so.80")
    probed = seen(machine, "/opt/x")
    text = probed.text()
    assert text == seen(machine, "/opt/x").text()
    assert load(Site, text.encode(), Path("here.yaml")).value == probed.site
    assert [line for line in text.splitlines() if len(line) > 100] == []


def test_programs_that_say_odd_things_are_no_traceback(machine: Machine) -> None:
    machine.variables["MPI_HOME"] = "//opt/./x/../x/"
    machine.mpi("/opt/x", "libmpi.so.40", OPENMPI)
    machine.program("/opt/x/bin/ompi_info", "Open MPI v5.0.10..rc1.")
    machine.program("/usr/bin/srun", "slurm 24.05.1-0rc1.\nMPI plugin types are...\n\tnone\n\t../x\n")
    machine.program("/usr/bin/scontrol", "MpiDefault = (null)")
    machine.program("/usr/bin/apptainer", "apptainer version 1.4.5-1.el9..")
    machine.program("/usr/bin/fi_info", "libfabric: 1.22.0amzn4.0")
    machine.file("/sys/class/cxi/cxi0/x")
    machine.file("/sys/module/amdgpu/version", "not a version\n")
    site = seen(machine).site
    assert site.mpi is not None
    assert site.scheduler is not None
    assert site.fabric is not None
    assert (site.mpi.version, site.mpi.libraries) == ("5.0.10", ("/opt/x/lib/libmpi.so.40",))
    assert (site.scheduler.version, site.scheduler.default_mpi_type) == ("24.05.1", None)
    assert (site.runtimes[0].version, site.fabric.libfabric) == ("1.4.5", "1.22.0amzn4.0")
