"""A host's MPI that nobody described: probed, and images run on it by the draft as it is."""

from __future__ import annotations

import json

import pytest

from envbuild.spec.load import load
from envbuild.spec.site import Site
from tests.integration.conftest import Desk
from tests.integration.vendor.test_host_mpi import Hosts, Images, from_host


@pytest.mark.slow  # test_host_mpi.py runs on a host's MPI, unit/site/test_probe drafts one
@pytest.mark.parametrize(
    ("inside", "host", "abis"),
    [
        ("mpich", "intel-mpi", ("mpich", "standard")),
        ("openmpi-debian", "openmpi", ("openmpi-40",)),
    ],
)
def test_an_image_runs_on_an_mpi_that_was_only_probed(
    desk: Desk, image_on: Images, host_mpi: Hosts, inside: str, host: str, abis: tuple[str, ...]
) -> None:
    installed = host_mpi(host)
    draft = desk.place / f"probed-{host}.yaml"
    desk.envbuild("site", "probe", "--mpi", installed.prefix, "-o", draft)
    mpi = load(Site, draft.read_bytes(), draft).value.mpi
    assert mpi is not None
    assert (mpi.implementation, mpi.abis) == (host, abis)
    assert installed.version.startswith(str(mpi.version))
    desk.envbuild("site", "check", draft)
    done = desk.envbuild("test", image_on(inside), "--site", draft, "--mpi", "host", "--json")
    report = json.loads(done.stdout)
    assert report["passed"] is True
    assert from_host(report)["status"] == "PASS"
