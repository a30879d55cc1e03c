"""Results of the benchmarks: `results/YYYY-MM-DD-KIND.json` holds the rows measured on that day, by name."""

from __future__ import annotations

import datetime
import functools
import json
import os
import platform
import shutil
import subprocess
from importlib import metadata
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).resolve().parent / "results"
Row = dict[str, Any]


def _machine() -> Row:
    memory_kib = int(Path("/proc/meminfo").read_text().split()[1])
    return {
        "cores": os.cpu_count(),
        "memory_bytes": memory_kib * 1024,
        "load": [round(load, 2) for load in os.getloadavg()],
        "root": os.geteuid() == 0,
    }


# The load average must be that of the time before the run.
_MACHINE = _machine()


def record(kind: str, name: str, row: Row) -> None:
    """Add a row to today's results, or replace it; add the machine and the versions."""
    path = RESULTS / f"{datetime.datetime.now(datetime.UTC).date()}-{kind}.json"
    rows = json.loads(path.read_text()) if path.exists() else {}
    rows[name] = {**row, "machine": _MACHINE, "versions": _versions()}
    write(path, rows)


def write(path: Path, rows: dict[str, Row]) -> None:
    """Write rows as JSON, one per line."""
    path.parent.mkdir(exist_ok=True)
    lines = (f"{json.dumps(name)}: {json.dumps(row)}" for name, row in rows.items())
    path.write_text("{\n" + ",\n".join(lines) + "\n}\n")


def newest(kind: str) -> dict[str, Row]:
    """Return the newest row of each name, with its `date`."""
    rows: dict[str, Row] = {}
    for path in sorted(RESULTS.glob(f"????-??-??-{kind}.json")):
        date = path.name.removesuffix(f"-{kind}.json")
        rows |= {name: {**row, "date": date} for name, row in json.loads(path.read_text()).items()}
    return rows


@functools.cache  # the first record makes the checkout dirty
def _versions() -> dict[str, str]:
    tools = {name: _output(name, "--version") for name in ("apptainer", "buildah") if shutil.which(name)}
    return {
        "envbuild": f"{metadata.version('envbuild')} ({_output('git', 'describe', '--always', '--dirty')})",
        "python": platform.python_version(),
        "linux": platform.release(),
        **tools,
    }


def _output(*words: str) -> str:
    done = subprocess.run(words, cwd=RESULTS.parent, capture_output=True, text=True, check=False)
    return done.stdout.strip()
