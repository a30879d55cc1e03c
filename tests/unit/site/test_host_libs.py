"""The libraries that an image takes from a host, and the rules that refuse them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from envbuild.rules.facts import facts_from
from envbuild.rules.from_site import stack_facts
from envbuild.rules.rulebook import judge, judge_by
from envbuild.site.host_libs import (
    HOST_COMMAND_DIR,
    HOST_LIB_DIR,
    HOST_PYTHON_DIR,
    HostLibraryPlan,
    ImageLibraries,
    plan_host_libraries,
)
from envbuild.spec.recipe import Supplied
from envbuild.spec.site import Site, SiteFabric, SiteMpi, SiteSupply
from tests.support.elves import Elf

MPICH = ("MPI_Init", "MPI_UNWEIGHTED", "MPI_Abi_get_version")
OPEN_MPI = ("MPI_Init", "ompi_mpi_comm_world")
STANDARD = ("MPI_Init", "MPI_Abi_get_version")
LIBC = {"libc.so.6": ("GLIBC_2.17",)}


class Host:
    """A host's directories with made-up libraries."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def add(self, path: str, **fields: Any) -> str:
        target = self.root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        fields.setdefault("soname", target.name)
        target.write_bytes(Elf(**fields).bytes())
        return str(target)

    def site(self, *libraries: str, fabric: SiteFabric | None = None, **fields: Any) -> Site:
        fields.setdefault("implementation", "cray-mpich")
        fields.setdefault("search", (str(self.root / "lib"),))
        return Site(name="here", mpi=SiteMpi(libraries=libraries, **fields), fabric=fabric)

    def fabric(self, *libraries: str, **fields: Any) -> Site:
        search = (str(self.root / "lib"),)
        return Site(name="here", fabric=SiteFabric(name="fast", libraries=libraries, search=search, **fields))


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


def image(**changes: Any) -> ImageLibraries:
    fields: dict[str, Any] = {
        "abis": ("mpich",),
        "library_path": "/opt/fabric/lib:/opt/mpi/lib:/.singularity.d/libs",
    }
    return ImageLibraries(**(fields | changes))


def plan_mpi(site: Site, side: ImageLibraries) -> HostLibraryPlan:
    return plan_host_libraries(site, side, mpi=True)


def plan_fabric(site: Site, side: ImageLibraries) -> HostLibraryPlan:
    return plan_host_libraries(site, side, fabric=True)


def refused(plan: HostLibraryPlan, site: Site, **image_facts: Any) -> dict[str, str]:
    """Return the rules that refuse a plan for an image on glibc 2.36 → the reason and the facts."""
    needed = {"mpi.needed_abis": plan.abis, "mpi.abis": plan.abis, "mpi.needed_sonames": ()}
    known = {"glibc.image": "2.36", "mpi.rpath_files": (), **(needed if plan.abis else {}), **image_facts}
    facts = stack_facts(
        facts_from(known, "image"),
        site,
        host_mpi=bool(plan.abis),
        host_fabric=site.fabric is not None,
        host=plan.facts,
    )
    return {
        verdict.rule: "\n".join((verdict.reason, *verdict.fact_lines))
        for verdict in judge(facts)
        if verdict.outcome == "incompatible"
    }


def test_a_good_host_is_refused_by_no_rule(host: Host) -> None:
    mpi = host.add("mpi/libmpi.so.12", defined=MPICH, versions_needed=LIBC)
    site = host.site(mpi)
    plan = plan_mpi(site, image())
    assert refused(plan, site) == {}
    known = {path: plan.facts[path].value for path in ("host_mpi.abis", "host_mpi.sonames", "glibc.injected")}
    assert known == {
        "host_mpi.abis": ("mpich",),
        "host_mpi.sonames": ("libmpi.so.12",),
        "glibc.injected": "2.17",
    }
    assert plan.facts["glibc.injected"].source == f"host:{mpi}"


def test_a_pipe_in_the_place_of_a_library_is_refused(host: Host) -> None:
    pipe = host.root / "libmpi.so.12"
    os.mkfifo(pipe)
    site = host.site(str(pipe))
    assert str(pipe) in refused(plan_mpi(site, image()), site)["HOST.binds-exist"]


