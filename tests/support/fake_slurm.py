"""Programs of a Slurm that keeps what it is asked for; a test decides what runs, and runs it itself."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from envbuild.cli.main import main

_PROGRAMS = {
    # The account `wrong` is refused, and a job beyond so many.
    "sbatch": """\
cat >"$FAKE_SLURM/script"
case " $* " in *" --account=wrong "*) echo "sbatch: error: Invalid account" >&2; exit 1;; esac
case " $* " in *" --test-only "*) echo tested >>"$FAKE_SLURM/asked"; exit 0;; esac
number=$(($(cat "$FAKE_SLURM/last") + 1))
[ "$number" -le "$(cat "$FAKE_SLURM/most")" ] || { echo "sbatch: error: Job violates limit" >&2; exit 1; }
echo "$number" >"$FAKE_SLURM/last"
echo "submitted $number" >>"$FAKE_SLURM/asked"
mv "$FAKE_SLURM/script" "$FAKE_SLURM/$number.script"
for word; do printf '%s\\n' "$word"; done >"$FAKE_SLURM/$number.words"
env >"$FAKE_SLURM/$number.env"
echo "$number"
""",
    "squeue": 'cat "$FAKE_SLURM/queue"',
    "scancel": 'echo "cancelled $1" >>"$FAKE_SLURM/asked"',
    "scontrol": 'echo "MaxArraySize            = 3"',
    "sacct": 'cat "$FAKE_SLURM/ended"',
    "srun": "exit 1",
}


@dataclass
class FakeSlurm:
    """Its state, in files of one directory."""

    place: Path
    monkeypatch: pytest.MonkeyPatch

    @property
    def asked(self) -> list[str]:
        """What it was asked to do, in order: ``tested``, ``submitted 1``, ``cancelled 1``."""
        path = self.place / "asked"
        return path.read_text().splitlines() if path.exists() else []

    @property
    def jobs(self) -> list[str]:
        return sorted((path.stem for path in self.place.glob("*.words")), key=int)

    def words(self, job: str) -> dict[str, str]:
        """Return the options of a job: ``--array`` → ``0-2``."""
        lines = (self.place / f"{job}.words").read_text().splitlines()
        return {name: value for name, _, value in (line.partition("=") for line in lines)}

    def set(self, name: str, text: str) -> None:
        (self.place / name).write_text(text)

    def tasks(self) -> Iterator[tuple[str, int]]:
        """Yield the tasks of all arrays, in the order in which they may run."""
        for job in self.jobs:
            last = int(self.words(job)["--array"].partition("%")[0].partition("-")[2])
            yield from ((job, index) for index in range(last + 1))

    def run(self, job: str, index: int) -> int:
        """Run a task in this process, as its job would; return its exit code."""
        words = shlex.split((self.place / f"{job}.script").read_text().splitlines()[-1])
        own = words[words.index("envbuild.cli.main") + 1 :]
        with self.monkeypatch.context() as inside:
            inside.setenv("SLURM_JOB_ID", f"9{job}")
            inside.setenv("SLURM_ARRAY_JOB_ID", job)
            inside.setenv("SLURM_ARRAY_TASK_ID", str(index))
            with pytest.raises(SystemExit) as ended:
                main(own)
        assert isinstance(ended.value.code, int)
        return ended.value.code

    def run_all(self) -> list[int]:
        """Run all tasks; return their exit codes."""
        return [self.run(job, index) for job, index in self.tasks()]


def fake_slurm(place: Path, monkeypatch: pytest.MonkeyPatch) -> FakeSlurm:
    """Put the programs first on PATH."""
    programs = place / "bin"
    programs.mkdir(parents=True)
    for name, text in _PROGRAMS.items():
        (programs / name).write_text(f"#!/bin/sh\n{text}\n")
        (programs / name).chmod(0o755)
    for name, text in {"last": "0", "most": "1000", "queue": "", "ended": ""}.items():
        (place / name).write_text(text)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    monkeypatch.setenv("FAKE_SLURM", str(place))
    return FakeSlurm(place, monkeypatch)
