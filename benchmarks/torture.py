"""Builds under hostile conditions, and writes docs/reference/benchmarks.md.

    make torture                                 # a quarter of an hour
    make torture ARGS="--only killed crowd"
    make torture ARGS="--small"                  # fewer cases; results are not recorded

Trials that act as several users or mount file systems run in a user namespace. The exit code is 1 if there
is a problem.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks import page, results
from envbuild.store.store import Store
from envbuild.system.descriptors import with_real_paths
from tests.support.torture.ground import make_ground
from tests.support.torture.mirrors import SCRIPTS, SLOW
from tests.support.torture.trials import run_trial

ROOT = Path(__file__).resolve().parent.parent
# Name → parameters of the trial, whole and small.
OPTIONS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "killed": ({"kills": 200}, {"kills": 20}),
    "full": ({"sizes": 24}, {"sizes": 6}),
    "places": ({}, {}),
    "crowd": ({"builds": 8}, {"builds": 8}),
    "rot": ({"rounds": 5}, {"rounds": 1}),
    "mirrors": ({"names": [*SCRIPTS, *SLOW]}, {"names": [*SCRIPTS]}),
    "secrets": ({}, {}),
    "matrix": ({"whole": True}, {"whole": False}),
    "fuzz": ({"cases": 10_000}, {"cases": 1_000}),
}


def base_layer(place: Path, command: Path) -> Path:
    """Build a Debian base; return its squashfs."""
    place.mkdir()
    (place / "plain.yaml").write_text('name: plain\nversion: "1"\nbase: debian-12\n')
    subprocess.run(
        [command, "build", place / "plain.yaml", "--store", place / "store"], check=True, cwd=place
    )
    store = Store(place / "store")
    blob = store.blob_path(next(record.blob for record in store.records() if record.name == "base"))
    return Path(with_real_paths(str(blob)))  # unsquashfs opens it


def main() -> int:
    """Run the trials."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", nargs="+", choices=OPTIONS, default=list(OPTIONS), metavar="TRIAL")
    parser.add_argument("--small", action="store_true", help="fewer cases; results are not recorded")
    options = parser.parse_args()
    failed = False
    with tempfile.TemporaryDirectory(prefix="envbuild-torture-", dir="/var/tmp") as name:
        place = Path(name)
        place.chmod(0o755)  # the trials' users enter it
        command = ROOT / ".venv/bin/envbuild"
        base = base_layer(place / "base", command)
        (place / "ground").mkdir()
        ground = make_ground(place / "ground", command, base)
        for trial in options.only:
            started = time.monotonic()
            outcome = run_trial(trial, ground, **OPTIONS[trial][options.small])
            row = {**asdict(outcome), "seconds": round(time.monotonic() - started)}
            problems = "".join(f"\n  {problem}" for problem in outcome.problems)
            print(
                f"{trial}: {outcome.cases} cases, {row['seconds']} s, problems: {problems or 0}", flush=True
            )
            failed = failed or bool(outcome.problems) or not outcome.cases
            if not options.small:
                results.record("torture", trial, row)
                page.write()
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