def test_the_library_and_all_that_it_needs(host: Host) -> None:
    mpi = host.add(
        "mpi/libmpi.so.12",
        needed=("libfabric.so.1", "libc.so.6", "libgcc_s.so.1"),
        defined=MPICH,
        versions_needed=LIBC,
    )
    fabric = host.add("lib/libfabric.so.1", needed=("libcxi.so.1", "libm.so.6"))
    cxi = host.add("lib/libcxi.so.1", needed=("libjson-c.so.5",))
    json = host.add("lib/libjson-c.so.5")
    for name in ("libc.so.6", "libm.so.6", "libgcc_s.so.1"):
        host.add(f"lib/{name}")
    site = host.site(mpi, version="9.0", environment={"MPICH_GPU_SUPPORT_ENABLED": "0"})
    plan = plan_mpi(site, image())
    assert plan.files == {
        "libcxi.so.1": cxi,
        "libfabric.so.1": fabric,
        "libjson-c.so.5": json,
        "libmpi.so.12": mpi,
    }
    assert plan.mpi_files == ("libmpi.so.12",)
    assert plan.links == {"libmpi.so": "libmpi.so.12"}
    assert plan.environment == {
        "LD_LIBRARY_PATH": f"{HOST_LIB_DIR}:/opt/fabric/lib:/opt/mpi/lib:/.singularity.d/libs",
        "MPICH_GPU_SUPPORT_ENABLED": "0",
    }


def test_the_c_and_cxx_libraries_stay_the_images_even_if_a_site_names_them(host: Host) -> None:
    mpi = host.add("mpi/libmpi.so.12", defined=MPICH)
    named = [host.add(f"lib/{name}") for name in ("libc.so.6", "libstdc++.so.6", "ld-linux-x86-64.so.2")]
    disguised = host.add("lib/libown.so", soname="libm.so.6")
    plan = plan_mpi(host.site(mpi, *named, disguised), image())
    assert plan.files == {"libmpi.so.12": mpi, "libown.so": disguised}


def test_every_file_is_bound_for_itself_and_nothing_can_be_written(host: Host, tmp_path: Path) -> None:
    mpi = host.add("mpi/libmpi.so.12", defined=MPICH)
    (host.root / "tuning").mkdir()
    plan = plan_mpi(host.site(mpi, companions=(str(host.root / "tuning"),)), image())
    stage = tmp_path / "stage"
    for _ in range(2):
        plan.fill_stage(stage)
    assert [(str(bind.source), bind.target, bind.writable) for bind in plan.binds(stage)] == [
        (str(stage), "/media", False),
        (mpi, f"{HOST_LIB_DIR}/libmpi.so.12", False),
        (str(host.root / "tuning"), str(host.root / "tuning"), False),
    ]
    placeholder = stage / "envbuild/libmpi.so.12"
    assert placeholder.read_bytes() == b""
    assert (placeholder.parent / "libmpi.so").readlink() == Path("libmpi.so.12")


def test_an_mpi_of_another_abi_beside_it_stays_outside(host: Host) -> None:
    mpich = host.add("mpi/libmpi.so.12", defined=MPICH)
    standard = host.add("mpi/libmpi_abi.so.1", defined=STANDARD)
    helper = host.add("mpi/libmpifort.so.12")
    site = host.site(mpich, standard, helper)
    assert sorted(plan_mpi(site, image()).files) == ["libmpi.so.12", "libmpifort.so.12"]
    assert plan_mpi(site, image(abis=("standard",))).mpi_files == ("libmpi_abi.so.1",)
    assert plan_mpi(site, image(abis=("standard", "mpich"))).mpi_files == ("libmpi.so.12", "libmpi_abi.so.1")


def test_a_name_of_the_vendor_s_own_is_there_under_both(host: Host) -> None:
    mpi = host.add("mpi/libmpi.so.12", soname="libmpi_gnu_123.so.12", defined=MPICH)
    assert sorted(plan_mpi(host.site(mpi), image()).files) == ["libmpi.so.12", "libmpi_gnu_123.so.12"]


