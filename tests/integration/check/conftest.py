"""The session's image under test, with a job's text replaced where a test wants that."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest

from envbuild.check import run
from envbuild.check.judge import Ended, Job
from envbuild.check.trial import Trial, try_job
from envbuild.image.model import JOBS
from envbuild.image.sif import read_manifest
from envbuild.system import apptainer as runtime
from envbuild.system import host, process
from envbuild.system.apptainer import Bind

Try = Callable[..., Trial]


@pytest.fixture(scope="session")
def subject(image: Path) -> run.Subject:
    return run.Subject(image=image, manifest=read_manifest(image), apptainer=runtime.find())


@pytest.fixture
def try_text(subject: run.Subject, tmp_path: Path) -> Try:
    """Run one of the image's jobs with another text in its place, and judge it."""

    def try_text(job: Job, text: str, *, ranks: int = 2, limit_s: float = 120.0) -> Trial:
        replaced = tmp_path / "job.py"
        replaced.write_text(text)
        launcher = run.launcher_of(subject, job.launcher)
        assert launcher is not None

        def launch(
            command: Sequence[str], ranks: int, directory: Path, variables: Mapping[str, str], limit_s: float
        ) -> Ended:
            binds = [
                Bind(source=directory, target=run.RESULTS, writable=True),
                Bind(source=replaced, target=f"{JOBS}/{job.recipe}/{job.file}"),
            ]
            env = {**variables, "ENVBUILD_RESULTS": run.RESULTS}
            runtime = subject.apptainer.command(subject.image, [], binds=binds, env=env, cwd=run.RESULTS)
            done = process.run(
                launcher.command(runtime, command, ranks), env=host.environment(), timeout_s=limit_s
            )
            return Ended(code=done.code, timed_out=done.timed_out, limit_s=limit_s, output=done.output)

        return try_job(job, ranks=ranks, limit_s=limit_s, launch=launch)

    return try_text
