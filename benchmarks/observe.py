"""The cost of `launch --observe`: CPU time of recorded ranks and of others, alternating, with an interval.

    python -m benchmarks.observe IMAGE [--runs 20] [--rounds 12000]

Each run does the same work on two ranks. The CPU time is that of the launcher and all its processes; that of
the recorders, which are not children of the ranks, comes from their records. The interval holds the median
with 95 %, by order statistics.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.page import write
from benchmarks.results import record

WORK = "import hashlib\nfor _ in range({rounds}): hashlib.sha256(bytes(1 << 20)).digest()\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("image", type=Path)
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=12000)
    options = parser.parse_args()
    for label, row in measured(options.image, runs=options.runs, rounds=options.rounds).items():
        print(label, row)
        record("observe", label, row)
    write()


def measured(image: Path, *, runs: int, rounds: int) -> dict[str, dict[str, float]]:
    """Return the cost of recording by what it is a share of: median, interval and number of runs."""
    plain, observed, own, walls = [], [], [], ([], [])  # type: ignore[var-annotated]
    with tempfile.TemporaryDirectory() as name:
        script = Path(name, "work.py")
        script.write_text(WORK.format(rounds=rounds))
        for run in range(runs):
            cpu, wall = run_ranks(image, script, [])
            plain.append(cpu)
            walls[0].append(wall)
            records = Path(name, f"records-{run}")
            cpu, wall = run_ranks(image, script, ["--observe", str(records)])
            time.sleep(0.2)
            recorder = sum(last_cost(path) for path in records.glob("rank-*.jsonl"))
            observed.append(cpu + recorder)
            own.append(recorder / cpu)
            walls[1].append(wall)
    ratios = [later / earlier - 1 for earlier, later in zip(plain, observed, strict=True)]
    shares = {
        "CPU time of all processes": ratios,
        "of this, of the recorders": own,
        "wall-clock time": [b / a - 1 for a, b in zip(*walls, strict=True)],
    }
    rows = {}
    for label, values in shares.items():
        low, high = interval(values)
        rows[label] = {"median": statistics.median(values), "low": low, "high": high, "runs": 2 * len(values)}
    return rows


def run_ranks(image: Path, script: Path, more: Sequence[str]) -> tuple[float, float]:
    """Return the CPU and wall-clock seconds of a run."""
    words = ["envbuild", "launch", str(image), "-n", "2", *more, "--", "python3", str(script)]
    begin, before = time.monotonic(), os.times()
    subprocess.run(words, check=True)
    after = os.times()
    cpu = after.children_user + after.children_system - before.children_user - before.children_system
    return cpu, time.monotonic() - begin


def last_cost(path: Path) -> float:
    """Return the CPU seconds of a recorder up to its last sample."""
    samples = [json.loads(line) for line in path.read_text().splitlines()]
    return max((float(sample["own"]) for sample in samples if "own" in sample), default=math.nan)


def interval(values: Sequence[float]) -> tuple[float, float]:
    """Return an interval that holds the median with at least 95 %: ranks of the binomial distribution."""
    ordered, count = sorted(values), len(values)
    below, rank = 0.0, 0
    while below + math.comb(count, rank) / 2**count <= 0.025:
        below += math.comb(count, rank) / 2**count
        rank += 1
    return ordered[max(0, rank - 1)], ordered[min(count - 1, count - rank)]


if __name__ == "__main__":
    main()