def test_what_a_companion_opens_by_itself_brings_its_needs_where_the_host_has_them(host: Host) -> None:
    mpi = host.add("mpi/libmpi.so.12", defined=MPICH)
    host.add("prov/libtcp-fi.so", needed=("libatomic.so.1",))
    host.add("prov/libverbs-fi.so", needed=("libibverbs.so.1", "libatomic.so.2"))
    atomic = host.add("lib/libatomic.so.1")
    host.add("lib/libatomic.so.2")
    plan = plan_mpi(host.site(mpi, companions=(str(host.root / "prov"),)), image())
    assert plan.files == {"libatomic.so.1": atomic, "libmpi.so.12": mpi}


@pytest.mark.parametrize(
    ("symbols", "abi", "rule"),
    [
        (MPICH, "openmpi-40", "MPI.abi-family"),
        (MPICH, "standard", "MPI.abi-family"),
        # The same name, and another ABI by the symbols.
        (OPEN_MPI, "mpich", "MPI.openmpi-1.10-is-not-mpich"),
        (MPICH, "openmpi-12", "MPI.openmpi-1.10-is-not-mpich"),
    ],
)
def test_another_abi_is_refused_by_the_symbols(
    host: Host, symbols: tuple[str, ...], abi: str, rule: str
) -> None:
    site = host.site(host.add("mpi/libmpi.so.12", defined=symbols))
    reasons = refused(plan_mpi(site, image(abis=(abi,))), site)
    assert list(reasons) == [rule]
    assert "(host)" in reasons[rule]


def test_a_need_that_nothing_brings_is_refused(host: Host) -> None:
    mpi = host.add("mpi/libmpi.so.12", needed=("libfabric.so.1",), defined=MPICH)
    fabric = host.add("lib/libfabric.so.1", needed=("libnowhere.so.5",))
    site = host.site(mpi)
    reasons = refused(plan_mpi(site, image()), site)
    assert list(reasons) == ["HOST.injected-closure"]
    assert f"libnowhere.so.5 (for {fabric})" in reasons["HOST.injected-closure"]


def test_absent_files_of_the_site_are_refused_all_at_once(host: Host) -> None:
    mpi = host.add("mpi/libmpi.so.12", defined=MPICH)
    gone = (f"{host.root}/mpi/libmpifort.so.12", f"{host.root}/gone")
    site = host.site(mpi, gone[0], companions=(gone[1],))
    assert all(path in refused(plan_mpi(site, image()), site)["HOST.binds-exist"] for path in gone)


def test_a_newer_c_library_is_refused(host: Host) -> None:
    mpi = host.add("mpi/libmpi.so.12", needed=("libfabric.so.1",), defined=MPICH)
    fabric = host.add("lib/libfabric.so.1", versions_needed={"libc.so.6": ("GLIBC_2.2.5", "GLIBC_2.38")})
    site = host.site(mpi)
    plan = plan_mpi(site, image())
    reason = refused(plan, site)["GLIBC.host-library-ceiling"]
    assert reason.startswith("the host's libraries need glibc 2.38, and the image has glibc 2.36\n")
    assert f"glibc.injected = 2.38 (host:{fabric})" in reason
    assert refused(plan, site, **{"glibc.image": "2.38"}) == {}
    assert plan.files["libfabric.so.1"] == fabric


def test_a_newer_cxx_library_is_refused(host: Host) -> None:
    needed = ("GLIBCXX_3.4.32", "CXXABI_1.3.15")
    mpi = host.add(
        "mpi/libmpi.so.12",
        needed=("libstdc++.so.6",),
        defined=MPICH,
        versions_needed={"libstdc++.so.6": needed},
    )
    host.add("lib/libstdc++.so.6")
    site = host.site(mpi)
    old = plan_mpi(site, image(provides={"libstdc++.so.6": ("GLIBCXX_3.4.30", "CXXABI_1.3.13")}))
    reasons = refused(old, site, **{"libstdcxx.image": "3.4.30"})
    assert sorted(reasons) == ["GLIBCXX.host-library-ceiling", "HOST.injected-closure"]
    assert f"CXXABI_1.3.15 of libstdc++.so.6 (for {mpi})" in reasons["HOST.injected-closure"]
    new = plan_mpi(site, image(provides={"libstdc++.so.6": needed}))
    assert refused(new, site, **{"libstdcxx.image": "3.4.32"}) == {}
    assert list(new.files) == ["libmpi.so.12"]


