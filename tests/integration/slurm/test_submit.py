"""`build --submit` on a real cluster whose nodes have no locks in common; `make cluster` shows more."""

from __future__ import annotations

import json
import time
from dataclasses import replace
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
    place = ground.place / "front desk"
    place.mkdir()
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


def test_what_is_missing_is_built_once(front: Desk) -> None:
    submitted = front.envbuild("build", "--submit", "--test", "--json", "both.yaml")
    print(submitted.stdout, submitted.stderr)
    members = await_end(front)
    print(members)
