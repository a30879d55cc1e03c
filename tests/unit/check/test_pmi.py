"""S5: what srun offers against what an MPI speaks."""

from __future__ import annotations

from pathlib import Path

import pytest

from envbuild.check.pmi import judge_pmi
from envbuild.errors import MachineError
from envbuild.workflows import scheduling
from envbuild.workflows.scheduling import slurm_offers


def judged(family: str, version: str, offered: str, default: str = "") -> dict[str, str]:
    found = judge_pmi(family, version, offered=offered.split(), default=default)
    return {finding.id: finding.status for finding in found}


@pytest.mark.parametrize(
    ("family", "version", "offered", "default", "statuses"),
    [
        ("openmpi", "5.0.11", "none pmi2 pmix pmix_v4", "pmix", {"S5.pmi": "PASS", "S5.pmi-default": "PASS"}),
        ("openmpi", "5.0.11", "none pmi2 pmix", "pmi2", {"S5.pmi": "PASS", "S5.pmi-default": "SKIP"}),
        ("openmpi", "5.0.11", "none pmi2 pmix", "none", {"S5.pmi": "PASS", "S5.pmi-default": "SKIP"}),
        ("openmpi", "5.0.11", "none pmi2 pmix", "", {"S5.pmi": "PASS", "S5.pmi-default": "SKIP"}),
        ("openmpi", "5.0.11", "none pmi2 cray_shasta", "pmi2", {"S5.pmi": "FAIL"}),
        ("mpich", "5.0.2", "none pmi2", "pmi2", {"S5.pmi": "PASS", "S5.pmi-default": "PASS"}),
        ("mpich", "5.0.2", "none", "none", {"S5.pmi": "FAIL"}),
        ("", "", "none pmi2", "none", {"S5.pmi": "SKIP"}),
        ("nobody-knows", "1", "none pmi2", "none", {"S5.pmi": "SKIP"}),
    ],
)
def test_every_case(family: str, version: str, offered: str, default: str, statuses: dict[str, str]) -> None:
    assert judged(family, version, offered, default) == statuses


def test_a_failure_says_what_both_know_and_a_remark_what_to_write() -> None:
    (failed,) = judge_pmi("openmpi", "5.0.11", offered=["none", "pmi2"], default="none")
    assert failed.observed == "srun offers none, pmi2"
    assert "every rank would be alone" in failed.hint
    _, remark = judge_pmi("openmpi", "5.0.11", offered=["none", "pmix"], default="none")
    assert "`srun --mpi=pmix`" in remark.hint


def slurm(directory: Path, *, types: str, config: str) -> str:
    for name, text in {"srun": types, "scontrol": config}.items():
        path = directory / name
        path.write_text(f"#!/bin/sh\ncat <<'END'\n{text}\nEND\n")
        path.chmod(0o755)
    return f"{directory}:/usr/bin:/bin"


def test_srun_is_asked_and_a_variable_wins_over_the_default(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = slurm(tmp_path, types="MPI plugin types are...\n\tnone\n\tpmi2", config="MpiDefault  = pmi2\n")
    monkeypatch.setenv("PATH", path)
    monkeypatch.delenv("SLURM_MPI_TYPE", raising=False)
    assert slurm_offers() == (("none", "pmi2"), "pmi2")
    monkeypatch.setenv("SLURM_MPI_TYPE", "none")
    assert slurm_offers() == (("none", "pmi2"), "none")


def test_a_machine_without_slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(MachineError):
        slurm_offers()
    slurm(tmp_path, types="", config="")
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    with pytest.raises(MachineError, match="names nothing"):
        slurm_offers()
    (tmp_path / "srun").write_text("#!/bin/sh\nsleep 60\n")
    monkeypatch.setattr(scheduling, "_ASK_S", 0.5)
    with pytest.raises(MachineError, match="did not answer within"):
        slurm_offers()
