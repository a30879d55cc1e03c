"""What is taken from a host, and what is refused before anything starts."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from envbuild.errors import RequestError
from envbuild.site.inject import PRIVATE, lent_names, plan_mpi
from envbuild.site.lent import ImageSide
from envbuild.spec.site import Site, SiteMpi
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

    def site(self, *libraries: str, **fields: Any) -> Site:
        fields.setdefault("implementation", "cray-mpich")
        fields.setdefault("search", (str(self.root / "lib"),))
        return Site(name="here", mpi=SiteMpi(libraries=libraries, **fields))


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


def test_a_pipe_in_the_place_of_a_library_stops_nobody(host: Host) -> None:
    pipe = host.root / "libmpi.so.12"
    os.mkfifo(pipe)
    with pytest.raises(RequestError, match="is not there or is no library"):
        plan_mpi(host.site(str(pipe)), image())


def image(**changes: Any) -> ImageSide:
    fields: dict[str, Any] = {
        "label": "demo/1",
        "family": "mpich",
        "abis": ("mpich",),
        "glibc": "2.36",
        "library_path": "/opt/fabric/lib:/opt/mpi/lib:/.singularity.d/libs",
    }
    return ImageSide(**(fields | changes))


def refusal(site: Site, side: ImageSide) -> str:
    with pytest.raises(RequestError) as caught:
        plan_mpi(site, side)
    assert caught.value.hint
    return caught.value.problem


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
    assert plan.mpi == ("libmpi.so.12",)
    assert plan.links == {"libmpi.so": "libmpi.so.12"}
    assert plan.environment == {
        "LD_LIBRARY_PATH": f"{PRIVATE}:/opt/fabric/lib:/opt/mpi/lib:/.singularity.d/libs",
        "MPICH_GPU_SUPPORT_ENABLED": "0",
    }
    assert {"libcxi.so.1", "libjson-c.so.5", "libc.so.6"} <= set(lent_names(site))


def test_every_file_is_bound_for_itself_and_nothing_can_be_written(host: Host, tmp_path: Path) -> None:
    mpi = host.add("mpi/libmpi.so.12", defined=MPICH)
    (host.root / "tuning").mkdir()
    plan = plan_mpi(host.site(mpi, companions=(str(host.root / "tuning"),)), image())
    stage = tmp_path / "stage"
    for _ in range(2):
        plan.fill_stage(stage)
    assert [(str(bind.source), bind.target, bind.writable) for bind in plan.binds(stage)] == [
        (str(stage), "/media", False),
        (mpi, f"{PRIVATE}/libmpi.so.12", False),
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
    assert plan_mpi(site, image(abis=("standard",))).mpi == ("libmpi_abi.so.1",)
    assert plan_mpi(site, image(abis=("standard", "mpich"))).mpi == ("libmpi.so.12", "libmpi_abi.so.1")


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


def test_refused_for_another_family(host: Host) -> None:
    site = host.site(host.add("mpi/libmpi.so.12", defined=MPICH))
    problem = refusal(site, image(family="openmpi", abis=("openmpi-40",)))
    assert problem == (
        "MPI.abi-family: `demo/1` needs Open MPI 3 to 5 (libmpi.so.40), and cray-mpich of the site `here` "
        "offers the MPICH ABI (libmpi.so.12)"
    )


def test_refused_where_the_host_lacks_the_standard_abi(host: Host) -> None:
    site = host.site(host.add("mpi/libmpi.so.12", defined=MPICH))
    assert refusal(site, image(abis=("standard",))).startswith(
        "MPI.abi-family: `demo/1` needs the MPI standard's ABI (libmpi_abi.so.1)"
    )


@pytest.mark.parametrize(
    ("symbols", "abi"), [(OPEN_MPI, "mpich"), (MPICH, "openmpi-12")], ids=["on 1.10", "on MPICH"]
)
def test_open_mpi_1_10_is_told_from_mpich_by_its_symbols(
    host: Host, symbols: tuple[str, ...], abi: str
) -> None:
    site = host.site(host.add("mpi/libmpi.so.12", defined=symbols))
    problem = refusal(site, image(abis=(abi,)))
    assert problem.startswith("MPI.openmpi-1.10-is-not-mpich: `demo/1` needs libmpi.so.12 of ")
    assert str(host.root / "mpi/libmpi.so.12") in problem


def test_refused_where_a_need_is_nowhere(host: Host) -> None:
    mpi = host.add("mpi/libmpi.so.12", needed=("libfabric.so.1",), defined=MPICH)
    fabric = host.add("lib/libfabric.so.1", needed=("libnowhere.so.5",))
    assert refusal(host.site(mpi), image()) == (
        f"HOST.injected-closure: {fabric} needs libnowhere.so.5, which is nowhere on this host"
    )


def test_refused_where_a_file_of_the_site_is_gone(host: Host) -> None:
    mpi = host.add("mpi/libmpi.so.12", defined=MPICH)
    gone = f"{host.root}/mpi/libmpifort.so.12"
    assert f"HOST.binds-exist: {gone}, which the site names" in refusal(host.site(mpi, gone), image())
    assert "the companion" in refusal(host.site(mpi, companions=(f"{host.root}/gone",)), image())


def test_refused_for_a_newer_c_library(host: Host) -> None:
    mpi = host.add("mpi/libmpi.so.12", needed=("libfabric.so.1",), defined=MPICH)
    fabric = host.add("lib/libfabric.so.1", versions_needed={"libc.so.6": ("GLIBC_2.2.5", "GLIBC_2.38")})
    assert refusal(host.site(mpi), image()) == (
        f"GLIBC.host-library-ceiling: {fabric} of the host needs GLIBC_2.38 of libc.so.6, and `demo/1` has "
        "glibc 2.36"
    )
    assert plan_mpi(host.site(mpi), image(glibc="2.38")).files["libfabric.so.1"] == fabric


def test_refused_for_a_newer_cxx_library(host: Host) -> None:
    mpi = host.add(
        "mpi/libmpi.so.12",
        needed=("libstdc++.so.6",),
        defined=MPICH,
        versions_needed={"libstdc++.so.6": ("GLIBCXX_3.4.32",)},
    )
    host.add("lib/libstdc++.so.6")
    old = image(provides={"libstdc++.so.6": ("GLIBCXX_3.4.30",)})
    assert refusal(host.site(mpi), old).startswith(f"GLIBCXX.host-library-ceiling: {mpi} of the host needs")
    new = image(provides={"libstdc++.so.6": ("GLIBCXX_3.4.30", "GLIBCXX_3.4.32")})
    assert list(plan_mpi(host.site(mpi), new).files) == ["libmpi.so.12"]


def test_refused_where_an_rpath_would_find_the_image_s_own(host: Host) -> None:
    site = host.site(host.add("mpi/libmpi.so.12", defined=MPICH))
    problem = refusal(site, image(bound_hard=("/opt/env/lib/one.so",)))
    assert problem.startswith("MPI.rpath-defeats-swap: /opt/env/lib/one.so in `demo/1`")


def test_refused_where_nothing_asks_for_an_mpi(host: Host) -> None:
    site = host.site(host.add("mpi/libmpi.so.12", defined=MPICH))
    assert refusal(site, image(abis=())).startswith("MPI.abi-family: nothing in `demo/1` asks")


def test_refused_where_the_site_says_nothing() -> None:
    assert refusal(Site(name="here"), image()) == "the site `here` says nothing of its host's MPI"
    silent = Site(name="here", mpi=SiteMpi(implementation="mpich"))
    assert refusal(silent, image()) == "the site `here` names no libraries of its host's MPI"


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
