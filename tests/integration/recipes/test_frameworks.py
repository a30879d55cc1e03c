"""Frameworks whose images no other test builds: each passes on two ranks, and a job that is broken fails."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from envbuild.launch.controls import undetected
from tests.integration.conftest import ROOT, Desk
from tests.support.controls import container_of, controls_of

# Minutes: images are built from the packages of an index and tested whole. `make toolkits` runs all controls.
pytestmark = pytest.mark.slow

JOBS = {
    "ray": ("ray.sums/sum", "ray.sums/gathered", "ray.sums/nodes"),
    "deepspeed": (
        "deepspeed.zero/held",
        "deepspeed.zero/losses-as-one-rank",
        "deepspeed.zero/parameters-as-one-rank",
    ),
}
CONTROLS = {"ray": "ray.sums: one node alone", "deepspeed": "deepspeed.zero: gradients not weighed"}


@pytest.fixture(scope="module", params=JOBS)
def image(request: pytest.FixtureRequest, desk: Desk) -> Path:
    """Return the image of an example, whose name is that of the framework."""
    name: str = request.param
    shutil.copy(ROOT / f"examples/{name}.yaml", desk.place)
    desk.envbuild("build", f"{name}.yaml")
    return desk.place / f"{name}.sif"


def test_it_passes_on_two_ranks(desk: Desk, image: Path) -> None:
    report = json.loads(desk.envbuild("test", image, "--ranks", "2", "--json").stdout)
    assert report["passed"] is True
    passed = {finding["id"] for finding in report["findings"] if finding["status"] == "PASS"}
    assert passed >= {*JOBS[image.stem]}


def test_a_broken_job_fails(image: Path) -> None:
    container = container_of(image)
    (job, control) = next(pair for pair in controls_of(container) if pair[1].name == CONTROLS[image.stem])
    assert undetected(container, job, control) == []
