"""An image on its host's libfabric, which is found before its own."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.integration.conftest import Desk
from tests.support.hostmpi import HostMpi

SITE = """\
name: here
fabric:
  name: ethernet
  provider: tcp
  libraries: [{library}]
  environment: {{FI_PROVIDER: tcp}}
"""


@pytest.mark.slow  # `make vendor` has every fabric
def test_the_hosts_libfabric_carries_the_messages(
    desk: Desk, image_on: Callable[[str], Path], host_mpi: Callable[[str], HostMpi]
) -> None:
    # A copy of the one that MPICH's wheel brings: where a process took it from tells them apart.
    library = host_mpi("mpich").prefix / "lib/mpich/libfabric.so.1"
    site = desk.write("fabric.yaml", SITE.format(library=library))
    words = ("test", image_on("mpich"), "--site", site, "--json")
    own = json.loads(desk.envbuild(*words).stdout)
    lent = json.loads(desk.envbuild(*words, "--fabric", "host").stdout)
    told = {finding["id"]: finding for finding in lent["findings"]}
    assert "host.fabric" not in {finding["id"] for finding in own["findings"]}
    assert told["host.fabric"]["status"] == "PASS"
    assert told["host.fabric"]["observed"] == "/media/envbuild/libfabric.so.1"
    assert own["host"]["fingerprint"] != lent["host"]["fingerprint"]


@pytest.mark.parametrize(
    "mpi", ["mpich", *(pytest.param(mpi, marks=pytest.mark.slow) for mpi in ("openmpi", "intel-mpi"))]
)
def test_a_job_meant_for_a_fabric_that_is_not_here_stops(
    desk: Desk, image_on: Callable[[str], Path], mpi: str
) -> None:
    """The site's file names the provider alone; each MPI would take another way without a word."""
    site = desk.write("slingshot.yaml", "name: here\nfabric: {name: slingshot-11, provider: cxi}\n")
    # In one write: two ranks share a stream.
    text = "from mpi4py import MPI; print(f'size {MPI.COMM_WORLD.allreduce(1)}\\n', end='', flush=True)"
    line: list[str | Path] = ["launch", image_on(mpi), "-n", "2", "--site", site]
    program = ["--", "python", "-c", text]
    assert desk.envbuild(*line, *program).stdout.split() == ["size", "2"] * 2
    done = desk.envbuild(*line, "--fabric", "host", *program, code=None)
    assert done.returncode != 0
    assert "size" not in done.stdout


def test_the_hosts_fabric_wants_a_site_that_has_one(desk: Desk, image_on: Callable[[str], Path]) -> None:
    site = desk.write("bare.yaml", "name: here\n")
    said = desk.envbuild("test", image_on("mpich"), "--site", site, "--fabric", "host", code=2)
    assert "has no libraries or settings of its fabric" in said.stderr
