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

from tests.support.torture.ground import Ground, Outcome, left_behind, own, store_problems


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


def killed(ground: Ground, *, kills: int, seed: int = 20261121) -> Outcome:
    """Kill builds; after each, the store must hold no half layer, and now and then a build must resume."""
    outcome = Outcome("builds killed")
    moments = random.Random(seed)  # noqa: S311  # the same moments every time
    desk = ground.desk("killed")
    started = time.monotonic()
    done = ground.run(ground.build(), desk)
    whole_s = time.monotonic() - started
    outcome.hold(done.returncode == 0, f"the first build failed: {done.stderr}")
    outcome.facts["seconds of one build"] = round(whole_s, 1)
    for number in range(kills):
        # From nothing, or going on where the last one was killed.
        fresh = not number or (desk / "tiny.sif").exists() or moments.random() < 0.4
        if fresh:
            shutil.rmtree(desk / "store", ignore_errors=True)
            (desk / "tiny.sif").unlink(missing_ok=True)
        process = ground.start(ground.line(ground.build()), desk)
        began = time.monotonic()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(moments.uniform(0.1, whole_s))
            # What else the machine does may change: a build is to be met while it works.
            whole_s = min(whole_s, time.monotonic() - began) if fresh else whole_s
        outcome.count("ended before" if process.poll() is not None else "killed")
        kill(process, whole=number % 2 == 0)
        outcome.cases += 1
        image = desk / "tiny.sif"
        outcome.hold(not image.exists() or ground.is_reference(image), f"kill {number}: half an image")
        for problem in store_problems(desk / "store"):
            outcome.problems.append(f"kill {number}: {problem}")
        if number % 10 == 9 or number == kills - 1:
            again = ground.run(ground.build(), desk)
            outcome.count("resumed")
            outcome.hold(again.returncode == 0, f"kill {number}: the next run failed: {again.stderr}")
            outcome.hold(ground.is_reference(image), f"kill {number}: the next run gave other bytes")
    # What a step left that outlived its build is swept by a later one, which has something to build.
    time.sleep(1)
    shutil.rmtree(desk / "store/layers", ignore_errors=True)
    own(desk)
    again = ground.run(ground.build(), desk)
    outcome.hold(again.returncode == 0, f"the last run failed: {again.stderr}")
    outcome.hold(ground.is_reference(desk / "tiny.sif"), "the last run gave other bytes")
    outcome.hold(not left_behind(desk / "store"), f"left: {left_behind(desk / 'store')}")
    outcome.hold(not list(desk.glob(".*partial*")), f"left: {list(desk.glob('.*partial*'))}")
    return outcome
