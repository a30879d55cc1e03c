"""The facts of an image that decide what it can take from a host."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path

import pytest

from envbuild.image.environment import default_environment
from envbuild.lock.model import SuppliedPin
from envbuild.preflight.scan import FileSystemScan, ImageScan
from envbuild.rules.facts import facts_from
from envbuild.spec.recipe import Supplied
from envbuild.workflows.hosting import image_libraries
from tests.support.resolved_specs import bare_lock, recipe_pin
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
    scan = ImageScan(image=Path("i.sif"), manifest=image, lock=bare_lock(), files=FileSystemScan())
    side = image_libraries(scan, facts, provides)
    assert (side.abis, side.provides) == (abis, provides)
    assert side.library_path == "/opt/fabric/lib:/opt/mpi/lib:/.singularity.d/libs"
    assert side.path.startswith("/opt/env/bin:/opt/mpi/bin:/usr/local/sbin:")


def test_the_software_that_an_image_needs_and_the_modules_that_it_has_itself() -> None:
    files = FileSystemScan(
        files=[
            "/opt/env/lib/python3.11/site-packages/own/__init__.py",
            "/usr/lib/python3/dist-packages/single.py",
            "/usr/lib/python3.11/json/__init__.py",
            "/home/fast/__init__.py",
        ]
    )
    needed = SuppliedPin(libraries=("libfast.so.1",), python=("fast", "own", "single", "json"))
    pin = replace(recipe_pin("soft", "1", kind="site"), supplied=needed)
    image = manifest(environment=default_environment())
    scan = ImageScan(image=Path("i.sif"), manifest=image, lock=bare_lock(recipes=(pin,)), files=files)
    side = image_libraries(scan, {}, {})
    assert side.supplied == {"soft": Supplied(**asdict(needed))}
    assert side.modules == {"own", "single", "json"}
    assert (side.architecture, side.python) == (image.architecture, image.python)
