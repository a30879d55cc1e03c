"""The facts of an image that decide what it can take from a host."""

from __future__ import annotations

import pytest

from envbuild.image.environment import default_environment
from envbuild.rules.facts import facts_from
from envbuild.workflows.hosting import image_libraries
from tests.support.trees import manifest


@pytest.mark.parametrize(
    ("needed", "own", "abis"),
    [
        (("openmpi-40",), ("mpich", "openmpi-40"), ("openmpi-40",)),
        (("mpich", "standard"), None, ("mpich", "standard")),
        # Nothing needs one: programs that open it are taken for the image's own MPI's.
        (None, ("mpich", "standard"), ("mpich",)),
        (None, None, ()),
    ],
)
def test_the_abis_that_an_image_needs_of_a_host(
    needed: tuple[str, ...] | None, own: tuple[str, ...] | None, abis: tuple[str, ...]
) -> None:
    provides = {"libz.so.1": ("ZLIB_1.2.9",)}
    facts = facts_from({"mpi.needed_abis": needed, "mpi.abis": own}, "image")
    image = manifest(mpi="some", mpi_family="mpich", environment=default_environment())
    side = image_libraries(image, facts, provides)
    assert (side.abis, side.provides) == (abis, provides)
    assert side.library_path == "/opt/fabric/lib:/opt/mpi/lib:/.singularity.d/libs"
