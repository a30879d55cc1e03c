"""The shipped jobs pass in the real image, and each spoiled copy fails where it must."""

from __future__ import annotations

from pathlib import Path

import pytest

from envbuild.check import run
from envbuild.check.trial import try_job
from tests.recipes.controls import CONTROLS
from tests.recipes.spoil import Control
from tests.support.spoiled import job_of, overlooked


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


# Those of other toolkits and variants need images of their own: tests/integration/toolkits, `make toolkits`.
OF_THE_IMAGE = [
    control
    for control in CONTROLS
    if control.recipe in ("mpich", "pytorch") and control.file != "built_for.py"
]


@pytest.mark.parametrize("control", OF_THE_IMAGE, ids=lambda control: control.name)
def test_a_spoiled_copy_fails(subject: run.Subject, tmp_path: Path, control: Control) -> None:
    assert overlooked(subject, control, tmp_path) == []
