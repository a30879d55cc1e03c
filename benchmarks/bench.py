"""How long it takes, beside `apptainer build` and buildah of the same packages on the same base, in one run.

And what it costs to keep many environments: disk, starts and page cache (`sharing.py`).

Not a test: nothing here passes or fails by time. Figures are medians over the
repeats, the cases interleaved, so that a noisy moment hits all sides; read
the ratios. As root it works as the suite's ordinary user.

    make bench
    make bench ARGS="--only build --only start"

All rows take hours. Each row is measured whole, in one run; of other rows the page shows what earlier
runs saw (docs/figures/bench.json), and it is written once there is every row.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "bench.md"
KEPT = ROOT / "docs/figures/bench.json"
sys.path.insert(0, str(ROOT))

from benchmarks import page, rows, sharing  # noqa: E402  # needs the path above
from benchmarks.memory import Sampler  # noqa: E402
from tests.support.users import as_user, shared_directory, user_directory  # noqa: E402


@dataclass
class Bench:
    """A place to work in, and what was measured there.

    Attributes
    ----------
    program : str
        What Python runs where imports are measured.
    seconds, cpu_seconds : dict of str to list of float
        Case → wall clock of each repeat, and what all its processes computed.
    peak_bytes : dict of str to list of float
        Case → memory of all its processes together.
    failed : dict of str to str
        Case → why it cannot be measured here.
    shares : dict of str to dict
        What environments cost that share a framework: ``disk`` and ``page cache``, in bytes.
    """

    place: Path
    program: str = "import torch"
    seconds: dict[str, list[float]] = field(default_factory=dict)
    cpu_seconds: dict[str, list[float]] = field(default_factory=dict)
    peak_bytes: dict[str, list[float]] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    shares: dict[str, dict[str, float]] = field(default_factory=dict)

    def run(self, argv: Sequence[str | Path], *, check: bool = True, memory: str = "") -> str:
        """Run a command as the user and return what it wrote; show it and end if it fails."""
        with subprocess.Popen(
            as_user(argv),
            cwd=self.place,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        ) as process:
            sampler = Sampler(process.pid)
            if memory:
                sampler.start()
            said, _ = process.communicate()
            if memory:
                self.peak_bytes.setdefault(memory, []).append(sampler.stop())
        if check and process.returncode != 0:
            raise RuntimeError(f"{[str(word) for word in argv]}\n{said}")
        return said

    def write(self, name: str, text: str) -> None:
        """Write a file that belongs to the user."""
        path = self.place / name
        path.write_text(text)
        status = self.place.stat()
        os.chown(path, status.st_uid, status.st_gid)

    def measure(self, case: str, *commands: Sequence[str | Path]) -> None:
        """Run commands one after the other and note how long they took together.

        What the case before left to be written is written first: a quick case would pay for a slow one.
        """
        os.sync()
        computed = _used()
        started = time.monotonic()
        for argv in commands:
            self.run(argv)
        self.note(case, time.monotonic() - started, _used() - computed)

    def note(self, case: str, seconds: float, cpu_seconds: float) -> None:
        """Note what was measured."""
        self.seconds.setdefault(case, []).append(seconds)
        self.cpu_seconds.setdefault(case, []).append(cpu_seconds)
        print(f"  {case}: {seconds:.2f} s, CPU {cpu_seconds:.2f} s", file=sys.stderr, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=5, metavar="N", help="repeats of each case [5]")
    parser.add_argument(
        "--only", action="append", choices=[*rows.ROWS, "sharing"], help="one part (repeatable) [all]"
    )
    parser.add_argument("--small", action="store_true", help="a small image: shows that the bench works")
    parser.add_argument("--page", type=Path, default=PAGE, help=f"the page [{PAGE.relative_to(ROOT)}]")
    parser.add_argument("--fresh", action="store_true", help="forget what earlier runs measured")
    arguments = parser.parse_args()
    chosen = arguments.only or [*rows.ROWS, "sharing"]
    with shared_directory() as shared:
        bench = Bench(place=user_directory(shared))
        if arguments.small:
            bench.program = "import numpy"
        rows.prepare(bench, chosen, rows.SMALL if arguments.small else rows.SPEC)
        if "sharing" in chosen:
            sharing.prepare(bench, rows.envbuild(), rows.SPEC)
        for number in range(arguments.repeats):
            print(f"repeat {number + 1} of {arguments.repeats}", file=sys.stderr, flush=True)
            for name in chosen:
                if name == "sharing":
                    sharing.one_round(bench)
                else:
                    rows.ROWS[name](bench)
        if "sharing" in chosen:
            bench.shares = {"disk": sharing.disk(bench), "page cache": sharing.page_cache(bench)}
    if not arguments.small:
        recall(bench, {} if arguments.fresh or not KEPT.is_file() else json.loads(KEPT.read_text()))
    report(bench, None if arguments.small else arguments.page)


def recall(bench: Bench, kept: dict[str, Any]) -> None:
    """Add what earlier runs measured of other cases, and keep it all for later ones."""
    measured = {case.partition(": ")[2] for case in bench.seconds}
    lacked = {peer: why for peer, why in kept.get("failed", {}).items() if peer not in measured}
    bench.seconds = {**kept.get("seconds", {}), **bench.seconds}
    bench.cpu_seconds = {**kept.get("cpu_seconds", {}), **bench.cpu_seconds}
    bench.peak_bytes = {**kept.get("peak_bytes", {}), **bench.peak_bytes}
    bench.failed = {**lacked, **bench.failed}
    bench.shares = bench.shares or kept.get("shares", {})
    data = {
        "machine": page.machine(),
        "seconds": bench.seconds,
        "cpu_seconds": bench.cpu_seconds,
        "peak_bytes": bench.peak_bytes,
        "failed": bench.failed,
        "shares": bench.shares,
        "medians": {case: statistics.median(taken) for case, taken in bench.seconds.items()},
        "figures": [figure.to_data() for figure in page.figures(bench)],
    }
    KEPT.parent.mkdir(parents=True, exist_ok=True)
    KEPT.write_text(json.dumps(data, indent=2) + "\n")
    print(f"written to {KEPT}", file=sys.stderr)


def report(bench: Bench, text: Path | None) -> None:
    """Print the tables; write them as a page where every row was measured."""
    found = page.figures(bench)
    print("\n".join(page.table(found, bench)))
    for line in sharing.lines_of(bench):
        print(line)
    missing = page.missing(bench)
    if text is not None and not missing:
        text.write_text(page.page(found, bench))
    elif text is not None:
        print(f"no page: not measured yet: {', '.join(missing)}", file=sys.stderr)


def _used() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


if __name__ == "__main__":
    main()