@pytest.mark.parametrize("linked", [True, False])
def test_mpi_on_gpu_memory_needs_crays_transport_library(host: Host, linked: bool) -> None:
    gtl = host.add("lib/libmpi_gtl_hsa.so")
    needed = (Path(gtl).name,) if linked else ()
    site = host.site(
        host.add("mpi/libmpi.so.12", defined=MPICH, needed=needed),
        gtl,
        environment={"MPICH_GPU_SUPPORT_ENABLED": "1"},
    )
    plan = plan_mpi(site, image())
    assert list(refused(plan, site, **{"mpi.gtl": False})) == ([] if linked else ["MPI.gtl-linked"])


def test_refused_where_nothing_needs_an_mpi(host: Host) -> None:
    site = host.site(host.add("mpi/libmpi.so.12", defined=MPICH))
    plan = plan_mpi(site, image(abis=()))
    facts = stack_facts({}, site, host_mpi=True, host=plan.facts)
    verdict = judge_by(facts, "MPI.abi-family")
    assert verdict is not None
    assert verdict.outcome == "incompatible"
    assert verdict.reason.startswith("nothing in the image needs an MPI of a known ABI, and the host's")


@pytest.mark.parametrize(
    ("site", "problem"),
    [
        (Site(name="here"), "the site `here` says nothing of its host's MPI"),
        (
            Site(name="here", mpi=SiteMpi(implementation="mpich")),
            "the site `here` names no libraries of its host's MPI",
        ),
    ],
)
def test_refused_where_the_site_says_nothing(site: Site, problem: str) -> None:
    (error,) = plan_mpi(site, image()).errors
    assert error.problem == problem
    assert error.hint


def test_a_library_of_the_distribution_is_the_image_s_where_it_is_new_enough(host: Host) -> None:
    # zlib: dpkg itself needs it, so every Debian has it.
    mpi = host.add(
        "mpi/libmpi.so.12",
        needed=("libz.so.1",),
        defined=MPICH,
        versions_needed={"libz.so.1": ("ZLIB_1.2.9",)},
    )
    site = host.site(mpi)
    assert "libz.so.1" in plan_mpi(site, image()).files
    assert "libz.so.1" in plan_mpi(site, image(provides={"libz.so.1": ("ZLIB_1.2.0",)})).files
    own = image(provides={"libz.so.1": ("ZLIB_1.2.0", "ZLIB_1.2.9")})
    assert list(plan_mpi(site, own).files) == ["libmpi.so.12"]


def test_a_fabrics_libraries_their_closure_the_plug_in_devices_and_settings(host: Host) -> None:
    fabric = host.add("lib/libfabric.so.1", needed=("libcxi.so.1",))
    cxi = host.add("lib/libcxi.so.1")
    plugin = host.add("lib/libnccl-net.so", needed=("libfabric.so.1", "libcudart.so.12"))
    host.add("lib/libcudart.so.12")
    device = host.root / "cxi0"
    device.touch()
    here = host.fabric(
        fabric,
        nccl_plugin=plugin,
        devices=(str(device), str(host.root / "cxi1")),
        environment={"FI_PROVIDER": "cxi", "NCCL_NET": "AWS Libfabric"},
    )
    plan = plan_fabric(here, image(library_path="/opt/mpi/lib"))
    assert {name: plan.files[name] for name in ("libcxi.so.1", "libfabric.so.1", "libnccl-net.so")} == {
        "libcxi.so.1": cxi,
        "libfabric.so.1": fabric,
        "libnccl-net.so": plugin,
    }
    assert plan.environment == {
        "FI_PROVIDER": "cxi",
        "NCCL_NET": "AWS Libfabric",
        "LD_LIBRARY_PATH": f"{HOST_LIB_DIR}:/opt/mpi/lib",
    }
    assert plan.devices == (str(device),)
    binds = [(str(bind.source), bind.target, bind.writable) for bind in plan.binds(host.root / "stage")]
    assert binds[-1] == (str(device), str(device), True)
    assert set(plan.identities) == {"lent"}
    # The plug-in is linked for CUDA 12.
    assert list(refused(plan, here, **{"cuda.majors": ("13",)})) == ["FABRIC.plugin-cuda-major"]
    assert refused(plan, here, **{"cuda.majors": ("12",)}) == {}


