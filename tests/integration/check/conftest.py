"""The session's image under test, with a job's text replaced where a test wants that."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from envbuild.check import controls, run
from envbuild.check.judge import Job
from envbuild.check.trial import Trial
from tests.support.controls import subject_of

Try = Callable[..., Trial]


@pytest.fixture(scope="session")
def subject(image: Path) -> run.Subject:
    return subject_of(image)


@pytest.fixture(scope="session")
def small_subject(small_image: Path) -> run.Subject:
    return subject_of(small_image)


@pytest.fixture
def try_text(small_subject: run.Subject) -> Try:
    """Run one of the small image's jobs with another text in its place, and judge it."""

    def try_text(job: Job, text: str, *, ranks: int = 2, limit_s: float = 120.0) -> Trial:
        return controls.try_text(small_subject, job, text, ranks=ranks, limit_s=limit_s)

    return try_text
