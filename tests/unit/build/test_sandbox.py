"""A build step that fails, and an Apptainer that cannot start one."""

from __future__ import annotations

from pathlib import Path

import pytest

from envbuild.build.sandbox import Sandbox
from envbuild.errors import BuildError, EnvbuildError, MachineError
from envbuild.system.apptainer import Apptainer


@pytest.mark.parametrize(
    ("script", "kind", "problem"),
    [
        ("echo FATAL: no namespaces >&2; exit 255", MachineError, "Apptainer cannot start a build step"),
        ("echo no compiler >&2; exit 1", BuildError, r"mpi4py failed \(exit code 1\)\nno compiler"),
    ],
)
def test_a_failed_step(script: str, kind: type[EnvbuildError], problem: str, tmp_path: Path) -> None:
    program = tmp_path / "apptainer"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    sandbox = Sandbox(apptainer=Apptainer(program=program, version="1.4"), root=tmp_path / "root")
    with pytest.raises(kind, match=problem):
        sandbox.run(["true"], binds=(), env={}, log=tmp_path / "log", what="mpi4py failed")
