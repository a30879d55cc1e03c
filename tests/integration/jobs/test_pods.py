"""Pods as processes with their own network, mounts and PIDs, a read-only root and no capabilities.

Needs no MPI: ranks with torchrun's variables, and pods that may not join.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[3]
POD = ROOT / "envbuild/jobs/pod.py"


def _run(
    directory: Path, count: int, command: Sequence[str], changes: Mapping[int, Mapping[str, str]], start: str
) -> Any:
    names = [f"job-ranks-0-{index}.job" for index in range(count)]
    lines = ["127.0.0.1 localhost", *(f"198.18.0.{index + 1} {name}" for index, name in enumerate(names))]
    (directory / "hosts").write_text("\n".join(lines) + "\n", encoding="utf-8")
    (directory / "secret").write_text("s" * 64, encoding="utf-8")
    (directory / "other").write_text("t" * 64, encoding="utf-8")
    for name in ("mpiexec", "hydra_pmi_proxy"):
        (directory / name).write_text("#!/bin/sh\nexit 97\n", encoding="utf-8")
        (directory / name).chmod(0o755)
    pods = [
        {
            "variables": {
                "PATH": f"{directory}:/usr/sbin:/usr/bin:/sbin:/bin",
                "ENVBUILD_POD_NAMES": ",".join(names),
                "ENVBUILD_RANKS_PER_POD": "2",
                "ENVBUILD_POD_SECRET_FILE": str(directory / "secret"),
                "ENVBUILD_POD_START": start,
                "ENVBUILD_POD_WAIT_S": "4",
                "JOB_COMPLETION_INDEX": str(index),
                **changes.get(index, {}),
            },
            "command": [sys.executable, "-I", str(POD), "--", *command],
        }
        for index in range(count)
    ]
    plan = {"hosts": str(directory / "hosts"), "logs": str(directory), "limit_s": 30, "pods": pods}
    words = ["unshare", "-Urnm", sys.executable, str(ROOT / "tests/support/pods.py")]
    finished = subprocess.run(words, input=json.dumps(plan), capture_output=True, text=True, timeout=60)
    assert finished.returncode == 0, finished.stderr
    return json.loads(finished.stdout)


def test_ranks_of_four_pods_are_counted(tmp_path: Path) -> None:
    command = ["sh", "-c", "echo $RANK/$WORLD_SIZE $MASTER_ADDR; touch /written 2>/dev/null && echo wrote"]
    outcomes = _run(tmp_path, 4, [*command[:2], f"{command[2]}; exit 0"], {}, "plain")
    assert outcomes["codes"] == [0, 0, 0, 0]
    lines = sorted("".join(outcomes["logs"]).splitlines())
    assert lines == [f"{rank}/8 job-ranks-0-0.job" for rank in range(8)]


def test_ranks_end_at_their_limit(tmp_path: Path) -> None:
    limit = {"ENVBUILD_POD_LIMIT_S": "1"}
    assert _run(tmp_path, 2, ["sleep", "25"], {0: limit, 1: limit}, "plain")["codes"] == [124, 124]


def test_a_pod_that_states_the_index_of_another_does_not_join(tmp_path: Path) -> None:
    outcomes = _run(tmp_path, 3, ["true"], {1: {"JOB_COMPLETION_INDEX": "2"}}, "mpi")
    assert outcomes["codes"] == [1, 1, 1]
    assert "did not join in 4 s: job-ranks-0-1.job" in outcomes["logs"][0]
    assert "JOB_COMPLETION_INDEX=2 is that of another" in outcomes["logs"][1]


def test_a_pod_with_another_secret_does_not_join(tmp_path: Path) -> None:
    changes = {1: {"ENVBUILD_POD_SECRET_FILE": str(tmp_path / "other")}}
    outcomes = _run(tmp_path, 2, ["true"], changes, "mpi")
    assert outcomes["codes"] == [1, 1]
    assert "its secret is another" in outcomes["logs"][0]
