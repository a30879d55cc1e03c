"""All trials by name.

Some mount file systems and build as several users. These run as root of a user namespace, in a process of
their own; their builds run as the user who started them, unless a trial is about other users.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tests.support.torture.attacks import attacks
from tests.support.torture.crowd import crowd
from tests.support.torture.disk import full, places
from tests.support.torture.fuzz import fuzz
from tests.support.torture.ground import Ground, Outcome
from tests.support.torture.killed import killed
from tests.support.torture.matrix import matrix
from tests.support.torture.mirrors import mirrors
from tests.support.torture.rot import rot
from tests.support.torture.secrets import secrets
from tests.support.users import in_user_namespace

ROOT = Path(__file__).resolve().parents[3]
TRIALS: dict[str, Callable[..., Outcome]] = {
    "killed": killed,
    "full": full,
    "places": places,
    "crowd": crowd,
    "rot": rot,
    "mirrors": mirrors,
    "secrets": secrets,
    "matrix": matrix,
    "fuzz": fuzz,
    "attacks": attacks,
}
IN_NAMESPACE = frozenset(("full", "places", "crowd", "matrix", "attacks"))


def run_trial(name: str, ground: Ground, **options: Any) -> Outcome:
    """Run one trial, in a user namespace if it needs one.

    Parameters
    ----------
    options
        The trial's own parameters; plain data.
    """
    if name not in IN_NAMESPACE:
        return TRIALS[name](ground, **options)
    request = json.dumps({"place": str(ground.place), "command": str(ground.command), "options": options})
    words = [*in_user_namespace("--mount"), sys.executable, "-m", __name__, name, request]
    done = subprocess.run(words, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
    return Outcome(**json.loads(done.stdout))


def main() -> None:
    """Run one trial here, and print its outcome as JSON."""
    name, request = sys.argv[1:]
    given = json.loads(request)
    ground = Ground(place=Path(given["place"]), command=Path(given["command"]))
    ground.reference = (ground.place / "tiny.sif").read_bytes()
    sys.stdout.write(json.dumps(asdict(TRIALS[name](ground, **given["options"]))))


if __name__ == "__main__":
    main()
