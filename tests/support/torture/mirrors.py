"""Builds from a mirror that cuts, stalls, sends other bytes or is busy: retried in limits, and checked."""

from __future__ import annotations

import re
import shutil
from collections.abc import Collection
from pathlib import Path

from tests.support.mirrors import Mirror, mirror, write_index
from tests.support.torture.ground import Ground, Outcome, store_problems

# What a server does at its first answers → exit code of the build, and what it must say.
SCRIPTS: dict[str, tuple[list[str], int, str]] = {
    "busy three times": (["503", "503", "503"], 0, ""),
    "cut": (["cut"], 0, ""),
    "cut three times": (["cut", "cut", "cut"], 0, ""),
    "cut, then sent whole": (["cut", "whole"], 0, ""),
    "without a length": (["unsized"], 0, ""),
    "other bytes": (["wrong"] * 9, 2, "is not the locked file"),
    "too many bytes": (["long"] * 9, 5, "longer than the"),
    "busy for good": (["503"] * 99, 5, "status 503"),
    "gone": (["404"] * 9, 2, "no origin has these locked files any more"),
}
# Minutes, since a transfer that stands still is given a minute: for `make torture` alone.
SLOW: dict[str, tuple[list[str], int, str]] = {"stalled": (["stall"], 0, "")}


def mirrors(ground: Ground, *, names: Collection[str] = (*SCRIPTS, *SLOW)) -> Outcome:
    """Build with one wheel from a server that misbehaves, in each of the ways that are named."""
    outcome = Outcome("mirrors")
    served = ground.place / "served"
    wheels = sorted((ground.place / "wheels").glob("*.whl"))
    write_index(served, wheels)
    with mirror(served) as server:
        for name in names:
            script, code, told = {**SCRIPTS, **SLOW}[name]
            outcome.cases += 1
            _one(ground, outcome, server, name, script, code, told, wheels[0].name)
    return outcome


def _one(
    ground: Ground,
    outcome: Outcome,
    server: Mirror,
    name: str,
    script: list[str],
    code: int,
    told: str,
    wheel: str,
) -> None:
    desk = ground.desk("mirror")
    config = desk / "config/envbuild"
    shutil.copytree(ground.place / "config/envbuild", config)
    (config / "site.yaml").write_text(f"name: here\norigins: {{pypi: ['{server.address}/simple']}}\n")
    path = f"/files/{wheel}"
    server.requests.clear()
    server.script[path] = list(script)
    # The index is asked too: its pages are never in the way here.
    words = ["build", "tiny.yaml", "--locked"]
    done = ground.run(
        words, desk, env={"XDG_CONFIG_HOME": str(desk / "config"), "PIP_CONFIG_FILE": "/dev/null"}
    )
    outcome.hold(done.returncode == code, f"{name}: exit code {done.returncode}: {done.stderr}")
    outcome.hold("Traceback" not in done.stderr, f"{name}: {done.stderr}")
    if code == 0:
        outcome.hold(ground.is_reference(desk / "tiny.sif"), f"{name}: other bytes came of it")
    else:
        outcome.hold(told in done.stderr, f"{name}: is not told: {done.stderr}")
        outcome.hold(not (desk / "tiny.sif").exists(), f"{name}: an image is there")
    ranges = server.requests_for(path)
    outcome.facts[name] = f"{len(ranges)} requests"
    outcome.hold(len(ranges) <= 6, f"{name}: asked {len(ranges)} times")
    if name == "cut":
        outcome.hold(
            re.fullmatch(r"bytes=\d+-", ranges[-1]), f"{name}: it does not go on where it ended: {ranges}"
        )
    outcome.problems += [f"{name}: {problem}" for problem in store_problems(desk / "store")]
    left = [str(each) for each in Path(desk / "store").rglob(".unverified-*")]
    outcome.hold(not left, f"{name}: left {left}")
