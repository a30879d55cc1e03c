"""`build --submit` on a real cluster whose nodes have no locks in common; `make cluster` shows more."""

from __future__ import annotations

import json
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.integration.conftest import Desk
from tests.support.torture.ground import Ground

# No process of envbuild can lock a file: as on a file system that shares no locks among machines.
NO_LOCKS = """\
import errno, fcntl, os
def flock(file, operation):
    raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))
fcntl.flock = flock
"""
SPEC = 'name: {name}\nversion: "1"\nbase: tiny\npackages: {{python: [{packages}]}}\n'
MEMBERS = {"one": "alpha", "two": "beta", "both": "alpha, beta"}


@pytest.fixture
def front(login: Desk, ground: Ground) -> Desk:
    """A desk on the login node with specs on a tiny base; its path has a space."""
    place = Path(tempfile.mkdtemp(prefix="front desk ", dir=ground.place))
    (place / "no-locks").mkdir()
    (place / "no-locks/sitecustomize.py").write_text(NO_LOCKS)
    env = {
        **login.env,
        "XDG_CONFIG_HOME": str(ground.place / "config"),
        "PYTHONPATH": str(place / "no-locks"),
        "ENVBUILD_TOKEN": "secret-of-the-user",
    }
    desk = replace(login, place=place, store=place / "store", env=env)
    for name, packages in MEMBERS.items():
        desk.write(f"{name}.yaml", SPEC.format(name=name, packages=packages))
    return desk


def await_end(desk: Desk, code: int = 0) -> dict[str, dict[str, Any]]:
    """Wait until no member of the submission waits or runs; return the members by name."""
    deadline = time.monotonic() + 120
    while True:
        done = desk.envbuild("status", "--submitted", "--json", code=None)
        members = {member["name"]: member for member in json.loads(done.stdout)["members"]}
        if not any(member["state"] in ("queued", "running") for member in members.values()):
            assert done.returncode == code, members
            return members
        assert time.monotonic() < deadline, members
        time.sleep(0.5)


def records(desk: Desk) -> dict[str, int]:
    """Return the layers of the store: key → the inode of the record, which changes if it is built again."""
    return {path.stem: path.stat().st_ino for path in (desk.store / "layers").glob("*/*.json")}


@pytest.mark.slow  # `make cluster` does so with 20 specs
def test_many_are_built_once_each_killed_and_resumed(front: Desk) -> None:
    slow = front.write("slow.sh", "#!/bin/sh\nsleep 60\n")
    blocker: list[str | Path] = ["sbatch", "--parsable", "--nodes=2", "--exclusive", slow]
    job = front.run(blocker).stdout.strip()
    # Nothing starts meanwhile.
    submitted = front.envbuild("build", "--submit", "--test", "--json", ".")
    data = json.loads(submitted.stdout)
    assert {member["state"] for member in data["members"]} == {"queued"}
    assert [member["name"] for member in data["members"]] == ["both.yaml", "one.yaml", "two.yaml"]
    again = front.envbuild("build", "--submit", "one.yaml", code=2).stderr
    assert f"have not ended: {', '.join(data['jobs'])}" in again
    # The base is built, and the rest is killed.
    for waiting in data["jobs"][1:]:
        front.run(["scontrol", "hold", waiting])
    front.run(["scancel", job])
    deadline = time.monotonic() + 60
    while not records(front):
        assert time.monotonic() < deadline
        time.sleep(0.2)
    front.run(["scancel", *data["jobs"]])
    killed = await_end(front, code=3)
    assert {member["state"] for member in killed.values()} == {"failed"}
    before = records(front)

    front.envbuild("build", "--submit", "--test", ".")
    members = await_end(front)
    for name, member in members.items():
        assert member["state"] == "done", member
        assert "passed" in member["text"]
        assert (front.place / name).with_suffix(".sif").exists()
    after = records(front)
    assert {key: after[key] for key in before} == before
    assert front.envbuild("status", *front.place.glob("*.sif")).stdout.count("PASS") == len(MEMBERS)
    # Nothing is left to do, and the jobs know nothing that is the user's alone.
    assert json.loads(front.envbuild("build", "--submit", "--json", ".").stdout)["jobs"] == []
    for path in (front.store / "submission").rglob("*"):
        assert path.is_dir() or "secret-of-the-user" not in path.read_text()


@pytest.mark.slow  # unit/workflows/test_submit has refusals, `make cluster` a real submission
def test_what_slurm_refuses_is_refused_before_any_job(front: Desk) -> None:
    refused = front.envbuild("build", "--submit", "one.yaml", "--partition", "nope", code=2).stderr
    assert "invalid partition specified: nope" in refused
    too_long = ("--partition", "short", "--time", "10")
    never = front.envbuild("build", "--submit", "one.yaml", *too_long, code=2).stderr
    assert "cannot start as it is asked for: PartitionTimeLimit" in never
    assert front.run(["squeue", "--noheader"]).stdout == ""
