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


@pytest.mark.parametrize(
    ("argv", "is_shown"), [(["cc", "a b.c"], True), (["python", "-c", "one\ntwo"], False)]
)
def test_a_command_of_one_line_is_shown_so_that_it_can_be_repeated(
    argv: list[str], is_shown: bool, tmp_path: Path
) -> None:
    program = tmp_path / "apptainer"
    program.write_text("#!/bin/sh\nexit 1\n")
    program.chmod(0o755)
    sandbox = Sandbox(apptainer=Apptainer(program=program, version="1.4"), root=tmp_path / "root")
    with pytest.raises(BuildError) as caught:
        sandbox.run(argv, binds=(), env={}, log=tmp_path / "log", what="it failed")
    assert ("\nrepeat it: " in caught.value.problem) == is_shown
    assert ("cc 'a b.c'" in caught.value.problem) == is_shown
