"""An image on the host's MPI, judged by what both say of themselves."""

from __future__ import annotations

import pytest

from envbuild.errors import RequestError
from envbuild.events import Event, Warned
from envbuild.rules.facts import Facts, facts_from
from envbuild.rules.from_lock import facts_of_image
from envbuild.rules.from_site import stack_facts
from envbuild.rules.judge import refuse_or_warn
from envbuild.rules.rulebook import judge
from envbuild.spec.site import MpiAbi, Site, SiteMpi, SiteScheduler
from tests.support.resolved_specs import bare_lock, recipe_pin

MPICH = (("mpich", "5.0.2"), ("pytorch", "2.13.0"))


def image(*recipes: tuple[str, str], needs: str = "mpich") -> Facts:
    """Return the facts of an image whose first recipe is its MPI."""
    pins = (
        recipe_pin(name, version, kind="framework" if index else "mpi")
        for index, (name, version) in enumerate(recipes)
    )
    lock = bare_lock(recipes=tuple(pins))
    return facts_of_image(lock, facts_from({"mpi.needed_abis": (needs,)}, "image"), {})


def site(implementation: str, version: str, *abis: MpiAbi, base: str | None = None) -> Site:
    mpi = SiteMpi(implementation=implementation, version=version, base_version=base, abis=abis)
    # Whoever starts ranks with the host's mpiexec asks no scheduler.
    scheduler = SiteScheduler(name="slurm", mpi_types=("none",))
    return Site(name="here", mpi=mpi, scheduler=scheduler)


def told(facts: Facts, host: Site) -> list[Event]:
    events: list[Event] = []
    refuse_or_warn(judge(stack_facts(facts, host, host_mpi=True), "host-mpi"), events.append)
    return events


def test_one_family_in_the_place_of_another() -> None:
    host = site("intel-mpi", "2021.19", "mpich", "standard")
    assert told(image(*MPICH), host) == []
    with pytest.raises(RequestError) as caught:
        told(image(("openmpi", "5.0.11"), needs="openmpi-40"), host)
    assert caught.value.problem.splitlines()[0] == (
        "MPI.abi-family: programs of the image need the ABI openmpi-40,"
        " and the host's intel-mpi offers: mpich, standard"
    )
    assert "  host_mpi.abis = mpich, standard (site:here)" in caught.value.problem.splitlines()
    assert caught.value.hint == "use the image's own MPI, or build the image on an MPI of the host's ABI"


def test_an_older_host_is_warned_of() -> None:
    facts = image(*MPICH)
    (event,) = told(facts, site("cray-mpich", "8.1.28", "mpich", base="3.4"))
    assert isinstance(event, Warned)
    assert event.text == (
        "MPI.swap-direction: the image's MPICH is 5.0.2, and the host's cray-mpich is made from the older"
        " 3.4: it may lack symbols"
    )
    assert str(event.hint).startswith("`--mpi host` compares what programs call with the host's library,")


def test_what_a_site_leaves_out_refuses_nothing() -> None:
    assert told(image(*MPICH), site("cray-mpich", "8.1.28")) == []
