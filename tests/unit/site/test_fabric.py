"""What is taken of a host's fabric."""

from __future__ import annotations

from pathlib import Path

import pytest

from envbuild.errors import RequestError
from envbuild.site.fabric import fabric_names, plan_fabric
from envbuild.site.inject import PRIVATE
from envbuild.site.lent import ImageSide
from envbuild.spec.site import Site, SiteFabric
from tests.support.elves import Elf

IMAGE = ImageSide(label="demo/1", family="mpich", abis=("mpich",), glibc="2.36", library_path="/opt/mpi/lib")


def library(root: Path, name: str, *needed: str, **fields: object) -> str:
    path = root / name
    path.write_bytes(Elf(soname=name, needed=needed, **fields).bytes())  # type: ignore[arg-type]
    return str(path)


def site(root: Path, **fields: object) -> Site:
    return Site(name="here", fabric=SiteFabric(name="slingshot-11", search=(str(root),), **fields))  # type: ignore[arg-type]


def test_libraries_their_closure_the_plug_in_devices_and_settings(tmp_path: Path) -> None:
    fabric = library(tmp_path, "libfabric.so.1", "libcxi.so.1")
    cxi = library(tmp_path, "libcxi.so.1")
    plugin = library(tmp_path, "libnccl-net.so", "libfabric.so.1")
    device = tmp_path / "cxi0"
    device.touch()
    here = site(
        tmp_path,
        libraries=(fabric,),
        nccl_plugin=plugin,
        devices=(str(device), str(tmp_path / "cxi1")),
        environment={"FI_PROVIDER": "cxi", "NCCL_NET": "AWS Libfabric"},
    )
    plan = plan_fabric(here, IMAGE)
    assert plan.files == {"libcxi.so.1": cxi, "libfabric.so.1": fabric, "libnccl-net.so": plugin}
    assert plan.environment == {
        "FI_PROVIDER": "cxi",
        "NCCL_NET": "AWS Libfabric",
        "LD_LIBRARY_PATH": f"{PRIVATE}:/opt/mpi/lib",
    }
    assert plan.devices == (str(device),)
    assert fabric_names(here) == ("libcxi.so.1", "libfabric.so.1")
    binds = [(str(bind.source), bind.target, bind.writable) for bind in plan.binds(tmp_path / "stage")]
    assert binds[-1] == (str(device), str(device), True)
    assert set(plan.identities) == {"lent"}


def test_a_provider_alone_makes_a_job_fail_closed(tmp_path: Path) -> None:
    """Where a file names no `environment`, FI_PROVIDER and what makes each MPI heed it follow from cxi."""
    plan = plan_fabric(site(tmp_path, provider="cxi"), IMAGE)
    assert plan.environment["FI_PROVIDER"] == "cxi"
    assert plan.environment["MPIR_CVAR_CH4_NETMOD"] == "ofi"
    other = plan_fabric(site(tmp_path, provider="cxi", environment={"FI_PROVIDER": "lnx"}), IMAGE)
    assert other.environment["FI_PROVIDER"] == "lnx"


def test_settings_alone_are_something(tmp_path: Path) -> None:
    plan = plan_fabric(site(tmp_path, environment={"NCCL_NET": "IB"}), IMAGE)
    assert (plan.files, plan.environment["NCCL_NET"], plan.identities) == ({}, "IB", {})


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({}, "lends nothing of its fabric"),
        (
            {"libraries": ("/nowhere/libfabric.so.1",)},
            "/nowhere/libfabric.so.1, which the site names, is not",
        ),
    ],
)
def test_what_is_not_there_is_refused(tmp_path: Path, fields: dict[str, object], said: str) -> None:
    with pytest.raises(RequestError, match=said) as caught:
        plan_fabric(site(tmp_path, **fields), IMAGE)
    assert caught.value.hint


def test_a_closure_that_is_not_whole_is_refused(tmp_path: Path) -> None:
    fabric = library(tmp_path, "libfabric.so.1", "libnowhere.so.5")
    with pytest.raises(RequestError, match=r"HOST\.injected-closure: .* needs libnowhere\.so\.5"):
        plan_fabric(site(tmp_path, libraries=(fabric,)), IMAGE)


def test_a_library_for_a_newer_system_is_refused(tmp_path: Path) -> None:
    fabric = library(tmp_path, "libfabric.so.1", "libc.so.6", versions_needed={"libc.so.6": ("GLIBC_2.39",)})
    library(tmp_path, "libc.so.6")
    with pytest.raises(RequestError, match=r"GLIBC\.host-library-ceiling: .* GLIBC_2\.39"):
        plan_fabric(site(tmp_path, libraries=(fabric,)), IMAGE)


def test_with_an_mpi_both_are_lent_and_the_mpi_is_told(tmp_path: Path) -> None:
    fabric = plan_fabric(
        site(tmp_path, libraries=(library(tmp_path, "libfabric.so.1"),), environment={"A": "fabric"}), IMAGE
    )
    other = library(tmp_path, "libmpi.so.12")
    mpi = plan_fabric(site(tmp_path, libraries=(other,), environment={"A": "mpi"}), IMAGE)
    both = mpi.joined(fabric)
    assert sorted(both.files) == ["libfabric.so.1", "libmpi.so.12"]
    assert both.environment["A"] == "mpi"
