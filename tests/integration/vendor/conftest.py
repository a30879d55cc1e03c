"""Images on each MPI, and other MPIs outside of them, each once a session."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from tests.integration.conftest import Desk
from tests.support.hostmpi import HostMpi, unpack

SPEC = 'name: {name}\nversion: "1"\nbase: debian-12\nmpi: {mpi}\nframeworks: [{frameworks}]\n'
FRAMEWORKS = {"mpi4py-abi": ("mpich", "mpi4py-abi")}


def spec_of(desk: Desk, name: str) -> Path:
    mpi, frameworks = FRAMEWORKS.get(name, (name, ""))
    return desk.write(f"on-{name}.yaml", SPEC.format(name=f"on-{name}", mpi=mpi, frameworks=frameworks))


@pytest.fixture(scope="session")
def image_on(desk: Desk) -> Callable[[str], Path]:
    """Build a small image on an MPI, over the session's store."""

    @cache
    def build(name: str) -> Path:
        desk.envbuild("build", spec_of(desk, name))
        return desk.place / f"on-{name}.sif"

    return build


@pytest.fixture(scope="session")
def host_mpi(desk: Desk) -> Callable[[str], HostMpi]:
    """Install an MPI outside of any image, from the wheel that a lock names."""

    @cache
    def install(name: str) -> HostMpi:
        desk.envbuild("fetch", spec_of(desk, name), "--to", f"wheels-{name}")
        return unpack(name, desk.place / f"wheels-{name}", desk.place / f"host-{name}")

    return install
