"""An image on the host's MPI, judged by what both say of themselves."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from envbuild.compat.from_image import facts_of_image
from envbuild.errors import RequestError
from envbuild.events import Event, Warned
from envbuild.site.swap import judge_swap, tell_swap
from envbuild.spec.site import MpiAbi, Site, SiteMpi, SiteScheduler


@dataclass(frozen=True)
class Image:
    mpi: str = "mpich"
    mpi_family: str = "mpich"
    recipes: dict[str, str] = field(default_factory=lambda: {"mpich": "5.0.2", "pytorch": "2.13.0"})
    architecture: str = "amd64"
    form: str = "layered"
    glibc: str = "2.36"
    python: str = "3.11"


def site(implementation: str, version: str, *abis: MpiAbi, base: str | None = None) -> Site:
    mpi = SiteMpi(implementation=implementation, version=version, base_version=base, abis=abis)
    # Whoever starts ranks with the host's mpiexec asks no scheduler.
    scheduler = SiteScheduler(name="slurm", mpi_types=("none",))
    return Site(name="here", mpi=mpi, scheduler=scheduler)


def told(image: Image, host: Site, *abis: MpiAbi) -> list[Event]:
    events: list[Event] = []
    facts = facts_of_image(image, needed_abis=abis, rpath_files=())
    tell_swap(judge_swap(facts, host), events.append)
    return events


def test_what_an_image_says_of_itself() -> None:
    facts = facts_of_image(Image())
    assert (facts.mpi.family, facts.mpi.version, facts.mpi.source) == ("mpich", "5.0.2", "image")
    assert facts.mpi.abis == ("mpich", "standard")
    assert facts.at("frameworks.pytorch.version") == "2.13.0"
    assert facts.runtime.layered is True
    assert (facts.mpi.needed_abis, facts.mpi.rpath_files) == (None, None)
    assert facts.origin("mpi.family") == "image"
    debian = Image(mpi="openmpi-debian", mpi_family="openmpi", recipes={"openmpi-debian": "4.1"})
    assert facts_of_image(debian).mpi.abis == ("openmpi-40",)
    assert facts_of_image(Image(mpi="", mpi_family="", recipes={})).mpi.source is None


def test_one_family_in_the_place_of_another() -> None:
    assert told(Image(), site("intel-mpi", "2021.19", "mpich", "standard"), "mpich") == []
    openmpi = Image(mpi="openmpi", mpi_family="openmpi", recipes={"openmpi": "5.0.11"})
    with pytest.raises(RequestError) as caught:
        told(openmpi, site("intel-mpi", "2021.19", "mpich", "standard"), "openmpi-40")
    assert caught.value.problem.splitlines()[0] == (
        "MPI.abi-family: the image's MPI is openmpi 5.0.11 (ABI: openmpi-40),"
        " and the host's intel-mpi offers: mpich, standard"
    )
    assert "  host_mpi.abis = mpich, standard (site:here)" in caught.value.problem.splitlines()


def test_an_older_host_is_warned_of() -> None:
    (event,) = told(Image(), site("cray-mpich", "8.1.28", "mpich", base="3.4"), "mpich")
    assert isinstance(event, Warned)
    assert event.text == (
        "MPI.swap-direction: the image's MPICH is 5.0.2, and the host's cray-mpich is made from the older"
        " 3.4: it may lack symbols"
    )


def test_what_a_site_leaves_out_refuses_nothing() -> None:
    assert told(Image(), site("cray-mpich", "8.1.28"), "mpich") == []