def test_a_provider_alone_makes_a_job_fail_closed(host: Host) -> None:
    """If a file names no `environment`, FI_PROVIDER and what makes each MPI heed it follow from cxi."""
    plan = plan_fabric(host.fabric(provider="cxi"), image())
    assert plan.environment["FI_PROVIDER"] == "cxi"
    assert plan.environment["MPIR_CVAR_CH4_NETMOD"] == "ofi"
    other = plan_fabric(host.fabric(provider="cxi", environment={"FI_PROVIDER": "lnx"}), image())
    assert other.environment["FI_PROVIDER"] == "lnx"


def test_settings_alone_are_something(host: Host) -> None:
    plan = plan_fabric(host.fabric(environment={"NCCL_NET": "IB"}), image())
    assert (plan.files, plan.environment["NCCL_NET"], plan.identities) == ({}, "IB", {})
    (error,) = plan_fabric(host.fabric(), image()).errors
    assert error.problem == "the site `here` has no libraries or settings of its fabric"
    assert error.hint


def test_fabric_libraries_that_do_not_fit_are_refused_all_at_once(host: Host) -> None:
    fabric = host.add(
        "lib/libfabric.so.1",
        needed=("libnowhere.so.5", "libc.so.6"),
        versions_needed={"libc.so.6": ("GLIBC_2.39",)},
    )
    host.add("lib/libc.so.6")
    site = host.fabric(fabric, "/nowhere/libcxi.so.1")
    assert list(refused(plan_fabric(site, image()), site)) == [
        "GLIBC.host-library-ceiling",
        "HOST.binds-exist",
        "HOST.injected-closure",
    ]


def test_if_mpi_and_fabric_differ_the_mpis_count(host: Host) -> None:
    mpi = host.add("mpi/libmpi.so.12", needed=("libfabric.so.1",), defined=MPICH)
    own = host.add("lib/libfabric.so.1")
    other = host.add("other/libfabric.so.1")
    cxi = host.add("other/libcxi.so.1")
    fabric = SiteFabric(name="fast", libraries=(other, cxi), environment={"A": "fabric", "B": "fabric"})
    site = host.site(mpi, fabric=fabric, environment={"A": "mpi"})
    plan = plan_host_libraries(site, image(), mpi=True, fabric=True)
    assert plan.files == {"libcxi.so.1": cxi, "libfabric.so.1": own, "libmpi.so.12": mpi}
    assert (plan.environment["A"], plan.environment["B"]) == ("mpi", "fabric")


FAST = Supplied(
    libraries=("libfast.so.1",), python=("fast",), commands=("fast-info",), variables=("FAST_HOME",)
)


def supplied_image(needed: Supplied = FAST, **changes: Any) -> ImageLibraries:
    fields = {"abis": (), "architecture": "amd64", "python": "3.11", "path": "/usr/bin"}
    return image(**fields, supplied={"fast": needed}, **changes)


def supply(host: Host, *libraries: str, **fields: Any) -> Site:
    """Return a site that supplies a package and a command beside its libraries."""
    (host.root / "python/fast").mkdir(parents=True, exist_ok=True)
    command = host.root / "bin/fast-info"
    command.parent.mkdir(exist_ok=True)
    command.write_text("#!/bin/sh\n")
    entry: dict[str, Any] = {
        "libraries": libraries,
        "search": (str(host.root / "deps"),),
        "python": (str(host.root / "python/fast"),),
        "commands": (str(command),),
        "environment": {"FAST_HOME": "/fast"},
    }
    return Site(name="here", supplies={"fast": SiteSupply(**{**entry, **fields})})


