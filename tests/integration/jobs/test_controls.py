"""The shipped jobs pass in the real image, and each mutated copy fails where it must."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
from _pytest.mark import ParameterSet

from envbuild.launch.controls import EVERY_RANK_ALONE, MutatedJob, job_of, undetected
from envbuild.launch.launchers import Shape
from envbuild.launch.start import Container, own_launcher, run_image_job
from tests.support.controls import every_control, one_of_each_job

JOBS = (
    *("mpi.collectives", "mpi.ofi-tcp", "mpi.ofi-shm", "mpi.ucx-shm"),
    *("pytorch.ddp", "pytorch.torchrun", "pytorch.tensor-parallel", "pytorch.pipeline", "pytorch.train"),
)


def test_these_are_the_jobs_of_the_image(container: Container) -> None:
    assert {job.id for job in container.jobs} == set(JOBS)


# `main_job/test_activate.py` runs all of them on 2 ranks.
QUICK_JOBS = ("mpi.collectives", "pytorch.ddp")


@pytest.mark.parametrize(
    "name", [name if name in QUICK_JOBS else pytest.param(name, marks=pytest.mark.slow) for name in JOBS]
)
def test_a_shipped_job_passes_on_three_ranks(container: Container, name: str) -> None:
    (job,) = [job for job in container.jobs if job.id == name]
    launcher = own_launcher(container, job.launcher)
    assert launcher is not None
    result = run_image_job(container, launcher, job, shape=Shape(ranks=3), limit_s=300.0)
    assert [finding.line() for finding in result.checks if finding.status != "PASS"] == [], result.output
    details = (job.expect, job.says, job.same_on_all_ranks, job.compare_with_single)
    assert len(result.checks) == 2 + sum(map(len, details))


# Other toolkits and variants need images of their own: `make toolkits`.
OF_THE_IMAGE = [
    mutated
    for mutated in every_control()
    if mutated.job.recipe in ("mpich", "pytorch") and not (mutated.job.variants or mutated.job.gpus_per_rank)
]
QUICK_CONTROLS = tuple(f"{job}: {EVERY_RANK_ALONE}" for job in QUICK_JOBS)


def controls() -> Iterator[ParameterSet]:
    """Yield every control of the MPI, and of each job of the framework one and every rank alone.

    Those of two jobs whose ranks are alone are quick.
    """
    names = {control.name for control in OF_THE_IMAGE}
    assert names >= set(QUICK_CONTROLS), sorted(names)
    for mutated in OF_THE_IMAGE:
        quick = mutated.name in QUICK_CONTROLS
        alone = mutated.fault == EVERY_RANK_ALONE
        if alone or mutated.job.recipe == "mpich" or mutated in one_of_each_job(OF_THE_IMAGE):
            marks = [] if quick else [pytest.mark.slow]
            yield pytest.param(mutated, id=mutated.name, marks=marks)


@pytest.mark.parametrize("mutated", list(controls()))
def test_a_mutated_copy_fails(container: Container, mutated: MutatedJob) -> None:
    job = job_of(container, mutated)
    assert job is not None
    assert undetected(container, job, mutated) == []


def test_a_harmless_copy_is_reported(container: Container) -> None:
    """The judge of controls can fail, too."""
    mutated = next(control for control in OF_THE_IMAGE if control.name == "mpi.collectives: no large message")
    job = job_of(container, mutated)
    assert job is not None
    missed = undetected(container, job, replace(mutated, fault="a fault that no line is marked for"))
    job_id = "mpi.collectives"
    assert missed[:2] == [f"{job_id}/payload_least did not fail", f"{job_id}/payload_most did not fail"]
