"""A representative part of the toolkits: built, tested across ranks, and spoiled.

All of them: `make toolkits`. PyTorch is the main job's own image.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from envbuild.check.controls import overlooked
from tests.integration.conftest import ROOT, Desk
from tests.support.controls import controls_of, one_of_each_job, subject_of

# Each stands for a kind: a large framework, one of Python 2.7 on an old base, and a cluster of its own. One
# that is compiled from its source is the main job's affair (test_source).
TOOLKITS = ("tensorflow", "cntk", "spark")
SHARED = ("mpich", "pytorch")  # their controls run with the main job's image


@pytest.fixture(scope="module", params=TOOLKITS)
def toolkit(request: pytest.FixtureRequest, desk: Desk, image: Path) -> Iterator[Path]:
    """Build a toolkit's example over the store that the main job's image has filled."""
    name = str(request.param)
    desk.write(f"{name}.yaml", (ROOT / "examples" / f"{name}.yaml").read_text())
    desk.envbuild("build", f"{name}.yaml")
    built = desk.place / f"{name}.sif"
    yield built
    built.unlink()


def test_it_passes(desk: Desk, toolkit: Path) -> None:
    report = json.loads(desk.envbuild("test", toolkit, "--ranks", "2", "--json").stdout)
    assert report["passed"] is True
    assert report["counts"]["SKIP"] == 0


def test_what_is_spoiled_fails(toolkit: Path) -> None:
    subject = subject_of(toolkit)
    own = one_of_each_job(each for each in controls_of(subject) if each.recipe not in SHARED)
    assert len(own) == len({(job.recipe, job.file) for job in subject.jobs() if job.recipe not in SHARED})
    found = {control.name: overlooked(subject, control) for control in own}
    assert {name: missed for name, missed in found.items() if missed} == {}