def test_software_of_a_site_is_bound_with_all_that_it_needs(host: Host, tmp_path: Path) -> None:
    fast = host.add("lib/libfast.so.1", needed=("libdep.so.1", "libc.so.6"), versions_needed=LIBC)
    dep = host.add("deps/libdep.so.1")
    site = supply(host, fast)
    plan = plan_host_libraries(site, supplied_image())
    assert refused(plan, site) == {}
    assert plan.files == {"libdep.so.1": dep, "libfast.so.1": fast}
    assert plan.supplied == {"fast": ("libfast.so.1",)}
    assert plan.environment == {
        "FAST_HOME": "/fast",
        "LD_LIBRARY_PATH": f"{HOST_LIB_DIR}:/opt/fabric/lib:/opt/mpi/lib:/.singularity.d/libs",
        "PATH": f"{HOST_COMMAND_DIR}:/usr/bin",
        "PYTHONPATH": HOST_PYTHON_DIR,
    }
    stage = tmp_path / "stage"
    plan.fill_stage(stage)
    targets = {bind.target: bind for bind in plan.binds(stage)}
    assert targets.keys() == {
        "/media",
        f"{HOST_LIB_DIR}/libdep.so.1",
        f"{HOST_LIB_DIR}/libfast.so.1",
        f"{HOST_PYTHON_DIR}/fast",
        f"{HOST_COMMAND_DIR}/fast-info",
    }
    assert not any(bind.writable for bind in targets.values())
    assert (stage / "envbuild-python/fast").is_dir()
    assert (stage / "envbuild-bin/fast-info").is_file()


def test_a_directory_of_libraries_brings_those_that_are_named_and_no_c_library(host: Host) -> None:
    """As CSCS's network stacks are: 40 libraries, and libc and libstdc++ among them."""
    fast = host.add("lib/libfast.so.1", needed=("libstdc++.so.6", "libbeside.so.1", "libc.so.6"))
    beside = host.add("lib/libbeside.so.1")
    for name in ("libc.so.6", "libstdc++.so.6", "libpython3.11.so.1.0", "ld-linux-x86-64.so.2"):
        host.add(f"lib/{name}")
    plan = plan_host_libraries(supply(host, str(host.root / "lib")), supplied_image())
    assert plan.files == {"libbeside.so.1": beside, "libfast.so.1": fast}


def test_software_of_a_site_takes_the_mpi_of_the_image(host: Host) -> None:
    fast = host.add("lib/libfast.so.1", needed=("libmpi.so.12",))
    mpi = host.add("deps/libmpi.so.12", defined=MPICH)
    site = supply(host, fast)
    assert plan_host_libraries(site, supplied_image()).files["libmpi.so.12"] == mpi
    own = supplied_image(provides={"libmpi.so.12": ()})
    assert plan_host_libraries(site, own).files == {"libfast.so.1": fast}


@pytest.mark.parametrize(
    ("fields", "rule", "reason"),
    [
        ({"versions_needed": {"libc.so.6": ("GLIBC_2.99",)}}, "GLIBC.host-library-ceiling", "glibc 2.99"),
        ({"needed": ("libgone.so.1",)}, "HOST.injected-closure", "libgone.so.1"),
        ({"machine": "arm64"}, "HOST.injected-abi", "for arm64, and the image is for amd64"),
        ({"soname": "libother.so.1", "name": "libother.so.1"}, "HOST.supplies", "libfast.so.1"),
    ],
)
def test_software_that_does_not_fit_an_image_is_refused(
    host: Host, fields: dict[str, Any], rule: str, reason: str
) -> None:
    name = fields.pop("name", "libfast.so.1")
    site = supply(host, host.add(f"lib/{name}", **fields))
    verdicts = refused(plan_host_libraries(site, supplied_image()), site, **{"asked.from_site": ("fast",)})
    assert verdicts.keys() == {rule}
    assert reason in verdicts[rule]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"commands": ()}, "fast-info (`supplies.fast.commands`)"),
        ({"python": ()}, "fast (`supplies.fast.python`)"),
        ({"environment": {}}, "FAST_HOME (`supplies.fast.environment`)"),
    ],
)
def test_each_part_that_a_site_leaves_out_is_named(host: Host, changes: dict[str, Any], reason: str) -> None:
    site = supply(host, host.add("lib/libfast.so.1"), **changes)
    verdicts = refused(plan_host_libraries(site, supplied_image()), site, **{"asked.from_site": ("fast",)})
    assert verdicts.keys() == {"HOST.supplies"}
    assert reason in verdicts["HOST.supplies"]


