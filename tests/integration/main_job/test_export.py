"""The main job's image as a squashfs: a second runtime runs it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration.conftest import Desk
from tests.support.users import user_name

JUDGE = ["/usr/bin/python3", "-I", "/.envbuild/judge.py", "test"]


@pytest.fixture(scope="module")
def whole(desk: Desk, small_image: Path) -> Path:
    desk.envbuild("export", small_image, "--format", "squashfs", "-o", "whole.sqfs")
    return desk.place / "whole.sqfs"


def charliecloud(desk: Desk, whole: Path, *words: str, code: int | None = 0) -> str:
    # ch-run asks for the name of its user, which not every service has.
    argv: list[str | Path] = ["ch-run", "--env-no-expand", "--set-env", whole, "--", *words]
    return desk.run(argv, code=code, env={"USER": user_name()}).stdout


def test_charliecloud_runs_the_mini_jobs(desk: Desk, whole: Path) -> None:
    said = charliecloud(desk, whole, *JUDGE, "-v").splitlines()
    assert ": passed: " in said[-1]
    assert not [line for line in said if line.startswith("FAIL")]
    ranks = 'expected="ranks=0,1 size=2 processes=2" observed="ranks=0,1 size=2 processes=2"'
    assert any(line.startswith(f"     PASS mpi.collectives/ranks {ranks}") for line in said)


def test_charliecloud_gets_the_image_s_variables(desk: Desk, whole: Path) -> None:
    said = charliecloud(desk, whole, "env").splitlines()
    assert "LD_LIBRARY_PATH=/opt/fabric/lib:/opt/mpi/lib" in said
    assert "PYTHONPATH=" in said
    assert charliecloud(desk, whole, "sh", "-c", "command -v python; command -v mpiexec").split() == [
        "/opt/env/bin/python",
        "/opt/mpi/bin/mpiexec",
    ]
