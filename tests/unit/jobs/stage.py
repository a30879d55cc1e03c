"""A stage for the judge: reports made by hand, and ranks started without any MPI."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from envbuild.image.model import Manifest
from envbuild.jobs import envbuild_job
from envbuild.jobs.judge import Job, LaunchResult
from envbuild.jobs.rank_reports import Reports
from envbuild.jobs.run import StartRanks
from envbuild.launch.start import Container
from envbuild.system import host
from envbuild.system.apptainer import Apptainer
from tests.support import trees

HELPER = Path(envbuild_job.__file__)
GOOD_END = LaunchResult(code=0)


def report(rank: int, size: int, /, **changes: object) -> dict[str, object]:
    """Return a sound report, as a rank would write it."""
    data: dict[str, object] = {
        "format": 1,
        "token": "t",
        "rank": rank,
        "size": size,
        "launched": [rank, size],
        "host": "node",
        "process": "pid:[1]",
        "pid": 100 + rank,
        "python": "3.11.2",
        "libraries": [],
        "values": {},
    }
    return {**data, **changes}


def reports(*each: Mapping[str, object], problems: tuple[str, ...] = ()) -> Reports:
    return Reports(good=tuple(each), problems=problems)


def all_ranks(size: int, values: Callable[[int], dict[str, object]] = lambda _: {}) -> Reports:
    """Return one sound report of each rank."""
    return reports(*(report(rank, size, values=values(rank)) for rank in range(size)))


def job(**changes: object) -> Job:
    fields: dict[str, object] = {"id": "demo.train", "recipe": "demo", "file": "demo.py", "hint": "look here"}
    return Job(**{**fields, **changes})  # type: ignore[arg-type]


def write(directory: Path, name: str, data: object) -> Path:
    path = directory / name
    path.write_text(data if isinstance(data, str) else json.dumps(data))
    return path


def fake_start(script: Path, *, singletons: bool = False, leave_out: Sequence[int] = ()) -> StartRanks:
    """Return a launcher that starts plain processes and tells them rank and size as hydra does."""

    def start(
        command: Sequence[str], ranks: int, directory: Path, variables: Mapping[str, str], limit_s: float
    ) -> LaunchResult:
        assert command[-1].endswith(".py")
        processes = []
        for rank in set(range(ranks)) - set(leave_out):
            place = {} if singletons else {"PMI_RANK": str(rank), "PMI_SIZE": str(ranks)}
            env = {**os.environ, **variables, **place, "ENVBUILD_RESULTS": str(directory)}
            argv = [sys.executable, "-s", str(HELPER), str(script)]
            processes.append(subprocess.Popen(argv, env=env, cwd=directory))
        deadline = time.monotonic() + limit_s
        codes: list[int | None] = []
        for process in processes:
            try:
                codes.append(process.wait(max(0.01, deadline - time.monotonic())))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
                codes.append(None)
        timed_out = None in codes
        code = next((code for code in codes if code), 0) or 0
        return LaunchResult(code=code, timed_out=timed_out, limit_s=limit_s, output="launcher says hello")

    return start


JOB = Job(
    id="demo.sum",
    recipe="demo",
    file="demo.py",
    title="",
    expect={"sum": "n"},
    same_on_all_ranks=("hash",),
)


def manifest_of_stage(**changes: object) -> Manifest:
    return trees.manifest(**{"jobs": (JOB,), "architecture": host.architecture(), **changes})


def container(**changes: object) -> Container:
    manifest = manifest_of_stage(**changes)
    apptainer = Apptainer(program=Path("/bin/apptainer"), version="1.4.5")
    return Container(image=Path("/images/demo.sif"), runnable=manifest, apptainer=apptainer)