def test_a_site_without_the_software_says_where_to_name_it() -> None:
    plan = plan_host_libraries(Site(name="bare"), supplied_image())
    (error,) = plan.errors
    assert error.problem == "the image needs `fast`, and the site `bare` does not supply it"
    assert error.hint == (
        "name them in its file: `supplies: {fast: {libraries: [/…/libfast.so.1], python: [/…/fast],"
        " commands: [/…/fast-info]}}`"
    )


def test_extension_modules_are_for_the_python_of_the_image(host: Host) -> None:
    site = supply(host, host.add("lib/libfast.so.1"))
    good = ("_a.cpython-311-x86_64-linux-gnu.so", "_b.abi3.so", "_c.so")
    for name in good:
        host.add(f"python/fast/{name}", soname="")
    assert refused(plan_host_libraries(site, supplied_image()), site) == {}
    wrong = host.add("python/fast/_d.cpython-312-x86_64-linux-gnu.so", soname="")
    verdicts = refused(plan_host_libraries(site, supplied_image()), site)
    assert f"{wrong}: for cp312, and the image has cp311" in verdicts["HOST.injected-abi"]


def test_a_package_that_would_hide_the_image_s_own_is_refused(host: Host) -> None:
    site = supply(host, host.add("lib/libfast.so.1"))
    plan = plan_host_libraries(site, supplied_image(modules=frozenset({"fast"})))
    assert "the image itself has the module `fast`" in refused(plan, site)["HOST.injected-abi"]


def test_other_files_of_the_site_are_another_host_for_verdicts(host: Host) -> None:
    site = supply(host, host.add("lib/libfast.so.1"))
    before = plan_host_libraries(site, supplied_image()).identities
    assert before.keys() == {"site"}
    (host.root / "python/fast/__init__.py").write_text("x = 1\n")
    assert plan_host_libraries(site, supplied_image()).identities != before


@pytest.mark.parametrize(
    ("keys", "problem"),
    [
        ({"libraries": ["/opt/x/libc.so.6"]}, "`libc.so.6` is always the image's own"),
        ({"libraries": ["/opt/x/libpthread.so.0"]}, "`libpthread.so.0` is always the image's own"),
        ({"libraries": ["/lib/x86_64-linux-gnu"]}, "is a directory of the system"),
        ({"libraries": ["/usr/lib64"]}, "is a directory of the system"),
        ({"companions": ["/usr"]}, "is a directory of the system"),
        ({"python": ["/lib64"]}, "is a directory of the system"),
    ],
)
def test_a_site_file_cannot_supply_the_system(keys: dict[str, Any], problem: str) -> None:
    with pytest.raises(ValidationError, match=problem):
        Site.model_validate({"name": "here", "supplies": {"fast": keys}}, strict=False)


def test_a_partition_has_its_own_software() -> None:
    other = {"gpu": {"supplies": {"fast": {"libraries": ["/arm/libfast.so.1"]}}}}
    keys = {"name": "s", "supplies": {"fast": {"libraries": ["/x86/libfast.so.1"]}}, "partitions": other}
    site = Site.model_validate(keys, strict=False)
    assert site.partition("gpu").supplies["fast"].libraries == ("/arm/libfast.so.1",)
