"""The shipped jobs pass in the real image, and each spoiled copy fails where it must."""

from __future__ import annotations

from dataclasses import replace

import pytest

from envbuild.check import run
from envbuild.check.controls import Spoiled, overlooked
from envbuild.check.trial import try_job
from tests.support.controls import every_control, one_of_each_job

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
    spoiled
    for spoiled in every_control()
    if spoiled.recipe in ("mpich", "pytorch") and spoiled.control.job != "built_for.py"
]
# Every one of the MPI, ranks that are singletons among them, and one of each job of the framework.
RUN = [
    *(each for each in OF_THE_IMAGE if each.recipe == "mpich"),
    *one_of_each_job(each for each in OF_THE_IMAGE if each.recipe == "pytorch"),
]


@pytest.mark.parametrize("spoiled", RUN, ids=lambda spoiled: spoiled.name)
def test_a_spoiled_copy_fails(subject: run.Subject, spoiled: Spoiled) -> None:
    assert overlooked(subject, spoiled) == []


def test_a_copy_that_is_none_is_told(subject: run.Subject) -> None:
    """The judge of controls can fail, too."""
    spoiled = next(each for each in OF_THE_IMAGE if each.name == "pytorch/ddp: no averaging")
    harmless = spoiled.control.model_copy(update={"changes": (), "before": "pass\n"})
    told = overlooked(subject, replace(spoiled, control=harmless))
    assert told[:2] == ["D2.ddp/weight_first did not fail", "D2.ddp/weight_last did not fail"]
