"""The session's image under test, with a job's text replaced where a test wants that."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from envbuild.jobs.judge import Job
from envbuild.jobs.run import JobResult
from envbuild.launch.controls import run_changed_job
from envbuild.launch.start import Container
from tests.support.controls import container_of

Try = Callable[..., JobResult]


@pytest.fixture(scope="session")
def container(image: Path) -> Container:
    return container_of(image)


@pytest.fixture(scope="session")
def small_container(small_image: Path) -> Container:
    return container_of(small_image)


@pytest.fixture
def try_text(small_container: Container) -> Try:
    """Run one of the small image's jobs with another text in its place, and judge it."""

    def try_text(job: Job, text: str, *, ranks: int = 2, limit_s: float = 120.0) -> JobResult:
        return run_changed_job(small_container, job, {job.file: text}, ranks=ranks, limit_s=limit_s)

    return try_text
