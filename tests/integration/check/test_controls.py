"""The shipped jobs pass in the real image, and each spoiled copy fails where it must."""

from __future__ import annotations

from pathlib import Path

import pytest

from envbuild.check import run
from envbuild.check.trial import try_job
from tests.recipes.controls import CONTROLS
from tests.recipes.spoil import Control
from tests.support.spoiled import overlooked

JOBS = (
    *("D1.mpi", "F3.ofi-tcp", "F3.ofi-shm", "F3.ucx-shm"),
    *("D2.ddp", "D2.torchrun", "D2.tensor-parallel", "D2.pipeline", "D7.train"),
)


def test_these_are_the_jobs_of_the_image(subject: run.Subject) -> None:
    assert {job.id for job in subject.jobs()} == set(JOBS)


@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize("name", JOBS)
def test_the_shipped_job_passes(subject: run.Subject, name: str, ranks: int) -> None:
    (job,) = [job for job in subject.jobs() if job.id == name]
    launcher = run.launcher_of(subject, job.launcher)
    assert launcher is not None
    found = try_job(job, ranks=ranks, limit_s=300.0, launch=run.launch_with(subject, launcher))
    assert [finding.line() for finding in found.findings if finding.status != "PASS"] == [], found.output
    details = (job.expect, job.says, job.same_on_all_ranks, job.compare_with_single)
    assert len(found.findings) == 2 + sum(map(len, details))


# Those of other toolkits and variants need images of their own: tests/integration/toolkits, `make toolkits`.
OF_THE_IMAGE = [
    control
    for control in CONTROLS
    if control.recipe in ("mpich", "pytorch") and control.file != "built_for.py"
]


@pytest.mark.parametrize("control", OF_THE_IMAGE, ids=lambda control: control.name)
def test_a_spoiled_copy_fails(subject: run.Subject, tmp_path: Path, control: Control) -> None:
    assert overlooked(subject, control, tmp_path) == []
