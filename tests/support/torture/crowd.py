"""Many builds at once over one store, and readers of it. To be run as root of a user namespace."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from tests.support.torture.ground import BUILT, Ground, Outcome, left_behind, store_problems
from tests.support.users import OTHER_USER, becoming


def crowd(ground: Ground, *, builds: int = 8) -> Outcome:
    """Begin builds together over one empty store of one user.

    Then another user's builds take its layers as those of an upstream, while its owner prunes it.
    """
    outcome = Outcome("builds at once", cases=builds)
    place = ground.desk("crowd")
    place.chmod(0o755)
    store = place / "store"
    desks = [ground.desk(f"crowd-{number}") for number in range(builds)]
    running = [ground.start(ground.line([*ground.build(), "-v"]), desk, store=store) for desk in desks]
    made: Counter[str] = Counter()
    for output in _outputs(running, desks, ground, outcome):
        made.update(re.findall(r"^build layer (\S+) \.\.\.$", output, re.MULTILINE))
    outcome.facts["layers"] = len(made)
    outcome.facts["most often built"] = max(made.values(), default=0)
    outcome.hold(made, "nothing was built")
    for layer, count in made.items():
        outcome.hold(count <= 2, f"layer {layer} was built {count} times")
    outcome.problems += store_problems(store)
    for desk in desks:
        (desk / "tiny.sif").unlink()
    _read(ground, place, outcome, readers=max(2, builds // 2))
    outcome.problems += store_problems(store)
    outcome.hold(not left_behind(store), f"left: {left_behind(store)}")
    return outcome


def _read(ground: Ground, place: Path, outcome: Outcome, *, readers: int) -> None:
    config = place / "config"
    shutil.copytree(ground.environment(place)["XDG_CONFIG_HOME"], config)
    owner = ground.place.stat().st_uid
    upstreams = f"upstreams: [{{path: {place / 'store'}, owner: '{owner}'}}]\n"
    (config / "envbuild/config.yaml").write_text(upstreams)
    desks = [ground.desk(f"reader-{number}") for number in range(readers)]
    running = []
    for desk in desks:
        for path in (desk, *desk.iterdir()):
            os.chown(path, OTHER_USER, OTHER_USER)
        line = [*becoming(OTHER_USER, OTHER_USER), *ground.line(ground.build(), root=True)]
        running.append(ground.start(line, desk, env={"XDG_CONFIG_HOME": str(config)}))
    # Once the first has opened layers, all are taken away.
    while not any((desk / "store").exists() for desk in desks):
        if any(process.poll() is not None for process in running):
            break
    pruned = ground.run(["cache", "prune", "--older-than", "0s"], place, store=place / "store")
    outcome.hold(pruned.returncode == 0, f"the owner cannot prune: {pruned.stderr}")
    for output in _outputs(running, desks, ground, outcome):
        outcome.count("readers that built nothing", not BUILT.search(output))
    outcome.facts["readers"] = readers


def _outputs(
    running: list[subprocess.Popen[str]], desks: list[Path], ground: Ground, outcome: Outcome
) -> Iterator[str]:
    """Wait for builds, see that each gives the reference image, and yield what it writes."""
    for process, desk in zip(running, desks, strict=True):
        output, _ = process.communicate(timeout=600)
        outcome.hold(process.returncode == 0, f"{desk.name}: {output}")
        outcome.hold(ground.is_reference(desk / "tiny.sif"), f"{desk.name} gave other bytes")
        yield output
