"""A job is submitted to a Slurm that does not take it."""

from __future__ import annotations

from pathlib import Path

import pytest

from envbuild.errors import EnvbuildError, MachineError, RequestError
from envbuild.launch.batch import run_in_job


@pytest.mark.parametrize(
    ("says", "kind", "problem"),
    [
        (
            "sbatch: error: fetch_config: DNS SRV lookup failed\n"
            "sbatch: error: _establish_config_source: failed to fetch config\n"
            "sbatch: fatal: Could not establish a configuration source",
            MachineError,
            "no controller of Slurm answers",
        ),
        ("sbatch: error: Unable to contact slurm controller", MachineError, "no controller of Slurm answers"),
        (
            "sbatch: error: Invalid account",
            RequestError,
            "Slurm refuses the job: sbatch: error: Invalid account",
        ),
    ],
)
def test_no_answer_is_not_a_refusal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, says: str, kind: type[EnvbuildError], problem: str
) -> None:
    sbatch = tmp_path / "bin/sbatch"
    sbatch.parent.mkdir()
    sbatch.write_text(f"#!/bin/sh\necho '{says}' >&2\nexit 1\n")
    sbatch.chmod(0o755)
    monkeypatch.setenv("PATH", f"{sbatch.parent}:/usr/bin:/bin")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(kind) as caught:
        run_in_job(["true"], [], variables={}, emit=lambda _: None)
    assert problem in caught.value.problem
