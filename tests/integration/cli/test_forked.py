"""Commands that the server of the tests forks do what the same commands do when they are started."""

from __future__ import annotations

import os
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.support.forked import ForkServer, fork_server


@pytest.fixture
def server(installed: Path) -> ForkServer:
    return fork_server(installed)


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["--version"], 0),
        (["nosuch"], 2),
        (["recipes", "show", "mpich"], 0),
        (["inspect", "none.sif"], 2),
        (["cache", "ls", "--json"], 0),
    ],
    ids=str,
)
def test_code_and_streams_are_the_same(
    server: ForkServer, installed: Path, tmp_path: Path, words: list[str], code: int
) -> None:
    line, env = [str(installed), *words], {**os.environ, "ENVBUILD_STORE": str(tmp_path / "store")}
    assert server.serves(line, env)
    forked = server.run(line, cwd=tmp_path, env=env, timeout=300)
    started = subprocess.run(line, cwd=tmp_path, env=env, input="", capture_output=True, text=True)
    assert started.returncode == code
    assert (forked.returncode, forked.stdout, forked.stderr) == (code, started.stdout, started.stderr)


def test_each_has_its_own_directory_variables_and_mode(
    server: ForkServer, installed: Path, tmp_path: Path
) -> None:
    def init(number: int) -> int:
        place = tmp_path / str(number)
        place.mkdir()
        env = {**os.environ, "ENVBUILD_STORE": str(tmp_path / "a file")}
        line = [str(installed), "init", "spec.yaml", "--mpi", "mpich", "--name", f"spec-{number}", "--yes"]
        return server.run(line, cwd=place, env=env, umask=0o027 if number else 0o022, timeout=300).returncode

    with ThreadPoolExecutor() as pool:
        assert [*pool.map(init, range(4))] == [0] * 4
    for number in range(4):
        spec = tmp_path / str(number) / "spec.yaml"
        assert f"name: spec-{number}\n" in spec.read_text()
        assert spec.stat().st_mode & 0o777 == (0o640 if number else 0o644)


def test_a_command_that_becomes_a_program_keeps_its_code(
    server: ForkServer, installed: Path, small_image: Path, tmp_path: Path
) -> None:
    line = [str(installed), "exec", str(small_image), "sh", "-c", "echo inside; exit 9"]
    done = server.run(line, cwd=tmp_path, env=os.environ, timeout=300)
    assert (done.returncode, done.stdout) == (9, "inside\n")


def test_the_timeout_ends_it(server: ForkServer, installed: Path, tmp_path: Path) -> None:
    with pytest.raises(subprocess.TimeoutExpired):
        server.run([str(installed), "recipes", "ls"], cwd=tmp_path, env=os.environ, timeout=0)


@pytest.mark.parametrize("words", [["build", "a.yaml"], ["lock", "a.yaml"], ["extend", "a.sif"]])
def test_what_writes_bytes_is_started(server: ForkServer, installed: Path, words: list[str]) -> None:
    assert not server.serves([str(installed), *words], os.environ)


@pytest.mark.parametrize("name", ["LC_ALL", "LANG", "PYTHONHASHSEED", "LD_PRELOAD"])
def test_variables_that_act_on_the_start_are_not_lost(server: ForkServer, installed: Path, name: str) -> None:
    assert not server.serves([str(installed), "doctor"], {**os.environ, name: "another"})
