"""Many builds at once over one store, by two users. To be run as root of a user namespace."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections import Counter
from pathlib import Path

from tests.support.torture.ground import Ground, Outcome, left_behind, store_problems
from tests.support.users import OTHER_USER, becoming

GROUP = 54_321  # of nobody's: the members are given it


def crowd(ground: Ground, *, builds: int = 8) -> Outcome:
    """Begin builds together over one empty store that two users share by a group."""
    outcome = Outcome("builds at once", cases=builds)
    shared = ground.place / "shared-store"
    shutil.rmtree(shared, ignore_errors=True)
    shared.mkdir()
    os.chown(shared, 0, GROUP)
    shared.chmod(0o2775)
    owner = ground.place.stat()
    users = [(owner.st_uid, owner.st_gid), (OTHER_USER, OTHER_USER)]
    outcome.facts["users"] = len(users)
    running: list[tuple[subprocess.Popen[str], Path]] = []
    for number in range(builds):
        desk = ground.desk(f"crowd-{number}")
        uid, gid = users[number % len(users)]
        for path in (desk, *desk.iterdir()):
            os.chown(path, uid, gid)
        line = [*becoming(uid, GROUP), *ground.line(ground.build(), root=True)]
        running.append((ground.start(line, desk, store=shared, umask=0o002), desk))
    made: Counter[str] = Counter()
    for number, (process, desk) in enumerate(running):
        said, _ = process.communicate(timeout=600)
        outcome.hold(process.returncode == 0, f"build {number}: {said}")
        outcome.hold(ground.is_reference(desk / "tiny.sif"), f"build {number} gave other bytes")
        made.update(re.findall(r"^build layer (\S+) \.\.\.$", said, re.MULTILINE))
    outcome.facts["layers"] = len(made)
    outcome.facts["most often built"] = max(made.values(), default=0)
    outcome.hold(made, "nothing was built")
    for layer, count in made.items():
        outcome.hold(count <= 2, f"layer {layer} was built {count} times")
    outcome.problems += store_problems(shared)
    outcome.hold(not left_behind(shared), f"left: {left_behind(shared)}")
    return outcome
