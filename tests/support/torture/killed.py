"""Builds killed at random moments: SIGKILL to the group, and in every second run to all its descendants."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import subprocess
import time
from pathlib import Path

from tests.support.torture.ground import Ground, Outcome, left_behind, store_problems


def descendants(process: int) -> list[int]:
    """Return the processes below one, which have sessions of their own."""
    parents: dict[int, int] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError, ValueError, IndexError):
            parents[int(path.parent.name)] = int(path.read_text().rpartition(")")[2].split()[1])
    found, todo = [], [process]
    while todo:
        above = todo.pop()
        below = [child for child, parent in parents.items() if parent == above]
        found += below
        todo += below
    return found


def kill(process: subprocess.Popen[str], *, whole: bool) -> None:
    """Kill a process group, and all processes below it as well."""
    below = descendants(process.pid) if whole else []
    for each in (process.pid, *below):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(each, signal.SIGKILL) if each == process.pid else os.kill(each, signal.SIGKILL)
    process.communicate()


# For each build that is to be killed: some end before their moment comes.
_ATTEMPTS = 5


def killed(ground: Ground, *, kills: int, seed: int = 20261121) -> Outcome:
    """Kill builds; after each, the store must hold no half layer, and now and then a build must resume.

    Parameters
    ----------
    kills : int
        Builds that are killed; those that ended before their moment came are cases, and no kills.
    """
    outcome = Outcome("builds killed")
    moments = random.Random(seed)  # noqa: S311  # the same moments every time
    desk = ground.desk("killed")
    started = time.monotonic()
    done = ground.run(ground.build(), desk)
    whole_s = time.monotonic() - started
    # Of a build from nothing, and of one that goes on.
    shortest_s = {True: whole_s, False: whole_s}
    outcome.hold(done.returncode == 0, f"the first build failed: {done.stderr}")
    outcome.facts["seconds of one build"] = round(whole_s, 1)
    outcome.count("killed", 0)
    for number in range(_ATTEMPTS * kills):
        # From nothing, or going on where the last one was killed.
        fresh = not number or (desk / "tiny.sif").exists() or moments.random() < 0.4
        if fresh:
            shutil.rmtree(desk / "store", ignore_errors=True)
            (desk / "tiny.sif").unlink(missing_ok=True)
        process = ground.start(ground.line(ground.build()), desk)
        began = time.monotonic()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(moments.uniform(0.1, shortest_s[fresh]))
            # What else the machine does may change: a build is to be met while it works.
            shortest_s[fresh] = min(shortest_s[fresh], time.monotonic() - began)
        outcome.count("ended before" if process.poll() is not None else "killed")
        kill(process, whole=number % 2 == 0)
        outcome.cases += 1
        image = desk / "tiny.sif"
        outcome.hold(not image.exists() or ground.is_reference(image), f"kill {number}: half an image")
        for problem in store_problems(desk / "store"):
            outcome.problems.append(f"kill {number}: {problem}")
        enough = outcome.facts["killed"] == kills
        if number % 10 == 9 or enough:
            again = ground.run(ground.build(), desk)
            outcome.count("resumed")
            outcome.hold(again.returncode == 0, f"kill {number}: the next run failed: {again.stderr}")
            outcome.hold(ground.is_reference(image), f"kill {number}: the next run gave other bytes")
        if enough:
            break
    outcome.hold(outcome.facts["killed"] == kills, "the builds ended before they could be killed")
    # What a step left that outlived its build is swept by a later one, which has something to build.
    time.sleep(1)
    shutil.rmtree(desk / "store/layers", ignore_errors=True)
    again = ground.run(ground.build(), desk)
    outcome.hold(again.returncode == 0, f"the last run failed: {again.stderr}")
    outcome.hold(ground.is_reference(desk / "tiny.sif"), "the last run gave other bytes")
    # `cache prune` removes what a killed download leaves.
    left = [path for path in left_behind(desk / "store") if ".unverified-" not in path]
    outcome.hold(not left, f"left: {left}")
    outcome.hold(not list(desk.glob(".*partial*")), f"left: {list(desk.glob('.*partial*'))}")
    return outcome
