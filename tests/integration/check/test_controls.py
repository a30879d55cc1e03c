"""The shipped jobs pass in the real image, and each spoiled copy fails where it must."""

from __future__ import annotations

import pytest

from envbuild.check import run
from envbuild.check.judge import Job
from envbuild.check.trial import try_job
from tests.integration.check.conftest import Try
from tests.recipes.controls import CONTROLS, Control


def job_of(subject: run.Subject, recipe: str, file: str) -> Job:
    (found,) = [job for job in subject.jobs() if (job.recipe, job.file) == (recipe, file)]
    return found


@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize(
    ("recipe", "file"),
    [
        ("mpich", "collectives.py"),
        ("pytorch", "ddp.py"),
        ("pytorch", "torchrun.py"),
        ("pytorch", "tensor_parallel.py"),
        ("pytorch", "pipeline.py"),
        ("pytorch", "train.py"),
    ],
)
def test_the_shipped_job_passes(subject: run.Subject, recipe: str, file: str, ranks: int) -> None:
    job = job_of(subject, recipe, file)
    launcher = run.launcher_of(subject, job.launcher)
    assert launcher is not None
    found = try_job(job, ranks=ranks, limit_s=300.0, launch=run.launch_with(subject, launcher))
    assert [finding.line() for finding in found.findings if finding.status != "PASS"] == [], found.output
    assert len(found.findings) == 2 + len(job.expect) + len(job.same_on_all_ranks) + len(
        job.compare_with_single
    )


# Those of other toolkits need images of their own.
OF_THE_IMAGE = [control for control in CONTROLS if control.recipe in ("mpich", "pytorch")]


@pytest.mark.parametrize("control", OF_THE_IMAGE, ids=lambda control: control.name)
def test_a_spoiled_copy_fails(subject: run.Subject, try_text: Try, control: Control) -> None:
    job = job_of(subject, control.recipe, control.file)
    found = try_text(job, control.text())
    failed = {finding.id: finding for finding in found.findings if finding.status == "FAIL"}
    assert set(control.fails) <= failed.keys(), [finding.line() for finding in found.findings]
    for check, finding in failed.items():
        if check.endswith("-as-one-rank"):
            # By far: a margin of a few times the tolerance would be luck.
            name = check.rpartition("/")[2].removesuffix("-as-one-rank")
            assert float(finding.observed.removeprefix("difference=")) > 1000 * job.compare_with_single[name]
