from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from envbuild.jobs import inside
from tests.support.trees import manifest


def test_an_outer_launcher_is_forgotten_and_all_else_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    outer = (
        *("SLURM_PROCID", "PMI_RANK", "PMIX_RANK", "OMPI_COMM_WORLD_SIZE", "MPI_LOCALNRANKS", "PBS_JOBID"),
        *("RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "TORCHELASTIC_RUN_ID", "PET_NNODES", "TF_CONFIG"),
    )
    kept = ("PATH", "OMPI_MCA_btl", "PMIX_MCA_psec", "UCX_TLS", "FI_PROVIDER", "SLURMY", "RANKS")
    for name in (*outer, *kept):
        monkeypatch.setenv(name, "1")
    found = inside.environment_of_ranks({"ENVBUILD_TOKEN": "t"})
    assert not [name for name in outer if name in found]
    assert all(name in found for name in kept)
    assert found["ENVBUILD_TOKEN"] == "t"


def test_what_left_its_group_is_ended_by_its_token() -> None:
    token = "token-of-this-run-0123456789"
    deaf = "import os, signal, time; os.setsid(); signal.signal(15, signal.SIG_IGN)"
    program = f"{deaf}; print(1, flush=True); time.sleep(600)"
    child = subprocess.Popen(
        [sys.executable, "-c", program], env={"ENVBUILD_TOKEN": token}, stdout=subprocess.PIPE
    )
    assert child.stdout is not None
    child.stdout.readline()
    launcher = subprocess.Popen([sys.executable, "-c", ""], start_new_session=True)
    launcher.wait()
    inside.end(launcher, token)
    assert child.wait(timeout=60) == -9
    child.stdout.close()


def test_a_launcher_that_is_not_on_path_is_a_failed_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/nowhere:/bin")
    ended = inside.start_ranks(["mpiexec-of-no-image", "-n", "2"], tmp_path, {"ENVBUILD_TOKEN": "t"}, 5.0)
    assert (ended.code, ended.timed_out) == (127, False)
    assert ended.output == (
        "`mpiexec-of-no-image` does not start: No such file or directory; PATH is `/nowhere:/bin`: "
        "the test needs the image's own variables, as `apptainer test` sets them"
    )


def test_an_image_without_jobs_says_what_it_lacks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "manifest.json").write_text(manifest(mpi="", mpi_family="", imports=()).to_json())
    monkeypatch.setattr(inside, "MANIFEST", str(tmp_path / "manifest.json"))
    assert inside.main(["test"]) == 0
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("SKIP jobs ")]
    assert "name an `mpi` or a framework" in line
