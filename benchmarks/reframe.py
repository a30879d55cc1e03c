"""Runs checks that `envbuild export --format reframe` writes, by ReFrame's own command line.

    make reframe            # minutes; the first time it installs ReFrame apart, below build/ (240 MB)

An image is built and exported. ReFrame lists its three checks and runs them; all must pass, and its
performance report must have the values of the benchmarks. Then controls: of a program that ends with an
error, and of an image with a changed byte, ReFrame must report a failure. The exit code is 1 if it does not.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.toolkits import ROOT, say

RELEASE = "reframe-hpc==4.10.4"
VENV = ROOT / "build/reframe"
SPEC = """\
name: small
version: "1"
mpi: mpich
launch: {command: [python, -c, "import sys; sys.exit(CODE)"], ranks: 2}
"""


def install_reframe() -> Path:
    """Install ReFrame, unless it is there, and return its program."""
    program = VENV / "bin/reframe"
    if not program.exists():
        say(f"installing {RELEASE} below {VENV.relative_to(ROOT)}")
        subprocess.run([sys.executable, "-m", "venv", VENV], check=True)
        subprocess.run([VENV / "bin/python", "-m", "pip", "install", "-qq", RELEASE], check=True)
    return program


class Desk:
    """A directory with images and checks, where `envbuild` is on the PATH."""

    def __init__(self, directory: Path, reframe: Path) -> None:
        self.directory, self._reframe = directory, reframe
        (directory / "bin").mkdir()
        program = directory / "bin/envbuild"
        program.write_text(f'#!/bin/sh\nexec {sys.executable} -P -m envbuild.cli.main "$@"\n')
        program.chmod(0o755)
        (directory / "here.yaml").write_text("name: here\n")
        self._env = {
            **os.environ,
            "PATH": f"{program.parent}:{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
            "ENVBUILD_STORE": str(directory / "store"),
            "HOME": str(directory),
        }

    def run(self, *words: str | Path) -> subprocess.CompletedProcess[str]:
        """Run a command there."""
        return subprocess.run(
            words, cwd=self.directory, env=self._env, capture_output=True, text=True, check=False
        )

    def build(self, name: str, code: int) -> None:
        """Build an image whose program ends with an exit code, and export its checks."""
        (self.directory / f"{name}.yaml").write_text(SPEC.replace("CODE", str(code)))
        for words in (
            ["build", f"{name}.yaml"],
            ["export", f"{name}.sif", "--format", "reframe", "--site", "here.yaml", "-o", f"{name}.py"],
        ):
            done = self.run("envbuild", *words)
            if done.returncode:
                sys.exit(f"envbuild {' '.join(words)}: {done.stderr}")

    def checks(self, name: str, *words: str) -> tuple[int, str]:
        """Return exit code and output of ReFrame."""
        done = self.run(self._reframe, "--nocolor", "-c", f"{name}.py", *words)
        return done.returncode, done.stdout


def failures(desk: Desk) -> list[str]:
    """Return what ReFrame did otherwise than it must."""
    failed = []
    desk.build("good", 0)
    desk.build("bad", 3)
    _, listed = desk.checks("good", "-l")
    if "Found 3 check(s)" not in listed:
        failed.append(f"ReFrame does not list three checks:\n{listed}")
    code, output = desk.checks("good", "-r", "--performance-report")
    if code or len(re.findall(r"\[ +OK \]", output)) != 3:
        failed.append(f"the checks of a good image fail:\n{output}")
    values = {name for name, _ in re.findall(r"│ (mpi\.\S+) +│ u?s +│ +([0-9.]+)", output)}
    if not {"mpi.allreduce.8B_1_nodes_2_ranks", "mpi.start.import_1_nodes_1_ranks"} <= values:
        failed.append(f"the performance report lacks the values of the benchmarks:\n{output}")
    code, output = desk.checks("bad", "-r", "-n", "Launch")
    if code == 0 or not re.search(r"\[ +FAIL \]", output):
        failed.append(f"a program that ends with 3 passes:\n{output}")
    image = desk.directory / "good.sif"
    content = bytearray(image.read_bytes())
    content[len(content) // 2] ^= 1
    image.write_bytes(content)
    code, output = desk.checks("good", "-r", "-n", "Test")
    if code == 0 or not re.search(r"\[ +FAIL \]", output):
        failed.append(f"the check of a changed image passes:\n{output}")
    return failed


def main() -> int:
    """Run the checks and the controls."""
    reframe = install_reframe()
    with tempfile.TemporaryDirectory(prefix="envbuild-reframe-", dir="/var/tmp") as name:
        failed = failures(Desk(Path(name), reframe))
    for text in failed:
        say(text)
    say("ReFrame: 3 checks pass, 2 controls are detected" if not failed else "ReFrame: failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
